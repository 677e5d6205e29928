//! What a client shows to Prometheus: its counters, and how long the answers of each model took.

use baton_metrics::{Histogram, LATENCY_BOUNDS_S, Metric, OBJECTIVE_BOUNDS, Value};

use crate::counters::Counters;
use crate::outcome::Timing;

/// Everything that a client may show, as far as it is known without a model.
pub fn described() -> Vec<Metric> {
    shown(&Counters::default(), [0; 2], &[])
}

/// `models` have their names, and what [`Latencies::values`] says of them.
pub(crate) fn shown(
    counters: &Counters,
    [slots_in_use, backends]: [u32; 2],
    models: &[(String, [Value; 2])],
) -> Vec<Metric> {
    let slots =
        "Input slots that are not free: being filled, in flight, or held by a ticket or a reply";
    let in_seconds = "From submit to answer, of completed tasks";
    let in_allowed = "From submit to answer, of completed tasks, in units of the time that the task was given: what is at or \
                      below 1 was in time";
    let histograms = |name: &str, help, of: usize| Metric {
        series: models
            .iter()
            .map(|(name, values)| (vec![name.clone()], values[of].clone()))
            .collect(),
        ..Metric::histograms(name, help, &["model"])
    };
    let mut metrics = counters.metrics();
    let connected = "Backends that are connected and may answer";
    metrics.push(Metric::gauge("baton_client_backends", connected, backends.into()));
    metrics.push(Metric::gauge("baton_client_slots_in_use", slots, slots_in_use.into()));
    metrics.push(histograms("baton_client_latency_seconds", in_seconds, 0));
    metrics.push(histograms("baton_client_latency_of_deadline", in_allowed, 1));
    metrics
}

/// Counted by the I/O thread, read at a scrape.
#[derive(Debug)]
pub(crate) struct Latencies {
    seconds: Histogram<{ LATENCY_BOUNDS_S.len() }>,
    /// In units of the time that the task was given.
    of_allowed: Histogram<{ OBJECTIVE_BOUNDS.len() }>,
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            seconds: Histogram::new(&LATENCY_BOUNDS_S),
            of_allowed: Histogram::new(&OBJECTIVE_BOUNDS),
        }
    }
}

impl Latencies {
    pub(crate) fn record(&self, timing: &Timing) {
        let took = (timing.landed - timing.submitted).0 as f64;
        let allowed = (timing.deadline - timing.submitted).0 as f64;
        self.seconds.record(took / 1e9);
        // A deadline at the submit allows nothing: whatever took time is late.
        self.of_allowed.record(if allowed > 0.0 { took / allowed } else { f64::INFINITY });
    }

    /// In seconds, and in units of what was allowed.
    pub(crate) fn values(&self) -> [Value; 2] {
        [self.seconds.value(), self.of_allowed.value()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_types::{GpuId, Nanos};

    #[test]
    fn an_answer_at_its_deadline_is_in_time_and_one_behind_it_is_not() {
        let latencies = Latencies::default();
        for landed in [40_000_000, 50_000_000, 50_000_001] {
            latencies.record(&Timing {
                submitted: Nanos(20_000_000),
                started: Nanos(20_000_000),
                finished: Nanos(landed),
                landed: Nanos(landed),
                deadline: Nanos(50_000_000),
                clock_error: Nanos::ZERO,
                batch_size: 1,
                gpu: GpuId(0),
                variant: 0,
                cold: false,
            });
        }
        let up_to = |value: &Value, bound: f64| -> u64 {
            let Value::Sizes { buckets, .. } = value else { panic!("a histogram") };
            buckets.iter().filter(|bucket| bucket.0 <= bound).map(|bucket| bucket.1).sum()
        };
        let [seconds, of_allowed] = latencies.values();
        assert_eq!(
            (up_to(&seconds, 0.02), up_to(&seconds, 0.03), up_to(&seconds, 0.05)),
            (1, 2, 3)
        );
        assert_eq!((up_to(&of_allowed, 0.95), up_to(&of_allowed, 1.0)), (1, 2));
    }
}

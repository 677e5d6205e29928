//! How far the scheduler's predictions are off, in a run whose executions and LOADs vary (Clockwork §6.5, Fig. 10).
//!
//! The same measured times also go to Clockwork's rule (§5.3), the largest of the last ten, which decides nothing here.

use std::collections::{HashMap, VecDeque};

use baton_core::{GpuUpdate, LoadOutcome, Nanos};
use hdrhistogram::Histogram;

use crate::cluster::Finished;
use crate::loaders::LoadEnd;
use crate::observer::{Event, Observer, observe};
use crate::run::Run;
use crate::scenario::Scenario;
use crate::tally::SimError;

/// Predictions of one kind, by how much longer or shorter than predicted it was.
#[derive(Clone, Debug)]
pub struct Errors {
    over_ns: Histogram<u64>,
    under_ns: Histogram<u64>,
}

/// See the module documentation. Actions that ended after the warm-up.
#[derive(Clone, Debug)]
pub struct Predictions {
    /// How long executions take.
    pub infer: Errors,
    /// The same by Clockwork's rule.
    pub infer_of_ten: Errors,
    /// When executions end, those before them included.
    pub infer_end: Errors,
    /// How long LOADs take.
    pub load: Errors,
    /// The same by Clockwork's rule.
    pub load_of_ten: Errors,
    /// When LOADs end, those before them included.
    pub load_end: Errors,
}

/// How many measured times Clockwork's rule looks at.
const LAST: usize = 10;
/// The histograms resolve errors to three digits, up to this.
const MOST: Nanos = Nanos::from_millis(10_000);

impl Errors {
    fn new() -> Self {
        let histogram = || {
            Histogram::new_with_max(MOST.0, 3)
                .expect("the largest value is at least 2 and the digits are at most 5")
        };
        Self { over_ns: histogram(), under_ns: histogram() }
    }

    fn count(&mut self, predicted: Nanos, real: Nanos) {
        if predicted >= real {
            self.over_ns.saturating_record((predicted - real).0);
        } else {
            self.under_ns.saturating_record((real - predicted).0);
        }
    }

    /// Of the actions that took no longer than predicted: how much shorter this part of them was at most, µs. `None` without any.
    #[must_use]
    pub fn over_us(&self, part: f64) -> Option<f64> {
        quantile_us(&self.over_ns, part)
    }

    /// Of the actions that took longer than predicted: how much longer this part of them was at most, µs. `None` without any.
    #[must_use]
    pub fn under_us(&self, part: f64) -> Option<f64> {
        quantile_us(&self.under_ns, part)
    }

    /// How many actions there were, and the part of them that took longer than predicted.
    #[must_use]
    pub fn underpredicted(&self) -> (u64, f64) {
        let all = self.over_ns.len() + self.under_ns.len();
        (all, self.under_ns.len() as f64 / all.max(1) as f64)
    }
}

fn quantile_us(of: &Histogram<u64>, part: f64) -> Option<f64> {
    (!of.is_empty()).then(|| of.value_at_quantile(part) as f64 / 1e3)
}

/// Runs one of the production scheduler's policies, and compares what it predicts with what happens.
///
/// # Errors
/// As [`run`](crate::run); the policy is a baseline, or slots come and go.
pub fn run_predictions(scenario: &Scenario, run: Run) -> Result<Predictions, SimError> {
    let unsupported = |key, why| {
        let policy = run.policy.to_string();
        Err(SimError::Unsupported { policy, key, why })
    };
    if !scenario.gpu_events.is_empty() {
        return unsupported("gpu_event", "nothing is predicted of a batch whose slot goes");
    }
    Ok(observe(scenario, run, Comparison::new(scenario))?.errors)
}

/// Clockwork's prediction for everything that is measured under a key.
struct OfTen<K>(HashMap<K, VecDeque<Nanos>>);

impl<K: std::hash::Hash + Eq> OfTen<K> {
    /// The largest of the last ten, which the measured time then joins. `None` as long as there are fewer.
    fn next(&mut self, key: K, measured: Nanos) -> Option<Nanos> {
        let last = self.0.entry(key).or_default();
        let predicted = last.iter().max().copied().filter(|_| last.len() == LAST);
        if last.len() == LAST {
            last.pop_front();
        }
        last.push_back(measured);
        predicted
    }
}

/// Hears of plans and of what became of them.
struct Comparison {
    from: Nanos,
    errors: Predictions,
    /// By slot: planned ends and times of the batches that it has.
    planned: Vec<VecDeque<(Nanos, Nanos)>>,
    infer_of_ten: OfTen<(u32, u16, u32)>,
    load_of_ten: OfTen<u32>,
}

impl Comparison {
    fn new(scenario: &Scenario) -> Self {
        let [infer, infer_of_ten, infer_end, load, load_of_ten, load_end] =
            std::array::from_fn(|_| Errors::new());
        Self {
            from: scenario.warmup,
            errors: Predictions { infer, infer_of_ten, infer_end, load, load_of_ten, load_end },
            planned: vec![VecDeque::new(); scenario.gpus as usize],
            infer_of_ten: OfTen(HashMap::new()),
            load_of_ten: OfTen(HashMap::new()),
        }
    }

    fn finished(&mut self, now: Nanos, finished: Finished) {
        let Finished { gpu, model, variant, batch, took } = finished;
        let planned = self.planned[gpu as usize].pop_front();
        let of_ten = self.infer_of_ten.next((model, variant, batch), took);
        if now < self.from {
            return;
        }
        let (end, latency) = planned.expect("a batch is planned before it ends");
        self.errors.infer.count(latency, took);
        self.errors.infer_end.count(end, now);
        of_ten.iter().for_each(|&of_ten| self.errors.infer_of_ten.count(of_ten, took));
    }

    fn loaded(&mut self, now: Nanos, load: LoadEnd) {
        let LoadOutcome::Loaded { took } = load.outcome else { return };
        let of_ten = self.load_of_ten.next(load.model, took);
        if now < self.from {
            return;
        }
        let (latency, until) = load.planned;
        self.errors.load.count(latency, took);
        self.errors.load_end.count(until, now);
        of_ten.iter().for_each(|&of_ten| self.errors.load_of_ten.count(of_ten, took));
    }
}

impl Observer for Comparison {
    fn event(&mut self, now: Nanos, event: Event<'_>) {
        match event {
            Event::Slot(GpuUpdate::Planned { gpu, start, latency, .. }) => {
                self.planned[gpu.id.0 as usize].push_back((start + latency, latency));
            }
            Event::Finished(finished) => self.finished(now, finished),
            Event::Loaded(load) => self.loaded(now, load),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Nanos = Nanos::from_micros(1);

    #[test]
    fn too_long_and_too_short_are_counted_apart() {
        let mut errors = Errors::new();
        assert_eq!((errors.over_us(0.99), errors.underpredicted()), (None, (0, 0.0)));
        for (predicted, real) in [(10, 10), (10, 7), (10, 12), (10, 30)] {
            errors.count(US.times(predicted), US.times(real));
        }
        let about = |value: Option<f64>, us: f64| (value.unwrap() - us).abs() < 0.02;
        assert!(about(errors.over_us(1.0), 3.0), "{:?}", errors.over_us(1.0));
        assert!(about(errors.over_us(0.5), 0.0), "{:?}", errors.over_us(0.5));
        assert!(about(errors.under_us(0.5), 2.0), "{:?}", errors.under_us(0.5));
        assert!(about(errors.under_us(1.0), 20.0), "{:?}", errors.under_us(1.0));
        assert_eq!(errors.underpredicted(), (4, 0.5));
    }

    #[test]
    fn clockworks_rule_takes_the_largest_of_the_last_ten() {
        let mut rule = OfTen(HashMap::new());
        let first: Vec<_> = (0..10).map(|i| rule.next(0, US.times(20 - i))).collect();
        assert!(first.iter().all(Option::is_none), "{first:?}");
        assert_eq!(rule.next(0, US), Some(US.times(20)));
        assert_eq!(rule.next(0, US), Some(US.times(19)), "the first of eleven is forgotten");
        assert_eq!(rule.next(1, US), None, "each key has its own");
    }
}

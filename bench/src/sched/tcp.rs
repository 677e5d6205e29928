//! Requests that arrive over TCP: sockets, framing and the production transport are in what a
//! ModelThread's request costs.

use std::fmt;

use baton_core::Nanos;
use serde::Serialize;

use super::harness::Harness;
use super::report::Quantiles;
use super::workload::Workload;
use super::{SchedError, Shape, ShapeReport, cache_line_latency, highest_rate_of};
use crate::machine::percent;

/// A finished run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TcpReport {
    /// What was run.
    #[serde(flatten)]
    pub shape: ShapeReport,
    /// Length of the measured phase.
    pub seconds: f64,
    /// Requests that came in, per second.
    pub requests_per_s: f64,
    /// CPU time of the ModelThreads' passes with something to do, user and kernel, per request.
    /// Emulating the GPUs is part of it.
    pub ns_per_request: f64,
    /// Requests in a pass that had something to do.
    pub requests_per_pass: f64,
    /// CPU time of the frontends per request, user and kernel: not part of the above.
    pub sender_ns_per_request: f64,
    /// Tasks in a batch.
    pub mean_batch: f64,
    /// From the moment a batch is schedulable and a slot can be granted until the plan is out.
    pub dispatch_delay_us: Quantiles,
    /// Tasks given up, for whatever reason.
    pub dropped: u64,
    /// Of these, because the model's queue was full.
    pub queue_full: u64,
    /// Times the kernel took a core away for long from RankThread or ModelThreads.
    pub interruptions: u64,
    /// Each thread had a core of its own; else the ModelThreads had, as far as there were enough.
    pub pinned: bool,
    /// Share of the CPU time that went to other machines' work; `null` where unknown.
    pub steal_fraction: Option<f64>,
    /// As in [`super::SchedReport`].
    pub line_travel_ns: [Option<f64>; 2],
}

/// Measures, at `shape.rate` if there is one.
///
/// # Errors
/// See [`SchedError`].
pub fn tcp(shape: Shape) -> Result<TcpReport, SchedError> {
    shape.check()?;
    let highest = || highest_rate_of(shape, Harness::over_tcp);
    let workload = Workload::new(shape, shape.rate.map_or_else(highest, Ok)?);
    let before = cache_line_latency::travel_ns()?;
    let outcome = Harness::over_tcp(&workload)?.run(Nanos::from_millis_f64(shape.seconds * 1e3))?;
    let requests = outcome.total(|counts| counts.requests).max(1) as f64;
    let busy_ns: f64 = outcome.model_threads.iter().map(|thread| thread.usage.busy_ns()).sum();
    let passes: u64 = outcome.model_threads.iter().map(|thread| thread.usage.busy_passes()).sum();
    let sender_ns: f64 = outcome.senders.iter().map(|thread| thread.usage.busy_ns()).sum();
    let sent: u64 = outcome.senders.iter().map(|thread| thread.counts).sum();
    Ok(TcpReport {
        shape: shape.into(),
        seconds: outcome.elapsed.as_millis_f64() / 1e3,
        requests_per_s: outcome.requests_per_s(),
        ns_per_request: busy_ns / requests,
        requests_per_pass: requests / passes.max(1) as f64,
        sender_ns_per_request: sender_ns / sent.max(1) as f64,
        mean_batch: outcome.mean_batch(),
        dispatch_delay_us: Quantiles::of(&outcome),
        dropped: outcome.total(|counts| counts.dropped),
        queue_full: outcome.total(|counts| counts.queue_full),
        interruptions: outcome.interruptions(),
        pinned: outcome.pinned,
        steal_fraction: outcome.steal,
        line_travel_ns: [before, cache_line_latency::travel_ns()?],
    })
}

impl fmt::Display for TcpReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape, seconds, .. } = self;
        writeln!(
            f,
            "{shape}, {seconds:.1} s, over TCP{}",
            if self.pinned { "" } else { "; fewer cores than threads" },
        )?;
        writeln!(
            f,
            "  model threads  {:>6.1} ns CPU per request, {:.2} M requests/s, {:.0} in a pass, batches of \
             {:.1}",
            self.ns_per_request,
            self.requests_per_s / 1e6,
            self.requests_per_pass,
            self.mean_batch,
        )?;
        writeln!(f, "  frontends      {:>6.1} ns CPU per request", self.sender_ns_per_request)?;
        let Quantiles { p50, p99, p999 } = self.dispatch_delay_us;
        writeln!(f, "  dispatch delay {p50:.1} µs, p99 {p99:.1} µs, p99.9 {p999:.1} µs")?;
        let steal = percent(self.steal_fraction, "-");
        writeln!(
            f,
            "  dropped {}, queue full {}, interruptions {}, steal {steal}",
            self.dropped, self.queue_full, self.interruptions
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_core::Policy;

    #[test]
    fn requests_come_over_tcp_and_none_is_lost() {
        let shape = Shape {
            policy: Policy::Baton,
            model_threads: 1,
            models: 6,
            gpus: 4,
            seconds: 0.5,
            // The highest that a loaded machine manages for a moment may be none at all.
            rate: Some(10_000.0),
            seed: 1,
        };
        let report = tcp(shape).unwrap();
        assert!(report.requests_per_s > 0.0, "{report:?}");
        assert!(report.ns_per_request > 1.0 && report.sender_ns_per_request > 1.0, "{report:?}");
        assert!(report.mean_batch >= 1.0 && report.requests_per_pass >= 1.0, "{report:?}");
    }
}

//! Requests that arrive over TCP: sockets, framing and the production transport are in what a
//! ModelThread's request costs.

use std::fmt;

use serde::Serialize;

use super::harness::Harness;
use super::run_report::RunReport;
use super::{SchedError, Shape, measure};
use crate::machine::percent;

/// A finished run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TcpReport {
    /// What is known of every run; each ModelThread has a frontend of its own that sends to it.
    #[serde(flatten)]
    pub run: RunReport,
    /// CPU time of the ModelThreads' passes with something to do, user and kernel, per request.
    /// Emulating the GPUs is part of it.
    pub ns_per_request: f64,
    /// Requests in a pass that had something to do.
    pub requests_per_pass: f64,
    /// CPU time of the frontends per request, user and kernel: not part of the above.
    pub sender_ns_per_request: f64,
}

/// Measures, at `shape.rate` if there is one.
///
/// # Errors
/// See [`SchedError`].
pub fn tcp(shape: Shape) -> Result<TcpReport, SchedError> {
    let (_, outcome, run) = measure(shape, Harness::over_tcp)?;
    let requests = outcome.total(|counts| counts.requests).max(1) as f64;
    let busy_ns: f64 = outcome.model_threads.iter().map(|thread| thread.usage.busy_ns()).sum();
    let passes: u64 = outcome.model_threads.iter().map(|thread| thread.usage.busy_passes()).sum();
    let sender_ns: f64 = outcome.senders.iter().map(|thread| thread.usage.busy_ns()).sum();
    let sent: u64 = outcome.senders.iter().map(|thread| thread.counts).sum();
    Ok(TcpReport {
        run,
        ns_per_request: busy_ns / requests,
        requests_per_pass: requests / passes.max(1) as f64,
        sender_ns_per_request: sender_ns / sent.max(1) as f64,
    })
}

impl fmt::Display for TcpReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, ns_per_request, requests_per_pass, .. } = self;
        run.write_head(f, ", over TCP")?;
        writeln!(
            f,
            "  model threads  {ns_per_request:>6.1} ns CPU per request, {:.2} M requests/s, \
             {requests_per_pass:.0} in a pass, batches of {:.1}",
            run.requests_per_s / 1e6,
            run.mean_batch,
        )?;
        writeln!(f, "  frontends      {:>6.1} ns CPU per request", self.sender_ns_per_request)?;
        run.write_delay(f)?;
        let RunReport { dropped, queue_full, interruptions, .. } = run;
        let steal = percent(run.steal_fraction, "-");
        writeln!(
            f,
            "  dropped {dropped}, queue full {queue_full}, interruptions {interruptions}, steal {steal}"
        )?;
        run.not_usable.write(f)
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
            variants: 1,
            seconds: 0.5,
            // The highest that a loaded machine manages for a moment may be none at all.
            rate: Some(10_000.0),
            seed: 1,
        };
        let report = tcp(shape).unwrap();
        assert!(report.run.requests_per_s > 0.0, "{report:?}");
        assert!(report.ns_per_request > 1.0 && report.sender_ns_per_request > 1.0, "{report:?}");
        assert!(report.run.mean_batch >= 1.0 && report.requests_per_pass > 0.0, "{report:?}");
    }
}

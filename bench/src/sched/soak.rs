//! A long run at the highest rate the ModelThreads take, with every task followed to its outcome and
//! the process's memory watched.

use std::fmt;

use baton_core::Nanos;
use serde::Serialize;

use super::harness::Harness;
use super::memory::Memory;
use super::workload::Workload;
use super::{SchedError, Shape, ShapeReport, highest_rate};
use crate::machine::{Unusable, stolen};

/// A run that lost and invented nothing: one that did is an error instead.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SoakReport {
    /// What was run.
    #[serde(flatten)]
    pub shape: ShapeReport,
    /// Length of the measured phase.
    pub seconds: f64,
    /// Tasks that came in during it, per second.
    pub requests_per_s: f64,
    /// Executed in time, per second.
    pub goodput_rps: f64,
    /// Tasks that came in during it. Each was followed to its one outcome.
    pub tasks: u64,
    /// Of these, given up.
    pub dropped: u64,
    /// Resident memory; `null` where the system does not tell.
    pub memory: Option<Memory>,
    /// Share of the CPU time that went to other machines' work; `null` where unknown.
    pub steal_fraction: Option<f64>,
    /// Why the figures are not to be used; empty if nothing is known against them.
    pub not_usable: Unusable,
}

/// Runs for `shape.seconds`; at `shape.rate` if there is one.
///
/// # Errors
/// See [`SchedError`]; [`SchedError::Lost`] and [`SchedError::Oracle`] are what it is for.
pub fn soak(shape: Shape) -> Result<SoakReport, SchedError> {
    shape.check()?;
    let rate = shape.rate.map_or_else(|| highest_rate(shape), Ok)?;
    let mut workload = Workload::new(shape, rate);
    workload.watched = true;
    let outcome = Harness::new(&workload).run(Nanos::from_millis_f64(shape.seconds * 1e3))?;
    Ok(SoakReport {
        shape: shape.into(),
        seconds: outcome.elapsed.as_millis_f64() / 1e3,
        requests_per_s: outcome.requests_per_s(),
        goodput_rps: outcome.per_s(outcome.traffic.good),
        tasks: outcome.total(|counts| counts.requests),
        dropped: outcome.total(|counts| counts.dropped),
        memory: outcome.memory,
        steal_fraction: outcome.steal,
        not_usable: Unusable::because([stolen(outcome.steal)]),
    })
}

impl fmt::Display for SoakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape, seconds, tasks, dropped, .. } = self;
        writeln!(f, "{shape}, {seconds:.1} s")?;
        writeln!(
            f,
            "  {tasks} tasks, {:.2} M/s, each with one outcome; goodput {:.2} M/s, dropped {dropped}",
            self.requests_per_s / 1e6,
            self.goodput_rps / 1e6,
        )?;
        match &self.memory {
            None => writeln!(f, "  resident memory unknown")?,
            Some(memory) => writeln!(
                f,
                "  resident {} KiB at first, {} half way, {} at the end, {} at most: {:+.0} KiB a minute",
                memory.start_kib,
                memory.middle_kib,
                memory.end_kib,
                memory.peak_kib,
                memory.drift_kib_per_minute,
            )?,
        }
        self.not_usable.write(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_core::Policy;

    #[test]
    fn a_short_soak_follows_every_task_and_does_not_grow() {
        let shape = Shape {
            policy: Policy::Baton,
            model_threads: 2,
            models: 5,
            gpus: 4,
            variants: 1,
            seconds: 0.6,
            rate: None,
            seed: 1,
        };
        let report = soak(shape).unwrap();
        assert!(report.tasks > 0, "{report:?}");
        // Other tests of this process allocate meanwhile; a leak per task would be far more.
        let memory = report.memory.expect("Linux tells");
        assert!(memory.end_kib < memory.start_kib + (256 << 10), "{report:?}");
    }
}

//! At and past the limit: the highest rate that is served, and what is left of it when more is
//! offered.
//!
//! The bench finds two limits in turn. *gpus*: the GPUs can do a quarter of what the ModelThreads
//! take, so they fill first and the models' queues decide what is given up.
//! *threads*: the ModelThreads do not read as fast as requests arrive, so what their connections
//! hold fills up and senders are refused.

use std::fmt;

use baton_core::Nanos;
use serde::Serialize;

use super::harness::{Harness, Outcome};
use super::workload::Workload;
use super::{SchedError, Shape, ShapeReport, highest_rate};
use crate::machine::{StealMeter, Unusable, stolen, too_good};

/// What the scheduler does when more is offered than it can serve.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct OverloadReport {
    /// What was run.
    #[serde(flatten)]
    pub shape: ShapeReport,
    /// The overload is this many times the highest rate that was served.
    pub factor: f64,
    /// With too few GPUs.
    pub gpus_limit: Limit,
    /// With too few ModelThreads.
    pub threads_limit: Limit,
    /// Why the figures are not to be used; empty if nothing is known against them.
    pub not_usable: Unusable,
}

/// One of the two limits.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Limit {
    /// Goodput past the limit over goodput at it.
    pub kept: f64,
    /// The run with the highest goodput, of several rates about the limit.
    pub at: Load,
    /// The run with the factor's multiple of that rate.
    pub past: Load,
}

/// One run; rates in tasks per second.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Load {
    /// Arrived.
    pub offered_rps: f64,
    /// Taken by the ModelThreads.
    pub admitted_rps: f64,
    /// Executed in time.
    pub goodput_rps: f64,
    /// Not taken: a ModelThread does not read as fast, the connection is full.
    pub refused_connection_full_rps: f64,
    /// Ended at once: the model's queue was full.
    pub refused_queue_full_rps: f64,
    /// Ended at once: too late already when it was read.
    pub refused_deadline_passed_rps: f64,
    /// Given up so that others make it, or because no GPU was free in time.
    pub dropped_rps: f64,
}

/// Rates about the limit, as shares of the expected one.
const ABOUT: [f64; 4] = [0.8, 0.95, 1.1, 1.25];
/// Runs altogether, which share the time.
const RUNS: f64 = 2.0 * (ABOUT.len() as f64 + 1.0);
/// What the GPUs can do when they are to be the limit, as a share of what the threads take.
const FEW_GPUS: f64 = 0.25;

/// Looks for both limits, and goes past them by `factor`. `shape.rate` is not used.
///
/// # Errors
/// See [`SchedError`].
pub fn overload(shape: Shape, factor: f64) -> Result<OverloadReport, SchedError> {
    shape.check()?;
    let steal = StealMeter::start();
    let rate = highest_rate(Shape { rate: None, ..shape })?;
    let span = Nanos::from_millis_f64(shape.seconds / RUNS * 1e3);
    let live = |sized_for: f64| {
        move |rate| {
            let mut workload = Workload::new(Shape { rate: Some(rate), ..shape }, sized_for);
            workload.watched = true;
            Harness::new(&workload).run(span).map(|outcome| Load::of(&outcome))
        }
    };
    let few = FEW_GPUS * rate;
    let sized_for = few * rate / Workload::new(shape, rate).capacity_rps();
    let gpus_limit = Limit::find(few, factor, live(sized_for))?;
    let threads_limit = Limit::find(rate, factor, live(rate))?;
    let missed = |limit: &Limit, of: &str| {
        too_good(
            Some(limit.kept),
            &format!("the limit of the {of} was missed: past it the goodput is"),
        )
    };
    let reasons =
        [stolen(steal.fraction()), missed(&gpus_limit, "GPUs"), missed(&threads_limit, "threads")];
    let not_usable = Unusable::because(reasons);
    Ok(OverloadReport { shape: shape.into(), factor, gpus_limit, threads_limit, not_usable })
}

impl Limit {
    /// `run` measures one rate; `expected` is about the limit.
    pub(super) fn find(
        expected: f64,
        factor: f64,
        run: impl Fn(f64) -> Result<Load, SchedError>,
    ) -> Result<Self, SchedError> {
        let runs: Vec<(f64, Load)> = ABOUT
            .iter()
            .map(|share| run(share * expected).map(|load| (share * expected, load)))
            .collect::<Result<_, _>>()?;
        let best =
            runs.into_iter().max_by(|(_, a), (_, b)| a.goodput_rps.total_cmp(&b.goodput_rps));
        let (rate, at) = best.expect("there are rates to try");
        let past = run(factor * rate)?;
        Ok(Self { kept: past.goodput_rps / at.goodput_rps.max(1.0), at, past })
    }
}

impl Load {
    fn of(outcome: &Outcome) -> Self {
        let seen = outcome.traffic;
        let queue_full = outcome.total(|counts| counts.queue_full);
        let passed = outcome.total(|counts| counts.deadline_passed);
        let ended = outcome.total(|counts| counts.dropped);
        Self {
            offered_rps: outcome.per_s(seen.offered),
            admitted_rps: outcome.requests_per_s(),
            goodput_rps: outcome.per_s(seen.good),
            refused_connection_full_rps: outcome.per_s(seen.refused),
            refused_queue_full_rps: outcome.per_s(queue_full),
            refused_deadline_passed_rps: outcome.per_s(passed),
            dropped_rps: outcome.per_s(ended - queue_full - passed),
        }
    }
}

impl fmt::Display for OverloadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let factor = self.factor;
        writeln!(f, "{}", self.shape)?;
        for (name, limit) in [("GPUs", &self.gpus_limit), ("threads", &self.threads_limit)] {
            writeln!(f, "  {name} full: {:.3} of the goodput kept", limit.kept)?;
            writeln!(f, "    at the limit  {}", limit.at)?;
            writeln!(f, "    {factor:>4} times it {}", limit.past)?;
        }
        self.not_usable.write(f)
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = |rps: f64| rps / 1e6;
        write!(
            f,
            "offered {:.3} M/s, admitted {:.3}, goodput {:.3}; connection full {:.3}, queue full \
             {:.3}, deadline passed {:.3}, dropped later {:.3}",
            m(self.offered_rps),
            m(self.admitted_rps),
            m(self.goodput_rps),
            m(self.refused_connection_full_rps),
            m(self.refused_queue_full_rps),
            m(self.refused_deadline_passed_rps),
            m(self.dropped_rps),
        )
    }
}

#[cfg(test)]
mod tests;

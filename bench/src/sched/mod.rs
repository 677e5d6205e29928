//! `baton bench sched`: what the scheduler costs per request, without a network.
//!
//! The real ModelThread and RankThread agents run in the production loop on pinned threads. Each
//! ModelThread's transport is a [`generator`] that makes up requests and plays the GPUs. Costs are
//! thread CPU time, so that a neighbour on the core does not count; the generator runs on the
//! ModelThread's own core and its cost, measured alone, is taken off and reported.

mod agents;
mod arrivals;
mod cache_line_latency;
mod counts;
mod generator;
mod gpus;
mod harness;
mod layout;
mod ledger;
mod memory;
mod metered;
mod overload;
mod report;
mod run_report;
mod sender;
mod shape;
mod soak;
mod stepped;
mod sweep;
mod tcp;
mod traffic;
mod workload;

use baton_core::Nanos;

pub use memory::Memory;
pub use overload::{Limit, Load, OverloadReport, overload};
pub use report::{SchedReport, ThreadReport};
pub use run_report::{Quantiles, RunReport};
pub use shape::{Shape, ShapeReport};
pub use soak::{SoakReport, soak};
pub use stepped::{Stepped, Stepper};
pub use sweep::{Growth, Point, Points, SweepReport, ThreadPoint, sweep};
pub use tcp::{TcpReport, tcp};

use harness::{Harness, Outcome};
use workload::Workload;

/// Why a run was not possible.
#[derive(Debug, thiserror::Error)]
pub enum SchedError {
    /// The shape is beyond the scheduler's bounds.
    #[error("{0}")]
    Shape(String),
    /// The system has no more threads.
    #[error("cannot start a thread: {0}")]
    Spawn(std::io::Error),
    /// Sockets on the loopback interface.
    #[error("cannot listen on or connect to 127.0.0.1: {0}")]
    Socket(std::io::Error),
    /// An agent panicked; its message is on stderr.
    #[error("a scheduler thread panicked; please report this")]
    Panicked,
    /// The plot of a sweep.
    #[error(transparent)]
    Plot(#[from] crate::plot::PlotError),
    /// Tasks vanished or were invented.
    #[error("{submitted} tasks came in and {accounted} went out; please report this")]
    Lost {
        /// Taken by the ModelThreads.
        submitted: u64,
        /// Sent in plans, ended or still waiting.
        accounted: u64,
    },
    /// A task has two outcomes or none.
    #[error(
        "{violations} outcomes too many, {open} tasks without one where {waiting} wait; please report this"
    )]
    Oracle {
        /// Outcomes for tasks that were not open.
        violations: u64,
        /// Tasks without outcome.
        open: u64,
        /// Tasks that wait in queues.
        waiting: u64,
    },
}

/// The first guess at what one ModelThread takes, requests per second.
const GUESS_RPS: f64 = 5e6;
/// Runs at most that find out what the emulated GPUs must be able to do, and their length.
const TRIALS: usize = 8;
const TRIAL: Nanos = Nanos::from_millis(200);

/// Measures. Without a rate, short trials first find the highest one, because GPUs and profiles
/// are sized for the rate: batches of about ten, GPUs four fifths busy.
///
/// # Errors
/// See [`SchedError`].
pub fn run(shape: Shape) -> Result<SchedReport, SchedError> {
    let (workload, outcome, run) = measure(shape, |workload| Ok(Harness::new(workload)))?;
    let generator = generator::cost_alone(&workload, outcome.mean_batch())?;
    let stepped = stepped::measure(shape)?;
    Ok(SchedReport::new(run, &outcome, generator, stepped))
}

/// One run at the shape's rate, or at the highest there is.
fn measure(
    shape: Shape,
    harness: impl Fn(&Workload) -> Result<Harness, SchedError>,
) -> Result<(Workload, Outcome, RunReport), SchedError> {
    shape.check()?;
    let rate = shape.rate.map_or_else(|| highest_rate_of(shape, &harness), Ok)?;
    let workload = Workload::new(shape, rate);
    let before = cache_line_latency::travel_ns()?;
    let outcome = harness(&workload)?.run(Nanos::from_millis_f64(shape.seconds * 1e3))?;
    let line_travel_ns = [before, cache_line_latency::travel_ns()?];
    let report = RunReport::new(shape, &outcome, line_travel_ns);
    Ok((workload, outcome, report))
}

/// What the ModelThreads take when there is always more; `shape` has no rate. The trials end once the
/// GPUs keep up and are not idle either: full ones would be what is measured, and tell nothing of
/// the ModelThreads but that their rate is higher.
fn highest_rate(shape: Shape) -> Result<f64, SchedError> {
    highest_rate_of(shape, |workload| Ok(Harness::new(workload)))
}

fn highest_rate_of(
    shape: Shape,
    harness: impl Fn(&Workload) -> Result<Harness, SchedError>,
) -> Result<f64, SchedError> {
    let mut rate = GUESS_RPS * f64::from(shape.model_threads);
    for _ in 0..TRIALS {
        let outcome = harness(&Workload::new(shape, rate))?.run(TRIAL)?;
        let taken = outcome.requests_per_s().max(1.0);
        if (0.9 * rate..1.1 * rate).contains(&taken) {
            return Ok(taken);
        }
        rate = taken;
    }
    Ok(rate)
}

/// The stepped figures alone: a second on one core.
///
/// # Errors
/// The shape is beyond the scheduler's bounds.
pub fn step(shape: Shape) -> Result<Stepped, SchedError> {
    shape.check()?;
    stepped::measure(shape)
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_core::Policy;

    const TINY: Shape = Shape {
        policy: Policy::Baton,
        model_threads: 1,
        models: 3,
        gpus: 4,
        variants: 1,
        seconds: 0.1,
        rate: None,
        seed: 1,
    };

    #[test]
    fn a_saturated_run_costs_something_and_loses_nothing() {
        let report = run(Shape { model_threads: 2, ..TINY }).unwrap();
        assert!(report.run.requests_per_s > 0.0, "{report:?}");
        assert!(report.ns_per_request > 1.0, "{report:?}");
        assert!(report.stepped.ns_per_request > 1.0, "{report:?}");
        assert!(report.stepped.rank_ns_per_batch > 1.0, "{report:?}");
        assert!(report.batches_per_s > 0.0 && report.run.mean_batch >= 1.0, "{report:?}");
        let delay = &report.run.dispatch_delay_us;
        assert!(delay.p50 <= delay.p99 && delay.p99 <= delay.p999, "{delay:?}");
        assert_eq!(report.threads.len(), 2);
    }

    #[test]
    fn a_paced_run_offers_the_rate_it_was_given() {
        let report = run(Shape { rate: Some(20_000.0), seconds: 0.3, ..TINY }).unwrap();
        // A loaded machine may not come to as much.
        assert!(
            report.run.requests_per_s > 0.0 && report.run.requests_per_s < 40_000.0,
            "{report:?}"
        );
    }

    #[test]
    fn shapes_beyond_the_bounds_are_refused() {
        for shape in [
            Shape { model_threads: 0, ..TINY },
            Shape { models: 0, ..TINY },
            Shape { gpus: 0, ..TINY },
            Shape { gpus: 20_000, ..TINY },
        ] {
            assert!(matches!(run(shape), Err(SchedError::Shape(_))), "{shape:?}");
        }
    }
}

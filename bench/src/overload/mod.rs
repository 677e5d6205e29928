//! A real cluster under ten times what it can serve: a scheduler and two backends with emulated GPUs as
//! processes of their own, and a client here, over loopback.
//!
//! Four phases: the client searches for the highest rate that is served, offers a normal load, then
//! the flood, then the normal load again. What became of each task counts for the window of 100 ms
//! in which it was due.

mod report;

use std::sync::atomic::AtomicBool;

use baton_topo::Clock;

use crate::machine::StealMeter;
use crate::processes::{ChildConfig, Note};
use crate::two_models::{self, ClusterError, LoadClient, PhaseReport, at_best_rps};

use report::{Memory, Spans};
pub use report::{MemoryOf, OverloadReport};

/// What to do.
#[derive(Clone, Debug)]
pub struct Overload {
    /// The processes.
    pub children: ChildConfig,
    /// Flood with this many times the highest rate that is served.
    pub factor: f64,
    /// For how long.
    pub seconds: f64,
    /// Length of one step of the search, and half of each normal phase.
    pub step_s: f64,
    /// `max_rps` of each of the two models.
    pub quota_rps: Option<f64>,
    /// Flood one model only; the other goes on as normal.
    pub one: bool,
    /// Same seed, same arrivals.
    pub seed: u64,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum OverloadError {
    /// The cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Not even a fraction of what the GPUs should bear was served.
    #[error("nothing was served at {rps:.0} tasks/s: {bad_percent:.1} % bad; is the machine free?")]
    Nothing {
        /// The rate that was tried last.
        rps: f64,
        /// What became of it.
        bad_percent: f64,
    },
}

/// Of the highest rate that is served: the load that counts as normal.
const NORMAL: f64 = 0.8;
/// The search begins with this share of what the GPUs do at best, and goes on in such steps.
const FIRST: f64 = 0.5;
const STEP: f64 = 1.12;
const LOWER: f64 = 1.6;
const STEPS: u32 = 8;
/// The bad rate at which a rate still counts as served.
const BAD_MAX: f64 = 0.01;

/// Runs the four phases, and reports to `note` what happens meanwhile.
///
/// # Errors
/// There was no cluster to flood, or it served nothing; see [`OverloadError`].
pub fn run(
    overload: &Overload,
    clock: Clock,
    stop: &AtomicBool,
    mut note: impl FnMut(Note<'_>),
) -> Result<OverloadReport, OverloadError> {
    let Overload { children, quota_rps, seed, .. } = overload;
    let (processes, mut load) =
        two_models::start(children, *quota_rps, *seed, clock, stop, &mut note)?;

    let steal = StealMeter::start();
    let peak = find_peak(&mut load, overload.step_s)?;
    let normal_rps = NORMAL * peak.goodput_rps / 2.0;
    let flood_rps = overload.factor * peak.goodput_rps / 2.0;
    let normal = load.offer([normal_rps; 2], 2.0 * overload.step_s, || ());
    load.settle();
    let mut memory = Memory::start(processes.usage());
    let second = if overload.one { normal_rps } else { flood_rps };
    let flood = load.offer([flood_rps, second], overload.seconds, || {
        memory.read(processes.usage());
    });
    let after = load.offer([normal_rps; 2], 2.0 * overload.step_s, || ());
    load.leave();
    memory.read(processes.usage());
    let steal_fraction = steal.fraction();
    let lost = processes.shut_down().map_err(ClusterError::from)?;
    let spans = Spans { normal, flood, after };
    let memory = memory.finish();
    Ok(OverloadReport::new(overload, peak, &load, spans, memory, lost, steal_fraction))
}

/// Raises the rate until more than one in a hundred is bad, or lowers it until no more are; the best
/// that was served.
fn find_peak(load: &mut LoadClient, step_s: f64) -> Result<PhaseReport, OverloadError> {
    let mut rps = FIRST * at_best_rps();
    let mut peak: Option<PhaseReport> = None;
    let (mut lowered, mut bad_percent) = (false, 0.0);
    for _ in 0..STEPS {
        let span = load.offer([rps / 2.0; 2], step_s, || ());
        load.settle();
        let step = PhaseReport::new(load.span(span));
        let served = step.bad_rate <= BAD_MAX;
        match (served, lowered, &peak) {
            (true, false, _) => {
                peak = Some(step);
                rps *= STEP;
            }
            (true, true, _) => return Ok(step),
            (false, _, Some(_)) => break,
            (false, _, None) => {
                (lowered, bad_percent) = (true, step.bad_rate * 1e2);
                rps /= LOWER;
            }
        }
    }
    peak.ok_or(OverloadError::Nothing { rps, bad_percent })
}

//! A real cluster under half of what it can serve, for hours: do memory, handles or latency drift?
//!
//! The cluster is that of `baton bench overload`: a scheduler and two backends with emulated
//! GPUs as processes of their own, and a client here, over loopback. Each interval is read when its
//! last task has its outcome, so that nothing outstanding is taken for growth.

mod curves;
mod report;

use std::sync::atomic::AtomicBool;

use baton_topo::Clock;

use crate::machine::StealMeter;
use crate::processes::{ChildConfig, Note, ProcessUsage, Processes};
use crate::two_models::{self, ClusterError, LoadClient, PhaseReport, at_best_rps};

pub use report::{Drift, Sample, SoakReport};

/// What to do.
#[derive(Clone, Debug)]
pub struct Soak {
    /// The processes.
    pub children: ChildConfig,
    /// Share of what the GPUs do at best, 0 to 1.
    pub load: f64,
    /// For how long, in whole intervals.
    pub seconds: f64,
    /// Length of an interval.
    pub every_s: f64,
    /// Same seed, same arrivals.
    pub seed: u64,
}

/// What the client's entry is called among the processes.
const CLIENT: &str = "client";

/// Runs it; `stop` ends it after the interval under way. It reports each interval to `note`.
///
/// # Errors
/// There was no cluster; see [`ClusterError`].
pub fn run(
    soak: &Soak,
    clock: Clock,
    stop: &AtomicBool,
    mut note: impl FnMut(Note<'_>),
) -> Result<SoakReport, ClusterError> {
    let (mut processes, mut load) =
        two_models::start(&soak.children, None, soak.seed, clock, stop, &mut note)?;

    let steal = StealMeter::start();
    let rps = soak.load * at_best_rps() / 2.0;
    let intervals = (soak.seconds / soak.every_s).round().max(1.0) as u32;
    let mut samples = Vec::with_capacity(intervals as usize);
    for interval in 1..=intervals {
        if processes.is_stopping() {
            break;
        }
        let sample = one(&mut load, &processes, rps, soak.every_s);
        processes.tell(Note::Step(&format!("{interval} of {intervals}: {sample}")));
        samples.push(sample);
    }
    load.leave();
    let steal_fraction = steal.fraction();
    let lost = processes.shut_down()?;
    Ok(SoakReport::new(soak, samples, &load.total(), lost, steal_fraction))
}

/// One interval of load and what is seen at its end.
fn one(load: &mut LoadClient, processes: &Processes<'_>, rps: f64, seconds: f64) -> Sample {
    let steal = StealMeter::start();
    load.offer([rps; 2], seconds, || ());
    load.settle();
    let span = load.take_last();
    let mut usage = processes.usage();
    usage.extend(ProcessUsage::of(CLIENT, std::process::id()));
    Sample { tasks: PhaseReport::new(&span), usage, steal_fraction: steal.fraction() }
}

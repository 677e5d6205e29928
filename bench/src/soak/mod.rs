//! A real cluster under half of what it can serve, for hours: do memory, handles or latency creep?
//!
//! The cluster is that of the flood ([`crate::overload`]): a scheduler and two backends with emulated
//! GPUs as processes of their own, and a client here, over loopback. Each interval is read when its
//! last task has its outcome, so that nothing outstanding is taken for growth.

mod plot;
mod report;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use baton_topo::Clock;

use crate::demo::{DemoError, Folder, Note};
use crate::demo_processes::Processes;
use crate::overload::{self, Load, OverloadError, PhaseReport, cluster};
use crate::steal::CpuTimes;

pub use report::{Creep, Sample, SoakReport, Vitals};

/// What to do.
#[derive(Clone, Debug)]
pub struct Soak {
    /// The `baton` executable.
    pub exe: PathBuf,
    /// Arguments every child gets before its own.
    pub common_args: Vec<String>,
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

/// Runs it; `stop` ends it after the interval under way. `note` is told of each interval.
///
/// # Errors
/// There was no cluster; see [`OverloadError`].
pub fn run(
    soak: &Soak,
    clock: Clock,
    stop: &AtomicBool,
    mut note: impl FnMut(Note<'_>),
) -> Result<SoakReport, OverloadError> {
    let config = overload::demo_config(&soak.exe, &soak.common_args, soak.seconds);
    let folder = Folder::create(false)?;
    let cluster = cluster::write(&folder.path, None)
        .map_err(|source| DemoError::Folder { dir: folder.path.clone(), source })?;
    let mut processes = Processes::new(&config, clock, stop, &mut note, &folder.path);
    let scheduler = processes.start_cluster(&cluster)?;
    let scheduler = scheduler.parse().expect("a scheduler says where it listens");
    let mut load = Load::connect(scheduler, clock, soak.seed)?;

    let cpu_before = CpuTimes::read();
    let rps = soak.load * cluster::at_best_rps() / 2.0;
    let intervals = (soak.seconds / soak.every_s).round().max(1.0) as u32;
    let mut samples = Vec::with_capacity(intervals as usize);
    for interval in 1..=intervals {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let sample = one(&mut load, &processes, rps, soak.every_s);
        processes.tell(&format!("{interval} of {intervals}: {sample}"));
        samples.push(sample);
    }
    load.leave();
    let steal_fraction = cpu_before.and_then(|before| CpuTimes::read()?.stolen_since(before));
    let lost = processes.shut_down()?;
    Ok(SoakReport::new(soak, samples, &load.total(), lost, steal_fraction))
}

/// One interval of load and what is seen at its end.
fn one(load: &mut Load, processes: &Processes<'_>, rps: f64, seconds: f64) -> Sample {
    let before = CpuTimes::read();
    load.offer([rps; 2], seconds, || ());
    load.settle();
    let span = load.take_last();
    let mut vitals = processes.vitals();
    vitals.extend(Vitals::of(CLIENT, std::process::id()));
    Sample {
        tasks: PhaseReport::new(&span),
        vitals,
        steal_fraction: before.and_then(|before| CpuTimes::read()?.stolen_since(before)),
    }
}

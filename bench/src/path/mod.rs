//! The whole path, client → scheduler → backend, as three processes over loopback TCP with emulated engines: what
//! it carries, what a task costs each process, and the same over bare sockets.
//!
//! Each pace runs on a cluster of its own: bare sockets, the path, bare sockets again. This file is the story;
//! `client.rs` follows the process that offers the load, `costs.rs` says what a task costs, `floor.rs` is the bare
//! sockets.

mod client;
mod cluster;
mod costs;
mod curves;
mod floor;
mod report;

use std::io;
use std::sync::atomic::AtomicBool;

use baton_topo::{Clock, Idle, TransportChoice};

use crate::plot::PlotError;
use crate::processes::{ChildConfig, Folder, Note, ProcessError, Processes};

pub use costs::{OfProcesses, ThreadCost};
use floor::FarEnd;
pub use floor::respond;
pub use report::PathReport;

/// What to do.
#[derive(Clone, Debug)]
pub struct PathBench {
    /// The processes.
    pub children: ChildConfig,
    /// Bytes of an input, and of a message of the bare sockets.
    pub bytes: u32,
    /// Tasks in a batch at most.
    pub batch: u32,
    /// How tasks come: one measurement each.
    pub paces: Vec<Pace>,
    /// Length of each measurement.
    pub seconds: f64,
    /// GPU slots.
    pub slots: u32,
    /// What executes, and how long a batch lasts: α and β, ms.
    pub engine: (&'static str, [f64; 2]),
    /// What all three processes' threads do without work.
    pub idle: Idle,
    /// How inputs get to the backend.
    pub transport: TransportChoice,
    /// Same seed, same arrivals.
    pub seed: u64,
}

/// How tasks come.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pace {
    /// A fixed number of tasks under way.
    Closed {
        /// Tasks.
        outstanding: u32,
    },
    /// Poisson arrivals.
    Poisson {
        /// Tasks per second.
        rate: f64,
    },
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// A process.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The client wrote something else than it should.
    #[error("the client wrote a line that is no message: {line}")]
    NoMessage {
        /// The line.
        line: String,
    },
    /// A process, or a thread of one, ended too early.
    #[error(
        "a process or a thread ended before the measurement was over; measure again, or for longer"
    )]
    NoReport,
    /// The system does not tell what threads use.
    #[error(
        "what the threads of the {name} use cannot be read: it has ended, or the kernel has no \
         /proc/PID/task/*/schedstat (CONFIG_SCHED_INFO)"
    )]
    NoThreads {
        /// The process.
        name: &'static str,
    },
    /// Nothing was answered.
    #[error("no task was answered: {failed} failed, {dropped} were dropped; is the machine free?")]
    Nothing {
        /// Tasks that failed.
        failed: u64,
        /// Tasks that were dropped.
        dropped: u64,
    },
    /// The bare sockets.
    #[error("the bare sockets: {0}")]
    Floor(io::Error),
}

/// Measures each pace in turn. It calls `note` with what happens meanwhile; `stop` ends it without a report.
///
/// # Errors
/// There was no cluster, it answered nothing, or the system does not tell what it costs; see [`PathError`].
pub fn run(
    bench: &PathBench,
    clock: Clock,
    stop: &AtomicBool,
    mut note: impl FnMut(Note<'_>),
) -> Result<Vec<PathReport>, PathError> {
    bench.paces.iter().map(|&pace| measure(bench, pace, clock, stop, &mut note)).collect()
}

/// CPU time per task over the rate, as an SVG document.
///
/// # Errors
/// It could not be drawn.
pub fn svg(reports: &[PathReport]) -> Result<String, PlotError> {
    curves::svg(reports)
}

fn measure(
    bench: &PathBench,
    pace: Pace,
    clock: Clock,
    stop: &AtomicBool,
    note: &mut dyn FnMut(Note<'_>),
) -> Result<PathReport, PathError> {
    let folder = Folder::create(false)?;
    let file = cluster::write(&folder, bench, pace)?;
    let mut processes = Processes::new(&bench.children, folder, clock, stop, note);
    let scheduler = processes.start_cluster(&file)?;
    let mut far_end = FarEnd::start(&mut processes, bench.bytes)?;
    let before = far_end.measure(&mut processes, bench, clock)?;
    let measured = client::run(&mut processes, &file, scheduler, bench, pace)?;
    let after = far_end.measure(&mut processes, bench, clock)?;
    drop(far_end);
    let lost = processes.shut_down()?;
    PathReport::new(bench, pace, [before, after], &measured, lost)
}

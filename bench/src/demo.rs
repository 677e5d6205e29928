//! A whole cluster on one machine: a scheduler, three backends and two frontends under load, each
//! a process of its own, talking over loopback.
//!
//! This file is the story; `demo_processes.rs` starts, watches and ends the processes.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use baton_topo::{Clock, TransportChoice};

use crate::demo_cluster::DemoCluster;
use crate::demo_processes::{FRONTENDS, Processes};
use crate::load::Progress;
use crate::report::{Circumstances, Report};
use crate::steal::CpuTimes;

/// How the demo is run.
#[derive(Clone, Debug)]
pub struct DemoConfig {
    /// The `baton` executable.
    pub exe: PathBuf,
    /// Arguments every child gets before its own.
    pub common_args: Vec<String>,
    /// How long load is offered.
    pub seconds: f64,
    /// Factor on every rate.
    pub rate_scale: f64,
    /// What the backends read inputs over.
    pub transport: TransportChoice,
    /// Serve the digits model with ONNX Runtime.
    pub with_onnx: bool,
    /// Leave the cluster file and the logs behind.
    pub keep_dir: bool,
}

/// What there is to tell meanwhile.
#[derive(Debug)]
pub enum Note<'a> {
    /// A step is done or a folder is to be kept in mind.
    Step(&'a str),
    /// The load so far, over both frontends.
    Progress(&'a Progress),
    /// Something died.
    Trouble(&'a str),
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The folder or the files in it.
    #[error("{}: {source}", dir.display())]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A process could not be started or waited for.
    #[error("{name}: {source}")]
    Process {
        /// Its name.
        name: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A process ended instead of coming up.
    #[error("{name} ended before it was up ({status}); its log ends:\n{log}")]
    NotUp {
        /// Its name.
        name: String,
        /// How it ended.
        status: String,
        /// The end of its log.
        log: String,
    },
    /// A step took too long.
    #[error("{name} was not done within {seconds} s; its log ends:\n{log}")]
    Timeout {
        /// The process.
        name: String,
        /// The bound.
        seconds: u64,
        /// The end of its log.
        log: String,
    },
    /// A frontend said something else than it should.
    #[error("{name} wrote a line that is no message: {line}")]
    NoMessage {
        /// The process.
        name: String,
        /// The line.
        line: String,
    },
    /// The user asked for an end before there was load.
    #[error("interrupted")]
    Interrupted,
    /// No frontend lived to report.
    #[error("every frontend died; nothing is known about their tasks")]
    NoReport,
}

/// Runs the demo. `stop` ends the load early; the report then covers what was offered.
///
/// # Errors
/// The cluster did not come up, or could not be ended; see [`DemoError`]. A process that dies under
/// load is no error: the report names it in [`Report::lost`].
pub fn run(
    config: &DemoConfig,
    clock: Clock,
    stop: &AtomicBool,
    mut note: impl FnMut(Note<'_>),
) -> Result<Report, DemoError> {
    let folder = Folder::create(config.keep_dir)?;
    let DemoConfig { with_onnx, rate_scale, transport, .. } = *config;
    let cluster = DemoCluster::write(&folder.path, with_onnx, rate_scale, transport)
        .map_err(|source| DemoError::Folder { dir: folder.path.clone(), source })?;
    if config.keep_dir {
        note(Note::Step(&format!("cluster file and logs: {}", folder.path.display())));
    }
    let mut processes = Processes::new(config, clock, stop, &mut note, &folder.path);
    let scheduler = processes.start_cluster(&cluster)?;
    let cpu_before = CpuTimes::read();
    let frontends = processes.start_load(&cluster, &scheduler)?;
    let finished = processes.watch(frontends)?;
    let steal_fraction = cpu_before.and_then(|before| CpuTimes::read()?.stolen_since(before));
    let lost = processes.shut_down()?;
    if finished.is_empty() {
        return Err(DemoError::NoReport);
    }
    let frontends_unreported = FRONTENDS - finished.len();
    let circumstances =
        Circumstances { steal_fraction, lost, frontends_unreported, ..Circumstances::default() };
    Ok(Report::of_generators(&finished, circumstances))
}

/// A folder of this run's own, removed at the end.
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    keep: bool,
}

impl Folder {
    pub(crate) fn create(keep: bool) -> Result<Self, DemoError> {
        let path = std::env::temp_dir().join(format!("baton-demo-{}", std::process::id()));
        fs::create_dir_all(&path)
            .map_err(|source| DemoError::Folder { dir: path.clone(), source })?;
        Ok(Self { path, keep })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(folder = %self.path.display(), %error, "could not be removed");
        }
    }
}

//! A whole cluster on one machine: a scheduler, three backends and two frontends under load, each
//! a process of its own, talking over loopback.
//!
//! This file is the story; `frontends.rs` starts and watches what offers the load.

mod cluster;
mod cold;
mod frontends;
mod gateway;
mod plot;
mod supernet;

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;

use baton_topo::{Clock, TransportChoice};

use crate::load::{CacheFigures, Circumstances, Finished, Report};
use crate::machine::StealMeter;
use crate::processes::{ChildConfig, ClusterFile, Folder, Note, ProcessError, Processes};
use cluster::DemoCluster;
use frontends::FRONTENDS;

/// How the demo is run.
#[derive(Clone, Debug)]
pub struct DemoConfig {
    /// The processes.
    pub children: ChildConfig,
    /// How long load is offered.
    pub seconds: f64,
    /// Factor on every rate.
    pub rate_scale: f64,
    /// What the backends read inputs over.
    pub transport: TransportChoice,
    /// Execute the other models by CUDA instead of emulating them.
    pub cuda: Option<CudaDriver>,
    /// Serve the digits model with ONNX Runtime.
    pub with_onnx: bool,
    /// Start a gateway, too, and say how to call it.
    pub with_gateway: bool,
    /// What it shows.
    pub story: Story,
    /// Leave the cluster file and the logs behind.
    pub keep_dir: bool,
}

/// What a demo shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Story {
    /// Models from the papers' table, and a real one.
    Usual,
    /// A model with variants under a burst, and a backend that dies.
    Supernet,
    /// Many more models than the GPUs' memory holds.
    Cold,
}

/// Which CUDA driver executes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CudaDriver {
    /// NVIDIA's.
    Real,
    /// Baton's own, without a GPU. [`ChildConfig::variables`] name it.
    Fake,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// A process.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A frontend said something else than it should.
    #[error("{name} wrote a line that is no message: {line}")]
    NoMessage {
        /// The process.
        name: String,
        /// The line.
        line: String,
    },
    /// The scheduler did not say how the cluster fares.
    #[error("the scheduler does not say how the cluster fares: {0}")]
    NoStatus(#[from] baton_client::OperatorError),
    /// No frontend lived to report.
    #[error("every frontend died; nothing is known about their tasks")]
    NoReport,
}

/// Runs the demo. `stop` ends the load early; the report then covers what was offered.
///
/// # Errors
/// The cluster did not come up, or could not be ended; see [`DemoError`]. A process that dies under
/// load is no error: the report names it in [`Circumstances::lost`].
pub fn run(
    config: &DemoConfig,
    clock: Clock,
    stop: &AtomicBool,
    mut note: impl FnMut(Note<'_>),
) -> Result<Report, DemoError> {
    let folder = Folder::create(config.keep_dir)?;
    let demo = DemoCluster::new(config);
    let file = write(config, &demo, &folder)?;
    if config.keep_dir {
        note(Note::Step(&format!("cluster file and logs: {}", folder.path().display())));
    }
    let mut processes = Processes::new(&config.children, folder, clock, stop, &mut note);
    let scheduler = processes.start_cluster(&file)?;
    if config.with_gateway {
        gateway::start(&mut processes, &file, scheduler, config.with_onnx)?;
    }
    let steal = StealMeter::start();
    let (finished, cache) = offer(&mut processes, config, &demo, (&file, scheduler))?;
    let steal_fraction = steal.fraction();
    let lost = processes.shut_down()?;
    if finished.is_empty() {
        return Err(DemoError::NoReport);
    }
    let frontends_unreported = FRONTENDS - finished.len();
    let gpu = config.cuda.map(|driver| match driver {
        CudaDriver::Real => "real".to_owned(),
        CudaDriver::Fake => "fake".to_owned(),
    });
    let circumstances = Circumstances {
        steal_fraction,
        lost,
        frontends_unreported,
        gpu,
        cache,
        ..Circumstances::default()
    };
    Ok(Report::of_generators(&finished, circumstances))
}

/// Writes the story's cluster file.
fn write(
    config: &DemoConfig,
    demo: &DemoCluster,
    folder: &Folder,
) -> Result<ClusterFile, ProcessError> {
    match config.story {
        Story::Usual => demo.write(folder),
        Story::Supernet => supernet::write(config, folder),
        Story::Cold => cold::write(config, folder),
    }
}

/// Offers the story's load until every frontend has reported or died.
fn offer(
    processes: &mut Processes<'_>,
    config: &DemoConfig,
    demo: &DemoCluster,
    (file, scheduler): (&ClusterFile, SocketAddr),
) -> Result<(Vec<Finished>, Option<CacheFigures>), DemoError> {
    match config.story {
        Story::Usual => {
            let (rates, seconds) = (&demo.rates, config.seconds);
            let started = frontends::start(processes, file, scheduler, rates, seconds)?;
            Ok((frontends::watch(processes, started, seconds)?, None))
        }
        Story::Supernet => Ok((supernet::run(processes, config, file, scheduler)?, None)),
        Story::Cold => {
            let (finished, cache) = cold::run(processes, config, file, scheduler)?;
            Ok((finished, Some(cache)))
        }
    }
}

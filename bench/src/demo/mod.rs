//! A whole cluster on one machine: a scheduler, three backends and two frontends under load, each
//! a process of its own, talking over loopback.
//!
//! This file is the story; `frontends.rs` starts and watches what offers the load.

mod cluster;
mod frontends;
mod gateway;
mod plot;
mod supernet;

use std::sync::atomic::AtomicBool;

use baton_topo::{Clock, TransportChoice};

use crate::load::{Circumstances, Report};
use crate::machine::StealMeter;
use crate::processes::{ChildConfig, Folder, Note, ProcessError, Processes};
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
    /// Serve a model with variants under a burst instead, and kill a backend.
    pub supernet: bool,
    /// Leave the cluster file and the logs behind.
    pub keep_dir: bool,
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
    /// The scheduler did not say how long the variants take.
    #[error("the scheduler does not say how long batches take: {0}")]
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
    let file = match config.supernet {
        true => supernet::write(config, &folder)?,
        false => demo.write(&folder)?,
    };
    if config.keep_dir {
        note(Note::Step(&format!("cluster file and logs: {}", folder.path().display())));
    }
    let mut processes = Processes::new(&config.children, folder, clock, stop, &mut note);
    let scheduler = processes.start_cluster(&file)?;
    if config.with_gateway {
        gateway::start(&mut processes, &file, scheduler, config.with_onnx)?;
    }
    let steal = StealMeter::start();
    let finished = if config.supernet {
        supernet::run(&mut processes, config, &file, scheduler)?
    } else {
        let (rates, seconds) = (&demo.rates, config.seconds);
        let started = frontends::start(&mut processes, &file, scheduler, rates, seconds)?;
        frontends::watch(&mut processes, started, seconds)?
    };
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
        ..Circumstances::default()
    };
    Ok(Report::of_generators(&finished, circumstances))
}

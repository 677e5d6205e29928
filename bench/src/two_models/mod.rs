//! A cluster of two models as processes, and a client here that offers it load over loopback: what
//! `overload` floods and `soak` watches for hours.

mod client;
mod cluster;
mod ending;
mod phase;

use std::sync::atomic::AtomicBool;

use baton_client::{ConnectError, UnknownModel};
use baton_topo::Clock;

use crate::processes::{ChildConfig, Folder, Note, ProcessError, Processes};

pub(crate) use client::{LoadClient, WINDOW};
pub(crate) use cluster::{MODELS, SLO_MS, at_best_rps};
pub use ending::Ending;
pub use phase::PhaseReport;

/// The cluster or its client failed.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The processes.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// No client.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The scheduler reads another cluster file.
    #[error(transparent)]
    Catalogue(#[from] UnknownModel),
}

/// Starts the cluster and connects the client; `quota_rps` is what each model may be offered.
pub(crate) fn start<'a>(
    children: &'a ChildConfig,
    quota_rps: Option<f64>,
    seed: u64,
    clock: Clock,
    stop: &'a AtomicBool,
    note: &'a mut dyn FnMut(Note<'_>),
) -> Result<(Processes<'a>, LoadClient), ClusterError> {
    let folder = Folder::create(false)?;
    let file = cluster::write(&folder, quota_rps)?;
    let mut processes = Processes::new(children, folder, clock, stop, note);
    let scheduler = processes.start_cluster(&file)?;
    let client = LoadClient::connect(scheduler, clock, seed)?;
    Ok((processes, client))
}

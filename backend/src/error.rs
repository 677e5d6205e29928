//! Why a backend could not start, or ended.

use baton_membership::MembershipError;
use baton_rdma::NoMemory;

use crate::execute::EngineError;
use crate::served::CatalogueError;

/// What goes wrong with a backend. Its start fails with any of these; once it serves, it ends with
/// those that only a fresh process or another file can mend, and joins again after the others.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BackendError {
    /// A model's engine could not be loaded.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The machine does not give the memory of the batches.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    /// The scheduler's catalogue does not fit our cluster file.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// A file of the cluster file's models could not be pulled.
    #[error("{0}")]
    ModelFile(String),
    /// A socket or thread could not be had.
    #[error("cannot start {what}: {problem}")]
    Start {
        /// What.
        what: &'static str,
        /// The operating system's words.
        problem: String,
    },
    /// The scheduler has not admitted this backend, or is lost.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// The scheduler sent a message that no scheduler of this version sends.
    #[error("the scheduler broke the protocol: {0}; are both built from the same version?")]
    Protocol(&'static str),
    /// A GPU slot's executor thread has died.
    #[error("the executor of GPU slot {0} has died; see the log above, and restart this backend")]
    ExecutorDied(usize),
    /// The I/O thread has died.
    #[error("the backend's I/O thread has died; see the log above, and restart this backend")]
    WorkerDied,
    /// Its handle was dropped.
    #[error("the backend was stopped without leaving")]
    Stopped,
    /// Batches were still outstanding when the time to leave was over.
    #[error("the scheduler did not let this backend go in time; its outstanding tasks are lost")]
    LeaveTimeout,
}

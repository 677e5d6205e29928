//! Why a backend could not start, or ended.

use std::net::SocketAddr;

use baton_leader::Unknown;
use baton_rdma::NoMemory;
use baton_rdma::wire::RefuseCode;

use crate::catalog::CatalogError;
use crate::execute::EngineError;

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
    Catalog(#[from] CatalogError),
    /// A socket or thread could not be had.
    #[error("cannot start {what}: {problem}")]
    Start {
        /// What.
        what: &'static str,
        /// The operating system's words.
        problem: String,
    },
    /// The scheduler's address is unknown.
    #[error("no scheduler to join for {tried_ms} ms: {problem}")]
    NoScheduler {
        /// How long the backend tried, in milliseconds.
        tried_ms: u64,
        /// Why it is not known.
        problem: Unknown,
    },
    /// No process answers at the scheduler's address.
    #[error(
        "no scheduler at {scheduler} for {tried_ms} ms: {problem}; start it, or correct the address"
    )]
    Unreachable {
        /// The address tried.
        scheduler: SocketAddr,
        /// How long.
        tried_ms: u64,
        /// How the last attempt ended.
        problem: String,
    },
    /// The scheduler and this backend do not trust each other, or one of them has no TLS.
    #[error("no secure connection to the scheduler at {scheduler}: {problem}")]
    Untrusted {
        /// The scheduler's address.
        scheduler: SocketAddr,
        /// What is wrong, and the fix.
        problem: String,
    },
    /// The scheduler does not want us.
    #[error("the scheduler refused this backend ({code:?}): {detail}")]
    Refused {
        /// Its code; `None` if this build does not know it.
        code: Option<RefuseCode>,
        /// Its words.
        detail: String,
    },
    /// The scheduler took too long to let us in.
    #[error("could not join in time: still waiting for {0}; see the scheduler's log")]
    JoinTimeout(&'static str),
    /// The connection to the scheduler is gone, or it has fallen silent.
    #[error("the scheduler is lost ({0})")]
    SchedulerLost(String),
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

impl BackendError {
    /// True if the scheduler may be up, or another one lead, a moment later: a backend that has just been
    /// started goes on looking. `linking`: the ControlThread has let it in, so that a ModelThread which
    /// does not is one of another life.
    pub(crate) fn may_pass_at_start(&self, linking: bool) -> bool {
        match self {
            Self::SchedulerLost(_) => true,
            Self::Refused { code: Some(RefuseCode::Shutdown | RefuseCode::Silent), .. } => true,
            Self::Refused { code: Some(RefuseCode::Unauthorised), .. } => linking,
            _ => false,
        }
    }

    /// True if the scheduler may be back later and let this backend in, as it is. `serving`: it
    /// happened to a backend that was ready, and not while it tried to join.
    pub(crate) fn may_pass(&self, serving: bool) -> bool {
        match self {
            Self::SchedulerLost(_) | Self::NoScheduler { .. } => true,
            Self::Unreachable { .. } | Self::JoinTimeout(_) => true,
            // A scheduler started with the wrong files, perhaps: the next one may have the right ones.
            Self::Untrusted { .. } => true,
            Self::Refused { code, .. } => {
                !matches!(code, Some(RefuseCode::Version | RefuseCode::BadRequest))
            }
            // While joining: perhaps two lives of the scheduler, mixed up.
            Self::Protocol(_) => !serving,
            _ => false,
        }
    }
}

//! Everything that the client can refuse to an application, one enum per call. Each error names the
//! cause and the fix; [`crate::Counters`] counts each refusal.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use baton_membership::MembershipError;
use baton_rdma::{CredentialsError, MixedError, SlabError, VerbsError};
use baton_topo::signature::RowError;

use crate::input::Input;

/// Settings that cannot work.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// No slots, or more than a task id can address.
    #[error("slots_per_model = {slots}: give 1 to 1048576")]
    Slots {
        /// The refused value.
        slots: u32,
    },
    /// A bound of zero would fail every time.
    #[error("{name} is zero: give a positive duration")]
    ZeroTimeout {
        /// Which setting.
        name: &'static str,
    },
}

/// Why [`crate::Client::connect`] did not end in a client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Refused before anything was tried.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address for backends cannot be bound.
    #[error(
        "cannot listen on {listen} for backends: {source}; choose another address to listen on"
    )]
    Bind {
        /// The address.
        listen: SocketAddr,
        /// The system's answer, in words above already.
        r#source: io::Error,
    },
    /// RDMA was asked for and this host cannot.
    #[error("transport = \"rdma\", but {0}")]
    Rdma(VerbsError),
    /// The files of `[tls]` cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The slabs cannot be made readable to backends.
    #[error("the inputs' memory cannot be shared with backends: {0}")]
    Expose(io::Error),
    /// The I/O thread could not be started.
    #[error("cannot start the I/O thread: {0}")]
    Thread(io::Error),
    /// No scheduler has admitted this client.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// A model of [`crate::ClientConfig::models`] is not in the catalogue.
    #[error(transparent)]
    UnknownModel(#[from] UnknownModel),
    /// The slabs cannot be built.
    #[error("cannot reserve the slabs: {0}; lower slots_per_model, or name fewer models")]
    Slabs(SlabError),
    /// The I/O thread ended without a reason: a bug; its panic is on stderr.
    #[error("the I/O thread ended while joining; its panic message is on stderr")]
    IoEnded,
}

impl From<SlabError> for ConnectError {
    fn from(error: SlabError) -> Self {
        Self::Slabs(error)
    }
}

impl ConnectError {
    pub(crate) fn transport(listen: SocketAddr, error: MixedError) -> Self {
        match error {
            MixedError::Tcp(source) => Self::Bind { listen, source },
            MixedError::Verbs(error) => Self::Rdma(error),
        }
    }
}

/// A name that is not in the catalogue.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no model is called {name:?}; this client has: {}", known.join(", "))]
pub struct UnknownModel {
    /// The name asked for.
    pub name: String,
    /// The names there are.
    pub known: Vec<String>,
}

/// Why the client has no input buffer to give.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InputError {
    /// Every slot of the model is being filled, in flight, or held by a reply or a ticket.
    #[error(
        "all {slots} slots of {model} are in use: wait for tickets, drop replies, or raise \
         slots_per_model"
    )]
    SlabExhausted {
        /// The model.
        model: Arc<str>,
        /// Slots it has.
        slots: u32,
    },
    /// The bytes given are not one input of the model.
    #[error("an input of {model} has {expected} bytes, not {got}")]
    WrongSize {
        /// The model.
        model: Arc<str>,
        /// The model's input size.
        expected: usize,
        /// What was given.
        got: usize,
    },
    /// The model was removed from the cluster.
    #[error(
        "{model} was removed: drop this handle, and ask for a model that Client::models() lists"
    )]
    ModelRemoved {
        /// The model.
        model: Arc<str>,
    },
    /// [`crate::Client::leave`] was called.
    #[error("this client has left: connect a new one")]
    ClientClosed,
    /// The tensors given are not one input of the model.
    #[error("these tensors are no input of {model}: {problem}")]
    Tensors {
        /// The model.
        model: Arc<str>,
        /// Which does not fit, and what would.
        problem: RowError,
    },
}

/// A refused submit. The input comes back untouched.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct SubmitError {
    /// The input, to be submitted again or dropped.
    pub input: Input,
    /// Why.
    pub reason: SubmitReason,
}

/// Why a submit was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum SubmitReason {
    /// The deadline is zero time away.
    #[error("the deadline has passed already: give a positive duration")]
    DeadlinePassed,
    /// A connection to the scheduler is lost; see [`crate::Client::loss`]. Worth another try once the
    /// scheduler is back, which a client notices within half a second.
    #[error("the client is not connected to a scheduler and reconnects: try again in 100 ms")]
    SchedulerLost,
    /// [`crate::Client::leave`] was called.
    #[error("this client has left: connect a new one")]
    ClientClosed,
    /// The model was removed from the cluster.
    #[error(
        "the model was removed: drop the input, and submit to a model that Client::models() lists"
    )]
    ModelRemoved,
}

/// What took the scheduler away from this client.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Loss {
    /// A connection ended, or a heartbeat went unanswered.
    #[error(transparent)]
    Scheduler(MembershipError),
    /// A scheduler is back, but it has none of this client's models. The client no longer reconnects.
    #[error("the scheduler that came back is another one: {detail}; connect a new client")]
    Changed {
        /// What is different.
        detail: String,
    },
    /// The I/O thread ended without a reason: a bug; its panic is on stderr.
    #[error("the I/O thread ended; its panic message is on stderr")]
    IoEnded,
}

/// Why leaving was not clean. The client is gone all the same.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LeaveError {
    /// Tasks were still outstanding after `leave_timeout`; they ended as `dropped(cancelled)`.
    #[error("{tasks} tasks had no outcome within leave_timeout and were given up")]
    GivenUp {
        /// How many.
        tasks: u32,
    },
    /// The scheduler did not confirm.
    #[error("the scheduler did not confirm the leave; it will notice the closed connection")]
    Unconfirmed,
    /// The scheduler was already lost.
    #[error(transparent)]
    SchedulerLost(#[from] Loss),
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::error::Error;

    use super::*;

    /// What a program sees that prints an error and its causes, one a line.
    fn chain(error: &dyn Error) -> Vec<String> {
        let mut said = vec![error.to_string()];
        let mut cause = error.source();
        while let Some(error) = cause {
            said.push(error.to_string());
            cause = error.source();
        }
        said
    }

    #[test]
    fn no_cause_is_said_twice() {
        let listen = "127.0.0.1:1".parse().expect("an address");
        let silent = MembershipError::Silent { timeout_ms: 1_000 };
        let no_leader = baton_leader::Unknown::NoLeader { key: "/x".into() };
        let taken = || io::Error::from(io::ErrorKind::AddrInUse);
        let errors: [Box<dyn Error>; 7] = [
            Box::new(ConnectError::from(ConfigError::Slots { slots: 0 })),
            Box::new(ConnectError::transport(listen, MixedError::Tcp(taken()))),
            Box::new(ConnectError::Thread(taken())),
            Box::new(ConnectError::from(SlabError::TooManySlots(7))),
            Box::new(ConnectError::from(MembershipError::from(no_leader))),
            Box::new(LeaveError::SchedulerLost(Loss::Scheduler(silent))),
            Box::new(LeaveError::Unconfirmed),
        ];
        for error in errors {
            let chain = chain(&*error);
            assert_eq!(chain.len(), 1, "{chain:?}");
        }
    }
}

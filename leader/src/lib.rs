//! Which of several schedulers leads, by a lease in etcd; and where members find it.
//!
//! | | module |
//! |---|---|
//! | what a scheduler does to lead, and when it must stop: pure | [`Election`] |
//! | its requests to etcd, over HTTP | `etcd`, `tls` |
//! | the thread that sends them | [`ElectionThread`] |
//! | for members: where the leader is | [`SchedulerLocator`] |
//!
//! **Invariant.** While a scheduler's [`LeaseDeadline`](baton_topo::LeaseDeadline) lasts, the key in etcd is bound to its
//! lease, and that lease has not ended. So two schedulers never act at once, as long as no clock here runs slower
//! than etcd's by more than an eighth, and etcd keeps its promises about leases.
#![forbid(unsafe_code)]

use std::io;

mod election;
#[cfg(test)]
mod election_tests;
mod election_thread;
mod etcd;
mod etcd_messages;
mod locator;
#[cfg(test)]
mod model_tests;
mod tls;

pub use election::{Election, End, Step};
pub use election_thread::{ElectionThread, LeaderEvent};
pub use etcd::EtcdError;
pub use etcd_messages::{EtcdRequest, EtcdResponse, Holder, LeaseId};
pub use locator::{SchedulerLocator, Unknown};
pub use tls::{EtcdFilesError, check_files};

/// Why etcd cannot even be asked.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The files for TLS cannot be used.
    #[error(transparent)]
    Files(#[from] EtcdFilesError),
    /// The system cannot start another thread.
    #[error("cannot start the thread that asks etcd: {0}")]
    Thread(#[from] io::Error),
}

//! Which of several schedulers leads, by a lease in etcd; and where members find it.
//!
//! | | module |
//! |---|---|
//! | what a scheduler does to lead, and when it must stop: pure | `Election` |
//! | its requests to etcd, over HTTP | `etcd`, `tls` |
//! | the thread that sends them | `ElectionThread` |
//! | for members: where the leader is | [`SchedulerLocator`], `lookup` |
//!
//! Without the feature `etcd` there is only the last, for schedulers at a fixed address.
//!
//! **Invariant.** While a scheduler's [`LeaseDeadline`](baton_topo::LeaseDeadline) lasts, the key in etcd is bound to its
//! lease, and that lease has not ended. So two schedulers never act at once, as long as no clock here runs slower
//! than etcd's by more than an eighth, and etcd keeps its promises about leases.
#![forbid(unsafe_code)]

use std::io;

#[cfg(feature = "etcd")]
mod election;
#[cfg(all(test, feature = "etcd"))]
mod election_tests;
#[cfg(feature = "etcd")]
mod election_thread;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "etcd")]
mod etcd_messages;
mod locator;
#[cfg(feature = "etcd")]
mod lookup;
#[cfg(all(test, feature = "etcd"))]
mod model_tests;
#[cfg(not(feature = "etcd"))]
mod no_lookup;
#[cfg(test)]
#[cfg(feature = "etcd")]
mod played_etcd;
#[cfg(feature = "etcd")]
mod tls;

#[cfg(feature = "etcd")]
pub use election::{Election, End, Step};
#[cfg(feature = "etcd")]
pub use election_thread::{ElectionThread, LeaderEvent};
#[cfg(feature = "etcd")]
pub use etcd::EtcdError;
#[cfg(feature = "etcd")]
pub use etcd_messages::{EtcdRequest, EtcdResponse, Holder, LeaseId};
pub use locator::{SchedulerLocator, Unknown};
#[cfg(feature = "etcd")]
pub use tls::{EtcdFilesError, check_files};

/// Why etcd cannot even be asked.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// This program was built without etcd.
    #[error(
        "the scheduler is to be found through etcd, and this program was built without it: build baton-client with its \
         feature `etcd`, or name the scheduler's address"
    )]
    NotBuilt,
    /// The files for TLS cannot be used.
    #[cfg(feature = "etcd")]
    #[error(transparent)]
    Files(#[from] EtcdFilesError),
    /// The system cannot start another thread.
    #[error("cannot start the thread that asks etcd: {0}")]
    Thread(#[from] io::Error),
}

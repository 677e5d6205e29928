//! Which of several schedulers leads, by a lease in etcd; and where members find it.
//!
//! | | module |
//! |---|---|
//! | what a scheduler does to lead, and when it must stop: pure | [`Candidacy`] |
//! | its questions to etcd, over HTTP | `etcd`, `tls` |
//! | the thread that asks them | [`Candidate`] |
//! | the same for members: who leads? | [`Whereabouts`] |
//!
//! **Invariant.** While a scheduler's [`Tenure`](baton_topo::Tenure) lasts, the key in etcd is bound to its
//! lease, and that lease has not ended. So two of them never act at once, as long as no clock here runs slower
//! than etcd's by more than an eighth, and etcd keeps its word about leases.
#![forbid(unsafe_code)]

use std::io;

mod candidacy;
#[cfg(test)]
mod candidacy_tests;
mod candidate;
mod etcd;
#[cfg(test)]
mod model_tests;
mod question;
mod tls;
mod whereabouts;

pub use candidacy::{Candidacy, End, Step};
pub use candidate::{Candidate, News};
pub use etcd::EtcdError;
pub use question::{Answer, Holder, LeaseId, Question};
pub use tls::{EtcdFilesError, check_files};
pub use whereabouts::{Unknown, Whereabouts};

/// Why etcd cannot even be asked.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The files for TLS cannot be used.
    #[error(transparent)]
    Files(#[from] EtcdFilesError),
    /// The system has no more threads.
    #[error("cannot start the thread that asks etcd: {0}")]
    Thread(#[from] io::Error),
}

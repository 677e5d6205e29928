//! Baton's backend: takes actions from the scheduler, pulls the inputs from the frontends, executes
//! one batch at a time per GPU slot and answers the frontends directly.
//!
//! An action's way through the crate:
//!
//! | step | module |
//! |---|---|
//! | is it ours, is it sound | `admit` |
//! | wait for a batch slot | `action` |
//! | pull each input into its row, and note how long that takes | `fetch`, `slot`, `fetch_time` |
//! | execute | `gpu`, `submitted`, [`execute`] |
//! | answer, then report | `reply` |
//!
//! Models come and go with the catalogue: `models` decides which, `memory` has room for their batches, and an executor
//! takes in what was loaded aside between two batches (`residency`).
//!
//! Files of models that lie on a server come to the backend beforehand ([`pull`]).
//!
//! [`Worker`] is the loop that drives these, `join` what a backend says to the scheduler, and
//! [`Backend`] the threads. A *GPU slot* of the scheduler executes one batch at a time. It
//! has [`BATCH_SLOTS`] *batch slots*, so that while one batch executes the next are fetched and brought near,
//! and the last is answered.
//!
//! What never happens here: the backend reorders no action for profit (the scheduler decides), no batch
//! waits for `earliest` on an idle GPU slot or starts after `latest` and a grace, no lost row holds up rows that have arrived by
//! `latest`, and no task is both answered and given back.
#![forbid(unsafe_code)]

mod action;
mod admit;
mod backend;
mod config;
mod counters;
mod error;
pub mod execute;
mod fetch;
mod fetch_time;
mod first_device;
mod gpu;
mod join;
mod loader;
mod memory;
mod models;
mod peers;
pub mod profile;
pub mod pull;
mod reply;
mod residency;
mod served;
mod slot;
mod submitted;
#[cfg(test)]
mod test_models;
mod worker;

pub use backend::{Backend, BackendHandle};
pub use baton_membership::{MembershipError, Stage};
pub use config::{BATCH_MEMORY_MAX, BATCH_SLOTS, BackendConfig, ConfigError};
pub use counters::Counters;
pub use error::BackendError;
pub use served::CatalogueError;
pub use worker::Worker;

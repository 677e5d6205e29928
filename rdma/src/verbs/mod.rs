//! Inputs read, and messages sent, over RDMA verbs.
//!
//! From the device up: `ffi` (libibverbs, loaded at run time), `device`, `memory`, `queue`, `receives`
//! and `pair` (safe owners of its objects), `probe` (what they tell an operator), `engine` (the pull
//! protocol, pure), `control` (messages, pure), `verbs_device` (one process's device with all its queue pairs),
//! `fabric` (the conversation that connects them), `mixed` (the transport: TCP, and this beside it).

mod breaker;
mod control;
mod device;
mod engine;
mod error;
mod fabric;
mod ffi;
mod memory;
mod mixed;
mod pair;
mod probe;
mod queue;
mod receives;
mod verbs_device;

pub use error::VerbsError;
pub use mixed::{MixedError, MixedTransport};
pub use probe::{probe, probe_device_memory};

//! `baton._native`: the client library as a Python module. `docs/python.md` is its guide, `python/python/baton/_native.pyi` its types.
//!
//! No thread of the client library ever enters the interpreter: outcomes come through descriptors that Python's own
//! threads watch (`queue.rs`, `watch.rs`). What waits lets the interpreter go and looks for signals (`wait.rs`). Memory of slots is lent through
//! the buffer protocol (`memory.rs`, the only unsafe code).
#![deny(unsafe_code)]

mod client;
mod errors;
mod fork;
mod input;
mod memory;
mod model;
mod outcome;
mod queue;
mod tensors;
mod ticket;
mod wait;
mod watch;

use pyo3::prelude::*;

use baton_client::{DropReason, FailReason};

/// The module.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<client::Client>()?;
    module.add_class::<input::Input>()?;
    module.add_class::<model::Model>()?;
    module.add_class::<memory::Reply>()?;
    module.add_class::<outcome::Completed>()?;
    module.add_class::<outcome::Dropped>()?;
    module.add_class::<outcome::Failed>()?;
    module.add_class::<queue::CompletionQueue>()?;
    module.add_class::<tensors::TensorSpec>()?;
    module.add_class::<ticket::Ticket>()?;
    module.add_class::<watch::Watch>()?;
    module.add_function(wrap_pyfunction!(client::connect, module)?)?;
    module.add_function(wrap_pyfunction!(fork::_note_fork, module)?)?;
    let drops: Vec<&str> = DropReason::ALL.iter().map(|why| why.as_str()).collect();
    let fails: Vec<&str> = FailReason::ALL.iter().map(|why| why.as_str()).collect();
    let tuple = |words: Vec<&str>| pyo3::types::PyTuple::new(module.py(), words);
    module.add("DROP_REASONS", tuple(drops)?)?;
    module.add("FAIL_REASONS", tuple(fails)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    errors::add(module)
}

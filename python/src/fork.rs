//! Objects in a forked child. Its copy of a client has no I/O thread, shares the parent's sockets, and may hold locks of threads
//! that are not there: nothing of it may be used, and nothing of it may be dropped.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;

use crate::errors::ForkedError;

/// How often this process was forked off another one that had this module loaded.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// `os.register_at_fork` calls it in the child.
#[pyfunction]
pub(crate) fn _note_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A value that only the process uses and drops that made it.
pub(crate) struct Local<T> {
    /// `None` only while it is dropped, or once it was taken.
    value: Option<T>,
    forks: u32,
}

impl<T> Local<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Some(value), forks: FORKS.load(Ordering::Relaxed) }
    }

    pub(crate) fn get(&self) -> PyResult<&T> {
        self.check()?;
        self.value.as_ref().ok_or_else(gone)
    }

    pub(crate) fn get_mut(&mut self) -> PyResult<&mut T> {
        self.check()?;
        self.value.as_mut().ok_or_else(gone)
    }

    pub(crate) fn take(&mut self) -> PyResult<T> {
        self.check()?;
        self.value.take().ok_or_else(gone)
    }

    pub(crate) fn put_back(&mut self, value: T) {
        self.value = Some(value);
    }

    fn is_of_parent(&self) -> bool {
        self.forks != FORKS.load(Ordering::Relaxed)
    }

    fn check(&self) -> PyResult<()> {
        match self.is_of_parent() {
            true => Err(ForkedError::new_err(WORDS)),
            false => Ok(()),
        }
    }
}

const WORDS: &str = "this object belongs to the parent process, whose I/O thread is not here: connect a client of your own \
    behind the fork, or start processes with multiprocessing's \"spawn\"";

fn gone() -> PyErr {
    pyo3::exceptions::PyValueError::new_err(
        "this was submitted, closed or taken already: it can be used once",
    )
}

impl<T> Drop for Local<T> {
    fn drop(&mut self) {
        if self.is_of_parent() {
            std::mem::forget(self.value.take());
        }
    }
}

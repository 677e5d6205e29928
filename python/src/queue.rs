//! Many tickets in one completion queue: for threads (`CompletionQueue`) and for event loops (`watch.rs`).

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_client::CompletionQueue as Queue;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::errors::QueueFullError;
use crate::fork::Local;
use crate::outcome::to_python;
use crate::ticket::Ticket;
use crate::wait::{in_rounds, timeout};

/// A queue, and what belongs to each ticket in it.
pub(crate) struct Pool<T> {
    queue: Local<Arc<Queue>>,
    entries: Mutex<Entries<T>>,
}

struct Entries<T> {
    /// By tag.
    places: Vec<Option<(Py<Ticket>, T)>>,
    free: Vec<usize>,
}

impl<T> Pool<T> {
    pub(crate) fn new(capacity: usize) -> PyResult<Self> {
        let queue = Queue::new(capacity).map_err(|error| PyOSError::new_err(error.to_string()))?;
        let places = (0..capacity).map(|_| None).collect();
        let entries = Entries { places, free: (0..capacity).rev().collect() };
        Ok(Self { queue: Local::new(Arc::new(queue)), entries: Mutex::new(entries) })
    }

    pub(crate) fn queue(&self) -> PyResult<&Arc<Queue>> {
        self.queue.get()
    }

    fn entries(&self) -> MutexGuard<'_, Entries<T>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the ticket over; gives back what was to go with it if the queue is full.
    pub(crate) fn add(&self, ticket: &Bound<'_, Ticket>, with: T) -> PyResult<Result<(), T>> {
        let queue = self.queue()?;
        let tag = {
            let mut entries = self.entries();
            let Some(tag) = entries.free.pop() else { return Ok(Err(with)) };
            entries.places[tag] = Some((ticket.clone().unbind(), with));
            tag
        };
        let added = ticket.get().take().map(|taken| queue.add(taken, tag as u64));
        match added {
            Ok(Ok(key)) => {
                ticket.get().queued(queue, key);
                Ok(Ok(()))
            }
            Ok(Err(full)) => {
                ticket.get().put_back(full.ticket)?;
                self.remove(tag).map_or_else(|| Err(lost()), |entry| Ok(Err(entry.1)))
            }
            Err(busy) => {
                drop(self.remove(tag));
                Err(busy)
            }
        }
    }

    fn remove(&self, tag: usize) -> Option<(Py<Ticket>, T)> {
        let mut entries = self.entries();
        entries.free.push(tag);
        entries.places[tag].take()
    }

    /// A ticket whose outcome has come, with what belongs to it.
    pub(crate) fn settle(
        &self,
        py: Python<'_>,
        done: baton_client::Completion,
    ) -> PyResult<(Py<Ticket>, T, Py<PyAny>)> {
        let (ticket, with) = self.remove(done.tag as usize).ok_or_else(lost)?;
        let outcome = to_python(py, done.outcome)?;
        ticket.get().end(outcome.clone_ref(py));
        Ok((ticket, with, outcome))
    }

    /// What belongs to a ticket that is in it.
    pub(crate) fn with<R>(
        &self,
        ticket: &Bound<'_, Ticket>,
        act: impl FnOnce(&mut T) -> R,
    ) -> Option<R> {
        let mut entries = self.entries();
        let found = entries.places.iter_mut().flatten().find(|entry| entry.0.is(ticket));
        found.map(|entry| act(&mut entry.1))
    }

    pub(crate) fn fileno(&self) -> PyResult<i32> {
        Ok(self.queue()?.as_fd().as_raw_fd())
    }
}

fn lost() -> PyErr {
    pyo3::exceptions::PyRuntimeError::new_err("a completion without its ticket: a bug in baton")
}

/// The outcomes of many tickets, in the order in which they come.
#[pyclass(frozen, module = "baton")]
pub(crate) struct CompletionQueue {
    pool: Pool<Py<PyAny>>,
}

type Completion = (Py<PyAny>, Py<PyAny>);

#[pymethods]
impl CompletionQueue {
    #[new]
    #[pyo3(signature = (capacity = 128))]
    fn new(capacity: usize) -> PyResult<Self> {
        Ok(Self { pool: Pool::new(capacity)? })
    }

    /// Takes a ticket over. Its outcome comes with `tag`, or with the ticket itself.
    #[pyo3(signature = (ticket, tag = None))]
    fn add(&self, ticket: &Bound<'_, Ticket>, tag: Option<Py<PyAny>>) -> PyResult<()> {
        let tag = tag.unwrap_or_else(|| ticket.clone().into_any().unbind());
        self.pool.add(ticket, tag)?.map_err(|_| {
            let capacity = self.pool.queue().map_or(0, |queue| queue.capacity());
            QueueFullError::new_err(format!(
                "all {capacity} places of the completion queue are taken: take outcomes, or make it larger"
            ))
        })
    }

    /// The next outcome with its tag, if one is there. Never blocks.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<Completion>> {
        let Some(done) = self.pool.queue()?.poll() else { return Ok(None) };
        let (_ticket, tag, outcome) = self.pool.settle(py, done)?;
        Ok(Some((tag, outcome)))
    }

    /// The next outcome with its tag; `None` if none came within the timeout, or if the queue is empty.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Completion>> {
        let span = self::timeout(timeout, "timeout")?;
        let queue = Arc::clone(self.pool.queue()?);
        let done = in_rounds(py, span, |round| match queue.wait(round) {
            Some(done) => Some(Some(done)),
            None if queue.is_empty() => Some(None),
            None => None,
        })?;
        let Some(done) = done.flatten() else { return Ok(None) };
        let (_ticket, tag, outcome) = self.pool.settle(py, done)?;
        Ok(Some((tag, outcome)))
    }

    /// Readable while an outcome may be there: for selectors.
    fn fileno(&self) -> PyResult<i32> {
        self.pool.fileno()
    }

    /// Tickets whose outcomes were not taken yet.
    fn __len__(&self) -> PyResult<usize> {
        Ok(self.pool.queue()?.len())
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Completion>> {
        self.wait(py, None)
    }
}

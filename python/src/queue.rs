//! Many tickets in one completion queue: for threads (`CompletionQueue`) and for event loops (`watch.rs`).

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_client::{CompletionKey, CompletionQueue as Queue};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use crate::errors::QueueFullError;
use crate::fork::Local;
use crate::outcome::to_python;
use crate::ticket::Ticket;
use crate::wait::{in_rounds, timeout};

/// Where a ticket is.
pub(crate) struct Place {
    pub(crate) queue: Arc<Queue>,
    pub(crate) key: CompletionKey,
    /// In the queue's pool.
    pub(crate) tag: usize,
}

/// A queue, and what belongs to each ticket in it. Its end gives the tickets back: those that Python still has can be waited for
/// in another way, the others are dropped.
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

    /// Nothing of Python's runs while this is held: it might come back here.
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
                ticket.get().queued(Place { queue: Arc::clone(queue), key, tag });
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

    /// Gives the ticket back to itself, unless its outcome is in the queue already.
    pub(crate) fn give_back(&self, ticket: &Bound<'_, Ticket>) -> PyResult<()> {
        let queue = self.queue()?;
        let Some((key, tag)) = ticket.get().place_in(queue)? else { return Ok(()) };
        if let Some(taken) = queue.remove(key) {
            ticket.get().put_back(taken)?;
            drop(self.remove(tag));
        }
        Ok(())
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
    ) -> PyResult<Option<R>> {
        let Some((_, tag)) = ticket.get().place_in(self.queue()?)? else { return Ok(None) };
        Ok(self.entries().places[tag].as_mut().map(|entry| act(&mut entry.1)))
    }

    /// For the garbage collector, which stops everything else meanwhile.
    pub(crate) fn traverse(
        &self,
        each: impl Fn(&Py<Ticket>, &T) -> Result<(), PyTraverseError>,
    ) -> Result<(), PyTraverseError> {
        let Ok(entries) = self.entries.try_lock() else { return Ok(()) };
        entries.places.iter().flatten().try_for_each(|(ticket, with)| each(ticket, with))
    }

    /// Takes the outcomes that have come, and gives the other tickets back.
    pub(crate) fn empty(&self, py: Python<'_>) -> PyResult<()> {
        let queue = self.queue()?;
        while let Some(done) = queue.poll() {
            drop(self.settle(py, done)?);
        }
        let left: Vec<Py<Ticket>> = {
            let entries = self.entries();
            entries.places.iter().flatten().map(|entry| entry.0.clone_ref(py)).collect()
        };
        left.iter().try_for_each(|ticket| self.give_back(ticket.bind(py)))
    }

    pub(crate) fn fileno(&self) -> PyResult<i32> {
        Ok(self.queue()?.as_fd().as_raw_fd())
    }
}

impl<T> Drop for Pool<T> {
    fn drop(&mut self) {
        // A forked child's copy is refused, and the parent's tickets stay where they are.
        Python::try_attach(|py| self.empty(py).ok());
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

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.pool.traverse(|ticket, tag| {
            visit.call(ticket)?;
            visit.call(tag)
        })
    }

    fn __clear__(&self, py: Python<'_>) {
        // What is left is dropped with the queue.
        drop(self.pool.empty(py));
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Completion>> {
        self.wait(py, None)
    }
}

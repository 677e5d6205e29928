//! A ticket: waited for by a thread, awaited in an event loop, or in a completion queue.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_client::{CompletionKey, CompletionQueue, SharedTicket};
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::errors::TicketBusyError;
use crate::fork::Local;
use crate::outcome::to_python;
use crate::queue::Place;
use crate::wait::{in_rounds, timeout};

/// The claim to one task's outcome. Dropping it cancels the task.
#[pyclass(frozen, module = "baton", weakref)]
pub(crate) struct Ticket {
    ticket: Local<Arc<SharedTicket>>,
    state: Mutex<State>,
}

enum State {
    /// The outcome is the ticket's to give.
    Own,
    /// A queue gives it.
    Queued(Local<Place>),
    /// It was given.
    Ended(Py<PyAny>),
}

impl Ticket {
    pub(crate) fn new(ticket: baton_client::Ticket) -> Self {
        let ticket = Local::new(Arc::new(SharedTicket::new(ticket)));
        Self { ticket, state: Mutex::new(State::Own) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The outcome, if it was given before.
    pub(crate) fn ended(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        match &*self.state() {
            State::Ended(outcome) => Some(outcome.clone_ref(py)),
            State::Own | State::Queued(_) => None,
        }
    }

    /// The ticket itself, for a queue; [`Ticket::queued`] or [`Ticket::put_back`] follows.
    pub(crate) fn take(&self) -> PyResult<baton_client::Ticket> {
        if matches!(*self.state(), State::Ended(_)) {
            let words = "this ticket's outcome was taken before: ticket.poll() has it";
            return Err(TicketBusyError::new_err(words));
        }
        self.ticket.get()?.take().ok_or_else(busy)
    }

    pub(crate) fn put_back(&self, ticket: baton_client::Ticket) -> PyResult<()> {
        self.ticket.get()?.put_back(ticket);
        *self.state() = State::Own;
        Ok(())
    }

    pub(crate) fn queued(&self, place: Place) {
        *self.state() = State::Queued(Local::new(place));
    }

    /// Its key and its tag, if it is in this queue.
    pub(crate) fn place_in(
        &self,
        queue: &Arc<CompletionQueue>,
    ) -> PyResult<Option<(CompletionKey, usize)>> {
        let state = self.state();
        let State::Queued(place) = &*state else { return Ok(None) };
        let place = place.get()?;
        Ok(Arc::ptr_eq(&place.queue, queue).then_some((place.key, place.tag)))
    }

    pub(crate) fn end(&self, outcome: Py<PyAny>) {
        let former = std::mem::replace(&mut *self.state(), State::Ended(outcome));
        drop(former);
    }

    /// The outcome, looked for in rounds.
    fn look_for(&self, py: Python<'_>, timeout: Duration) -> PyResult<Option<Py<PyAny>>> {
        if let Some(outcome) = self.ended(py) {
            return Ok(Some(outcome));
        }
        let ticket = Arc::clone(self.ticket.get()?);
        let found = in_rounds(py, timeout, |round| ticket.wait(round).transpose())?;
        let Some(found) = found else { return Ok(None) };
        let Ok(found) = found else {
            // Another thread may have looked between two rounds, and found it.
            return self.ended(py).map(Some).ok_or_else(busy);
        };
        let outcome = to_python(py, found)?;
        self.end(outcome.clone_ref(py));
        Ok(Some(outcome))
    }
}

fn busy() -> PyErr {
    TicketBusyError::new_err(
        "this ticket is awaited, in a completion queue, or waited for by another thread: its outcome comes there",
    )
}

#[pymethods]
impl Ticket {
    /// The outcome. Blocks until it is there, without the interpreter; Ctrl-C ends the wait.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let span = self::timeout(timeout, "timeout")?;
        self.look_for(py, span)?.ok_or_else(|| {
            PyTimeoutError::new_err("no outcome came within the timeout; the task goes on")
        })
    }

    /// The outcome, if it is there. Never blocks.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        if let Some(outcome) = self.ended(py) {
            return Ok(Some(outcome));
        }
        if matches!(*self.state(), State::Queued(_)) {
            return Ok(None);
        }
        let Some(outcome) = self.ticket.get()?.wait(Duration::ZERO).map_err(|_| busy())? else {
            return Ok(None);
        };
        let outcome = to_python(py, outcome)?;
        self.end(outcome.clone_ref(py));
        Ok(Some(outcome))
    }

    /// Asks the scheduler to drop the task. The outcome still comes.
    fn cancel(&self) -> PyResult<()> {
        match &*self.state() {
            State::Own => self.ticket.get()?.cancel(),
            State::Queued(place) => {
                let place = place.get()?;
                place.queue.cancel(place.key);
            }
            State::Ended(_) => {}
        }
        Ok(())
    }

    /// It is awaited, or in a completion queue.
    #[getter]
    fn is_queued(&self) -> bool {
        matches!(*self.state(), State::Queued(_))
    }

    /// The task's id, as it appears in the logs of every process.
    #[getter]
    fn task(&self) -> PyResult<u64> {
        Ok(self.ticket.get()?.task().0)
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        static AWAIT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = slf.py();
        let function = AWAIT.get_or_try_init(py, || {
            Ok::<_, PyErr>(py.import("baton._aio")?.getattr("await_ticket")?.unbind())
        })?;
        function.bind(py).call1((slf,))
    }
}

//! What an event loop watches: the tickets that its coroutines await, and the slots that they wait for. The loop's own
//! thread settles them, behind a descriptor; no other thread calls Python.

use std::future::Future;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use baton_client::InputError;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::{intern, types::PyList};
use rustix::event::{EventfdFlags, eventfd};

use crate::errors::of_input;
use crate::fork::Local;
use crate::input::Input;
use crate::model::Model;
use crate::queue::Pool;
use crate::ticket::Ticket;

/// Most outcomes that one pass of the loop settles: others have their turn between.
const PASS: usize = 1024;

/// One event loop's tickets and slots. When the loop is gone, so is this, and its tasks are cancelled.
#[pyclass(frozen, module = "baton")]
pub(crate) struct Watch {
    tickets: Pool<Vec<Py<PyAny>>>,
    slots: Slots,
}

type SlotFuture = Pin<Box<dyn Future<Output = Result<baton_client::Input, InputError>> + Send>>;

/// Futures that wait for a slot.
struct Slots {
    ready: Arc<Ready>,
    waiting: Mutex<Line>,
}

#[derive(Default)]
struct Line {
    places: Vec<Option<Waiting>>,
    free: Vec<usize>,
}

struct Waiting {
    slot: Local<SlotFuture>,
    model: Py<Model>,
    future: Py<PyAny>,
}

/// Those that were woken, and the descriptor that says that there are some.
struct Ready {
    list: Mutex<Vec<usize>>,
    eventfd: OwnedFd,
}

impl Ready {
    fn list(&self) -> MutexGuard<'_, Vec<usize>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, at: usize) {
        let mut list = self.list();
        list.push(at);
        if list.len() == 1 {
            // It counts from 0 to 1, which cannot fail.
            let _ = rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes());
        }
    }

    fn take(&self) -> Vec<usize> {
        let mut list = self.list();
        if !list.is_empty() {
            let _ = rustix::io::read(&self.eventfd, &mut [0_u8; 8]);
        }
        std::mem::take(&mut *list)
    }
}

struct SlotWaker {
    ready: Arc<Ready>,
    at: usize,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.ready.push(self.at);
    }
}

impl Slots {
    fn new() -> PyResult<Self> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let eventfd = eventfd.map_err(|error| PyOSError::new_err(error.to_string()))?;
        let ready = Arc::new(Ready { list: Mutex::default(), eventfd });
        Ok(Self { ready, waiting: Mutex::default() })
    }

    /// Nothing of Python's runs while this is held: it might come back here.
    fn waiting(&self) -> MutexGuard<'_, Line> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its place.
    fn add(&self, waiting: Waiting) -> usize {
        let mut line = self.waiting();
        let at = line.free.pop().unwrap_or(line.places.len());
        match line.places.get_mut(at) {
            Some(place) => *place = Some(waiting),
            None => line.places.push(Some(waiting)),
        }
        drop(line);
        self.ready.push(at);
        at
    }

    fn take(&self, at: usize) -> Option<Waiting> {
        self.waiting().places.get_mut(at).and_then(Option::take)
    }

    /// The place of one that was taken and has its slot, or needs none.
    fn free(&self, at: usize) {
        self.waiting().free.push(at);
    }

    /// Looks at those that were woken.
    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        for at in self.ready.take() {
            // One that was woken late, for a place that is free.
            let Some(mut waiting) = self.take(at) else { continue };
            if waiting.is_done(py)? {
                self.free(at);
                continue;
            }
            let waker = Waker::from(Arc::new(SlotWaker { ready: Arc::clone(&self.ready), at }));
            match waiting.slot.get_mut()?.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(slot) => {
                    self.free(at);
                    waiting.end(py, slot)?;
                }
                Poll::Pending => self.waiting().places[at] = Some(waiting),
            }
        }
        Ok(())
    }

    fn clear(&self) {
        let line = std::mem::take(&mut *self.waiting());
        drop(line);
    }

    /// This future of Python's waits no more: its place in the line goes to those behind it.
    fn forget(&self, at: usize, future: &Bound<'_, PyAny>) {
        let forgotten = {
            let mut line = self.waiting();
            let place = line.places.get_mut(at);
            let place = place.filter(|place| place.as_ref().is_some_and(|w| w.future.is(future)));
            let forgotten = place.and_then(Option::take);
            if forgotten.is_some() {
                line.free.push(at);
            }
            forgotten
        };
        drop(forgotten);
    }
}

impl Waiting {
    fn is_done(&self, py: Python<'_>) -> PyResult<bool> {
        self.future.bind(py).call_method0(intern!(py, "done"))?.is_truthy()
    }

    fn end(&self, py: Python<'_>, slot: Result<baton_client::Input, InputError>) -> PyResult<()> {
        let future = self.future.bind(py);
        match slot {
            Ok(slot) => {
                let input = Input::new(slot, self.model.get().specs());
                future.call_method1(intern!(py, "set_result"), (Py::new(py, input)?,))?;
            }
            Err(error) => {
                let error = of_input(&error);
                future.call_method1(intern!(py, "set_exception"), (error.into_value(py),))?;
            }
        }
        Ok(())
    }
}

#[pymethods]
impl Watch {
    #[new]
    fn new(capacity: usize) -> PyResult<Self> {
        Ok(Self { tickets: Pool::new(capacity)?, slots: Slots::new()? })
    }

    /// The descriptors that the loop watches for `settle`.
    fn filenos<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, [self.tickets.fileno()?, self.slots.ready.eventfd.as_raw_fd()])
    }

    /// The outcome of the ticket will be the future's result. False if there is no room for the ticket.
    fn add(&self, ticket: &Bound<'_, Ticket>, future: Py<PyAny>) -> PyResult<bool> {
        Ok(self.tickets.add(ticket, vec![future])?.is_ok())
    }

    /// The same for another future, if the ticket is in here.
    fn join(&self, ticket: &Bound<'_, Ticket>, future: Py<PyAny>) -> PyResult<bool> {
        Ok(self.tickets.with(ticket, |futures| futures.push(future))?.is_some())
    }

    /// This future wants no result any more. A ticket in here that no other awaits is its owner's again.
    fn forget(&self, ticket: &Bound<'_, Ticket>, future: &Bound<'_, PyAny>) -> PyResult<()> {
        let taken = self.tickets.with(ticket, |futures| {
            let at = futures.iter().position(|one| one.is(future));
            (at.map(|at| futures.swap_remove(at)), futures.is_empty())
        })?;
        match taken {
            Some((_, true)) => self.tickets.give_back(ticket),
            Some((_, false)) | None => Ok(()),
        }
    }

    /// A slot of the model will be the future's result. Returns the place for `forget_slot`.
    fn add_slot(&self, model: Py<Model>, future: Py<PyAny>) -> PyResult<usize> {
        let handle = model.get().handle()?.clone();
        let slot: SlotFuture = Box::pin(async move { handle.input_ready().await });
        Ok(self.slots.add(Waiting { slot: Local::new(slot), model, future }))
    }

    /// This future waits for a slot no more.
    fn forget_slot(&self, at: usize, future: &Bound<'_, PyAny>) {
        self.slots.forget(at, future);
    }

    /// Its loop has ended: tickets are their owners' again, places in lines are given up.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.slots.clear();
        self.tickets.empty(py)
    }

    /// Sets the results of what has come.
    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        // First: in a forked child nothing may be read, the descriptors are the parent's, too.
        let queue = Arc::clone(self.tickets.queue()?);
        self.slots.settle(py)?;
        for _ in 0..PASS {
            let Some(done) = queue.poll() else { break };
            let (_ticket, futures, outcome) = self.tickets.settle(py, done)?;
            for future in futures {
                let future = future.bind(py);
                if !future.call_method0(intern!(py, "done"))?.is_truthy()? {
                    future.call_method1(intern!(py, "set_result"), (outcome.bind(py),))?;
                }
            }
        }
        Ok(())
    }
}

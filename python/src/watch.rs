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
    waiting: Mutex<Vec<Option<Waiting>>>,
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

    fn waiting(&self) -> MutexGuard<'_, Vec<Option<Waiting>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, waiting: Waiting) {
        let mut all = self.waiting();
        let at = all.iter().position(Option::is_none).unwrap_or(all.len());
        match all.get_mut(at) {
            Some(place) => *place = Some(waiting),
            None => all.push(Some(waiting)),
        }
        drop(all);
        self.ready.push(at);
    }

    /// Looks at those that were woken. A future of Python's that was cancelled gives its place in the line up.
    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        for at in self.ready.take() {
            let Some(mut waiting) = self.waiting().get_mut(at).and_then(Option::take) else {
                continue;
            };
            if waiting.is_done(py)? {
                continue;
            }
            let waker = Waker::from(Arc::new(SlotWaker { ready: Arc::clone(&self.ready), at }));
            match waiting.slot.get_mut()?.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(slot) => waiting.end(py, slot)?,
                Poll::Pending => self.waiting()[at] = Some(waiting),
            }
        }
        Ok(())
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
    fn join(&self, ticket: &Bound<'_, Ticket>, future: Py<PyAny>) -> bool {
        self.tickets.with(ticket, |futures| futures.push(future)).is_some()
    }

    /// A slot of the model will be the future's result.
    fn add_slot(&self, model: Py<Model>, future: Py<PyAny>) -> PyResult<()> {
        let handle = model.get().handle()?.clone();
        let slot: SlotFuture = Box::pin(async move { handle.input_ready().await });
        self.slots.add(Waiting { slot: Local::new(slot), model, future });
        Ok(())
    }

    /// Sets the results of what has come.
    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        self.slots.settle(py)?;
        let queue = Arc::clone(self.tickets.queue()?);
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

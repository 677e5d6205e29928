//! Waiting by threads that have no executor, and tickets that one thread waits for while others cancel: what a binding for
//! another language needs.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use baton_topo::Clock;
use baton_types::TaskId;
use parking::Parker;

use crate::config::nanos;
use crate::outcome::Outcome;
use crate::ticket::Ticket;

/// Polls a future on this thread until it is ready or `timeout` has passed. With a timeout of zero it polls once.
pub fn wait_for<F: Future>(future: F, timeout: Duration) -> Option<F::Output> {
    let (clock, mut future) = (Clock::start(), pin!(future));
    let until = clock.now() + nanos(timeout);
    let parker = Parker::new();
    let waker = Waker::from(parker.unparker());
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        let left = until - clock.now();
        if left.0 == 0 {
            return None;
        }
        parker.park_timeout(Duration::from_nanos(left.0));
    }
}

/// A [`Ticket`] for several threads: one waits for the outcome, and any may cancel meanwhile.
///
/// ```no_run
/// use std::time::Duration;
/// use baton_client::{Client, ClientConfig, Deadline, SharedTicket};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::connect(ClientConfig::new("127.0.0.1:7700".parse()?))?;
/// let ticket = SharedTicket::new(client.model("digits")?.input()?.submit(Deadline::Slo)?);
/// std::thread::scope(|scope| {
///     scope.spawn(|| ticket.cancel());
///     println!("{:?}", ticket.wait(Duration::from_secs(2)));
/// });
/// # Ok(())
/// # }
/// ```
pub struct SharedTicket {
    task: TaskId,
    state: Mutex<State>,
}

/// Another thread waits for this ticket's outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("another thread waits for this ticket, or has taken its outcome: wait in one thread, once")]
pub struct TicketBusy;

struct State {
    /// `None` while a thread waits, and for good once the outcome was taken.
    ticket: Option<Ticket>,
    is_cancelled: bool,
    /// Of the thread that waits.
    waiting: Option<Waker>,
}

impl SharedTicket {
    /// Takes a ticket over.
    pub fn new(ticket: Ticket) -> Self {
        let task = ticket.task();
        let state = State { ticket: Some(ticket), is_cancelled: false, waiting: None };
        Self { task, state: Mutex::new(state) }
    }

    /// As [`Ticket::task`].
    pub fn task(&self) -> TaskId {
        self.task
    }

    /// The outcome; blocks until it is there or `timeout` has passed. Zero looks once.
    ///
    /// # Errors
    /// Another thread waits, or the outcome was taken before.
    pub fn wait(&self, timeout: Duration) -> Result<Option<Outcome>, TicketBusy> {
        let mut ticket = self.take().ok_or(TicketBusy)?;
        let outcome = wait_for(poll_fn(|context| self.look(&mut ticket, context)), timeout);
        let mut state = self.state();
        state.waiting = None;
        if outcome.is_none() {
            state.put_back(ticket);
        }
        Ok(outcome)
    }

    /// Asks the scheduler to drop the task, as [`Ticket::cancel`]. The outcome still follows.
    pub fn cancel(&self) {
        let mut state = self.state();
        state.is_cancelled = true;
        match &state.ticket {
            Some(ticket) => ticket.cancel(),
            None => state.waiting.take().into_iter().for_each(Waker::wake),
        }
    }

    /// The ticket itself, for a [`crate::CompletionQueue`] or an executor; `None` while a thread waits, and once
    /// the outcome was taken.
    pub fn take(&self) -> Option<Ticket> {
        self.state().ticket.take()
    }

    /// Gives back what [`SharedTicket::take`] gave, because it was not used.
    pub fn put_back(&self, ticket: Ticket) {
        self.state().put_back(ticket);
    }

    /// The outcome, or a note of whom to wake. The thread that waits has the ticket, so it cancels for the others.
    fn look(&self, ticket: &mut Ticket, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.state();
        if state.is_cancelled {
            ticket.cancel();
        }
        state.waiting = Some(context.waker().clone());
        drop(state);
        Pin::new(ticket).poll(context)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn put_back(&mut self, ticket: Ticket) {
        // Asked for while this thread had the ticket.
        if self.is_cancelled {
            ticket.cancel();
        }
        self.ticket = Some(ticket);
    }
}

impl fmt::Debug for SharedTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedTicket").field("ticket", &self.state().ticket).finish_non_exhaustive()
    }
}

#[cfg(test)]
impl SharedTicket {
    /// No thread waits that a cancel would wake.
    pub(crate) fn has_no_waiter(&self) -> bool {
        self.state().waiting.is_none()
    }
}

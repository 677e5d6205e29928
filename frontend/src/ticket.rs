//! The last step of a task's life: the application gets the outcome.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use baton_types::{FailReason, Nanos, TaskId};

use crate::end::End;
use crate::outcome::{EndRecord, EndedBy, Outcome};
use crate::served::ModelOwner;

/// The claim to one task's outcome. Poll it, block on it, or await it with any executor.
///
/// The outcome comes at the latest `lease_grace` after the deadline, whatever dies. The ticket returns
/// it once. From then on the ticket is stale, because its slot may have another task; asking again
/// returns `Failed(StaleGeneration)` at once.
///
/// Dropping a ticket cancels its task; the slot is free again once the outcome has arrived.
#[derive(Debug)]
#[must_use = "dropping a ticket cancels its task"]
pub struct Ticket {
    of: Arc<ModelOwner>,
    task: TaskId,
    submitted: Nanos,
    deadline: Nanos,
    /// The I/O thread was asked to cancel.
    is_cancelled: AtomicBool,
    /// The outcome was handed out; the slot may serve another task by now.
    is_taken: bool,
}

/// Blocking waits look again this often; an outcome never takes this long in practice.
const WAIT_ROUND: Duration = Duration::from_secs(60);

impl Ticket {
    pub(crate) fn new(
        of: Arc<ModelOwner>,
        task: TaskId,
        submitted: Nanos,
        deadline: Nanos,
    ) -> Self {
        let is_cancelled = AtomicBool::new(false);
        Self { of, task, submitted, deadline, is_cancelled, is_taken: false }
    }

    /// The task's id, as it appears in logs and traces of every process it passes. A task that is
    /// submitted again after its scheduler was lost has another one from then on; this is the first.
    pub fn task(&self) -> TaskId {
        self.task
    }

    /// When the task was submitted, on the client's clock.
    pub fn submitted(&self) -> Nanos {
        self.submitted
    }

    /// When its answer must be there, on the client's clock.
    pub fn deadline(&self) -> Nanos {
        self.deadline
    }

    /// The outcome, if it is there. Never blocks.
    pub fn poll(&mut self) -> Option<Outcome> {
        self.take(|ticket| ticket.of.model.cell(ticket.task).take())
    }

    /// Blocks until the outcome is there.
    pub fn wait(mut self) -> Outcome {
        loop {
            if let Some(outcome) = self.wait_timeout(WAIT_ROUND) {
                return outcome;
            }
        }
    }

    /// Blocks until the outcome is there or `timeout` has passed.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Outcome> {
        self.take(|ticket| {
            let clock = ticket.of.session().clock;
            ticket.of.model.cell(ticket.task).wait(clock, timeout)
        })
    }

    /// Asks the scheduler to drop the task. The outcome still follows: `Dropped(Cancelled)`, or
    /// the task's own outcome if the request came too late.
    pub fn cancel(&self) {
        if !self.is_taken && !self.is_cancelled.swap(true, Ordering::Relaxed) {
            self.of.session().cancel(self.task);
        }
    }

    /// True if the outcome is there, which [`Ticket::poll`] then returns; otherwise `waker` is called once it is. The slot
    /// stays this task's meanwhile.
    pub(crate) fn listen(&self, waker: &Waker) -> bool {
        self.is_taken || self.of.model.cell(self.task).listen(waker)
    }

    /// The waker that listens for its outcome, which the wake for the slot's former task takes away when it comes late.
    #[cfg(test)]
    pub(crate) fn steal_waker(&self) -> Option<Waker> {
        self.of.model.cell(self.task).steal_waker()
    }

    /// A completion queue had no room for it.
    pub(crate) fn count_completions_full(&self) {
        self.of.session().counters.completions_full.add(1);
    }

    fn take(&mut self, from_cell: impl FnOnce(&Self) -> Option<End>) -> Option<Outcome> {
        if self.is_taken {
            let record = EndRecord::new(self.of.session().clock.now(), EndedBy::Client, 0);
            let stale = Outcome::Failed(FailReason::StaleGeneration, record);
            return Some(stale.of(self.submitted, self.deadline));
        }
        let end = from_cell(self)?;
        self.is_taken = true;
        Some(self.of.model.outcome(self.task, &end).of(self.submitted, self.deadline))
    }
}

impl Future for Ticket {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let waker = context.waker();
        let outcome = self.take(|ticket| ticket.of.model.cell(ticket.task).take_or_listen(waker));
        outcome.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.poll().is_some() {
            return;
        }
        // Before letting go: afterwards the slot may have a new task (see `Session::new`).
        self.cancel();
        let model = &self.of.model;
        if model.cell(self.task).abandon().is_some() {
            model.recycle(self.task);
        }
    }
}

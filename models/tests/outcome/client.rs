//! The client: its tickets, the task in its only slot, and its memory. As `frontend/src/io` does it, written anew.

use baton_core::{DropReason, FailReason, TaskId, Unserved};

use crate::slab::Slab;

/// How a ticket's task ended: with the content of the answer, or without.
pub(crate) type Outcome = Result<u8, Unserved>;

/// In no scheduler's hands.
const GIVEN_BACK: u8 = u8::MAX;

/// The outstanding task.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Task {
    pub(crate) id: TaskId,
    pub(crate) ticket: u8,
    /// In which of the client's lives it was sent; 0 in none.
    pub(crate) life: u8,
}

/// See the module documentation.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Client {
    pub(crate) slab: Slab,
    pub(crate) task: Option<Task>,
    /// The task is to be submitted again.
    pub(crate) is_pending: bool,
    /// How often it has joined; also its number. 0 while it has no scheduler for the first time.
    pub(crate) life: u8,
    pub(crate) is_ready: bool,
    pub(crate) tickets: u8,
    pub(crate) outcomes: Vec<(u8, Outcome)>,
    pub(crate) cancels: u8,
    pub(crate) resubmits: u8,
    /// What must never happen, and did.
    pub(crate) broken: Option<&'static str>,
}

impl Client {
    pub(crate) fn number(&self) -> u16 {
        u16::from(self.life)
    }

    /// The application submits the next ticket's input. Returns what the scheduler is to hear.
    pub(crate) fn submit(&mut self) -> Option<TaskId> {
        let id = self.slab.submit(self.number(), self.tickets)?;
        self.task = Some(Task { id, ticket: self.tickets, life: self.life });
        self.tickets += 1;
        Some(id)
    }

    /// The application cancels. Returns what the scheduler is to hear.
    pub(crate) fn cancel(&mut self) -> Option<TaskId> {
        self.cancels += 1;
        let task = self.task?;
        if self.is_ready && task.life == self.life {
            return Some(task.id);
        }
        self.end(task.id, Err(Unserved::Dropped(DropReason::Cancelled)));
        None
    }

    /// It has joined the next scheduler.
    pub(crate) fn join(&mut self) {
        self.life += 1;
        self.is_ready = true;
        self.is_pending = self.task.is_some();
    }

    pub(crate) fn lose(&mut self) {
        (self.is_ready, self.is_pending) = (false, false);
    }

    /// Submits the task again. Returns what the scheduler is to hear; nothing while the input is read.
    pub(crate) fn resubmit(&mut self) -> Option<TaskId> {
        let task = self.task?;
        let id = self.slab.renew(self.number(), task.id)?;
        self.is_pending = false;
        self.resubmits += 1;
        self.task = Some(Task { id, life: self.life, ..task });
        Some(id)
    }

    /// A task ended without an answer, or the scheduler gives it back.
    pub(crate) fn on_end(&mut self, id: TaskId, why: Unserved) {
        let is_present = self.task.is_some_and(|task| task.id == id);
        let keeps = match why {
            Unserved::Dropped(DropReason::Shutdown) => true,
            Unserved::Dropped(DropReason::NoBackend) if self.life > 1 && is_present => {
                self.is_pending = true;
                true
            }
            _ => false,
        };
        match self.task.as_mut().filter(|_| keeps && is_present) {
            Some(task) => task.life = GIVEN_BACK,
            None => self.end(id, Err(why)),
        }
    }

    /// An answer arrives: it lands in memory, if that waits for it, and then the client hears of it.
    pub(crate) fn on_result(&mut self, id: TaskId, content: u8) {
        if self.slab.land(id, content) {
            self.end(id, Ok(content));
        }
    }

    /// The lease has run out.
    pub(crate) fn expire(&mut self) {
        if let Some(task) = self.task {
            self.end(task.id, Err(Unserved::Failed(FailReason::LeaseExpired)));
        }
    }

    /// Decides the task of this very id.
    fn end(&mut self, id: TaskId, outcome: Outcome) {
        let Some(task) = self.task.take_if(|task| task.id == id) else { return };
        let (is_first, content) = self.slab.complete(id);
        self.is_pending = false;
        if !is_first {
            self.broken = Some("a task is decided twice");
        }
        if outcome.is_ok() && content != outcome.ok() {
            self.broken = Some("the answer in memory is not the one that came");
        }
        self.outcomes.push((task.ticket, outcome));
    }
}

//! What the application's threads and the I/O thread share once the client has joined.
//!
//! Towards the I/O thread: commands, through a queue with room for everything the slots can cause.
//! Towards the application: outcomes, through one [`Cell`] per slot. Invariant: an armed cell is
//! ended, by a decided outcome or by [`Session::close`], whatever becomes of the I/O thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use baton_core::{DropReason, FailReason, ModelId, Nanos, TaskId};
use baton_rdma::{InputMut, SlabSet};
use baton_topo::{Clock, Waker};
use crossbeam_channel::{Receiver, Sender};

use crate::cell::Cell;
use crate::counters::LiveCounters;
use crate::error::{LeaveError, Loss, SubmitReason};
use crate::outcome::Outcome;

/// One model of this client.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) id: ModelId,
    /// Shared, so that a refusal can name it without allocating.
    pub(crate) name: Arc<str>,
    pub(crate) slo: Nanos,
    pub(crate) input_bytes: u32,
    pub(crate) output_bytes: u32,
    /// Position of its ModelThread among the client's.
    pub(crate) thread: usize,
}

/// From an application thread to the I/O thread.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    Submit(Task),
    Cancel(TaskId),
}

/// A submitted task. Moments on the client's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    pub(crate) id: TaskId,
    /// Position in [`Session::models`].
    pub(crate) model: u32,
    pub(crate) submitted: Nanos,
    pub(crate) deadline: Nanos,
}

/// Commands a slot can have in the queue at once: its submit, its cancel, and the cancel of the
/// task before. (A slot goes round only after its submit was taken out, and a ticket sends its
/// cancel before it lets go.)
const COMMANDS_PER_SLOT: usize = 3;

#[derive(Debug)]
pub(crate) struct Session {
    /// Sorted by name.
    pub(crate) models: Vec<Model>,
    pub(crate) slabs: Arc<SlabSet>,
    pub(crate) slots_per_model: u32,
    pub(crate) clock: Clock,
    pub(crate) counters: Arc<LiveCounters>,
    cells: Box<[Cell]>,
    commands: Sender<Command>,
    waker: Waker,
    leaving: AtomicBool,
    loss: OnceLock<Loss>,
    farewell: OnceLock<Result<(), LeaveError>>,
}

impl Session {
    /// The session, and the I/O thread's end of its queue.
    pub(crate) fn new(
        models: Vec<Model>,
        slabs: Arc<SlabSet>,
        slots_per_model: u32,
        clock: Clock,
        counters: Arc<LiveCounters>,
        waker: Waker,
    ) -> (Arc<Self>, Receiver<Command>) {
        let slots = models.len() * slots_per_model as usize;
        let (commands, receiver) = crossbeam_channel::bounded(slots * COMMANDS_PER_SLOT);
        let cells = (0..slots).map(|_| Cell::new()).collect();
        let session = Self {
            models,
            slabs,
            slots_per_model,
            clock,
            counters,
            cells,
            commands,
            waker,
            leaving: AtomicBool::new(false),
            loss: OnceLock::new(),
            farewell: OnceLock::new(),
        };
        (Arc::new(session), receiver)
    }

    /// Why a submit would be refused now.
    pub(crate) fn refusal(&self) -> Option<SubmitReason> {
        if self.leaving() {
            return Some(SubmitReason::ClientClosed);
        }
        self.loss().map(|_| SubmitReason::SchedulerLost)
    }

    /// Hands a filled input to the I/O thread. From here on the task has an outcome.
    pub(crate) fn submit(
        &self,
        input: InputMut,
        model: u32,
        submitted: Nanos,
        deadline: Nanos,
    ) -> TaskId {
        let id = input.submit();
        self.cell(id).arm();
        self.counters.submitted.add(1);
        let task = Task { id, model, submitted, deadline };
        if self.commands.try_send(Command::Submit(task)).is_err() {
            // Never full (see COMMANDS_PER_SLOT): the I/O thread has just ended.
            self.end_leftover(self.cell(id));
        }
        self.waker.wake();
        id
    }

    /// Asks for a task's end. Its outcome follows as ever.
    pub(crate) fn cancel(&self, task: TaskId) {
        self.counters.cancels.add(1);
        // Refused only if the I/O thread has ended, and then the outcome is there.
        let _ = self.commands.try_send(Command::Cancel(task));
        self.waker.wake();
    }

    /// Where a task's outcome appears.
    pub(crate) fn cell(&self, task: TaskId) -> &Cell {
        &self.cells[task.slot() as usize]
    }

    /// Hands out an outcome whose task is decided ([`SlabSet::complete`]) already.
    pub(crate) fn deliver(&self, task: TaskId, outcome: Outcome) {
        self.counters.count_outcome(&outcome);
        if let Err(orphan) = self.cell(task).end(outcome) {
            self.recycle(task, &orphan);
        }
    }

    /// Lets the slot of a taken outcome go. A reply does it by itself, when it is dropped.
    pub(crate) fn recycle(&self, task: TaskId, outcome: &Outcome) {
        if !matches!(outcome, Outcome::Completed(_)) {
            self.slabs.complete(task);
            self.slabs.release(task);
        }
    }

    /// The application wants to leave, or nobody is left to submit.
    pub(crate) fn begin_leaving(&self) {
        self.leaving.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(crate) fn leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// I/O thread: no more submits, because the scheduler is gone.
    pub(crate) fn lose(&self, loss: Loss) {
        // The first loss is the cause; what breaks afterwards is its effect.
        if self.loss.set(loss).is_ok() {
            tracing::warn!(loss = ?self.loss(), "the scheduler is lost");
        }
    }

    pub(crate) fn loss(&self) -> Option<&Loss> {
        self.loss.get()
    }

    /// I/O thread: how the leaving went.
    pub(crate) fn bid_farewell(&self, how: Result<(), LeaveError>) {
        // Set once, when the I/O thread has nothing left to do.
        let _ = self.farewell.set(how);
    }

    /// How the leaving went, once the I/O thread has ended.
    pub(crate) fn farewell(&self) -> Result<(), LeaveError> {
        let unheard = || Err(LeaveError::SchedulerLost(Loss::IoEnded));
        self.farewell.get().cloned().unwrap_or_else(unheard)
    }

    /// I/O thread, last of all, after dropping its end of the queue: ends what slipped in behind
    /// its back. A submit that still found the queue open had armed its cell before, so it is
    /// seen here; a later one finds the queue closed and ends its task itself.
    pub(crate) fn close(&self) {
        if self.farewell.get().is_none() {
            self.lose(Loss::IoEnded);
        }
        self.cells.iter().for_each(|cell| self.end_leftover(cell));
    }

    /// The cell, not the slab, decides here who is first: [`Session::close`] knows no task ids.
    fn end_leftover(&self, cell: &Cell) {
        let (outcome, count) = match self.loss() {
            Some(_) => (Outcome::Failed(FailReason::SchedulerLost), &self.counters.failed),
            None => (Outcome::Dropped(DropReason::Cancelled), &self.counters.dropped),
        };
        if cell.end(outcome).is_ok() {
            count.add(1);
        }
    }
}

//! What the application's threads and the I/O thread share once the client has joined.
//!
//! Towards the I/O thread: commands, through a queue with room for everything the slots can cause.
//! Towards the application: outcomes, through one [`Cell`] per slot. Invariant: a decided outcome or
//! [`Session::close`] ends each armed cell, even if the I/O thread dies.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use baton_core::{CostHint, DropReason, FailReason, ModelId, Nanos, TaskId};
use baton_rdma::{InputMut, SlabSet};
use baton_topo::signature::Signature;
use baton_topo::{Clock, Waker};
use crossbeam_channel::{Receiver, Sender};

use crate::cell::Cell;
use crate::counters::LiveCounters;
use crate::error::{LeaveError, Loss, SubmitReason};
use crate::outcome::{EndRecord, EndedBy, Outcome};

/// One model of this client.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) id: ModelId,
    /// Shared, so that a refusal can name it without allocating.
    pub(crate) name: Arc<str>,
    pub(crate) slo: Nanos,
    pub(crate) input_bytes: u32,
    pub(crate) output_bytes: u32,
    /// What it takes and gives.
    pub(crate) signature: Arc<Signature>,
    /// Position of its ModelThread among the client's.
    pub(crate) thread: usize,
    /// Until when the scheduler would not accept another task, by its latest message.
    pub(crate) closed_until: Arc<AtomicU64>,
}

impl Model {
    /// I/O thread: a task was refused, and another would be before this moment.
    pub(crate) fn close_until(&self, moment: Nanos) {
        // The order against outcomes is that of the outcome's cell.
        self.closed_until.store(moment.0, Ordering::Relaxed);
    }

    /// How long from `now` until another task might be accepted; zero if nothing is against it.
    pub(crate) fn closed_for(&self, now: Nanos) -> Nanos {
        Nanos(self.closed_until.load(Ordering::Relaxed)) - now
    }
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
    /// As it travels; another one after each new submission.
    pub(crate) id: TaskId,
    /// The id it got first, under which its ticket knows it.
    pub(crate) ticket: TaskId,
    /// In which of the client's lives it was sent last: how often this client had joined by then. 0:
    /// in none yet. [`GIVEN_BACK`]: the scheduler has given it back.
    pub(crate) life: u32,
    /// In which life it was sent last, also after it was given back: the clock of that life's scheduler
    /// stamps its answer.
    pub(crate) sent_in: u32,
    /// How often it was submitted again.
    pub(crate) resubmitted: u32,
    /// Position in [`Session::models`].
    pub(crate) model: u32,
    pub(crate) submitted: Nanos,
    pub(crate) deadline: Nanos,
    /// What the application says of its cost.
    pub(crate) cost: CostHint,
    /// Bytes of its input.
    pub(crate) input_bytes: u32,
}

/// [`Task::life`] of a task that a scheduler has given back: it needs a new id.
pub(crate) const GIVEN_BACK: u32 = u32::MAX;

/// Commands a slot can have in the queue at once: its submit, its cancel, and the cancel of the
/// task before. (A slot is reused only after its submit was taken out, and a ticket sends its
/// cancel before it releases the slot.)
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
    /// Submits are refused because of the loss. A submit looks here and takes no lock.
    refusing: AtomicBool,
    /// The scheduler is lost, and the client does not reconnect.
    given_up: AtomicBool,
    loss: Mutex<Option<Loss>>,
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
            refusing: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            loss: Mutex::new(None),
            farewell: OnceLock::new(),
        };
        (Arc::new(session), receiver)
    }

    /// Why a submit would be refused now.
    pub(crate) fn refusal(&self) -> Option<SubmitReason> {
        if self.leaving() {
            return Some(SubmitReason::ClientClosed);
        }
        self.refusing.load(Ordering::Acquire).then_some(SubmitReason::SchedulerLost)
    }

    /// Hands a filled input to the I/O thread. From here on the task has an outcome.
    pub(crate) fn submit(
        &self,
        input: InputMut,
        model: u32,
        cost: CostHint,
        submitted: Nanos,
        deadline: Nanos,
    ) -> TaskId {
        let input_bytes = input.len() as u32;
        let id = input.submit();
        self.cell(id).arm();
        self.counters.submitted.add(1);
        let (life, sent_in, resubmitted) = (0, 0, 0);
        let task = Task {
            id,
            ticket: id,
            life,
            sent_in,
            resubmitted,
            model,
            submitted,
            deadline,
            cost,
            input_bytes,
        };
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
            // The slot is this task's still, but the id may be one of before it was submitted again.
            let task = self.slabs.task(task.slot());
            self.slabs.complete(task);
            self.slabs.release(task);
        }
    }

    /// The application wants to leave, or has no handle left to submit with.
    pub(crate) fn begin_leaving(&self) {
        self.leaving.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(crate) fn leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// I/O thread: the scheduler is gone. After an orderly stop submits are still accepted and wait
    /// for the next one; otherwise they are refused for the time being.
    pub(crate) fn lose(&self, loss: Loss, orderly: bool) {
        let mut known = self.lock();
        // The first loss is the cause; what breaks afterwards is its effect.
        if known.is_none() {
            tracing::warn!(%loss, orderly, "the scheduler is lost");
            *known = Some(loss);
            self.refusing.store(!orderly, Ordering::Release);
        }
    }

    /// I/O thread: the scheduler stays away; submits are refused from now on.
    pub(crate) fn refuse_submits(&self) {
        self.refusing.store(true, Ordering::Release);
    }

    /// I/O thread: refuses all submits from now on.
    pub(crate) fn give_up(&self, loss: Loss) {
        tracing::warn!(%loss, "the scheduler is lost for good");
        *self.lock() = Some(loss);
        self.refusing.store(true, Ordering::Release);
        self.given_up.store(true, Ordering::Release);
    }

    /// I/O thread: the scheduler is back.
    pub(crate) fn regain(&self) {
        *self.lock() = None;
        self.refusing.store(false, Ordering::Release);
    }

    /// True if the scheduler is lost and the client does not reconnect.
    pub(crate) fn given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    pub(crate) fn loss(&self) -> Option<Loss> {
        self.lock().clone()
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
            self.lose(Loss::IoEnded, false);
        }
        self.cells.iter().for_each(|cell| self.end_leftover(cell));
    }

    fn lock(&self) -> MutexGuard<'_, Option<Loss>> {
        self.loss.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cell, not the slab, decides here which end comes first: [`Session::close`] has no task ids.
    fn end_leftover(&self, cell: &Cell) {
        let record = EndRecord::new(self.clock.now(), EndedBy::Client, 0);
        let (outcome, count) = match self.loss() {
            Some(_) => (Outcome::Failed(FailReason::SchedulerLost, record), &self.counters.failed),
            None => (Outcome::Dropped(DropReason::Cancelled, record), &self.counters.dropped),
        };
        if cell.end(outcome).is_ok() {
            count.add(1);
        }
    }
}

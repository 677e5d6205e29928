//! What the application's threads and the I/O thread share once the client has joined.
//!
//! Towards the I/O thread: commands, through a queue that the slots bound.
//! Towards the application: outcomes, through one [`OutcomeCell`] per slot. Invariant: a decided outcome or
//! [`Session::close`] ends each armed cell, even if the I/O thread dies.
//!
//! The list of models has a lock. Handles, inputs and tickets refer to their [`Model`] directly, so that no
//! submit and no outcome takes it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::task::Waker;

use baton_metrics::Metric;
use baton_rdma::{InputAhead, InputMut};
use baton_topo::Clock;
use baton_types::{CostHint, DropReason, FailReason, Nanos, TaskId};
use crossbeam_channel::{Receiver, Sender};

use crate::cell::OutcomeCell;
use crate::counters::LiveCounters;
use crate::end::End;
use crate::error::{LeaveError, Loss, SubmitReason};
use crate::io_thread::IoHandle;
use crate::metrics::shown;
use crate::outcome::{EndRecord, EndedBy};
use crate::served::Model;

/// From an application thread to the I/O thread.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    Submit(Task),
    Cancel(TaskId),
    /// The input of a task that was submitted ahead of it is there. By the ticket's id.
    Written(TaskId),
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
    /// [`Model::place`].
    pub(crate) model: u32,
    pub(crate) submitted: Nanos,
    pub(crate) deadline: Nanos,
    /// What the application says of it.
    pub(crate) asked: Asked,
    /// Bytes of its input.
    pub(crate) input_bytes: u32,
    /// It was submitted ahead of its input.
    pub(crate) ahead: bool,
    /// The application wants it no more.
    pub(crate) is_cancelled: bool,
}

impl Task {
    /// One that was just submitted, with its two moments.
    pub(crate) fn new(
        id: TaskId,
        model: u32,
        (submitted, deadline): (Nanos, Nanos),
        asked: Asked,
        input_bytes: u32,
    ) -> Self {
        let (life, sent_in, resubmitted, ahead, is_cancelled) = (0, 0, 0, false, false);
        Self {
            id,
            ticket: id,
            life,
            sent_in,
            resubmitted,
            model,
            submitted,
            deadline,
            asked,
            input_bytes,
            ahead,
            is_cancelled,
        }
    }
}

/// What an application says of a task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// Of its cost.
    pub(crate) cost: CostHint,
    /// How often the answers of the variant that executes it must be right, in 1/100,000.
    pub(crate) accuracy_min: u32,
}

/// [`Task::life`] of a task that a scheduler or a backend has given back: it needs a new id.
pub(crate) const GIVEN_BACK: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Session {
    /// Every model that has a slab, sorted by name: also those that are not usable yet, and removed ones whose
    /// slots are not all free.
    models: RwLock<Vec<Arc<Model>>>,
    pub(crate) slots_per_model: u32,
    pub(crate) clock: Clock,
    pub(crate) counters: Arc<LiveCounters>,
    commands: Sender<Command>,
    io: IoHandle,
    leaving: AtomicBool,
    /// Submits are refused because of the loss. A submit looks here and takes no lock.
    refusing: AtomicBool,
    /// The scheduler is lost, and the client does not reconnect.
    given_up: AtomicBool,
    loss: Mutex<Option<Loss>>,
    farewell: OnceLock<Result<(), LeaveError>>,
    /// Wakers of futures that wait for the end of the I/O thread; `None` once it has ended.
    awaiting_end: Mutex<Option<Vec<Waker>>>,
}

impl Session {
    /// The session, and the I/O thread's end of its queue.
    pub(crate) fn new(
        slots_per_model: u32,
        clock: Clock,
        counters: Arc<LiveCounters>,
        io: IoHandle,
    ) -> (Arc<Self>, Receiver<Command>) {
        // The slots are its bound, and their number changes with the models. A slot has at most six commands in it: its
        // submit, its cancel, that its input is written or a cancel in place of that, and the latter three of the task before. A
        // slot is reused only after its submit was taken out, and a ticket sends its cancel before it releases the slot.
        let (commands, receiver) = crossbeam_channel::unbounded();
        let session = Self {
            models: RwLock::default(),
            slots_per_model,
            clock,
            counters,
            commands,
            io,
            leaving: AtomicBool::new(false),
            refusing: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            loss: Mutex::new(None),
            farewell: OnceLock::new(),
            awaiting_end: Mutex::new(Some(Vec::new())),
        };
        (Arc::new(session), receiver)
    }

    /// I/O thread: a model has a slab from now on.
    pub(crate) fn add(&self, model: Arc<Model>) {
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        let at = models.partition_point(|other| *other.name <= *model.name);
        models.insert(at, model);
    }

    /// I/O thread: the application can no longer submit to a model, and it has no task.
    pub(crate) fn forget(&self, model: &Arc<Model>) {
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        models.retain(|other| !Arc::ptr_eq(other, model));
    }

    /// The models that can be used now, by name.
    pub(crate) fn usable(&self) -> Vec<Arc<Model>> {
        self.models().iter().filter(|model| model.is_usable()).cloned().collect()
    }

    /// How many models can be used, or have tasks that were submitted before.
    #[cfg(test)]
    pub(crate) fn known(&self) -> usize {
        self.models().len()
    }

    /// The usable model of this name.
    pub(crate) fn model(&self, name: &str) -> Option<Arc<Model>> {
        let models = self.models();
        let first = models.partition_point(|model| *model.name < *name);
        let called = models[first..].iter().take_while(|model| *model.name == *name);
        called.into_iter().find(|model| model.is_usable()).cloned()
    }

    /// Slots of all models that are not free.
    pub(crate) fn slots_in_use(&self) -> u32 {
        self.models().iter().map(|model| model.slabs.in_use()).sum()
    }

    fn models(&self) -> RwLockReadGuard<'_, Vec<Arc<Model>>> {
        self.models.read().unwrap_or_else(PoisonError::into_inner)
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
        model: &Model,
        input: InputMut,
        asked: Asked,
        submitted: Nanos,
        deadline: Nanos,
    ) -> TaskId {
        let input_bytes = input.len() as u32;
        let id = input.submit();
        let task = Task::new(id, model.place, (submitted, deadline), asked, input_bytes);
        self.hand_over(model, task);
        id
    }

    /// The same, before the input is written.
    pub(crate) fn submit_ahead(
        &self,
        model: &Model,
        input: InputMut,
        asked: Asked,
        submitted: Nanos,
        deadline: Nanos,
    ) -> InputAhead {
        let input = input.submit_ahead();
        let (id, input_bytes) = (input.task(), input.len() as u32);
        let task = Task::new(id, model.place, (submitted, deadline), asked, input_bytes);
        self.counters.ahead.add(1);
        self.hand_over(model, Task { ahead: true, ..task });
        input
    }

    pub(crate) fn hand_over(&self, model: &Model, task: Task) {
        model.cell(task.id).arm();
        self.counters.submitted.add(1);
        if self.commands.try_send(Command::Submit(task)).is_err() {
            // The I/O thread has just ended.
            self.end_leftover(model.cell(task.id));
        }
        self.send_commands();
    }

    /// The input of a task that was submitted ahead is there.
    pub(crate) fn written(&self, task: TaskId) {
        // Refused only if the I/O thread has ended, and then the outcome is there.
        let _ = self.commands.try_send(Command::Written(task));
        self.send_commands();
    }

    fn send_commands(&self) {
        if self.io.see_to_commands() {
            self.counters.sent_by_caller.add(1);
        }
    }

    /// Asks for a task's end. Its outcome follows as ever.
    pub(crate) fn cancel(&self, task: TaskId) {
        self.counters.cancels.add(1);
        // Refused only if the I/O thread has ended, and then the outcome is there.
        let _ = self.commands.try_send(Command::Cancel(task));
        self.send_commands();
    }

    pub(crate) fn backends(&self) -> u32 {
        self.counters.backends.load(Ordering::Relaxed)
    }

    /// What a client shows to Prometheus.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let models = self.usable().into_iter();
        let models: Vec<_> =
            models.map(|model| (model.name.to_string(), model.latencies.values())).collect();
        let levels = [self.slots_in_use(), self.backends()];
        shown(&self.counters.snapshot(), levels, &models)
    }

    /// Hands out the end of a task that is decided ([`baton_rdma::SlabSet::complete`]) already. Returns the waker of the
    /// one who waits for it.
    #[must_use = "the one who waits sleeps on"]
    pub(crate) fn deliver(&self, model: &Model, task: TaskId, end: End) -> Option<Waker> {
        self.counters.count_end(&end);
        if let End::Completed(timing) = &end {
            model.latencies.record(timing);
        }
        let listener = model.cell(task).end_silently(&end);
        if listener.is_none() {
            model.recycle(task);
        }
        listener.flatten()
    }

    /// The application wants to leave, or has no handle left to submit with.
    pub(crate) fn begin_leaving(&self) {
        self.leaving.store(true, Ordering::Release);
        self.io.wake();
        self.models().iter().for_each(|model| model.line.closed());
    }

    /// How the leaving went, if the I/O thread has ended; otherwise `waker` is called once it has.
    pub(crate) fn farewell_or_listen(&self, waker: &Waker) -> Option<Result<(), LeaveError>> {
        let mut awaiting = self.awaiting_end.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(wakers) = &mut *awaiting else { return Some(self.farewell()) };
        if !wakers.iter().any(|other| other.will_wake(waker)) {
            wakers.push(waker.clone());
        }
        None
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
        for model in self.models().iter() {
            model.cells().iter().for_each(|cell| self.end_leftover(cell));
        }
        let awaiting = self.awaiting_end.lock().unwrap_or_else(PoisonError::into_inner).take();
        awaiting.into_iter().flatten().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Loss>> {
        self.loss.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cell, not the slab, decides here which end comes first: [`Session::close`] has no task ids.
    fn end_leftover(&self, cell: &OutcomeCell) {
        let record = EndRecord::new(self.clock.now(), EndedBy::Client, 0);
        let (end, count) = match self.loss() {
            Some(_) => (End::Failed(FailReason::SchedulerLost, record), &self.counters.failed),
            None => (End::Dropped(DropReason::Cancelled, record), &self.counters.dropped),
        };
        if cell.end(&end) {
            count.add(1);
        }
    }
}

//! One GPU slot of this backend: its waiting actions, its batch slots with their memory, its executor.
//!
//! Owned by the I/O thread. Rows belong to the transport while a batch slot is Fetching, inputs and
//! outputs to the executor while it is Executing, and to the I/O thread otherwise.

use baton_core::{ModelId, Nanos};
use baton_rdma::wire::ActionKind;
use baton_rdma::{NoMemory, Transport};

use crate::action::{ACTIONS_MAX, Action, ActionQueue};
use crate::config::{BATCH_SLOTS, BackendConfig};
use crate::execute::{BatchJob, Executor, ExecutorDied, Job, JobDone};
use crate::memory::{Memory, Room};
use crate::residency::Residency;
use crate::slot::{BatchSlot, Execution, Phase};

/// A GPU slot.
#[derive(Debug)]
pub(crate) struct Gpu<E> {
    /// Actions without a batch slot.
    pub(crate) actions: ActionQueue,
    /// Batches being fetched, waiting, executing or being answered.
    pub(crate) slots: Vec<BatchSlot>,
    /// Memory of each batch slot.
    pub(crate) memory: Vec<Memory>,
    /// Which models the executor holds.
    residency: Residency,
    pub(crate) executor: E,
    /// A job is with the executor.
    is_busy: bool,
    /// The executor has died, and what it had with it.
    is_dead: bool,
}

impl<E: Executor> Gpu<E> {
    /// # Errors
    /// The machine does not give the memory of its batches.
    pub(crate) fn new(config: &BackendConfig, executor: E) -> Result<Self, NoMemory> {
        let (batch_max, room) = (config.batch_max(), Room::at_start(config));
        Ok(Self {
            actions: ActionQueue::new(ACTIONS_MAX + BATCH_SLOTS, batch_max),
            slots: (0..BATCH_SLOTS).map(|_| BatchSlot::new(batch_max)).collect(),
            memory: (0..BATCH_SLOTS).map(|_| Memory::new(room)).collect::<Result<_, _>>()?,
            residency: Residency::new(config.models.iter().map(|model| model.id)),
            executor,
            is_busy: false,
            is_dead: false,
        })
    }

    /// Where an action of this kind waits.
    pub(crate) fn queue(&mut self, kind: ActionKind) -> &mut ActionQueue {
        match kind {
            ActionKind::Infer => &mut self.actions,
            ActionKind::Load | ActionKind::Unload => self.residency.waiting(),
        }
    }

    /// The executor is to take in the model that it has loaded aside.
    pub(crate) fn install(&mut self, model: ModelId) {
        self.residency.install(model);
    }

    /// The executor is to forget a model, once no batch of it is left.
    pub(crate) fn remove(&mut self, model: ModelId) {
        self.residency.remove(model);
    }

    /// True until the executor has forgotten it.
    pub(crate) fn is_removing(&self, model: ModelId) -> bool {
        self.residency.is_removing(model)
    }

    /// Whether batches of the model can start.
    pub(crate) fn holds(&self, model: ModelId) -> bool {
        self.residency.holds(model)
    }

    /// Whether every batch slot has room for such a batch.
    pub(crate) fn has_room(&self, room: Room) -> bool {
        self.memory.iter().all(|memory| memory.has(room))
    }

    /// Bytes of all batch slots once they have.
    pub(crate) fn bytes_with(&self, room: Room) -> usize {
        self.memory.iter().fold(0, |sum, memory| sum.saturating_add(memory.bytes_with(room)))
    }

    /// Makes room in one batch slot that is free and has too little. Returns whether there was one.
    ///
    /// # Errors
    /// Why there is no more memory, and what to do.
    pub(crate) fn grow<T: Transport>(
        &mut self,
        room: Room,
        transport: &mut T,
    ) -> Result<bool, String> {
        let mut slots = self.slots.iter_mut().zip(&mut self.memory);
        let small = |(slot, memory): &(&mut BatchSlot, &mut Memory)| {
            slot.phase() == Phase::Free && !memory.has(room)
        };
        let Some((slot, memory)) = slots.find(small) else { return Ok(false) };
        memory.grow(room, transport)?;
        slot.reserve(room.rows);
        self.actions.reserve(room.rows);
        Ok(true)
    }

    /// A slot in this phase.
    pub(crate) fn slot_in(&self, phase: Phase) -> Option<usize> {
        self.slots.iter().position(|slot| slot.phase() == phase)
    }

    /// True while a batch executes or its answers are not all out. What a dead executor had will
    /// never be answered here: the sooner the scheduler learns of it, the more of it can be saved.
    pub(crate) fn is_committed(&self) -> bool {
        self.slots.iter().any(|slot| match slot.phase() {
            Phase::Executing => !self.is_dead,
            Phase::Replying => true,
            Phase::Free | Phase::Fetching | Phase::Ready => false,
        })
    }

    /// True when it has nothing to do or to answer.
    pub(crate) fn is_idle(&self) -> bool {
        let nothing_waits = self.actions.is_empty() && self.residency.is_idle();
        nothing_waits && self.slots.iter().all(|slot| slot.phase() == Phase::Free)
    }

    /// Takes what the executor has finished. A batch has its answers from now on; a LOAD or UNLOAD comes with its action,
    /// to be reported; a model that was added is held, one that was removed is gone.
    ///
    /// # Errors
    /// The executor has died; returned once.
    pub(crate) fn collect(&mut self) -> Result<Option<(JobDone, Option<Action>)>, ExecutorDied> {
        if self.is_dead {
            return Ok(None);
        }
        let polled = self.executor.poll();
        self.is_dead = polled.is_err();
        let Some(mut done) = polled? else { return Ok(None) };
        self.is_busy = false;
        let Some(batch) = done.batch.take() else {
            let action = self.residency.finish(done.result.is_ok());
            return Ok(Some((done, action)));
        };
        let memory = &mut self.memory[batch.slot];
        (memory.outputs, memory.lens) = (batch.outputs, batch.lens);
        self.slots[batch.slot].finish(Execution {
            started: done.started,
            finished: done.finished,
            succeeded: done.result.is_ok(),
        });
        Ok(Some((done, None)))
    }

    /// Starts a change of the catalogue, or what may start first, a batch that is ready or a LOAD or UNLOAD, if the
    /// executor is free. Returns whether anything was started.
    ///
    /// # Errors
    /// The executor has died.
    pub(crate) fn start_next(&mut self, now: Nanos) -> Result<bool, ExecutorDied> {
        if self.is_busy || self.is_dead {
            return Ok(false);
        }
        if let Some(job) = self.next_change() {
            return self.start_job(job);
        }
        match (self.next_ready(), self.residency.earliest()) {
            (None, None) => Ok(false),
            (Some((index, batch)), other) if other.is_none_or(|other| batch < other) => {
                self.start_batch(index, now)
            }
            _ => self.start_other(),
        }
    }

    fn next_change(&mut self) -> Option<Job> {
        let Self { residency, actions, slots, .. } = self;
        let in_slot = |model, slot: &BatchSlot| {
            slot.action().is_some_and(|action| action.model.local == model)
        };
        residency.start_change(|model| {
            actions.names(model) || slots.iter().any(|slot| in_slot(model, slot))
        })
    }

    fn start_other(&mut self) -> Result<bool, ExecutorDied> {
        self.residency.start().map_or(Ok(false), |job| self.start_job(job))
    }

    fn start_job(&mut self, job: Job) -> Result<bool, ExecutorDied> {
        let submitted = self.executor.submit(job);
        (self.is_busy, self.is_dead) = (submitted.is_ok(), submitted.is_err());
        submitted.map(|()| true)
    }

    /// A batch that lost every row needs no executor and passes through.
    fn start_batch(&mut self, index: usize, now: Nanos) -> Result<bool, ExecutorDied> {
        let Self { slots, memory, executor, is_busy, is_dead, .. } = self;
        let (slot, memory) = (&mut slots[index], &mut memory[index]);
        let model = slot.action().expect("a ready slot has an action").model;
        let batch = slot.start(|from, to| {
            let moved = memory.inputs.move_row(from, to, model.input_bytes);
            assert!(moved, "a ready batch has no row lent");
        });
        if batch == 0 {
            slot.finish(Execution { started: now, finished: now, succeeded: true });
            return Ok(true);
        }
        let rows = memory.inputs.rows(batch, model.input_bytes);
        let mut outputs = std::mem::take(&mut memory.outputs);
        outputs.reset(batch, model.output_bytes);
        let mut lens = std::mem::take(&mut memory.lens);
        lens.clear();
        lens.extend(slot.executing().map(|task| task.input_bytes));
        let submitted = executor.submit(Job::Infer(BatchJob {
            slot: index,
            model: model.local,
            rows: rows.expect("a ready batch has no row lent"),
            stride: model.input_bytes,
            lens,
            outputs,
        }));
        (*is_busy, *is_dead) = (submitted.is_ok(), submitted.is_err());
        submitted.map(|()| true)
    }

    /// Takes out an action that can no longer start in time and of which no outcome has been sent:
    /// one that waits for a batch slot or for the executor.
    pub(crate) fn pop_expired(&mut self, now: Nanos) -> Option<Action> {
        let waiting = self.actions.pop_expired(now);
        waiting.or_else(|| self.residency.waiting().pop_expired(now)).or_else(|| {
            let expired = |slot: &&mut BatchSlot| {
                slot.phase() == Phase::Ready
                    && slot.action().is_some_and(|action| action.expired(now))
            };
            self.slots.iter_mut().find(expired).map(BatchSlot::give_back)
        })
    }

    /// True while READs into a batch's memory are outstanding.
    pub(crate) fn is_fetching(&self) -> bool {
        self.slots.iter().any(|slot| slot.phase() == Phase::Fetching)
    }

    /// Abandons what waits: LOADs, UNLOADs, and the batches that are neither fetching nor executing nor being answered.
    /// Returns the number of these batches.
    pub(crate) fn abandon(&mut self) -> u64 {
        let ready = self.slots.iter_mut().filter(|slot| slot.phase() == Phase::Ready);
        let mut given_up: Vec<Action> = ready.map(BatchSlot::give_back).collect();
        given_up.extend(std::iter::from_fn(|| self.actions.pop()));
        while self.residency.waiting().pop().is_some() {}
        let abandoned = given_up.len() as u64;
        given_up.into_iter().for_each(|action| self.actions.recycle(action.tasks));
        abandoned
    }

    /// When a batch must be aborted, given back, or checked again.
    pub(crate) fn next_timer(&self) -> Option<Nanos> {
        let bounds = self.slots.iter().filter_map(|slot| match slot.phase() {
            Phase::Fetching => slot.fetch_bound(),
            Phase::Ready => slot.action().map(Action::expires_at),
            _ => None,
        });
        let waiting = [self.actions.next_expiry(), self.residency.next_expiry()];
        bounds.chain(waiting.into_iter().flatten()).min()
    }

    /// The ready batch that may start first, of those whose model the executor holds, and when it may.
    fn next_ready(&self) -> Option<(usize, Nanos)> {
        let ready = self.slots.iter().enumerate().filter(|(_, slot)| slot.phase() == Phase::Ready);
        let actions = ready.filter_map(|(index, slot)| Some((index, slot.action()?)));
        let held = actions.filter(|(_, action)| self.residency.holds(action.model.local));
        held.map(|(index, action)| (index, action.earliest)).min_by_key(|&(_, earliest)| earliest)
    }
}

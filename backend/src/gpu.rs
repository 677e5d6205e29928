//! One GPU slot of this backend: its waiting actions, its batch slots with their memory, its executor.
//!
//! Owned by the I/O thread. Rows belong to the transport while a batch slot is Fetching, inputs and
//! outputs to the executor while it is Prepared, Withdrawing or Executing, and to the I/O thread otherwise.

use baton_rdma::{NoMemory, Transport};
use baton_types::{ModelId, Nanos};

use crate::action::{ACTIONS_MAX, Action, ActionQueue};
use crate::config::{BATCH_SLOTS, BackendConfig};
use crate::counters::Counters;
use crate::execute::{
    BatchBack, BatchEnd, BatchJob, EngineError, Event, Executor, ExecutorDied, ModelJob,
};
use crate::loader::Loader;
use crate::memory::{Memory, Room};
use crate::models::Models;
use crate::residency::Residency;
use crate::slot::{BatchSlot, Execution, Phase};
use crate::submitted::Submitted;

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
    pub(crate) residency: Residency,
    pub(crate) executor: E,
    /// What copies weights to it; `None`: it holds every model.
    pub(crate) loader: Option<Loader>,
    /// Batches that the executor has to execute.
    submitted: Submitted,
    /// The executor is busy with a model.
    performs: bool,
    /// The executor has died, and what it had with it.
    is_dead: bool,
}

/// What came back from the executor.
#[derive(Debug)]
pub(crate) enum Collected {
    /// A batch, executed: it is to be answered.
    Executed(Result<(), EngineError>),
    /// A batch that could not start in time. No outcome has been sent.
    Expired(Action),
    /// A batch that was withdrawn, or given up before.
    Unexecuted,
    /// A model has come or gone.
    Job,
}

impl<E: Executor> Gpu<E> {
    /// # Errors
    /// The machine does not give the memory of its batches.
    pub(crate) fn new(config: &BackendConfig, executor: E) -> Result<Self, NoMemory> {
        let (batch_max, room) = (config.batch_max(), Room::at_start(config));
        let memory = || Memory::new(room, executor.memory());
        Ok(Self {
            actions: ActionQueue::new(ACTIONS_MAX + BATCH_SLOTS, batch_max),
            slots: (0..BATCH_SLOTS).map(|_| BatchSlot::new(batch_max)).collect(),
            memory: (0..BATCH_SLOTS).map(|_| memory()).collect::<Result<_, _>>()?,
            residency: Residency::new(config.loaded_at_start().map(|model| model.id)),
            executor,
            loader: config.weights_cache.map(Loader::new),
            submitted: Submitted::new(),
            performs: false,
            is_dead: false,
        })
    }

    /// The executor is to take in the model that it has loaded aside.
    pub(crate) fn install(&mut self, model: ModelId) {
        self.residency.install(model);
    }

    /// The executor is to forget a model, once no batch of it is left.
    pub(crate) fn remove(&mut self, model: ModelId) {
        self.residency.remove(model);
    }

    /// True until the executor has forgotten a model that was removed, and no copy of it is under way.
    pub(crate) fn has_left_over(&self, model: ModelId) -> bool {
        let copies = self.loader.as_ref().is_some_and(|loader| loader.copies(model));
        copies || self.residency.is_leaving(model)
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
        memory.grow(room, self.executor.memory(), transport)?;
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
            Phase::Prepared | Phase::Withdrawing => false,
        })
    }

    /// True when it has nothing to do or to answer.
    pub(crate) fn is_idle(&self) -> bool {
        let nothing_waits = self.actions.is_empty() && self.residency.is_idle();
        nothing_waits && self.slots.iter().all(|slot| slot.phase() == Phase::Free)
    }

    /// Takes what has come back next.
    ///
    /// # Errors
    /// The executor has died; returned once.
    pub(crate) fn collect(&mut self, now: Nanos) -> Result<Option<Collected>, ExecutorDied> {
        if self.is_dead {
            return Ok(None);
        }
        let polled = self.executor.poll();
        self.is_dead = polled.is_err();
        Ok(polled?.map(|event| match event {
            Event::Batch(back) => self.take_back(back, now),
            Event::Job => {
                self.performs = false;
                self.residency.finish();
                Collected::Job
            }
        }))
    }

    /// A batch has its answers from now on, or is as it was before it was prepared.
    fn take_back(&mut self, back: BatchBack, now: Nanos) -> Collected {
        let (slot, memory) = (&mut self.slots[back.slot], &mut self.memory[back.slot]);
        (memory.outputs, memory.lens) = (back.outputs, back.lens);
        match back.end {
            // A device may have begun it all the same; no answer of it counts any more.
            BatchEnd::Executed { .. } | BatchEnd::Expired if slot.is_given_up() => {
                self.submitted.pop(back.slot, now);
                slot.release();
                Collected::Unexecuted
            }
            BatchEnd::Executed { variant, started, finished, result } => {
                self.submitted.pop(back.slot, finished);
                let succeeded = result.is_ok();
                slot.finish(Execution { variant, started, finished, succeeded }, now);
                Collected::Executed(result)
            }
            BatchEnd::Expired => {
                self.submitted.pop(back.slot, now);
                slot.come_back();
                Collected::Expired(slot.give_back())
            }
            BatchEnd::Withdrawn => {
                slot.come_back();
                Collected::Unexecuted
            }
        }
    }

    /// Prepares a batch that is ready; or lets a model come or go, or submits a prepared batch, if it is its turn. Returns
    /// whether there was anything to do.
    pub(crate) fn start_next(
        &mut self,
        now: Nanos,
        models: &Models,
        counters: &mut Counters,
    ) -> bool {
        if self.is_dead {
            return false;
        }
        if let Some((index, _)) = self.next_in(Phase::Ready) {
            self.prepare(index);
            return true;
        }
        match (self.performs, self.submitted.is_empty()) {
            (true, _) => false,
            (false, true) => self.start_idle(now, models),
            (false, false) => self.start_behind(now, models, counters),
        }
    }

    /// Nothing executes: models come and go first.
    fn start_idle(&mut self, now: Nanos, models: &Models) -> bool {
        if let Some(job) = self.next_change() {
            self.performs = true;
            self.executor.perform(job);
            return true;
        }
        let next = self.next_in(Phase::Prepared);
        next.inspect(|&(index, _)| self.submit(index, now, models)).is_some()
    }

    /// A batch executes. What runs alone goes before the next one, so it keeps that from being submitted.
    fn start_behind(&mut self, now: Nanos, models: &Models, counters: &mut Counters) -> bool {
        let Some((index, _)) = self.next_in(Phase::Prepared) else { return false };
        let slot = &self.slots[index];
        let in_window = slot.action().is_some_and(|action| self.submitted.may_follow(action, now));
        if !in_window
            || slot.executed_rows() == 0
            || self.residency.is_change_due(|model| self.uses(model))
        {
            return false;
        }
        counters.batches_behind += 1;
        self.submit(index, now, models);
        true
    }

    fn next_change(&mut self) -> Option<ModelJob> {
        let Self { residency, actions, slots, .. } = self;
        residency.start(|model| is_used(actions, slots, model))
    }

    fn uses(&self, model: ModelId) -> bool {
        is_used(&self.actions, &self.slots, model)
    }

    /// A batch that lost every row passes through.
    fn submit(&mut self, index: usize, now: Nanos, models: &Models) {
        let slot = &mut self.slots[index];
        if slot.executed_rows() == 0 {
            slot.submit();
            let variant = slot.action().map_or(0, |action| action.start_by.planned());
            slot.finish(Execution { variant, started: now, finished: now, succeeded: true }, now);
            return;
        }
        self.executor.submit(index);
        slot.submit();
        let Action { model, start_by, .. } = slot.action().expect("a batch has an action");
        let latency = models.latency(model.local, start_by.planned(), slot.executed_rows());
        self.submitted.push(index, latency, now);
    }

    /// The executor is given a batch, unless it lost every row.
    fn prepare(&mut self, index: usize) {
        let (slot, memory) = (&mut self.slots[index], &mut self.memory[index]);
        let action = slot.action().expect("a ready slot has an action");
        let (model, start_by) = (action.model, action.start_by);
        let batch = slot.prepare(|from, to| {
            let moved = memory.inputs.move_row(from, to, model.input_bytes);
            assert!(moved, "a ready batch has no row lent");
        });
        if batch == 0 {
            return;
        }
        let rows = memory.inputs.rows(batch, model.input_bytes);
        let mut outputs = std::mem::take(&mut memory.outputs);
        outputs.reset(batch, model.output_bytes);
        let mut lens = std::mem::take(&mut memory.lens);
        lens.clear();
        lens.extend(slot.executing().map(|task| task.input_bytes));
        self.executor.prepare(BatchJob {
            slot: index,
            model: model.local,
            rows: rows.expect("a ready batch has no row lent"),
            stride: model.input_bytes,
            lens,
            outputs,
            start_by,
        });
    }

    /// Asks for the prepared batches back that can no longer start in time or are to be prepared anew; with `all` for every
    /// one. Returns how many.
    pub(crate) fn withdraw(&mut self, all: bool, now: Nanos) -> usize {
        if self.is_dead {
            return 0;
        }
        let mut withdrawn = 0;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let is_due = |action: &Action| all || slot.is_outdated() || action.expired(now);
            if slot.phase() != Phase::Prepared || !slot.action().is_some_and(is_due) {
                continue;
            }
            slot.withdraw();
            match slot.executed_rows() {
                // The executor never had it.
                0 => slot.come_back(),
                _ => self.executor.withdraw(index),
            }
            withdrawn += 1;
        }
        withdrawn
    }

    /// Takes out an action that can no longer start in time and of which no outcome has been sent: one that waits for a batch
    /// slot, for the executor, or there behind another batch. Call after everything that has come back was collected: then a
    /// batch that counts as waiting has not started.
    pub(crate) fn pop_expired(&mut self, now: Nanos) -> Option<Action> {
        let waiting = self.actions.pop_expired(now);
        waiting.or_else(|| {
            let expired = |slot: &&mut BatchSlot| {
                slot.phase() == Phase::Ready
                    && slot.action().is_some_and(|action| action.expired(now))
            };
            let ready = self.slots.iter_mut().find(expired).map(BatchSlot::give_back);
            ready.or_else(|| self.give_up_behind(now))
        })
    }

    fn give_up_behind(&mut self, now: Nanos) -> Option<Action> {
        let Self { submitted, slots, .. } = self;
        let expired = |slot: &BatchSlot| slot.action().is_some_and(|action| action.expired(now));
        let late = submitted.behind().find(|&index| expired(&slots[index]))?;
        Some(slots[late].give_up())
    }

    /// True while READs into a batch's memory are outstanding, or the executor has a batch that is not to be executed, or
    /// takes a model in or gives one up.
    pub(crate) fn is_lent(&self) -> bool {
        let lent = [Phase::Fetching, Phase::Prepared, Phase::Withdrawing];
        self.performs || self.slots.iter().any(|slot| lent.contains(&slot.phase()))
    }

    /// Abandons what waits: LOADs, and the batches that neither the transport nor the executor has and that are not being answered.
    /// Returns the number of these batches.
    pub(crate) fn abandon(&mut self) -> u64 {
        let ready = self.slots.iter_mut().filter(|slot| slot.phase() == Phase::Ready);
        let mut given_up: Vec<Action> = ready.map(BatchSlot::give_back).collect();
        given_up.extend(std::iter::from_fn(|| self.actions.pop()));
        self.loader.iter_mut().for_each(Loader::abandon);
        let abandoned = given_up.len() as u64;
        given_up.into_iter().for_each(|action| self.actions.recycle(action.tasks));
        abandoned
    }

    /// When a batch must be aborted, given back, or checked again.
    pub(crate) fn next_timer(&self) -> Option<Nanos> {
        let bounds = self.slots.iter().filter_map(|slot| match slot.phase() {
            Phase::Fetching => slot.fetch_bound(),
            Phase::Ready | Phase::Prepared => slot.action().map(Action::expires_at),
            _ => None,
        });
        let behind = self.submitted.behind().filter_map(|index| self.slots[index].action());
        let bounds = bounds.chain(behind.map(Action::expires_at));
        let loads = self.loader.as_ref().and_then(Loader::next_timer);
        let waiting = [self.actions.next_expiry(), loads];
        bounds.chain(waiting.into_iter().flatten()).min()
    }

    /// Of the batches in this phase whose model the executor holds, the one that may start first, and when it may.
    fn next_in(&self, phase: Phase) -> Option<(usize, Nanos)> {
        let slots = self.slots.iter().enumerate().filter(|(_, slot)| slot.phase() == phase);
        let actions = slots.filter_map(|(index, slot)| Some((index, slot.action()?)));
        let held = actions.filter(|(_, action)| self.residency.holds(action.model.local));
        held.map(|(index, action)| (index, action.earliest)).min_by_key(|&(_, earliest)| earliest)
    }
}

/// Whether an action on the model waits or is in a batch slot.
fn is_used(actions: &ActionQueue, slots: &[BatchSlot], model: ModelId) -> bool {
    let in_slot =
        |slot: &BatchSlot| slot.action().is_some_and(|action| action.model.local == model);
    actions.names(model) || slots.iter().any(in_slot)
}

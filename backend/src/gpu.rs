//! One GPU slot of this backend: its waiting actions, its batch slots with their memory, its executor.
//!
//! Owned by the I/O thread. Rows belong to the transport while a batch slot is Fetching, inputs and
//! outputs to the executor while it is Executing, and to the I/O thread otherwise.

use std::sync::Arc;

use baton_core::Nanos;
use baton_rdma::BatchBuffer;

use crate::action::{ACTIONS_MAX, Action, ActionQueue};
use crate::config::{BATCH_SLOTS, BackendConfig};
use crate::execute::{Executor, ExecutorDied, Job, JobDone, Outputs};
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
    executor: E,
    /// A job is with the executor.
    is_busy: bool,
    /// The executor has died, and what it had with it.
    is_dead: bool,
}

/// The memory of one batch slot, sized for the largest batch of any model.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Rows as they are pulled.
    pub(crate) inputs: Arc<BatchBuffer>,
    /// How long each row is; empty while the executor has them.
    pub(crate) lens: Vec<u32>,
    /// Answers as the engine writes them; empty while the executor has them.
    pub(crate) outputs: Outputs,
}

impl<E: Executor> Gpu<E> {
    pub(crate) fn new(config: &BackendConfig, executor: E) -> Self {
        let batch_max = config.batch_max();
        let memory = || Memory {
            inputs: BatchBuffer::new(config.input_bytes()),
            lens: Vec::with_capacity(batch_max as usize),
            outputs: Outputs::with_capacity(batch_max, config.output_bytes()),
        };
        Self {
            actions: ActionQueue::new(ACTIONS_MAX + BATCH_SLOTS, batch_max),
            slots: (0..BATCH_SLOTS).map(|_| BatchSlot::new(batch_max)).collect(),
            memory: (0..BATCH_SLOTS).map(|_| memory()).collect(),
            executor,
            is_busy: false,
            is_dead: false,
        }
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

    /// True when it has no batch at all.
    pub(crate) fn is_idle(&self) -> bool {
        self.actions.is_empty() && self.slots.iter().all(|slot| slot.phase() == Phase::Free)
    }

    /// Takes the finished batch from the executor; returns its slot and the result.
    ///
    /// # Errors
    /// The executor has died; returned once.
    pub(crate) fn collect(&mut self) -> Result<Option<JobDone>, ExecutorDied> {
        if self.is_dead {
            return Ok(None);
        }
        let polled = self.executor.poll();
        self.is_dead = polled.is_err();
        let Some(mut done) = polled? else { return Ok(None) };
        self.is_busy = false;
        let memory = &mut self.memory[done.slot];
        memory.outputs = std::mem::take(&mut done.outputs);
        memory.lens = std::mem::take(&mut done.lens);
        self.slots[done.slot].finish(Execution {
            started: done.started,
            finished: done.finished,
            succeeded: done.result.is_ok(),
        });
        Ok(Some(done))
    }

    /// Starts the ready batch with the smallest `earliest`, if the executor is free. A batch that
    /// lost every row needs no executor and passes through. Returns whether a batch left Ready.
    ///
    /// # Errors
    /// The executor has died.
    pub(crate) fn start_next(&mut self, now: Nanos) -> Result<bool, ExecutorDied> {
        if self.is_busy || self.is_dead {
            return Ok(false);
        }
        let Some(index) = self.next_ready() else { return Ok(false) };
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
        let submitted = executor.submit(Job {
            slot: index,
            model: model.local,
            rows: rows.expect("a ready batch has no row lent"),
            stride: model.input_bytes,
            lens,
            outputs,
        });
        (*is_busy, *is_dead) = (submitted.is_ok(), submitted.is_err());
        submitted.map(|()| true)
    }

    /// Takes out a batch that can no longer start in time and of which no outcome has been sent:
    /// one that waits for a batch slot or for the executor.
    pub(crate) fn pop_expired(&mut self, now: Nanos) -> Option<Action> {
        self.actions.pop_expired(now).or_else(|| {
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

    /// Abandons the batches that are neither fetching nor executing nor being answered; returns their number.
    pub(crate) fn abandon(&mut self) -> u64 {
        let ready = self.slots.iter_mut().filter(|slot| slot.phase() == Phase::Ready);
        let mut given_up: Vec<Action> = ready.map(BatchSlot::give_back).collect();
        given_up.extend(std::iter::from_fn(|| self.actions.pop()));
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
        bounds.chain(self.actions.next_expiry()).min()
    }

    fn next_ready(&self) -> Option<usize> {
        let ready = self.slots.iter().enumerate().filter(|(_, slot)| slot.phase() == Phase::Ready);
        ready
            .min_by_key(|(_, slot)| slot.action().map(|action| action.earliest))
            .map(|(index, _)| index)
    }
}

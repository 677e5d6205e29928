//! What each GPU slot has to execute, batches numbered in the order of sealing.

use std::collections::VecDeque;

use baton_core::{Batch, Nanos, Request, TaskId};

use crate::cluster::Finished;
use crate::faults::{GpuChange, GpuEvent};
use crate::scenario::Scenario;

/// A batch that was sealed and has not ended.
#[derive(Clone)]
pub(super) struct Sealed {
    /// From 1, over the whole run.
    pub(super) number: u64,
    pub(super) model: u32,
    pub(super) gpu: u32,
    pub(super) exec_at: Nanos,
    pub(super) invalid_after: Nanos,
    pub(super) requests: Vec<Request>,
}

/// See the module documentation.
pub(super) struct Slots {
    queues: Vec<VecDeque<Sealed>>,
    is_present: Vec<bool>,
    /// Slots that will leave and come.
    changes: VecDeque<GpuEvent>,
    sealed: u64,
}

impl Slots {
    pub(super) fn new(scenario: &Scenario) -> Self {
        Self {
            queues: (0..scenario.gpus).map(|_| VecDeque::new()).collect(),
            is_present: scenario.present_at_first(),
            changes: scenario.gpu_events.iter().copied().collect(),
            sealed: 0,
        }
    }

    pub(super) fn seal(&mut self, batch: &Batch<'_>) -> &Sealed {
        self.sealed += 1;
        let gpu = batch.grant.gpu.id.0;
        let sealed = Sealed {
            number: self.sealed,
            model: batch.model.0,
            gpu,
            exec_at: batch.exec_at,
            invalid_after: batch.invalid_after,
            requests: batch.requests().collect(),
        };
        let queue = &mut self.queues[gpu as usize];
        queue.push_back(sealed);
        &queue[queue.len() - 1]
    }

    /// The batch that ended; slots execute in the order of sealing.
    pub(super) fn finish(&mut self, finished: Finished) -> Option<Sealed> {
        self.queues[finished.gpu as usize].pop_front()
    }

    /// The batch with this task will not be executed: its slot is gone.
    pub(super) fn forget(&mut self, task: TaskId) {
        let with_it = |sealed: &Sealed| sealed.requests.iter().any(|request| request.task == task);
        self.queues.iter_mut().for_each(|queue| queue.retain(|sealed| !with_it(sealed)));
    }

    /// Slots that are there and have no batch.
    pub(super) fn idle(&mut self, now: Nanos) -> u32 {
        while let Some(event) = self.changes.pop_front_if(|event| event.at <= now) {
            self.is_present[event.gpu as usize] = matches!(event.change, GpuChange::Join);
        }
        let slots = self.queues.iter().zip(&self.is_present);
        slots.filter(|(queue, is_present)| queue.is_empty() && **is_present).count() as u32
    }

    /// Batches under way, by slot.
    pub(super) fn under_way(&self) -> impl Iterator<Item = &Sealed> {
        self.queues.iter().flatten()
    }

    /// Sealed so far.
    pub(super) fn count(&self) -> u64 {
        self.sealed
    }
}

//! What a model would do with a slot that is idle now: the answer of a copy of it.

use baton_core::{
    Batch, Candidate, Gpu, GpuId, GpuUpdate, Grant, ModelId, ModelSink, ModelState, Nanos, TaskId,
    Unserved,
};

use super::story::Place;

/// The tasks of a model's candidate.
#[derive(Default)]
pub(super) struct Answer {
    /// Head first; empty if the model would give the slot back.
    pub(super) tasks: Vec<TaskId>,
    /// Tasks that would end for it.
    pub(super) given_up: Vec<TaskId>,
}

pub(super) fn ask(now: Nanos, model: &ModelState) -> Answer {
    let mut answer = Answer::default();
    let gpu = Gpu { id: GpuId(0), life: 0 };
    model.clone().on_grant(
        now,
        Grant { gpu, free_at: Nanos::ZERO, slot_wait: Nanos::ZERO, longest: Nanos::MAX },
        &mut answer,
    );
    answer
}

impl Answer {
    /// Where a waiting task would find itself.
    pub(super) fn place(&self, task: TaskId) -> Place {
        if let Some(rank) = self.tasks.iter().position(|&t| t == task) {
            Place::InBatch { number: rank as u32 + 1 }
        } else if self.given_up.contains(&task) {
            Place::GivenUp
        } else {
            Place::Behind
        }
    }
}

impl ModelSink for Answer {
    fn candidate(&mut self, _model: ModelId, _candidate: Option<Candidate>, _grants: u32) {}

    fn dispatch(&mut self, batch: &Batch<'_>) {
        self.tasks = batch.requests().map(|request| request.task).collect();
    }

    fn gpu(&mut self, _update: GpuUpdate) {}

    fn end_task(&mut self, task: TaskId, _why: Unserved) {
        self.given_up.push(task);
    }
}

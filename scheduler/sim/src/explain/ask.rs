//! What a model would do with a slot that is idle now: the answer of a copy of it.

use baton_core::{
    Batch, Candidate, Gpu, GpuId, GpuUpdate, Grant, ModelId, ModelSink, ModelState, Nanos,
    SlotPart, Slowdown, TaskId, Unserved,
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
    let (free_at, port_wait, slot_wait) = (Nanos::ZERO, Nanos::ZERO, Nanos::ZERO);
    // Slots to spare decide on the variant, which is no part of the answer.
    let (slowdown, longest, spare) = (Slowdown::NONE, model.longest(), 0);
    let grant = Grant {
        gpu,
        free_at,
        port_wait,
        slowdown,
        slot_wait,
        longest,
        spare,
        part: SlotPart::NONE,
        is_short_of_slots: false,
        others_lose: false,
    };
    model.clone().on_grant(now, grant, &mut answer);
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

#[cfg(test)]
mod tests {
    use super::*;
    use baton_core::{FrontendId, ModelConfig, NetworkDelay, Policy, Prefer, Profile, Request};

    fn model_that_may_have(longest: Nanos) -> ModelState {
        let ms = Nanos::from_millis;
        let mut model = ModelState::new(ModelConfig {
            id: ModelId(0),
            profile: Profile::linear(ms(1), ms(1), 32).unwrap(),
            slo: ms(100),
            queue_capacity: 32,
            policy: Policy::Baton,
            prefer: Prefer::Latency,
            network: NetworkDelay::default(),
        });
        let gpu = Gpu { id: GpuId(0), life: 0 };
        let grant = Grant {
            gpu,
            free_at: Nanos::ZERO,
            port_wait: Nanos::ZERO,
            slowdown: Slowdown::NONE,
            slot_wait: Nanos::ZERO,
            longest,
            spare: 1,
            part: SlotPart::NONE,
            is_short_of_slots: false,
            others_lose: false,
        };
        let mut out = Answer::default();
        model.on_grant(Nanos::ZERO, grant, &mut out);
        for task in 0..9 {
            let task = TaskId::new(FrontendId(0), task, 0);
            model.on_request(Nanos::ZERO, Request::new(task, ms(100)), &mut out);
        }
        model
    }

    #[test]
    fn the_batch_is_no_longer_than_the_model_may_have_it() {
        for (longest, tasks) in [(Nanos::from_millis(4), 3), (Nanos::MAX, 9)] {
            let model = model_that_may_have(longest);
            assert_eq!(ask(Nanos::ZERO, &model).tasks.len(), tasks);
        }
    }
}

//! What a candidate says of itself, and when a model wants to be looked at again.

use super::*;
use crate::candidate::{Gpu, GpuUpdate, Grant};
use crate::execution::network::NetworkDelay;
use crate::execution::slowdown::Slowdown;
use crate::model::ModelConfig;
use crate::model::batch::Batch;
use crate::rank::SlotPart;
use baton_types::{GpuId, ModelId, Policy, Prefer, Profile, Request, TaskId, Unserved};

const MS: Nanos = Nanos::from_millis(1);

/// When the last batch could have been sent.
#[derive(Default)]
struct Sent(Option<Nanos>);

impl ModelSink for Sent {
    fn candidate(&mut self, _: ModelId, _: Option<Candidate>, _: u32) {}
    fn dispatch(&mut self, batch: &Batch<'_>) {
        self.0 = Some(batch.schedulable_at);
    }
    fn gpu(&mut self, _: GpuUpdate) {}
    fn end_task(&mut self, _: TaskId, _: Unserved) {}
}

/// ℓ(b) = b + 4 ms, an objective of 40 ms, and plans and inputs that take 2 ms.
fn model(policy: Policy) -> ModelState {
    ModelState::new(ModelConfig {
        id: ModelId(0),
        profile: Profile::linear(MS, MS.times(4), 8).unwrap(),
        slo: MS.times(40),
        queue_capacity: 16,
        policy,
        prefer: Prefer::Latency,
        network: NetworkDelay { ctrl: MS.times(2), ..NetworkDelay::default() },
    })
}

fn request(task: u64, now: Nanos) -> Request {
    Request::new(TaskId(task), now + MS.times(40))
}

#[test]
fn a_batch_starts_when_its_inputs_can_be_there() {
    let (mut model, now) = (model(Policy::Eager), MS.times(100));
    model.on_request(now, request(0, now), &mut Sent::default());
    let candidate = model.candidate().unwrap();
    assert_eq!((candidate.exec_at, candidate.due()), (now + MS.times(2), now));
}

/// Its delay is counted from when it first could have been sent, however often it grows since.
#[test]
fn a_batch_that_grows_has_been_schedulable_since_its_first_task_was() {
    let (mut model, mut sent) = (model(Policy::Eager), Sent::default());
    for task in 0..3 {
        let now = MS.times(100 + 5 * task);
        model.on_request(now, request(task, now), &mut sent);
    }
    let grant = Grant {
        gpu: Gpu { id: GpuId(0), life: 0 },
        free_at: MS,
        port_wait: Nanos::ZERO,
        slowdown: Slowdown::NONE,
        slot_wait: Nanos::ZERO,
        longest: Nanos::MAX,
        spare: 0,
        part: SlotPart::NONE,
        is_short_of_slots: true,
        others_lose: false,
    };
    // Nor is it late while the slot is taken: there plans and inputs are awaited for 2 ms.
    let busy = Grant { free_at: MS.times(110), ..grant };
    model.clone().on_grant(MS.times(115), busy, &mut sent);
    assert_eq!(sent.0, Some(MS.times(108)));
    model.on_grant(MS.times(115), grant, &mut sent);
    assert_eq!(sent.0, Some(MS.times(100)));
    assert_eq!((model.counters().batches, model.counters().dispatched), (1, 3));
}

/// The first task of a quiet period sets the timer for its end. The next ones change nothing.
#[test]
fn in_a_quiet_period_only_its_first_task_wants_to_be_looked_at() {
    let (mut model, mut out) = (model(Policy::Symphony), Sent::default());
    let now = MS.times(100);
    model.on_request(now, request(0, now), &mut out);
    let hopeless = model.next_timer().unwrap();
    let mut comes =
        |model: &mut ModelState, task, now| model.enqueue(now, request(task, now), &mut out);
    assert!(comes(&mut model, 1, now + MS));
    let end = model.next_timer().unwrap();
    assert!(end < hopeless);
    for (at, wants) in [(now + MS, false), (end - Nanos(1), false), (end, true)] {
        assert_eq!(comes(&mut model.clone(), 2, at), wants, "{at:?}");
    }
}

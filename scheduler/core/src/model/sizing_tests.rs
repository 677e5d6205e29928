//! How sizes and loads follow the traffic.

use super::*;
use crate::{ModelId, Prefer, Request, TaskId};
use baton_types::{Policy, Variant};

struct Nothing;

impl crate::ModelSink for Nothing {
    fn candidate(&mut self, _: ModelId, _: Option<Candidate>, _: u32) {}
    fn dispatch(&mut self, _: &crate::Batch<'_>) {}
    fn gpu(&mut self, _: crate::GpuUpdate) {}
    fn end_task(&mut self, _: TaskId, _: crate::Unserved) {}
}

fn ms(ms: u64) -> Nanos {
    Nanos(ms * 1_000_000)
}

/// ℓ(b) = b + 4 ms, 8 tasks at most.
fn sizing(slo_ms: u64) -> Sizing {
    Sizing::new(config(slo_ms))
}

fn config(slo_ms: u64) -> ModelConfig {
    ModelConfig {
        id: ModelId(0),
        profile: Profile::linear(ms(1), ms(4), 8).unwrap(),
        slo: ms(slo_ms),
        queue_capacity: 1,
        policy: Policy::Baton,
        prefer: Prefer::Latency,
        network: NetworkDelay::default(),
    }
}

/// Slots that a request every `every_ms` keeps busy.
fn load(slo_ms: u64, every_ms: u64) -> f64 {
    let mut sizing = sizing(slo_ms);
    (0..10_000 / every_ms).for_each(|i| _ = sizing.on_arrival(ms(i * every_ms)));
    sizing.load() as f64 / 65_536.0
}

#[test]
fn however_dear_a_batch_is_it_does_not_pass_for_one_that_stays_as_it_is() {
    let excess = sizing(40).excess(1, Nanos(u64::MAX / 1_000));
    assert!(excess > 2_000, "{excess}");
    let others = [Candidate::COMPLETE, Candidate::WITHIN_SPARE, Candidate::NOT_EARLY];
    assert!(others.iter().all(|&other| excess < other), "{excess}");
}

#[test]
fn load_is_that_of_the_batches_that_heads_can_wait_for() {
    let is = |got: f64, each_ms: f64, every_ms: f64| {
        let expected = each_ms / every_ms;
        assert!((got / expected - 1.0).abs() < 0.02, "{got} is not {expected}");
    };
    is(load(20, 2), 10.0 / 6.0, 2.0); // 5 · 2 + ℓ(6) = 20
    is(load(20, 10), 6.364 / 2.364, 10.0); // 1.364 · 10 + ℓ(2.364) = 20
    is(load(5, 2), 5.0, 2.0); // No task can wait,
    is(load(4, 2), 5.0, 2.0); // nor even end in time alone,
    is(load(90, 2), 1.5, 2.0); // and no batch has more than eight.
}

#[test]
fn there_is_room_for_what_is_served_in_time() {
    let turns = |gap, latency| Turns { gap: ms(gap), latency: ms(latency) };
    let room = |slo_ms, turns| sizing(slo_ms).room(turns);
    for latency in [5, 8, 10] {
        // One slot serves others for 3 ms between two batches: 3 + 2 · ℓ(6) = 23.
        assert_eq!(room(23, turns(3 + latency, latency)), 6);
    }
    for latency in [6, 8, 10] {
        assert_eq!(room(17, turns(latency / 2, latency)), 7); // Two slots: 3/2 · ℓ(7) = 16.5
    }
    assert_eq!(room(20, turns(6, 12)), 10); // In the 8 ms before a batch of eight 8 · 8/6 tasks can come.
    assert_eq!(room(4, turns(5, 10)), 1, "not even one ends in time");
}

#[test]
fn another_objective_sizes_batches_as_if_it_had_always_been() {
    for (before, after) in [(12, 40), (40, 12)] {
        let (mut changed, fresh) = (sizing(before), sizing(after));
        changed.set_objective(ms(after));
        let sizes = |s: &Sizing| (s.target, s.floor, s.slack, s.budget());
        assert_eq!(sizes(&changed), sizes(&fresh));
    }
}

#[test]
fn no_batch_is_longer_than_the_longest_unless_one_task_is() {
    let mut sizing = sizing(100);
    for (longest, size) in [(11, 7), (6, 2), (5, 1), (4, 8)] {
        sizing.longest = ms(longest);
        assert_eq!(sizing.longest_batch(), size, "{longest} ms");
    }
}

#[test]
fn who_explains_a_model_sees_the_size_that_it_aims_at() {
    let state = crate::ModelState::new(config(100));
    assert_eq!((state.target(), sizing(100).target), (8, 8));
}

/// The profile of a model with variants is that of the cheapest, whatever the configuration says.
#[test]
fn the_cheapest_variant_says_for_what_batches_wait() {
    let flat = Profile::linear(ms(4), ms(1), 8).unwrap();
    let variant = Variant { accuracy: 80_000, profile: flat.clone() };
    let mut sizing = sizing(50);
    sizing.set_variants(&Variants::new(alloc::vec![variant]).unwrap());
    let (ours, its) = (sizing.patience(), Patience::new(&flat));
    assert_eq!((ours.content(), ours.of(1)), (its.content(), its.of(1)));
    assert_ne!(its.content(), Patience::new(&config(50).profile).content());
}

/// Four slots take turns, so that one more batch of seven comes every 2.75 ms. A batch of eight would end too late.
#[test]
fn there_is_room_for_one_batch_where_a_larger_one_is_not_in_time() {
    let sizing = Sizing::new(ModelConfig { slo: Nanos(14_900_000), ..config(1) });
    assert_eq!(sizing.room(Turns { gap: ms(2), latency: ms(8) }), 7);
}

#[test]
fn until_the_traffic_is_known_a_batch_may_double_before_it_is_looked_at_again() {
    let sizing = sizing(14);
    assert_eq!(sizing.target, 3, "ℓ(3) is half of the objective");
    assert_eq!([1, 2, 3, 5].map(|batch| sizing.undue(batch, ms(100)).0), [3, 4, 6, 8]);
    assert_eq!(sizing.undue(1, ms(100)).1, ms(93), "three tasks would be due then");
}

#[test]
fn a_model_says_what_it_is_sized_for() {
    let mut state = crate::ModelState::new(config(100));
    let sizes = |s: &crate::ModelState| (s.target(), s.floor());
    let of = |slo_ms: u64| (sizing(slo_ms).target, sizing(slo_ms).floor);
    assert_eq!(sizes(&state), of(100));
    assert!(state.floor() > 1 && state.rate().is_none());
    let mut shadow = state.clone();
    shadow.on_request(ms(1), Request::new(TaskId(0), ms(90)), &mut Nothing);
    shadow.on_request(ms(200), Request::new(TaskId(1), ms(290)), &mut Nothing);
    assert!(shadow.rate().is_some_and(|rate| rate.arrivals == 1));
    state.set_objective(ms(14));
    assert_eq!(sizes(&state), of(14), "another objective");
}

/// What is to spare is spent on accuracy, not on waiting.
#[test]
fn with_slots_to_spare_a_model_with_variants_defers_nothing() {
    let variant = |accuracy, beta| Variant {
        accuracy,
        profile: Profile::linear(ms(1), ms(beta), 8).unwrap(),
    };
    let mut sizing = sizing(50);
    assert_eq!(sizing.rules(), Rules::of(Policy::Baton));
    sizing
        .set_variants(&Variants::new(alloc::vec![variant(70_000, 4), variant(80_000, 9)]).unwrap());
    assert_eq!(sizing.rules(), Rules { deferral: Deferral::None, ..Rules::of(Policy::Baton) });
}

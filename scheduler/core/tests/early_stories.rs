//! Which idle slots `baton` uses before a batch is due, and which it keeps: for larger batches, and for
//! objectives that are shorter than a batch is long. All times are milliseconds.
mod world;

use baton_core::{ModelConfig, Policy, Prefer};
use world::{World, linear, profile};

fn baton(alpha_ms: f64, beta_ms: f64, slo_ms: f64) -> ModelConfig {
    linear(Policy::Baton, alpha_ms, beta_ms, slo_ms)
}

/// When the task that is offered at 0 with this deadline starts; its model is the world's first.
fn starts_at(world: &mut World, deadline_ms: f64) -> f64 {
    world.mark();
    world.batches.clear();
    world.arrives(0, 7, 0.0, deadline_ms);
    world.run_out();
    assert!(world.is_good(7));
    let first = world.batches.iter().find(|batch| batch.model == 0);
    first.expect("it is served").start.as_millis_f64() - world.at(0.0).as_millis_f64()
}

#[test]
fn a_lone_task_starts_at_once_whatever_its_deadline() {
    for deadline_ms in [40.0, 2_000.0, 60_000.0] {
        let mut fresh = World::new(vec![baton(1.0, 5.0, 40.0)], 1);
        assert_eq!(starts_at(&mut fresh, deadline_ms), 0.0, "no traffic is known");
        let mut warm = World::new(vec![baton(1.0, 5.0, 40.0)], 1);
        warm.warm_up(0, 100, 40.0);
        assert_eq!(starts_at(&mut warm, deadline_ms), 0.0, "after 100/s for a second");
    }
}

#[test]
fn who_prefers_few_gpus_waits_and_never_longer_than_the_objective() {
    for (deadline_ms, start_ms) in [(30.0, 30.0 - 7.0), (40.0, 33.0), (5_000.0, 33.0)] {
        let patient = ModelConfig { prefer: Prefer::FewestGpus, ..baton(1.0, 5.0, 40.0) };
        assert_eq!(starts_at(&mut World::new(vec![patient], 1), deadline_ms), start_ms);
    }
}

/// A model whose batches take 100 ms of 1,000, beside one that needs a slot within 2 ms and has used
/// a twentieth of one.
fn long_beside_short(slots: usize) -> World {
    let short = baton(1.0, 0.1, 3.1);
    let mut world = World::new(vec![baton(1.0, 99.0, 1_000.0), short], slots);
    world.warm_up(1, 50, 3.1);
    world
}

#[test]
fn a_long_batch_leaves_slots_to_shorter_objectives_until_it_must_start() {
    // One of two is kept.
    let mut world = long_beside_short(2);
    assert_eq!(starts_at(&mut world, 1_000.0), 0.0, "the other one is idle");
    let mut world = long_beside_short(2);
    world.arrives(0, 1, 0.0, 1_000.0);
    world.run(1.0);
    world.arrives(0, 2, 0.0, 1_000.0);
    world.run(90.0);
    assert_eq!(world.sizes(), [1], "the other one is idle, and kept");
    world.arrives(1, 3, 0.0, 3.1);
    world.run(50.0);
    assert_eq!(
        world.sizes(),
        [1, 1, 1],
        "the short one at once, the long one when a slot was free"
    );
    world.run_out();
    assert!((1..=3).all(|task| world.is_good(task)));
}

#[test]
fn a_long_batch_that_is_due_leaves_slots_until_its_latest_start() {
    // No larger batch is possible, so each is due at once. The short objective uses half of a slot: one of two is kept.
    let long = ModelConfig { profile: profile(1.0, 99.0, 1), ..baton(1.0, 99.0, 1_000.0) };
    let mut world = World::new(vec![long, baton(1.0, 0.1, 3.1)], 2);
    world.warm_up(1, 500, 3.1);
    world.arrives(0, 1, 0.0, 1_000.0);
    world.arrives(0, 2, 0.0, 150.0);
    world.run(45.0);
    assert_eq!(world.sizes(), [1], "the other one is idle, and kept");
    world.run_out();
    let second = world.batches.iter().filter(|batch| batch.model == 0).nth(1).unwrap();
    assert_eq!(second.start, world.at(50.0), "its head would be lost");
    assert!(world.is_good(1) && world.is_good(2));
}

#[test]
fn what_waits_is_looked_at_again_when_traffic_has_stopped() {
    // The second long batch leaves the other slot to the short objective. Nothing comes any more, the
    // first batch takes 20 s, and what is kept is forgotten in the end.
    let long = baton(1.0, 19_999.0, 100_000.0);
    let mut world = World::new(vec![long, baton(1.0, 0.1, 3.1)], 2);
    world.warm_up(1, 50, 3.1);
    world.arrives(0, 1, 0.0, 100_000.0);
    world.run(1.0);
    world.arrives(0, 2, 0.0, 100_000.0);
    world.run(50.0);
    assert_eq!(world.sizes(), [1], "the other one is idle, and kept");
    world.run(15_000.0);
    assert_eq!(world.sizes(), [1, 1]);
    world.run_out();
    assert!(world.is_good(1) && world.is_good(2));
}

#[test]
fn a_burst_spreads_over_slots_that_are_to_spare() {
    let mut world = World::new(vec![baton(1.0, 10.0, 60.0)], 32);
    bursts(&mut world);
    (1..=9).for_each(|task| world.arrives(0, task, task as f64 * 0.05, 60.0));
    world.run_out();
    assert_eq!(world.sizes(), [1; 9]);
}

#[test]
fn a_burst_gathers_where_few_slots_are() {
    // The same bursts, but eight slots: a slot for each task would be too dear for them.
    let mut world = World::new(vec![baton(1.0, 10.0, 60.0)], 8);
    bursts(&mut world);
    (1..=9).for_each(|task| world.arrives(0, task, task as f64 * 0.05, 60.0));
    world.run(0.05);
    assert_eq!(world.sizes(), [], "the first waits for others");
    world.run_out();
    assert_eq!(world.sizes(), [9]);
}

/// Forty bursts of ten tasks, 100 ms apart.
fn bursts(world: &mut World) {
    for burst in 0..40 {
        let mut arrives = |task: u64| {
            let after_ms = f64::from(burst) * 100.0 + task as f64 * 0.05;
            world.arrives(0, 1_000 + u64::from(burst as u32) * 10 + task, after_ms, 60.0);
        };
        (0..10).for_each(&mut arrives);
    }
    world.run(4_050.0);
    world.batches.clear();
}

#[test]
fn on_a_single_slot_long_batches_leave_time_for_shorter_objectives() {
    // A lone task of the other model can wait 4.9 ms, and ℓ(3) = 4 ms.
    let sizes = |short_rps| {
        let mut world = World::new(vec![baton(1.0, 1.0, 100.0), baton(0.1, 0.1, 5.1)], 1);
        world.warm_up(1, short_rps, 5.1);
        (1..=9).for_each(|task| world.arrives(0, task, 0.0, 100.0));
        world.run_out();
        world.sizes()
    };
    assert_eq!(sizes(200), [1, 3, 3, 2]);
    assert_eq!(sizes(1), [1, 8], "hardly anybody asks for the other");
}

#[test]
fn the_burstier_shorter_objectives_arrive_the_more_slots_are_left_to_them() {
    let started = |burst: u64| {
        let long = || baton(20.0, 1.0, 500.0);
        let short = baton(0.1, 0.9, 3.0);
        let mut world = World::new(vec![long(), long(), long(), long(), long(), short], 6);
        // 500 tasks a second, those of a burst 0.3 ms apart.
        for task in 0..2_000 {
            let after_ms = (task / burst * burst) as f64 * 2.0 + (task % burst) as f64 * 0.3;
            world.arrives(5, 1_000 + task, after_ms, 3.0);
        }
        world.run(4_000.0);
        world.batches.clear();
        for model in 0..5 {
            world.arrives(model, model.into(), 0.0, 500.0);
            world.run(0.0);
        }
        world.sizes().len()
    };
    assert_eq!((started(1), started(20)), (4, 2));
}

#[test]
fn a_burst_on_an_idle_cluster_ends_as_early_as_if_nothing_waited() {
    // ResNet50 on eight slots: `tasks` tasks at once.
    let last = |policy, tasks: u64| {
        let mut world = World::new(vec![linear(policy, 1.053, 5.072, 50.0)], 8);
        world.warm_up(0, 50, 50.0);
        (1..=tasks).for_each(|task| world.arrives(0, task, 0.0, 50.0));
        world.run_out();
        assert!((1..=tasks).all(|task| world.is_good(task)));
        world.batches.iter().map(|batch| batch.start + batch.took).max().expect("some ran")
    };
    for tasks in 1..=32 {
        assert_eq!(last(Policy::Baton, tasks), last(Policy::Eager, tasks), "{tasks} tasks");
    }
}

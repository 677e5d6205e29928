//! What sets the `baton` policy apart: it waits for tasks that are worth it, gives heads up for
//! batches that are worth it, and puts a model that loses tasks first. Time is moved by hand; all
//! times are milliseconds from the story's beginning.
mod world;

use baton_core::{DropReason, ModelConfig, Policy, Prefer, Unserved};
use world::{End, World, linear};

/// What waits does not start early on an idle slot.
fn patient(policy: Policy, alpha_ms: f64, beta_ms: f64, slo_ms: f64) -> ModelConfig {
    ModelConfig { prefer: Prefer::FewestGpus, ..linear(policy, alpha_ms, beta_ms, slo_ms) }
}

/// ℓ(b) = αb + β.
fn baton(alpha_ms: f64, beta_ms: f64, slo_ms: f64) -> ModelConfig {
    patient(Policy::Baton, alpha_ms, beta_ms, slo_ms)
}

#[test]
fn a_batch_waits_while_further_tasks_are_expected() {
    // λ = 1000/s, and beside 24.3 tasks of 1.41 ms twenty of 1.5 ms are dear: at frontrun − 4.25 ms
    // that many are expected. Nothing arrives any more: twenty may start at 60 − ℓ(21) − 4.25.
    assert_starts(4, 20, 60.0, 24.75);
}

#[test]
fn no_batch_waits_to_the_very_end_for_a_slot_that_may_be_taken() {
    // Three are dear beside 3.2, so of four slots one is taken a quarter of a gap before the end.
    assert_starts(4, 3, 40.0, 40.0 - 14.0 - 0.25);
}

#[test]
fn who_found_no_slot_is_due_earlier_by_as_much_while_models_compete() {
    // Three models, two slots: all fall due at the same moments, and the last waits for ℓ(1) = 11 ms. That
    // is a turn of 5.5 ms for each of the others. In each other round another task joins the one that waits, at any time.
    let mut world = World::new(vec![baton(1.0, 10.0, 40.0); 3], 3);
    world.kill_gpu(2);
    for round in 0..200 {
        for model in 0..3 {
            let (task, at_ms) = (1_000 + round * 6 + u64::from(model), round as f64 * 50.0);
            world.arrives(model, task, at_ms, 40.0);
            if round % 2 == 0 {
                world.arrives(model, task + 3, at_ms + (round * 5 % 28) as f64, 40.0);
            }
        }
    }
    world.run(200.0 * 50.0);
    assert!((15.0..19.0).contains(&lone_start_ms(&mut world, 1)), "28 ms less 11");
    // A slot for each: the grant that comes next but one knows.
    world.join_gpu(2);
    let (_, then) = (lone_start_ms(&mut world, 2), lone_start_ms(&mut world, 3));
    assert!((24.0..26.0).contains(&then), "28 ms less a sixteenth of a pause: {then}");
}

/// So long after its arrival a task of the third model starts.
fn lone_start_ms(world: &mut World, task: u64) -> f64 {
    world.batches.clear();
    world.mark();
    world.arrives(2, task, 0.0, 40.0);
    world.run(100.0);
    (world.batches[0].start - world.at(0.0)).as_millis_f64()
}

/// With λ = 1000/s, evenly spaced, and ℓ(b) = b + 10, `tasks` that come at once start at `at_ms`.
fn assert_starts(slots: usize, tasks: usize, slo_ms: f64, at_ms: f64) {
    let mut world = World::new(vec![baton(1.0, 10.0, slo_ms)], slots);
    world.warm_up(0, 1000, slo_ms);
    (1..=tasks as u64).for_each(|task| world.arrives(0, task, 0.0, slo_ms));
    world.run(at_ms - 0.2);
    assert_eq!(world.sizes(), []);
    world.run(0.4);
    assert_eq!(world.sizes(), [tasks]);
    world.run_out();
}

#[test]
fn a_batch_that_hardly_gains_does_not_wait() {
    // ℓ(b) = 7b + 0.1: two tasks cost 7.05 ms each and a hundred 7.001.
    let mut world = World::new(vec![baton(7.0, 0.1, 50.0)], 1);
    world.warm_up(0, 100, 50.0);
    world.arrives(0, 1, 0.0, 50.0);
    world.run(0.0);
    assert_eq!(world.sizes(), [1]);
    world.run_out();
}

/// Four slots, and a model that has seen forty bursts of fifty tasks, 100 ms apart: λ = 500/s.
fn after_bursts(policy: Policy) -> World {
    let mut world = World::new(vec![patient(policy, 1.0, 10.0, 40.0)], 4);
    for burst in 0..40 {
        let at_ms = burst as f64 * 100.0;
        let mut arrives = |task: u64| {
            let after_ms = at_ms + task as f64 * 0.05;
            world.arrives(0, 1_000 + burst * 50 + task, after_ms, 40.0);
        };
        (0..50).for_each(&mut arrives);
    }
    world.run(4_050.0);
    world.batches.clear();
    world
}

#[test]
fn a_pause_in_bursts_is_expected_to_last() {
    // After a pause of 1/λ the next task is some 100 ms away. Waiting for it would be in vain;
    // Symphony waits until frontrun.
    let starts = |policy| {
        let mut world = after_bursts(policy);
        (1..=5).for_each(|task| world.arrives(0, task, 0.0, 40.0));
        world.run(0.2);
        let at_once = !world.sizes().is_empty();
        world.run_out();
        at_once
    };
    assert!(starts(Policy::Baton));
    assert!(!starts(Policy::Symphony));
}

/// How long the last of twenty batches waits if four tasks at a time come every 420 ms, and with `joins` another after 200.
fn last_wait_ms(joins: bool) -> f64 {
    let mut world = World::new(vec![baton(1.0, 10.0, 400.0)], 2);
    for round in 0..20 {
        world.batches.clear();
        world.mark();
        (0..4).for_each(|task| world.arrives(0, 10 * round + task, 0.0, 400.0));
        if joins {
            world.arrives(0, 10 * round + 4, 200.0, 400.0);
        }
        world.run(420.0);
    }
    (world.batches[0].start - world.at(0.0)).as_millis_f64()
}

#[test]
fn clients_that_wait_for_their_answers_are_not_waited_for() {
    // 8 tasks/s, and 400 ms to wait for some more: but nothing has ever come while four waited.
    assert!(last_wait_ms(false) < 20.0, "{}", last_wait_ms(false));
    assert!(last_wait_ms(true) > 190.0, "{}", last_wait_ms(true));
}

#[test]
fn a_run_is_let_finish() {
    // A task that arrives is followed by others within 0.05 ms.
    // Eager starts with the first of them; here the slot gets them together.
    let first = |policy| {
        let mut world = after_bursts(policy);
        (1..=8).for_each(|task| world.arrives(0, task, task as f64 * 0.05, 40.0));
        world.run_out();
        world.sizes()[0]
    };
    assert_eq!((first(Policy::Baton), first(Policy::Eager)), (8, 1));
}

#[test]
fn heads_are_given_up_only_for_a_batch_that_is_worth_it() {
    // λ = 500/s and ℓ(b) = b + 5 balance within 40 ms at 11 tasks, 1.455 ms each. When the slot is
    // free, the head has room for ten: 1.5 ms each.
    let end = |policy, room_ms: f64| {
        let hog = linear(Policy::Eager, 30.0, 0.0, 1_000.0);
        let mut world = World::new(vec![patient(policy, 1.0, 5.0, 40.0), hog], 1);
        world.warm_up(0, 500, 40.0);
        world.arrives(1, 999, 0.0, 1_000.0);
        world.arrives(0, 1, 0.0, 30.0 + room_ms);
        (2..=20).for_each(|task| world.arrives(0, task, 20.0, 40.0));
        world.run_out();
        world.end_of(1)
    };
    let window = Some(End::Unserved(Unserved::Dropped(DropReason::Window)));
    let completed = |end| matches!(end, Some(End::Completed { batch: 10, .. }));
    assert!(completed(end(Policy::Baton, 15.1)));
    assert_eq!(end(Policy::Symphony, 15.1), window);
    assert_eq!(end(Policy::Baton, 12.1), window, "seven tasks would cost 1.71 ms each");
}

#[test]
fn the_batch_that_must_start_first_goes_first() {
    // Both are due. `slow` stops growing earlier, 60 − ℓ(2) = 20, but may start until 40.
    let slow = baton(20.0, 0.0, 60.0);
    let quick = baton(1.0, 4.0, 35.9);
    let hog = linear(Policy::Eager, 30.0, 0.0, 1_000.0);
    let mut world = World::new(vec![slow, quick, hog], 1);
    world.arrives(2, 999, 0.0, 1_000.0);
    world.run(0.0);
    world.arrives(0, 1, 0.0, 60.0);
    world.arrives(1, 2, 0.0, 35.9);
    world.run(30.1);
    assert_eq!(world.batches.last().unwrap().model, 1, "until 30.9");
    world.run_out();
    assert!(world.is_good(1) && world.is_good(2));
}

//! What happens to GPU slots: who gets them, early and late ends, death, leaving, coming back. Time
//! is moved by hand; all times are milliseconds from the story's beginning.
mod world;

use baton_core::{DropReason, FailReason, GpuUpdate, ModelConfig, Nanos, Policy, Unserved};
use world::{End, Fate, World, linear, ms};

/// Executes ℓ(b) = b + 5 ms at once if it can; SLO 40 ms.
fn eager() -> ModelConfig {
    linear(Policy::Eager, 1.0, 5.0, 40.0)
}

/// Takes a slot for 10 ms per task.
fn hog() -> ModelConfig {
    linear(Policy::Eager, 10.0, 0.0, 1_000.0)
}

fn slots(world: &World) -> Vec<u32> {
    world.batches.iter().map(|batch| batch.gpu.id.0).collect()
}

fn starts_ms(world: &World) -> Vec<f64> {
    world.batches.iter().map(|batch| (batch.start - world.at(0.0)).as_millis_f64()).collect()
}

#[test]
fn load_gathers_on_the_lowest_numbered_idle_slot() {
    let mut world = World::new(vec![eager(), eager()], 3);
    world.arrives(0, 1, 0.0, 40.0);
    world.arrives(1, 2, 1.0, 40.0); // slot 0 executes: the next one
    world.arrives(0, 3, 6.5, 40.0); // slot 0 is idle again, and slot 1 until 7 is not
    world.arrives(1, 4, 20.0, 40.0);
    world.run_out();
    assert_eq!(slots(&world), [0, 1, 0, 0]);
}

#[test]
fn of_two_models_the_more_urgent_one_gets_the_slot() {
    let mut world = World::new(vec![eager(), eager(), hog()], 1);
    world.arrives(2, 100, 0.0, 1_000.0); // taken until 10
    world.arrives(0, 1, 1.0, 40.0); // first come, but 20 ms less urgent
    world.arrives(1, 2, 2.0, 19.0);
    world.run_out();
    assert_eq!(world.batches[1].model, 1);
    assert_eq!(starts_ms(&world), [0.0, 10.0, 16.0]);
    assert!(world.is_good(1) && world.is_good(2));
}

#[test]
fn models_use_the_slots_of_their_own_sub_cluster() {
    let mut world = World::with_subclusters(vec![eager(), eager()], &[0, 1], &[1, 0]);
    world.arrives(0, 1, 0.0, 40.0);
    world.arrives(1, 2, 0.0, 40.0);
    world.arrives(0, 3, 1.0, 8.0); // slot 0 idles from 6 on, but is not for model 0 …
    world.run_out();
    assert_eq!(slots(&world)[..2], [1, 0]);
    let hopeless = End::Unserved(Unserved::Dropped(DropReason::Deadline));
    assert_eq!(world.end_of(3), Some(hopeless), "… whose own slot is free too late");
}

#[test]
fn a_slot_that_ends_early_is_used_early() {
    let mut world = World::new(vec![hog()], 1);
    world.execution = Box::new(|latency| Nanos(latency.0 / 2));
    world.arrives(0, 1, 0.0, 1_000.0);
    world.arrives(0, 2, 1.0, 1_000.0);
    world.run_out();
    assert_eq!(starts_ms(&world), [0.0, 5.0]);
}

#[test]
fn a_slot_that_overruns_gets_one_more_batch_and_no_third() {
    let mut world = World::new(vec![eager(), eager(), eager()], 1);
    world.execution = Box::new(|latency| latency.times(5));
    (0..3).for_each(|model| world.arrives(model, u64::from(model), 0.0, 1_000.0));
    world.run(35.9);
    assert_eq!(
        world.batches.len(),
        2,
        "planned to end at 6, still executing: one waits is_stale it"
    );
    world.run(0.1);
    assert_eq!(world.batches.len(), 3, "reported at 30; the second is then expected to end at 36");
    world.run_out();
    assert_eq!(starts_ms(&world), [0.0, 30.0, 60.0]);
}

#[test]
fn an_idle_slot_is_preferred_to_one_whose_end_is_overdue() {
    let mut world = World::new(vec![eager()], 2);
    world.execution = Box::new(|latency| latency.times(5));
    world.arrives(0, 1, 0.0, 100.0);
    world.arrives(0, 2, 10.0, 100.0); // slot 0 should have ended at 6 and has not reported
    world.run_out();
    assert_eq!(slots(&world), [0, 1]);
}

#[test]
fn the_tasks_of_a_dying_backend_complete_elsewhere() {
    let mut world = World::new(vec![eager()], 2);
    (1..=3).for_each(|task| world.arrives(0, task, 0.0, 40.0));
    world.run(3.0);
    let before = world.batches.iter().filter(|batch| batch.gpu.id.0 == 0).count();
    assert_eq!(before, 1, "slot 0 executes");
    world.kill_gpu(0);
    world.run_out();
    assert_eq!(world.batches[0].fate, Fate::GivenBack);
    assert!((1..=3).all(|task| world.is_good(task)));
    assert!(world.batches[1..].iter().all(|batch| batch.gpu.id.0 == 1));
}

#[test]
fn the_tasks_of_a_dying_backend_fail_if_their_time_is_up() {
    let mut world = World::new(vec![eager()], 2);
    world.arrives(0, 1, 0.0, 8.0);
    world.run(3.0);
    world.kill_gpu(0); // at 3, ℓ(1) = 6: too late for a deadline of 8
    assert_eq!(world.end_of(1), Some(End::Unserved(Unserved::Failed(FailReason::BackendLost))));
    world.run_out();
}

#[test]
fn a_draining_slot_finishes_what_it_has_and_says_so_once() {
    let mut world = World::new(vec![eager()], 2);
    world.arrives(0, 1, 0.0, 40.0);
    world.arrives(0, 2, 2.0, 40.0);
    world.run(1.0);
    world.drain_gpu(0);
    assert_eq!(world.rank.gpus_present(baton_core::SubclusterId(0)), 1);
    world.run(4.9);
    assert_eq!(world.out.drained, [], "task 1 executes until 6");
    world.drain_gpu(0); // asked twice
    world.run_out();
    assert_eq!(world.out.drained, [world.gpu(0)]);
    assert_eq!(slots(&world), [0, 1]);
    world.drain_gpu(1);
    assert_eq!(world.out.drained, [world.gpu(0), world.gpu(1)], "an idle slot at once");
}

#[test]
fn a_drained_slot_gets_nothing_more() {
    let mut world = World::new(vec![eager()], 1);
    world.drain_gpu(0);
    world.arrives(0, 1, 0.0, 40.0);
    world.run_out();
    assert_eq!(world.dropped(DropReason::Deadline), 1);
    assert_eq!(world.out.drained, [world.gpu(0)]);
}

#[test]
fn news_of_an_earlier_life_of_a_slot_is_ignored() {
    let mut world = World::new(vec![eager()], 1);
    let earlier = world.gpu(0);
    world.kill_gpu(0);
    world.join_gpu(0);
    let (start, latency, at) = (world.now, ms(500.0), world.at(400.0));
    let planned =
        GpuUpdate::Planned { gpu: earlier, start, latency, work: latency, fetched_at: None };
    for late in [planned, GpuUpdate::Finished { gpu: earlier, at, pace: None, fetched_at: None }] {
        world.rank.on_gpu(world.now, late, &mut world.out);
    }
    world.rank.on_gpu_leave(earlier);
    world.arrives(0, 1, 0.0, 40.0);
    world.run_out();
    assert_eq!(starts_ms(&world), [0.0], "the slot is there and idle");
}

#[test]
fn a_new_slot_takes_what_waits() {
    let mut world = World::new(vec![eager()], 1);
    world.kill_gpu(0);
    world.arrives(0, 1, 0.0, 40.0);
    world.run(5.0);
    assert_eq!(world.batches.len(), 0);
    world.join_gpu(0);
    assert_eq!(starts_ms(&world), [5.0]);
    world.run_out();
}

#[test]
fn an_expired_batch_comes_back_and_those_with_time_left_run_again() {
    // Planned to end at 6, task 1 executes until 24. Tasks 2 and 3 are sealed behind it at 6, but
    // task 2 must end by 21: the batch is not started, and only task 3 has time for another.
    let mut world = World::new(vec![eager()], 1);
    world.refuses_late = true;
    world.learns = false;
    world.execution = Box::new(|latency| latency.times(4));
    world.arrives(0, 1, 0.0, 40.0);
    world.arrives(0, 2, 1.0, 20.0);
    world.arrives(0, 3, 2.0, 60.0);
    world.run_out();
    assert_eq!(world.sizes(), [1, 2, 1]);
    assert_eq!(world.batches[1].fate, Fate::GivenBack);
    assert_eq!(world.end_of(2), Some(End::Unserved(Unserved::Dropped(DropReason::Deadline))));
    assert_eq!(starts_ms(&world)[2], 24.0);
    assert!(world.is_good(3));
}

//! Slots that are slower than the others of their sub-cluster.

mod world;

use baton_core::{ModelConfig, NetworkDelay, Policy, Slowdown, SubclusterId};
use world::{World, linear, ms};

/// ℓ(b) is b + 5 ms.
fn eager() -> ModelConfig {
    linear(Policy::Eager, 1.0, 5.0, 40.0)
}

fn slots(world: &World) -> Vec<u32> {
    world.batches.iter().map(|batch| batch.gpu.id.0).collect()
}

/// Slot 0 of these takes half as long again, which is 384 in 1/256, and the scheduler has seen 100 of its batches.
fn with_a_slow_slot(models: Vec<ModelConfig>, gpus: u64) -> World {
    let mut world = World::new(models, gpus as usize);
    world.slow.insert(0, Slowdown::from_256ths(384));
    for task in 0..100 * gpus {
        world.arrives(0, 1_000 + task, (task / gpus * 10) as f64, 40.0);
    }
    world.run_out();
    world.batches.clear();
    world.mark();
    world
}

#[test]
fn a_slow_slot_is_used_last() {
    let mut world = with_a_slow_slot(vec![eager()], 3);
    for task in 1..=3 {
        world.arrives(0, task, task as f64, 40.0);
    }
    let of_slow = |world: &World| world.rank.counters().grants_of_slow;
    let before = of_slow(&world);
    world.run_out();
    assert_eq!(slots(&world), [1, 2, 0]);
    assert_eq!(of_slow(&world) - before, 1);
}

#[test]
fn a_batch_is_as_large_as_a_slow_slot_finishes_in_time() {
    let long = linear(Policy::Eager, 50.0, 0.0, 1_000.0);
    let mut world = with_a_slow_slot(vec![eager(), long], 2);
    world.arrives(1, 100, 0.0, 1_000.0); // slot 1 is taken until 50
    world.arrives(0, 101, 1.0, 40.0); // and slot 0 until 10
    // From then on six tasks take 16.5 ms on slot 0, and seven 18.
    (1..=9).for_each(|task| world.arrives(0, task, 2.0, 25.75));
    world.run_out();
    assert_eq!(world.batches[2].gpu.id.0, 0);
    assert_eq!(world.batches[2].requests.len(), 6);
    let (deadline, latest) =
        (world.batches[2].requests[0].deadline, world.batches[2].invalid_after);
    assert!(latest + ms(16.5) <= deadline, "started later, it ends too late there");
    assert!((1..=6).all(|task| world.is_good(task)));
}

#[test]
fn it_is_known_how_slow_each_slot_is() {
    let mut world = with_a_slow_slot(vec![eager()], 3);
    let slowdowns = |world: &World| world.rank.slowdowns(SubclusterId(0)).collect::<Vec<_>>();
    let [slow, rest @ ..] = &slowdowns(&world)[..] else { panic!("there are three") };
    assert!((360..=410).contains(&slow.in_256ths()), "{slow:?}: 1.5 is 384 / 256");
    assert_eq!(rest, [Slowdown::NONE; 2]);
    world.kill_gpu(0);
    assert_eq!(slowdowns(&world), [Slowdown::NONE; 2]);
    world.join_gpu(0);
    assert_eq!(slowdowns(&world), [Slowdown::NONE; 3], "in its next life it may be another GPU");
}

/// Lone tasks would find slot 0 idle each time, and without others nothing says that it is slow.
#[test]
fn every_slot_is_tried_so_that_a_slow_one_is_known() {
    let mut world = World::new(vec![eager()], 3);
    world.slow.insert(0, Slowdown::from_256ths(384));
    for task in 1..=60 {
        world.arrives(0, task, (task * 10) as f64, 40.0);
    }
    world.run_out();
    let of = |slot| slots(&world).iter().filter(|&&id| id == slot).count();
    assert_eq!((of(0), of(2)), (17, 16), "sixteen each, and one more that says it");
    assert_eq!(slots(&world)[49..], [1; 11]);
}

/// Tasks 1 and 2 came at once. Slot 0 is idle, but would take 9 ms, for which task 1 has not the time. Slot 1 has, once it is idle.
#[test]
fn a_slow_slot_serves_what_can_wait_for_it_and_the_rest_waits_for_a_usual_one() {
    let hog = linear(Policy::Eager, 1.0, 0.0, 1_000.0);
    let mut world = with_a_slow_slot(vec![eager(), hog, eager()], 2);
    world.arrives(1, 100, 0.0, 1_000.0); // slot 1 is taken until 1
    world.arrives(0, 1, 0.5, 8.0);
    world.arrives(2, 2, 0.5, 30.0);
    world.run_out();
    assert_eq!(slots(&world), [1, 0, 1]);
    assert!([1, 2].into_iter().all(|task| world.is_good(task)));
    assert_eq!(world.batches[1].requests[0].task.0, 2);
}

/// Task 1 waits until 28 for others on a usual slot, but slot 1 is taken until 40. On slot 0 it is in time until 25, and an
/// execution's length more before.
#[test]
fn a_batch_is_due_earlier_while_only_slow_slots_are_idle() {
    let hog = linear(Policy::Eager, 40.0, 0.0, 1_000.0);
    let waits = linear(Policy::Symphony, 1.0, 5.0, 40.0);
    let mut world = with_a_slow_slot(vec![eager(), hog, waits], 2);
    world.arrives(1, 100, 0.0, 1_000.0);
    world.arrives(2, 1, 1.0, 35.0);
    world.run_out();
    assert_eq!(slots(&world), [1, 0]);
    let early = world.at(25.9)..world.at(26.1);
    assert!(early.contains(&world.batches[1].start), "it is due at 29 on a usual slot");
    assert!(world.is_good(1));
}

/// As long as a usual slot is idle as well, a slow one makes nothing due earlier. But it may be all that is left.
#[test]
fn a_batch_is_looked_at_again_when_only_a_slow_slot_may_be_left() {
    let hog = linear(Policy::Eager, 40.0, 0.0, 1_000.0);
    let waits = linear(Policy::Symphony, 1.0, 5.0, 40.0);
    for (is_taken, slot, start) in [(true, 0, 26.0), (false, 1, 29.0)] {
        let mut world = with_a_slow_slot(vec![eager(), hog.clone(), waits.clone()], 2);
        world.arrives(2, 1, 1.0, 35.0);
        if is_taken {
            world.arrives(1, 100, 10.0, 1_000.0);
        }
        world.run_out();
        let batch = world.batches.iter().find(|batch| batch.requests[0].task.0 == 1);
        let batch = batch.expect("it is served");
        let about = world.at(start - 0.1)..world.at(start + 0.1);
        assert_eq!((batch.gpu.id.0, about.contains(&batch.start)), (slot, true));
        assert!(world.is_good(1));
    }
}

/// Tasks of 1 ms that can wait 1 ms keep a slot of two for themselves. Task 1 leaves it to them, but no longer than the only
/// idle slot, which is slow, would be in time for it.
#[test]
fn a_slow_slot_is_left_to_shorter_objectives_as_long_as_it_is_in_time() {
    let hog = linear(Policy::Eager, 60.0, 0.0, 1_000.0);
    let [short, long] = [(0.5, 0.5, 4.0), (1.0, 9.0, 40.0)]
        .map(|(alpha, beta, slo)| linear(Policy::Baton, alpha, beta, slo));
    let mut world = with_a_slow_slot(vec![eager(), hog, short, long], 2);
    for task in 0..200 {
        world.arrives(2, 2_000 + task, task as f64 * 2.0, 4.0);
    }
    world.arrives(1, 100, 400.0, 1_000.0);
    world.arrives(3, 1, 401.0, 35.0);
    world.run(430.0);
    let batch = world.batches.iter().find(|batch| batch.requests[0].task.0 == 1);
    assert_eq!(batch.map(|batch| batch.gpu.id.0), Some(0));
    world.run_out();
    assert!(world.is_good(1));
}

/// The plan and the inputs take 2 ms, and slot 1 is taken until 22: a batch of 6 ms that is planned at 20 starts at once. Slot 0, which
/// is idle, takes 9 ms.
#[test]
fn what_no_idle_slot_ends_in_time_is_planned_behind_what_a_usual_one_executes() {
    let hog = linear(Policy::Eager, 22.0, 0.0, 1_000.0);
    let network = NetworkDelay { ctrl: ms(2.0), ..NetworkDelay::default() };
    let far = ModelConfig { network, ..eager() };
    let mut world = with_a_slow_slot(vec![eager(), hog, far], 2);
    world.arrives(1, 100, 0.0, 1_000.0);
    world.arrives(2, 1, 19.0, 9.5);
    world.run_out();
    assert_eq!(slots(&world), [1, 1]);
    assert_eq!(world.batches[1].start, world.at(22.0));
    assert!(world.is_good(1));
}

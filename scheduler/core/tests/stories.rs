//! What happens to requests: waiting, batching, giving up, ending. Time is moved by hand; all
//! times are milliseconds from the story's beginning. Slots and backends: `gpu_stories.rs`.
mod world;

use baton_core::{
    Alternative, DropReason, FrontendId, ModelConfig, ModelCounters, Nanos, NetworkDelay, Policy,
    Readiness, Rules, TaskId, Unserved,
};
use world::{End, World, linear, ms, profile};

/// ℓ(b) = b + 5 ms and an SLO of 20 ms. No λ is known at first: the deadline alone decides.
fn deferred() -> ModelConfig {
    linear(Policy::Symphony, 1.0, 5.0, 20.0)
}

fn dropped(why: DropReason) -> Option<End> {
    Some(End::Unserved(Unserved::Dropped(why)))
}

fn completed(world: &World, at_ms: f64, batch: u32) -> Option<End> {
    Some(End::Completed { at: world.at(at_ms), batch, gpu: 0 })
}

#[test]
fn a_lone_request_waits_until_its_frontrun_moment() {
    let mut world = World::new(vec![deferred()], 1);
    world.arrives(0, 1, 0.0, 20.0);
    world.run(12.9);
    assert_eq!(world.sizes(), [], "another task could still join until 20 − ℓ(2) = 13");
    world.run(0.2);
    assert_eq!(world.sizes(), [1]);
    world.run_out();
    assert_eq!(world.end_of(1), completed(&world, 19.0, 1));
}

#[test]
fn a_batch_of_more_than_beta_lambda_starts_at_once() {
    // λ = 1000/s and β = 5.5 ms: 5.5 tasks arrive during β, so the sixth is not worth a wait.
    let mut world = World::new(vec![linear(Policy::Symphony, 1.0, 5.5, 40.0)], 1);
    world.warm_up(0, 1000, 40.0);
    (1..=5).for_each(|task| world.arrives(0, task, 1.0, 40.0));
    world.arrives(0, 6, 4.0, 40.0);
    world.run(3.9);
    assert_eq!(world.sizes(), [], "five wait for the sixth");
    world.run_out();
    assert_eq!(world.batches[0].sealed_at, world.at(4.0));
    assert_eq!(world.end_of(1), completed(&world, 15.5, 6));
}

#[test]
fn a_dispatch_delay_counts_from_the_moment_at_which_the_batch_was_due_last() {
    let patient = linear(Policy::Symphony, 1.0, 5.0, 60.0);
    let mut world = World::new(vec![patient, linear(Policy::Eager, 1.0, 29.0, 100.0)], 1);
    world.arrives(1, 9, 0.0, 100.0); // the slot is taken until 30
    world.arrives(0, 1, 0.0, 20.0); // due at 13
    world.arrives(0, 2, 0.0, 60.0);
    world.run(13.5);
    assert!(world.cancel(0, 1), "what is left is due at 60 − ℓ(2) = 53");
    world.run_out();
    assert_eq!(world.batches[1].start, world.at(53.0));
    assert_eq!(world.batches[1].schedulable_at, world.at(53.0));
}

/// A quota refuses tasks before the model hears of them.
#[test]
fn what_a_model_tells_before_anything_came() {
    let mut world = World::new(vec![deferred()], 1);
    let model = &mut world.models[0];
    assert_eq!((model.longest(), model.waiting()), (Nanos::MAX, 0), "no batch is too long for it");
    model.count_refused();
    assert_eq!(model.counters(), ModelCounters { refused: 1, ..ModelCounters::default() });
}

#[test]
fn the_load_of_a_model_is_known_while_requests_come_and_for_five_seconds_after() {
    let mut world = World::new(vec![linear(Policy::Eager, 1.0, 5.0, 20.0)], 1);
    let load = |world: &World| world.models[0].load(world.now) as f64 / 65_536.0;
    assert_eq!(load(&world), 0.0);
    world.warm_up(0, 100, 20.0);
    assert!((load(&world) - 0.32).abs() < 0.01, "{}: 100/s · ℓ(2.27) / 2.27", load(&world));
    world.run(5_100.0);
    assert_eq!(load(&world), 0.0);
}

#[test]
fn a_batch_grows_while_the_heads_deadline_allows() {
    // One task per millisecond. With b tasks the head's frontrun moment is 20 − ℓ(b + 1) = 14 − b:
    // the eighth, at 7, is the last that lets the head end at 20.
    let mut world = World::new(vec![deferred()], 1);
    (0..12).for_each(|task| world.arrives(0, task, task as f64, 20.0));
    world.run_out();
    assert_eq!(world.sizes()[0], 8);
    assert_eq!(world.batches[0].start, world.at(7.0));
    assert_eq!(world.end_of(0), completed(&world, 20.0, 8));
    assert!(world.is_good(11));
}

#[test]
fn a_full_batch_does_not_wait() {
    let config = ModelConfig { profile: profile(1.0, 5.0, 3), ..deferred() };
    let mut world = World::new(vec![config], 1);
    (1..=3).for_each(|task| world.arrives(0, task, 0.0, 20.0));
    world.run(0.0);
    assert_eq!(world.sizes(), [3], "no task can join any more");
}

#[test]
fn window_drop_gives_up_the_heads_that_spoil_the_batch_when_it_is_sealed() {
    // Largest batch 5, ℓ(5) = 10: tasks 1 and 2 must end by 9 and would hold it down to 3.
    let config = ModelConfig { profile: profile(1.0, 5.0, 5), ..deferred() };
    let mut world = World::new(vec![config], 1);
    (3..=6).for_each(|task| world.arrives(0, task, 0.0, 20.0));
    (1..=2).for_each(|task| world.arrives(0, task, 0.1, 9.0));
    world.run(0.2);
    assert!(world.out.ends.is_empty(), "four could still miss their fifth: no task is given up");
    world.arrives(0, 7, 0.0, 20.0);
    world.run(0.0);
    assert_eq!([1, 2].map(|task| world.end_of(task)), [dropped(DropReason::Window); 2]);
    world.run_out();
    assert_eq!(world.sizes(), [5]);
    assert!((3..=7).all(|task| world.end_of(task) == completed(&world, 10.2, 5)));
}

#[test]
fn a_head_chosen_over_ends_once_it_is_hopeless_even_if_its_batch_still_waits() {
    let config = ModelConfig { profile: profile(1.0, 5.0, 5), ..deferred() };
    let mut world = World::new(vec![config], 1);
    (2..=5).for_each(|task| world.arrives(0, task, 0.0, 20.0));
    world.arrives(0, 1, 0.1, 9.0); // alone it could start until 3.1
    world.run(3.1);
    assert_eq!(world.end_of(1), None);
    world.run(0.000_001);
    assert_eq!(world.end_of(1), dropped(DropReason::Deadline), "by the timer, a nanosecond later");
    assert_eq!(world.sizes(), [], "the four wait for a fifth until 10");
    world.run_out();
}

#[test]
fn heads_that_do_not_spoil_the_batch_are_kept() {
    let config = ModelConfig { profile: profile(1.0, 5.0, 5), ..deferred() };
    let mut world = World::new(vec![config], 1);
    world.arrives(0, 1, 0.0, 10.5);
    (2..=5).for_each(|task| world.arrives(0, task, 0.0, 20.0));
    world.run_out();
    assert_eq!(world.end_of(1), completed(&world, 10.0, 5), "just in time");
}

#[test]
fn a_hopeless_task_ends_at_once_and_not_at_its_deadline() {
    let hog = linear(Policy::Eager, 50.0, 0.0, 1_000.0);
    let mut world = World::new(vec![deferred(), hog], 1);
    world.arrives(1, 100, 0.0, 1_000.0); // the only slot is taken until 50
    world.arrives(0, 1, 1.0, 20.0); // ℓ(1) = 6: from 15 on it cannot end by 21
    world.run(15.0);
    assert_eq!(world.end_of(1), None);
    world.run(0.000_001);
    assert_eq!(world.end_of(1), dropped(DropReason::Deadline));
    world.run_out();
}

#[test]
fn what_cannot_be_served_is_refused_with_its_reason() {
    let config = ModelConfig { queue_capacity: 2, ..deferred() };
    let mut world = World::new(vec![config], 1);
    world.arrives(0, 1, 0.0, 0.0); // its deadline is now
    world.arrives(0, 2, 0.0, 5.9); // shorter than one execution
    (3..=5).for_each(|task| world.arrives(0, task, 0.0, 20.0));
    world.run(0.0);
    assert_eq!(world.end_of(1), dropped(DropReason::DeadlinePassed));
    assert_eq!(world.end_of(2), dropped(DropReason::DeadlinePassed));
    assert_eq!(world.end_of(5), dropped(DropReason::QueueFull));
    let counters = world.models[0].counters();
    assert_eq!((counters.ended, counters.queue_full), (3, 1));
    world.run_out();
    assert!(world.is_good(3) && world.is_good(4));
}

#[test]
fn a_task_can_be_cancelled_until_its_batch_is_sealed() {
    let mut world = World::new(vec![deferred()], 1);
    (1..=2).for_each(|task| world.arrives(0, task, 0.0, 20.0));
    world.run(1.0);
    assert!(world.cancel(0, 1));
    assert!(!world.cancel(0, 1), "it does not wait any more");
    assert_eq!(world.end_of(1), dropped(DropReason::Cancelled));
    world.run(12.1); // the frontrun moment of task 2 alone: 20 − ℓ(2)
    assert_eq!(world.sizes(), [1]);
    assert!(!world.cancel(0, 2), "sealed: it will be answered");
    world.run_out();
    assert!(world.is_good(2));
}

#[test]
fn the_tasks_of_a_lost_frontend_go_with_it() {
    let task = |frontend: u16, slot: u32| TaskId::new(FrontendId(frontend), slot, 0).0;
    let mut world = World::new(vec![deferred()], 1);
    world.arrives(0, task(1, 0), 0.0, 12.0);
    world.run(5.1);
    assert_eq!(world.sizes(), [1], "sealed before the loss: it executes, no frontend hears");
    (1..=3).for_each(|slot| world.arrives(0, task(1, slot), 0.0, 20.0));
    (1..=2).for_each(|slot| world.arrives(0, task(2, slot), 0.0, 20.0));
    world.run(1.0);
    world.lose_frontend(FrontendId(1));
    assert_eq!(world.dropped(DropReason::FrontendLost), 3);
    world.run_out();
    assert_eq!(world.sizes(), [1, 2]);
    assert!(world.is_good(task(2, 1)) && world.is_good(task(2, 2)));
}

#[test]
fn when_no_backend_serves_the_model_every_waiting_task_ends() {
    let mut world = World::new(vec![deferred()], 0);
    (1..=3).for_each(|task| world.arrives(0, task, 0.0, 20.0));
    world.run(1.0);
    world.drop_all(0, DropReason::NoBackend);
    assert_eq!(world.dropped(DropReason::NoBackend), 3);
    world.run_out();
}

#[test]
fn eager_starts_at_once_and_batches_what_came_meanwhile() {
    let mut world = World::new(vec![linear(Policy::Eager, 1.0, 5.0, 40.0)], 1);
    world.arrives(0, 1, 0.0, 40.0);
    (2..=4).for_each(|task| world.arrives(0, task, f64::from(task as u32), 40.0));
    world.run_out();
    assert_eq!(world.end_of(1), completed(&world, 6.0, 1));
    assert_eq!(world.end_of(4), completed(&world, 14.0, 3));
}

#[test]
fn eager_gives_no_head_up_for_a_larger_batch() {
    let config = ModelConfig { policy: Policy::Eager, ..deferred() };
    let mut world = World::new(vec![config, linear(Policy::Eager, 5.0, 0.0, 1_000.0)], 1);
    world.arrives(1, 100, 0.0, 1_000.0); // the slot is taken until 5
    world.arrives(0, 1, 0.0, 12.0);
    (2..=9).for_each(|task| world.arrives(0, task, 0.0, 40.0));
    world.run_out();
    assert_eq!(world.end_of(1), completed(&world, 12.0, 2), "ℓ(2) is all its deadline allows");
    assert_eq!(world.sizes(), [1, 2, 7]);
}

/// One slot. Four tasks of 5 ms each come, nothing is gained by batching them, and then one of another model, which must start
/// by 12.
#[test]
fn a_batch_that_gains_nothing_is_split_so_that_others_have_their_turn() {
    let served = |splits| {
        let models =
            vec![linear(Policy::Baton, 5.0, 0.0, 100.0), linear(Policy::Baton, 0.0, 2.0, 13.0)];
        let mut world = World::new(models, 1);
        let rules = Rules { splits, ..Alternative::AtOnce.rules() };
        world.models.iter_mut().for_each(|model| model.set_rules(rules));
        (1..=4).for_each(|task| world.arrives(0, task, 0.0, 100.0));
        world.arrives(1, 5, 6.0, 14.0);
        world.run_out();
        (world.sizes(), world.is_good(5))
    };
    assert_eq!(served(true), (vec![1, 1, 1, 1, 1], true));
    assert_eq!(served(false), (vec![1, 3], false), "three take until 20");
}

/// One slot is free at 10, the other at 10.5. A batch of the three tasks behind the head must start at 10, the head alone at 11.
#[test]
fn a_head_is_passed_over_for_a_batch_that_must_start_first_and_waits_on() {
    let served = |rules: Alternative| {
        let taken = |until| linear(Policy::Eager, 0.0, until, 1_000.0);
        let models = vec![linear(Policy::Eager, 2.0, 4.0, 100.0), taken(10.0), taken(10.5)];
        let mut world = World::new(models, 2);
        world.models[0].set_rules(rules.rules());
        [1, 2]
            .into_iter()
            .for_each(|model| world.arrives(model, 99 + u64::from(model), 0.0, 1_000.0));
        world.arrives(0, 1, 0.0, 17.0);
        (2..=4).for_each(|task| world.arrives(0, task, 0.0, 20.0));
        world.run_out();
        (world.sizes(), (1..=4).filter(|&task| world.is_good(task)).count())
    };
    assert_eq!(served(Alternative::PassOver), (vec![1, 1, 3, 1], 4));
    assert_eq!(
        served(Alternative::KeepHeads).1,
        3,
        "the head first, and then one of the three is late"
    );
}

#[test]
fn the_way_of_the_answer_is_taken_off_the_deadline() {
    let network = NetworkDelay { response: ms(2.0), ..NetworkDelay::default() };
    let mut world = World::new(vec![ModelConfig { network, ..deferred() }], 1);
    world.arrives(0, 1, 0.0, 20.0);
    world.arrives(0, 2, 30.0, 7.9); // 6 ms to execute, 2 ms back
    world.run_out();
    assert_eq!(world.end_of(1), completed(&world, 17.0, 1));
    assert_eq!(world.end_of(2), dropped(DropReason::DeadlinePassed));
}

#[test]
fn plans_leave_early_enough_for_their_inputs_to_be_fetched() {
    let network = NetworkDelay { ctrl: ms(1.0), data_per_task: ms(0.5), ..NetworkDelay::default() };
    let mut world = World::new(vec![ModelConfig { network, ..deferred() }], 1);
    world.arrives(0, 1, 0.0, 20.0);
    world.run_out();
    // A second task would need ℓ(2) = 7 and half a millisecond more to fetch.
    assert_eq!(world.batches[0].start, world.at(12.5));
    assert_eq!(world.batches[0].sealed_at, world.at(11.0));
}

#[test]
fn a_deferred_batch_starts_earlier_by_what_timers_are_late() {
    let network = NetworkDelay { jitter: ms(1.0), ..NetworkDelay::default() };
    let mut world = World::new(vec![ModelConfig { network, ..deferred() }], 1);
    world.arrives(0, 1, 0.0, 20.0);
    world.run_out();
    assert_eq!(world.batches[0].start, world.at(12.0), "its frontrun moment is 20 − ℓ(2) = 13");
}

#[test]
fn the_next_batch_is_fetched_while_the_slot_still_executes() {
    let network = NetworkDelay { ctrl: ms(1.0), ..NetworkDelay::default() };
    let config = ModelConfig { network, ..linear(Policy::Eager, 1.0, 5.0, 40.0) };
    let mut world = World::new(vec![config], 1);
    (1..=2).for_each(|task| world.arrives(0, task, f64::from(task as u32 - 1), 40.0));
    world.run_out();
    let second = &world.batches[1];
    assert_eq!((second.sealed_at, second.start), (world.at(6.0), world.at(7.0)));
    assert_eq!(world.end_of(2), completed(&world, 13.0, 1), "the slot never idled");
}

#[test]
fn batches_wait_for_the_weights_and_tasks_that_cannot_are_given_up() {
    let mut world = World::new(vec![linear(Policy::Eager, 1.0, 5.0, 20.0)], 1);
    assert!(world.models[0].is_ready(), "until it hears otherwise");
    world.weights(0, Readiness::Cold { load: ms(10.0) });
    assert!(!world.models[0].is_ready());
    world.arrives(0, 1, 0.0, 15.9);
    world.arrives(0, 2, 0.0, 20.0);
    world.run(1.0);
    assert_eq!(world.end_of(1), dropped(DropReason::DeadlinePassed), "a LOAD and ℓ(1) take 16");
    let until = world.at(9.0);
    world.weights(0, Readiness::Loading { until });
    assert!(!world.models[0].is_ready());
    world.run(7.9);
    assert_eq!(world.sizes(), []);
    world.run_out();
    assert_eq!(world.end_of(2), completed(&world, 15.0, 1));
    world.weights(0, Readiness::Resident);
    assert!(world.models[0].is_ready());
    world.mark();
    world.arrives(0, 3, 0.0, 20.0);
    world.run_out();
    assert_eq!(world.end_of(3), completed(&world, 6.0, 1));
}

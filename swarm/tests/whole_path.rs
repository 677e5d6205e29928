//! The whole path on a quiet network: what must happen when little goes wrong. What must hold
//! whatever goes wrong is the swarm's business.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod served;

use baton_core::{ModelId, Nanos, Policy};
use baton_scheduler::{Counter, ModelThreadCounters};
use baton_swarm::{Conditions, Link, Load, Tally};
use rand::RngExt;
use served::{LOAD, MODELS, Served, cluster, ms};

fn completed(tasks: u32) -> Tally {
    Tally { completed: tasks, ..Tally::default() }
}

#[test]
fn a_modest_load_is_served_completely_and_in_time() {
    for policy in [Policy::Symphony, Policy::Eager] {
        let mut served = Served::new(2, policy, 1);
        served.offer(&[0, 1, 2], 4_000, ms(1_500), &LOAD);
        assert!(served.offered > 300, "{} offered", served.offered);
        assert_eq!(served.finish(), completed(served.offered), "{policy:?}");
    }
}

#[test]
fn cancelled_tasks_end_once() {
    let mut served = Served::new(2, Policy::Symphony, 3);
    served.offer(&[0, 1, 2], 1_000, ms(200), &Load { cancels: 100, ..LOAD });
    let tally = served.finish();
    assert!(tally.dropped() > 0 && tally.failed() == 0, "{tally:?}");
    assert_eq!(served.world.duplicates(), 0);
}

#[test]
fn drained_backends_lose_nothing_and_a_late_one_is_used() {
    let mut served = Served::new(2, Policy::Symphony, 2);
    served.world.start_backend(2);
    served.offer(&[0, 1, 2], 2_000, ms(100), &LOAD);
    assert!(served.world.all_joined());
    for backend in [0, 1] {
        let left = served.world.leave(backend, ms(200));
        assert!(matches!(left, Some(Ok(()))), "it leaves in order: {left:?}");
    }
    served.offer(&[0, 1, 2], 2_000, ms(100), &LOAD);
    let tally = served.finish();
    // Some deadlines leave no time to wait for anything.
    assert!(tally.failed() == 0 && tally.dropped() * 20 < served.offered, "{tally:?}");
}

/// Answers that wait for room in a narrow connection leave before their backend does.
#[test]
fn a_backend_that_leaves_has_sent_what_it_answered() {
    let mut cluster = cluster(2, Policy::Eager);
    cluster.models.iter_mut().for_each(|model| model.output_bytes = 4_000);
    let link = Link { window: 2_048, ..Link::QUIET };
    let mut served = Served::of(cluster, Conditions { link, ..Conditions::quiet() }, 4);
    for round in 0..20 {
        served.offer(&[0, 1, 2], 600, ms(25), &LOAD);
        // Each life has its place; two live at a time.
        let left = served.world.leave(round, ms(100));
        assert!(matches!(left, Some(Ok(()))), "it leaves in order: {left:?}");
        served.world.start_backend(round % 2);
        served.offer(&[0, 1, 2], 600, ms(25), &LOAD);
    }
    let tally = served.finish();
    assert!(tally.completed > 1_000 && tally.failed() == 0, "{tally:?}");
}

/// Models move from thread to thread at random moments.
#[test]
fn models_that_move_lose_no_task() {
    for seed in 0..6 {
        let policy = Policy::ALL[seed as usize % Policy::ALL.len()];
        let mut served = Served::new(3, policy, seed);
        for _ in 0..20 {
            let model = ModelId(served.world.rng.random_range(0..MODELS as u32));
            let to = served.world.rng.random_range(0..3);
            let scheduler = served.world.scheduler.as_mut().unwrap();
            scheduler.assembly.control.move_model(model, to);
            let span = Nanos::from_micros(served.world.rng.random_range(0..15_000));
            served.offer(&[0, 1, 2], 250, span, &Load { cancels: 50, ..LOAD });
        }
        served.finish();
        assert_eq!(served.world.duplicates(), 0, "a task has two outcomes");
        let counters = served.world.scheduler.as_ref().unwrap().assembly.counters();
        let sum = |of: fn(&ModelThreadCounters) -> &Counter| -> u64 {
            counters.model_threads.iter().map(|thread| of(thread).get()).sum()
        };
        let moved = counters.control_thread.models_moved.get();
        assert!(moved > 0);
        assert_eq!([sum(|c| &c.models_released), sum(|c| &c.models_adopted)], [moved, moved]);
        assert_eq!(sum(|c| &c.unknown_model), 0, "a request came before its model");
    }
}

#[test]
fn a_busy_threads_model_moves_to_an_idle_one_by_itself() {
    let mut served = Served::new(2, Policy::Baton, 5);
    let homes = |served: &Served| {
        served.world.scheduler.as_ref().unwrap().assembly.control.homes()[..3].to_vec()
    };
    // Models 0 and 2 live on the first thread; only they are asked for.
    assert_eq!(homes(&served), [0, 1, 0]);
    served.offer(&[0, 2], 700, ms(3_400), &LOAD);
    let after = homes(&served);
    assert_ne!(after[0], after[2], "{after:?}");
    let tally = served.finish();
    let counters = served.world.scheduler.as_ref().unwrap().assembly.counters();
    assert_eq!(counters.control_thread.models_moved.get(), 1, "once is enough");
    let passed_on = counters.model_threads[0].passed_on.get();
    assert!(passed_on < 100, "frontends go on by way of the former home: {passed_on}");
    // Some deadlines leave no time to wait for anything; the move adds nothing that shows.
    assert!(tally.failed() == 0 && tally.dropped() * 50 < served.offered, "{tally:?}");
}

/// Members look for a scheduler that has died, and the next one at its address serves soon.
#[test]
fn a_scheduler_that_is_started_again_serves_within_a_second() {
    for seed in 0..6 {
        let mut served = Served::new(2, Policy::Baton, seed);
        served.offer(&[0, 1, 2], 4_000, ms(100), &LOAD);
        served.run(ms(300), &LOAD);
        served.world.scheduler = None;
        served.run(ms(400), &LOAD);
        served.world.start_scheduler();
        served.run(ms(900), &LOAD);
        let before = served.applications.tally.completed;
        served.offer(&[0, 1, 2], 4_000, ms(200), &LOAD);
        let offered = served.offered;
        let tally = served.finish();
        assert!(tally.completed > before && tally.failed() == 0, "{tally:?} of {offered}");
    }
}

/// A frontend that dies takes its own tasks with it and no others.
#[test]
fn a_frontend_that_dies_costs_another_nothing() {
    for seed in 0..6 {
        let mut served = Served::new(2, Policy::Baton, seed);
        served.offer(&[0, 1, 2], 2_000, ms(200), &LOAD);
        served.applications.lose(&served.world, 1);
        served.world.frontends[1] = None;
        served.run(ms(1_500), &LOAD);
        let tally = served.applications.tally;
        assert_eq!((tally.total(), tally.failed()), (served.offered, 0), "{tally:?}");
        assert_eq!(served.world.slots_in_use(0), 0);
    }
}

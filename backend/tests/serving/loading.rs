//! LOAD and UNLOAD: a model leaves an executor and comes back, and batches wait for it.

use baton_backend::BackendError;
use baton_types::Nanos;

use crate::world::{ActionSpec, ENGINE_ERROR, EXECUTED, EXPIRED, LOAD, REFUSED, UNLOAD, World};

/// A model that was unloaded.
fn unloaded() -> World {
    let mut world = World::ready();
    let unload = world.change(UNLOAD);
    world.settle(&mut []);
    assert_eq!(world.hands[0].other(), Some(("unload", 0)), "by this process's id of it");
    world.hands[0].finish_other(world.now, true);
    world.settle(&mut []);
    assert_eq!(world.reports(), [(unload, 0, EXECUTED)]);
    world
}

#[test]
fn a_batch_waits_until_its_model_is_loaded() {
    let mut world = unloaded();
    let mut a = world.connected_frontend(1);
    let task = a.submit(1);
    let batch = world.infer(&ActionSpec::default(), &[task]);
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].batch(), None, "the model is not there");
    let load = world.change(LOAD);
    world.settle(&mut [&mut a]);
    assert_eq!((world.hands[0].other(), world.hands[0].batch()), (Some(("load", 0)), None));
    world.hands[0].finish_other(world.now, true);
    world.settle(&mut [&mut a]);
    assert_eq!(world.reports(), [(load, 0, EXECUTED)]);
    assert_eq!(world.hands[0].batch(), Some(1));
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut a]);
    assert_eq!(world.reports(), [(batch, 1, EXECUTED)]);
    assert_eq!((world.counter("loads"), world.counter("unloads")), (1, 1));
}

#[test]
fn a_batch_whose_model_does_not_come_goes_back_with_its_window() {
    let mut world = unloaded();
    let mut a = world.connected_frontend(1);
    let task = a.submit(1);
    let batch = world.infer(&ActionSpec::default(), &[task]);
    let load = world.change(LOAD);
    world.settle(&mut [&mut a]);
    world.hands[0].finish_other(world.now, false);
    world.settle(&mut [&mut a]);
    assert_eq!(world.reports(), [(load, 0, ENGINE_ERROR)]);
    assert_eq!((world.hands[0].batch(), world.counter("load_errors")), (None, 1));
    assert_eq!(world.counter("models_beyond_memory"), 1);
    world.steps(700);
    assert_eq!(world.reports(), [(batch, 0, EXPIRED)]);
}

#[test]
fn what_may_start_first_starts_first_and_what_comes_too_late_expires() {
    let mut world = World::ready();
    let mut a = world.connected_frontend(1);
    let [running, next] = [1, 2].map(|byte| a.submit(byte));
    let first = world.infer(&ActionSpec::default(), &[running]);
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].batch(), Some(1));
    let later = ActionSpec { exec_in: Nanos::from_millis(3), ..ActionSpec::default() };
    let second = world.infer(&later, &[next]);
    let reload = world.change(LOAD);
    let hasty = ActionSpec { kind: LOAD, invalid_in: Nanos::from_millis(1), ..later.clone() };
    let hasty = world.infer(&ActionSpec { exec_in: Nanos(1), ..hasty }, &[]);
    world.steps(250);
    assert_eq!(
        world.reports(),
        [(hasty, 0, EXPIRED)],
        "the executor was busy for its whole window"
    );
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut a]);
    assert_eq!(world.reports(), [(first, 1, EXECUTED)]);
    assert_eq!(world.hands[0].other(), Some(("load", 0)), "its window begins before the batch's");
    world.hands[0].finish_other(world.now, true);
    world.settle(&mut [&mut a]);
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut a]);
    assert_eq!(world.reports(), [(reload, 0, EXECUTED), (second, 1, EXECUTED)]);
    assert_eq!(world.counter("loads_expired"), 1);
}

#[test]
fn loads_are_bounded_and_have_no_tasks() {
    let mut world = World::ready();
    let mut a = world.connected_frontend(1);
    let task = a.submit(1);
    let with_task = world.infer(&ActionSpec { kind: LOAD, ..ActionSpec::default() }, &[task]);
    world.settle(&mut [&mut a]);
    assert_eq!(world.reports(), [(with_task, 0, REFUSED)]);
    // One is with the executor and eight wait.
    world.change(LOAD);
    world.settle(&mut [&mut a]);
    for _ in 0..8 {
        world.change(LOAD);
    }
    let one_too_many = world.change(LOAD);
    world.settle(&mut [&mut a]);
    assert_eq!(world.reports(), [(one_too_many, 0, REFUSED)]);
    assert_eq!((world.counter("plans_malformed"), world.counter("plans_queue_full")), (1, 1));
}

#[test]
fn an_unload_of_one_life_is_over_before_the_next_and_not_reported_there() {
    let mut world = World::ready();
    world.change(UNLOAD);
    world.settle(&mut []);
    world.restart_scheduler();
    world.pass_awake(Nanos::from_millis(3_000));
    world.steps(10);
    assert_eq!(world.control.conn, None, "the executor still has the UNLOAD");
    world.hands[0].finish_other(world.now, true);
    world.pass_awake(Nanos::from_millis(3_000));
    assert_eq!(world.control.conn, None, "the model is not back yet");
    assert_eq!(world.hands[0].other(), Some(("load", 0)), "a backend joins with all its models");
    world.hands[0].finish_other(world.now, true);
    world.pass_awake(Nanos::from_millis(3_000));
    world.let_in();
    world.settle(&mut []);
    assert_eq!(world.reports(), []);
    let mut a = world.connected_frontend(1);
    let task = a.submit(1);
    world.infer(&ActionSpec::default(), &[task]);
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].batch(), Some(1), "it serves what it has announced");
}

#[test]
fn a_backend_that_cannot_load_an_unloaded_model_again_does_not_join_without_it() {
    let mut world = unloaded();
    world.restart_scheduler();
    world.pass_awake(Nanos::from_millis(3_000));
    assert_eq!(world.hands[0].other(), Some(("load", 0)));
    world.hands[0].finish_other(world.now, false);
    world.pass_awake(Nanos::from_millis(3_000));
    assert!(matches!(world.worker.result(), Some(Err(BackendError::Engine(_)))));
}

//! Backends hear which tasks came while no slot held their model.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod stage;

use baton_core::{ModelId, Nanos};
use baton_rdma::Transport;
use baton_rdma::wire::{ActionStatus, COLD_SINCE, LoadStatus};
use baton_topo::Agent;
use stage::asking::status;
use stage::cached::{Cold, LOAD, batch_of, cached, done, load_of};
use stage::{Stage, ms};

/// No slot holds a model, and has not for a while.
fn cold() -> Cold {
    let mut cold = Cold::start(&[]);
    cold.wait(ms(1));
    cold
}

#[test]
fn the_tasks_that_waited_for_a_load_are_called_cold_and_no_others() {
    let mut cold = cold();
    let (load, _) = load_of(&cold.submit(1), 1);
    cold.wait(ms(1));
    assert_eq!(cold.submit(1), [], "it waits as well");
    let batch = batch_of(&cold.loaded(load), 1);
    assert_eq!(cold.backend.cold, [0, 1].map(|slot| cold.frontend.task(slot, 0)));
    cold.execute(batch);
    batch_of(&cold.submit(1), 1);
    assert_eq!(cold.backend.cold.len(), 2, "a slot holds it");
}

#[test]
fn a_task_of_a_batch_that_came_back_is_still_cold() {
    let mut cold = cold();
    let (load, _) = load_of(&cold.submit(1), 1);
    let batch = batch_of(&cold.loaded(load), 1);
    let now = cold.stage.now;
    cold.backend.report(batch, 0, ActionStatus::Refused, (now, now));
    batch_of(&cold.wait(ms(1)), 1);
    assert_eq!(cold.backend.cold, [cold.frontend.task(0, 0); 2]);
}

#[test]
fn a_backend_of_an_older_build_hears_nothing_of_cold_tasks() {
    let mut stage = Stage::new(&cached(1));
    stage.speaks = COLD_SINCE - 1;
    let mut cold = Cold::on(stage, &[]);
    cold.wait(ms(1));
    let (load, _) = load_of(&cold.submit(1), 1);
    batch_of(&cold.loaded(load), 1);
    assert!(cold.backend.cold.is_empty(), "it would read a length of 2 GiB");
}

/// Its new home hears of what changes after that alone, and its former home of nothing until it comes back.
#[test]
fn a_model_that_moves_takes_along_since_when_it_is_cold() {
    let mut cold = Cold::on(Stage::new(&cached(2)), &[]);
    cold.wait(ms(1));
    let move_to = |cold: &mut Cold, thread: usize| {
        assert!(cold.stage.scheduler.control.move_model(ModelId(0), thread));
        assert_eq!(cold.stage.exchange(&mut cold.frontend), []);
        cold.backend.threads.swap(0, 1);
    };
    move_to(&mut cold, 1);
    cold.serve_cold(0);
    assert_eq!(cold.backend.cold, [cold.frontend.task(0, 0)], "no slot held it when it moved");
    move_to(&mut cold, 0);
    batch_of(&cold.submit(0), 0);
    assert_eq!(cold.backend.cold.len(), 1, "one does");
}

/// The LOAD ends while the model is on its way: its former home hears of it, and its new one when it is known there.
#[test]
fn a_model_whose_load_ends_while_it_moves_is_cold_no_longer() {
    let mut cold = Cold::on(Stage::new(&cached(2)), &[]);
    cold.wait(ms(1));
    let (load, _) = load_of(&cold.submit(0), 0);
    cold.stage.advance(LOAD);
    done(&mut cold.backend, load, LoadStatus::Loaded, LOAD, cold.stage.now);
    cold.backend.transport.flush();
    assert!(cold.stage.scheduler.control.move_model(ModelId(0), 1));
    let now = cold.stage.now;
    cold.stage.scheduler.model_threads[0].poll(now);
    cold.stage.scheduler.rank.poll(now);
    let told = cold.stage.exchange(&mut cold.backend);
    cold.backend.threads.swap(0, 1);
    cold.execute(batch_of(&told, 0));
    cold.stage.exchange(&mut cold.frontend);
    batch_of(&cold.submit(0), 0);
    assert_eq!(cold.backend.cold, [cold.frontend.task(0, 0)], "a slot holds it");
}

/// What ends at the deadline is in time.
#[test]
fn a_cold_task_is_in_time_up_to_its_deadline() {
    for (after, in_time) in [(Nanos::ZERO, 1), (Nanos(1), 0)] {
        let mut cold = cold();
        let deadline = cold.stage.now + ms(100);
        let (load, _) = load_of(&cold.submit(1), 1);
        let batch = batch_of(&cold.loaded(load), 1);
        cold.wait(ms(100));
        let ran = (deadline - ms(5), deadline + after);
        cold.backend.report(batch, 0, ActionStatus::Executed, ran);
        cold.stage.exchange(&mut cold.backend);
        let cache = status(&mut cold.stage).models[1].cache.clone().unwrap();
        assert_eq!((cache.cold, cache.cold_in_time), (1, in_time));
    }
}

//! A scheduler that is lost and comes back, stepped by hand.

use baton_backend::execute::checksum;
use baton_backend::{BackendError, MembershipError, Stage};
use baton_rdma::wire::{RefuseCode, Role};
use baton_rdma::{TcpConfig, Transport};
use baton_topo::Agent;
use baton_types::Nanos;

use crate::catalogue::describe_added;
use crate::party::{Party, Said};
use crate::world::{ActionSpec, EXECUTED, World};

/// The backend has noticed, and connects again after a pause of at most `pause_ms`.
fn return_within(world: &mut World, pause_ms: u64) {
    world.until("it has let go", |w| w.stage() == Stage::Away);
    for _ in 0..10 {
        world.pass(Nanos::from_millis(pause_ms / 10));
        world.steps(3);
        if world.control.conn.is_some() {
            return;
        }
    }
    panic!("it does not come back");
}

pub(crate) fn return_to_scheduler(world: &mut World) {
    return_within(world, 50);
}

#[test]
fn after_a_restart_of_the_scheduler_the_backend_serves_again() {
    let mut world = World::ready();
    let mut old = world.connected_frontend(2);
    world.restart_scheduler();
    return_to_scheduler(&mut world);
    world.let_in();
    assert_eq!((world.counter("schedulers_lost"), world.counter("rejoins")), (1, 1));

    // The number means another frontend now.
    let mut frontend = world.connected_frontend(2);
    let task = frontend.submit(7);
    let batch = world.infer(&ActionSpec::default(), &[task]);
    world.settle(&mut [&mut old, &mut frontend]);
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut old, &mut frontend]);
    assert_eq!(world.reports(), [(batch, 1, EXECUTED)]);
    assert_eq!(frontend.answer(task).unwrap(), checksum(&[7; 64]));
    assert!(old.party.heard.iter().any(|said| matches!(said, Said::Closed(_))));
}

#[test]
fn what_executes_is_answered_before_the_backend_joins_again_and_the_rest_is_given_up() {
    let mut world = World::ready();
    let mut frontend = world.connected_frontend(2);
    let tasks = [1, 2, 3, 4, 5].map(|byte| frontend.submit(byte));
    for task in tasks {
        world.infer(&ActionSpec::default(), &[task]);
    }
    world.settle(&mut [&mut frontend]);
    world.restart_scheduler();
    for _ in 0..50 {
        world.pass(Nanos::from_millis(100));
        world.settle(&mut [&mut frontend]);
    }
    assert!(world.control.conn.is_none(), "a batch executes, however long it takes");
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut frontend]);
    assert!(world.hands[0].batch().is_none(), "nothing new is started");
    assert_eq!(frontend.answer(tasks[0]).unwrap(), checksum(&[1; 64]));
    assert!(tasks[1..].iter().all(|&task| frontend.answer(task).is_none()));
    assert_eq!(world.counter("batches_abandoned"), 4);
    assert_eq!(frontend.slabs.leases(), 0);

    return_to_scheduler(&mut world);
    world.let_in();
    let mut frontend = world.connected_frontend(2);
    let again = [1, 2, 3].map(|byte| frontend.submit(byte));
    for &task in &again {
        world.infer(&ActionSpec::default(), &[task]);
    }
    for _ in &again {
        world.settle(&mut [&mut frontend]);
        world.hands[0].finish(world.now, world.now);
    }
    world.settle(&mut [&mut frontend]);
    assert_eq!(world.reports().len(), 3, "every batch slot is there again");
}

#[test]
fn inputs_being_pulled_are_let_go_of() {
    let mut world = World::ready();
    let mut frontend = world.connected_frontend(2);
    let task = frontend.submit(1);
    world.infer(&ActionSpec::default(), &[task]);
    // The READ is posted; the frontend has not answered it.
    world.step();
    assert_eq!(world.worker.counters().transport.reads_done, 0);
    world.restart_scheduler();
    return_to_scheduler(&mut world);
    world.settle(&mut [&mut frontend]);
    assert_eq!(world.counter("batches_abandoned"), 1);
    assert_eq!(frontend.slabs.leases(), 0);
    assert!(world.hands[0].batch().is_none());
}

#[test]
fn the_next_life_waits_until_the_executor_has_taken_a_model_in() {
    let mut world = World::ready();
    let hand = world.hands[0].clone();
    describe_added(&mut world.control);
    world.until("it is to be loaded", |_| hand.aside().is_some());
    hand.finish_aside();
    world.until("it is to be taken in", |_| hand.other().is_some());
    world.restart_scheduler();
    for _ in 0..50 {
        world.pass(Nanos::from_millis(100));
        world.steps(3);
    }
    assert!(world.control.conn.is_none(), "the model belongs to the life that was");
    hand.finish_other();
    return_to_scheduler(&mut world);
    world.let_in();
}

#[test]
fn a_silent_scheduler_is_looked_for_too() {
    let mut world = World::ready();
    world.answers_pings = false;
    for _ in 0..14 {
        world.pass(Nanos::from_millis(100));
        world.step();
    }
    assert_eq!(world.counter("schedulers_lost"), 1);
    world.answers_pings = true;
    world.restart_scheduler();
    return_to_scheduler(&mut world);
    world.let_in();
    assert_eq!(world.counter("rejoins"), 1);
}

#[test]
fn who_is_not_let_in_tries_again_with_longer_pauses() {
    let mut world = World::ready();
    world.restart_scheduler();
    let mut attempts = 0;
    let lost = world.now;
    while world.now - lost < Nanos::from_millis(5_000) {
        if let Some(conn) = world.control.conn.take() {
            attempts += 1;
            let why = "a backend of that name has joined";
            world.control.transport.close(conn, RefuseCode::DuplicateJoin, why);
        }
        world.pass(Nanos::from_millis(10));
        world.steps(2);
    }
    // 50, 100, 200, 400, and then 500 ms, each halved at most.
    assert!((10..=24).contains(&attempts), "{attempts} attempts in 5 s");
    return_within(&mut world, 500);
    world.let_in();
}

#[test]
fn a_scheduler_that_is_gone_for_long_is_waited_for() {
    let mut world = World::ready();
    world.restart_scheduler();
    let gone = world.network.endpoint(baton_rdma::Identity { role: Role::Control, member: 0 });
    world.control = Party::new(gone);
    for _ in 0..600 {
        world.pass(Nanos::from_millis(100));
        world.steps(2);
    }
    assert!(!world.worker.finished(), "a minute is no reason to end");
    world.worker.leave(world.now);
    world.until("it ends", |w| w.worker.finished());
    assert_eq!(world.worker.result(), Some(&Ok(())), "who looks for a scheduler may leave");
}

#[test]
fn a_scheduler_that_came_back_with_another_catalogue_ends_the_backend() {
    let mut world = World::ready();
    world.restart_scheduler();
    return_to_scheduler(&mut world);
    world.send_catalog("resnet50", 999);
    world.until("it ends", |w| w.worker.finished());
    assert!(matches!(world.worker.result(), Some(Err(BackendError::Catalogue(_)))));
}

#[test]
fn an_operator_who_wants_it_gone_does_not_wait_for_the_scheduler() {
    let mut world = World::ready();
    let mut frontend = world.connected_frontend(2);
    let task = frontend.submit(1);
    world.infer(&ActionSpec::default(), &[task]);
    world.settle(&mut [&mut frontend]);
    world.restart_scheduler();
    world.settle(&mut [&mut frontend]);
    world.worker.leave(world.now);
    world.settle(&mut [&mut frontend]);
    assert!(!world.worker.finished(), "a batch executes");
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut frontend]);
    assert_eq!(world.worker.result(), Some(&Ok(())));
    assert!(frontend.answer(task).is_some());
}

#[test]
fn an_executor_that_dies_meanwhile_ends_the_backend() {
    let mut world = World::ready();
    let mut frontend = world.connected_frontend(2);
    let task = frontend.submit(1);
    world.infer(&ActionSpec::default(), &[task]);
    world.settle(&mut [&mut frontend]);
    world.restart_scheduler();
    world.settle(&mut [&mut frontend]);
    world.hands[0].die();
    world.until("it ends", |w| w.worker.finished());
    assert_eq!(world.worker.result(), Some(&Err(BackendError::ExecutorDied(0))));
}

/// Its scheduler stops while it joins, once it has come so far.
fn stopped_while_joining(prepare: fn(&mut World)) -> World {
    let mut world = World::new(1, TcpConfig::default());
    world.until("it asks for the catalogue", |w| w.control.conn.is_some());
    prepare(&mut world);
    world.restart_scheduler();
    world
}

#[test]
fn a_scheduler_that_stops_while_a_backend_joins_is_waited_for_whatever_the_stage() {
    let stages: [fn(&mut World); 3] = [
        |_| {},
        |world| {
            world.send_catalog("resnet50", 64);
            world.until("it asks to join", |w| w.stage() == Stage::Joining);
        },
        |world| {
            world.answers_pings = false;
            world.send_catalog("resnet50", 64);
            world.until("it asks to join", |w| w.stage() == Stage::Joining);
            world.acknowledge_join();
            world.until("it is let in", |w| w.stage() == Stage::Linking);
            world.answers_pings = true;
        },
    ];
    for prepare in stages {
        let mut world = stopped_while_joining(prepare);
        // It may not know yet that it was lost.
        return_within(&mut world, 100);
        world.let_in();
        assert_eq!((world.counter("schedulers_lost"), world.counter("rejoins")), (0, 0));
    }
}

#[test]
fn a_model_thread_of_the_next_life_that_knows_no_such_backend_is_no_error() {
    let mut world = stopped_while_joining(|world| {
        world.answers_pings = false;
        world.send_catalog("resnet50", 64);
        world.until("it asks to join", |w| w.stage() == Stage::Joining);
        world.acknowledge_join();
        world.until("it reaches the ModelThread", |w| w.thread.conn.is_some());
        world.answers_pings = true;
        let conn = world.thread.conn.take().unwrap();
        world.thread.transport.close(conn, RefuseCode::Unauthorised, "no such member");
        world.thread.transport.flush();
        world.until("it has let go", |w| w.stage() == Stage::Away);
    });
    return_to_scheduler(&mut world);
    world.let_in();
}

#[test]
fn a_backend_that_is_never_let_in_ends_after_the_time_it_has_to_join() {
    let mut world = stopped_while_joining(|_| {});
    let began = world.now;
    while !world.worker.finished() {
        world.pass(Nanos::from_millis(10));
        world.steps(2);
        // Each attempt meets a scheduler that stops.
        world.restart_scheduler();
        assert!(world.now - began < Nanos::from_millis(6_000), "it tries for ever");
    }
    let Some(Err(error)) = world.worker.result() else { panic!("it was never let in") };
    let BackendError::Membership(MembershipError::TimedOut { tried_ms, last, .. }) = error else {
        panic!("{error}")
    };
    assert!((4_400..5_100).contains(tried_ms), "{tried_ms}");
    assert!(last.to_string().contains("bye"), "{last}");
}

//! Two batches in flight: what is submitted behind a batch that executes, and what is withdrawn instead.

use baton_topo::Agent;
use baton_types::{Nanos, TaskId};

use crate::party::Said;
use crate::world::{ActionSpec, EXECUTED, EXPIRED, FrontendSide, World};

/// A batch of one takes this long by its profile.
const ALONE: Nanos = Nanos::from_micros(300);

/// An action that may start between these moments from now.
fn window(exec_in: Nanos, invalid_in: Nanos) -> ActionSpec {
    ActionSpec { exec_in, invalid_in, ..ActionSpec::default() }
}

/// May start now, and for long.
fn open() -> ActionSpec {
    window(Nanos(1), Nanos::from_millis(100))
}

/// A GPU slot that executes a batch.
fn busy() -> (World, FrontendSide, u64, TaskId) {
    let mut world = World::ready();
    let mut a = world.connected_frontend(1);
    let task = a.submit(1);
    let batch = world.infer(&open(), &[task]);
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].batch(), Some(1));
    (world, a, batch, task)
}

#[test]
fn what_may_start_when_the_running_batch_should_end_is_submitted_behind_it() {
    let (mut world, mut a, first, one) = busy();
    let (two, three) = (a.submit(2), a.submit(3));
    let second = world.infer(&open(), &[two]);
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].behind(), Some(1));
    let third = world.infer(&open(), &[three]);
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].prepared(), 1, "near, and two are enough to submit");
    assert_eq!(world.counter("batches_behind"), 1);
    // Both end before the I/O thread looks.
    let now = world.now;
    world.hands[0].finish(now, now);
    world.hands[0].finish(now, now);
    world.settle(&mut [&mut a]);
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut a]);
    let reports = [first, second, third].map(|batch| (batch, 1, EXECUTED));
    assert_eq!(world.reports(), reports, "as they were submitted");
    assert!([one, two, three].iter().all(|&task| a.answer(task).is_some()));
}

#[test]
fn what_would_start_outside_its_window_waits_for_the_running_batch() {
    for (why, early) in [
        ("its window opens later", window(Nanos::from_millis(1), Nanos::from_millis(100))),
        ("its window closes before", window(Nanos(1), Nanos::from_micros(100))),
    ] {
        let (mut world, mut a, first, _) = busy();
        let second = world.infer(&early, &[a.submit(2)]);
        world.settle(&mut [&mut a]);
        let hand = &world.hands[0];
        assert_eq!((hand.behind(), hand.prepared()), (None, 1), "{why}");
        world.hands[0].finish(world.now, world.now);
        world.settle(&mut [&mut a]);
        assert_eq!(world.hands[0].batch(), Some(1), "an idle GPU slot does not wait");
        world.hands[0].finish(world.now, world.now);
        world.settle(&mut [&mut a]);
        assert_eq!(world.reports(), [(first, 1, EXECUTED), (second, 1, EXECUTED)]);
    }
}

#[test]
fn of_two_batches_that_are_ready_the_one_that_may_start_first_does() {
    let (mut world, mut a, first, _) = busy();
    let late = Nanos::from_millis(100);
    let later = world.infer(&window(Nanos::from_millis(5), late), &[a.submit(2)]);
    let sooner = world.infer(&window(Nanos::from_millis(3), late), &[a.submit(3)]);
    world.settle(&mut [&mut a]);
    assert_eq!((world.hands[0].behind(), world.hands[0].prepared()), (None, 2));
    world.pass(Nanos::from_millis(6));
    for _ in 0..3 {
        world.hands[0].finish(world.now, world.now);
        world.settle(&mut [&mut a]);
    }
    assert_eq!(world.reports(), [first, sooner, later].map(|batch| (batch, 1, EXECUTED)));
}

#[test]
fn behind_a_batch_that_takes_longer_than_it_should_nothing_is_submitted() {
    let (mut world, mut a, ..) = busy();
    world.pass(ALONE);
    world.infer(&open(), &[a.submit(2)]);
    world.settle(&mut [&mut a]);
    assert_eq!((world.hands[0].behind(), world.hands[0].prepared()), (None, 1));
}

#[test]
fn a_batch_whose_window_closes_behind_another_is_given_back_at_once() {
    let (mut world, mut a, first, one) = busy();
    let two = a.submit(2);
    let second = world.infer(&window(Nanos(1), Nanos::from_millis(1)), &[two]);
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].behind(), Some(1));
    let timer = world.worker.next_timer().expect("its window closes");
    assert!(timer <= world.now + Nanos::from_millis(3), "{timer:?}");
    world.pass(Nanos::from_millis(3));
    world.settle(&mut [&mut a]);
    assert_eq!(world.reports(), [(second, 0, EXPIRED)], "however long the other one takes");
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut a]);
    assert_eq!(world.reports(), [(first, 1, EXECUTED)]);
    assert!(a.answer(one).is_some());
    assert!(a.answer(two).is_none(), "its task is the scheduler's again");
    assert_eq!(world.counter("batches_expired"), 1);
    let third = world.infer(&open(), &[a.submit(3)]);
    world.settle(&mut [&mut a]);
    assert_eq!(world.counter("batches_behind"), 1, "nothing executes any more");
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut a]);
    assert_eq!(world.reports(), [(third, 1, EXECUTED)]);
}

#[test]
fn a_prepared_batch_is_looked_at_when_it_can_start_no_longer() {
    let (mut world, mut a, ..) = busy();
    let (from, until) = (Nanos::from_millis(2), Nanos::from_millis(9));
    let window_ends = world.now + until;
    world.infer(&window(from, until), &[a.submit(2)]);
    world.settle(&mut [&mut a]);
    assert_eq!((world.hands[0].behind(), world.hands[0].prepared()), (None, 1));
    let timer = world.worker.next_timer().expect("a batch waits");
    assert!(timer <= window_ends + Nanos::from_millis(2), "{timer:?} {window_ends:?}");
}

#[test]
fn rows_that_are_being_copied_are_not_used_again_before_the_copy_has_ended() {
    let (mut world, mut a, first, _) = busy();
    world.hands[0].copies_take_time();
    let late: Vec<u64> = (2..5)
        .map(|byte| world.infer(&window(Nanos(1), Nanos::from_micros(100)), &[a.submit(byte)]))
        .collect();
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].prepared(), 3);
    world.pass(Nanos::from_millis(2));
    let next = world.infer(&open(), &[a.submit(5)]);
    world.settle(&mut [&mut a]);
    assert_eq!((world.reports(), world.counter("fetch_bytes")), (vec![], 4 * 64));
    assert_eq!(world.hands[0].finish_copies(), 3);
    world.settle(&mut [&mut a]);
    assert_eq!(world.reports(), [0, 1, 2].map(|at| (late[at], 0, EXPIRED)));
    assert_eq!(world.counter("fetch_bytes"), 5 * 64, "now there is room for it");
    for batch in [first, next] {
        world.hands[0].finish(world.now, world.now);
        world.settle(&mut [&mut a]);
        assert_eq!(world.reports(), [(batch, 1, EXECUTED)]);
    }
}

#[test]
fn a_prepared_batch_that_loses_a_row_is_prepared_without_it_once_the_copy_has_ended() {
    let (mut world, mut a, _, _) = busy();
    let mut gone = world.connected_frontend(2);
    world.hands[0].copies_take_time();
    let (lost, kept) = (gone.submit(7), a.submit(8));
    let batch = world.infer(&window(Nanos::from_millis(2), Nanos::from_millis(9)), &[lost, kept]);
    world.settle(&mut [&mut a, &mut gone]);
    world.peer_down(gone.id);
    world.settle(&mut [&mut a]);
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut a]);
    assert_eq!((world.hands[0].prepared(), world.hands[0].batch()), (0, None), "it is copied");
    world.reports();
    world.hands[0].finish_copies();
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].batch(), Some(1));
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut a]);
    assert_eq!(world.reports(), [(batch, 1, EXECUTED)]);
    assert!(a.answer(kept).is_some());
}

#[test]
fn of_two_batches_with_an_executor_that_dies_the_one_that_came_back_is_answered() {
    let (mut world, mut a, first, one) = busy();
    let two = a.submit(2);
    world.infer(&open(), &[two]);
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].behind(), Some(1));
    world.hands[0].finish(world.now, world.now);
    world.hands[0].die();
    world.settle(&mut [&mut a]);
    let said = world.thread.take();
    let [done, rest @ ..] = &said[..] else { panic!("nothing was reported") };
    assert!(matches!(done, Said::Done { batch, rows: 1, .. } if *batch == first));
    assert!(rest.iter().all(|said| matches!(said, Said::Closed(_))), "{rest:?}");
    assert!(a.answer(one).is_some());
    assert!(a.answer(two).is_none(), "the scheduler learns of it by the broken connection");
    world.pass(Nanos::from_millis(5_000));
    world.settle(&mut [&mut a]);
    assert!(world.worker.finished());
}

#[test]
fn the_next_life_waits_for_what_is_being_copied() {
    let (mut world, mut a, _, _) = busy();
    world.hands[0].copies_take_time();
    let later = window(Nanos::from_millis(50), Nanos::from_millis(90));
    world.infer(&later, &[a.submit(2)]);
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].prepared(), 1);
    world.restart_scheduler();
    world.settle(&mut [&mut a]);
    world.hands[0].finish(world.now, world.now);
    for _ in 0..50 {
        world.pass(Nanos::from_millis(100));
        world.settle(&mut [&mut a]);
    }
    assert!(world.control.conn.is_none(), "its rows belong to the life that was");
    assert_eq!(world.hands[0].finish_copies(), 1);
    crate::rejoin::return_to_scheduler(&mut world);
    world.let_in();
    assert_eq!(world.counter("batches_abandoned"), 1);
}

/// The window of such a batch may be open for long.
#[test]
fn what_waits_for_its_turn_is_asked_back_when_a_life_ends() {
    let (mut world, mut a, _, _) = busy();
    let later = window(Nanos::from_millis(50_000), Nanos::from_millis(90_000));
    world.infer(&later, &[a.submit(2)]);
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].prepared(), 1);
    world.restart_scheduler();
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].prepared(), 0);
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut a]);
    crate::rejoin::return_to_scheduler(&mut world);
    world.let_in();
    assert_eq!(world.counter("batches_abandoned"), 1);
}

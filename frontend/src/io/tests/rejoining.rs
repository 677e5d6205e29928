//! The scheduler is lost, and another life of it takes the client back.

use std::time::Duration;

use baton_rdma::ReadStatus;
use baton_rdma::wire::{RefuseCode, Role};
use baton_topo::Agent as _;
use baton_types::{DropReason, FailReason, Nanos, TaskId};

use super::world::*;
use crate::{Client, Deadline, Loss, MembershipError, Outcome, SubmitReason};

/// What a new scheduler calls the client.
pub(super) const NUMBER: u32 = 9;
pub(super) const LONG: Deadline = Deadline::Within(Duration::from_secs(2));

pub(super) fn submits(world: &mut World, thread: usize) -> Vec<(TaskId, Nanos)> {
    let heard = world.threads[thread].take().into_iter();
    heard
        .filter_map(|heard| match heard {
            Heard::Submit { task, deadline, .. } => Some((task, deadline)),
            _ => None,
        })
        .collect()
}

pub(super) fn refusal(world: &World, client: &Client) -> SubmitReason {
    let input = client.model("alpha").unwrap().input().unwrap();
    world.submit_input(input, LONG).unwrap_err().reason
}

fn connect_new_backend(world: &mut World) {
    world.connect_backend(Role::Backend, TOKEN + u64::from(NUMBER));
}

#[test]
fn outstanding_tasks_are_submitted_again_and_answered_to_the_same_tickets() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let ticket = world.submit(&alpha, 7, LONG);
    let (before, deadline) = submits(&mut world, 0)[0];
    world.lose_scheduler();
    assert!(matches!(client.loss(), Some(Loss::Scheduler(_))));
    assert_eq!(refusal(&world, &client), SubmitReason::SchedulerLost);

    world.take_back(NUMBER);
    assert_eq!(client.loss(), None);
    let again = submits(&mut world, 0);
    let [(task, same_deadline)] = again[..] else { panic!("{again:?}") };
    assert_eq!(u32::from(task.frontend().0), NUMBER);
    assert_eq!((task.slot(), task.generation()), (before.slot(), before.generation() + 1));
    assert!(same_deadline.0.abs_diff(deadline.0) < 100_000, "it is the same moment");
    assert_eq!(ticket.task(), before, "a ticket keeps its name");

    connect_new_backend(&mut world);
    world.backend.take();
    assert_eq!(world.pull(before).0, ReadStatus::Stale);
    assert_eq!(world.pull(task), (ReadStatus::Done, vec![7; INPUT]));
    world.answer(task, &[1; OUTPUT]);
    let Outcome::Completed(reply) = ticket.wait() else { panic!() };
    assert_eq!(reply.bytes(), [1; OUTPUT]);
    drop(reply);
    assert_eq!(client.slots_in_use(), 0);
    let counters = client.counters();
    assert_eq!((counters.reconnects, counters.resubmitted, counters.submitted), (1, 1, 1));
    assert_eq!(counters.completed, 1);
}

#[test]
fn an_answer_of_the_life_before_counts_until_the_client_is_back() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let (early, late) = (world.submit(&alpha, 1, LONG), world.submit(&alpha, 2, LONG));
    let old = late.task();
    world.lose_scheduler();
    world.answer(early.task(), &[1; OUTPUT]);
    let Outcome::Completed(reply) = early.wait() else { panic!() };
    assert_eq!(reply.timing().execution(), Duration::from_millis(1), "by the clock of that life");

    world.take_back(NUMBER);
    assert!(world.backend.conn.is_none(), "its READs and answers are of no use any more");
    connect_new_backend(&mut world);
    world.answer(old, &[2; OUTPUT]);
    let again: Vec<_> = submits(&mut world, 0).into_iter().skip(2).collect();
    let [(task, _)] = again[..] else { panic!("only what had no outcome: {again:?}") };
    assert!(client.slots_in_use() >= 1);
    world.answer(task, &[3; OUTPUT]);
    let Outcome::Completed(reply) = late.wait() else { panic!() };
    assert_eq!(reply.bytes(), [3; OUTPUT]);
    assert_eq!(client.counters().transport.results_stale, 0, "published with the next heartbeat");
}

#[test]
fn what_was_accepted_just_before_the_news_came_is_submitted_once_there_is_a_scheduler() {
    let (mut world, client) = World::open();
    let input = client.model("alpha").unwrap().input().unwrap();
    let ticket = world.submit_input(input, LONG).unwrap();
    // The client's next pass learns of the loss; only then it looks at what was submitted.
    for peer in [&mut world.control].into_iter().chain(&mut world.threads) {
        peer.close(RefuseCode::Shutdown);
    }
    world.steps(2);
    world.take_back(NUMBER);
    let again = submits(&mut world, 0);
    let [(task, _)] = again[..] else { panic!("{again:?}") };
    assert_eq!(u32::from(task.frontend().0), NUMBER, "no scheduler knew the former number");
    connect_new_backend(&mut world);
    world.answer(task, &[1; OUTPUT]);
    assert!(matches!(ticket.wait(), Outcome::Completed(_)));
}

#[test]
fn a_refused_input_can_be_submitted_later() {
    let (mut world, client) = World::open();
    world.lose_scheduler();
    let mut input = client.model("alpha").unwrap().input().unwrap();
    input.fill(5);
    let refused = world.submit_input(input, LONG).unwrap_err();
    world.take_back(NUMBER);
    let ticket = world.submit_input(refused.input, LONG).unwrap();
    world.steps(2);
    assert_eq!(u32::from(ticket.task().frontend().0), NUMBER);
    assert_eq!(submits(&mut world, 0)[0].0, ticket.task());
}

#[test]
fn a_task_that_cannot_make_it_any_more_fails_when_the_scheduler_is_back() {
    let (mut world, client) = World::open();
    let mut ticket = world.submit(
        &client.model("alpha").unwrap(),
        1,
        Deadline::within(Duration::from_millis(1)),
    );
    world.lose_scheduler();
    world.now = world.now + Nanos::from_millis(1);
    assert!(ticket.poll().is_none(), "a backend may still answer");
    world.threads[0].take();
    world.take_back(NUMBER);
    assert!(matches!(ticket.wait(), Outcome::Failed(FailReason::SchedulerLost, _)));
    assert_eq!(submits(&mut world, 0), []);
    assert_eq!(client.slots_in_use(), 0);
}

#[test]
fn without_a_scheduler_a_task_fails_at_its_lease() {
    let (mut world, client) = World::open();
    let mut ticket = world.submit(&client.model("alpha").unwrap(), 1, Deadline::Slo);
    let due = world.now + SLO + Nanos::from_millis(1_000);
    world.lose_scheduler();
    while world.now + Nanos::from_millis(50) < due {
        world.now = world.now + Nanos::from_millis(50);
        world.steps(2);
        assert!(ticket.poll().is_none());
    }
    world.now = due;
    world.steps(2);
    assert!(matches!(ticket.poll(), Some(Outcome::Failed(FailReason::SchedulerLost, _))));
    assert_eq!(client.slots_in_use(), 0);
}

#[test]
fn an_input_that_is_being_read_is_not_renewed_under_the_readers_eyes() {
    let (mut world, client) = World::open();
    let mut ticket = world.submit(&client.model("alpha").unwrap(), 1, LONG);
    let alpha = client.model("alpha").unwrap();
    let lease = alpha.model().slabs.read(ticket.task(), INPUT as u32).unwrap();
    world.lose_scheduler();
    world.threads[0].take();
    world.take_back(NUMBER);
    world.now = world.now + Nanos::from_millis(10);
    world.steps(3);
    assert_eq!(submits(&mut world, 0), []);
    assert_eq!(lease.as_ref()[INPUT..], ticket.task().0.to_le_bytes());
    drop(lease);
    world.now = world.now + Nanos::from_millis(1);
    world.steps(3);
    assert_eq!(submits(&mut world, 0).len(), 1);
    assert!(ticket.poll().is_none());
}

#[test]
fn more_tasks_than_a_pass_submits_are_submitted_in_the_next_ones() {
    const TASKS: u32 = 600;
    let (mut world, client) = World::open_with(|config| config.slots_per_model(TASKS));
    let alpha = client.model("alpha").unwrap();
    let tickets: Vec<_> = (0..TASKS).map(|_| world.submit(&alpha, 1, LONG)).collect();
    world.lose_scheduler();
    world.threads[0].take();
    world.take_back(NUMBER);
    assert_eq!(submits(&mut world, 0).len(), TASKS as usize);
    drop(tickets);
}

#[test]
fn an_input_that_is_being_read_does_not_keep_the_others_waiting() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let tickets = [1, 2, 3].map(|byte| world.submit(&alpha, byte, LONG));
    let lease = alpha.model().slabs.read(tickets[1].task(), INPUT as u32).unwrap();
    world.lose_scheduler();
    world.threads[0].take();
    world.take_back(NUMBER);
    assert_eq!(submits(&mut world, 0).len(), 2);
    drop(lease);
    world.now = world.now + Nanos::from_millis(1);
    world.steps(3);
    assert_eq!(submits(&mut world, 0).len(), 1);
    drop(tickets);
}

#[test]
fn a_task_that_is_cancelled_meanwhile_ends_at_once() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let (mut cancelled, dropped) = (world.submit(&alpha, 1, LONG), world.submit(&alpha, 2, LONG));
    world.lose_scheduler();
    world.threads[0].take();
    cancelled.cancel();
    drop(dropped);
    world.steps(1);
    assert!(matches!(cancelled.poll(), Some(Outcome::Dropped(DropReason::Cancelled, _))));
    assert_eq!(client.slots_in_use(), 0);
    world.take_back(NUMBER);
    assert_eq!(submits(&mut world, 0), []);
}

#[test]
fn a_ticket_cancels_its_task_under_the_new_name_too() {
    let (mut world, client) = World::open();
    let mut ticket = world.submit(&client.model("alpha").unwrap(), 1, LONG);
    world.lose_scheduler();
    world.threads[0].take();
    world.take_back(NUMBER);
    let (task, _) = submits(&mut world, 0)[0];
    ticket.cancel();
    world.steps(2);
    assert_eq!(world.threads[0].take(), [Heard::Cancel { task, model: 0 }]);
    world.end(0, task, 1, DropReason::Cancelled.code());
    assert!(matches!(ticket.poll(), Some(Outcome::Dropped(DropReason::Cancelled, _))));
}

#[test]
fn a_silent_scheduler_is_lost_and_one_that_speaks_again_found() {
    let (mut world, client) = World::open();
    let ticket = world.submit(&client.model("alpha").unwrap(), 1, LONG);
    world.alive = false;
    world.pass(Nanos::from_millis(1_200));
    assert_eq!(client.loss(), Some(Loss::Scheduler(MembershipError::Silent { timeout_ms: 1_000 })));
    world.alive = true;
    // It was another process all the time, as far as its peers can tell.
    world.lose_scheduler();
    world.threads[0].take();
    world.take_back(NUMBER);
    let (task, _) = submits(&mut world, 0)[0];
    connect_new_backend(&mut world);
    world.answer(task, &[1; OUTPUT]);
    assert!(matches!(ticket.wait(), Outcome::Completed(_)));
}

/// The scheduler may have stood still with it, and be back later.
#[test]
fn a_client_that_stood_still_does_not_take_that_for_the_schedulers_silence() {
    let (mut world, client) = World::open();
    world.alive = false;
    world.now = world.now + Nanos::from_millis(3_000);
    world.pass(Nanos::from_millis(800));
    world.alive = true;
    world.pass(Nanos::from_millis(2_000));
    assert_eq!((client.loss(), client.counters().reconnects), (None, 0));
}

#[test]
fn a_lost_model_thread_is_a_lost_scheduler() {
    let (mut world, client) = World::open();
    let (alpha, beta) = (client.model("alpha").unwrap(), client.model("beta").unwrap());
    let (orphan, told) = (world.submit(&alpha, 1, LONG), world.submit(&beta, 2, LONG));
    world.threads[0].close(RefuseCode::Limit);
    world.steps(2);
    assert_eq!(refusal(&world, &client), SubmitReason::SchedulerLost);
    world.end(1, told.task(), 1, DropReason::Window.code());
    assert!(
        matches!(told.wait(), Outcome::Dropped(DropReason::Window, _)),
        "the others are heard out"
    );
    world.now = world.now + Nanos::from_millis(50);
    world.steps(3);
    let closed = world.control.take().into_iter().filter(|heard| matches!(heard, Heard::Closed(_)));
    assert_eq!(closed.count(), 1, "the client tells the scheduler");
    world.threads[0].take();
    world.take_back(NUMBER);
    let (task, _) = submits(&mut world, 0)[0];
    connect_new_backend(&mut world);
    world.answer(task, &[1; OUTPUT]);
    assert!(matches!(orphan.wait(), Outcome::Completed(_)));
}

#[test]
fn a_scheduler_may_be_lost_again_and_again() {
    let (mut world, client) = World::open();
    let ticket = world.submit(&client.model("alpha").unwrap(), 1, LONG);
    let mut seen = vec![submits(&mut world, 0)[0].0];
    for number in [NUMBER, MEMBER, MEMBER, NUMBER] {
        world.lose_scheduler();
        world.threads[0].take();
        world.take_back(number);
        let (task, _) = submits(&mut world, 0)[0];
        assert!(!seen.contains(&task), "no name comes twice");
        seen.push(task);
    }
    connect_new_backend(&mut world);
    world.answer(*seen.last().unwrap(), &[1; OUTPUT]);
    assert!(matches!(ticket.wait(), Outcome::Completed(_)));
    assert_eq!((client.counters().reconnects, client.counters().resubmitted), (4, 4));
}

#[test]
fn a_join_that_fails_half_way_is_tried_again() {
    let (mut world, client) = World::open();
    let ticket = world.submit(&client.model("alpha").unwrap(), 1, LONG);
    world.lose_scheduler();
    world.await_client();
    world.lose_scheduler();
    world.await_client();
    world.announce();
    world.lose_scheduler();
    world.await_client();
    world.announce();
    world.admit_as(MEMBER, TOKEN);
    world.lose_scheduler();
    world.threads[0].take();
    world.take_back(NUMBER);
    assert_eq!(submits(&mut world, 0).len(), 1);
    drop(ticket);
}

#[test]
fn backends_that_come_back_later_are_waited_for_but_not_for_ever() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let mut ticket = world.submit(&alpha, 1, Deadline::within(Duration::from_secs(9)));
    world.lose_scheduler();
    world.threads[0].take();
    world.take_back(NUMBER);
    let (returned, mut seen) = (world.now, Vec::new());
    let outcome = loop {
        for (task, _) in submits(&mut world, 0) {
            assert!(!seen.contains(&task), "no name comes twice");
            seen.push(task);
            world.end(0, task, 1, DropReason::NoBackend.code());
        }
        if let Some(outcome) = ticket.poll() {
            break outcome;
        }
        world.now = world.now + Nanos::from_millis(5);
        world.steps(2);
        assert!(world.now - returned < Nanos::from_millis(2_100), "bounded");
    };
    assert!(matches!(outcome, Outcome::Dropped(DropReason::NoBackend, _)));
    assert!(world.now - returned >= Nanos::from_millis(1_990));
    assert!((50..=101).contains(&seen.len()), "asked {} times in 2 s", seen.len());
    let fresh = world.submit(&alpha, 2, LONG);
    world.end(0, fresh.task(), 1, DropReason::NoBackend.code());
    assert!(matches!(fresh.wait(), Outcome::Dropped(DropReason::NoBackend, _)));
    assert_eq!(client.slots_in_use(), 0);
}

#[test]
fn a_task_that_waits_for_a_backend_is_not_put_off_by_the_next() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let tickets = [1, 2].map(|byte| world.submit(&alpha, byte, LONG));
    world.lose_scheduler();
    world.threads[0].take();
    world.take_back(NUMBER);
    for (task, _) in submits(&mut world, 0) {
        world.end(0, task, 1, DropReason::NoBackend.code());
        let due = world.io.as_ref().unwrap().next_timer().unwrap();
        assert!(due <= world.now + Nanos::from_millis(20), "it wakes up for it");
        world.now = world.now + Nanos::from_millis(11);
        world.steps(3);
    }
    assert!(!submits(&mut world, 0).is_empty(), "20 ms after the first came back");
    drop(tickets);
}

/// It was late, not unserved: its deadline is what ended it.
#[test]
fn a_task_that_comes_back_for_want_of_backends_after_its_deadline_ends_by_it() {
    let (mut world, client) = World::open();
    let within = Duration::from_millis(600);
    let mut ticket = world.submit(&client.model("alpha").unwrap(), 1, Deadline::within(within));
    world.lose_scheduler();
    world.threads[0].take();
    world.take_back(NUMBER);
    let (task, _) = submits(&mut world, 0)[0];
    world.now = world.now + Nanos::from_millis(600);
    world.end(0, task, 1, DropReason::NoBackend.code());
    world.steps(2);
    assert!(matches!(ticket.poll(), Some(Outcome::Dropped(DropReason::Deadline, _))));
    assert_eq!(client.slots_in_use(), 0);
}

#[test]
fn a_task_that_waits_for_a_backend_can_be_cancelled() {
    let (mut world, client) = World::open();
    let mut ticket = world.submit(&client.model("alpha").unwrap(), 1, LONG);
    world.lose_scheduler();
    world.threads[0].take();
    world.take_back(NUMBER);
    let (task, _) = submits(&mut world, 0)[0];
    world.end(0, task, 1, DropReason::NoBackend.code());
    assert!(ticket.poll().is_none());
    ticket.cancel();
    world.steps(1);
    assert!(matches!(ticket.poll(), Some(Outcome::Dropped(DropReason::Cancelled, _))));
    world.now = world.now + Nanos::from_millis(30);
    world.steps(3);
    assert_eq!(submits(&mut world, 0), []);
}

#[test]
fn a_task_that_was_cancelled_is_not_submitted_to_the_next_scheduler() {
    let (mut world, client) = World::open();
    let mut ticket = world.submit(&client.model("alpha").unwrap(), 1, LONG);
    ticket.cancel();
    world.steps(2);
    world.lose_scheduler();
    world.threads[0].take();
    world.take_back(NUMBER);
    assert_eq!(submits(&mut world, 0), []);
    assert!(matches!(ticket.poll(), Some(Outcome::Dropped(DropReason::Cancelled, _))));
    assert_eq!(client.slots_in_use(), 0);
}

#[test]
fn a_scheduler_without_any_model_that_was_named_is_none_to_go_on_with() {
    let (mut world, client) = World::open_with(|config| config.models(["alpha"]));
    let ticket = world.submit(&client.model("alpha").unwrap(), 1, Deadline::Slo);
    world.lose_scheduler();
    world.await_client();
    world.announce_models(&["gamma", "delta"]);
    assert!(matches!(client.loss(), Some(Loss::Changed { .. })), "{:?}", client.loss());
    assert_eq!(refusal(&world, &client), SubmitReason::SchedulerLost);
    world.pass(SLO + Nanos::from_millis(1_000));
    assert!(matches!(ticket.wait(), Outcome::Failed(FailReason::SchedulerLost, _)));
    world.steps(3);
    assert!(world.io.is_none(), "nothing is left to do");
}

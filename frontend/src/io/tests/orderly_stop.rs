//! The scheduler stops in order: what it gives back, and what is submitted meanwhile, waits for the next.

use baton_rdma::wire::RefuseCode;
use baton_types::{DropReason, FailReason, Nanos};

use super::rejoining::{LONG, NUMBER, refusal, submits};
use super::world::*;
use crate::{Deadline, Outcome, SubmitReason};

/// Why a task was dropped; its outcome must be there.
fn drop_reason(ticket: &mut crate::Ticket) -> DropReason {
    match ticket.poll() {
        Some(Outcome::Dropped(reason, _)) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_stopping_scheduler_gives_back_is_kept_for_the_next_under_another_name() {
    let (mut world, client) = World::open();
    let mut ticket = world.submit(&client.model("alpha").unwrap(), 1, LONG);
    let (before, _) = submits(&mut world, 0)[0];
    world.end(0, before, 1, DropReason::Shutdown.code());
    assert!(ticket.poll().is_none(), "it is kept");
    world.stop_scheduler();
    world.take_back(MEMBER);
    let again = submits(&mut world, 0);
    let [(task, _)] = again[..] else { panic!("{again:?}") };
    assert_eq!((task.slot(), task.generation()), (before.slot(), before.generation() + 1));
    world.end(0, task, 1, DropReason::Window.code());
    let Some(Outcome::Dropped(DropReason::Window, record)) = ticket.poll() else { panic!() };
    assert_eq!((record.resubmitted, record.by), (1, crate::EndedBy::Scheduler));
    assert_eq!((client.slots_in_use(), client.counters().resubmitted), (0, 1));
}

/// Its connection breaks before it has said why.
#[test]
fn who_gives_tasks_back_stops_in_order() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let given_back = world.submit(&alpha, 1, LONG);
    world.end(0, given_back.task(), 1, DropReason::Shutdown.code());
    world.lose_scheduler();
    let mut waits = world.submit(&alpha, 2, Deadline::Slo);
    world.pass(SLO);
    assert_eq!(drop_reason(&mut waits), DropReason::Deadline);
}

#[test]
fn what_was_given_back_ends_at_its_deadline_if_no_scheduler_comes() {
    let (mut world, client) = World::open();
    let mut ticket = world.submit(&client.model("alpha").unwrap(), 1, Deadline::Slo);
    world.end(0, ticket.task(), 1, DropReason::Shutdown.code());
    world.stop_scheduler();
    world.now = ticket.deadline() + STEP;
    world.steps(1);
    assert_eq!(drop_reason(&mut ticket), DropReason::Deadline);
    assert_eq!(client.slots_in_use(), 0);
}

#[test]
fn after_an_orderly_stop_submits_wait_for_the_next_scheduler_but_not_for_ever() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    world.stop_scheduler();
    assert!(client.loss().is_some());
    let mut early = world.submit(&alpha, 1, Deadline::Slo);
    let mut waits = world.submit(&alpha, 2, LONG);
    world.pass(SLO);
    assert_eq!(
        drop_reason(&mut early),
        DropReason::Deadline,
        "at its deadline, and nothing failed"
    );
    assert!(waits.poll().is_none());
    world.take_back(NUMBER);
    let submitted = submits(&mut world, 0);
    let [(task, _)] = submitted[..] else { panic!("{submitted:?}") };
    assert_eq!(u32::from(task.frontend().0), NUMBER, "what answers go to");
    assert_eq!(client.counters().resubmitted, 0, "no scheduler had it before");

    world.stop_scheduler();
    world.threads[0].take();
    world.pass(Nanos::from_millis(2_000));
    assert!(waits.poll().is_none(), "a backend may still answer");
    world.pass(Nanos::from_millis(1_000));
    assert_eq!(drop_reason(&mut waits), DropReason::Deadline, "without a successor, at its lease");
    for _ in 0..300 {
        world.pass(Nanos::from_millis(50));
        if world.control.conn.is_some() {
            world.end_scheduler(RefuseCode::Limit);
        }
    }
    let lost = client.counters().scheduler_lost;
    assert_eq!(refusal(&world, &client), SubmitReason::SchedulerLost);
    assert_eq!((client.counters().scheduler_lost, client.slots_in_use()), (lost + 1, 0));
}

#[test]
fn an_attempt_to_join_that_fails_meanwhile_refuses_no_submit() {
    let (mut world, client) = World::open();
    world.stop_scheduler();
    world.await_client();
    world.end_scheduler(RefuseCode::Limit);
    world.steps(3);
    let input = client.model("alpha").unwrap().input().unwrap();
    assert!(world.submit_input(input, LONG).is_ok(), "the next may still come");
}

#[test]
fn one_that_is_back_before_the_backends_is_asked_again_for_new_tasks_too() {
    let (mut world, client) = World::open();
    world.stop_scheduler();
    world.take_back(NUMBER);
    let mut fresh = world.submit(&client.model("alpha").unwrap(), 1, LONG);
    let (task, _) = submits(&mut world, 0)[0];
    world.end(0, task, 1, DropReason::NoBackend.code());
    assert!(fresh.poll().is_none());
    world.pass(Nanos::from_millis(25));
    let (again, _) = submits(&mut world, 0)[0];
    assert_eq!(again.generation(), task.generation() + 1);
    let mut short = world.submit(&client.model("alpha").unwrap(), 2, Deadline::Slo);
    let (task, _) = submits(&mut world, 0)[0];
    world.end(0, task, 1, DropReason::NoBackend.code());
    // Not before the task could be asked for once more: its deadline ends it.
    world.now = world.now + SLO;
    world.steps(2);
    assert_eq!(drop_reason(&mut short), DropReason::Deadline);
}

/// The word that a task comes back arrived after the loss that it belongs to.
#[test]
fn a_stop_does_not_excuse_the_loss_after_the_next() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let given_back = world.submit(&alpha, 1, LONG);
    world.control.close(RefuseCode::Limit);
    world.steps(2);
    world.end(0, given_back.task(), 1, DropReason::Shutdown.code());
    world.lose_scheduler();
    world.take_back(NUMBER);
    let mut ticket = world.submit(&alpha, 2, Deadline::Slo);
    world.lose_scheduler();
    world.pass(SLO + Nanos::from_millis(1_000));
    let outcome = ticket.poll();
    assert!(matches!(outcome, Some(Outcome::Failed(FailReason::SchedulerLost, _))), "{outcome:?}");
    drop(given_back);
}

#[test]
fn backends_have_their_time_after_each_return() {
    let (mut world, client) = World::open();
    world.stop_scheduler();
    world.take_back(NUMBER);
    world.pass(Nanos::from_millis(2_500));
    world.stop_scheduler();
    world.take_back(MEMBER);
    let mut ticket = world.submit(&client.model("alpha").unwrap(), 1, LONG);
    let (task, _) = submits(&mut world, 0)[0];
    world.end(0, task, 1, DropReason::NoBackend.code());
    assert!(ticket.poll().is_none());
}

//! How a client ends: in order, or because a process dies.

use std::time::Duration;

use baton_rdma::wire::LeaveAck;
use baton_types::{DropReason, FailReason, Nanos};

use super::world::*;
use crate::{Client, Deadline, LeaveError, Loss, Outcome, SubmitReason};

fn refusal(world: &World, client: &Client) -> SubmitReason {
    let input = client.model("alpha").unwrap().input().unwrap();
    world.submit_input(input, Deadline::Slo).unwrap_err().reason
}

/// Leaves within `bound`; time moves meanwhile.
fn leave(world: &mut World, client: Client, bound: Nanos) -> Result<(), LeaveError> {
    client.guard.session.begin_leaving();
    world.steps(3);
    world.pass(bound);
    world.steps(3);
    assert!(world.io.is_none(), "leaving is bounded");
    client.leave()
}

#[test]
fn leaving_waits_for_what_is_outstanding() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let mut ticket = world.submit(&alpha, 1, Deadline::Slo);
    client.guard.session.begin_leaving();
    world.steps(5);
    assert_eq!(refusal(&world, &client), SubmitReason::ClientClosed);
    assert!(!world.control.heard.contains(&Heard::Leave), "a task is outstanding");
    world.answer(ticket.task(), &[1; OUTPUT]);
    assert!(matches!(ticket.poll(), Some(Outcome::Completed(_))));
    assert_eq!(leave(&mut world, client, Nanos::from_millis(1)), Ok(()));
    assert_eq!(world.control.take().iter().filter(|&heard| *heard == Heard::Leave).count(), 1);
}

#[test]
fn a_submit_before_the_leave_is_honoured() {
    let (mut world, client) = World::open();
    let input = client.model("alpha").unwrap().input().unwrap();
    let ticket = world.submit_input(input, Deadline::Slo).unwrap();
    client.guard.session.begin_leaving();
    world.steps(2);
    assert!(matches!(world.threads[0].take()[..], [Heard::Submit { .. }]));
    world.answer(ticket.task(), &[1; OUTPUT]);
    assert!(matches!(ticket.wait(), Outcome::Completed(_)));
}

/// It came after the pass had taken the commands.
#[test]
fn who_leaves_behind_a_submit_waits_for_its_task() {
    let (mut world, client) = World::open();
    let input = client.model("alpha").unwrap().input().unwrap();
    let ticket = world.submit_input(input, Deadline::Slo).unwrap();
    client.guard.session.begin_leaving();
    world.io.as_mut().unwrap().wind_down(world.now);
    world.steps(2);
    assert!(!world.control.heard.contains(&Heard::Leave), "the task is still to be sent");
    world.answer(ticket.task(), &[1; OUTPUT]);
    assert!(matches!(ticket.wait(), Outcome::Completed(_)));
}

#[test]
fn tasks_that_never_end_are_given_up() {
    let (mut world, client) =
        World::open_with(|config| config.leave_timeout(Duration::from_millis(30)));
    let alpha = client.model("alpha").unwrap();
    let ticket = world.submit(&alpha, 1, Deadline::within(Duration::from_secs(3_600)));
    world.threads[0].take();
    let left = leave(&mut world, client, Nanos::from_millis(31));
    assert_eq!(left, Err(LeaveError::GivenUp { tasks: 1 }));
    assert!(matches!(world.threads[0].take()[0], Heard::Cancel { .. }));
    assert!(matches!(ticket.wait(), Outcome::Dropped(DropReason::Cancelled, _)));
}

#[test]
fn an_unconfirmed_leave_is_bounded() {
    let (mut world, client) =
        World::open_with(|config| config.member_timeout(Duration::from_millis(200)));
    world.alive = false;
    let left = leave(&mut world, client, Nanos::from_millis(201));
    assert_eq!(left, Err(LeaveError::Unconfirmed));
}

/// The scheduler may have stood still with it, and confirm later.
#[test]
fn a_leave_is_waited_for_as_long_as_ever_behind_a_pause() {
    let (mut world, client) = World::open();
    client.guard.session.begin_leaving();
    world.alive = false;
    world.steps(3);
    world.now = world.now + Nanos::from_millis(3_000);
    world.pass(Nanos::from_millis(800));
    assert!(world.io.is_some(), "it was awake for less than the timeout");
    world.alive = true;
    world.control.send(&LeaveAck { reserved: 0.into() }, &[]);
    world.steps(3);
    assert_eq!(client.leave(), Ok(()));
}

#[test]
fn dropping_the_last_handle_leaves_too() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let ticket = world.submit(&alpha, 1, Deadline::Slo);
    drop(client);
    drop(alpha);
    world.steps(5);
    assert!(!world.control.heard.contains(&Heard::Leave), "the ticket is a handle");
    world.answer(ticket.task(), &[1; OUTPUT]);
    let Outcome::Completed(reply) = ticket.wait() else { panic!() };
    world.steps(5);
    assert!(world.io.is_none());
    assert!(world.control.heard.contains(&Heard::Leave));
    assert_eq!(reply.bytes(), [1; OUTPUT], "a reply outlives its client");
}

#[test]
fn who_leaves_without_a_scheduler_waits_for_what_backends_still_answer() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let answered = world.submit(&alpha, 1, Deadline::Slo);
    let forgotten = world.submit(&alpha, 2, Deadline::Slo);
    world.lose_scheduler();
    client.guard.session.begin_leaving();
    world.answer(answered.task(), &[1; OUTPUT]);
    assert!(matches!(answered.wait(), Outcome::Completed(_)));
    assert!(world.io.is_some(), "a task is outstanding");
    world.pass(SLO + Nanos::from_millis(1_000));
    assert!(matches!(forgotten.wait(), Outcome::Failed(FailReason::SchedulerLost, _)));
    world.steps(2);
    assert!(world.io.is_none(), "nothing is left to do");
    assert!(matches!(client.leave(), Err(LeaveError::SchedulerLost(Loss::Scheduler(_)))));
}

#[test]
fn who_leaves_without_a_scheduler_and_with_nothing_outstanding_is_gone_at_once() {
    let (mut world, client) = World::open();
    world.lose_scheduler();
    let left = leave(&mut world, client, Nanos::from_millis(1));
    assert!(matches!(left, Err(LeaveError::SchedulerLost(Loss::Scheduler(_)))));
}

#[test]
fn no_ticket_waits_for_a_dead_io_thread() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let known = world.submit(&alpha, 1, Deadline::Slo);
    let queued = world.submit_input(alpha.input().unwrap(), Deadline::Slo).unwrap();
    world.io = None;
    for mut ticket in [known, queued] {
        let outcome = ticket.poll().expect("ended with the thread");
        assert!(matches!(outcome, Outcome::Failed(FailReason::SchedulerLost, _)));
    }
    assert_eq!(client.loss(), Some(Loss::IoEnded));
    assert_eq!(client.slots_in_use(), 0);
    assert_eq!(client.counters().failed, 2);
    assert_eq!(client.leave(), Err(LeaveError::SchedulerLost(Loss::IoEnded)));
}

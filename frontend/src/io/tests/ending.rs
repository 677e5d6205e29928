//! How a client ends: in order, or because somebody dies.

use std::time::Duration;

use baton_core::{DropReason, FailReason, Nanos};
use baton_rdma::wire::RefuseCode;

use super::world::*;
use crate::{Client, Deadline, LeaveError, Loss, Outcome, SubmitReason};

fn refusal(world: &World, client: &Client) -> SubmitReason {
    let input = client.model("alpha").unwrap().input().unwrap();
    world.submit_input(input, Deadline::Slo).unwrap_err().reason
}

/// Leaves within `bound`; time moves meanwhile.
fn leave(world: &mut World, client: Client, bound: Nanos) -> Result<(), LeaveError> {
    client.owner.session.begin_leaving();
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
    client.owner.session.begin_leaving();
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
    client.owner.session.begin_leaving();
    world.steps(2);
    assert!(matches!(world.threads[0].take()[..], [Heard::Submit { .. }]));
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
    assert!(matches!(ticket.wait(), Outcome::Dropped(DropReason::Cancelled)));
}

#[test]
fn a_leave_nobody_confirms_is_bounded() {
    let (mut world, client) =
        World::open_with(|config| config.member_timeout(Duration::from_millis(200)));
    world.alive = false;
    let left = leave(&mut world, client, Nanos::from_millis(201));
    assert_eq!(left, Err(LeaveError::Unconfirmed));
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
fn backends_still_answer_when_the_scheduler_is_lost() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let answered = world.submit(&alpha, 1, Deadline::Slo);
    let forgotten = world.submit(&alpha, 2, Deadline::Slo);
    world.control.close(RefuseCode::Shutdown);
    world.threads.iter_mut().for_each(|thread| thread.close(RefuseCode::Shutdown));
    world.steps(3);
    assert_eq!(refusal(&world, &client), SubmitReason::SchedulerLost);
    assert!(matches!(client.loss(), Some(Loss::Closed { .. })));

    world.answer(answered.task(), &[1; OUTPUT]);
    assert!(matches!(answered.wait(), Outcome::Completed(_)));
    world.pass(SLO + Nanos::from_millis(1_000));
    assert!(matches!(forgotten.wait(), Outcome::Failed(FailReason::SchedulerLost)));
    world.steps(2);
    assert!(world.io.is_none(), "nothing is left to do");
    assert!(matches!(client.leave(), Err(LeaveError::SchedulerLost(Loss::Closed { .. }))));
}

#[test]
fn a_silent_scheduler_is_lost() {
    let (mut world, client) = World::open();
    world.alive = false;
    world.pass(Nanos::from_millis(1_200));
    assert_eq!(client.loss(), Some(&Loss::Silent { timeout_ms: 1_000 }));
    assert_eq!(refusal(&world, &client), SubmitReason::SchedulerLost);
}

#[test]
fn a_lost_model_thread_ends_the_client_but_not_the_others_tasks() {
    let (mut world, client) = World::open();
    let (alpha, beta) = (client.model("alpha").unwrap(), client.model("beta").unwrap());
    let orphan = world.submit(&alpha, 1, Deadline::Slo);
    let other = world.submit(&beta, 2, Deadline::Slo);
    world.threads[0].close(RefuseCode::Limit);
    world.steps(3);
    assert_eq!(refusal(&world, &client), SubmitReason::SchedulerLost);
    world.end(1, other.task(), 1, DropReason::Window.code());
    assert!(matches!(other.wait(), Outcome::Dropped(DropReason::Window)));
    world.pass(SLO + Nanos::from_millis(1_000));
    assert!(matches!(orphan.wait(), Outcome::Failed(FailReason::SchedulerLost)));
    world.steps(4);
    assert!(world.control.heard.contains(&Heard::Leave), "the scheduler is told");
    assert!(world.io.is_none());
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
        assert!(matches!(outcome, Outcome::Failed(FailReason::SchedulerLost)));
    }
    assert_eq!(client.loss(), Some(&Loss::IoEnded));
    assert_eq!(client.slots_in_use(), 0);
    assert_eq!(client.counters().failed, 2);
    assert_eq!(client.leave(), Err(LeaveError::SchedulerLost(Loss::IoEnded)));
}

//! By which clock an answer is dated: that of the scheduler whose batch it comes from.

use baton_rdma::wire::Role;
use baton_types::Nanos;

use super::rejoining::LONG;
use super::world::*;
use crate::{Outcome, Timing};

/// When the answer to a task of the first scheduler's was, once the client has seen this many lives of the scheduler. Each life's clock
/// is ahead by another [`AHEAD`]. The task's input is still being read, so that the client has not submitted it again.
fn answered_in(lives: u32) -> Timing {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let ticket = world.submit(&alpha, 1, LONG);
    let lease = alpha.model().slabs.read(ticket.task(), INPUT as u32).unwrap();
    for life in 1..lives {
        world.lose_scheduler();
        world.ahead = world.ahead + AHEAD;
        world.take_back(MEMBER + life);
    }
    world.connect_backend(Role::Backend, TOKEN + u64::from(MEMBER + lives - 1));
    world.answer_by(AHEAD, ticket.task(), 0, &[1; OUTPUT]);
    drop(lease);
    match ticket.wait() {
        Outcome::Completed(reply) => *reply.timing(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_answer_is_dated_by_the_clock_of_the_life_that_its_task_was_sent_in() {
    let timing = answered_in(2);
    assert!(timing.clock_error < Nanos::from_millis(1), "that clock is known: {timing:?}");
    let age = Nanos(timing.landed.0.abs_diff(timing.finished.0));
    assert!(age < Nanos::from_millis(1), "{timing:?}");
}

#[test]
fn an_answer_of_an_earlier_life_has_no_date() {
    let timing = answered_in(3);
    assert_eq!(timing.clock_error, Nanos::MAX);
    assert_eq!((timing.started, timing.finished), (timing.landed, timing.landed));
}

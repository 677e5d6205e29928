//! Tasks that wait for a slot before they begin, and programs that await everything.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use baton_topo::{Agent, PARK_MAX, SLEEP_MAX};
use baton_types::{FailReason, Nanos};

use super::world::*;
use crate::{Deadline, Input, InputError, ModelHandle, Outcome};

type Waiting<'a> = Pin<&'a mut dyn Future<Output = Result<Input, InputError>>>;

/// Looks once, as an executor does after a wake.
fn look(waiting: &mut Waiting<'_>) -> Poll<Result<Input, InputError>> {
    waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn all(model: &ModelHandle) -> Vec<Input> {
    (0..SLOTS).map(|_| model.input().unwrap()).collect()
}

#[test]
fn who_waits_for_a_slot_gets_the_next_one_in_turn() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let ticket = world.submit(&alpha, 1, Deadline::Slo);
    let held: Vec<Input> = (1..SLOTS).map(|_| alpha.input().unwrap()).collect();
    let mut first: Waiting<'_> = pin!(alpha.input_ready());
    let mut second: Waiting<'_> = pin!(alpha.input_ready());
    assert!(look(&mut first).is_pending() && look(&mut second).is_pending());
    world.answer(ticket.task(), &[1; OUTPUT]);
    let Outcome::Completed(reply) = ticket.wait() else { panic!() };
    assert!(look(&mut first).is_pending(), "the reply holds its slot");
    drop(reply);
    assert!(look(&mut second).is_pending(), "the other one came before");
    let Poll::Ready(Ok(input)) = look(&mut first) else { panic!("there is a slot") };
    assert_eq!(input.len(), INPUT);
    drop(held);
    assert!(matches!(look(&mut second), Poll::Ready(Ok(_))));
}

#[test]
fn with_a_free_slot_nothing_waits_and_a_dropped_future_leaves_the_line() {
    let (_world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let mut held = all(&alpha);
    {
        let mut given_up: Waiting<'_> = pin!(alpha.input_ready());
        assert!(look(&mut given_up).is_pending());
    }
    held.pop();
    let mut at_once: Waiting<'_> = pin!(alpha.input_ready());
    assert!(matches!(look(&mut at_once), Poll::Ready(Ok(_))));
}

#[test]
fn a_removed_model_ends_the_waiting_and_so_does_leaving() {
    let (mut world, client) = World::open();
    let (alpha, beta) = (client.model("alpha").unwrap(), client.model("beta").unwrap());
    let held = [all(&alpha), all(&beta)];
    let mut of_removed: Waiting<'_> = pin!(alpha.input_ready());
    let mut of_left: Waiting<'_> = pin!(beta.input_ready());
    assert!(look(&mut of_removed).is_pending() && look(&mut of_left).is_pending());
    world.remove_model(0);
    let Poll::Ready(Err(error)) = look(&mut of_removed) else { panic!("it is removed") };
    assert_eq!(error, InputError::ModelRemoved { model: "alpha".into() });
    assert!(look(&mut of_left).is_pending());
    drop(held);

    let mut leaving = pin!(client.clone().leave_async());
    let mut context = Context::from_waker(Waker::noop());
    assert!(leaving.as_mut().poll(&mut context).is_pending());
    let Poll::Ready(Err(error)) = look(&mut of_left) else { panic!("the client leaves") };
    assert_eq!(error, InputError::ClientClosed);
    let counters = client.counters();
    assert_eq!((counters.model_removed, counters.client_closed), (1, 1));
    world.steps(3);
    world.pass(Nanos::from_millis(1));
    world.steps(3);
    assert_eq!(leaving.as_mut().poll(&mut context), Poll::Ready(Ok(())));
}

/// For executors with several threads.
#[test]
fn what_a_program_awaits_may_move_between_threads() {
    fn movable<T: Send>(_: &T) {}
    let (_world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    movable(&alpha.input_ready());
    movable(&client.leave_async());
}

#[test]
fn rows_are_seen_as_their_elements() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let mut input = alpha.input().unwrap();
    assert_eq!(input.values_mut::<u8>().unwrap().len(), INPUT);
    let error = input.as_f32_mut().unwrap_err().to_string();
    assert!(error.ends_with("has elements of type u8, not f32"), "{error}");
    assert!(input.as_i64_mut().is_err());
    let ticket = world.submit_input(input, Deadline::Slo).unwrap();
    world.answer(ticket.task(), &[1, 2, 3, 4]);
    let Outcome::Completed(reply) = ticket.wait() else { panic!() };
    assert_eq!(reply.values::<u8>(), Ok(&[1, 2, 3, 4][..]));
    assert!(reply.as_i64().is_err());
}

#[test]
fn a_client_without_tasks_sleeps_longer_until_it_has_one() {
    let sleep_max = |world: &World| world.io.as_ref().map(Agent::sleep_max);
    let (mut world, client) = World::open();
    assert_eq!(sleep_max(&world), Some(PARK_MAX));
    world.pass(Nanos::from_millis(6_500));
    assert_eq!(sleep_max(&world), Some(SLEEP_MAX));
    let alpha = client.model("alpha").unwrap();
    let ticket = world.submit(&alpha, 1, Deadline::Within(Duration::from_secs(60)));
    assert_eq!(sleep_max(&world), Some(PARK_MAX));
    world.pass(Nanos::from_millis(6_500));
    assert_eq!(sleep_max(&world), Some(PARK_MAX), "it still waits for the answer");
    drop(ticket);
}

/// A thread that looks at its timers finds nothing due any more behind its pass.
#[test]
fn what_is_due_is_done_at_its_moment_and_not_behind_it() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let ticket = world.submit(&alpha, 1, Deadline::Within(Duration::from_millis(2)));
    let io = world.io.as_mut().unwrap();
    let lease = io.serving.as_ref().unwrap().tasks.next_expiry().unwrap();
    io.poll(lease);
    assert!(io.next_timer().is_none_or(|due| due > lease));
    assert!(matches!(ticket.wait(), Outcome::Failed(FailReason::LeaseExpired, _)));
}

/// The I/O thread sleeps until its first timer. What brings an earlier one has to wake it.
#[test]
fn a_thread_that_submits_wakes_the_io_thread_if_that_would_sleep_too_long() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let within = Deadline::Within(Duration::from_millis(2));
    for (sleeps_on, is_late) in [(Nanos::ZERO, false), (Nanos::from_millis(3_600_000), true)] {
        let timer = world.now + sleeps_on;
        let ticket = world.submit_input(alpha.input().unwrap(), within).unwrap();
        let is_done = world.io.as_mut().unwrap().send_commands(world.now, timer);
        assert_eq!(is_done, !is_late);
        drop(ticket);
    }
}

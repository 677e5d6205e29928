//! A ticket that one thread waits for and others cancel.

use std::thread;
use std::time::Duration;

use baton_types::DropReason;

use super::world::*;
use crate::{Deadline, Outcome, SharedTicket, TicketBusy, wait_for};

fn ticket(world: &mut World, client: &crate::Client) -> (baton_types::TaskId, SharedTicket) {
    let alpha = client.model("alpha").unwrap();
    let ticket = world.submit(&alpha, 1, Deadline::Slo);
    (ticket.task(), SharedTicket::new(ticket))
}

fn cancels(world: &mut World) -> usize {
    world.step();
    let heard = world.threads.iter_mut().flat_map(Peer::take);
    heard.filter(|heard| matches!(heard, Heard::Cancel { .. })).count()
}

#[test]
fn a_look_without_an_outcome_leaves_the_ticket() {
    let (mut world, client) = World::open();
    let (task, shared) = ticket(&mut world, &client);
    assert!(matches!(shared.wait(Duration::ZERO), Ok(None)));
    world.answer(task, &[3; OUTPUT]);
    let Ok(Some(Outcome::Completed(reply))) = shared.wait(Duration::ZERO) else { panic!("late") };
    assert_eq!(reply[0], 3);
    assert!(matches!(shared.wait(Duration::ZERO), Err(TicketBusy)), "it was taken");
    assert!(shared.take().is_none());
}

#[test]
fn a_thread_that_waits_cancels_for_another() {
    let (mut world, client) = World::open();
    let (task, shared) = ticket(&mut world, &client);
    thread::scope(|scope| {
        let waits = scope.spawn(|| shared.wait(Duration::from_secs(60)));
        while shared.has_no_waiter() {
            thread::yield_now();
        }
        assert!(matches!(shared.wait(Duration::ZERO), Err(TicketBusy)));
        shared.cancel();
        while cancels(&mut world) == 0 {
            thread::yield_now();
        }
        world.end(0, task, 1, DropReason::Cancelled.code());
        let outcome = waits.join().unwrap();
        assert!(matches!(outcome, Ok(Some(Outcome::Dropped(DropReason::Cancelled, _)))));
    });
}

#[test]
fn a_ticket_that_was_given_back_is_cancelled_if_that_was_asked_for_meanwhile() {
    let (mut world, client) = World::open();
    let (_, shared) = ticket(&mut world, &client);
    let taken = shared.take().unwrap();
    shared.cancel();
    assert_eq!(cancels(&mut world), 0, "the ticket is elsewhere");
    shared.put_back(taken);
    assert_eq!(cancels(&mut world), 1);
}

#[test]
fn waiting_ends_with_the_time_or_the_value() {
    assert_eq!(wait_for(std::future::ready(7), Duration::ZERO), Some(7));
    assert_eq!(wait_for(std::future::pending::<()>(), Duration::from_millis(1)), None);
}

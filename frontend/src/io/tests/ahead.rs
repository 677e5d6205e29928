//! Tasks that are submitted ahead of their inputs: pulled in time, too early, never written, given up, and with the scheduler
//! lost in between.

use baton_rdma::wire::Role;
use baton_rdma::{ReadStatus, Transport};
use baton_types::{DropReason, FailReason, Nanos, TaskId};

use super::rejoining::{LONG, NUMBER, submits};
use super::world::*;
use crate::{Client, Deadline, InputAhead, Outcome, Ticket};

const FAILED: u8 = 2;

fn ahead(world: &mut World, client: &Client, deadline: Deadline) -> (InputAhead, Ticket) {
    let input = client.model("alpha").unwrap().input().unwrap();
    let submitted = input.submit_ahead_at(world.now, deadline).unwrap();
    world.steps(2);
    submitted
}

fn write(world: &mut World, mut input: InputAhead, byte: u8) {
    input.fill(byte);
    assert_eq!(&input[..], [byte; INPUT], "it can be read before it is sent");
    input.finish();
    world.steps(2);
}

/// The backend has executed its batch and says which row it went without.
fn answer_without(world: &mut World, task: TaskId) {
    let end = task_end(task, FAILED, FailReason::StaleGeneration.code());
    world.backend.send(&end, &[]);
    world.backend.transport.flush();
    world.steps(2);
}

fn completes(world: &mut World, task: TaskId, mut ticket: Ticket, byte: u8) {
    assert_eq!(world.pull(task), (ReadStatus::Done, vec![byte; INPUT]));
    world.answer(task, &[1, 2, 3, 4]);
    let Some(Outcome::Completed(reply)) = ticket.poll() else { panic!("it was answered") };
    assert_eq!(reply.bytes(), [1, 2, 3, 4]);
}

#[test]
fn a_task_queues_while_its_input_is_written_and_is_pulled_as_any_other() {
    let (mut world, client) = World::open();
    let submitted = world.now;
    let (mut input, ticket) = ahead(&mut world, &client, Deadline::Slo);
    assert_eq!(input.values_mut::<u8>().unwrap().len(), INPUT);
    assert!(input.values_mut::<f32>().is_err(), "the model takes bytes");
    let [(task, deadline)] = submits(&mut world, 0)[..] else { panic!("it queues already") };
    assert_eq!(task, ticket.task());
    assert!(deadline <= submitted + SLO + AHEAD, "it counts from the submit");
    world.pass(Nanos::from_millis(3));
    write(&mut world, input, 7);
    assert_eq!(submits(&mut world, 0), [], "once is enough");
    completes(&mut world, task, ticket, 7);
    assert_eq!((client.slots_in_use(), client.counters().inputs_late), (0, 0));
}

#[test]
fn a_batch_that_is_formed_too_early_goes_without_it_and_the_next_has_it() {
    let (mut world, client) = World::open();
    let (input, ticket) = ahead(&mut world, &client, LONG);
    let [(early, deadline)] = submits(&mut world, 0)[..] else { panic!() };
    let (status, bytes) = world.pull(early);
    assert_eq!((status, bytes), (ReadStatus::Stale, vec![0; INPUT]), "no byte of it");
    write(&mut world, input, 7);
    let [(again, same)] = submits(&mut world, 0)[..] else {
        panic!("at once, whatever the batch does")
    };
    assert_eq!((again.slot(), again.generation()), (early.slot(), early.generation() + 1));
    assert_eq!(same, deadline);
    answer_without(&mut world, early);
    assert_eq!(submits(&mut world, 0), [], "that word is of the id before");
    assert_eq!(world.pull(early).0, ReadStatus::Stale);
    completes(&mut world, again, ticket, 7);
    assert_eq!((client.slots_in_use(), client.counters().inputs_late), (0, 1));
}

#[test]
fn a_batch_that_is_over_before_the_input_is_written_leaves_the_task_with_the_client() {
    let (mut world, client) = World::open();
    let (input, mut ticket) = ahead(&mut world, &client, LONG);
    let [(early, _)] = submits(&mut world, 0)[..] else { panic!() };
    world.pull(early);
    answer_without(&mut world, early);
    world.pass(Nanos::from_millis(100));
    assert!(ticket.poll().is_none() && submits(&mut world, 0).is_empty(), "it waits for its input");
    write(&mut world, input, 9);
    let [(again, _)] = submits(&mut world, 0)[..] else { panic!() };
    completes(&mut world, again, ticket, 9);
}

#[test]
fn an_input_that_does_not_come_in_time_is_the_deadline_s_end_of_its_task() {
    for is_pulled in [false, true] {
        let (mut world, client) = World::open();
        let (input, mut ticket) = ahead(&mut world, &client, Deadline::Slo);
        let [(task, _)] = submits(&mut world, 0)[..] else { panic!() };
        if is_pulled {
            world.pull(task);
            answer_without(&mut world, task);
            world.pass(SLO);
        } else {
            world.end(0, task, 1, DropReason::Deadline.code());
        }
        let Some(Outcome::Dropped(DropReason::Deadline, _)) = ticket.poll() else { panic!("once") };
        assert_eq!(client.slots_in_use(), 1, "the application still writes");
        write(&mut world, input, 1);
        assert_eq!((client.slots_in_use(), submits(&mut world, 0)), (0, vec![]));
        let mut next = world.submit(&client.model("alpha").unwrap(), 2, LONG);
        assert!(next.poll().is_none());
    }
}

#[test]
fn an_input_that_is_given_up_cancels_its_task() {
    let (mut world, client) = World::open();
    let (input, mut ticket) = ahead(&mut world, &client, LONG);
    drop(input);
    world.steps(2);
    let cancelled = Heard::Cancel { task: ticket.task(), model: 0 };
    assert!(world.threads[0].take().contains(&cancelled));
    world.end(0, ticket.task(), 1, DropReason::Cancelled.code());
    assert!(matches!(ticket.poll(), Some(Outcome::Dropped(DropReason::Cancelled, _))));
    assert_eq!(client.slots_in_use(), 0);
}

#[test]
fn a_cancelled_task_that_a_batch_has_gone_without_ends() {
    let (mut world, client) = World::open();
    let (_input, mut ticket) = ahead(&mut world, &client, LONG);
    ticket.cancel();
    world.steps(2);
    let task = ticket.task();
    world.pull(task);
    answer_without(&mut world, task);
    assert!(matches!(ticket.poll(), Some(Outcome::Dropped(DropReason::Cancelled, _))));
}

#[test]
fn a_given_up_input_that_a_batch_wanted_or_will_want_ends_its_task_once() {
    for is_told_first in [true, false] {
        let (mut world, client) = World::open();
        let (input, mut ticket) = ahead(&mut world, &client, LONG);
        let task = ticket.task();
        world.pull(task);
        if is_told_first {
            answer_without(&mut world, task);
            drop(input);
            world.steps(2);
        } else {
            drop(input);
            assert_eq!(world.pull(task).0, ReadStatus::Stale);
            answer_without(&mut world, task);
        }
        assert!(matches!(ticket.poll(), Some(Outcome::Dropped(DropReason::Cancelled, _))));
        assert_eq!(client.slots_in_use(), 0);
        world.threads[0].take();
        world.pass(Nanos::from_millis(100));
        assert_eq!(submits(&mut world, 0), []);
    }
}

#[test]
fn a_ticket_dropped_first_leaves_the_slot_to_whoever_writes() {
    let (mut world, client) = World::open();
    let (mut input, ticket) = ahead(&mut world, &client, LONG);
    let task = ticket.task();
    drop(ticket);
    world.steps(2);
    world.end(0, task, 1, DropReason::Cancelled.code());
    input.fill(3);
    assert_eq!(client.slots_in_use(), 1);
    input.finish();
    world.steps(2);
    assert_eq!(client.slots_in_use(), 0);
}

#[test]
fn a_lost_scheduler_s_task_goes_to_the_next_once_its_input_is_written() {
    let (mut world, client) = World::open();
    let (input, ticket) = ahead(&mut world, &client, LONG);
    assert_eq!(submits(&mut world, 0).len(), 1);
    world.lose_scheduler();
    world.take_back(NUMBER);
    assert_eq!(submits(&mut world, 0), [], "another id only with its input");
    write(&mut world, input, 4);
    world.pass(Nanos::from_millis(2));
    let [(again, _)] = submits(&mut world, 0)[..] else { panic!() };
    world.connect_backend(Role::Backend, TOKEN + u64::from(NUMBER));
    world.backend.take();
    completes(&mut world, again, ticket, 4);
}

/// Its input was written before it went there, so a backend that finds none has not looked too early.
#[test]
fn a_task_of_the_next_scheduler_is_not_ahead_of_its_input() {
    let (mut world, client) = World::open();
    let (input, mut ticket) = ahead(&mut world, &client, LONG);
    write(&mut world, input, 4);
    world.lose_scheduler();
    world.take_back(NUMBER);
    let [_, (again, _)] = submits(&mut world, 0)[..] else { panic!() };
    world.connect_backend(Role::Backend, TOKEN + u64::from(NUMBER));
    answer_without(&mut world, again);
    assert!(matches!(ticket.poll(), Some(Outcome::Failed(FailReason::StaleGeneration, _))));
}

#[test]
fn where_inputs_are_read_from_afar_no_one_hears_of_a_task_before_its_input_is_written() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    alpha.model().slabs.rest();
    let (input, ticket) = ahead(&mut world, &client, LONG);
    assert_eq!(submits(&mut world, 0), []);
    write(&mut world, input, 8);
    let [(task, _)] = submits(&mut world, 0)[..] else { panic!() };
    assert_ne!(task, ticket.task(), "under an id that was never refused");
    completes(&mut world, task, ticket, 8);
    let (input, mut late) = ahead(&mut world, &client, Deadline::Slo);
    world.pass(SLO);
    assert!(matches!(late.poll(), Some(Outcome::Dropped(DropReason::Deadline, _))));
    drop(input);
}

//! Many tasks whose outcomes are taken from one queue.

use std::os::fd::AsFd;
use std::time::Duration;

use baton_types::{DropReason, FailReason, Nanos};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::world::*;
use crate::{CompletionKey, CompletionQueue, Deadline, Outcome, Ticket};

/// Whether an event loop would be woken.
fn is_readable(queue: &CompletionQueue) -> bool {
    let fd = queue.as_fd();
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&at_once)).unwrap() == 1
}

/// The next completion: its tag and the first byte of its answer.
fn taken(queue: &CompletionQueue) -> (u64, u8) {
    let done = queue.poll().expect("an outcome is there");
    let Outcome::Completed(reply) = done.outcome else { panic!("{:?}", done.outcome) };
    (done.tag, reply[0])
}

fn queue(capacity: usize) -> CompletionQueue {
    CompletionQueue::new(capacity).unwrap()
}

#[test]
fn outcomes_of_several_models_come_in_order_with_their_tags() {
    let (mut world, client) = World::open();
    let (alpha, beta) = (client.model("alpha").unwrap(), client.model("beta").unwrap());
    let queue = queue(8);
    let tickets = [(&alpha, 70), (&beta, 80), (&alpha, 90)];
    let tickets: Vec<(Ticket, u64)> =
        tickets.map(|(model, tag)| (world.submit(model, 1, Deadline::Slo), tag)).into();
    let tasks: Vec<_> = tickets.iter().map(|(ticket, _)| ticket.task()).collect();
    for (ticket, tag) in tickets {
        queue.add(ticket, tag).unwrap();
    }
    assert!(!is_readable(&queue) && queue.poll().is_none());
    assert_eq!(queue.len(), 3);

    world.answer(tasks[2], &[9; OUTPUT]);
    assert!(is_readable(&queue));
    world.answer(tasks[0], &[7; OUTPUT]);
    assert_eq!(taken(&queue), (90, 9));
    assert!(is_readable(&queue), "one is left");
    assert_eq!(taken(&queue), (70, 7));
    assert!(!is_readable(&queue) && queue.poll().is_none());

    world.end(1, tasks[1], 1, DropReason::Window.code());
    assert!(is_readable(&queue));
    let done = queue.wait(Duration::from_secs(60)).expect("it is there");
    assert!(matches!(done.outcome, Outcome::Dropped(DropReason::Window, _)) && done.tag == 80);
    assert!(queue.is_empty() && !is_readable(&queue));
    assert!(queue.wait(Duration::from_secs(60)).is_none(), "there is nothing to wait for");
    assert_eq!(client.slots_in_use(), 0);
}

#[test]
fn a_ticket_whose_outcome_is_there_already_is_ready_at_once() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let ticket = world.submit(&alpha, 1, Deadline::Slo);
    world.answer(ticket.task(), &[5; OUTPUT]);
    let queue = queue(1);
    queue.add(ticket, 3).unwrap();
    assert!(is_readable(&queue));
    assert_eq!(taken(&queue), (3, 5));
    assert!(!is_readable(&queue));
    let mut ticket = world.submit(&alpha, 2, Deadline::Slo);
    world.answer(ticket.task(), &[6; OUTPUT]);
    assert!(matches!(ticket.poll(), Some(Outcome::Completed(_))));
    queue.add(ticket, 4).unwrap();
    let again = queue.poll().expect("one whose outcome was taken waits for nothing");
    assert!(matches!(again.outcome, Outcome::Failed(FailReason::StaleGeneration, _)));
}

/// A task that was dropped holds its slot as long as its place, however early it ended.
#[test]
fn a_queue_for_as_many_tasks_as_there_are_slots_is_never_full() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let queue = queue(SLOTS as usize);
    let ticket = world.submit(&alpha, 1, Deadline::Slo);
    world.end(0, ticket.task(), 1, DropReason::Window.code());
    queue.add(ticket, 0).unwrap();
    while alpha.input().is_ok() {
        queue.add(world.submit(&alpha, 1, Deadline::Slo), 1).unwrap();
    }
    assert_eq!(queue.len(), SLOTS as usize);
    let done = queue.poll().expect("the first has ended");
    assert!(matches!(done.outcome, Outcome::Dropped(DropReason::Window, _)));
    assert_eq!(client.slots_in_use(), SLOTS - 1);
}

#[test]
fn a_full_queue_gives_the_ticket_back_and_counts() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let queue = queue(1);
    let first = world.submit(&alpha, 1, Deadline::Slo);
    let task = first.task();
    queue.add(first, 1).unwrap();
    let second = world.submit(&alpha, 2, Deadline::Slo);
    let error = queue.add(second, 2).unwrap_err();
    assert_eq!(client.counters().completions_full, 1);
    assert!(error.to_string().starts_with("all 1 places"), "{error}");
    world.answer(task, &[1; OUTPUT]);
    let error = queue.add(error.ticket, 2).expect_err("an outcome that waits takes its place");
    assert_eq!(taken(&queue), (1, 1));
    let task = error.ticket.task();
    queue.add(error.ticket, 2).unwrap();
    world.answer(task, &[2; OUTPUT]);
    assert_eq!(taken(&queue), (2, 2));
}

/// A wake for the former task of a slot, or of an entry, may come when the next one has it.
#[test]
fn a_task_that_was_looked_at_too_early_is_listened_to_again() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let queue = queue(2);
    let ticket = world.submit(&alpha, 1, Deadline::Slo);
    let task = ticket.task();
    let key = queue.add(ticket, 1).unwrap();
    // Each look takes the waker away that was left before.
    for _ in 0..2 {
        queue.wake_for_nothing(key);
        queue.wake_for_nothing(key);
        assert!(is_readable(&queue) && queue.poll().is_none() && !is_readable(&queue));
    }
    world.answer(task, &[6; OUTPUT]);
    assert!(is_readable(&queue));
    queue.wake_for_nothing(key);
    assert_eq!(taken(&queue), (1, 6));
    queue.wake_for_nothing(key);
    assert!(queue.poll().is_none(), "an entry without a task has nothing to say");
}

#[test]
fn a_key_cancels_its_own_task_and_no_later_one() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let queue = queue(1);
    let ticket = world.submit(&alpha, 1, Deadline::Slo);
    let task = ticket.task();
    assert!(!queue.cancel(CompletionKey::from_bits(0)), "no place is taken");
    let key = queue.add(ticket, 1).unwrap();
    world.threads[0].take();
    assert!(queue.cancel(key));
    world.steps(2);
    assert_eq!(world.threads[0].take(), [Heard::Cancel { task, model: 0 }]);
    world.end(0, task, 1, DropReason::Cancelled.code());
    let done = queue.poll().expect("it ended");
    assert!(matches!(done.outcome, Outcome::Dropped(DropReason::Cancelled, _)));

    let next = world.submit(&alpha, 2, Deadline::Slo);
    assert!(!queue.cancel(key), "it was taken");
    queue.add(next, 2).unwrap();
    world.threads[0].take();
    assert!(!queue.cancel(key), "the entry has another task");
    world.steps(2);
    assert_eq!(world.threads[0].take(), []);
}

#[test]
fn a_ticket_is_taken_out_while_its_outcome_is_to_come() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let queue = queue(2);
    let [mut ticket, next, ended] = [1, 2, 3].map(|byte| world.submit(&alpha, byte, Deadline::Slo));
    let (task, task_of_next) = (ticket.task(), next.task());
    world.answer(ended.task(), &[3; OUTPUT]);
    let key = queue.add(ticket, 1).unwrap();
    world.answer(task, &[7; OUTPUT]);
    ticket = queue.remove(key).expect("its outcome was not taken");
    assert!(queue.is_empty() && queue.remove(key).is_none());
    let again = queue.add(next, 2).unwrap();
    assert!(queue.poll().is_none(), "the late wake means none of its tasks");
    assert!(queue.remove(key).is_none() && !queue.cancel(key), "the place has another task");
    let Some(Outcome::Completed(reply)) = ticket.poll() else { panic!("it was answered") };
    assert_eq!(reply[0], 7);

    let at_once = queue.add(ended, 3).unwrap();
    let mut ended = queue.remove(at_once).expect("its outcome was not taken");
    assert!(matches!(ended.poll(), Some(Outcome::Completed(reply)) if reply[0] == 3));
    world.answer(task_of_next, &[2; OUTPUT]);
    assert_eq!(taken(&queue), (2, 2));
    assert!(queue.remove(again).is_none() && !is_readable(&queue));
}

#[test]
fn a_queue_that_is_dropped_cancels_its_tasks() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let queue = queue(2);
    let tasks = [1, 2].map(|byte| {
        let ticket = world.submit(&alpha, byte, Deadline::Slo);
        let task = ticket.task();
        queue.add(ticket, 0).unwrap();
        task
    });
    world.answer(tasks[0], &[1; OUTPUT]);
    world.threads[0].take();
    drop(queue);
    world.steps(2);
    assert_eq!(world.threads[0].take(), [Heard::Cancel { task: tasks[1], model: 0 }]);
    assert_eq!(client.slots_in_use(), 1, "until its outcome has come");
    world.end(0, tasks[1], 1, DropReason::Cancelled.code());
    assert_eq!(client.slots_in_use(), 0);
}

#[test]
fn waiting_is_bounded() {
    let (mut world, client) = World::open();
    let queue = queue(1);
    queue.add(world.submit(&client.model("alpha").unwrap(), 1, Deadline::Slo), 1).unwrap();
    assert!(queue.wait(Duration::from_millis(2)).is_none());
    assert_eq!(queue.len(), 1);
    world.pass(Nanos::from_millis(2_000));
    assert!(matches!(queue.poll().unwrap().outcome, Outcome::Failed(..)), "its lease is over");
}

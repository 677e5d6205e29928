use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Wake};
use std::thread;

use baton_types::{DropReason, Nanos};

use super::*;
use crate::outcome::{EndRecord, EndedBy};

const DROPPED: End = dropped(DropReason::Deadline);

const fn dropped(reason: DropReason) -> End {
    let (submitted, deadline, ended) = (Nanos::ZERO, Nanos::ZERO, Nanos::ZERO);
    let (by, resubmitted, retry_after) = (EndedBy::Client, 0, Nanos::ZERO);
    End::Dropped(reason, EndRecord { submitted, deadline, ended, by, resubmitted, retry_after })
}

/// Counts how often it is woken.
#[derive(Default)]
struct Listener(AtomicU32);

impl Wake for Listener {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn an_outcome_is_handed_out_once() {
    let cell = OutcomeCell::new();
    cell.arm();
    assert!(cell.take().is_none());
    assert!(cell.end(&DROPPED));
    assert_eq!(cell.take(), Some(DROPPED));
    assert!(cell.take().is_none());
}

#[test]
fn an_abandoned_outcome_comes_back_to_the_io_thread() {
    let cell = OutcomeCell::new();
    cell.arm();
    assert!(cell.abandon().is_none());
    assert!(!cell.end(&DROPPED));
    assert!(cell.take().is_none(), "the I/O thread has it");
    cell.arm();
    assert!(cell.end(&DROPPED), "the next task of the slot starts afresh");
    assert!(cell.abandon().is_some(), "an outcome that was there is returned for recycling");
}

#[test]
fn a_second_end_changes_nothing() {
    let cell = OutcomeCell::new();
    assert!(!cell.end(&DROPPED), "there is no task");
    cell.arm();
    assert!(cell.end(&DROPPED));
    assert!(!cell.end(&dropped(DropReason::Window)));
    assert_eq!(cell.take(), Some(DROPPED));
}

#[test]
fn a_blocked_thread_is_woken() {
    let (cell, clock) = (OutcomeCell::new(), Clock::start());
    cell.arm();
    assert!(cell.wait(clock, Duration::from_millis(1)).is_none(), "bounded");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| cell.wait(clock, Duration::from_secs(30)));
        assert!(cell.end(&DROPPED));
        assert!(waiter.join().unwrap().is_some());
    });
}

#[test]
fn a_waker_is_called_once_and_not_kept() {
    let cell = OutcomeCell::new();
    let listener = Arc::<Listener>::default();
    let waker = Waker::from(Arc::clone(&listener));
    let woken = || listener.0.swap(0, Ordering::Relaxed);

    cell.arm();
    assert!(cell.take_or_listen(&waker).is_none() && cell.take_or_listen(&waker).is_none());
    assert!(cell.end(&DROPPED));
    assert_eq!((woken(), cell.take()), (1, Some(DROPPED)));

    cell.arm();
    assert!(cell.take_or_listen(&waker).is_none());
    assert!(cell.wait(Clock::start(), Duration::ZERO).is_none());
    assert!(cell.end(&DROPPED));
    assert_eq!((woken(), cell.take()), (0, Some(DROPPED)), "the last one to wait counts");

    cell.arm();
    assert!(cell.take_or_listen(&waker).is_none());
    assert!(cell.abandon().is_none());
    assert!(!cell.end(&DROPPED));
    assert_eq!(woken(), 0);
    drop(waker);
    assert_eq!(Arc::strong_count(&listener), 1);
}

/// A wake that does not come within this time does not come. Only a test that fails waits for so long.
const LOST: Duration = Duration::from_secs(20);

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut context, mut future) = (Context::from_waker(&waker), pin!(future));
    let clock = Clock::start();
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park_timeout(LOST),
        }
        assert!(clock.now() < nanos(LOST), "no wake reached this thread");
    }
}

/// No two of these are alike.
fn numbered(number: u64) -> End {
    let record = EndRecord::new(Nanos(number), EndedBy::Backend, number as u32);
    End::Dropped(DropReason::Window, EndRecord { retry_after: Nanos(!number), ..record })
}

/// An outcome in one of the ways to get it; `None` if the ticket was dropped before.
fn outcome(cell: &OutcomeCell, way: u64) -> Option<End> {
    let clock = Clock::start();
    match way % 5 {
        0 => {
            let end = cell.wait(clock, LOST);
            assert!(clock.now() < nanos(LOST), "no wake reached this thread");
            end
        }
        1 => Some(block_on(poll_fn(|context| {
            cell.take_or_listen(context.waker()).map_or(Poll::Pending, Poll::Ready)
        }))),
        2 => loop {
            match cell.take() {
                Some(end) => break Some(end),
                None => thread::yield_now(),
            }
        },
        3 => loop {
            if let Some(end) = cell.wait(clock, Duration::from_micros(20)) {
                break Some(end);
            }
        },
        _ => {
            let early = cell.take_or_listen(Waker::noop());
            early.or_else(|| cell.abandon())
        }
    }
}

/// Ends tasks of several cells as their numbers come, and says whether there was a ticket.
fn end_all(cells: &[OutcomeCell], numbers: &Receiver<u64>, heard: &[Sender<bool>]) {
    for number in numbers {
        let at = number as usize % cells.len();
        let there = cells[at].end(&numbered(number));
        if number / cells.len() as u64 % 5 == 4 {
            heard[at].send(there).expect("the receiver lives");
        }
    }
}

/// Only where the ticket was dropped does the slot's next task wait for the end of this one.
fn use_cell(cells: &[OutcomeCell], at: usize, numbers: &Sender<u64>, heard: &Receiver<bool>) {
    const TASKS: u64 = 20_000;
    for way in 0..TASKS {
        let number = way * cells.len() as u64 + at as u64;
        cells[at].arm();
        numbers.send(number).expect("it ends all");
        let end = outcome(&cells[at], way);
        assert!(end.is_none_or(|end| end == numbered(number)), "{end:?} of task {number}");
        if way % 5 == 4 {
            assert_eq!(heard.recv().expect("it says so"), end.is_some());
        } else {
            assert!(end.is_some());
        }
    }
}

#[test]
fn every_outcome_arrives_once_however_it_is_awaited() {
    let cells = [(); 3].map(|()| OutcomeCell::new());
    let (numbers, ending) = channel();
    let (tell, hear): (Vec<_>, Vec<_>) = cells.iter().map(|_| channel()).unzip();
    thread::scope(|scope| {
        let cells = &cells;
        scope.spawn(move || end_all(cells, &ending, &tell));
        for (at, heard) in hear.into_iter().enumerate() {
            let numbers = numbers.clone();
            scope.spawn(move || use_cell(cells, at, &numbers, &heard));
        }
        drop(numbers);
    });
    assert!(cells.iter().all(|cell| cell.take().is_none()));
}

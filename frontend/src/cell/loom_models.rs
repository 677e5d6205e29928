//! Every interleaving and every reordering the memory model allows, in miniature:
//! `RUSTFLAGS="--cfg loom" cargo test -p baton-client --release --lib loom`

use std::future::poll_fn;
use std::task::Poll;

use baton_types::{DropReason, FailReason, Nanos};
use loom::future::block_on;
use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::outcome::{EndRecord, EndedBy};

/// No two words of these are alike.
const FIRST: End = End::Dropped(DropReason::Window, record(1));
const SECOND: End = End::Failed(FailReason::SchedulerLost, record(3));

const fn record(ended: u64) -> EndRecord {
    let (submitted, deadline) = (Nanos::ZERO, Nanos::ZERO);
    let (ended, retry_after) = (Nanos(ended), Nanos(ended + 1));
    EndRecord { submitted, deadline, ended, by: EndedBy::Backend, resubmitted: 1, retry_after }
}

fn armed() -> Arc<OutcomeCell> {
    let cell = Arc::new(OutcomeCell::new());
    cell.arm();
    cell
}

/// Without a bound the longer ones take hours.
fn bounded_model(body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(body);
}

/// As a ticket is awaited. loom notices if no thread wakes it.
fn outcome(cell: &OutcomeCell) -> End {
    block_on(poll_fn(|context| {
        cell.take_or_listen(context.waker()).map_or(Poll::Pending, Poll::Ready)
    }))
}

fn ending(cell: &Arc<OutcomeCell>, end: End) -> thread::JoinHandle<bool> {
    let cell = Arc::clone(cell);
    thread::spawn(move || cell.end(&end))
}

#[test]
fn who_awaits_an_outcome_is_woken() {
    loom::model(|| {
        let cell = armed();
        let ending = ending(&cell, FIRST);
        assert_eq!(outcome(&cell), FIRST);
        assert!(ending.join().unwrap());
    });
}

/// The wake for the first task may come when the second is awaited already.
#[test]
fn the_slots_next_task_is_woken_too() {
    bounded_model(|| {
        let cell = armed();
        let first = ending(&cell, FIRST);
        assert_eq!(outcome(&cell), FIRST);
        cell.arm();
        // One thread ends both, one after the other.
        let second = thread::spawn({
            let cell = Arc::clone(&cell);
            move || first.join().unwrap() && cell.end(&SECOND)
        });
        assert_eq!(outcome(&cell), SECOND);
        assert!(second.join().unwrap());
    });
}

/// The thread that abandons a task leaves the waker of the slot's next one alone.
#[test]
fn the_next_task_of_an_abandoned_slot_is_woken() {
    bounded_model(|| {
        let cell = armed();
        assert!(cell.take_or_listen(Waker::noop()).is_none());
        let next = thread::spawn({
            let cell = Arc::clone(&cell);
            move || {
                if cell.end(&FIRST) {
                    return;
                }
                cell.arm();
                let ending = ending(&cell, SECOND);
                assert_eq!(outcome(&cell), SECOND);
                assert!(ending.join().unwrap());
            }
        });
        cell.abandon();
        next.join().unwrap();
    });
}

#[test]
fn of_two_ends_one_counts_and_it_is_whole() {
    loom::model(|| {
        let cell = armed();
        let [first, second] = [FIRST, SECOND].map(|end| ending(&cell, end));
        let early = cell.take();
        let counted = [first, second].map(|ending| ending.join().unwrap());
        let end = early.or_else(|| cell.take());
        assert_eq!(counted, [end == Some(FIRST), end == Some(SECOND)]);
        assert!(end.is_some() && cell.take().is_none());
    });
}

#[test]
fn an_outcome_is_handed_out_once() {
    loom::model(|| {
        let cell = armed();
        assert!(cell.end(&FIRST));
        let taking = thread::spawn({
            let cell = Arc::clone(&cell);
            move || cell.take()
        });
        let here = cell.take();
        let there = taking.join().unwrap();
        assert!(here.is_some() != there.is_some());
        assert_eq!(here.or(there), Some(FIRST));
    });
}

#[test]
fn an_abandoned_outcome_belongs_to_one_side() {
    loom::model(|| {
        let cell = armed();
        let ending = ending(&cell, FIRST);
        let early = cell.take_or_listen(Waker::noop());
        let kept = early.or_else(|| cell.abandon());
        assert_eq!(ending.join().unwrap(), kept.is_some());
        assert!(cell.take().is_none());
    });
}

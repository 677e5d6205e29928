//! One slot's outcome, on its way from the I/O thread to the ticket.
//!
//! In: [`OutcomeCell::end`], by the I/O thread, once per task. Out: [`OutcomeCell::take`] and its kin, by the
//! ticket. A cell belongs to a slot, and a slot is freed only after its outcome was taken, so one
//! cell never serves two tasks at once.
//!
//! ```text
//! Idle ─arm─▶ Waiting ─end─▶ Ending ─its words are there─▶ Ended ─take─▶ Idle
//! ```
//! One atomic word has the phase and two flags: the ticket listens, and the ticket is gone. The words of the end are
//! written by the thread that moved the phase to Ending, and read only while it is Ended.
//!
//! Nothing here takes a lock. A ticket that finds no outcome leaves a waker and then looks once more; the other side
//! publishes the end and then looks for a waker: one of the two sees the other. A thread that blocks leaves a waker
//! too; what it sleeps on is its own, and has a lock that only this thread takes, and the one that wakes it ([`parking`]).
//!
//! The wake for one task may come so late that it finds the waker of the slot's next task. That one is woken for
//! nothing, looks, and listens again. Wakers are the application's code: they are woken and dropped where no
//! thread waits for the one that does it.

#[cfg(all(test, loom))]
mod loom_models;
pub(crate) mod sync;
#[cfg(all(test, not(loom)))]
mod tests;

use std::task::Waker;
use std::time::Duration;

use baton_topo::Clock;
use parking::Parker;

use crate::config::nanos;
use crate::end::{End, WORDS};
use sync::{AtomicU32, AtomicU64, AtomicWaker, Ordering, park};

/// No task.
const IDLE: u32 = 0;
/// A task without outcome.
const WAITING: u32 = 1;
/// The words of its end are being written.
const ENDING: u32 = 2;
/// An outcome that the ticket has not taken yet.
const ENDED: u32 = 3;
const PHASE: u32 = 3;
/// The ticket has left a waker.
const LISTENED: u32 = 1 << 2;
/// The ticket is gone.
const ABANDONED: u32 = 1 << 3;

/// A slot's outcome, awaited or there. Neighbours, which other threads use, share no cache line; and what every task
/// touches, which is all but the waker, is in one.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct OutcomeCell {
    state: AtomicU32,
    words: [AtomicU64; WORDS],
    waker: AtomicWaker,
}

thread_local! {
    static SLEEP: (Parker, Waker) = sleep();
}

impl OutcomeCell {
    pub(crate) fn new() -> Self {
        let words = [(); WORDS].map(|()| AtomicU64::new(0));
        Self { state: AtomicU32::new(IDLE), words, waker: AtomicWaker::default() }
    }

    /// A task begins.
    pub(crate) fn arm(&self) {
        debug_assert_eq!(self.state.load(Ordering::Relaxed) & PHASE, IDLE, "one task at a time");
        self.state.store(WAITING, Ordering::Release);
    }

    /// Ends the task, and wakes who listens. False if there is no ticket to take the outcome, or no task.
    pub(crate) fn end(&self, end: &End) -> bool {
        let listener = self.end_silently(end);
        let is_taken = listener.is_some();
        listener.flatten().into_iter().for_each(Waker::wake);
        is_taken
    }

    /// As [`OutcomeCell::end`], but for the wake, which is the caller's to do: `Some` with the waker of the one who
    /// listens.
    pub(crate) fn end_silently(&self, end: &End) -> Option<Option<Waker>> {
        let claim = |state: u32| (state & PHASE == WAITING).then_some(state & !PHASE | ENDING);
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, claim).is_err() {
            return None;
        }
        for (word, value) in self.words.iter().zip(end.words()) {
            word.store(value, Ordering::Relaxed);
        }
        let before = self.state.swap(ENDED, Ordering::AcqRel);
        if before & ABANDONED != 0 {
            self.state.store(IDLE, Ordering::Release);
            return None;
        }
        Some(self.listener(before))
    }

    /// Who is to be woken in this state.
    fn listener(&self, state: u32) -> Option<Waker> {
        if state & LISTENED != 0 { self.waker.take() } else { None }
    }

    /// What a late wake for the slot's former task does before it wakes.
    #[cfg(test)]
    pub(crate) fn steal_waker(&self) -> Option<Waker> {
        self.waker.take()
    }

    /// The end, if it is there.
    pub(crate) fn take(&self) -> Option<End> {
        let state = self.state.load(Ordering::Acquire);
        if state & PHASE != ENDED {
            return None;
        }
        let words = std::array::from_fn(|at| self.words[at].load(Ordering::Relaxed));
        // Of two that read the words only one gets them.
        let taken = self.state.compare_exchange(state, IDLE, Ordering::AcqRel, Ordering::Relaxed);
        taken.ok().map(|_| End::from_words(words))
    }

    /// The end, if it is there; otherwise `waker` is called once it is.
    pub(crate) fn take_or_listen(&self, waker: &Waker) -> Option<End> {
        if let Some(end) = self.take() {
            return Some(end);
        }
        if self.listen(waker) { self.take() } else { None }
    }

    /// True if the end is there; otherwise `waker` is called once it is.
    pub(crate) fn listen(&self, waker: &Waker) -> bool {
        self.waker.register(waker);
        if self.state.fetch_or(LISTENED, Ordering::AcqRel) & PHASE != ENDED {
            return false;
        }
        // It came before, and its wake may have been too early for this waker.
        drop(self.waker.take());
        true
    }

    /// Blocks until the end is there, at most `timeout`.
    pub(crate) fn wait(&self, clock: Clock, timeout: Duration) -> Option<End> {
        if let Some(end) = self.take() {
            return Some(end);
        }
        // A thread that is ending may have lost its own already.
        SLEEP
            .try_with(|(parker, waker)| self.sleep_until_ended(parker, waker, clock, timeout))
            .unwrap_or_else(|_| {
                let (parker, waker) = sleep();
                self.sleep_until_ended(&parker, &waker, clock, timeout)
            })
    }

    fn sleep_until_ended(
        &self,
        parker: &Parker,
        waker: &Waker,
        clock: Clock,
        timeout: Duration,
    ) -> Option<End> {
        let until = clock.now() + nanos(timeout);
        loop {
            // Each time again: a wake takes the waker away, whatever its reason.
            if let Some(end) = self.take_or_listen(waker) {
                return Some(end);
            }
            let left = until - clock.now();
            if left.0 == 0 {
                break;
            }
            park(parker, Duration::from_nanos(left.0));
        }
        drop(self.waker.take());
        self.state.fetch_and(!LISTENED, Ordering::AcqRel);
        self.take()
    }

    /// The ticket is dropped. Returns the end if it was there already.
    pub(crate) fn abandon(&self) -> Option<End> {
        // Before letting go: afterwards it may be the waker of the slot's next task.
        drop(self.waker.take());
        let before = self.state.fetch_or(ABANDONED, Ordering::AcqRel);
        if before & PHASE == ENDED { self.take() } else { None }
    }
}

/// What a thread sleeps on, and what wakes it.
fn sleep() -> (Parker, Waker) {
    let (parker, unparker) = parking::pair();
    (parker, unparker.into())
}

//! One slot's outcome, on its way from the I/O thread to the ticket.
//!
//! In: [`Cell::end`], by the I/O thread, once per task. Out: [`Cell::take`] and its kin, by the
//! ticket. A cell belongs to a slot, and a slot is freed only after its outcome was taken, so one
//! cell never serves two tasks at once.
//!
//! A mutex guards a handful of moves. Only the two sides of one task contend for it. Of the caller's
//! code only a waker's clone runs while it is held, never a waker's wake or drop or a reply's drop.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use crate::outcome::Outcome;

/// A slot's outcome, awaited or there.
#[derive(Debug)]
pub(crate) struct Cell {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug)]
enum State {
    /// No task.
    Idle,
    /// A task without outcome, and the listener to notify.
    Waiting(Listener),
    /// A task without outcome, whose ticket is gone.
    Abandoned,
    /// An outcome that the ticket has not taken yet.
    Ended(Outcome),
}

#[derive(Debug)]
enum Listener {
    Nobody,
    Task(Waker),
    /// A thread blocks on the condition variable. Known, so that no system call is made otherwise.
    Thread,
}

impl Cell {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State::Idle), ended: Condvar::new() }
    }

    /// A task begins.
    pub(crate) fn arm(&self) {
        *self.lock() = State::Waiting(Listener::Nobody);
    }

    /// Ends the task. Returns the outcome if there is no ticket to take it.
    pub(crate) fn end(&self, outcome: Outcome) -> Result<(), Outcome> {
        let mut state = self.lock();
        match &mut *state {
            State::Waiting(listener) => {
                let listener = std::mem::replace(listener, Listener::Nobody);
                *state = State::Ended(outcome);
                drop(state);
                self.tell(listener);
                Ok(())
            }
            State::Abandoned => {
                *state = State::Idle;
                Err(outcome)
            }
            State::Idle | State::Ended(_) => Err(outcome),
        }
    }

    /// The outcome, if it is there.
    pub(crate) fn take(&self) -> Option<Outcome> {
        take(&mut self.lock())
    }

    /// The outcome, if it is there; otherwise `waker` is called once it is.
    pub(crate) fn take_or_listen(&self, waker: &Waker) -> Option<Outcome> {
        self.take_or(|| State::Waiting(Listener::Task(waker.clone())))
    }

    /// Blocks until the outcome is there, at most `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) -> Option<Outcome> {
        if let Some(outcome) = self.take_or(|| State::Waiting(Listener::Thread)) {
            return Some(outcome);
        }
        let waiting = |state: &mut State| matches!(state, State::Waiting(_));
        let waited = self.ended.wait_timeout_while(self.lock(), timeout, waiting);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let State::Waiting(listener) = &mut *state {
            *listener = Listener::Nobody;
        }
        take(&mut state)
    }

    /// The ticket is dropped. Returns the outcome if it was there already.
    pub(crate) fn abandon(&self) -> Option<Outcome> {
        self.take_or(|| State::Abandoned)
    }

    /// The outcome, if it is there; otherwise a waiting cell changes to another state of waiting.
    fn take_or(&self, waiting: impl FnOnce() -> State) -> Option<Outcome> {
        let mut state = self.lock();
        let outcome = take(&mut state);
        let before =
            matches!(*state, State::Waiting(_)).then(|| std::mem::replace(&mut *state, waiting()));
        drop(state);
        // May run the drop of a waker.
        drop(before);
        outcome
    }

    fn tell(&self, listener: Listener) {
        match listener {
            Listener::Nobody => {}
            Listener::Task(waker) => waker.wake(),
            Listener::Thread => self.ended.notify_one(),
        }
    }

    /// No step under the lock leaves the state half-way, so a poisoned lock is as good as any.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn take(state: &mut State) -> Option<Outcome> {
    if !matches!(state, State::Ended(_)) {
        return None;
    }
    match std::mem::replace(state, State::Idle) {
        State::Ended(outcome) => Some(outcome),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{EndRecord, EndedBy};
    use baton_core::{DropReason, Nanos};

    const DROPPED: Outcome = dropped(DropReason::Deadline);

    const fn dropped(reason: DropReason) -> Outcome {
        let (submitted, deadline, ended) = (Nanos::ZERO, Nanos::ZERO, Nanos::ZERO);
        let (by, resubmitted, retry_after) = (EndedBy::Client, 0, Nanos::ZERO);
        let record = EndRecord { submitted, deadline, ended, by, resubmitted, retry_after };
        Outcome::Dropped(reason, record)
    }

    #[test]
    fn an_outcome_is_handed_out_once() {
        let cell = Cell::new();
        cell.arm();
        assert!(cell.take().is_none());
        assert!(cell.end(DROPPED).is_ok());
        assert!(matches!(cell.take(), Some(Outcome::Dropped(DropReason::Deadline, _))));
        assert!(cell.take().is_none());
    }

    #[test]
    fn an_abandoned_outcome_comes_back_to_the_io_thread() {
        let cell = Cell::new();
        cell.arm();
        assert!(cell.abandon().is_none());
        assert!(cell.end(DROPPED).is_err());
        cell.arm();
        assert!(cell.end(DROPPED).is_ok(), "the next task of the slot starts afresh");
        assert!(cell.abandon().is_some(), "an outcome that was there is returned for recycling");
    }

    #[test]
    fn a_second_end_changes_nothing() {
        let cell = Cell::new();
        cell.arm();
        assert!(cell.end(DROPPED).is_ok());
        assert!(cell.end(dropped(DropReason::Window)).is_err());
        assert!(matches!(cell.take(), Some(Outcome::Dropped(DropReason::Deadline, _))));
    }

    #[test]
    fn a_blocked_thread_is_told() {
        let cell = Cell::new();
        cell.arm();
        assert!(cell.wait(Duration::from_millis(1)).is_none(), "bounded");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| cell.wait(Duration::from_secs(30)));
            assert!(cell.end(DROPPED).is_ok());
            assert!(waiter.join().unwrap().is_some());
        });
    }
}

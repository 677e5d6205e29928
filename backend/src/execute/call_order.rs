//! Whether an executor is called as [`Executor`](super::Executor) says, and answers so. Pure.

use std::collections::VecDeque;

use super::{BatchEnd, Event, SUBMITTED_MAX};
use crate::config::BATCH_SLOTS;

/// Where a batch slot's batch is, as the calls and events have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// With the I/O thread.
    Away,
    Prepared,
    Withdrawing,
    Submitted,
}

/// Follows the calls to one executor and its events. Panics at the first one that the protocol does not allow: a batch
/// whose owner is in doubt would be overwritten or answered twice.
#[derive(Debug)]
pub struct CallOrder {
    slots: [State; BATCH_SLOTS],
    /// In order of submission.
    submitted: VecDeque<usize>,
    performs: bool,
}

impl Default for CallOrder {
    fn default() -> Self {
        let submitted = VecDeque::with_capacity(SUBMITTED_MAX);
        Self { slots: [State::Away; BATCH_SLOTS], submitted, performs: false }
    }
}

impl CallOrder {
    /// [`Executor::prepare`](super::Executor::prepare) is called.
    pub fn prepare(&mut self, slot: usize) {
        self.step(slot, State::Away, State::Prepared);
    }

    /// [`Executor::submit`](super::Executor::submit) is called.
    pub fn submit(&mut self, slot: usize) {
        assert!(!self.performs, "a batch was submitted beside a job");
        assert!(self.submitted.len() < SUBMITTED_MAX, "too many batches were submitted");
        self.step(slot, State::Prepared, State::Submitted);
        self.submitted.push_back(slot);
    }

    /// [`Executor::withdraw`](super::Executor::withdraw) is called.
    pub fn withdraw(&mut self, slot: usize) {
        self.step(slot, State::Prepared, State::Withdrawing);
    }

    /// [`Executor::perform`](super::Executor::perform) is called.
    pub fn perform(&mut self) {
        assert!(!self.performs, "one job at a time");
        assert!(self.submitted.is_empty(), "a job was handed over beside a batch");
        self.performs = true;
    }

    /// [`Executor::poll`](super::Executor::poll) returns this.
    pub fn event(&mut self, event: &Event) {
        match event {
            Event::Job => {
                assert!(std::mem::take(&mut self.performs), "a job came back that was not there");
            }
            Event::Batch(back) if back.end == BatchEnd::Withdrawn => {
                self.step(back.slot, State::Withdrawing, State::Away);
            }
            Event::Batch(back) => {
                let first = self.submitted.pop_front();
                assert_eq!(first, Some(back.slot), "batches come back as they were submitted");
                self.step(back.slot, State::Submitted, State::Away);
            }
        }
    }

    /// Whether a batch or a job is with the executor that it cannot be asked to give back.
    pub fn is_committed(&self) -> bool {
        self.performs || !self.submitted.is_empty()
    }

    fn step(&mut self, slot: usize, from: State, to: State) {
        assert_eq!(self.slots[slot], from, "batch slot {slot}, to become {to:?}");
        self.slots[slot] = to;
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::execute::{BatchBack, Outputs};

    fn back(slot: usize, end: BatchEnd) -> Event {
        Event::Batch(BatchBack { slot, lens: Vec::new(), outputs: Outputs::default(), end })
    }

    fn job() -> Event {
        Event::Job
    }

    /// Two batches submitted, a third prepared.
    fn two_in_flight() -> CallOrder {
        let mut order = CallOrder::default();
        (0..3).for_each(|slot| order.prepare(slot));
        order.submit(1);
        order.submit(0);
        order
    }

    #[test]
    fn every_way_of_a_batch_and_a_job_between_batches_are_allowed() {
        let mut order = two_in_flight();
        order.withdraw(2);
        order.event(&back(1, BatchEnd::Expired));
        order.event(&back(2, BatchEnd::Withdrawn));
        order.prepare(2);
        order.submit(2);
        assert!(order.is_committed());
        order.event(&back(0, BatchEnd::Expired));
        order.event(&back(2, BatchEnd::Expired));
        assert!(!order.is_committed());
        order.prepare(3);
        order.perform();
        assert!(order.is_committed(), "to a job");
        order.event(&job());
        order.submit(3);
    }

    #[test]
    fn everything_else_is_found() {
        type Misuse = fn(&mut CallOrder);
        let cases: [(&str, Misuse); 9] = [
            ("a third submission", |order| order.submit(2)),
            ("twice prepared", |order| order.prepare(0)),
            ("withdrawn too late", |order| order.withdraw(0)),
            ("submitted unprepared", |order| {
                order.event(&back(1, BatchEnd::Expired));
                order.submit(3);
            }),
            ("a job beside a batch", CallOrder::perform),
            ("a job from nowhere", |order| order.event(&job())),
            ("out of order", |order| order.event(&back(0, BatchEnd::Expired))),
            ("withdrawn unasked", |order| order.event(&back(2, BatchEnd::Withdrawn))),
            ("executed unsubmitted", |order| {
                order.event(&back(1, BatchEnd::Expired));
                order.event(&back(0, BatchEnd::Expired));
                order.event(&back(2, BatchEnd::Expired));
            }),
        ];
        for (what, misuse) in cases {
            let mut order = two_in_flight();
            let refused = catch_unwind(AssertUnwindSafe(|| misuse(&mut order)));
            assert!(refused.is_err(), "{what}");
        }
    }
}

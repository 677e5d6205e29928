//! The batches that an executor has been given to execute and has not returned: one that executes, and one behind it. Pure.
//!
//! In: batches with their predicted times, and when they come back. Out: whether another one would start in its window, if it
//! were submitted now. What has been submitted is not taken back, so this must be known before.

use std::collections::VecDeque;

use baton_types::Nanos;

use crate::action::Action;
use crate::execute::SUBMITTED_MAX;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Submitted {
    /// Batch slot and ℓ(b) of each, the one that executes first.
    batches: VecDeque<(usize, Nanos)>,
    /// When that began, as far as this thread knows.
    since: Nanos,
}

impl Submitted {
    pub(crate) fn new() -> Self {
        Self { batches: VecDeque::with_capacity(SUBMITTED_MAX), since: Nanos::ZERO }
    }

    /// True when nothing executes.
    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// A batch is submitted.
    pub(crate) fn push(&mut self, slot: usize, latency: Nanos, now: Nanos) {
        if self.batches.is_empty() {
            self.since = now;
        }
        self.batches.push_back((slot, latency));
    }

    /// The batch slots of those that wait behind the one that executes.
    pub(crate) fn behind(&self) -> impl Iterator<Item = usize> + '_ {
        self.batches.iter().skip(1).map(|&(slot, _)| slot)
    }

    /// The first one, in this batch slot, has come back. The next one began then.
    pub(crate) fn pop(&mut self, slot: usize, then: Nanos) {
        let first = self.batches.pop_front();
        debug_assert_eq!(first.map(|(first, _)| first), Some(slot), "they execute in their order");
        self.since = then;
    }

    /// Whether this batch would start in its window behind those that execute. Not if they take longer than they should:
    /// then their end is unknown. And not if they end before its window begins: another batch or a LOAD may be
    /// to start first by then.
    pub(crate) fn may_follow(&self, action: &Action, now: Nanos) -> bool {
        let end = self.batches.iter().fold(self.since, |end, &(_, latency)| end + latency);
        let has_room = self.batches.len() < SUBMITTED_MAX;
        has_room && now <= end && action.earliest <= end && end <= action.latest
    }
}

#[cfg(test)]
mod tests {
    use baton_types::ModelId;

    use super::*;
    use crate::served::ServedModel;

    fn window(earliest: u64, latest: u64) -> Action {
        let model = ServedModel {
            id: ModelId(0),
            local: ModelId(0),
            batch_max: 4,
            input_bytes: 8,
            output_bytes: 8,
            input_is_fixed: true,
            variants: 1,
        };
        let (earliest, latest) = (Nanos(earliest), Nanos(latest));
        let (start_by, tasks) = (latest.into(), Vec::new());
        Action { id: 1, thread: 0, model, earliest, latest, start_by, tasks, fetched: None }
    }

    #[test]
    fn a_batch_follows_if_its_window_is_open_when_the_one_before_should_end() {
        let mut submitted = Submitted::new();
        submitted.push(0, Nanos(50), Nanos(100));
        let may =
            |earliest, latest, now| submitted.may_follow(&window(earliest, latest), Nanos(now));
        assert!(may(0, 1_000, 120) && may(150, 150, 150), "both ends belong to it");
        assert!(!may(151, 1_000, 120), "it may start later only");
        assert!(!may(0, 149, 120), "it may start sooner only");
        assert!(!may(0, 1_000, 151), "the one before takes longer than it should");
    }

    #[test]
    fn two_at_most_and_the_second_begins_when_the_first_came_back() {
        let mut submitted = Submitted::new();
        submitted.push(0, Nanos(50), Nanos(100));
        submitted.push(0, Nanos(30), Nanos(110));
        assert!(!submitted.may_follow(&window(0, 1_000), Nanos(120)), "there are two");
        submitted.pop(0, Nanos(170));
        assert!(submitted.may_follow(&window(200, 200), Nanos(180)));
        assert!(!submitted.may_follow(&window(0, 199), Nanos(180)));
        submitted.pop(0, Nanos(200));
        assert!(submitted.is_empty());
    }

    #[test]
    fn what_has_no_known_time_is_not_followed() {
        let mut submitted = Submitted::new();
        submitted.push(0, Nanos::MAX, Nanos(100));
        assert!(!submitted.may_follow(&window(0, 1_000), Nanos(120)));
    }
}

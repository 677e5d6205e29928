//! Whether the tasks that are let in have time to spare. Then the queue limit is too short, or no longer needed.
//!
//! Under overload the queue is full: each slot that becomes free is granted at once, shortly before the head becomes
//! hopeless. A limit under which slots are idle, or heads could wait much longer, refuses tasks that would be served.

use core::mem;

use super::TaskCounts;
use baton_types::Nanos;

/// A batch has time to spare from 1/[`SPARE_SHARE`] of the objective on.
const SPARE_SHARE: u64 = 4;
/// Tasks dispatched with time to spare after which the queue limit grows, each time.
const GROWS_AFTER: u64 = 16;
/// And after which it ends.
const ENDS_AFTER: u64 = 4 * GROWS_AFTER;

/// What follows for the queue limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Keep,
    Grow,
    End,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub(super) struct SpareTime {
    /// The least time to spare of a batch since the last review.
    least: Nanos,
    /// As of the last review.
    seen: TaskCounts,
    /// Tasks dispatched since one had no time to spare, or was given up.
    tasks: u64,
}

impl SpareTime {
    pub(super) fn since(seen: TaskCounts) -> Self {
        Self { least: Nanos::MAX, seen, tasks: 0 }
    }

    pub(super) fn on_dispatch(&mut self, spare: Nanos) {
        self.least = self.least.min(spare);
    }

    /// Counts what happened since the last review to the tasks of a model with this objective.
    pub(super) fn review(&mut self, counts: TaskCounts, slo: Nanos) -> Verdict {
        let before = mem::replace(&mut self.seen, counts);
        let least = mem::replace(&mut self.least, Nanos::MAX);
        if counts.given_up > before.given_up || least < Nanos(slo.0 / SPARE_SHARE) {
            self.tasks = 0;
            return Verdict::Keep;
        }
        let had = self.tasks;
        self.tasks += counts.dispatched - before.dispatched;
        match self.tasks {
            ENDS_AFTER.. => Verdict::End,
            tasks if tasks / GROWS_AFTER > had / GROWS_AFTER => Verdict::Grow,
            _ => Verdict::Keep,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const SLO: Nanos = Nanos::from_millis(40);

    /// Verdicts on reviews after these tasks were dispatched with these ms to spare.
    fn verdicts(dispatched: &[(u64, u64)]) -> Vec<Verdict> {
        let mut counts = TaskCounts::default();
        let mut spare = SpareTime::since(counts);
        let mut review = |&(tasks, spare_ms)| {
            spare.on_dispatch(Nanos::from_millis(spare_ms));
            counts.dispatched += tasks;
            spare.review(counts, SLO)
        };
        dispatched.iter().map(&mut review).collect()
    }

    #[test]
    fn the_limit_grows_with_time_to_spare_and_ends_after_enough_of_it() {
        use Verdict::{End, Grow, Keep};
        assert_eq!(
            verdicts(&[(15, 10), (1, 10), (15, 12), (32, 10), (1, 10)]),
            [Keep, Grow, Keep, Grow, End]
        );
        assert_eq!(verdicts(&[(60, 10), (9, 9), (15, 10), (1, 40)]), [Grow, Keep, Keep, Grow]);
    }

    #[test]
    fn the_least_of_all_batches_counts_and_a_task_given_up_is_one_without_time() {
        let mut counts = TaskCounts::default();
        let mut spare = SpareTime::since(counts);
        for ms in [30, 9, 30] {
            spare.on_dispatch(Nanos::from_millis(ms));
        }
        counts.dispatched = 16;
        assert_eq!(spare.review(counts, SLO), Verdict::Keep);
        counts.dispatched += 48;
        assert_eq!(spare.review(counts, SLO), Verdict::Grow, "nothing of the past is left");
        (counts.dispatched, counts.given_up) = (counts.dispatched + 16, 1);
        assert_eq!(spare.review(counts, SLO), Verdict::Keep);
        counts.dispatched += 16;
        assert_eq!(spare.review(counts, SLO), Verdict::Grow);
    }
}

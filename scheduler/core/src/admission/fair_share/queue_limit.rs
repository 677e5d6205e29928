//! How many tasks of a model may wait while its frontends are kept to their shares: its room, times a factor that a
//! controller sets.
//!
//! Set-point: 1/1024 of the admitted tasks given up. Input: tasks given up and dispatched since the last adjustment.
//! Output: the factor, which shrinks in proportion to the losses and grows by 1/256 otherwise. It grows by 1/4, and
//! the limit ends in the end, while dispatched tasks have time to spare ([`SpareTime`]).

use super::TaskCounts;
use super::spare::{SpareTime, Verdict};
use baton_types::Nanos;

/// Fixed point of the factor: the room itself.
pub(super) const FULL: u64 = 4096;
/// The factor when the first limit begins.
pub(super) const FACTOR_FIRST: u64 = FULL / 8 * 7;
/// Adjustments wait until at least this many tasks have ended.
const ADJUSTED_AFTER: u64 = 64;
/// The factor shrinks if more than 1/[`LOSS_SHARE`] of the admitted tasks is given up.
const LOSS_SHARE: u64 = 1024;
/// Otherwise it grows by 1/[`GROWTH`].
const GROWTH: u64 = 256;
/// With time to spare it grows by 1/[`SPARE_GROWTH`].
const SPARE_GROWTH: u64 = 4;

/// See the module documentation.
#[derive(Clone, Debug)]
pub(super) struct QueueLimit {
    /// In 1/[`FULL`].
    pub(super) factor: u64,
    /// How many tasks can wait and be served in time.
    pub(super) room: u32,
    /// As of the last adjustment.
    adjusted: TaskCounts,
    pub(super) spare: SpareTime,
}

impl QueueLimit {
    pub(super) fn new() -> Self {
        Self {
            factor: FACTOR_FIRST,
            room: 1,
            adjusted: TaskCounts::default(),
            spare: SpareTime::since(TaskCounts::default()),
        }
    }

    pub(super) fn tasks(&self) -> usize {
        (u64::from(self.room) * self.factor).div_ceil(FULL) as usize
    }

    /// What happened before `seen` does not count.
    pub(super) fn forget(&mut self, seen: TaskCounts) {
        self.adjusted = seen;
    }

    /// A longer queue keeps the GPUs busier, and one that is too long lets tasks in that are given up.
    pub(super) fn adjust(&mut self, seen: TaskCounts) {
        let given_up = seen.given_up - self.adjusted.given_up;
        let ended = given_up + seen.dispatched - self.adjusted.dispatched;
        if ended < ADJUSTED_AFTER {
            return;
        }
        self.adjusted = seen;
        if given_up * LOSS_SHARE > ended {
            self.set(self.factor - (self.factor * 2 * given_up / ended).min(self.factor / 8));
        } else {
            self.set(self.factor + self.factor / GROWTH);
        }
    }

    /// Too few tasks are let in if those that are could wait much longer. True if the limit ends for that reason.
    pub(super) fn ends(&mut self, seen: TaskCounts, slo: Nanos) -> bool {
        let verdict = self.spare.review(seen, slo);
        if verdict == Verdict::Grow {
            self.set(self.factor + self.factor / SPARE_GROWTH);
        }
        verdict == Verdict::End
    }

    /// Half of the room at least, and four times the room at most.
    fn set(&mut self, factor: u64) {
        self.factor = factor.clamp(FULL / 2, FULL * 4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLO: Nanos = Nanos::from_millis(40);

    /// The factor after these tasks.
    fn factor(given_up: u64, dispatched: u64) -> u64 {
        let mut limit = QueueLimit::new();
        limit.adjust(TaskCounts { dispatched, given_up });
        limit.factor
    }

    #[test]
    fn it_shrinks_by_twice_the_share_that_is_given_up() {
        assert_eq!(factor(1, 62), FACTOR_FIRST, "too few tasks to say anything");
        assert_eq!(factor(1, 63), FACTOR_FIRST - FACTOR_FIRST / 32);
        assert_eq!(factor(2, 126), FACTOR_FIRST - FACTOR_FIRST / 32);
        assert_eq!(factor(50, 50), FACTOR_FIRST - FACTOR_FIRST / 8, "at most");
        assert_eq!(factor(1, 1_023), FACTOR_FIRST + FACTOR_FIRST / 256, "as many as may be");
    }

    #[test]
    fn it_grows_by_a_quarter_while_tasks_have_time_to_spare() {
        let mut limit = QueueLimit::new();
        let ended = [16, 32, 64].map(|dispatched| {
            limit.spare.on_dispatch(SLO);
            (limit.ends(TaskCounts { dispatched, given_up: 0 }, SLO), limit.factor)
        });
        let (once, twice) = (FACTOR_FIRST / 4 * 5, FACTOR_FIRST / 16 * 25);
        assert_eq!(ended, [(false, once), (false, twice), (true, twice)]);
    }
}

//! While hardly a task is lost: would tasks end sooner if each batch began at once? The own rules wait for further tasks,
//! which spares GPU time that nothing else may want. So the rules of [`Alternative::AtOnce`](crate::Alternative) are tried then, too,
//! and followed as long as they lose nothing.

use super::{Enough, Verdict};
use baton_types::Nanos;

/// Tasks of each recording, at least …
const RECORDED: usize = 2_048;
/// … and at most.
const RECORDED_MAX: usize = 16_384;
/// How long a recording lasts, at least: bursts should be among what comes.
const SHORTEST: Nanos = Nanos::from_millis(250);
/// As many tasks must have come in recordings in a row that all say the same: of 2,000, rare bursts may not be among them.
const EVIDENCE: u64 = 4_096;
/// Between two trials. One that changes nothing doubles it …
const PAUSE_MIN: Nanos = Nanos::from_millis(250);
/// … up to this …
const PAUSE_CALM: Nanos = Nanos::from_millis(64_000);
/// … and tasks that were lost after all make it four times as long, up to this. Each trial that bears the rules out halves it.
const PAUSE_LOST: Nanos = Nanos::from_millis(1_024_000);

/// What follows for a sub-cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Service {
    /// Each batch begins at once.
    AtOnce,
    /// The own rules say when.
    Own,
}

/// When such a trial is due, and what follows from it.
#[derive(Clone, Debug)]
pub(super) struct Sooner {
    /// Batches begin at once.
    is_followed: bool,
    /// Tasks of the recordings in a row that speak for it.
    evidence: u64,
    pause: Nanos,
    /// Nothing is recorded before.
    not_before: Nanos,
}

impl Sooner {
    pub(super) const ENOUGH: Enough =
        Enough { tasks: RECORDED, most: RECORDED_MAX, lasts: SHORTEST };

    pub(super) fn new() -> Self {
        Self { is_followed: false, evidence: 0, pause: PAUSE_MIN, not_before: PAUSE_MIN }
    }

    /// Whether batches begin at once because of it.
    pub(super) fn is_followed(&self) -> bool {
        self.is_followed
    }

    pub(super) fn is_due(&self, now: Nanos) -> bool {
        now >= self.not_before
    }

    /// Tasks are lost under these rules. The own ones come back.
    pub(super) fn give_up(&mut self, now: Nanos) {
        self.pause = self.pause.times(4).min(PAUSE_LOST);
        self.end(now);
    }

    /// What a trial of the recorded arrivals found; `None` if it could not be made. Returns what to follow from now on, if
    /// that changes.
    pub(super) fn conclude(&mut self, now: Nanos, verdict: Option<&Verdict>) -> Option<Service> {
        if !self.is_due(now) {
            // Tasks were lost meanwhile.
            return None;
        }
        let Some(tasks) = verdict.filter(|verdict| verdict.is_sooner).map(|verdict| verdict.tasks)
        else {
            let was_followed = self.is_followed;
            self.pause = self.pause.max(self.pause.times(2).min(PAUSE_CALM));
            self.end(now);
            return was_followed.then_some(Service::Own);
        };
        if self.is_followed {
            self.pause = Nanos(self.pause.0 / 2).max(PAUSE_MIN);
            self.not_before = now + self.pause;
            return None;
        }
        self.evidence += tasks;
        self.is_followed = self.evidence >= EVIDENCE;
        self.is_followed.then_some(Service::AtOnce)
    }

    fn end(&mut self, now: Nanos) {
        (self.is_followed, self.evidence) = (false, 0);
        self.not_before = now + self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Alternative;
    use alloc::vec::Vec;

    const SECOND: Nanos = Nanos::from_millis(1_000);

    fn verdict(is_sooner: bool) -> Verdict {
        let least = Alternative::Own;
        let (tasks, lost, lost_least) = (EVIDENCE, 0, 0);
        Verdict { tasks, lost, least, lost_least, is_better: false, is_calm: true, is_sooner }
    }

    /// How long until the next trial may be made.
    fn pause(sooner: &Sooner, now: Nanos) -> u64 {
        (sooner.not_before - now).0 / 1_000_000
    }

    #[test]
    fn trials_that_gain_nothing_become_rare() {
        let mut sooner = Sooner::new();
        let mut now = SECOND;
        assert!(!sooner.is_due(Nanos::ZERO) && sooner.is_due(now));
        let mut after = |found: Option<bool>| {
            let verdict = found.map(verdict);
            assert_eq!(sooner.conclude(now, verdict.as_ref()), None);
            let pause = pause(&sooner, now);
            now = sooner.not_before;
            pause
        };
        assert_eq!([None, Some(false), None].map(&mut after), [500, 1_000, 2_000]);
        assert_eq!((0..9).map(|_| after(None)).last(), Some(64_000));
    }

    #[test]
    fn losses_make_trials_rare_and_trials_that_are_borne_out_frequent_again() {
        let mut sooner = Sooner::new();
        for pause_ms in [1_000, 4_000, 16_000, 64_000, 256_000, 1_024_000, 1_024_000] {
            sooner.give_up(SECOND);
            assert_eq!(pause(&sooner, SECOND), pause_ms);
        }
        let now = SECOND + PAUSE_LOST;
        assert_eq!(sooner.conclude(now, Some(&verdict(false))), None);
        assert_eq!(pause(&sooner, now), 1_024_000, "no shorter than it is");
        let mut now = now + PAUSE_LOST;
        assert_eq!(sooner.conclude(now, Some(&verdict(true))), Some(Service::AtOnce));
        let mut borne_out = || {
            assert_eq!(sooner.conclude(now, Some(&verdict(true))), None);
            let pause = pause(&sooner, now);
            now = sooner.not_before;
            pause
        };
        assert_eq!([borne_out(), borne_out()], [512_000, 256_000]);
        assert_eq!((0..20).map(|_| borne_out()).last(), Some(250));
    }

    #[test]
    fn a_trial_during_which_tasks_were_lost_concludes_nothing() {
        let mut sooner = Sooner::new();
        assert_eq!(sooner.conclude(SECOND, Some(&verdict(true))), Some(Service::AtOnce));
        sooner.give_up(SECOND.times(2));
        let just_before = Nanos(SECOND.0 * 3 - 1);
        assert_eq!(sooner.conclude(just_before, Some(&verdict(true))), None);
        assert!(!sooner.is_followed());
    }

    #[test]
    fn evidence_is_of_recordings_in_a_row() {
        let mut sooner = Sooner::new();
        let half = Verdict { tasks: EVIDENCE - 1, ..verdict(true) };
        let found = [&half, &verdict(false), &half, &half];
        let follows = (1..)
            .zip(found)
            .map(|(second, verdict)| sooner.conclude(SECOND.times(second), Some(verdict)));
        assert_eq!(follows.collect::<Vec<_>>(), [None, None, None, Some(Service::AtOnce)]);
        assert!(sooner.is_followed());
    }
}

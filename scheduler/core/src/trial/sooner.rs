//! While hardly a task is lost: would tasks end sooner if each batch began at once? The own rules wait for further tasks,
//! which spares GPU time that nothing else may want. So the rules of [`Alternative::AtOnce`](crate::Alternative) are tried then, too,
//! and followed as long as they lose nothing.

use core::mem;

use super::course::{RECORDED, RECORDED_MAX};
use super::{Enough, Verdict};
use crate::policy::Alternative;
use baton_types::Nanos;

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

/// Of what comes between two looks: half as much again as was recorded has been tried, what is more than this many deviations
/// above it is no chance …
const DEVIATIONS: u64 = 4;
/// … nor are bursts of fewer tasks a reason.
const TASKS_FEW: u64 = 32;

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
    /// Tasks of the last recording that speaks for it, and how long they took to come.
    traffic: (u64, Nanos),
    /// When tasks that came were last counted, and how many had come since start.
    counted: (Nanos, u64),
}

impl Sooner {
    /// What came before does not count: what was recorded for the last trial would speak twice.
    pub(super) fn enough(now: Nanos) -> Enough {
        Enough { tasks: RECORDED, most: RECORDED_MAX, lasts: SHORTEST, since: now }
    }

    pub(super) fn new() -> Self {
        Self {
            is_followed: false,
            evidence: 0,
            pause: PAUSE_MIN,
            not_before: PAUSE_MIN,
            traffic: (0, Nanos::ZERO),
            counted: (Nanos::ZERO, 0),
        }
    }

    /// Whether batches begin at once because of it.
    pub(super) fn is_followed(&self) -> bool {
        self.is_followed
    }

    pub(super) fn is_due(&self, now: Nanos) -> bool {
        now >= self.not_before
    }

    /// `came` tasks have come since start. Returns whether more came since the last call than the trials have tried, and by more
    /// than chance: then the own rules come back.
    pub(super) fn is_outrun(&mut self, now: Nanos, came: u64) -> bool {
        let (since, before) = mem::replace(&mut self.counted, (now, came));
        let (tasks, span) = self.traffic;
        let tried = u128::from(tasks) * u128::from((now - since).0) * 3;
        let tried = (tried / u128::from(span.0.max(1)) / 2) as u64;
        let is_outrun = self.is_followed
            && came.saturating_sub(before) > tried + DEVIATIONS * tried.isqrt() + TASKS_FEW;
        if is_outrun {
            self.end(now);
        }
        is_outrun
    }

    /// Tasks are lost under these rules. The own ones come back.
    pub(super) fn give_up(&mut self, now: Nanos) {
        self.pause = self.pause.times(4).min(PAUSE_LOST);
        self.end(now);
    }

    /// What a trial of the recorded arrivals found; `None` if it could not be made. Returns what to follow from now on, if
    /// that changes.
    pub(super) fn conclude(
        &mut self,
        now: Nanos,
        verdict: Option<&Verdict>,
    ) -> Option<Alternative> {
        if !self.is_due(now) {
            // The own rules have come back meanwhile.
            return None;
        }
        let Some(verdict) = verdict.filter(|verdict| verdict.is_sooner) else {
            let was_followed = self.is_followed;
            self.pause = self.pause.max(self.pause.times(2).min(PAUSE_CALM));
            self.end(now);
            return was_followed.then_some(Alternative::Own);
        };
        self.traffic = (verdict.tasks, verdict.span);
        if self.is_followed {
            self.pause = Nanos(self.pause.0 / 2).max(PAUSE_MIN);
            self.not_before = now + self.pause;
            return None;
        }
        self.evidence += verdict.tasks;
        self.is_followed = self.evidence >= EVIDENCE;
        self.is_followed.then_some(Alternative::AtOnce)
    }

    fn end(&mut self, now: Nanos) {
        (self.is_followed, self.evidence) = (false, 0);
        self.not_before = now + self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const SECOND: Nanos = Nanos::from_millis(1_000);

    fn verdict(is_sooner: bool) -> Verdict {
        let least = Alternative::Own;
        let (tasks, lost, lost_least) = (EVIDENCE, 0, 0);
        let span = SECOND;
        Verdict { tasks, span, lost, least, lost_least, is_better: false, is_calm: true, is_sooner }
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
        assert_eq!(sooner.conclude(now, Some(&verdict(true))), Some(Alternative::AtOnce));
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
        assert_eq!(sooner.conclude(SECOND, Some(&verdict(true))), Some(Alternative::AtOnce));
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
        assert_eq!(follows.collect::<Vec<_>>(), [None, None, None, Some(Alternative::AtOnce)]);
        assert!(sooner.is_followed());
    }

    /// 4,096 a second were recorded, and half as many again tried: 384 in 1/16 s. Four deviations are 76.
    #[test]
    fn the_own_rules_come_back_where_clearly_more_tasks_come_than_were_tried() {
        let outrun = |came: [u64; 3]| {
            let mut sooner = Sooner::new();
            let look = Nanos(SECOND.0 / 16);
            let mut total = 9_000;
            sooner.is_outrun(SECOND, total);
            sooner.conclude(SECOND, Some(&verdict(true)));
            let outrun = (1..).zip(came).map(|(looks, came)| {
                total += came;
                sooner.is_outrun(SECOND + look.times(looks), total)
            });
            let outrun: Vec<_> = outrun.collect();
            (outrun, sooner.is_followed())
        };
        assert_eq!(outrun([256, 492, 492]), (Vec::from([false; 3]), true));
        assert_eq!(outrun([256, 493, 9_000]), (Vec::from([false, true, false]), false));
    }
}

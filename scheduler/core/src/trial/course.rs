//! When a trial is due, and what follows from its verdict.

use alloc::vec;
use alloc::vec::Vec;
use core::mem;

use super::{Enough, Verdict};
use crate::policy::Alternative;
use baton_types::Nanos;

/// What models lose is counted over spans of this length, so that rare losses are seen, too.
const SPAN: Nanos = Nanos::from_millis(10_000);
/// Fewer lost tasks of a model in a span are no sign of anything.
const LOST_MIN: u64 = 3;
/// A model loses tasks if it loses more than one in 400.
const LOST_ONE_IN: u64 = 400;
/// How often losses are looked at.
const LOOK_EVERY: Nanos = Nanos(1_000_000_000 / 16);
/// After a trial nothing is recorded for so long. Each one that changes nothing doubles it …
const PAUSE_MIN: Nanos = LOOK_EVERY;
/// … up to this.
const PAUSE_MAX: Nanos = Nanos::from_millis(16_000);
/// A recording lasts for so long at least while tasks are being lost: the first trial should not come late …
const SHORTEST: Nanos = LOOK_EVERY;
/// … and for so long while none are: whether the own rules would do again is not urgent, and bursts should be among what comes.
const SHORTEST_CALM: Nanos = Nanos::from_millis(1_000);
/// Arrivals that are enough for the first trial. For each further one, twice as many …
const RECORDED: usize = 2_048;
/// … up to this, which are enough in any case.
const RECORDED_MAX: usize = 16_384;
/// The policy's own rules come back once they would have served a thousand tasks in a row with hardly a loss. A recording
/// counts as [`CALM_MIN`] tasks at least.
const CALM: u64 = 1_000;
const CALM_MIN: u64 = 100;

/// The trials of one sub-cluster: which rules its models follow, and when others are tried.
#[derive(Clone, Debug)]
pub struct Trials {
    rules: Alternative,
    /// Tasks received and lost since start, by model, when the span began.
    seen: Vec<(u64, u64)>,
    began: Nanos,
    pause: Nanos,
    /// Nothing is recorded before.
    not_before: Nanos,
    enough: usize,
    /// Tasks that the policy's own rules would have served with hardly a loss.
    calm: u64,
}

impl Trials {
    /// See [`Trials::look`].
    pub const LOOK_EVERY: Nanos = LOOK_EVERY;

    /// For this number of models, of which nothing is lost yet.
    pub fn new(models: usize) -> Self {
        Self {
            rules: Alternative::Own,
            seen: vec![(0, 0); models],
            began: Nanos::ZERO,
            pause: PAUSE_MIN,
            not_before: Nanos::ZERO,
            enough: RECORDED,
            calm: 0,
        }
    }

    /// What the models follow.
    pub fn rules(&self) -> Alternative {
        self.rules
    }

    /// Looks at how many tasks each model has received and lost since start, and says how many arrivals to record for a
    /// trial, if one is due: because a model loses tasks, or because other rules than the policy's own are followed, which
    /// may not be needed any more. Call every [`Trials::LOOK_EVERY`].
    pub fn look(&mut self, now: Nanos, counts: impl Iterator<Item = (u64, u64)>) -> Option<Enough> {
        let is_losing = self.is_losing(now, counts);
        let is_due = is_losing || self.rules != Alternative::Own;
        let lasts = if is_losing { SHORTEST } else { SHORTEST_CALM };
        let enough = Enough { tasks: self.enough, most: RECORDED_MAX, lasts };
        (is_due && now >= self.not_before).then_some(enough)
    }

    fn is_losing(&mut self, now: Nanos, counts: impl Iterator<Item = (u64, u64)>) -> bool {
        let is_over = now >= self.began + SPAN;
        if is_over {
            self.began = now;
        }
        let mut is_losing = false;
        for (seen, count) in self.seen.iter_mut().zip(counts) {
            let before = if is_over { mem::replace(seen, count) } else { *seen };
            // A model that has been replaced counts from nothing.
            let (came, lost) = (count.0.saturating_sub(before.0), count.1.saturating_sub(before.1));
            is_losing |= lost >= LOST_MIN && lost * LOST_ONE_IN > came;
        }
        is_losing
    }

    /// What a trial of the recorded arrivals found; `None` if it could not be made. Returns the rules to follow from now
    /// on, if they are others.
    pub fn conclude(&mut self, now: Nanos, verdict: Option<&Verdict>) -> Option<Alternative> {
        let changed = verdict.and_then(|verdict| self.weigh(verdict));
        self.pause = if changed.is_some() { PAUSE_MIN } else { self.pause.times(2).min(PAUSE_MAX) };
        self.enough = (self.enough * 2).min(RECORDED_MAX);
        self.not_before = now + self.pause;
        if let Some(rules) = changed {
            self.rules = rules;
            // What was lost before says nothing of these rules: the next look begins a span.
            self.began = Nanos::ZERO;
        }
        changed
    }

    fn weigh(&mut self, verdict: &Verdict) -> Option<Alternative> {
        if verdict.is_calm {
            self.calm += verdict.tasks.max(CALM_MIN);
            let comes_back = self.rules != Alternative::Own && self.calm >= CALM;
            return comes_back.then_some(Alternative::Own);
        }
        self.calm = 0;
        verdict.is_better.then_some(verdict.least).filter(|&least| least != self.rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_millis(1_000);

    fn at(seconds: u64) -> Nanos {
        SECOND.times(seconds)
    }

    fn better(least: Alternative) -> Verdict {
        Verdict { tasks: 500, lost: 9, least, lost_least: 1, is_better: true, is_calm: false }
    }

    fn calm(tasks: u64) -> Verdict {
        Verdict {
            tasks,
            lost: 0,
            least: Alternative::Own,
            lost_least: 0,
            is_better: false,
            is_calm: true,
        }
    }

    #[test]
    fn a_trial_is_due_once_a_model_has_lost_a_few_tasks_within_ten_seconds() {
        let mut trials = Trials::new(2);
        let mut look = |second: u64, second_model| {
            trials.look(at(second), [(9_000, 0), second_model].into_iter()).is_some()
        };
        assert!(!look(10, (400, 0)), "nothing is lost");
        assert!(!look(11, (500, 2)), "two tasks are no sign");
        assert!(look(12, (600, 3)), "rare losses count together");
        assert!(!look(20, (3_000, 5)), "five of 2,600 are 0.2 %");
        assert!(!look(21, (3_100, 7)), "and another span");
        assert!(!look(22, (4_600, 9)), "four of 1,600 of this span are one in 400");
        assert!(look(23, (4_599, 9)));
        assert_eq!(Trials::LOOK_EVERY.times(16), SECOND, "it is looked often enough for crowds");
    }

    #[test]
    fn a_model_that_has_been_replaced_counts_from_nothing() {
        let mut trials = Trials::new(1);
        let counts = [(9_000, 9), (100, 0), (200, 11), (300, 12)];
        let due = (10..)
            .zip(counts)
            .map(|(second, count)| trials.look(at(second), [count].into_iter()).is_some());
        assert_eq!(due.collect::<Vec<_>>(), [false, false, false, true]);
    }

    #[test]
    fn trials_that_change_nothing_become_rare_and_large() {
        let mut trials = Trials::new(1);
        let (mut due, mut recorded) = (Vec::new(), Vec::new());
        for look in 1..900 {
            let counts = [(100 * look, 10 * look)].into_iter();
            if let Some(enough) = trials.look(Trials::LOOK_EVERY.times(look), counts) {
                due.push(look);
                recorded.push(enough.tasks);
                assert_eq!(trials.conclude(Trials::LOOK_EVERY.times(look), None), None);
            }
        }
        assert_eq!(due, [1, 3, 7, 15, 31, 63, 127, 255, 511, 767], "sixteen seconds in the end");
        assert_eq!(recorded[..4], [2_048, 4_096, 8_192, 16_384]);
        assert_eq!(recorded[4..], [16_384; 6]);
    }

    #[test]
    fn trials_are_quick_while_tasks_are_being_lost() {
        let mut trials = Trials::new(1);
        let mut lasts = |second: u64, lost| {
            trials.look(at(second), [(1_000, lost)].into_iter()).map(|enough| enough.lasts)
        };
        assert_eq!([lasts(1, 0), lasts(2, 3)], [None, Some(Trials::LOOK_EVERY)]);
        trials.conclude(at(3), Some(&better(Alternative::Fill)));
        let enough = trials.look(at(4), [(2_000, 3)].into_iter());
        let enough = enough.expect("the own rules may do again");
        assert_eq!(enough.lasts, SECOND, "bursts should be among what comes");
    }

    #[test]
    fn better_rules_are_followed_until_the_own_ones_would_do() {
        let mut trials = Trials::new(1);
        let frontrun = Alternative::Frontrun;
        assert_eq!(trials.conclude(at(1), Some(&better(frontrun))), Some(frontrun));
        assert_eq!(trials.rules(), frontrun);
        assert_eq!(trials.conclude(at(2), Some(&better(frontrun))), None, "it is followed already");
        let due = trials.look(at(60), [(9, 0)].into_iter());
        let due = due.expect("nothing is lost, but it may do without");
        assert_eq!(due.tasks, 8_192, "a third trial, whatever the first two found");
        assert_eq!(trials.conclude(at(61), Some(&calm(600))), None);
        assert_eq!(
            trials.conclude(at(62), Some(&better(Alternative::Part))),
            Some(Alternative::Part)
        );
        let calms = [600, 5, 5, 5].map(calm);
        let ends = calms.map(|verdict| trials.conclude(at(63), Some(&verdict)));
        assert_eq!(ends, [None; 4], "what was calm before has been forgotten");
        assert_eq!(trials.conclude(at(64), Some(&calm(100))), Some(Alternative::Own));
        assert_eq!(trials.rules(), Alternative::Own);
        assert_eq!(trials.conclude(at(65), Some(&calm(5_000))), None);
    }

    #[test]
    fn a_recording_that_is_not_calm_ends_the_row_of_those_that_are() {
        let mut trials = Trials::new(1);
        let mut verdict =
            |verdict: Verdict| trials.conclude(at(60), Some(&verdict)).map(|_| trials.rules());
        assert!(verdict(better(Alternative::Fill)).is_some());
        let lossy = Verdict { is_calm: false, ..calm(600) };
        let ends = [calm(600), lossy, calm(600)].map(&mut verdict);
        assert_eq!(ends, [None; 3]);
        assert_eq!(verdict(calm(400)), Some(Alternative::Own));
    }

    #[test]
    fn what_was_lost_under_the_former_rules_is_no_reason_for_another_trial() {
        let mut trials = Trials::new(1);
        let look = |trials: &mut Trials, ms, lost| {
            let now = Nanos::from_millis(ms);
            trials.look(now, [(ms, lost)].into_iter()).is_some()
        };
        assert!(look(&mut trials, 20_000, 900));
        trials.conclude(at(21), Some(&better(Alternative::Fill)));
        assert!(look(&mut trials, 22_000, 990));
        trials.conclude(at(23), Some(&calm(1_000)));
        assert_eq!(trials.rules(), Alternative::Own);
        assert!(!look(&mut trials, 23_050, 990), "it is too early for another one");
        assert!(!look(&mut trials, 23_100, 990));
    }
}

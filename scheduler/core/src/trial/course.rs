//! When a trial is due, and what follows from its verdict.

use alloc::vec;
use alloc::vec::Vec;
use core::mem;

use super::sooner::Sooner;
use super::{Enough, Verdict};
use crate::policy::Alternative;
use baton_types::{Nanos, Prefer};

/// What models lose is counted over spans of this length, so that rare losses are seen, too …
const SPAN: Nanos = Nanos::from_millis(10_000);
/// … and over longer ones, as long as tasks are remembered, while fewer than these have come.
const FEW: u64 = 512;
/// Fewer lost tasks in a span, of a model or of all together, are no sign of anything.
const LOST_MIN: u64 = 3;
/// Tasks are being lost if these are more than one in 400.
const LOST_ONE_IN: u64 = 400;
/// Batches begin at once only while no model loses more than one in 4,096.
const CALM_ONE_IN: u64 = 4_096;
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
/// What came before tasks were lost counts, too, if it is not older than this.
const REMEMBERED: Nanos = Nanos::from_millis(60_000);
/// Arrivals that are enough for the first trial. For each further one, twice as many …
pub(super) const RECORDED: usize = 2_048;
/// … up to this, which are enough in any case.
pub(super) const RECORDED_MAX: usize = 16_384;
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
    /// `None` if the next look begins one.
    began: Option<Nanos>,
    /// The first look.
    started: Option<Nanos>,
    pause: Nanos,
    /// Nothing is recorded before.
    not_before: Nanos,
    enough: usize,
    /// Tasks that the policy's own rules would have served with hardly a loss.
    calm: u64,
    /// Whether batches begin at once while hardly a task is lost. `None` where GPU time is spared instead.
    sooner: Option<Sooner>,
    /// What is recorded, or tried, is for that.
    is_for_sooner: bool,
    /// Tasks came in this span.
    has_traffic: bool,
    /// No model has lost even a few of them.
    is_calm: bool,
    /// Tasks of all models since start, as of the last look.
    came: u64,
}

/// What a look at the losses asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// Record arrivals, and try them.
    Record(Enough),
    /// Follow these rules from now on.
    Follow(Alternative),
    /// End the recording that is under way, and do not try it: another one is more urgent.
    Discard,
}

impl Trials {
    /// See [`Trials::look`].
    pub const LOOK_EVERY: Nanos = LOOK_EVERY;

    /// For this number of models, of which nothing is lost yet.
    pub fn new(models: usize, prefer: Prefer) -> Self {
        Self {
            rules: Alternative::Own,
            seen: vec![(0, 0); models],
            began: Some(Nanos::ZERO),
            started: None,
            pause: PAUSE_MIN,
            not_before: Nanos::ZERO,
            enough: RECORDED,
            calm: 0,
            sooner: (prefer == Prefer::Latency).then(Sooner::new),
            has_traffic: false,
            is_calm: true,
            came: 0,
            is_for_sooner: false,
        }
    }

    /// What the models follow.
    pub fn rules(&self) -> Alternative {
        self.rules
    }

    /// Looks at how many tasks each model has received and lost since start, and says how many arrivals to record for a
    /// trial, if one is due: because tasks are being lost, because other rules than the policy's own are followed, which may not
    /// be needed any more, or because none loses tasks, which could end sooner. Where they do, and tasks are lost or
    /// clearly more come than were tried, the own rules come back without a trial. Call every [`Trials::LOOK_EVERY`], also while a trial is under way, which `is_trying` says.
    pub fn look(
        &mut self,
        now: Nanos,
        counts: impl Iterator<Item = (u64, u64)> + Clone,
        is_trying: bool,
    ) -> Option<Look> {
        self.started.get_or_insert(now);
        let serves_sooner = self.serves_sooner();
        if is_trying && !serves_sooner && !self.is_for_sooner {
            return None;
        }
        let is_losing = self.is_losing(now, counts);
        if self.ends_sooner(now) {
            return Some(Look::Follow(self.follow(Alternative::Own)));
        }
        if is_trying {
            let is_in_the_way = self.is_for_sooner && !self.is_calm;
            self.is_for_sooner &= !is_in_the_way;
            return is_in_the_way.then_some(Look::Discard);
        }
        self.record(now, is_losing).map(Look::Record)
    }

    /// Whether batches have begun at once until now, and tasks are lost, or come faster than was tried.
    fn ends_sooner(&mut self, now: Nanos) -> bool {
        let Some(sooner) = &mut self.sooner else { return false };
        let is_outrun = sooner.is_outrun(now, self.came);
        let is_lossy = sooner.is_followed() && !self.is_calm;
        if is_lossy {
            sooner.give_up(now);
        }
        is_outrun || is_lossy
    }

    /// How much to record, if a trial is due.
    fn record(&mut self, now: Nanos, is_losing: bool) -> Option<Enough> {
        let is_calm = self.is_calm && (self.rules == Alternative::Own || self.serves_sooner());
        self.is_for_sooner = false;
        if let Some(sooner) = self.sooner.as_ref().filter(|_| is_calm) {
            self.is_for_sooner = self.has_traffic && sooner.is_due(now);
            return self.is_for_sooner.then_some(Sooner::enough(now));
        }
        let is_due = is_losing || self.rules != Alternative::Own;
        let remembered = (now - REMEMBERED).max(self.started.unwrap_or(now));
        let (lasts, since) = if is_losing { (SHORTEST, remembered) } else { (SHORTEST_CALM, now) };
        let enough = Enough { tasks: self.enough, most: RECORDED_MAX, lasts, since };
        (is_due && now >= self.not_before).then_some(enough)
    }

    /// Batches begin at once because none is lost.
    fn serves_sooner(&self) -> bool {
        self.sooner.as_ref().is_some_and(Sooner::is_followed)
    }

    fn is_losing(&mut self, now: Nanos, counts: impl Iterator<Item = (u64, u64)> + Clone) -> bool {
        let of_span = self.seen.iter().zip(counts.clone());
        let in_span: u64 = of_span.map(|(seen, count)| count.0.saturating_sub(seen.0)).sum();
        let span = if in_span < FEW { REMEMBERED } else { SPAN };
        let is_over = self.began.is_none_or(|began| now >= began + span);
        let counts_before = self.began.is_some();
        if is_over {
            self.began = Some(now);
        }
        let is_clear = |(came, lost): (u64, u64)| lost >= LOST_MIN && lost * LOST_ONE_IN > came;
        let (mut is_losing, mut all) = (false, (0, 0));
        (self.is_calm, self.came) = (true, 0);
        for (seen, count) in self.seen.iter_mut().zip(counts) {
            let before = if is_over { mem::replace(seen, count) } else { *seen };
            // A model that has been replaced counts from nothing.
            let (came, lost) = (count.0.saturating_sub(before.0), count.1.saturating_sub(before.1));
            self.came += count.0;
            self.is_calm &= lost * CALM_ONE_IN <= came;
            is_losing |= is_clear((came, lost));
            all = (all.0 + came, all.1 + lost);
        }
        self.has_traffic = all.0 > 0;
        self.is_calm |= !counts_before;
        (is_losing || is_clear(all)) && counts_before
    }

    /// What a trial of the recorded arrivals found; `None` if it could not be made. Returns the rules to follow from now
    /// on, if they are others.
    pub fn conclude(&mut self, now: Nanos, verdict: Option<&Verdict>) -> Option<Alternative> {
        if mem::take(&mut self.is_for_sooner) {
            return self.serve_sooner(now, verdict);
        }
        let changed = verdict.and_then(|verdict| self.weigh(verdict));
        self.pause = if changed.is_some() { PAUSE_MIN } else { self.pause.times(2).min(PAUSE_MAX) };
        self.enough = (self.enough * 2).min(RECORDED_MAX);
        self.not_before = now + self.pause;
        changed.map(|rules| self.follow(rules))
    }

    fn serve_sooner(&mut self, now: Nanos, verdict: Option<&Verdict>) -> Option<Alternative> {
        let changed = self.sooner.as_mut()?.conclude(now, verdict);
        changed.map(|rules| self.follow(rules))
    }

    /// What was lost before says nothing of these rules: the next look begins a span.
    fn follow(&mut self, rules: Alternative) -> Alternative {
        self.rules = rules;
        self.began = None;
        rules
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
#[path = "course_tests.rs"]
mod tests;

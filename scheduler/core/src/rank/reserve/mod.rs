//! How many slots of a sub-cluster stay idle although a batch could use them.
//!
//! A slot is worth keeping for two reasons. *Efficient batches* will need it: a small batch that
//! starts early spends GPU time that is missed when load is high. And *shorter objectives* will need
//! it: an execution is not interrupted, so a task that can wait less than a long batch takes is lost
//! where long batches have every slot. Both follow from the GPU time of the batches planned in about
//! the last quarter of a second, counted by how long the models' tasks can wait for a slot.

mod demand;
mod own_work;
mod variability;

pub(crate) use demand::Demand;
pub(crate) use own_work::OwnWork;

use crate::candidate::Candidate;
use crate::model::rate::DISPERSION_ONE;
use crate::model::sizing::{LOSING, PER_CENT};
use baton_types::Nanos;

/// Loads fade by 1/16 in each 1/64 of a second: they are means over about a quarter of a second.
const FADE: u64 = 16;
const TICK: Nanos = Nanos(250_000_000 / FADE);
/// Faded work of this much means that one slot is busy all the time.
const SLOT: u64 = FADE * TICK.0;
/// √[`SLOT`].
const ROOT_OF_SLOT: u64 = SLOT.isqrt();
/// Lengths of time from 4 µs to a minute, in quarters of a factor of two.
const CLASSES: usize = 96;
const SHORTEST_LOG2: u32 = 12;
/// Parts of the slots, in tenths, that batches like the candidate may need at most before slots are
/// kept for larger ones; at twice what they may need, all are.
const DEAR_FROM: u64 = 7;
/// Unit of fractions of a slot.
pub(crate) const PARTS: u64 = 256;
/// At least this many slots are kept for shorter objectives: of two that need one at once each has
/// one, and what they need is learnt only from those that got it.
const KEPT_AT_LEAST: u64 = 2;
/// For each per cent that shorter objectives lose above [`LOSING`], this many more slots are kept
/// for them.
const KEPT_PER_CENT: u64 = 16;
/// Each per cent of bad tasks above [`LOSING`] adds the dispersion of demand this many times over.
const DISPERSION_PER_CENT: u64 = 4;
/// Where this many slots become free while the batch executes, no model needs one of its own.
const TURNS: u64 = 8;
/// One task, among those that are counted: a few are not rounded away as they fade.
const TASK: u64 = 1 << 16;
/// A class with less of the load than this part does not count as the shortest.
const REMARKABLE: u64 = 64;

/// GPU time planned, as if in efficient batches, and tasks, faded.
#[derive(Clone, Copy, Default, Debug)]
struct Work {
    time: u64,
    /// Times the dispersion of the models' demand.
    spread: u64,
    /// In 1/[`TASK`].
    tasks: u64,
    /// Tasks times their models' bad rates.
    lost: u64,
}

/// What objectives shorter than a class get.
#[derive(Clone, Copy, Default, Debug)]
struct Kept {
    /// Slots that a batch leaves them although it is due.
    due: u32,
    /// Slots that it leaves them before.
    early: u32,
    /// Their bad rate, in 1/65536.
    bad_rate: u32,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Reserve {
    /// Per class of slack.
    work: [Work; CLASSES],
    /// Work of all classes, as of the last plan.
    total: u64,
    /// See [`Demand::varying`]: of all models, as of the last plan.
    varying: u64,
    /// Tasks, and these times their models' bad rates, of all models, as of the last plan.
    tasks: u64,
    lost: u64,
    faded_at: Nanos,
    slots: u32,
    /// Sum of all work as of the last tick.
    load: u64,
    /// Per class of length.
    kept: [Kept; CLASSES],
    /// The shortest class of slack that is worth mentioning.
    shortest: usize,
    /// The two shortest classes that have more than a small part of all tasks, however short their executions are.
    impatient: [usize; 2],
    /// As of the last tick.
    bad_rate: u32,
    /// How many batches the models have at a time at most, each by itself: any of them may have one, however rarely.
    peaks: u64,
}

impl Reserve {
    pub(crate) fn new() -> Self {
        Self {
            work: [Work::default(); CLASSES],
            total: 0,
            varying: 0,
            tasks: 0,
            lost: 0,
            faded_at: Nanos::ZERO,
            slots: 0,
            load: 0,
            kept: [Kept::default(); CLASSES],
            shortest: CLASSES,
            impatient: [CLASSES; 2],
            bad_rate: 0,
            peaks: 0,
        }
    }

    /// A batch was planned, as of the last [`Reserve::refresh`]: `work` is what its tasks take in an
    /// efficient one.
    pub(crate) fn planned(&mut self, demand: &Demand, batch: u32, work: Nanos) {
        let class = class_of(demand.slack);
        self.work[class].add(demand, batch, work.0);
        self.total += work.0;
        let (tasks, lost) = demand.lost_of(batch);
        (self.tasks, self.lost) = (self.tasks + tasks, self.lost + lost);
    }

    /// Brings everything up to date for this number of slots; true if anything may have changed.
    /// Costs next to nothing but once in a tick.
    pub(crate) fn refresh(&mut self, now: Nanos, slots: u32) -> bool {
        let is_stale = self.fade(now) || self.slots != slots;
        if is_stale {
            self.slots = slots;
            self.reckon();
        }
        is_stale
    }

    /// When [`Reserve::refresh`] has something to do next.
    pub(crate) fn next_tick(&self) -> Nanos {
        self.faded_at + TICK
    }

    /// Mean of the models' bad rates by their tasks, in 1/65536, as of the last tick.
    pub(crate) fn bad_rate(&self) -> u32 {
        self.bad_rate
    }

    /// Before it is due, the candidate starts only if more slots than this are idle; `None`: it
    /// never does.
    pub(crate) fn before_due(&self, candidate: &Candidate) -> Option<u32> {
        if candidate.excess == Candidate::NOT_EARLY {
            return None;
        }
        let kept = self.for_larger(candidate).max(self.for_shorter(candidate).early);
        Some(kept.max(for_run(candidate)))
    }

    /// Once it is due, the candidate starts only if more slots than this are idle.
    pub(crate) fn when_due(&self, candidate: &Candidate) -> u32 {
        self.for_shorter(candidate).due
    }

    /// Whether some batch may find no slot although every model spaces its own. On a single slot it may
    /// find one of its own model there.
    pub(crate) fn models_compete(&self) -> bool {
        self.slots == 1 || self.peaks > u64::from(self.slots)
    }

    /// Slots kept for larger batches. What counts is how many slots the traffic would need if all
    /// batches were as dear as this one. None, if it becomes no larger. Where all slots are idle, one may always be
    /// used: a batch that waits beside a single idle slot gains less than those behind it lose.
    fn for_larger(&self, candidate: &Candidate) -> u32 {
        if candidate.excess == Candidate::COMPLETE {
            return 0;
        }
        let slots = u64::from(self.slots);
        let dear = self.load + self.load / Candidate::EXCESS_ONE * u64::from(candidate.excess);
        let free = (slots * SLOT / 10 * DEAR_FROM).min(slots * SLOT - self.room_for(candidate));
        let kept = dear.saturating_sub(free).saturating_mul(slots) / free.max(1);
        kept.min(slots.saturating_sub(1)) as u32
    }

    /// Slots kept for shorter objectives: those whose tasks can wait neither for the batch to end,
    /// nor for a few slots to become free, nor half as long as the batch's own. None, if the batch's
    /// own tasks are lost rather than theirs.
    fn for_shorter(&self, candidate: &Candidate) -> Kept {
        let turns = candidate.latency.times(TURNS).0 / u64::from(self.slots.max(1));
        let length = candidate.latency.0.min(turns).min(candidate.slack.0 / 2);
        let kept = self.kept[class_of(Nanos(length))];
        if candidate.bad_rate > kept.bad_rate.max(LOSING) { Kept::default() } else { kept }
    }

    /// True if a tick has passed.
    fn fade(&mut self, now: Nanos) -> bool {
        let ticks = (now - self.faded_at).0 / TICK.0;
        if ticks == 0 {
            return false;
        }
        self.faded_at = self.faded_at + TICK.times(ticks);
        for sum in [&mut self.total, &mut self.varying, &mut self.tasks, &mut self.lost] {
            *sum = faded(*sum, ticks);
        }
        for work in &mut self.work {
            work.fade(ticks);
        }
        true
    }

    fn reckon(&mut self) {
        self.load = self.work.iter().map(|work| work.time).sum();
        let (mut shorter, mut kept) = (Work::default(), Kept::default());
        for class in 0..CLASSES {
            self.kept[class] = kept;
            let work = self.work[class];
            if work.time > 0 {
                shorter = shorter.plus(work);
                kept = self.kept_for(&shorter);
            }
        }
        self.shortest = self.worth_mentioning(0, |work| work.time);
        let first = self.worth_mentioning(0, |work| work.tasks);
        self.impatient = [first, self.worth_mentioning(first + 1, |work| work.tasks)];
        self.bad_rate = shorter.bad_rate();
    }

    /// What is kept for work like this. A due batch leaves what Poisson arrivals need, one that is
    /// not due what these arrivals do: it risks nothing but latency. And the slots that are left
    /// carry the rest.
    fn kept_for(&self, shorter: &Work) -> Kept {
        let slots = u64::from(self.slots);
        let rest = (self.load - shorter.time).div_ceil(SLOT);
        let most = slots.saturating_sub(rest).max(1);
        let bad_rate = shorter.bad_rate();
        let for_losses = u64::from(bad_rate.saturating_sub(LOSING)) * KEPT_PER_CENT / PER_CENT;
        let kept = |spread, at_most: u64| {
            let wanted = deviation_above(shorter.time, spread).max(KEPT_AT_LEAST) + for_losses;
            wanted.min(at_most).min(most) as u32
        };
        Kept {
            due: kept(shorter.time, slots * 4 / 5),
            early: kept(shorter.spread / u64::from(DISPERSION_ONE), slots.saturating_sub(1)),
            bad_rate,
        }
    }
}

impl Work {
    fn add(&mut self, demand: &Demand, batch: u32, time: u64) {
        let (tasks, lost) = demand.lost_of(batch);
        self.time += time;
        self.spread += time.saturating_mul(demand.dispersion.into());
        self.tasks += tasks;
        self.lost += lost;
    }

    /// Mean of the models' bad rates by their tasks, in 1/65536: by their work, a model whose executions are short could
    /// lose any part of its tasks beside one whose executions are long.
    fn bad_rate(&self) -> u32 {
        (self.lost / self.tasks.max(1)) as u32
    }

    fn plus(self, other: Self) -> Self {
        Self {
            time: self.time + other.time,
            spread: self.spread + other.spread,
            tasks: self.tasks + other.tasks,
            lost: self.lost + other.lost,
        }
    }

    fn fade(&mut self, ticks: u64) {
        for sum in [&mut self.time, &mut self.spread, &mut self.tasks, &mut self.lost] {
            *sum = faded(*sum, ticks);
        }
    }
}

/// Slots that a run may need if each of its tasks takes one: of those that can wait, several share one.
fn for_run(candidate: &Candidate) -> u32 {
    let Candidate { run, latency, slack, .. } = candidate;
    (u64::from(*run).saturating_mul(latency.0) / (latency.0 + slack.0).max(1)) as u32
}

/// What is left of a sum after `ticks` ticks.
fn faded(mut sum: u64, ticks: u64) -> u64 {
    for _ in 0..ticks {
        if sum == 0 {
            break;
        }
        sum -= sum.div_ceil(FADE);
    }
    sum
}

/// Slots for a load with this variance: a standard deviation above the mean.
fn deviation_above(load: u64, variance: u64) -> u64 {
    above(load, variance).div_ceil(SLOT)
}

/// A load and its standard deviation, as work.
fn above(load: u64, variance: u64) -> u64 {
    load + variance.isqrt() * ROOT_OF_SLOT
}

pub(crate) fn class_of(length: Nanos) -> usize {
    let log2 = length.0.max(1).ilog2();
    if log2 < SHORTEST_LOG2 {
        return 0;
    }
    let quarter = (length.0 >> (log2 - 2)) & 3;
    ((u64::from(log2 - SHORTEST_LOG2) * 4 + quarter) as usize).min(CLASSES - 1)
}

/// The shortest length of a class but the first, a multiple of 1,024 ns.
pub(crate) fn length_of(class: usize) -> Nanos {
    Nanos((4 + class as u64 % 4) << (SHORTEST_LOG2 as usize - 2 + class / 4))
}

#[cfg(test)]
mod tests;

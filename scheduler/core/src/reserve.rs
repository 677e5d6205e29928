//! How many slots of a sub-cluster stay idle although a batch could use them.
//!
//! A slot is worth keeping for two reasons. *Efficient batches* will need it: a small batch that
//! starts early spends GPU time that is missed when load is high. And *shorter objectives* will need
//! it: an execution is not interrupted, so a task that can wait less than a long batch takes is lost
//! where long batches have every slot. Both follow from the GPU time of the batches planned in about
//! the last quarter of a second, counted by how long the models' tasks can wait for a slot.

use crate::candidate::Candidate;
use crate::time::Nanos;

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
/// Parts of the slots, in tenths, that batches like the candidate may need before slots are kept for
/// larger ones; at twice that, all are.
const DEAR_FROM: u64 = 7;
/// So many slots at least are kept for shorter objectives: of several that need one at once, each has
/// one, and what they need is learnt only from those that got it.
const KEPT_AT_LEAST: u64 = 3;
/// Where so many slots become free while the batch executes, nobody needs one of his own.
const TURNS: u64 = 8;

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Reserve {
    /// Per class of slack: GPU time planned, as if in efficient batches, faded.
    work: [Nanos; CLASSES],
    faded_at: Nanos,
    slots: u32,
    /// Sum of `work` as of the last tick.
    load: u64,
    /// Per class of length: slots kept for objectives shorter than that.
    kept: [u32; CLASSES],
}

impl Reserve {
    pub(crate) fn new() -> Self {
        Self {
            work: [Nanos::ZERO; CLASSES],
            faded_at: Nanos::ZERO,
            slots: 0,
            load: 0,
            kept: [0; CLASSES],
        }
    }

    /// A batch was planned, as of the last [`Reserve::refresh`]: `work` is what its tasks take in an efficient one, `slack` how long a
    /// task of the model may wait.
    pub(crate) fn planned(&mut self, slack: Nanos, work: Nanos) {
        let class = &mut self.work[class_of(slack)];
        *class = *class + work;
    }

    /// Brings everything up to date for so many slots; true if anything may have changed. Costs
    /// next to nothing but once in a tick.
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

    /// More than so many slots must be idle for the candidate to start before it is due; `None`: it
    /// never does.
    pub(crate) fn before_due(&self, candidate: &Candidate) -> Option<u32> {
        let may = candidate.excess != Candidate::NOT_EARLY;
        may.then(|| self.for_larger(candidate.excess).max(self.for_shorter(candidate)))
    }

    /// Slots kept for larger batches. What counts is how many slots the traffic would need if all
    /// batches were as dear as this one.
    fn for_larger(&self, excess: u16) -> u32 {
        let dear = self.load + self.load / Candidate::EXCESS_ONE * u64::from(excess);
        let free = u64::from(self.slots) * SLOT / 10 * DEAR_FROM;
        let kept = dear.saturating_sub(free) / DEAR_FROM * 10 / SLOT;
        kept.min(self.slots.into()) as u32
    }

    /// Slots kept for shorter objectives: those whose tasks can wait neither for the batch to end,
    /// nor for a few slots to become free, nor half as long as the batch's own.
    pub(crate) fn for_shorter(&self, candidate: &Candidate) -> u32 {
        let turns = candidate.latency.times(TURNS).0 / u64::from(self.slots.max(1));
        let length = candidate.latency.0.min(turns).min(candidate.slack.0 / 2);
        self.kept[class_of(Nanos(length))]
    }

    /// True if a tick has passed.
    fn fade(&mut self, now: Nanos) -> bool {
        let ticks = (now - self.faded_at).0 / TICK.0;
        if ticks == 0 {
            return false;
        }
        self.faded_at = self.faded_at + TICK.times(ticks);
        for work in &mut self.work {
            for _ in 0..ticks {
                if *work == Nanos::ZERO {
                    break;
                }
                *work = *work - Nanos(work.0.div_ceil(FADE));
            }
        }
        true
    }

    fn reckon(&mut self) {
        let mut short = 0;
        for class in 0..CLASSES {
            self.kept[class] = kept(u64::from(self.slots), short);
            short += self.work[class].0;
        }
        self.load = short;
    }
}

/// What is kept of so many slots for objectives with this load: three standard deviations of a
/// Poisson distribution above its mean, and four fifths at most.
fn kept(slots: u64, load: u64) -> u32 {
    if load == 0 {
        return 0;
    }
    let deviation = load.isqrt() * ROOT_OF_SLOT;
    let wanted = (load + 3 * deviation).div_ceil(SLOT);
    wanted.max(KEPT_AT_LEAST).min(slots * 4 / 5) as u32
}

fn class_of(length: Nanos) -> usize {
    let log2 = length.0.max(1).ilog2();
    if log2 < SHORTEST_LOG2 {
        return 0;
    }
    let quarter = (length.0 >> (log2 - 2)) & 3;
    ((u64::from(log2 - SHORTEST_LOG2) * 4 + quarter) as usize).min(CLASSES - 1)
}

#[cfg(test)]
#[path = "reserve/tests.rs"]
mod tests;

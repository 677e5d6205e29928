//! What variability of the demand asks for: slots beside those that are busy on average, and time
//! to wait for one.

use super::{PARTS, Reserve, SLOT, TICK, class_of, faded, length_of};
use crate::candidate::Candidate;
use crate::time::Nanos;

/// 2.3² times a dispersion is the dispersion in 1/16 over this: an arrival that finds the load 2.3
/// standard deviations above its mean has to wait.
const SIXTEENTHS: u64 = 3;
/// Standard deviations, in tenths, between the others' demand and the slots at which nobody waits.
const NOBODY_WAITS: u64 = 16;
/// Turns that are waited for in a queue of length 1.
const TURNS_IN_QUEUE: u64 = 8;

/// The GPU time of one model's batches, faded like the reserve's.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct OwnWork {
    time: u64,
    /// In ticks, as `slot_wait_at`.
    faded_at: u64,
    slot_wait: Nanos,
    slot_wait_at: u64,
}

impl OwnWork {
    /// A batch was planned.
    pub(crate) fn planned(&mut self, reserve: &Reserve, work: Nanos) {
        self.fade(reserve);
        self.time += work.0;
    }

    /// See [`Reserve::slot_wait`]; reckoned anew in every tick.
    pub(crate) fn slot_wait(&mut self, reserve: &Reserve, turn: Nanos) -> Nanos {
        self.fade(reserve);
        if self.slot_wait_at != self.faded_at {
            self.slot_wait_at = self.faded_at;
            self.slot_wait = reserve.slot_wait(self.time, turn);
        }
        self.slot_wait
    }

    fn fade(&mut self, reserve: &Reserve) {
        let ticks = reserve.faded_at.0 / TICK.0;
        self.time = faded(self.time, ticks.saturating_sub(self.faded_at));
        self.faded_at = ticks;
    }
}

impl Reserve {
    /// Room that the demand needs beside what it takes on average, as work. This is N − a for the
    /// largest load a with a + y√a ≤ N; y² = 2.3² · dispersion · ℓ/(ℓ + slack), since what can wait
    /// evens out.
    pub(super) fn room_for(&self, candidate: &Candidate) -> u64 {
        let slots = u64::from(self.slots) * PARTS;
        let latency = candidate.latency.0.max(1);
        let y2 = u64::from(candidate.dispersion) * PARTS / SIXTEENTHS;
        let waits = (candidate.slack.0 / (latency / 64).max(1)).min(1 << 20);
        let y2 = y2 * 64 / (64 + waits);
        let room = (y2 * (y2 / 4 + slots)).isqrt().saturating_sub(y2 / 2);
        room.min(slots) * (SLOT / PARTS)
    }

    /// For how long a model with this much work may find no slot because of the others. A model has
    /// at most one batch that waits and spaces its starts, so its demand varies little: the variance
    /// of the others' is a quarter of their number at most, and their number is their work over this
    /// model's. A single slot is also taken by the model itself, and whoever has it has it for a
    /// whole batch.
    fn slot_wait(&self, own: u64, turn: Nanos) -> Nanos {
        let alone = self.slots == 1;
        let others = if alone { self.load } else { self.load.saturating_sub(own) };
        let slots = u64::from(self.slots) * PARTS;
        let load = (others / (SLOT / PARTS)).min(slots / 10 * 9);
        let number = others.saturating_mul(PARTS) / own.max(1);
        let deviation = (load.min(number / 4).max(1) * PARTS).isqrt();
        let distance = (slots - load) * PARTS / deviation;
        let closeness = PARTS.saturating_sub(distance * 10 / NOBODY_WAITS);
        let closeness = if alone { PARTS } else { closeness };
        let queue = TURNS_IN_QUEUE * load * closeness / (slots - load).max(1);
        Nanos(turn.0.saturating_mul(queue) / PARTS)
    }

    /// [`Grant::longest`](crate::Grant) for a model whose tasks can wait so long: where slots can be
    /// kept for shorter objectives, anything.
    pub(crate) fn longest(&self, slack: Nanos) -> Nanos {
        let is_longer = self.shortest < class_of(Nanos(slack.0 / 2));
        if self.slots == 1 && is_longer { length_of(self.shortest) } else { Nanos::MAX }
    }
}

//! What variability of the demand asks for: slots beside those that are busy on average, and on a
//! single slot batches that are not too long.

use super::{CLASSES, OwnWork, PARTS, REMARKABLE, Reserve, SLOT, Work, class_of, length_of};
use crate::candidate::Candidate;
use baton_types::Nanos;

/// 2.3² times a dispersion is the dispersion in 1/16 over this: an arrival that finds the load 2.3
/// standard deviations above its mean has to wait.
const SIXTEENTHS: u64 = 3;
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

    /// [`Grant::longest`](crate::Grant) for a model whose tasks can wait so long: where slots can be
    /// kept for shorter objectives, anything.
    #[inline]
    pub(crate) fn longest(&self, slack: Nanos) -> Nanos {
        let is_longer = self.shortest < class_of(Nanos(slack.0 / 2));
        if self.slots == 1 && is_longer { length_of(self.shortest) } else { Nanos::MAX }
    }

    /// The first class from this one on that has, with those between, more than a small part of the whole.
    pub(super) fn worth_mentioning(&self, from: usize, of: fn(&Work) -> u64) -> usize {
        let least = self.work.iter().map(of).sum::<u64>() / REMARKABLE;
        let mut sum = 0;
        let found = self.work.iter().skip(from).position(|work| {
            sum += of(work);
            sum > least
        });
        found.map_or(CLASSES, |at| from + at)
    }

    /// Half of what tasks of the other models can wait, of those that can wait least: behind a batch that is no longer they
    /// are served in time. `slack` is the model's own. As of the last tick.
    #[inline]
    pub(crate) fn others_can_wait(&self, own: &OwnWork, slack: Nanos) -> Nanos {
        let [first, next] = self.impatient;
        let time = self.work.get(first).map_or(0, |work| work.time);
        let is_own =
            first == class_of(slack) && time.saturating_sub(own.work()) <= self.load / REMARKABLE;
        match if is_own { next } else { first } {
            CLASSES => Nanos::MAX,
            class => Nanos(length_of(class).0 / 2),
        }
    }
}

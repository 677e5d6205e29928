//! Slots that are slower than the others of their sub-cluster: an older GPU, a throttled one, one with a busy
//! neighbour.
//!
//! ℓ(b) is the same for all slots ([`crate::Latency`]). Each slot has a mean of measured over predicted time,
//! and its sub-cluster has one of the slots that are not slow. A slot whose mean is more than a sixteenth
//! above that is slow: it comes last among the idle slots, and its batches are planned with as much more time.

use baton_types::Nanos;

/// How much longer a slot takes for a batch than the usual slots of its sub-cluster: 1 to 8, in 1/256.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slowdown(u16);

/// A factor of 1.
const ONE: u16 = 1 << 8;
/// A slot that is slower than by a factor of 8 is planned as if by this.
const MAX: u16 = 8 * ONE;

impl Slowdown {
    /// A usual slot's.
    pub const NONE: Self = Self(ONE);

    /// A factor in 1/256, held between 1 and 8.
    pub fn from_256ths(factor: u64) -> Self {
        Self(factor.clamp(ONE.into(), MAX.into()) as u16)
    }

    /// The factor in 1/256.
    pub fn in_256ths(self) -> u64 {
        self.0.into()
    }

    /// Whether the slot is slower than the usual ones.
    pub fn is_slow(self) -> bool {
        self != Self::NONE
    }

    /// How long this slot takes for what takes a usual one `latency`.
    pub fn applied(self, latency: Nanos) -> Nanos {
        Nanos(latency.0.saturating_mul(self.0.into()) / u64::from(ONE))
    }

    /// How long a usual slot takes for what took this one `measured`.
    pub fn removed(self, measured: Nanos) -> Nanos {
        Nanos(measured.0.saturating_mul(ONE.into()) / u64::from(self.0))
    }
}

/// Measured over predicted time of a batch, or a moving mean of it; in 1/65,536.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace(u32);

/// A pace of 1.
const AS_PREDICTED: u32 = 1 << 16;
/// Weight of one batch in the mean: 1/16.
const WEIGHT: u32 = 16;
/// A batch counts as at most a quarter above or below the mean, so that one stall does not pass for a slow
/// slot.
const CLIP: u32 = 4;

impl Pace {
    /// Exactly as predicted: the mean before the first batch.
    pub const AS_PREDICTED: Self = Self(AS_PREDICTED);

    /// Of a batch that took `measured`; between 1/8 and 8.
    pub fn of(measured: Nanos, predicted: Nanos) -> Self {
        let measured = measured.0.min(u64::MAX / u64::from(AS_PREDICTED));
        let pace = measured * u64::from(AS_PREDICTED) / predicted.0.max(1);
        Self(pace.clamp((AS_PREDICTED / 8).into(), (AS_PREDICTED * 8).into()) as u32)
    }

    /// In 1/65,536: never 0.
    pub fn to_bits(self) -> u32 {
        self.0
    }

    /// See [`Pace::to_bits`]; `None` of 0.
    pub fn from_bits(bits: u32) -> Option<Self> {
        (bits > 0).then_some(Self(bits))
    }

    /// One more batch of the mean.
    pub(crate) fn observe(&mut self, batch: Self) {
        let clip = self.0 / CLIP;
        let sample = batch.0.clamp(self.0 - clip, self.0 + clip);
        self.0 = self.0 - self.0 / WEIGHT + sample / WEIGHT;
    }

    /// Of a slot with this mean, where usual slots have that one.
    pub(crate) fn beside(self, usual: Self) -> Slowdown {
        if self.0 <= usual.0 + usual.0 / WEIGHT {
            return Slowdown::NONE;
        }
        Slowdown::from_256ths(u64::from(self.0) * u64::from(ONE) / u64::from(usual.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_of(batches: impl IntoIterator<Item = u64>) -> Pace {
        let mut mean = Pace::AS_PREDICTED;
        let percent = |percent| Pace::of(Nanos(percent), Nanos(100));
        batches.into_iter().for_each(|batch| mean.observe(percent(batch)));
        mean
    }

    #[test]
    fn a_slot_that_takes_longer_all_the_time_is_slow_by_as_much() {
        let slowdown = mean_of([130; 100]).beside(Pace::AS_PREDICTED);
        assert!((328..=333).contains(&slowdown.in_256ths()), "{slowdown:?}: 1.3 is 333 / 256");
        assert_eq!(slowdown.removed(slowdown.applied(Nanos(1 << 20))), Nanos(1 << 20));
        assert_eq!(mean_of([130; 100]).beside(mean_of([130; 100])), Slowdown::NONE);
    }

    #[test]
    fn neither_one_stall_nor_a_few_per_cent_make_a_slot_slow() {
        assert_eq!(mean_of([100, 800, 100]).beside(Pace::AS_PREDICTED), Slowdown::NONE);
        assert_eq!(mean_of([105; 100]).beside(Pace::AS_PREDICTED), Slowdown::NONE);
        assert!(mean_of([800; 8]).beside(Pace::AS_PREDICTED).is_slow());
    }

    #[test]
    fn a_slot_that_recovers_is_not_slow_for_long() {
        let recovered = mean_of([[130; 100], [100; 100]].concat());
        assert_eq!(recovered.beside(Pace::AS_PREDICTED), Slowdown::NONE);
    }

    #[test]
    fn factors_are_bounded() {
        assert_eq!(Slowdown::from_256ths(0), Slowdown::NONE);
        assert_eq!(Slowdown::from_256ths(u64::MAX).applied(Nanos(1)), Nanos(8));
        assert_eq!(Pace::of(Nanos::MAX, Nanos::ZERO), Pace(AS_PREDICTED * 8));
        assert_eq!(
            Pace::from_bits(Pace::of(Nanos::ZERO, Nanos(5)).to_bits()),
            Some(Pace(AS_PREDICTED / 8))
        );
        assert_eq!(Pace::from_bits(0), None);
    }

    #[test]
    fn a_batch_that_is_far_too_short_counts_as_a_quarter_too_short() {
        let means = [0, 75, 90].map(|percent| mean_of([percent]));
        assert!(means[0] == means[1] && means[1].to_bits() < means[2].to_bits(), "{means:?}");
    }
}

//! Links that are slower than the others: of a host with half the lanes, or with a busy neighbour.
//!
//! What all links have in common is no business of this file: [`LoadTimes`](super::load_time::LoadTimes) learns it. Each slot has a
//! mean of measured over expected time, and all slots that are not slow have one together. A slot whose mean is more than an
//! eighth above that is slow. Its LOADs are planned with as much more time, and say nothing of the others.

use alloc::boxed::Box;
use alloc::vec;

use baton_types::{GpuId, Nanos};

use super::load_time::Factor;
use crate::execution::slowdown::Slowdown;

/// What varies by less from slot to slot is not the link's, in 1/256.
const SLOW: u64 = 256 + 32;
/// How many LOADs a mean is of: at first, and later on.
const OF_SLOT: (u32, u32) = (4, 16);
/// A LOAD counts as at most this many times as long as the mean, or as short, so that one that hangs is no slow link.
const CLIP: u64 = 2;

/// Mean of measured over expected times.
#[derive(Clone, Copy, Debug)]
struct Ratio {
    mean: Factor,
    seen: u32,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub(super) struct Links {
    slots: Box<[Ratio]>,
    usual: Ratio,
    /// Slots that have loaded.
    used: u32,
}

impl Ratio {
    const NEW: Self = Self { mean: Factor::ONE, seen: 0 };

    /// The mean is of `slots` times as many LOADs as that of one slot, so that it is as old.
    fn observe(&mut self, sample: Factor, slots: u32) {
        let sample = sample.clamp(self.mean.over(CLIP), self.mean.times(CLIP));
        let of = self.seen.saturating_add(OF_SLOT.0 * slots).min(OF_SLOT.1 * slots);
        self.mean = self.mean.towards(sample, of);
        self.seen = self.seen.saturating_add(1);
    }
}

impl Links {
    pub(super) fn new(gpus: usize) -> Self {
        Self { slots: vec![Ratio::NEW; gpus].into(), usual: Ratio::NEW, used: 0 }
    }

    /// Another backend's slot may have the number.
    pub(super) fn join(&mut self, slot: GpuId) {
        let former = core::mem::replace(&mut self.slots[slot.0 as usize], Ratio::NEW);
        self.used -= u32::from(former.seen > 0);
    }

    /// How much longer a LOAD takes on this slot than on a usual one.
    pub(super) fn of(&self, slot: GpuId) -> Slowdown {
        let ratio = self.slots[slot.0 as usize].mean.in_256ths_of(self.usual.mean);
        if ratio < SLOW { Slowdown::NONE } else { Slowdown::from_256ths(ratio) }
    }

    /// A LOAD that was to take `expected` on a usual slot took `measured` on this one. False if it says nothing of the others.
    pub(super) fn observe(&mut self, slot: GpuId, measured: Nanos, expected: Nanos) -> bool {
        let sample = Factor::between(measured, expected);
        let was_usual = !self.of(slot).is_slow();
        let ratio = &mut self.slots[slot.0 as usize];
        self.used += u32::from(ratio.seen == 0);
        ratio.observe(sample, 1);
        if was_usual {
            self.usual.observe(sample, self.used);
        }
        was_usual && !self.of(slot).is_slow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = Nanos::from_millis(1);

    /// Beside eight slots the mean of all is of eight times as many LOADs as that of one, at first and later on.
    #[test]
    fn the_mean_of_all_is_as_old_as_that_of_a_slot() {
        let half_more = Factor::between(MS.times(3), MS.times(2));
        let step = |seen, slots| {
            let mut ratio = Ratio { mean: Factor::ONE, seen };
            ratio.observe(half_more, slots);
            ratio.mean.times(256).in_256ths_of(Factor::ONE) - (1 << 16)
        };
        let half = 1 << 15;
        assert_eq!([step(0, 1), step(4, 1), step(1_000, 1)], [half / 4, half / 8, half / 16]);
        assert_eq!([step(0, 8), step(32, 8), step(1_000, 8)], [half / 32, half / 64, half / 128]);
    }

    /// The nth LOAD counts for a quarter, a fifth, and so on, and from the thirteenth on for a sixteenth.
    #[test]
    fn each_load_counts_for_less_than_the_one_before_until_the_mean_is_of_sixteen() {
        let (mut links, mut mean) = (Links::new(1), 1.0);
        for nth in 0..30 {
            let measured = if nth % 3 == 0 { 3 } else { 2 };
            links.observe(GpuId(0), MS.times(measured), MS.times(2));
            mean += (measured as f64 / 2.0 - mean) / f64::from(16.min(4 + nth));
            let found = links.slots[0].mean.times(256).in_256ths_of(Factor::ONE) as f64 / 65_536.0;
            assert!((found - mean).abs() < 0.001, "after {nth}: {found}, not {mean}");
        }
    }

    /// The mean of all is of as many LOADs as there are slots that have loaded: with more it would learn slowly.
    #[test]
    fn slots_that_come_again_and_again_under_one_number_are_one() {
        let mut links = Links::new(2);
        for _ in 0..100 {
            links.join(GpuId(0));
            links.observe(GpuId(0), MS, MS);
        }
        // By a tenth: no slow link.
        (0..400).for_each(|_| _ = links.observe(GpuId(0), Nanos(MS.0 / 10 * 11), MS));
        let usual = links.usual.mean.in_256ths_of(Factor::ONE);
        assert!((279..=282).contains(&usual), "{usual}");
    }

    #[test]
    fn a_link_is_slow_from_an_eighth_above_the_others_on() {
        let mut links = Links::new(1);
        links.usual.mean = Factor::ONE.times(256);
        for (ratio, is_slow) in [(287, false), (288, true)] {
            links.slots[0].mean = Factor::ONE.times(ratio);
            assert_eq!(links.of(GpuId(0)).is_slow(), is_slow, "{ratio} / 256");
        }
    }

    /// One that was not made at all, say.
    #[test]
    fn a_load_counts_as_half_as_long_as_the_mean_at_least() {
        let after = |measured| {
            let mut ratio = Ratio::NEW;
            ratio.observe(Factor::between(measured, MS), 1);
            ratio.mean
        };
        assert_eq!(after(Nanos(1)), after(Nanos(MS.0 / 2)));
        assert!(after(Nanos(MS.0 / 2)) < after(Nanos(MS.0 / 4 * 3)));
    }
}

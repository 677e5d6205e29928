//! How long a LOAD of one model takes, as measured.

use baton_types::Nanos;

/// A new measurement's part in the mean.
const PART: u64 = 16;
/// Steps in the mean: the margin moves by one for each measurement within it.
const STEPS: u64 = 1024;
/// And by this many for each beyond it: it settles where one in a hundred is.
const RARE: u64 = 99;

/// The mean of the measured times with a margin that one in a hundred exceeds: in effect the rolling 99th percentile of
/// Clockwork (§5.3), in 24 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LoadTime {
    mean: Nanos,
    margin: Nanos,
    is_guess: bool,
}

impl LoadTime {
    /// `is_guess`: the first measurement counts alone.
    pub(super) fn new(expected: Nanos, is_guess: bool) -> Self {
        Self { mean: expected, margin: Nanos::ZERO, is_guess }
    }

    /// What to plan with.
    pub(super) fn predicted(&self) -> Nanos {
        self.mean + self.margin
    }

    pub(super) fn observe(&mut self, measured: Nanos) {
        if core::mem::take(&mut self.is_guess) {
            self.mean = measured;
        }
        let step = Nanos((self.mean.0 / STEPS).max(1));
        if measured > self.predicted() {
            self.margin = (self.margin + step.times(RARE)).min(self.mean.times(2));
        } else {
            self.margin = self.margin - step;
        }
        self.mean = if measured > self.mean {
            self.mean + Nanos((measured - self.mean).0.div_ceil(PART))
        } else {
            self.mean - Nanos((self.mean - measured).0.div_ceil(PART))
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_types::SplitMix64;

    const MS: Nanos = Nanos::from_millis(1);

    #[test]
    fn exact_times_need_no_margin() {
        let mut time = LoadTime::new(MS.times(8), false);
        (0..100).for_each(|_| time.observe(MS.times(8)));
        assert_eq!(time.predicted(), MS.times(8));
    }

    #[test]
    fn a_link_that_is_slower_than_the_file_says_is_learnt() {
        let mut time = LoadTime::new(MS.times(8), false);
        (0..400).for_each(|_| time.observe(MS.times(12)));
        let off = time.predicted().0.abs_diff(MS.times(12).0);
        assert!(off < MS.0 / 2, "{:?}", time.predicted());
    }

    #[test]
    fn a_guess_lasts_until_the_first_measurement() {
        let mut time = LoadTime::new(MS.times(50), true);
        assert_eq!(time.predicted(), MS.times(50));
        time.observe(MS.times(4));
        assert_eq!(time.predicted(), MS.times(4));
        time.observe(MS.times(20));
        assert!(time.predicted() > MS.times(4) && time.predicted() < MS.times(10), "{time:?}");
    }

    #[test]
    fn about_one_in_a_hundred_takes_longer() {
        let (mut time, mut random) = (LoadTime::new(MS.times(8), false), SplitMix64::new(3));
        let mut exceeded = 0;
        for round in 0..40_000 {
            let measured = MS.times(8) + Nanos(random.next_u64() % MS.0);
            exceeded += u32::from(round >= 20_000 && measured > time.predicted());
            time.observe(measured);
        }
        assert!((100..400).contains(&exceeded), "{exceeded} of 20,000");
    }
}

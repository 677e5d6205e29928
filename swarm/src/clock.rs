//! Each process reads a clock of its own: elsewhere, and not quite as fast as time passes.

use baton_core::Nanos;

/// A process's clock against the time that the simulation keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SkewedClock {
    /// What it shows at the beginning.
    offset: u64,
    /// How much faster it goes, parts per million.
    ppm: i64,
}

impl SkewedClock {
    /// A clock that shows `offset` at the beginning and gains `ppm` nanoseconds in a millisecond.
    pub fn new(offset: Nanos, ppm: i64) -> Self {
        Self { offset: offset.0, ppm }
    }

    /// What it shows at a moment of true time.
    pub fn at(&self, true_time: Nanos) -> Nanos {
        let t = i128::from(true_time.0);
        Nanos((i128::from(self.offset) + t + t * i128::from(self.ppm) / 1_000_000) as u64)
    }

    /// The first moment of true time at which it shows `shown`; [`Nanos::MAX`], and what is so far off
    /// that no run gets there, is never.
    pub fn when(&self, shown: Nanos) -> Nanos {
        if shown.0 > u64::MAX / 2 {
            return Nanos::MAX;
        }
        let passed = (i128::from(shown.0) - i128::from(self.offset)).max(0);
        let guess = passed * 1_000_000 / (1_000_000 + i128::from(self.ppm));
        let mut moment = Nanos((guess as u64).saturating_sub(2));
        while self.at(moment) < shown {
            moment = moment + Nanos(1);
        }
        moment
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_found_again_whatever_the_skew() {
        for ppm in [-90, -1, 0, 1, 90] {
            let clock = SkewedClock::new(Nanos(1_234_567_890_123), ppm);
            for t in [0, 1, 999, 123_456_789, 5_000_000_000] {
                let shown = clock.at(Nanos(t));
                let when = clock.when(shown);
                assert!(when <= Nanos(t) && clock.at(when) >= shown, "{ppm} {t} {when:?}");
                assert!(when.0 == 0 || clock.at(when - Nanos(1)) < shown);
            }
        }
    }
}

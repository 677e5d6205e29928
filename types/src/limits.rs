//! How many tasks a model, or a frontend of it, may submit.

/// A rate of tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateLimit {
    thousandths_per_second: u64,
}

impl RateLimit {
    /// The smallest and the largest limit, tasks per second. Above, a quota's bucket of 100 ms would not fit into 64 bits.
    pub const RANGE: core::ops::RangeInclusive<f64> = 0.001..=1e8;

    /// At most `rps` tasks per second, rounded to thousandths and kept within [`RateLimit::RANGE`].
    pub fn per_second(rps: f64) -> Self {
        let rps = rps.clamp(*Self::RANGE.start(), *Self::RANGE.end());
        Self { thousandths_per_second: ((rps * 1e3 + 0.5) as u64).max(1) }
    }

    /// The rate, tasks per second.
    pub fn rps(self) -> f64 {
        self.thousandths_per_second as f64 / 1e3
    }

    /// The rate, thousandths of a task per second: at least one.
    pub const fn thousandths_per_second(self) -> u64 {
        self.thousandths_per_second
    }
}

/// What a model's tasks are limited to. The default is no limit.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct QuotaLimits {
    /// All frontends together.
    pub model: Option<RateLimit>,
    /// Each frontend by itself.
    pub frontend: Option<RateLimit>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_kept_within_their_range() {
        assert_eq!(RateLimit::per_second(0.0), RateLimit::per_second(0.001));
        assert_eq!(RateLimit::per_second(f64::INFINITY), RateLimit::per_second(1e8));
        assert_eq!(RateLimit::per_second(12.5).rps(), 12.5);
    }
}

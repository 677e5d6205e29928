//! Nanoseconds on one monotonic clock.
//!
//! The core never reads a clock; every entry point takes `now`. Which clock the numbers belong to
//! is the driver's business: virtual time in tests, the process's monotonic clock in production.

use core::fmt;
use core::ops::{Add, Sub};

/// A moment or a span in nanoseconds. Arithmetic saturates: a deadline in the distant future plus
/// a latency is still in the distant future, and a moment before the clock's origin is the origin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The clock's origin, and the empty span.
    pub const ZERO: Self = Self(0);
    /// Later than every real moment: "never".
    pub const MAX: Self = Self(u64::MAX);

    /// A span of `us` microseconds.
    pub const fn from_micros(us: u64) -> Self {
        Self(us.saturating_mul(1_000))
    }

    /// A span of `ms` milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// A span given in milliseconds with a fraction, rounded to the nanosecond. Negative values and
    /// NaN become zero; what is too large becomes [`Nanos::MAX`].
    pub fn from_millis_f64(ms: f64) -> Self {
        Self((ms * 1e6 + 0.5) as u64)
    }

    /// The span in milliseconds, for people.
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// `self · n`, saturating.
    pub const fn times(self, n: u64) -> Self {
        Self(self.0.saturating_mul(n))
    }
}

impl Add for Nanos {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Nanos {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Debug for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::MAX { f.write_str("never") } else { write!(f, "{}ns", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Nanos::MAX + Nanos(1), Nanos::MAX);
        assert_eq!(Nanos(1) - Nanos(2), Nanos::ZERO);
        assert_eq!(Nanos(2).times(u64::MAX), Nanos::MAX);
        assert_eq!(Nanos::from_millis(u64::MAX), Nanos::MAX);
        assert_eq!(Nanos::from_micros(u64::MAX), Nanos::MAX);
    }

    #[test]
    fn fractions_of_milliseconds_are_rounded_and_bounded() {
        assert_eq!(Nanos::from_millis_f64(1.053), Nanos(1_053_000));
        assert_eq!(Nanos::from_millis_f64(0.000_000_6), Nanos(1));
        assert_eq!(Nanos::from_millis_f64(-1.0), Nanos::ZERO);
        assert_eq!(Nanos::from_millis_f64(f64::NAN), Nanos::ZERO);
        assert_eq!(Nanos::from_millis_f64(f64::INFINITY), Nanos::MAX);
    }
}

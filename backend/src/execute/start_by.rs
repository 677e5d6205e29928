//! Which variant of its model executes a batch, by when it starts. Pure.
//!
//! The scheduler plans a batch with one variant and says which is the cheapest that will do. A batch that starts too late for
//! the planned one executes the most accurate that still ends in time.

use baton_types::{Nanos, VARIANTS_MAX};

/// The latest starts of a batch, by variant; moments of this process's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StartBy {
    /// Of the variants `floor ..= planned`, the floor first: the cheaper, the later. Counted from the floor, because a file that
    /// is measured may have more variants than a cluster's model.
    until: [Nanos; VARIANTS_MAX],
    floor: u16,
    planned: u16,
}

impl StartBy {
    /// The planned variant must start by `latest`, and one that takes `saved` less time so much later. The cheapest that will
    /// do, `floor`, has `grace` besides.
    pub fn new(
        latest: Nanos,
        grace: Nanos,
        (floor, planned): (u16, u16),
        saved: impl Fn(u16) -> Nanos,
    ) -> Self {
        let mut until = [latest; VARIANTS_MAX];
        for variant in (floor..planned).rev() {
            let (at, later) = (usize::from(variant - floor), latest + saved(variant));
            until[at] = later.max(until[at + 1]);
        }
        until[0] = until[0] + grace;
        Self { until, floor, planned }
    }

    /// A batch of this variant, at any time.
    pub fn any_time(variant: u16) -> Self {
        Self { until: [Nanos::MAX; VARIANTS_MAX], floor: variant, planned: variant }
    }

    /// The variant that executes if the batch starts at `now`; `None`: none would end in time.
    pub fn variant_at(&self, now: Nanos) -> Option<u16> {
        let until = |variant: u16| self.until[usize::from(variant - self.floor)];
        (self.floor..=self.planned).rev().find(|&variant| now <= until(variant))
    }

    /// The variant that the scheduler planned with.
    pub fn planned(&self) -> u16 {
        self.planned
    }

    /// The last moment at which it may start at all.
    pub fn last(&self) -> Nanos {
        self.until[0]
    }
}

impl From<Nanos> for StartBy {
    /// A batch of a model without variants.
    fn from(last: Nanos) -> Self {
        Self { until: [last; VARIANTS_MAX], floor: 0, planned: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three variants planned with the last: the middle one takes 10 less, the cheapest 30 less.
    fn three(floor: u16) -> StartBy {
        let saved = |variant| Nanos([30, 10][usize::from(variant)]);
        StartBy::new(Nanos(100), Nanos(5), (floor, 2), saved)
    }

    #[test]
    fn a_later_start_has_a_cheaper_variant_and_never_one_below_the_floor() {
        let at = |floor: u16, now: u64| three(floor).variant_at(Nanos(now));
        assert_eq!(
            [0, 100, 101, 110, 111, 135].map(|now| at(0, now)),
            [2, 2, 1, 1, 0, 0].map(Some)
        );
        assert_eq!(at(0, 136), None);
        assert_eq!([100, 115, 116].map(|now| at(1, now)), [Some(2), Some(1), None]);
        assert_eq!([105, 106].map(|now| at(2, now)), [Some(2), None]);
        assert_eq!([0, 1, 2].map(|floor| three(floor).last().0), [135, 115, 105]);
    }

    #[test]
    fn a_model_without_variants_has_one_moment() {
        let start_by = StartBy::from(Nanos(7));
        assert_eq!([7, 8].map(|now| start_by.variant_at(Nanos(now))), [Some(0), None]);
        assert_eq!((start_by.last(), start_by.planned()), (Nanos(7), 0));
    }

    #[test]
    fn a_file_that_is_measured_may_have_more_variants_than_a_model() {
        for variant in [3, VARIANTS_MAX as u16, 255] {
            assert_eq!(StartBy::any_time(variant).variant_at(Nanos::MAX), Some(variant));
        }
    }

    #[test]
    fn a_dearer_variant_that_measures_faster_does_not_shorten_the_time() {
        let start_by =
            StartBy::new(Nanos(100), Nanos(0), (0, 2), |v| Nanos([5, 10][usize::from(v)]));
        assert_eq!(start_by.last(), Nanos(110));
    }
}

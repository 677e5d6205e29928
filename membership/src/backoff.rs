//! When to look for a lost scheduler again.
//!
//! In: a seed of the member's own. Out: pauses that double up to a bound, each shortened by chance, so
//! that the many who lost the same scheduler do not all come back at once. Pure: the caller adds the
//! pause to its `now`.

use baton_topo::ReconnectSpec;
use baton_types::{Nanos, SplitMix64};

/// The pauses of one member.
#[derive(Clone, Debug)]
pub struct Backoff {
    spec: ReconnectSpec,
    full: Nanos,
    random: SplitMix64,
}

impl Backoff {
    /// Members with different seeds come back at different moments.
    pub fn new(spec: ReconnectSpec, seed: u64) -> Self {
        Self { spec, full: spec.first, random: SplitMix64::new(seed) }
    }

    /// The pause before the next attempt: half of the full one at least.
    pub fn pause(&mut self) -> Nanos {
        let full = self.full;
        self.full = full.times(2).min(self.spec.longest);
        Nanos(full.0 / 2 + self.random.below(full.0 / 2 + 1))
    }

    /// The attempt has succeeded: the next pause is a first one.
    pub fn reset(&mut self) {
        self.full = self.spec.first;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_and_begin_anew_after_a_success() {
        let mut backoff = Backoff::new(ReconnectSpec::default(), 7);
        for full in [50, 100, 200, 400, 500, 500, 500].map(Nanos::from_millis) {
            let pause = backoff.pause();
            assert!(Nanos(full.0 / 2) <= pause && pause <= full, "{pause:?} of {full:?}");
        }
        backoff.reset();
        assert!(backoff.pause() <= ReconnectSpec::default().first);
    }

    #[test]
    fn each_pause_from_the_half_to_the_whole_comes() {
        let ns =
            |ns| ReconnectSpec { first: Nanos(ns), longest: Nanos(ns), ..ReconnectSpec::default() };
        for (full, expected) in [(1, 0..=0), (2, 1..=2), (8, 4..=8)] {
            let mut backoff = Backoff::new(ns(full), 7);
            let pauses: BTreeSet<u64> = (0..200).map(|_| backoff.pause().0).collect();
            assert!(pauses.into_iter().eq(expected), "of {full}");
        }
    }

    #[test]
    fn another_seed_is_another_moment_and_the_same_seed_the_same() {
        let pauses = |seed| {
            let mut backoff = Backoff::new(ReconnectSpec::default(), seed);
            [(); 4].map(|()| backoff.pause())
        };
        assert_eq!(pauses(1), pauses(1));
        assert_ne!(pauses(1), pauses(2));
    }
}

//! What is logged of batches that fail: one a second. An engine may refuse every batch, and counters have them all.

use baton_types::Nanos;

const EVERY: Nanos = Nanos::from_millis(1_000);

/// See the module documentation.
#[derive(Default, Debug)]
pub(super) struct Failures {
    next_at: Nanos,
    unlogged: u64,
}

impl Failures {
    /// A batch has failed. How many were not logged before it, if this one is to be.
    pub(super) fn note(&mut self, now: Nanos) -> Option<u64> {
        if now < self.next_at {
            self.unlogged += 1;
            return None;
        }
        self.next_at = now + EVERY;
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_a_second_is_logged_and_says_how_many_were_not() {
        let mut failures = Failures::default();
        let at = [5, 6, 900, 1_005, 2_004, 9_000].map(Nanos::from_millis);
        let said = at.map(|now| failures.note(now));
        assert_eq!(said, [Some(0), None, None, Some(2), None, Some(1)]);
    }
}

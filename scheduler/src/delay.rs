//! How long schedulable batches wait until their plan is out: a histogram that costs two loads and
//! a store per batch.

use baton_core::Nanos;

/// Buckets per power of two; a quantile is exact to one part in this.
const STEPS: u32 = 16;
const BUCKETS: usize = (STEPS * (64 - STEPS.ilog2())) as usize + STEPS as usize;

/// Spans in log-linear buckets. Not shared: owned by one thread.
#[derive(Clone, Debug)]
pub struct DelayHistogram {
    counts: Box<[u64]>,
}

impl Default for DelayHistogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS].into_boxed_slice() }
    }
}

impl DelayHistogram {
    /// Counts one span.
    pub fn record(&mut self, span: Nanos) {
        self.counts[bucket(span.0)] += 1;
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
    }

    /// Takes away what had been counted `earlier`.
    pub fn subtract(&mut self, earlier: &Self) {
        self.counts.iter_mut().zip(&earlier.counts).for_each(|(count, before)| *count -= before);
    }

    /// How many spans were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The span that a share of `q` did not exceed, rounded up to its bucket's end; `None` if
    /// nothing was counted.
    pub fn quantile(&self, q: f64) -> Option<Nanos> {
        let rank = (self.count() as f64 * q).ceil().max(1.0) as u64;
        let mut seen = 0;
        let at = self.counts.iter().position(|&count| {
            seen += count;
            seen >= rank
        })?;
        Some(Nanos(upper_end(at)))
    }
}

/// Values below [`STEPS`] have a bucket each; from there on each power of two has as many.
fn bucket(ns: u64) -> usize {
    let shift = (ns.max(1).ilog2()).saturating_sub(STEPS.ilog2());
    (shift * STEPS) as usize + (ns >> shift) as usize
}

/// The largest value of a bucket.
fn upper_end(bucket: usize) -> u64 {
    let steps = STEPS as usize;
    if bucket < 2 * steps {
        return bucket as u64;
    }
    let shift = bucket / steps - 1;
    let mantissa = (bucket % steps + steps) as u64;
    (mantissa << shift) + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_ends_within_a_sixteenth_of_its_values(ns in prop_oneof![0..1_000u64, any::<u64>()]) {
            let end = upper_end(bucket(ns));
            prop_assert!(end >= ns && end - ns <= ns / u64::from(STEPS));
            prop_assert!(bucket(end) == bucket(ns) && (end == u64::MAX || bucket(end + 1) == bucket(ns) + 1));
        }
    }

    #[test]
    fn quantiles_are_of_what_was_counted_since() {
        let mut delays = DelayHistogram::default();
        assert_eq!(delays.quantile(0.5), None);
        delays.record(Nanos(9_999));
        let before = delays.clone();
        for ns in 1..=10 {
            delays.record(Nanos(ns));
        }
        delays.subtract(&before);
        assert_eq!((delays.count(), delays.quantile(0.5)), (10, Some(Nanos(5))));
        assert_eq!(delays.quantile(1.0), Some(Nanos(10)));
        delays.merge(&before);
        assert!(delays.quantile(1.0) >= Some(Nanos(9_999)));
    }
}

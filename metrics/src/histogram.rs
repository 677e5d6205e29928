//! Counts by size: one thread writes, any may read.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Value;

/// Bounds of latencies, s: from the shortest execution to the longest deadline that is usual.
pub const LATENCY_BOUNDS_S: [f64; 19] = [
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15,
    0.2, 0.3, 0.5, 1.0, 2.0,
];
/// Bounds of latencies in units of what was allowed. What lies at or below 1 was in time.
pub const OBJECTIVE_BOUNDS: [f64; 13] =
    [0.25, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.25, 2.0, 5.0];

/// Counts of sizes up to each of `N` bounds, and above them.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    bounds: &'static [f64; N],
    counts: [AtomicU64; N],
    above: AtomicU64,
    /// In millionths.
    sum_millionths: AtomicU64,
}

impl<const N: usize> Histogram<N> {
    /// Of nothing yet. The bounds grow.
    pub fn new(bounds: &'static [f64; N]) -> Self {
        let counts = std::array::from_fn(|_| AtomicU64::new(0));
        Self { bounds, counts, above: AtomicU64::new(0), sum_millionths: AtomicU64::new(0) }
    }

    /// Counts one. One thread only, so that it takes loads and stores alone: it is on the way of each answer. A reader may
    /// see a count without its part of the sum.
    pub fn record(&self, size: f64) {
        let at = self.bounds.partition_point(|&bound| bound < size);
        let grow = |count: &AtomicU64, by: u64| {
            count.store(count.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
        };
        grow(self.counts.get(at).unwrap_or(&self.above), 1);
        grow(&self.sum_millionths, (size * 1e6) as u64);
    }

    /// What was counted so far.
    pub fn value(&self) -> Value {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let counts = self.counts.iter().chain([&self.above]).map(read);
        Value::Sizes {
            buckets: bounds.zip(counts).collect(),
            sum: read(&self.sum_millionths) as f64 / 1e6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_exactly_what_was_allowed_is_in_time() {
        let histogram = Histogram::new(&OBJECTIVE_BOUNDS);
        [0.1, 1.0, 1.0 + 1e-9, 7.0].into_iter().for_each(|size| histogram.record(size));
        let Value::Sizes { buckets, sum } = histogram.value() else { panic!("a histogram") };
        let in_time: u64 = buckets.iter().filter(|(bound, _)| *bound <= 1.0).map(|b| b.1).sum();
        assert_eq!((in_time, buckets.iter().map(|b| b.1).sum::<u64>()), (2, 4));
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, 1)));
        assert!((sum - 9.1).abs() < 1e-5, "{sum}");
    }

    #[test]
    fn bounds_grow() {
        assert!(LATENCY_BOUNDS_S.is_sorted() && OBJECTIVE_BOUNDS.is_sorted());
        assert!(OBJECTIVE_BOUNDS.contains(&1.0));
    }
}

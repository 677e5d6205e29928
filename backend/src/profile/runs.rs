//! How long the executions of one batch size took.

use baton_topo::MeasuredSize;
use baton_types::Nanos;

/// Below this, the 99.99th percentile is the longest.
const TAIL_RUNS: usize = 10_000;

/// Executions of one batch size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Runs {
    batch: u32,
    sorted: Vec<Nanos>,
    /// The medians of the first half and of the second.
    halves: [Nanos; 2],
}

impl Runs {
    /// Of batches of `batch` rows, in the order in which they were executed.
    ///
    /// # Panics
    /// There are less than two.
    pub fn new(batch: u32, times: Vec<Nanos>) -> Self {
        assert!(times.len() >= 2, "no half is empty");
        let (first, second) = times.split_at(times.len() / 2);
        let halves = [first, second].map(|half| {
            let mut half = half.to_vec();
            half.sort_unstable();
            quantile(&half, 0.5)
        });
        let mut sorted = times;
        sorted.sort_unstable();
        Self { batch, sorted, halves }
    }

    /// Rows of each batch.
    pub fn batch(&self) -> u32 {
        self.batch
    }

    /// The median.
    pub fn median(&self) -> Nanos {
        quantile(&self.sorted, 0.5)
    }

    /// The median of the second half over that of the first: 1 on a machine that is as quiet as it was.
    pub fn drift(&self) -> f64 {
        let [first, second] = self.halves.map(|half| half.as_millis_f64());
        second / first.max(1e-9)
    }

    /// For a profile file.
    pub fn measured(&self) -> MeasuredSize {
        let ms = |share| quantile(&self.sorted, share).as_millis_f64();
        MeasuredSize {
            batch: self.batch,
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
            p9999_ms: (self.sorted.len() >= TAIL_RUNS).then(|| ms(0.9999)),
            longest_ms: ms(1.0),
            runs: self.sorted.len() as u32,
        }
    }
}

/// The smallest value that is not below `share` of all.
pub(super) fn quantile(sorted: &[Nanos], share: f64) -> Nanos {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let times: Vec<Nanos> = (1..=200).rev().map(Nanos::from_micros).collect();
        let runs = Runs::new(4, times);
        let size = runs.measured();
        assert_eq!((size.batch, size.runs, size.p9999_ms), (4, 200, None));
        assert_eq!((size.p50_ms, size.p99_ms, size.longest_ms), (0.1, 0.198, 0.2));
        assert!((runs.drift() - 50.0 / 150.0).abs() < 1e-9, "{}", runs.drift());
        let many = Runs::new(1, vec![Nanos::from_micros(7); TAIL_RUNS]);
        assert_eq!((many.measured().p9999_ms, many.drift()), (Some(0.007), 1.0));
    }
}

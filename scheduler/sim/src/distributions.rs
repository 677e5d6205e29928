//! How the tasks of a run were batched, and how long they waited for a GPU.

use baton_core::{Nanos, Request};
use hdrhistogram::Histogram;

/// Tasks that were executed, by the size of their batch and by their queueing delay: arrival to the
/// start of the execution (Symphony §5.2.2, §5.2.3). Of all models together, after the warm-up.
#[derive(Clone, Debug)]
pub struct Distributions {
    from: Nanos,
    tasks_by_batch: Vec<u64>,
    queueing_us: Histogram<u32>,
}

/// The histogram resolves delays to three digits, up to this.
const QUEUEING_MAX_US: u64 = 100_000_000;
const QUEUEING_DIGITS: u8 = 3;

impl Distributions {
    /// Counts tasks that arrive from `from` on.
    pub(crate) fn new(from: Nanos) -> Self {
        let queueing_us = Histogram::new_with_max(QUEUEING_MAX_US, QUEUEING_DIGITS)
            .expect("the largest value is at least 2 and the digits are at most 5");
        Self { from, tasks_by_batch: Vec::new(), queueing_us }
    }

    /// A batch that started at `start` executed these tasks.
    pub(crate) fn batch(&mut self, requests: &[Request], start: Nanos) {
        if self.tasks_by_batch.len() <= requests.len() {
            self.tasks_by_batch.resize(requests.len() + 1, 0);
        }
        for request in requests.iter().filter(|request| request.task.0 >= self.from.0) {
            self.tasks_by_batch[requests.len()] += 1;
            self.queueing_us.saturating_record((start.0 - request.task.0) / 1_000);
        }
    }

    /// Tasks executed in batches of b, at index b; up to the largest batch there was.
    pub fn tasks_by_batch(&self) -> &[u64] {
        &self.tasks_by_batch
    }

    /// The delay, ms, that this part of the tasks did not exceed; `None` without a task.
    pub fn queueing_ms(&self, part: f64) -> Option<f64> {
        let some = !self.queueing_us.is_empty();
        some.then(|| self.queueing_us.value_at_quantile(part) as f64 / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use baton_core::TaskId;

    use super::*;

    fn request(arrival_ms: u64) -> Request {
        Request::new(TaskId(Nanos::from_millis(arrival_ms).0), Nanos::MAX)
    }

    #[test]
    fn tasks_count_once_each_with_their_own_wait() {
        let mut seen = Distributions::new(Nanos::from_millis(10));
        assert_eq!((seen.tasks_by_batch(), seen.queueing_ms(0.5)), ([].as_slice(), None));
        seen.batch(&[request(9), request(10), request(14)], Nanos::from_millis(20));
        seen.batch(&[request(30)], Nanos::from_millis(31));
        assert_eq!(seen.tasks_by_batch(), [0, 1, 0, 2]);
        for (part, ms) in [(0.0, 1.0), (0.5, 6.0), (1.0, 10.0)] {
            let measured = seen.queueing_ms(part).unwrap();
            assert!((measured - ms).abs() < 0.01, "{part}: {measured}");
        }
    }
}

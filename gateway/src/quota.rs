//! How many tasks the owner of a token may ask for.

use baton_client::Nanos;

/// The least that a bucket holds whatever its rate is, so that a request of some rows is not refused at a small one.
const TASKS_MIN: f64 = 16.0;
/// A bucket holds what its rate brings in this time, seconds.
const SPAN_S: f64 = 0.1;

/// A bucket of tasks that fills at a rate. A request of more tasks than it holds takes them from a full one, which then owes the
/// rest: over time no more are admitted than the rate says.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// Tasks per second.
    rps: f64,
    /// Tasks.
    size: f64,
    /// When it is full again if nothing is taken. It may be full already.
    full_at: Nanos,
}

impl Bucket {
    /// A full one. `rps` is above 0.
    pub(crate) fn new(rps: f64) -> Self {
        Self { rps, size: (rps * SPAN_S).max(TASKS_MIN), full_at: Nanos::ZERO }
    }

    /// Takes all of these tasks, or none.
    ///
    /// # Errors
    /// How long until they would be admitted if nothing else was taken.
    pub(crate) fn take(&mut self, now: Nanos, tasks: usize) -> Result<(), Nanos> {
        let tasks = tasks as f64;
        let full_at = self.full_at.max(now);
        // It has enough if what is missing comes in this time.
        let latest = now + self.span(self.size - tasks.min(self.size));
        if full_at > latest {
            return Err(full_at - latest);
        }
        self.full_at = full_at + self.span(tasks);
        Ok(())
    }

    /// The time in which the rate brings these tasks.
    fn span(&self, tasks: f64) -> Nanos {
        Nanos((tasks * 1e9 / self.rps).round() as u64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    #[test]
    fn tasks_that_come_together_are_admitted_together_or_not_at_all() {
        let mut bucket = Bucket::new(10.0);
        assert_eq!(bucket.take(ms(5_000), 14), Ok(()));
        assert_eq!(bucket.take(ms(5_000), 3), Err(ms(100)));
        assert_eq!(bucket.take(ms(5_000), 2), Ok(()), "nothing was taken for the three");
        assert_eq!(bucket.take(ms(5_000), 1), Err(ms(100)));
        assert_eq!(bucket.take(ms(5_100), 1), Ok(()));
        assert_eq!(bucket.take(ms(4_000), 1), Err(ms(1_200)), "a clock that was read earlier");
    }

    #[test]
    fn more_tasks_than_it_holds_need_a_full_bucket_and_are_paid_for() {
        let mut bucket = Bucket::new(10.0);
        assert_eq!(bucket.take(ms(0), 1), Ok(()));
        assert_eq!(bucket.take(ms(0), 64), Err(ms(100)));
        assert_eq!(bucket.take(ms(100), 64), Ok(()));
        assert_eq!(bucket.take(ms(100), 64), Err(ms(6_400)));
        assert_eq!(bucket.take(ms(100), 1), Err(ms(4_900)));
    }

    #[test]
    fn a_large_rate_has_a_bucket_of_a_tenth_of_a_second() {
        let mut bucket = Bucket::new(10_000.0);
        assert_eq!(bucket.take(ms(0), 1_000), Ok(()));
        assert!(bucket.take(ms(0), 1).is_err());
    }

    proptest! {
        /// From any moment on, no more than a bucket and what the rate brings; and who comes when it should is admitted.
        #[test]
        fn the_rate_holds_over_every_span(
            rps in 0.5f64..5_000.0,
            asked in prop::collection::vec((0u64..400, 1usize..80), 1..200),
        ) {
            let mut bucket = Bucket::new(rps);
            let (mut now, mut admitted) = (Nanos::ZERO, Vec::new());
            for (pause_ms, tasks) in asked {
                now = now + ms(pause_ms);
                if let Err(wait) = bucket.take(now, tasks) {
                    prop_assert!(wait > Nanos::ZERO);
                    let early = Nanos(wait.0 - 1);
                    prop_assert!(bucket.take(now + early, tasks).is_err());
                    now = now + wait;
                    prop_assert_eq!(bucket.take(now, tasks), Ok(()));
                }
                admitted.push((now, tasks));
            }
            for first in 0..admitted.len() {
                // The last request may be larger than a bucket: what came before it may not.
                let mut before = 0;
                for &(at, tasks) in &admitted[first..] {
                    let span_s = (at - admitted[first].0).0 as f64 / 1e9;
                    let most = rps * span_s + bucket.size;
                    let room = most - (tasks as f64).min(bucket.size) + 1e-3;
                    prop_assert!(f64::from(before) <= room, "{before} in {span_s} s, {most}");
                    before += tasks as u32;
                }
            }
        }
    }
}

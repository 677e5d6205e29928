//! When the next task of which model arrives: independent Poisson processes, merged.
//!
//! The schedule depends on rates and seed alone, never on completions: that is what makes the load
//! open-loop.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use baton_core::Nanos;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// An endless schedule of arrivals.
#[derive(Debug)]
pub(crate) struct Arrivals {
    streams: Vec<Stream>,
    /// The next arrival of every model that has one, earliest first.
    next: BinaryHeap<Reverse<(Nanos, usize)>>,
}

#[derive(Debug)]
struct Stream {
    mean_gap_ns: f64,
    random: StdRng,
}

impl Arrivals {
    /// Arrivals after `start`, with `rates[model]` tasks per second. A model with rate 0 never
    /// arrives. Every model draws from its own random stream, so that one model's rate does not
    /// move another's arrivals.
    pub(crate) fn new(rates: &[f64], seed: u64, start: Nanos) -> Self {
        let stream = |(model, rate): (usize, &f64)| Stream {
            mean_gap_ns: 1e9 / rate,
            random: StdRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ model as u64),
        };
        let mut streams: Vec<Stream> = rates.iter().enumerate().map(stream).collect();
        let first = |(model, stream): (usize, &mut Stream)| {
            let at = start + stream.gap();
            (at < Nanos::MAX).then_some(Reverse((at, model)))
        };
        let next = streams.iter_mut().enumerate().filter_map(first).collect();
        Self { streams, next }
    }

    /// The moment of the next arrival; [`Nanos::MAX`] if there is none.
    pub(crate) fn due(&self) -> Nanos {
        self.next.peek().map_or(Nanos::MAX, |&Reverse((at, _))| at)
    }

    /// Takes the next arrival, if it is due by `now`: when it was due, and its model.
    pub(crate) fn take(&mut self, now: Nanos) -> Option<(Nanos, usize)> {
        let mut head = self.next.peek_mut()?;
        let Reverse((at, model)) = *head;
        if at > now {
            return None;
        }
        *head = Reverse((at + self.streams[model].gap(), model));
        Some((at, model))
    }
}

impl Stream {
    /// Exponentially distributed; saturates to "never" for rate 0.
    fn gap(&mut self) -> Nanos {
        let uniform: f64 = self.random.random();
        Nanos((-(1.0 - uniform).ln() * self.mean_gap_ns) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(arrivals: &mut Arrivals, until: Nanos) -> Vec<(Nanos, usize)> {
        std::iter::from_fn(|| arrivals.take(until)).collect()
    }

    const MINUTE: Nanos = Nanos::from_millis(60_000);

    #[test]
    fn arrivals_come_in_order_and_at_the_rates_asked_for() {
        let found = drain(&mut Arrivals::new(&[100.0, 0.0, 25.0], 7, Nanos::ZERO), MINUTE);
        assert!(found.windows(2).all(|pair| pair[0].0 <= pair[1].0));
        let count = |model| found.iter().filter(|(_, m)| *m == model).count() as f64;
        // Poisson: the standard deviation of n arrivals is √n; five of them is one run in 10⁶,
        // and the seed is fixed.
        assert!((count(0) - 6000.0).abs() < 5.0 * 6000f64.sqrt(), "{}", count(0));
        assert!((count(2) - 1500.0).abs() < 5.0 * 1500f64.sqrt(), "{}", count(2));
        assert_eq!(count(1), 0.0);
    }

    #[test]
    fn gaps_are_exponential_not_merely_right_on_average() {
        let found = drain(&mut Arrivals::new(&[100.0], 3, Nanos::ZERO), MINUTE);
        let gaps: Vec<f64> = found.windows(2).map(|p| (p[1].0 - p[0].0).as_millis_f64()).collect();
        let share = |limit_ms: f64| {
            gaps.iter().filter(|&&g| g < limit_ms).count() as f64 / gaps.len() as f64
        };
        for limit_ms in [1.0, 10.0, 30.0] {
            let expected = 1.0 - (-limit_ms / 10.0f64).exp();
            assert!(
                (share(limit_ms) - expected).abs() < 0.02,
                "{limit_ms} ms: {}",
                share(limit_ms)
            );
        }
    }

    #[test]
    fn the_schedule_depends_on_the_seed_and_on_nothing_else() {
        let schedule =
            |rates: &[f64], seed| drain(&mut Arrivals::new(rates, seed, Nanos::ZERO), MINUTE);
        assert_eq!(schedule(&[50.0], 1), schedule(&[50.0], 1));
        assert_ne!(schedule(&[50.0], 1), schedule(&[50.0], 2));
        let together = schedule(&[50.0, 80.0], 1);
        let first: Vec<_> = together.into_iter().filter(|(_, model)| *model == 0).collect();
        assert_eq!(first, schedule(&[50.0], 1));
    }

    #[test]
    fn nothing_is_taken_before_it_is_due() {
        let mut arrivals = Arrivals::new(&[10.0], 1, Nanos::ZERO);
        let due = arrivals.due();
        assert_eq!(arrivals.take(due - Nanos(1)), None);
        assert_eq!(arrivals.take(due), Some((due, 0)));
        assert_eq!(Arrivals::new(&[0.0], 1, Nanos::ZERO).due(), Nanos::MAX);
    }
}

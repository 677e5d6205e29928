//! The arrival rate λ of a model: a moving mean over five seconds.

use crate::time::Nanos;

const BUCKETS: usize = 50;
const BUCKET: Nanos = Nanos::from_millis(100);

/// Counts arrivals in 100 ms buckets. The estimate covers whole past buckets only, so it changes
/// when a bucket closes and not with every arrival.
#[derive(Clone, Debug)]
pub struct RateMeter {
    counts: [u32; BUCKETS],
    /// Arrivals in all closed buckets.
    sum: u64,
    /// Closed buckets since the first arrival, at most [`BUCKETS`].
    closed: usize,
    /// Where the next closed bucket goes.
    next: usize,
    /// Arrivals in the open bucket.
    open: u32,
    /// When the open bucket closes; `None` before the first arrival.
    closes_at: Option<Nanos>,
}

/// λ as a fraction, so that comparisons stay in integers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Arrivals …
    pub arrivals: u64,
    /// … in this span, never zero.
    pub span: Nanos,
}

impl Rate {
    /// Tasks that arrive within `span`, rounded down; saturates.
    pub fn arrivals_in(self, span: Nanos) -> u64 {
        scale(self.arrivals, span.0, self.span.0)
    }

    /// Mean time for `count` tasks to arrive, rounded down; [`Nanos::MAX`] when none does.
    pub fn time_for(self, count: u64) -> Nanos {
        Nanos(if self.arrivals == 0 { u64::MAX } else { scale(self.span.0, count, self.arrivals) })
    }
}

/// `a · b / c`, saturating. Dividing 128 bits costs several times what dividing 64 does, and the
/// product nearly always fits them.
fn scale(a: u64, b: u64, c: u64) -> u64 {
    if let Some(product) = a.checked_mul(b) {
        return product / c;
    }
    u64::try_from(u128::from(a) * u128::from(b) / u128::from(c)).unwrap_or(u64::MAX)
}

impl RateMeter {
    /// A meter without history.
    pub const fn new() -> Self {
        Self { counts: [0; BUCKETS], sum: 0, closed: 0, next: 0, open: 0, closes_at: None }
    }

    /// Counts one arrival.
    pub fn on_arrival(&mut self, now: Nanos) {
        if self.closes_at.is_none() {
            self.closes_at = Some(now + BUCKET);
        }
        self.open = self.open.saturating_add(1);
    }

    /// Closes the buckets that have ended by `now`; true if any did, and the estimate changed.
    /// Call before [`RateMeter::on_arrival`] of the same moment.
    pub fn roll(&mut self, now: Nanos) -> bool {
        let Some(closes_at) = self.closes_at else { return false };
        if now < closes_at {
            return false;
        }
        let ended = ((now - closes_at).0 / BUCKET.0 + 1) as usize;
        for _ in 0..ended.min(BUCKETS + 1) {
            self.close_bucket();
        }
        self.closes_at = Some(closes_at + BUCKET.times(ended as u64));
        true
    }

    /// The estimate; `None` until the first bucket has closed.
    pub fn rate(&self) -> Option<Rate> {
        (self.closed > 0)
            .then(|| Rate { arrivals: self.sum, span: BUCKET.times(self.closed as u64) })
    }

    fn close_bucket(&mut self) {
        self.sum = self.sum - u64::from(self.counts[self.next]) + u64::from(self.open);
        self.counts[self.next] = self.open;
        self.next = (self.next + 1) % BUCKETS;
        self.closed = (self.closed + 1).min(BUCKETS);
        self.open = 0;
    }
}

impl Default for RateMeter {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// Counts by looking at every arrival there was.
    fn naive(arrivals: &[Nanos], now: Nanos) -> Option<Rate> {
        let bucket = |at: Nanos| ((at - arrivals[0]).0 / BUCKET.0) as usize;
        let open = arrivals.first().map(|_| bucket(now))?;
        let closed = open.min(BUCKETS);
        let counted = arrivals.iter().filter(|&&at| (open - closed..open).contains(&bucket(at)));
        let rate = Rate { arrivals: counted.count() as u64, span: BUCKET.times(closed as u64) };
        (closed > 0).then_some(rate)
    }

    proptest! {
        #[test]
        fn it_counts_the_arrivals_of_five_seconds(
            gaps_ms in prop::collection::vec(prop_oneof![30 => 0..60u64, 1 => 0..9_000u64], 1..400),
        ) {
            let (mut meter, mut arrivals, mut now) = (RateMeter::new(), Vec::new(), Nanos(17));
            for gap_ms in gaps_ms {
                now = now + Nanos::from_millis(gap_ms);
                let before = meter.rate();
                let rolled = meter.roll(now);
                prop_assert!(rolled || meter.rate() == before);
                prop_assert_eq!(meter.rate(), naive(&arrivals, now));
                meter.on_arrival(now);
                arrivals.push(now);
            }
        }
    }

    #[test]
    fn no_history_is_no_rate() {
        let mut meter = RateMeter::default();
        assert!(!meter.roll(Nanos::MAX));
        meter.on_arrival(Nanos(5));
        assert_eq!(meter.rate(), None, "the first bucket is still open");
    }

    #[test]
    fn extreme_rates_saturate() {
        let flood = Rate { arrivals: u64::MAX, span: Nanos(1) };
        assert_eq!(flood.arrivals_in(Nanos::MAX), u64::MAX);
        assert_eq!(flood.time_for(1), Nanos::ZERO);
        let trickle = Rate { arrivals: 1, span: Nanos::MAX };
        assert_eq!(trickle.time_for(u64::MAX), Nanos::MAX);
        let silence = Rate { arrivals: 0, span: BUCKET };
        assert_eq!((silence.time_for(1), silence.arrivals_in(Nanos::MAX)), (Nanos::MAX, 0));
    }
}

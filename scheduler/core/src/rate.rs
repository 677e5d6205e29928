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

/// `a · b / c`, saturating.
fn scale(a: u64, b: u64, c: u64) -> u64 {
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

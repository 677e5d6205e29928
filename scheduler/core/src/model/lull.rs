//! Times in which a model's arrivals need no new candidate: most of the time in which a batch
//! gathers. Publishing each step of its growth is most of what a scheduler with many models does.

use crate::units::time::Nanos;

/// A time in which no batch of the model becomes due: neither the candidate that RankState has nor
/// any that the next arrivals would make of it, so RankState could do nothing with a newer one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lull {
    /// It ends at this moment …
    pub(crate) until: Nanos,
    /// … or with so many tasks in the queue …
    pub(crate) waiting: usize,
    /// … or when a task comes with an earlier deadline than this, the batch's head's.
    pub(crate) head: Nanos,
}

impl Lull {
    /// None.
    pub(crate) const OVER: Self = Self { until: Nanos::ZERO, waiting: 0, head: Nanos::MAX };

    /// Whether it lasts with so many tasks waiting, the latest with this deadline.
    pub(crate) fn lasts(&self, now: Nanos, waiting: usize, latest: Nanos) -> bool {
        now < self.until && waiting < self.waiting && latest >= self.head
    }
}

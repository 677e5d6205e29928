//! Quiet periods: times in which a model's arrivals need no new candidate, most of the time in which a batch
//! gathers. Publishing each step of a batch's growth is most of the work of a scheduler with many models.

use baton_types::Nanos;

/// A period in which no batch of the model becomes due: neither the candidate that RankState has nor any that the
/// next arrivals would make of it. RankState could do nothing with a newer candidate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuietPeriod {
    /// The period ends at this moment.
    pub(crate) until: Nanos,
    /// The period ends with this many tasks in the queue.
    pub(crate) waiting: usize,
    /// The period ends when a task arrives with an earlier deadline than this, the deadline of the batch's head.
    pub(crate) head: Nanos,
}

impl QuietPeriod {
    /// No quiet period.
    pub(crate) const OVER: Self = Self { until: Nanos::ZERO, waiting: 0, head: Nanos::MAX };

    /// Whether the period lasts with `waiting` tasks in the queue, the latest of them with the deadline `latest`.
    pub(crate) fn lasts(&self, now: Nanos, waiting: usize, latest: Nanos) -> bool {
        now < self.until && waiting < self.waiting && latest >= self.head
    }
}

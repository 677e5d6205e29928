//! What went through one generator, readable from outside while it runs.

use std::sync::Arc;

use baton_scheduler::Counter;

/// Counts since start, in tasks.
#[derive(Default, Debug)]
pub(super) struct Traffic {
    /// Read from connections.
    pub(super) taken: Counter,
    /// Arrived, whether or not there was room for them.
    pub(super) offered: Counter,
    /// Of these, refused because the ModelThread did not read as fast: its connections were full.
    pub(super) refused: Counter,
    /// Executed in time.
    pub(super) good: Counter,
    /// Given back by the GPUs as too late.
    pub(super) given_back: Counter,
    /// Submitted and without outcome, as of the end of the last pass.
    pub(super) open: Counter,
    /// Outcomes too many, by the [`super::ledger`]; 0 where it does not watch.
    pub(super) violations: Counter,
}

/// The same, at a moment or between two.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct TrafficCounts {
    pub(super) offered: u64,
    pub(super) refused: u64,
    pub(super) good: u64,
}

/// Sums over the ModelThreads.
pub(super) fn read(traffic: &[Arc<Traffic>]) -> TrafficCounts {
    let sum = |of: fn(&Traffic) -> &Counter| traffic.iter().map(|t| of(t).get()).sum();
    TrafficCounts {
        offered: sum(|t| &t.offered),
        refused: sum(|t| &t.refused),
        good: sum(|t| &t.good),
    }
}

impl TrafficCounts {
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            offered: self.offered - earlier.offered,
            refused: self.refused - earlier.refused,
            good: self.good - earlier.good,
        }
    }
}

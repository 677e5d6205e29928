//! What the agents did, read from their counters.

use baton_scheduler::{ModelThread, ModelThreadCounters, RankThreadCounters};
use hdrhistogram::Histogram;

use super::generator::Generator;

/// What a ModelThread did. Counts since start, or between two moments.
#[derive(Clone, Debug)]
pub(super) struct ModelCounts {
    pub(super) requests: u64,
    pub(super) batches: u64,
    pub(super) planned: u64,
    pub(super) dropped: u64,
    pub(super) queue_full: u64,
    pub(super) deadline_passed: u64,
    pub(super) undelivered: u64,
    pub(super) delays: Histogram<u64>,
}

/// What the RankThread did.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankCounts {
    pub(super) candidates: u64,
    pub(super) grants: u64,
}

impl ModelCounts {
    pub(super) fn read(agent: &ModelThread<Generator>, counters: &ModelThreadCounters) -> Self {
        let dropped = counters.dropped_deadline.get()
            + counters.dropped_window.get()
            + counters.dropped_deadline_passed.get()
            + counters.dropped_queue_full.get()
            + counters.dropped_share.get();
        Self {
            requests: counters.submitted.get(),
            batches: counters.plans.get(),
            planned: counters.planned_tasks.get(),
            dropped,
            queue_full: counters.dropped_queue_full.get(),
            deadline_passed: counters.dropped_deadline_passed.get(),
            undelivered: counters.plans_undelivered.get(),
            delays: agent.dispatch_delays().clone(),
        }
    }

    pub(super) fn since(mut self, earlier: &Self) -> Self {
        self.requests -= earlier.requests;
        self.batches -= earlier.batches;
        self.planned -= earlier.planned;
        self.dropped -= earlier.dropped;
        self.queue_full -= earlier.queue_full;
        self.deadline_passed -= earlier.deadline_passed;
        self.undelivered -= earlier.undelivered;
        let subtracted = self.delays.subtract(&earlier.delays);
        subtracted.expect("what was counted earlier is counted still");
        self
    }
}

impl RankCounts {
    pub(super) fn read(counters: &RankThreadCounters) -> Self {
        Self {
            candidates: counters.candidates.get() + counters.superseded.get(),
            grants: counters.grants.get(),
        }
    }

    pub(super) fn since(self, earlier: &Self) -> Self {
        Self {
            candidates: self.candidates - earlier.candidates,
            grants: self.grants - earlier.grants,
        }
    }
}

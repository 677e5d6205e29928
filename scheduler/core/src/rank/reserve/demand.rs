//! What one model asks of the slots.

use super::{DISPERSION_PER_CENT, TASK};
use crate::candidate::Candidate;
use crate::model::sizing::{LOSING, PER_CENT};
use baton_types::Nanos;

/// What a model's tasks ask of the slots, as of its last candidate.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Demand {
    /// [`Candidate::slack`].
    pub(crate) slack: Nanos,
    /// [`Candidate::dispersion`], raised by what the model loses.
    pub(crate) dispersion: u16,
    /// [`Candidate::bad_rate`].
    pub(crate) bad_rate: u32,
}

impl Demand {
    /// What varies by more than slots are kept for is lost, so what is lost raises the dispersion.
    pub(crate) fn of(candidate: &Candidate) -> Self {
        let Candidate { slack, dispersion, bad_rate, .. } = *candidate;
        let lost = u64::from(bad_rate.saturating_sub(LOSING));
        let raised = u64::from(dispersion) * (PER_CENT + DISPERSION_PER_CENT * lost) / PER_CENT;
        Self { slack, dispersion: raised.min(u16::MAX.into()) as u16, bad_rate }
    }

    /// Tasks of a batch, in 1/[`TASK`], and these times the model's bad rate.
    pub(super) fn lost_of(&self, batch: u32) -> (u64, u64) {
        let tasks = u64::from(batch) * TASK;
        (tasks, tasks.saturating_mul(self.bad_rate.into()))
    }

    /// Work of a batch that takes so long, times the variance of its model's demand over that of Poisson arrivals in
    /// 1/16: less, the longer its tasks can wait, since that evens it out.
    pub(super) fn varying(&self, work: Nanos, latency: Nanos) -> u64 {
        let waits = (self.slack.0 / (latency.0 / 64).max(1)).min(1 << 20);
        work.0.saturating_mul(self.dispersion.into()) / (64 + waits) * 64
    }
}

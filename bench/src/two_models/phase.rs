//! What became of the tasks of one span.

use serde::Serialize;

use super::client::Span;
use crate::load::{Reasons, Tally};

/// Tasks of one phase, of both models or of one.
#[derive(Clone, PartialEq, Default, Debug, Serialize)]
pub struct PhaseReport {
    /// Tasks due, per second.
    pub offered_rps: f64,
    /// Answers in time, per second.
    pub goodput_rps: f64,
    /// Share of the tasks that were not answered in time.
    pub bad_rate: f64,
    /// Tasks due.
    pub submitted: u64,
    /// Of these, answered.
    pub completed: u64,
    /// Of these, after the deadline.
    pub late: u64,
    /// Dropped, by reason.
    pub dropped: Reasons,
    /// Failed, by reason; `no_slot`: the client's bound.
    pub failed: Reasons,
    /// Latency of the answers, ms; `null` without any.
    pub p50_ms: Option<f64>,
    /// See `p50_ms`.
    pub p99_ms: Option<f64>,
    /// See `p50_ms`.
    pub p999_ms: Option<f64>,
}

impl PhaseReport {
    /// Of both models.
    pub(crate) fn new(span: &Span) -> Self {
        let mut all = Tally::default();
        span.models.iter().for_each(|tally| all.merge(tally));
        Self::of(all, span.seconds)
    }

    /// Of some of the span's tasks.
    pub(crate) fn of(tally: Tally, seconds: f64) -> Self {
        let in_time = tally.completed - tally.late;
        let bad = tally.submitted - in_time;
        Self {
            offered_rps: tally.submitted as f64 / seconds,
            goodput_rps: in_time as f64 / seconds,
            bad_rate: bad as f64 / tally.submitted.max(1) as f64,
            submitted: tally.submitted,
            completed: tally.completed,
            late: tally.late,
            p50_ms: tally.latency.quantile_ms(0.5),
            p99_ms: tally.latency.quantile_ms(0.99),
            p999_ms: tally.latency.quantile_ms(0.999),
            dropped: tally.dropped,
            failed: tally.failed,
        }
    }
}

//! What a run amounts to: for scripts as JSON, for people as text.

use std::fmt;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::counts::ModelCounts;
use super::harness::{Outcome, ThreadUsage};
use super::shape::{Shape, ShapeReport};
use super::stepped::Stepped;
use crate::machine::percent;

/// A finished run. The JSON keys are a contract.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SchedReport {
    /// What was run.
    #[serde(flatten)]
    pub shape: ShapeReport,
    /// Length of the measured phase.
    pub seconds: f64,
    /// Requests that came in, per second.
    pub requests_per_s: f64,
    /// CPU time of the ModelThreads' passes with something to do, per request, less the generator's.
    pub ns_per_request: f64,
    /// What was taken off for the generator.
    pub generator_ns_per_request: f64,
    /// Plans that went out, per second.
    pub batches_per_s: f64,
    /// Tasks in a batch.
    pub mean_batch: f64,
    /// CPU time of the RankThread's passes with something to do, per batch granted: candidates, grant
    /// and slot updates together.
    pub rank_ns_per_batch: f64,
    /// The same per candidate, grant and slot update.
    pub rank_ns_per_event: f64,
    /// Candidates the RankThread looked at per batch granted.
    pub candidates_per_batch: f64,
    /// Passes in which the RankThread had something to do, per batch granted.
    pub rank_passes_per_batch: f64,
    /// Share of the RankThread's CPU time in which it had something to do. The rest is looking.
    pub rank_busy: f64,
    /// A pass of the RankThread that finds nothing; its share of the core is not charged to batches.
    pub rank_idle_pass_ns: f64,
    /// From the moment a batch is schedulable and a slot can be granted until the plan is out.
    pub dispatch_delay_us: Quantiles,
    /// Tasks given up, for whatever reason.
    pub dropped: u64,
    /// Of these, because the model's queue was full.
    pub queue_full: u64,
    /// Plans that could not be sent.
    pub plans_undelivered: u64,
    /// Times the kernel took the core away from one of the threads.
    pub interruptions: u64,
    /// Each agent had a core of its own and was pinned to it.
    pub pinned: bool,
    /// Share of the CPU time that went to other machines' work; `null` where unknown.
    pub steal_fraction: Option<f64>,
    /// What a cache line took from the first core to the second, before the run and after it: live
    /// figures follow it, and on virtual machines it moves. `null` with one core.
    pub line_travel_ns: [Option<f64>; 2],
    /// The same agents stepped by hand on one thread: what the code costs without neighbours.
    pub stepped: Stepped,
    /// Each ModelThread by itself.
    pub threads: Vec<ThreadReport>,
}

/// One ModelThread.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ThreadReport {
    /// Requests that came in, per second.
    pub requests_per_s: f64,
    /// As in [`SchedReport`].
    pub ns_per_request: f64,
    /// Share of its CPU time in which it had something to do.
    pub busy: f64,
}

/// Quantiles in microseconds; 0 if nothing was measured.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Quantiles {
    /// Half of them took no longer.
    pub p50: f64,
    /// 99 %.
    pub p99: f64,
    /// 99.9 %.
    pub p999: f64,
}

impl SchedReport {
    pub(super) fn new(
        shape: Shape,
        outcome: &Outcome,
        line_travel_ns: [Option<f64>; 2],
        generator_ns: f64,
        stepped: Stepped,
    ) -> Self {
        let requests = outcome.total(|counts| counts.requests);
        let busy_ns: f64 = outcome.model_threads.iter().map(|thread| thread.usage.busy_ns()).sum();
        let rank = &outcome.rank;
        let per = |ns: f64, count: u64| ns / count.max(1) as f64;
        // Each grant is followed by two updates: planned, finished.
        let events = rank.counts.candidates + 3 * rank.counts.grants;
        Self {
            shape: shape.into(),
            seconds: outcome.elapsed.as_millis_f64() / 1e3,
            requests_per_s: outcome.requests_per_s(),
            ns_per_request: per(busy_ns, requests) - generator_ns,
            generator_ns_per_request: generator_ns,
            batches_per_s: outcome.per_s(outcome.total(|counts| counts.batches)),
            mean_batch: outcome.mean_batch(),
            rank_ns_per_batch: per(rank.usage.busy_ns(), rank.counts.grants),
            rank_ns_per_event: per(rank.usage.busy_ns(), events),
            candidates_per_batch: per(rank.counts.candidates as f64, rank.counts.grants),
            rank_passes_per_batch: per(rank.usage.busy_passes() as f64, rank.counts.grants),
            rank_idle_pass_ns: rank.usage.idle_pass_ns(),
            rank_busy: rank.usage.busy_share(),
            dispatch_delay_us: Quantiles::of(outcome),
            dropped: outcome.total(|counts| counts.dropped),
            queue_full: outcome.total(|counts| counts.queue_full),
            plans_undelivered: outcome.total(|counts| counts.undelivered),
            interruptions: outcome.interruptions(),
            pinned: outcome.pinned,
            steal_fraction: outcome.steal,
            line_travel_ns,
            stepped,
            threads: outcome
                .model_threads
                .iter()
                .map(|thread| ThreadReport::new(thread, outcome, generator_ns))
                .collect(),
        }
    }
}

impl ThreadReport {
    fn new(thread: &ThreadUsage<ModelCounts>, outcome: &Outcome, generator_ns: f64) -> Self {
        let requests = thread.counts.requests;
        Self {
            requests_per_s: outcome.per_s(requests),
            ns_per_request: thread.usage.busy_ns() / requests.max(1) as f64 - generator_ns,
            busy: thread.usage.busy_share(),
        }
    }
}

impl Quantiles {
    pub(super) fn of(outcome: &Outcome) -> Self {
        let mut all = Histogram::<u64>::new(2).expect("two digits are allowed");
        for thread in &outcome.model_threads {
            all.add(&thread.counts.delays).expect("it grows to what it is given");
        }
        let us = |q| all.value_at_quantile(q) as f64 / 1e3;
        Self { p50: us(0.5), p99: us(0.99), p999: us(0.999) }
    }
}

impl fmt::Display for SchedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}, {:.1} s{}",
            self.shape,
            self.seconds,
            if self.pinned { "" } else { "; fewer cores than threads" },
        )?;
        writeln!(
            f,
            "  model threads  {:>6.1} ns CPU per request, {:.2} M requests/s \
             (the generator's {:.1} ns taken off)",
            self.ns_per_request,
            self.requests_per_s / 1e6,
            self.generator_ns_per_request,
        )?;
        writeln!(
            f,
            "  rank thread    {:>6.1} ns CPU per batch of {:.1}, {:.3} M batches/s, {:.2} candidates \
             per batch in {:.2} passes, busy {:.0} %",
            self.rank_ns_per_batch,
            self.mean_batch,
            self.batches_per_s / 1e6,
            self.candidates_per_batch,
            self.rank_passes_per_batch,
            self.rank_busy * 100.0,
        )?;
        let Quantiles { p50, p99, p999 } = self.dispatch_delay_us;
        writeln!(f, "  dispatch delay {p50:.1} µs, p99 {p99:.1} µs, p99.9 {p999:.1} µs")?;
        writeln!(
            f,
            "  stepped        {:>6.1} ns CPU per request, {:.1} ns per batch of {:.1}, {:.2} candidates \
             per batch",
            self.stepped.ns_per_request,
            self.stepped.rank_ns_per_batch,
            self.stepped.mean_batch,
            self.stepped.candidates_per_batch,
        )?;
        let steal = percent(self.steal_fraction, "-");
        writeln!(
            f,
            "  dropped {}, queue full {}, plans undelivered {}, interruptions {}, steal {steal}, a cache \
             line takes {} ns",
            self.dropped,
            self.queue_full,
            self.plans_undelivered,
            self.interruptions,
            self.line_travel_ns
                .map(|ns| ns.map_or_else(|| "-".into(), |ns| format!("{ns:.0}")))
                .join(" to "),
        )
    }
}

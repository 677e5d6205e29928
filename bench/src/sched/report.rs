//! What a run amounts to: for scripts as JSON, for people as text.

use std::fmt;

use serde::Serialize;

use super::counts::ModelCounts;
use super::harness::{Outcome, ThreadUsage};
use super::run_report::RunReport;
use super::stepped::Stepped;
use crate::machine::percent;

/// A finished run. The JSON keys are a contract.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SchedReport {
    /// What is known of every run.
    #[serde(flatten)]
    pub run: RunReport,
    /// CPU time of the ModelThreads' passes with something to do, per request, less the generator's.
    pub ns_per_request: f64,
    /// What was taken off for the generator.
    pub generator_ns_per_request: f64,
    /// Plans that went out, per second.
    pub batches_per_s: f64,
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
    /// Plans that could not be sent.
    pub plans_undelivered: u64,
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

impl SchedReport {
    pub(super) fn new(
        run: RunReport,
        outcome: &Outcome,
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
            run,
            ns_per_request: per(busy_ns, requests) - generator_ns,
            generator_ns_per_request: generator_ns,
            batches_per_s: outcome.per_s(outcome.total(|counts| counts.batches)),
            rank_ns_per_batch: per(rank.usage.busy_ns(), rank.counts.grants),
            rank_ns_per_event: per(rank.usage.busy_ns(), events),
            candidates_per_batch: per(rank.counts.candidates as f64, rank.counts.grants),
            rank_passes_per_batch: per(rank.usage.busy_passes() as f64, rank.counts.grants),
            rank_idle_pass_ns: rank.usage.idle_pass_ns(),
            rank_busy: rank.usage.busy_share(),
            plans_undelivered: outcome.total(|counts| counts.undelivered),
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

impl fmt::Display for SchedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, stepped, .. } = self;
        run.write_head(f, "")?;
        writeln!(
            f,
            "  model threads  {:>6.1} ns CPU per request, {:.2} M requests/s \
             (the generator's {:.1} ns taken off)",
            self.ns_per_request,
            run.requests_per_s / 1e6,
            self.generator_ns_per_request,
        )?;
        self.write_rank_thread(f)?;
        run.write_delay(f)?;
        let Stepped { ns_per_request, rank_ns_per_batch, candidates_per_batch, mean_batch } =
            stepped;
        writeln!(
            f,
            "  stepped        {ns_per_request:>6.1} ns CPU per request, {rank_ns_per_batch:.1} ns per \
             batch of {mean_batch:.1}, {candidates_per_batch:.2} candidates per batch"
        )?;
        let RunReport { dropped, queue_full, interruptions, line_travel_ns, .. } = run;
        let (undelivered, steal) = (self.plans_undelivered, percent(run.steal_fraction, "-"));
        let ns = |ns: &Option<f64>| ns.map_or_else(|| "-".into(), |ns| format!("{ns:.0}"));
        let line = line_travel_ns.each_ref().map(ns).join(" to ");
        writeln!(
            f,
            "  dropped {dropped}, queue full {queue_full}, plans undelivered {undelivered}, interruptions \
             {interruptions}, steal {steal}, a cache line takes {line} ns"
        )?;
        run.not_usable.write(f)
    }
}

impl SchedReport {
    fn write_rank_thread(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  rank thread    {:>6.1} ns CPU per batch of {:.1}, {:.3} M batches/s, {:.2} candidates \
             per batch in {:.2} passes, busy {:.0} %",
            self.rank_ns_per_batch,
            self.run.mean_batch,
            self.batches_per_s / 1e6,
            self.candidates_per_batch,
            self.rank_passes_per_batch,
            self.rank_busy * 100.0,
        )
    }
}

//! What is known of every run on threads, wherever its requests come from.

use std::fmt;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::harness::Outcome;
use super::shape::{Shape, ShapeReport};
use crate::machine::{Unusable, stolen};

/// The part that reports of such runs have in common.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RunReport {
    /// What was run.
    #[serde(flatten)]
    pub shape: ShapeReport,
    /// Length of the measured phase.
    pub seconds: f64,
    /// Requests that came in, per second.
    pub requests_per_s: f64,
    /// Tasks in a batch.
    pub mean_batch: f64,
    /// From the moment a batch is schedulable and a slot can be granted until the plan is out.
    pub dispatch_delay_us: Quantiles,
    /// Tasks given up, for whatever reason.
    pub dropped: u64,
    /// Of these, because the model's queue was full.
    pub queue_full: u64,
    /// Times the kernel took a core away for long from RankThread or ModelThreads.
    pub interruptions: u64,
    /// Each thread had a core of its own and was pinned to it; else the ModelThreads had, as far as
    /// there were enough.
    pub pinned: bool,
    /// Share of the CPU time that went to other machines' work; `null` where unknown.
    pub steal_fraction: Option<f64>,
    /// What a cache line took from the first core to the second, before the run and after it: live
    /// figures follow it, and on virtual machines it moves. `null` with one core.
    pub line_travel_ns: [Option<f64>; 2],
    /// Why the figures are not to be used; empty if nothing is known against them.
    pub not_usable: Unusable,
}

/// Interruptions a second from which on times are the kernel's.
const INTERRUPTIONS_PER_S_MAX: f64 = 10.0;
/// The part of the requests that may be dropped: emulated GPUs keep up where the threads do.
const DROPPED_MAX: f64 = 0.01;

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

impl RunReport {
    pub(super) fn new(shape: Shape, outcome: &Outcome, line_travel_ns: [Option<f64>; 2]) -> Self {
        Self {
            shape: shape.into(),
            seconds: outcome.elapsed.as_millis_f64() / 1e3,
            requests_per_s: outcome.requests_per_s(),
            mean_batch: outcome.mean_batch(),
            dispatch_delay_us: Quantiles::of(outcome),
            dropped: outcome.total(|counts| counts.dropped),
            queue_full: outcome.total(|counts| counts.queue_full),
            interruptions: outcome.interruptions(),
            pinned: outcome.pinned,
            steal_fraction: outcome.steal,
            line_travel_ns,
            not_usable: Unusable::because([
                stolen(outcome.steal),
                interrupted(outcome.interruptions(), outcome.elapsed.as_millis_f64() / 1e3),
                dropped(
                    outcome.total(|counts| counts.dropped),
                    outcome.total(|counts| counts.requests),
                ),
            ]),
        }
    }

    /// The first line for people; `over` is what requests came over.
    pub(super) fn write_head(&self, f: &mut fmt::Formatter<'_>, over: &str) -> fmt::Result {
        let Self { shape, seconds, .. } = self;
        let cores = if self.pinned { "" } else { "; fewer cores than threads" };
        writeln!(f, "{shape}, {seconds:.1} s{over}{cores}")
    }

    pub(super) fn write_delay(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Quantiles { p50, p99, p999 } = self.dispatch_delay_us;
        writeln!(f, "  dispatch delay {p50:.1} µs, p99 {p99:.1} µs, p99.9 {p999:.1} µs")
    }
}

fn interrupted(interruptions: u64, seconds: f64) -> Option<String> {
    let many = interruptions as f64 > INTERRUPTIONS_PER_S_MAX * seconds;
    many.then(|| format!("the kernel took cores away {interruptions} times in {seconds:.1} s"))
}

fn dropped(dropped: u64, requests: u64) -> Option<String> {
    let many = dropped as f64 > DROPPED_MAX * requests as f64;
    many.then(|| format!("{dropped} of {requests} requests were dropped"))
}

impl Quantiles {
    fn of(outcome: &Outcome) -> Self {
        let mut all = Histogram::<u64>::new(2).expect("two digits are allowed");
        for thread in &outcome.model_threads {
            all.add(&thread.counts.delays).expect("it grows to what it is given");
        }
        let us = |q| all.value_at_quantile(q) as f64 / 1e3;
        Self { p50: us(0.5), p99: us(0.99), p999: us(0.999) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_was_disturbed_says_so() {
        assert_eq!((interrupted(50, 5.0), dropped(10, 1_000)), (None, None));
        let said = interrupted(501, 5.0).expect("many");
        assert_eq!(said, "the kernel took cores away 501 times in 5.0 s");
        assert_eq!(dropped(11, 1_000).expect("many"), "11 of 1000 requests were dropped");
    }
}

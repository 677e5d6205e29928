//! What came of it.

use std::collections::BTreeMap;
use std::fmt;

use baton_core::Nanos;
use serde::Serialize;

use crate::chaos::ChaosConfig;
use crate::chaos::plan::Fault;
use crate::chaos::probe::ProbeReport;
use crate::load::{Finished, Reasons, Tally, merge_reasons};

/// A fault, and how soon the cluster served again.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Recovery {
    /// What went wrong.
    pub fault: String,
    /// Its kind.
    pub kind: &'static str,
    /// From its end (the process is up again, or goes on) to the answer to a task submitted since, ms;
    /// `None`: it was given up.
    pub served_after_ms: Option<f64>,
}

impl Recovery {
    pub(super) fn new(fault: Fault, after: Option<Nanos>) -> Self {
        let served_after_ms = after.map(Nanos::as_millis_f64);
        Self { fault: fault.to_string(), kind: fault.kind(), served_after_ms }
    }

    fn in_time(&self, bound: Nanos) -> bool {
        self.served_after_ms.is_some_and(|ms| ms <= bound.as_millis_f64())
    }
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.served_after_ms {
            Some(ms) => write!(f, "{}; served after {ms:.0} ms", self.fault),
            None => write!(f, "{}; NOT SERVED AGAIN", self.fault),
        }
    }
}

/// The whole run. Good if `failures` is empty.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ChaosReport {
    /// The seed.
    pub seed: u64,
    /// The command that does the same again.
    pub replay: String,
    /// Processes of the cluster.
    pub processes: usize,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Each fault in turn.
    pub recoveries: Vec<Recovery>,
    /// The longest recovery, ms.
    pub slowest_ms: f64,
    /// What one may take, ms.
    pub bound_ms: f64,
    /// Tasks of the client here and of every frontend that ended in order.
    pub submitted: u64,
    /// Answered.
    pub completed: u64,
    /// Of these, after their deadline.
    pub late: u64,
    /// Dropped, by reason.
    pub dropped: Reasons,
    /// Failed, by reason, refused submits among them.
    pub failed: Reasons,
    /// Answers to something else.
    pub wrong_answers: u64,
    /// Every task has one outcome.
    pub conserved: bool,
    /// Submitted again after a scheduler was lost, by the client here.
    pub resubmitted: u64,
    /// Outcomes told to the client here for tasks that had theirs, under the same generation.
    pub duplicates: u64,
    /// Of these, with no backend that could have been taken for dead: executed twice for no reason.
    pub doubled: u64,
    /// Answers to an earlier generation that the client here refused.
    pub stale_answers: u64,
    /// Frontends that were killed, and their tickets with them.
    pub frontends_gone: u64,
    /// What must not be.
    pub failures: Vec<String>,
}

impl ChaosReport {
    pub(super) fn new(config: &ChaosConfig, recoveries: Vec<Recovery>) -> Self {
        let (seed, processes, seconds) = (config.seed, config.processes, config.seconds);
        let mut faults = BTreeMap::new();
        for recovery in &recoveries {
            *faults.entry(recovery.kind).or_insert(0) += 1;
        }
        let slow = recoveries.iter().filter(|recovery| !recovery.in_time(config.recovery_bound));
        let failures = slow.map(|recovery| format!("not in time: {recovery}")).collect();
        let slowest = recoveries.iter().filter_map(|recovery| recovery.served_after_ms);
        Self {
            seed,
            replay: format!(
                "baton bench chaos --seed {seed} --seconds {seconds} --processes {processes}"
            ),
            processes,
            faults,
            slowest_ms: slowest.fold(0.0, f64::max),
            bound_ms: config.recovery_bound.as_millis_f64(),
            recoveries,
            submitted: 0,
            completed: 0,
            late: 0,
            dropped: Reasons::new(),
            failed: Reasons::new(),
            wrong_answers: 0,
            conserved: true,
            resubmitted: 0,
            duplicates: 0,
            doubled: 0,
            stale_answers: 0,
            frontends_gone: 0,
            failures,
        }
    }

    pub(super) fn take_probe(&mut self, probe: ProbeReport, doubled: u64) {
        let ProbeReport { tally, counters, forgotten, leaked, farewell } = probe;
        self.add("the client here", &tally);
        self.resubmitted = counters.resubmitted;
        self.duplicates = counters.duplicates;
        self.stale_answers = counters.transport.results_stale;
        self.doubled = doubled;
        self.failures.extend(farewell.map(|why| format!("the client here did not leave: {why}")));
        for (count, what) in [
            (forgotten as u64, "tickets without outcome"),
            (u64::from(leaked), "slots that are not free"),
            (doubled, "tasks told twice although no backend was in doubt"),
        ] {
            if count > 0 {
                self.failures.push(format!("the client here: {count} {what}"));
            }
        }
        let told = counters.completed + counters.dropped + counters.failed;
        if counters.submitted != told {
            self.failures.push(format!("the client here counts wrong: {counters:?}"));
        }
    }

    pub(super) fn take_frontends(&mut self, finished: &[Finished], expected: usize, gone: u64) {
        self.frontends_gone = gone;
        for report in finished {
            report.tallies.iter().for_each(|tally| self.add("a frontend", tally));
        }
        if finished.len() != expected {
            let what = format!("{} of {expected} frontends reported", finished.len());
            self.failures.push(what);
        }
    }

    fn add(&mut self, whose: &str, tally: &Tally) {
        self.submitted += tally.submitted;
        self.completed += tally.completed;
        self.late += tally.late;
        self.wrong_answers += tally.wrong_answers;
        merge_reasons(&mut self.dropped, &tally.dropped);
        merge_reasons(&mut self.failed, &tally.failed);
        let ended = tally.ended();
        if ended != tally.submitted {
            self.conserved = false;
            self.failures.push(format!("{whose}: {} tasks, {ended} outcomes", tally.submitted));
        }
        if tally.wrong_answers > 0 {
            self.failures.push(format!("{whose}: {} wrong answers", tally.wrong_answers));
        }
    }

    /// True if everything held.
    pub fn is_good(&self) -> bool {
        self.failures.is_empty()
    }
}

impl fmt::Display for ChaosReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: u64 = self.faults.values().sum();
        writeln!(f, "seed {}: {faults} faults in {} processes", self.seed, self.processes)?;
        for (kind, count) in &self.faults {
            writeln!(f, "{count:>6} {kind}")?;
        }
        writeln!(
            f,
            "served again after {:.0} ms at most; bound {:.0} ms",
            self.slowest_ms, self.bound_ms
        )?;
        writeln!(
            f,
            "{} tasks: {} completed ({} late), dropped {:?}, failed {:?}, {} wrong",
            self.submitted,
            self.completed,
            self.late,
            self.dropped,
            self.failed,
            self.wrong_answers
        )?;
        writeln!(
            f,
            "{} submitted again; {} told twice, {} of them for no reason; {} frontends killed",
            self.resubmitted, self.duplicates, self.doubled, self.frontends_gone
        )?;
        match self.is_good() {
            true => write!(f, "everything held"),
            false => write!(f, "FAILED\n{}\nagain: {}", self.failures.join("\n"), self.replay),
        }
    }
}

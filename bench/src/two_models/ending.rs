//! How a run ended: whether every task has an outcome, and every process lives.

use std::fmt;

use serde::Serialize;

use crate::load::Tally;
use crate::machine::percent;

/// The part of a report that tells whether the run was sound.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Ending {
    /// Share of the CPU time that went to other machines' work; `null` where unknown.
    pub steal_fraction: Option<f64>,
    /// Every task has had one outcome.
    pub conserved: bool,
    /// Tasks in all.
    pub submitted: u64,
    /// Of these, answered.
    pub completed: u64,
    /// Of these, dropped.
    pub dropped: u64,
    /// Of these, failed.
    pub failed: u64,
    /// Processes that died.
    pub lost: Vec<String>,
}

impl Ending {
    pub(crate) fn new(total: &Tally, lost: Vec<String>, steal_fraction: Option<f64>) -> Self {
        Self {
            steal_fraction,
            conserved: total.submitted == total.ended(),
            submitted: total.submitted,
            completed: total.completed,
            dropped: total.dropped_total(),
            failed: total.failed_total(),
            lost,
        }
    }

    /// True if no task and no process was lost.
    pub fn is_good(&self) -> bool {
        self.conserved && self.lost.is_empty()
    }

    /// For people; `of_completed` is what else there is to say of the answers.
    pub(crate) fn write(&self, f: &mut fmt::Formatter<'_>, of_completed: &str) -> fmt::Result {
        if self.steal_fraction.is_some() {
            writeln!(f, "CPU stolen {}", percent(self.steal_fraction, "unknown"))?;
        }
        for name in &self.lost {
            writeln!(f, "LOST: {name}")?;
        }
        let conserved = if self.conserved { "conserved" } else { "NOT CONSERVED" };
        let Self { submitted, completed, dropped, failed, .. } = self;
        write!(f, "{conserved}: {submitted} submitted, {completed} completed{of_completed}, ")?;
        write!(f, "{dropped} dropped, {failed} failed")
    }
}

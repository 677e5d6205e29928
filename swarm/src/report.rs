//! What a run, and what many, came to.

use serde::{Serialize, Serializer};

use crate::applications::Tally;
use crate::changes::Changes;
use crate::hostile::Hostility;
use crate::marks::Marks;
use crate::swarm::Kind;

/// What was wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// In words.
    pub what: String,
    /// Time of the run, in microseconds: exact, so that reports can be compared.
    pub at_us: u64,
}

/// One seed.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Report {
    /// Which.
    pub seed: u64,
    /// Of the event log: two runs of a seed have the same.
    pub hash: u64,
    /// Time that passed in the run, microseconds.
    pub virtual_us: u64,
    /// Tasks submitted.
    pub tasks: u64,
    /// What became of them.
    pub tally: Tally,
    /// Rows executed.
    pub executed: u64,
    /// Of these, of tasks that had been executed before, on a backend that was lost.
    pub executed_again: u64,
    /// Faults carried out.
    pub faults: u32,
    /// What operators were answered.
    pub changes: Changes,
    /// Frames that passed over the network.
    pub frames: u64,
    /// Of these, said again.
    pub repeated: u64,
    /// What attackers did.
    pub hostility: Hostility,
    /// Rows executed that were theirs.
    pub hostile_rows: u64,
    /// Which branches it has reached.
    pub marks: Marks,
    /// `None`: everything held.
    pub failure: Option<Failure>,
}

/// The command that runs a seed again.
pub fn replay(kind: Kind, seed: u64) -> String {
    let hostile = if kind == Kind::Hostile { " --hostile" } else { "" };
    format!("baton sim cluster --seed {seed}{hostile}")
}

/// Many seeds. Serialises to what `baton sim cluster --json` prints.
#[derive(Clone, Default, Debug, Serialize)]
pub struct Summary {
    /// Seeds run.
    pub seeds: u64,
    /// The first of them.
    pub from: u64,
    /// Every task had one outcome and nothing else was wrong, in every seed.
    pub conserved: bool,
    /// Tasks submitted.
    pub submitted: u64,
    /// Tasks answered.
    pub completed: u64,
    /// Of these, after their deadline.
    pub late: u64,
    /// Tasks dropped.
    pub dropped: u64,
    /// Tasks failed.
    pub failed: u64,
    /// Tasks whose ticket was dropped or whose process died.
    pub unobserved: u64,
    /// Rows executed.
    pub executed: u64,
    /// Of these, again, after the backend before was lost.
    pub executed_again: u64,
    /// Faults carried out.
    pub faults: u64,
    /// What operators were answered.
    pub changes: Changes,
    /// Frames over the network.
    pub frames: u64,
    /// Of these, said again.
    pub repeated: u64,
    /// With attackers.
    pub hostile: bool,
    /// What they did.
    pub hostility: Hostility,
    /// Rows executed that were theirs; not among `executed`.
    pub hostile_rows: u64,
    /// Messages they said: the inputs of this fuzz.
    pub hostile_messages: u64,
    /// Time that passed in the runs, seconds.
    pub virtual_s: f64,
    /// For each mark, in how many runs it was reached.
    #[serde(serialize_with = "by_name")]
    pub marks: Marks,
    /// The seeds that failed, the first ones: what, and how to see it again.
    pub failures: Vec<FailedSeed>,
    /// How many failed.
    pub failed_seeds: u64,
}

/// A seed that failed.
#[derive(Clone, Debug, Serialize)]
pub struct FailedSeed {
    /// Which.
    pub seed: u64,
    /// What was wrong.
    pub what: String,
    /// When, in the run.
    pub at_ms: f64,
    /// The command that runs it again.
    pub replay: String,
}

fn by_name<S: Serializer>(marks: &Marks, serializer: S) -> Result<S::Ok, S::Error> {
    marks.by_name().serialize(serializer)
}

/// A swarm of as many seeds, without attackers, must reach every mark.
pub const MARKS_FROM: u64 = 10_000;

/// Failures that a summary lists.
const LISTED: usize = 20;

impl Summary {
    /// Nothing yet, of a swarm that begins at `from`.
    pub fn new(kind: Kind, from: u64) -> Self {
        Self { from, conserved: true, hostile: kind == Kind::Hostile, ..Self::default() }
    }

    /// Takes in a seed.
    pub fn add(&mut self, report: &Report) {
        let tally = &report.tally;
        self.seeds += 1;
        self.submitted += report.tasks;
        self.completed += u64::from(tally.completed);
        self.late += u64::from(tally.late);
        self.dropped += u64::from(tally.dropped());
        self.failed += u64::from(tally.failed());
        self.unobserved += u64::from(tally.abandoned + tally.gone);
        self.executed += report.executed;
        self.executed_again += report.executed_again;
        self.faults += u64::from(report.faults);
        self.changes.add(&report.changes);
        self.frames += report.frames;
        self.repeated += report.repeated;
        self.hostility.add(&report.hostility);
        self.hostile_messages = self.hostility.messages;
        self.hostile_rows += report.hostile_rows;
        self.marks.add(&report.marks);
        self.virtual_s += report.virtual_us as f64 / 1e6;
        if let Some(failure) = &report.failure {
            self.fail(report.seed, failure);
        }
    }

    /// The marks that the runs should have reached and did not: see [`Marks::missed`]. Empty for a
    /// swarm that is too small to say.
    pub fn missed(&self) -> Vec<String> {
        match self.seeds >= MARKS_FROM && !self.hostile {
            true => self.marks.missed(),
            false => Vec::new(),
        }
    }

    fn fail(&mut self, seed: u64, failure: &Failure) {
        self.conserved = false;
        self.failed_seeds += 1;
        if self.failures.len() < LISTED {
            let (what, at_ms) = (failure.what.clone(), failure.at_us as f64 / 1e3);
            let kind = if self.hostile { Kind::Hostile } else { Kind::Faults };
            self.failures.push(FailedSeed { seed, what, at_ms, replay: replay(kind, seed) });
            self.failures.sort_by_key(|failed| failed.seed);
        }
    }
}

//! What a generator tells the process that started it.

use std::fmt;

use baton_core::Nanos;
use serde::{Deserialize, Serialize};

use super::tally::Tally;

/// Counts so far, once a second.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// Since the first arrival could have come.
    pub seconds: f64,
    /// See [`Tally`].
    pub submitted: u64,
    /// See [`Tally`].
    pub completed: u64,
    /// See [`Tally`].
    pub late: u64,
    /// See [`Tally`].
    pub dropped: u64,
    /// See [`Tally`].
    pub failed: u64,
    /// See [`Tally`].
    pub wrong_answers: u64,
    /// Answers of variants, and the sum of these variants' accuracies, per cent.
    #[serde(default)]
    pub accuracies: (u64, f64),
}

impl Progress {
    /// Of these tallies, at this time since the load began.
    pub(crate) fn of<'a>(since: Nanos, tallies: impl Iterator<Item = &'a Tally>) -> Self {
        let mut progress = Self { seconds: since.as_millis_f64() / 1e3, ..Self::default() };
        for tally in tallies {
            progress.submitted += tally.submitted;
            progress.completed += tally.completed;
            progress.late += tally.late;
            progress.dropped += tally.dropped_total();
            progress.failed += tally.failed_total();
            progress.wrong_answers += tally.wrong_answers;
            let (answers, accuracies) = tally.accuracies();
            progress.accuracies.0 += answers;
            progress.accuracies.1 += accuracies;
        }
        progress
    }

    /// Mean accuracy of the variants that have answered since, per cent; `None` if none has.
    pub fn accuracy_since(&self, before: &Self) -> Option<f64> {
        let answers = self.accuracies.0.saturating_sub(before.accuracies.0);
        (answers > 0).then(|| (self.accuracies.1 - before.accuracies.1) / answers as f64)
    }

    /// Adds another generator's counts; the time is the later one's.
    pub fn merge(&mut self, other: &Self) {
        self.seconds = self.seconds.max(other.seconds);
        self.submitted += other.submitted;
        self.completed += other.completed;
        self.late += other.late;
        self.dropped += other.dropped;
        self.failed += other.failed;
        self.wrong_answers += other.wrong_answers;
        self.accuracies.0 += other.accuracies.0;
        self.accuracies.1 += other.accuracies.1;
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lost = self.dropped + self.failed;
        let waiting = self.submitted.saturating_sub(self.completed + lost);
        let Self { seconds, submitted, completed, late, wrong_answers, .. } = self;
        write!(
            f,
            "{seconds:5.1} s  {submitted} tasks  {completed} answered, {late} late  {lost} lost  {waiting} waiting"
        )?;
        if *wrong_answers > 0 { write!(f, "  {wrong_answers} WRONG") } else { Ok(()) }
    }
}

/// A finished generator's counts, complete enough to be summed up with others'.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Finished {
    /// How long load was offered.
    pub seconds: f64,
    /// What carried inputs and answers.
    pub transport: String,
    /// Kinds of engine that answered.
    pub engines: Vec<String>,
    /// One per model, in the order of [`super::LoadConfig::rates`].
    pub tallies: Vec<Tally>,
}

/// What a generator tells the process that started it: one JSON object a line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Message {
    /// Once a second.
    Progress(Progress),
    /// The last line.
    Finished(Finished),
}

//! What became of the tasks that were not answered in time, one JSON object a line: written by
//! `baton load --outcomes FILE`, read by `baton explain`.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use baton_client::{Explanation, Moment, Outcome, TaskId};
use serde::{Deserialize, Serialize};

/// Tasks written; the rest is counted.
const TASKS_MAX: u64 = 10_000;

/// One task.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Its [`TaskId`], as in logs and traces, in decimal.
    pub task: u64,
    /// Its model.
    pub model: String,
    /// When it was submitted, ms after the load began.
    pub submitted_ms: f64,
    /// "late", "wrong", "dropped" or "failed".
    pub outcome: String,
    /// Why it was dropped or failed.
    pub reason: Option<String>,
    /// One sentence.
    pub summary: String,
    /// What happened, and how long after the submit, ms.
    pub moments: Vec<(f64, String)>,
    /// What else is known.
    pub notes: Vec<String>,
}

impl Record {
    /// A task with its outcome; `wrong`: it is the answer to something else.
    pub(crate) fn new(
        task: TaskId,
        model: &str,
        submitted_ms: f64,
        outcome: &Outcome,
        wrong: bool,
    ) -> Self {
        let (word, reason) = match outcome {
            Outcome::Completed(_) if wrong => ("wrong", None),
            Outcome::Completed(_) => ("late", None),
            Outcome::Dropped(reason, _) => ("dropped", Some(reason.as_str())),
            Outcome::Failed(reason, _) => ("failed", Some(reason.as_str())),
        };
        let Explanation { summary, moments, notes } = outcome.explain();
        Self {
            task: task.0,
            model: model.to_owned(),
            submitted_ms,
            outcome: word.to_owned(),
            reason: reason.map(str::to_owned),
            summary,
            moments: moments.into_iter().map(|moment| (moment.after_ms, moment.what)).collect(),
            notes,
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = TaskId(self.task);
        let (frontend, slot, generation) = (id.frontend().0, id.slot(), id.generation());
        writeln!(
            f,
            "task {} of {}: frontend {frontend}, slot {slot}, generation {generation}; submitted \
             {:.3} ms after the load began",
            self.task, self.model, self.submitted_ms
        )?;
        let moments = self.moments.iter();
        Explanation {
            summary: self.summary.clone(),
            moments: moments
                .map(|(after_ms, what)| Moment { after_ms: *after_ms, what: what.clone() })
                .collect(),
            notes: self.notes.clone(),
        }
        .fmt(f)
    }
}

/// The last line, if there were more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct LeftOut {
    left_out: u64,
}

/// The file cannot be written, read, or understood.
#[derive(Debug, thiserror::Error)]
pub enum OutcomesError {
    /// The system says no.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A line is not one of ours.
    #[error("{path}:{line}: {source}; give a file written by `baton load --outcomes`")]
    Line {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// No such task in the file.
    #[error("task {task} is not among the {tasks} in {path}: {hint}")]
    Unknown {
        /// The task asked for.
        task: u64,
        /// Tasks there are.
        tasks: usize,
        /// The file.
        path: PathBuf,
        /// Why that may be.
        hint: String,
    },
}

/// Writes records, up to a bound.
#[derive(Debug)]
pub(crate) struct Writer {
    path: PathBuf,
    file: BufWriter<File>,
    seen: u64,
    /// The first thing that went wrong; from then on nothing is written.
    problem: Option<io::Error>,
}

impl Writer {
    pub(crate) fn create(path: &Path) -> Result<Self, OutcomesError> {
        let file = File::create(path)
            .map_err(|source| OutcomesError::Io { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), file: BufWriter::new(file), seen: 0, problem: None })
    }

    pub(crate) fn write(&mut self, record: &Record) {
        self.seen += 1;
        if self.seen <= TASKS_MAX {
            self.line(record);
        }
    }

    /// The last line, and what went wrong on the way.
    pub(crate) fn finish(mut self) -> Result<(), OutcomesError> {
        if self.seen > TASKS_MAX {
            self.line(&LeftOut { left_out: self.seen - TASKS_MAX });
        }
        let flushed = self.problem.map_or_else(|| self.file.flush(), Err);
        flushed.map_err(|source| OutcomesError::Io { path: self.path, source })
    }

    fn line(&mut self, value: &impl Serialize) {
        if self.problem.is_none() {
            let written = serde_json::to_writer(&mut self.file, value).map_err(io::Error::from);
            self.problem = written.and_then(|()| self.file.write_all(b"\n")).err();
        }
    }
}

/// The record of a task in a file that [`crate::load`] wrote.
///
/// # Errors
/// The file cannot be read or is another one, or the task is not in it.
pub fn find(path: &Path, task: u64) -> Result<Record, OutcomesError> {
    let text = fs::read_to_string(path)
        .map_err(|source| OutcomesError::Io { path: path.to_owned(), source })?;
    let (mut tasks, mut left_out) = (0, 0);
    for (at, line) in text.lines().enumerate() {
        match serde_json::from_str::<LeftOut>(line) {
            Ok(last) => left_out = last.left_out,
            Err(_) => {
                let record = serde_json::from_str::<Record>(line).map_err(|source| {
                    OutcomesError::Line { path: path.to_owned(), line: at + 1, source }
                })?;
                tasks += 1;
                if record.task == task {
                    return Ok(record);
                }
            }
        }
    }
    let hint = match left_out {
        0 => "it was answered in time, or is another load's".to_owned(),
        more => format!("it was answered in time, or is one of {more} that were left out"),
    };
    Err(OutcomesError::Unknown { task, tasks, path: path.to_owned(), hint })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(task: u64) -> Record {
        Record {
            task,
            model: "m".into(),
            submitted_ms: 1.5,
            outcome: "dropped".into(),
            reason: Some("window".into()),
            summary: "dropped (window)".into(),
            moments: vec![(0.0, "submitted".into()), (12.25, "told".into())],
            notes: vec!["a note".into()],
        }
    }

    fn file(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("baton-outcomes-{}-{name}", std::process::id()))
    }

    #[test]
    fn what_is_written_is_found_and_reads_well() {
        let path = file("found");
        let mut writer = Writer::create(&path).unwrap();
        (0..3).for_each(|task| writer.write(&record(task)));
        writer.finish().unwrap();
        let found = find(&path, 2).unwrap();
        assert_eq!(found, record(2));
        let text = found.to_string();
        assert!(text.contains("12.250 ms  told") && text.ends_with("a note"), "{text}");
        let missing = find(&path, 3).unwrap_err().to_string();
        assert!(missing.contains("among the 3") && missing.contains("in time"), "{missing}");
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_is_bounded_and_says_what_it_leaves_out() {
        let path = file("bounded");
        let mut writer = Writer::create(&path).unwrap();
        (0..TASKS_MAX + 7).for_each(|task| writer.write(&record(task)));
        writer.finish().unwrap();
        assert!(find(&path, TASKS_MAX - 1).is_ok());
        let missing = find(&path, TASKS_MAX).unwrap_err().to_string();
        assert!(missing.contains("one of 7"), "{missing}");
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn another_file_and_a_full_disk_are_errors() {
        let path = file("other");
        fs::write(&path, "{\"task\": 1}\n").unwrap();
        assert!(find(&path, 1).unwrap_err().to_string().contains(":1: "));
        fs::remove_file(path).unwrap();
        let mut full = Writer::create(Path::new("/dev/full")).unwrap();
        full.write(&record(1));
        assert!(full.finish().unwrap_err().to_string().contains("/dev/full"));
    }
}

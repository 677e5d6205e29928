//! A file of arrivals: CSV lines `timestamp[,model[,slo]]`, seconds and milliseconds.
//!
//! A header is skipped, and lines that are empty or begin with `#`. Every line names a model or
//! none does; a field left empty counts as left out. Quotes around a field are taken off; a comma
//! always ends one. Timestamps count from the first one. A file whose header says so has counts per
//! minute instead (`invocations.rs`).

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use baton_core::Nanos;

use crate::invocations::{CountRows, Counts, FIRST_COLUMN, Minutes};

/// A line of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// The file.
    pub path: PathBuf,
    /// Counted from 1.
    pub number: u64,
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.number)
    }
}

/// Why a file cannot be replayed.
#[derive(thiserror::Error, Debug)]
pub enum ReplayError {
    /// The file could not be read.
    #[error("{}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// Neither a number nor the header.
    #[error("{line}: \"{text}\" is no timestamp; give seconds, at most 1e12")]
    Timestamp {
        /// Where.
        line: Line,
        /// The first field.
        text: String,
    },
    /// The file is not sorted.
    #[error("{line}: {at_s} s is before the line above ({before_s} s); sort the file by time")]
    Unsorted {
        /// Where.
        line: Line,
        /// This line's timestamp.
        at_s: f64,
        /// The last one before it.
        before_s: f64,
    },
    /// A model that is not there.
    #[error("{line}: there is no model named \"{name}\"; there are: {known}")]
    Unknown {
        /// Where.
        line: Line,
        /// The second field.
        name: String,
        /// Some of the models.
        known: String,
    },
    /// Some lines name a model and some do not.
    #[error("{line}: either every line names a model or none does")]
    Mixed {
        /// The first line that is not as those before it.
        line: Line,
    },
    /// No latency objective.
    #[error("{line}: slo \"{text}\": give milliseconds from 0.001 to 1e6")]
    Slo {
        /// Where.
        line: Line,
        /// The third field.
        text: String,
    },
    /// A fourth field.
    #[error("{line}: {fields} fields; give timestamp[,model[,slo]]")]
    Fields {
        /// Where.
        line: Line,
        /// Fields of the line.
        fields: usize,
    },
    /// No rate follows from the file.
    #[error("{}: no two tasks at different times, so there is no rate to scale", path.display())]
    NoSpan {
        /// The file.
        path: PathBuf,
    },
    /// More than memory is set aside for.
    #[error("{line}: more than {TASKS_MAX} tasks; replay a part of the file")]
    TooMany {
        /// The first that is too many.
        line: Line,
    },
    /// A row of counts that has not one for every minute of the header.
    #[error("{line}: {fields} fields, and the header has {expected}")]
    Columns {
        /// Where.
        line: Line,
        /// Fields of the line.
        fields: usize,
        /// Fields of the header.
        expected: usize,
    },
    /// No count.
    #[error(
        "{line}: \"{text}\" is no count; give how often the function runs in that minute, at most {TASKS_MAX}"
    )]
    Count {
        /// Where.
        line: Line,
        /// The field.
        text: String,
    },
    /// Minutes that the file has not.
    #[error("{line}: the file has {columns} minutes; {} from minute {} on are not among them", minutes.count, minutes.first)]
    Minutes {
        /// The header.
        line: Line,
        /// Minutes of the file.
        columns: usize,
        /// Those that are asked for.
        minutes: Minutes,
    },
    /// A part was asked for of a file that has no minutes.
    #[error("{}: minutes are chosen of a file of counts per minute, and this one has timestamps: leave them out", path.display())]
    Timestamps {
        /// The file.
        path: PathBuf,
    },
    /// Nothing to replay.
    #[error("{}: no function runs in these minutes", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// More than memory is set aside for.
    #[error("{}: {most} tasks in a minute; at most {TASKS_MAX} are replayed: leave functions out", path.display())]
    FullMinute {
        /// The file.
        path: PathBuf,
        /// Tasks of its fullest minute.
        most: u64,
    },
}

/// Tasks a file may have, or a minute of counts; 32 bytes each.
pub(crate) const TASKS_MAX: usize = 20_000_000;
/// Longest line, bytes; what is longer counts as several. A day of counts takes 3 to 10 kB.
const LINE_MAX: u64 = 65_536;
/// Timestamps beyond this are no seconds.
const SECONDS_MAX: f64 = 1e12;

/// What a file may name, and which part of it is wanted.
#[derive(Clone, Debug)]
pub struct ReplayOptions<'a> {
    names: &'a [&'a str],
    /// Models in the order in which they get functions.
    turns: Vec<u32>,
    minutes: Option<Minutes>,
}

impl<'a> ReplayOptions<'a> {
    /// The whole file; functions go to models in the order of their names.
    pub fn new(names: &'a [&'a str]) -> Self {
        Self { names, turns: (0..names.len() as u32).collect(), minutes: None }
    }

    /// Functions go to models in this order instead.
    #[must_use]
    pub(crate) fn in_turn(self, turns: Vec<u32>) -> Self {
        Self { turns, ..self }
    }

    /// These minutes of a file of counts.
    #[must_use]
    pub fn of_minutes(self, minutes: Option<Minutes>) -> Self {
        Self { minutes, ..self }
    }
}

/// The file's tasks in the order of time.
#[derive(Clone, PartialEq, Debug)]
pub struct Replay {
    pub(crate) recorded: Recorded,
    /// From the first task of the file to where the first would follow the last; of counts, from the beginning of the first
    /// minute to the end of the last.
    pub(crate) lap_ns: f64,
    /// The longest objective that the file gives a task; zero if none.
    pub(crate) longest_slo: Nanos,
}

/// What a file has.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Recorded {
    Tasks(Vec<Task>),
    Counts(Counts),
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Task {
    /// Since the beginning of the lap.
    pub(crate) after_ns: f64,
    /// `None`: any, by popularity.
    pub(crate) model: Option<u32>,
    /// `None`: the model's.
    pub(crate) slo: Option<Nanos>,
}

impl Replay {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// See [`Replay::read`]; or the file cannot be opened.
    pub fn load(path: &Path, options: &ReplayOptions<'_>) -> Result<Self, ReplayError> {
        let unreadable = |error| ReplayError::Unreadable { path: path.to_owned(), error };
        Self::read(path, BufReader::new(File::open(path).map_err(unreadable)?), options)
    }

    /// Reads and checks lines `timestamp[,model[,slo]]`, or counts per minute. `path` names the file in errors.
    ///
    /// # Errors
    /// The first line that is none, or a file from which no rate follows.
    pub fn read(
        path: &Path,
        mut file: impl BufRead,
        options: &ReplayOptions<'_>,
    ) -> Result<Self, ReplayError> {
        let unreadable = |error| ReplayError::Unreadable { path: path.to_owned(), error };
        let mut rows = Rows::new(path, options);
        let mut text = String::new();
        while file.by_ref().take(LINE_MAX).read_line(&mut text).map_err(unreadable)? > 0 {
            rows.add(text.trim_start_matches('\u{feff}').trim())?;
            text.clear();
        }
        rows.finish()
    }

    /// Tasks in the file.
    pub fn len(&self) -> usize {
        match &self.recorded {
            Recorded::Tasks(tasks) => tasks.len(),
            Recorded::Counts(counts) => counts.tasks(),
        }
    }

    /// Never: a file without tasks is refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file's own mean rate, tasks/s.
    pub fn rate_rps(&self) -> f64 {
        self.len() as f64 * 1e9 / self.lap_ns
    }

    /// How long it lasts at that rate.
    pub fn lasts(&self) -> Nanos {
        Nanos(self.lap_ns as u64)
    }

    /// Each model's part of the tasks, by its number; `None` if the file names no models.
    pub(crate) fn shares(&self, models: usize) -> Option<Vec<f64>> {
        let mut shares = vec![0.0; models];
        match &self.recorded {
            Recorded::Tasks(tasks) => {
                for task in tasks {
                    shares[task.model? as usize] += 1.0;
                }
            }
            Recorded::Counts(counts) => counts.add_to(&mut shares),
        }
        shares.iter_mut().for_each(|share| *share /= self.len() as f64);
        Some(shares)
    }
}

/// The lines read so far.
struct Rows<'a> {
    path: &'a Path,
    options: &'a ReplayOptions<'a>,
    /// Of a file that has counts.
    counts: Option<CountRows>,
    /// Numbers by name.
    models: HashMap<&'a str, u32>,
    tasks: Vec<Task>,
    /// The first task's timestamp, and whether it names its model.
    first: Option<(f64, bool)>,
    last_s: f64,
    /// Lines, whatever is in them.
    lines: u64,
    /// Nothing but comments has been read: a header may follow.
    at_top: bool,
}

impl<'a> Rows<'a> {
    fn new(path: &'a Path, options: &'a ReplayOptions<'a>) -> Self {
        let models = options.names.iter().copied().zip(0..).collect();
        let last_s = f64::NEG_INFINITY;
        Self {
            path,
            options,
            counts: None,
            models,
            tasks: Vec::new(),
            first: None,
            last_s,
            lines: 0,
            at_top: true,
        }
    }

    fn add(&mut self, text: &str) -> Result<(), ReplayError> {
        self.lines += 1;
        if text.is_empty() || text.starts_with('#') {
            return Ok(());
        }
        let at_top = std::mem::replace(&mut self.at_top, false);
        let fields: Vec<&str> = text.split(',').map(|f| f.trim().trim_matches('"')).collect();
        let line = Line { path: self.path.to_owned(), number: self.lines };
        if let Some(counts) = &mut self.counts {
            return counts.add(&fields, || line.clone());
        }
        if at_top && fields[0] == FIRST_COLUMN {
            self.counts = Some(CountRows::new(line, &fields, self.options.minutes)?);
            return Ok(());
        }
        let at_s = fields[0].parse().ok().filter(|at_s: &f64| at_s.abs() <= SECONDS_MAX);
        match at_s {
            Some(at_s) => self.add_task(at_s, &fields),
            None if at_top => Ok(()),
            None => Err(ReplayError::Timestamp { line, text: fields[0].to_owned() }),
        }
    }

    fn add_task(&mut self, at_s: f64, fields: &[&str]) -> Result<(), ReplayError> {
        let field = |at: usize| fields.get(at).copied().filter(|text| !text.is_empty());
        let model = field(1).map(|name| self.model(name)).transpose()?;
        let slo = field(2).map(|text| self.slo(text)).transpose()?;
        let first = *self.first.get_or_insert_with(|| (at_s, model.is_some()));
        if fields.len() > 3 {
            return Err(ReplayError::Fields { line: self.line(), fields: fields.len() });
        }
        if first.1 != model.is_some() {
            return Err(ReplayError::Mixed { line: self.line() });
        }
        if at_s < self.last_s {
            return Err(ReplayError::Unsorted { line: self.line(), at_s, before_s: self.last_s });
        }
        if self.tasks.len() == TASKS_MAX {
            return Err(ReplayError::TooMany { line: self.line() });
        }
        self.last_s = at_s;
        self.tasks.push(Task { after_ns: (at_s - first.0) * 1e9, model, slo });
        Ok(())
    }

    fn line(&self) -> Line {
        Line { path: self.path.to_owned(), number: self.lines }
    }

    fn model(&self, name: &str) -> Result<u32, ReplayError> {
        self.models.get(name).copied().ok_or_else(|| {
            let (line, name) = (self.line(), name.to_owned());
            ReplayError::Unknown { line, name, known: self.known() }
        })
    }

    /// Some names of models, and how many more there are.
    fn known(&self) -> String {
        const SHOWN: usize = 8;
        let mut names: Vec<&str> = self.models.keys().map(|name| &**name).collect();
        names.sort_unstable();
        let (shown, others) = names.split_at(names.len().min(SHOWN));
        match others.len() {
            0 => shown.join(", "),
            count => format!("{} and {count} more", shown.join(", ")),
        }
    }

    fn slo(&self, text: &str) -> Result<Nanos, ReplayError> {
        let slo_ms = text.parse().ok().filter(|slo_ms| (0.001..=1e6).contains(slo_ms));
        let refused = || ReplayError::Slo { line: self.line(), text: text.to_owned() };
        slo_ms.map(Nanos::from_millis_f64).ok_or_else(refused)
    }

    fn finish(self) -> Result<Replay, ReplayError> {
        if let Some(counts) = self.counts {
            let counts = counts.finish(self.path, &self.options.turns)?;
            let lap_ns = counts.lap_ns();
            let recorded = Recorded::Counts(counts);
            return Ok(Replay { recorded, lap_ns, longest_slo: Nanos::ZERO });
        }
        if self.options.minutes.is_some() {
            return Err(ReplayError::Timestamps { path: self.path.to_owned() });
        }
        let gaps = self.tasks.len().saturating_sub(1) as f64;
        let span_ns = self.tasks.last().map_or(0.0, |task| task.after_ns);
        if span_ns <= 0.0 {
            return Err(ReplayError::NoSpan { path: self.path.to_owned() });
        }
        // One more mean gap behind the last task, so that laps have the file's mean rate.
        let lap_ns = span_ns * (gaps + 1.0) / gaps;
        let longest_slo = self.tasks.iter().filter_map(|task| task.slo).max().unwrap_or_default();
        Ok(Replay { recorded: Recorded::Tasks(self.tasks), lap_ns, longest_slo })
    }
}

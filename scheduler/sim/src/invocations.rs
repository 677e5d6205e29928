//! Counts per minute of many functions, as in Microsoft's public traces of Azure Functions (Shahrad et al., ATC '20).
//!
//! CSV: the header `HashOwner,HashApp,HashFunction,Trigger,1,2,…,1440`, then a line for each function. The busiest functions
//! go to the models in turn, as Clockwork has it (§6.5). A minute's count comes spread at random over that minute: a Poisson
//! process of which it is known how often it came.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

use crate::random::Stream;
use crate::replay::{Line, ReplayError, TASKS_MAX, Task};

/// What the header of such a file begins with.
pub(crate) const FIRST_COLUMN: &str = "HashOwner";
/// Columns before the first minute's.
pub(crate) const NAMES: usize = 4;
const MINUTE_NS: f64 = 60e9;

/// Which minutes of a file of counts are replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Deserialize)]
#[serde(from = "(u32, u32)")]
pub struct Minutes {
    /// The first one, counted from 0.
    pub first: u32,
    /// How many.
    pub count: u32,
}

impl From<(u32, u32)> for Minutes {
    fn from((first, count): (u32, u32)) -> Self {
        Self { first, count }
    }
}

impl FromStr for Minutes {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split_once(':').and_then(|(first, count)| {
            Some(Self { first: first.parse().ok()?, count: count.parse().ok()? })
        });
        parts.ok_or("write FIRST:COUNT, for example 600:60, minutes counted from 0")
    }
}

/// Tasks of each minute.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Counts {
    /// Of each minute: models and how many tasks each has.
    minutes: Vec<Vec<(u32, u32)>>,
    tasks: usize,
}

impl Counts {
    pub(crate) fn tasks(&self) -> usize {
        self.tasks
    }

    pub(crate) fn lap_ns(&self) -> f64 {
        self.minutes.len() as f64 * MINUTE_NS
    }

    /// Adds each model's tasks to its place.
    pub(crate) fn add_to(&self, tasks: &mut [f64]) {
        for &(model, count) in self.minutes.iter().flatten() {
            tasks[model as usize] += f64::from(count);
        }
    }

    /// Draws the tasks of the first minute from `minute` on that has any, and returns which that is. Minutes are counted on from
    /// lap to lap, and so is the tasks' time.
    pub(crate) fn draw(&self, minute: u64, stream: &mut Stream, tasks: &mut Vec<Task>) -> u64 {
        let of = |minute: u64| &self.minutes[(minute % self.minutes.len() as u64) as usize];
        let is_some = |&minute: &u64| !of(minute).is_empty();
        let minute = (minute..).find(is_some).expect("a file without tasks is refused");
        tasks.clear();
        for &(model, count) in of(minute) {
            tasks.extend((0..count).map(|_| {
                let after_ns = (minute as f64 + stream.unit()) * MINUTE_NS;
                Task { after_ns, model: Some(model), slo: None }
            }));
        }
        tasks.sort_by(|a, b| a.after_ns.total_cmp(&b.after_ns));
        minute
    }
}

/// The functions read so far.
pub(crate) struct CountRows {
    /// Minutes that the header names.
    columns: usize,
    minutes: Minutes,
    functions: Vec<Function>,
}

/// One function: in which of the minutes it runs, and how often; how often in all of them.
struct Function {
    counts: Vec<(u32, u32)>,
    total: u64,
}

impl CountRows {
    /// Begins with the header.
    pub(crate) fn new(
        line: Line,
        fields: &[&str],
        minutes: Option<Minutes>,
    ) -> Result<Self, ReplayError> {
        let columns = fields.len().saturating_sub(NAMES);
        let minutes = minutes.unwrap_or(Minutes { first: 0, count: columns as u32 });
        let end = u64::from(minutes.first) + u64::from(minutes.count);
        if minutes.count == 0 || end > columns as u64 {
            return Err(ReplayError::Minutes { line, columns, minutes });
        }
        Ok(Self { columns, minutes, functions: Vec::new() })
    }

    /// `line` says where the row is.
    pub(crate) fn add(
        &mut self,
        fields: &[&str],
        line: impl Fn() -> Line,
    ) -> Result<(), ReplayError> {
        if fields.len() != NAMES + self.columns {
            let expected = NAMES + self.columns;
            return Err(ReplayError::Columns { line: line(), fields: fields.len(), expected });
        }
        let first = NAMES + self.minutes.first as usize;
        let mut function = Function { counts: Vec::new(), total: 0 };
        for (minute, text) in (0..).zip(&fields[first..first + self.minutes.count as usize]) {
            let count = text.parse().ok().filter(|&count: &u32| count as usize <= TASKS_MAX);
            let refused = || ReplayError::Count { line: line(), text: (*text).to_owned() };
            let count = count.ok_or_else(refused)?;
            if count > 0 {
                function.counts.push((minute, count));
            }
            function.total += u64::from(count);
        }
        self.functions.push(function);
        Ok(())
    }

    /// Gives the functions to models: the busiest to the first of `turns`, the next to the second, and round.
    pub(crate) fn finish(mut self, path: &Path, turns: &[u32]) -> Result<Counts, ReplayError> {
        self.functions.sort_by_key(|function| std::cmp::Reverse(function.total));
        let mut minutes = vec![BTreeMap::<u32, u64>::new(); self.minutes.count as usize];
        for (function, &model) in self.functions.iter().zip(turns.iter().cycle()) {
            for &(minute, count) in &function.counts {
                *minutes[minute as usize].entry(model).or_default() += u64::from(count);
            }
        }
        let most = minutes.iter().map(|counts| counts.values().sum::<u64>()).max();
        match most.unwrap_or_default() {
            0 => return Err(ReplayError::Empty { path: path.to_owned() }),
            most if most > TASKS_MAX as u64 => {
                return Err(ReplayError::FullMinute { path: path.to_owned(), most });
            }
            _ => {}
        }
        let narrow = |counts: BTreeMap<u32, u64>| -> Vec<(u32, u32)> {
            counts.into_iter().map(|(model, count)| (model, count as u32)).collect()
        };
        let minutes: Vec<_> = minutes.into_iter().map(narrow).collect();
        let tasks = minutes.iter().flatten().map(|&(_, count)| count as usize).sum();
        Ok(Counts { minutes, tasks })
    }
}

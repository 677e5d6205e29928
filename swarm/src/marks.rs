//! Which branches the runs have reached. A swarm that finds nothing says something only about those.
//!
//! Every counter of every process is a mark: each counts what a branch of its own decides. A few states that no counter
//! shows are marked by the run. A mark is reached once it counts anything in some run.

use std::collections::BTreeMap;

/// A mark: the kind of process, and what it counts.
pub type Mark = (&'static str, &'static str);

/// Counters that no run can reach, and why.
pub const UNREACHABLE: &[(Mark, &str)] = &[];

/// States that a run marks by itself.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct States {
    /// A client had more tasks outstanding than it submits again in one pass when its scheduler went.
    pub(crate) scheduler_lost_under_hundreds: bool,
    /// A model moved to another ModelThread while tasks waited there.
    pub(crate) model_moved_under_load: bool,
    /// Load was offered for longer than rates are measured over.
    pub(crate) longer_than_a_rate_window: bool,
}

impl States {
    pub(crate) fn pairs(self) -> [(&'static str, u64); 3] {
        [
            ("scheduler_lost_under_hundreds", u64::from(self.scheduler_lost_under_hundreds)),
            ("model_moved_under_load", u64::from(self.model_moved_under_load)),
            ("longer_than_a_rate_window", u64::from(self.longer_than_a_rate_window)),
        ]
    }
}

/// For each mark, in how many runs it was reached.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Marks(BTreeMap<Mark, u64>);

impl Marks {
    /// Notes what one process of a run has counted.
    pub(crate) fn note(
        &mut self,
        process: &'static str,
        pairs: impl IntoIterator<Item = (&'static str, u64)>,
    ) {
        for (name, value) in pairs {
            let reached = self.0.entry((process, name)).or_default();
            *reached |= u64::from(value > 0);
        }
    }

    /// Adds those of another run.
    pub(crate) fn add(&mut self, run: &Self) {
        for (&mark, runs) in &run.0 {
            *self.0.entry(mark).or_default() += runs;
        }
    }

    /// Every mark with the number of runs that have reached it, as `process.name`.
    pub fn by_name(&self) -> BTreeMap<String, u64> {
        let name = |&(process, name): &Mark| format!("{process}.{name}");
        self.0.iter().map(|(mark, runs)| (name(mark), *runs)).collect()
    }

    /// How many marks there are, and how many of them some run has reached.
    pub fn count(&self) -> (usize, usize) {
        (self.0.len(), self.0.values().filter(|runs| **runs > 0).count())
    }

    /// The marks that some run should have reached and none has.
    pub fn missed(&self) -> Vec<String> {
        let is_excused = |mark: &Mark| UNREACHABLE.iter().any(|(excused, _)| excused == mark);
        let missed = self.0.iter().filter(|(mark, runs)| **runs == 0 && !is_excused(mark));
        missed.map(|((process, name), _)| format!("{process}.{name}")).collect()
    }
}

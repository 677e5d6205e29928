//! What a LOAD for tasks to come costs those that wait for theirs.
//!
//! A model whose tasks cannot wait for a LOAD is loaded before they come. It takes the loader from the cold tasks that come
//! meanwhile, and memory from its victims. Of what comes for victims whose tasks cannot wait either all is lost, of what comes
//! for the others as much as of the cold tasks of the last seconds that could have waited.

use alloc::boxed::Box;
use alloc::vec;

use super::worth::{SPAN, Worth};
use super::{LoadState, Rule};
use baton_types::{ModelId, Nanos};

/// Tasks of cold models that could wait for a LOAD.
const CAME: ModelId = ModelId(0);
/// Those for which one was planned.
const SAVED: ModelId = ModelId(1);
/// Parts of tasks that are lost are counted in these.
const PARTS: u64 = 1024;

/// See the module documentation.
#[derive(Clone, Debug)]
pub(super) struct ColdTasks {
    counts: Worth,
    /// How long a task of each model could wait that came when none waited.
    patience: Box<[Nanos]>,
}

impl ColdTasks {
    pub(super) fn new(models: usize) -> Self {
        Self { counts: Worth::new(2), patience: vec![Nanos::ZERO; models].into_boxed_slice() }
    }

    /// A task came when none waited, and its execution may begin so much later.
    pub(super) fn came(&mut self, model: ModelId, patience: Nanos) {
        self.patience[model.0 as usize] = patience;
    }

    /// The model's number is another's now.
    pub(super) fn forget(&mut self, model: ModelId) {
        self.patience[model.0 as usize] = Nanos::ZERO;
    }

    /// Whether tasks of the model can wait for a LOAD that takes so long.
    pub(super) fn can_wait(&self, model: ModelId, load: Nanos) -> bool {
        self.patience[model.0 as usize] >= load
    }

    /// Tasks came, these of a cold model, and they can wait. Zero makes the former ones count less.
    pub(super) fn count(&mut self, now: Nanos, tasks: u32) {
        self.counts.add(now, CAME, tasks);
    }

    /// A LOAD was planned for these tasks.
    pub(super) fn save(&mut self, now: Nanos, tasks: u32) {
        self.counts.add(now, SAVED, tasks);
    }

    /// Of tasks that are worth so much, what is lost if their model is cold.
    fn lost_of(&self, worth: u64) -> u64 {
        let (came, saved) = (self.counts.sum(CAME), self.counts.sum(SAVED));
        let unit = (came / PARTS).max(1);
        (worth / PARTS).saturating_mul(came.saturating_sub(saved) / unit)
    }
}

impl LoadState {
    /// What others lose by a LOAD of the cold model in place of the victims that were chosen.
    pub(super) fn lost_to_load(&self, model: ModelId) -> u64 {
        let Rule::Baton(pool) = &self.rule else { return 0 };
        let come = self.worth.tasks(pool.cold_tasks.counts.sum_in_tasks(CAME));
        let meanwhile = (come / (SPAN.0 >> 16)).saturating_mul(self.load_time(model).0 >> 16);
        let can_wait = |victim| pool.cold_tasks.can_wait(victim, self.load_time(victim));
        let lost = self.victims.iter().map(|&victim| {
            let share = self.worth.of(victim) / u64::from(self.memory.copies(victim).max(1));
            if can_wait(victim) { pool.cold_tasks.lost_of(share) } else { share }
        });
        lost.sum::<u64>() + meanwhile / self.memory.loaders()
    }
}

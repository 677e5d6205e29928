//! What LoadState and those around it tell each other.

use crate::candidate::Gpu;
use baton_types::{ModelId, Nanos};

/// How much of everything there may be, which fixes the memory; and the rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoadLimits {
    /// GPU slot numbers: `0..gpus`.
    pub gpus: u32,
    /// Slots that may hold one model.
    pub copies: u32,
    /// Models that one slot may hold.
    pub residents: u32,
    /// What is loaded, and what leaves.
    pub rule: LoadRule,
    /// A slot gets another LOAD while those that it has take less than this. Zero: when it has none.
    pub outstanding: Nanos,
}

/// What is loaded, and what leaves for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadRule {
    /// What [`LoadState::load`](crate::LoadState::load) says; the least recently used leaves.
    Commanded,
    /// The model whose demand exceeds most what its slots can give it (Clockwork §5.3); the least recently used leaves.
    Clockwork,
    /// What makes most tasks in time; what has the least demand per copy leaves.
    Baton,
}

/// Why something is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadReason {
    /// Tasks wait for the model, and no slot has it.
    Waiting,
    /// Tasks of the model come that cannot wait for a LOAD: those to come find it there.
    Expected,
    /// The slot has less to do than another one that has the model.
    Busy,
    /// The model loses tasks, and the slot has time.
    Losing,
    /// The model has the highest priority (Clockwork §5.3).
    Priority,
    /// [`LoadState::load`](crate::LoadState::load) says so.
    Commanded,
}

/// What a model takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Weights {
    /// Pages of a slot's memory, at least one.
    pub pages: u32,
    /// How long a LOAD takes until one is measured.
    pub load: Nanos,
    /// That is a guess, and the first measurement replaces it.
    pub is_guess: bool,
    /// ℓ(1).
    pub alone: Nanos,
}

/// An action for a slot's loader. It begins within [`earliest`, `latest`] or not at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load<'a> {
    /// What to load.
    pub model: ModelId,
    /// Where.
    pub gpu: Gpu,
    /// It does not begin before.
    pub earliest: Nanos,
    /// It does not begin after.
    pub latest: Nanos,
    /// How long it should take.
    pub latency: Nanos,
    /// When the weights should be there, behind the LOADs that the slot has.
    pub until: Nanos,
    /// Why.
    pub reason: LoadReason,
    /// Models of the slot that leave for it at once: UNLOAD and LOAD are one step.
    pub victims: &'a [ModelId],
}

/// What became of a LOAD. There is exactly one for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoadDone {
    /// What was to be loaded.
    pub model: ModelId,
    /// Where.
    pub gpu: Gpu,
    /// Whether it is there.
    pub outcome: LoadOutcome,
}

/// How a LOAD ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadOutcome {
    /// The weights are there; the copy took this long.
    Loaded {
        /// As measured.
        took: Nanos,
    },
    /// Its window closed before it could begin.
    Late,
    /// There were too few free pages.
    NoPages,
    /// The copy failed.
    Failed,
}

/// When batches of a model could start, wherever that is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readiness {
    /// Some slot holds it.
    Resident,
    /// It is being loaded, and is there by then.
    Loading {
        /// As planned.
        until: Nanos,
    },
    /// It would have to be loaded, which takes this long.
    Cold {
        /// As measured.
        load: Nanos,
    },
}

/// Receives what LoadState decides.
pub trait LoadSink {
    /// A LOAD for a slot.
    fn load(&mut self, load: &Load<'_>);
    /// Where a model is has changed.
    fn readiness(&mut self, model: ModelId, readiness: Readiness);
}

/// What LoadState counted since start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LoadCounters {
    /// LOADs planned.
    pub loads: u64,
    /// Of these, those that could not begin in time.
    pub late: u64,
    /// Those that found too few pages, or failed.
    pub failed: u64,
    /// Those that ended well.
    pub loaded: u64,
    /// Models that left for others.
    pub evicted: u64,
    /// LOADs of models that were elsewhere already.
    pub copied: u64,
}

impl LoadCounters {
    pub(super) fn count(&mut self, outcome: LoadOutcome) {
        match outcome {
            LoadOutcome::Loaded { .. } => self.loaded += 1,
            LoadOutcome::Late => self.late += 1,
            LoadOutcome::NoPages | LoadOutcome::Failed => self.failed += 1,
        }
    }
}

//! Why a file is no scenario.

use std::path::PathBuf;

use baton_core::ProfileError;
use baton_topo::{Problem, VariantsProblem};

use crate::replay::ReplayError;

/// Why a file is no scenario.
#[derive(thiserror::Error, Debug)]
pub enum ScenarioError {
    /// The file could not be read.
    #[error("{}: {error}", path.display())]
    Unreadable {
        /// As given.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A mistake, with its place in the file.
    #[error("{0}")]
    InFile(Problem),
    /// The cluster file that is to be simulated is none.
    #[error("the cluster file cannot be used:\n{}", Problem::lines(.0))]
    Cluster(Vec<Problem>),
    /// A cluster file leaves open what a run needs.
    #[error("{}: {what}; fix: {fix}", file.display())]
    NotSimulated {
        /// The cluster file.
        file: PathBuf,
        /// What is missing.
        what: String,
        /// What to do.
        fix: &'static str,
    },
    /// Not TOML, an unknown key, or a value of the wrong kind.
    #[error("the scenario file cannot be read: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A number outside of what can be simulated.
    #[error("{key} = {value}: give a number from {min} to {max}")]
    Range {
        /// The key in the file.
        key: String,
        /// Its value.
        value: f64,
        /// Smallest permitted value.
        min: f64,
        /// Largest permitted value.
        max: f64,
    },
    /// Neither `zoo` nor a `[[model]]`, or none passes `zoo_filter`.
    #[error("no model: name a zoo (\"1080ti\", \"a100\" or \"clockwork\") or add a [[model]]")]
    NoModel,
    /// `zoo_filter` filters nothing.
    #[error("zoo_filter has no effect without zoo: remove it or name a zoo")]
    FilterWithoutZoo,
    /// A shape whose factors are zero throughout.
    #[error("{key}: nothing arrives in the measured span; give a factor above 0 there")]
    Silence {
        /// The key in the file.
        key: String,
    },
    /// The file of a replay.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// A slot that is lost while it is absent, or joins while it is there.
    #[error("gpu_event at {at_s} s: slot {gpu} is in that state already")]
    GpuEvent {
        /// The event's time, seconds.
        at_s: f64,
        /// The slot.
        gpu: u32,
    },
    /// A key that means nothing beside a replay.
    #[error("{key} has no effect on a replay that says it all: remove it")]
    ReplaySays {
        /// The key in the file.
        key: String,
    },
    /// The sub-clusters do not share out the scenario's slots.
    #[error("the [[subcluster]] have {sum} GPUs together, and gpus = {gpus}: make them the same")]
    SubclusterGpus {
        /// Theirs.
        sum: u64,
        /// The scenario's.
        gpus: u32,
    },
    /// Two models go by one name.
    #[error("there are two models named \"{name}\": rename one")]
    ModelTwice {
        /// The name, of a copy with its number.
        name: String,
        /// Which `[[model]]` has it first; `None`: the zoo does.
        first: Option<usize>,
        /// Which has it as well.
        second: usize,
    },
    /// Two sub-clusters go by one name.
    #[error("there are two [[subcluster]] named \"{name}\": rename one")]
    SubclusterTwice {
        /// The name.
        name: String,
    },
    /// A model's sub-cluster is none.
    #[error("model {model}: there is no [[subcluster]] named \"{name}\"; add it")]
    Subcluster {
        /// The model.
        model: String,
        /// What it names.
        name: String,
    },
    /// There is memory, and a model that does not say what it takes of it.
    #[error("model {model}: with pages every model needs weights_mb; add it")]
    NoWeights {
        /// The model.
        model: String,
    },
    /// Neither α and β nor a table, or both.
    #[error("model {model}: give either alpha_ms and beta_ms, or latency_ms")]
    Latency {
        /// The model.
        model: String,
    },
    /// A key that means nothing without another, or beside it.
    #[error("{key} has no effect {why}: remove it")]
    NoEffect {
        /// The key in the file.
        key: String,
        /// Why not.
        why: &'static str,
    },
    /// α and β are no latency profile.
    #[error("model {name}: {error}")]
    Profile {
        /// The model.
        name: String,
        /// What is wrong.
        error: ProfileError,
        /// Whether ℓ is a table.
        is_table: bool,
    },
    /// A model that no slot has room for.
    #[error(
        "model {model}: weights_mb = {weights_mb}, and {pages} pages hold {most_mb:.1} MB: give more pages"
    )]
    Weights {
        /// The model.
        model: String,
        /// Its weights.
        weights_mb: f64,
        /// Those of a slot.
        pages: u32,
        /// What they hold.
        most_mb: f64,
    },
    /// The variants of a model are not ordered, or do not belong together.
    #[error("model {model}: [[model.variant]]: {}; {}", problem.what, problem.fix)]
    Variants {
        /// The model.
        model: String,
        /// What is wrong.
        problem: VariantsProblem,
    },
}

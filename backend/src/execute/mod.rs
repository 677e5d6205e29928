//! Executing batches: what an engine is, and how batches reach the thread that runs one.
//!
//! In: input rows, and room for an answer to each. Out: the answers and the measured start and end. One batch at a time
//! per GPU slot; the next is brought near meanwhile. An engine is made on its executor's thread and never leaves it. A model
//! of a running backend is loaded aside, by engines on another thread, and goes to the executor's engines between two batches.

mod aside;
mod blocking;
mod budget;
mod call_order;
mod cuda;
mod delay;
mod emulated;
mod engines;
mod executor;
mod ladder;
mod measure;
mod memory;
mod onnx;
mod rows;
mod start_by;
mod store;
mod thread;
mod trials;

use baton_topo::{ModelSpec, Sha256};
use baton_types::ModelId;

pub use aside::{LoadOrder, Loaded, ModelSource};
pub use blocking::Blocking;
pub use call_order::CallOrder;
pub use cuda::{Cuda, OpenLibrary};
pub use emulated::{Emulated, answer_of, checksum};
pub use engines::{Engines, LooseModel};
pub use executor::{
    BatchBack, BatchEnd, BatchJob, Event, Executor, ExecutorDied, ModelJob, SUBMITTED_MAX,
};
pub(crate) use ladder::{interpolate, ladder, staircase, step};
pub use measure::{Measured, Profiles, Trial, measure};
pub use memory::{BatchMemory, HostMemory};
pub use onnx::{Graphs, Onnx};
pub use rows::{Inputs, Outputs};
pub use start_by::StartBy;
pub use store::HostStore;
pub use thread::{Placing, ThreadExecutor};

/// What executes the models of one GPU slot, on the executor's thread.
///
/// Batches are called for, and come back, as [`Executor`] says, which passes the calls on. An engine that executes on a
/// device implements this; one that executes on its thread is a [`BlockingEngine`], and [`Blocking`] does the rest.
pub trait Engine {
    /// Bytes that a model takes once it is loaded, by its description.
    fn model_bytes(&mut self, model: &ModelSpec) -> u64;

    /// Loads a model and proves that it can execute.
    ///
    /// # Errors
    /// Names the model, its file and the fix. The model is not loaded then.
    fn load(&mut self, model: &ModelSpec) -> Result<(), EngineError>;

    /// Bytes that a loaded model takes, if the engine has measured that.
    fn taken_bytes(&self, _: ModelId) -> Option<u64> {
        None
    }

    /// Gives a model's memory back. Nothing happens if it is not loaded.
    fn unload(&mut self, model: ModelId);

    /// Gives a loaded model away, to another engine of the kind; `None` if it is not loaded.
    fn take(&mut self, model: ModelId) -> Option<LooseModel>;

    /// Takes a model in that such an engine has loaded.
    fn put(&mut self, id: ModelId, model: LooseModel);

    /// Begins to copy a batch's rows to where they are executed, or remembers them.
    fn prepare(&mut self, batch: BatchJob);

    /// A prepared batch executes behind what was submitted before, if it starts by [`BatchJob::start_by`]; otherwise it
    /// comes back expired. Its model may not be loaded: that is an error of the batch.
    fn submit(&mut self, slot: usize);

    /// A prepared batch comes back as soon as its rows are no longer read.
    fn withdraw(&mut self, slot: usize);

    /// The next batch that comes back. A device is asked and not waited for.
    fn poll(&mut self) -> Option<BatchBack>;

    /// Whether to poll it again at once: something was submitted, withdrawn or is being copied.
    fn is_busy(&self) -> bool;

    /// Whether preparing a batch begins anything. If not, the I/O thread keeps what is prepared to itself, and what it
    /// withdraws comes back at once, also while the engine blocks its thread.
    fn copies_ahead(&self) -> bool {
        true
    }

    /// Why nothing can be executed any more, if so: the executor ends once no batch comes back any more.
    fn lost(&self) -> Option<String> {
        None
    }

    /// Where the batches' memory comes from.
    fn memory(&self) -> Box<dyn BatchMemory> {
        Box::new(HostMemory)
    }
}

/// An engine that executes on its caller's thread.
pub trait BlockingEngine {
    /// See [`Engine::model_bytes`].
    fn model_bytes(&mut self, model: &ModelSpec) -> u64;

    /// See [`Engine::load`].
    ///
    /// # Errors
    /// See there.
    fn load(&mut self, model: &ModelSpec) -> Result<(), EngineError>;

    /// See [`Engine::unload`].
    fn unload(&mut self, model: ModelId) {
        self.take(model);
    }

    /// See [`Engine::take`].
    fn take(&mut self, model: ModelId) -> Option<LooseModel>;

    /// See [`Engine::put`].
    fn put(&mut self, id: ModelId, model: LooseModel);

    /// Executes a batch of `model` with this variant: 0 if it has none. Each row gets an answer in `outputs`, which has room for as many, or a reason
    /// why it has none. Blocks for as long as that takes.
    ///
    /// # Errors
    /// The batch has no answers; the engine remains usable.
    fn execute(
        &mut self,
        model: ModelId,
        variant: u16,
        inputs: Inputs<'_>,
        outputs: &mut Outputs,
    ) -> Result<(), EngineError>;
}

/// Why an engine could not load or execute.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EngineError {
    /// A library the engine needs is not there.
    #[error("the {engine} engine cannot start: {problem}; {fix}")]
    Library {
        /// Which engine.
        engine: &'static str,
        /// What is missing.
        problem: String,
        /// What to do.
        fix: &'static str,
    },
    /// A model cannot be loaded.
    #[error("model `{model}` ({file}): {problem}; {fix}")]
    Load {
        /// The model.
        model: String,
        /// Its file.
        file: String,
        /// What is wrong.
        problem: String,
        /// What to do.
        fix: String,
    },
    /// A model's file cannot be read.
    #[error(
        "model `{model}` ({file}): the file cannot be read: {problem}; put it there, readable, on a disk that is sound"
    )]
    Unreadable {
        /// The model.
        model: String,
        /// Its file.
        file: String,
        /// The system's message.
        problem: String,
    },
    /// A model's file is another one than its table says.
    #[error(
        "model `{model}` ({file}): its SHA-256 is {found}, and that of the model is {expected}; copy the right file to this host"
    )]
    Different {
        /// The model.
        model: String,
        /// Its file.
        file: String,
        /// That of the model's table.
        expected: Sha256,
        /// The file's.
        found: Sha256,
    },
    /// Loading a model does not end.
    #[error(
        "a model's copy does not end; another thread loads from now on; see whether the model's file can be read, and restart \
         this backend to get the memory of that copy back"
    )]
    Hung,
    /// A model does not fit beside the others.
    #[error(
        "model `{model}` takes {needs} MiB of memory, and {free} MiB are free; raise model_memory_mib of its [[backend]], or \
         serve fewer or smaller models",
        needs = needs_bytes.div_ceil(1 << 20),
        free = free_bytes >> 20
    )]
    Memory {
        /// The model.
        model: String,
        /// What it takes.
        needs_bytes: u64,
        /// What the GPU slot's other models leave of its memory for models.
        free_bytes: u64,
    },
    /// The table of a model that was added does not describe one.
    #[error("model `{model}`: {problem}")]
    Table {
        /// The model.
        model: String,
        /// What is wrong with the table, and the fix.
        problem: String,
    },
    /// A batch failed.
    #[error("model {}: executing a batch of {batch} failed: {problem}", model.0)]
    Execute {
        /// The model.
        model: ModelId,
        /// Rows of the batch.
        batch: u32,
        /// The engine's message.
        problem: String,
    },
}

impl EngineError {
    /// The model whose batch failed.
    pub(crate) fn model(&self) -> Option<ModelId> {
        match self {
            Self::Execute { model, .. } => Some(*model),
            _ => None,
        }
    }
}

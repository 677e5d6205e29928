//! Executing batches: what an engine is, and how batches reach the thread that runs one.
//!
//! In: input rows, and room for an answer to each. Out: the answers and the measured start and end. One batch at a time
//! per GPU slot. An engine is made on its executor's thread and never leaves it. A model of a running backend is loaded
//! aside, by engines on another thread, and goes to the executor's engines between two jobs.

mod aside;
mod delay;
mod emulated;
mod engines;
mod measure;
mod onnx;
mod rows;
mod thread;

use baton_core::{ModelId, Nanos};
use baton_rdma::RowsRef;
use baton_topo::ModelSpec;

pub use aside::{LoadOrder, Loaded, ModelSource};
pub use emulated::{Emulated, checksum};
pub use engines::Engines;
pub use measure::measure;
pub use onnx::Onnx;
pub use rows::{Inputs, Outputs};
pub use thread::{Measured, Placing, ThreadExecutor};

/// Something that executes models.
pub trait Engine {
    /// Loads a model and proves that it can execute.
    ///
    /// # Errors
    /// Names the model, its file and the fix. The model is not loaded then.
    fn load(&mut self, model: &ModelSpec) -> Result<(), EngineError>;

    /// Gives a model's memory back. Nothing happens if it is not loaded.
    fn unload(&mut self, model: ModelId);

    /// Executes a batch of `model`. Each row gets an answer in `outputs`, which has room for as many, or a reason
    /// why it has none. Blocks for as long as that takes.
    ///
    /// # Errors
    /// The batch has no answers; the engine remains usable.
    fn execute(
        &mut self,
        model: ModelId,
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

/// What an executor is to do.
#[derive(Debug)]
pub enum Job {
    /// Execute a batch.
    Infer(BatchJob),
    /// Load a model. One that is loaded is loaded anew.
    Load(ModelId),
    /// Give a model's memory back.
    Unload(ModelId),
    /// Take in the model that was loaded aside. Cannot fail.
    Install(ModelId),
    /// Forget a model: it is unloaded, and its number may mean another one. Cannot fail.
    Remove(ModelId),
}

/// A batch on its way to an executor.
#[derive(Debug)]
pub struct BatchJob {
    /// The batch slot it came from; returned in [`BatchDone`].
    pub slot: usize,
    /// The model.
    pub model: ModelId,
    /// The inputs. Dropped before the job is reported done, so that the rows can be filled again.
    pub rows: RowsRef,
    /// From one row's beginning to the next's, bytes.
    pub stride: u32,
    /// How long each row is; at least one row.
    pub lens: Vec<u32>,
    /// Room for an answer to each row.
    pub outputs: Outputs,
}

impl BatchJob {
    /// Its rows.
    pub fn inputs(&self) -> Inputs<'_> {
        Inputs::new(&self.rows, self.stride, &self.lens)
    }
}

/// A batch that came back.
#[derive(Debug)]
pub struct BatchDone {
    /// From the [`BatchJob`].
    pub slot: usize,
    /// From the [`BatchJob`], to be used again.
    pub lens: Vec<u32>,
    /// From the [`BatchJob`], filled if it was executed.
    pub outputs: Outputs,
}

/// A job that came back.
#[derive(Debug)]
pub struct JobDone {
    /// The batch; `None` for every other job.
    pub batch: Option<BatchDone>,
    /// Measured start.
    pub started: Nanos,
    /// Measured end.
    pub finished: Nanos,
    /// How it went.
    pub result: Result<(), EngineError>,
}

/// The executor's thread has died, so the GPU slot can no longer execute.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the executor's thread has died")]
pub struct ExecutorDied;

/// The I/O thread's side of a GPU slot's executor. Holds at most one job.
pub trait Executor {
    /// Hands over a job. Call only while the previous one, if any, has come back.
    ///
    /// # Errors
    /// The executor's thread has died.
    fn submit(&mut self, job: Job) -> Result<(), ExecutorDied>;

    /// Takes the finished job, if it has come back.
    ///
    /// # Errors
    /// The executor's thread has died.
    fn poll(&mut self) -> Result<Option<JobDone>, ExecutorDied>;

    /// Begins to load a model beside the jobs, which do not wait for it. Call only while no other model is loaded aside.
    /// What [`Executor::poll_loaded`] returns then is how it went.
    fn load_aside(&mut self, order: LoadOrder);

    /// How the loading went, once it has ended: the model waits for [`Job::Install`].
    fn poll_loaded(&mut self) -> Option<Result<Loaded, EngineError>>;

    /// Gives up the model that was loaded aside and is not installed, if there is one.
    fn discard(&mut self);
}

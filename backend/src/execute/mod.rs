//! Executing batches: what an engine is, and how batches reach the thread that runs one.
//!
//! In: contiguous input rows and a place for as many output rows. Out: the outputs and the measured
//! start and end. One batch at a time per GPU slot. An engine is made on its executor's thread and
//! never leaves it, because device contexts and runtimes are bound to threads.

mod delay;
mod emulated;
mod engines;
mod measure;
mod onnx;
mod thread;

use baton_core::{ModelId, Nanos};
use baton_rdma::RowsRef;
use baton_topo::ModelSpec;

pub use emulated::{Emulated, checksum};
pub use engines::Engines;
pub use measure::measure;
pub use onnx::Onnx;
pub use thread::{Measured, Placing, ThreadExecutor};

/// Something that executes models.
pub trait Engine {
    /// Loads `models` and proves that each can execute.
    ///
    /// # Errors
    /// Names the model, its file and the fix. Nothing is served then.
    fn load(&mut self, models: &[ModelSpec]) -> Result<(), EngineError>;

    /// Executes `batch` rows of `model`: `rows` holds `batch · input_bytes`, `outputs` exactly
    /// `batch · output_bytes`. Blocks for as long as that takes.
    ///
    /// # Errors
    /// The batch has no answers; the engine remains usable.
    fn execute(
        &mut self,
        model: ModelId,
        rows: &[u8],
        batch: u32,
        outputs: &mut [u8],
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

/// A batch on its way to an executor.
#[derive(Debug)]
pub struct Job {
    /// The batch slot it came from; returned in [`JobDone`].
    pub slot: usize,
    /// The model.
    pub model: ModelId,
    /// Rows, at least 1.
    pub batch: u32,
    /// The inputs, `batch` rows. Dropped before the job is reported done, so that the rows can be
    /// filled again.
    pub rows: RowsRef,
    /// Room for the outputs: exactly `batch` rows.
    pub outputs: Vec<u8>,
}

/// A batch that came back.
#[derive(Debug)]
pub struct JobDone {
    /// From the [`Job`].
    pub slot: usize,
    /// From the [`Job`], filled if `result` is `Ok`.
    pub outputs: Vec<u8>,
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
}

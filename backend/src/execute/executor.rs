//! The I/O thread's side of a GPU slot: what it may ask of an executor, and what comes back.

use baton_rdma::RowsRef;
use baton_types::{ModelId, Nanos};

use super::{BatchMemory, EngineError, Inputs, LoadOrder, Loaded, Outputs, StartBy};

/// Batches that may be submitted and not returned: the one that executes, and one behind it so that the executor need not
/// wait for the I/O thread between two. More would commit tasks that the scheduler could still take back.
pub const SUBMITTED_MAX: usize = 2;

/// A batch on its way to an executor.
#[derive(Debug)]
pub struct BatchJob {
    /// The batch slot it came from: its name in every later call, and in [`BatchBack`].
    pub slot: usize,
    /// The model.
    pub model: ModelId,
    /// The inputs. Dropped before the batch comes back, so that the rows can be filled again.
    pub rows: RowsRef,
    /// From one row's beginning to the next's, bytes.
    pub stride: u32,
    /// How long each row is; at least one row.
    pub lens: Vec<u32>,
    /// Room for an answer to each row.
    pub outputs: Outputs,
    /// By when which variant must start, on this process's clock. It comes back [`BatchEnd::Expired`] if it is too late for all.
    pub start_by: StartBy,
}

impl BatchJob {
    /// Its rows.
    pub fn inputs(&self) -> Inputs<'_> {
        Inputs::new(&self.rows, self.stride, &self.lens)
    }

    /// Gives the rows back, and everything else with how it ended.
    pub fn end(self, end: BatchEnd) -> BatchBack {
        let Self { slot, lens, outputs, .. } = self;
        BatchBack { slot, lens, outputs, end }
    }
}

/// A batch that came back: its rows can be filled again.
#[derive(Debug)]
pub struct BatchBack {
    /// From the [`BatchJob`].
    pub slot: usize,
    /// From the [`BatchJob`], to be used again.
    pub lens: Vec<u32>,
    /// From the [`BatchJob`], filled if it was executed.
    pub outputs: Outputs,
    /// What became of it.
    pub end: BatchEnd,
}

/// What became of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BatchEnd {
    /// It was executed.
    Executed {
        /// The variant that was.
        variant: u16,
        /// Measured start.
        started: Nanos,
        /// Measured end.
        finished: Nanos,
        /// How it went.
        result: Result<(), EngineError>,
    },
    /// It was its turn after [`BatchJob::start_by`]: nothing was executed.
    Expired,
    /// It was withdrawn: nothing was executed.
    Withdrawn,
}

/// What an executor is to do with a model, between batches. It cannot fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModelJob {
    /// Take in the model that was loaded aside.
    Install(ModelId),
    /// Forget a model: it is unloaded, and its number may mean another one.
    Remove(ModelId),
}

/// What comes back from an executor.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one is moved at a time, nearly always a batch")]
pub enum Event {
    /// A batch: once for each [`Executor::prepare`].
    Batch(BatchBack),
    /// The [`ModelJob`] is done.
    Job,
}

/// The executor's thread has died, so the GPU slot can no longer execute.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the executor's thread has died")]
pub struct ExecutorDied;

/// The I/O thread's side of a GPU slot's executor.
///
/// ```text
///            prepare             submit                        executed, or expired
///   the I/O ─────────▶ prepared ────────▶ submitted (at most 2) ─────────┐
///   thread's   ▲           └───────────▶ being withdrawn ──withdrawn──┐  │
///              └──────────────────────── poll ◀───────────────────────┴──┘
/// ```
/// A batch is named by its batch slot. From `prepare` on its rows, lengths and outputs are the executor's; they are the I/O
/// thread's again when [`Event::Batch`] has come, once for each `prepare` and by `poll` alone. What was submitted comes
/// back in the order in which it was submitted. What was only prepared stays until it is submitted or withdrawn.
///
/// Nothing says that a batch *is* near: it may be submitted at once, and the executor starts it when it is. An event would
/// cost the I/O thread a wake-up that it has no use for, because the rows come back with the batch.
///
/// A [`ModelJob`] runs alone: while nothing is submitted, and nothing is submitted before it is done. It does not
/// touch what is prepared, so a batch may be prepared before its model is taken in and submitted after.
///
/// An executor that dies takes with it whatever has not come back. `poll` says so, behind what had come back before. Until then it
/// takes orders, of which nothing comes.
///
/// [`CallOrder`](super::CallOrder) checks all of this.
pub trait Executor {
    /// A batch whose rows have landed: an executor with a memory of its own copies them there, while others execute.
    fn prepare(&mut self, batch: BatchJob);

    /// A prepared batch executes next, behind what was submitted before. Cannot be undone: submit only what will start in
    /// time.
    fn submit(&mut self, slot: usize);

    /// A prepared batch is not to be executed. It comes back [`BatchEnd::Withdrawn`] once its rows are no longer read: at the
    /// next poll if nothing was copied, after the copy otherwise.
    fn withdraw(&mut self, slot: usize);

    /// Hands over what is to be done with a model.
    fn perform(&mut self, job: ModelJob);

    /// Takes what has come back next.
    ///
    /// # Errors
    /// The executor's thread has died, and nothing more will come back.
    fn poll(&mut self) -> Result<Option<Event>, ExecutorDied>;

    /// Where the memory of batches comes from.
    fn memory(&self) -> &dyn BatchMemory;

    /// Begins to load a model beside the batches, which do not wait for it. Call only while no other model is being
    /// loaded. What [`Executor::poll_loaded`] returns then is how it went.
    fn load_aside(&mut self, order: LoadOrder);

    /// How the loading went, once it has ended: the model waits for [`ModelJob::Install`].
    fn poll_loaded(&mut self) -> Option<Result<Loaded, EngineError>>;

    /// What loads hangs: it is left to itself, with all that it has, and another loads from now on. What it still has to say
    /// of a model goes unheard.
    ///
    /// # Errors
    /// There is no other.
    fn replace_loader(&mut self) -> Result<(), ExecutorDied>;

    /// Gives up a model that was loaded aside and is not installed.
    fn discard(&mut self, model: ModelId);

    /// The model was removed: its files need not be in the host's memory any more. Nothing happens if there are none.
    fn drop_files(&mut self, _model: ModelId) {}
}

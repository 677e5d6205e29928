//! How a task ended, as the application sees it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use baton_rdma::OutputRef;
use baton_topo::per_cent;
use baton_topo::signature::Signature;
use baton_types::{DropReason, FailReason, GpuId, Nanos};

use crate::view::{Element, ViewError, view};

/// The one outcome every submitted task has.
#[derive(Debug)]
#[must_use]
pub enum Outcome {
    /// The model's answer, in time or [late](Reply::late).
    Completed(Reply),
    /// Dropped before it was executed. Expected under overload: the task could not have
    /// been answered in time, or its place served others better.
    Dropped(DropReason, EndRecord),
    /// Something broke.
    Failed(FailReason, EndRecord),
}

/// A task without an answer, as an error: see [`Outcome::into_result`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unanswered {
    /// As [`Outcome::Dropped`].
    #[error("the task was dropped ({0})")]
    Dropped(DropReason, EndRecord),
    /// As [`Outcome::Failed`].
    #[error("the task failed ({0})")]
    Failed(FailReason, EndRecord),
}

impl Outcome {
    /// The answer, or why there is none: for `?`.
    ///
    /// # Errors
    /// The task was dropped, or failed.
    pub fn into_result(self) -> Result<Reply, Unanswered> {
        match self {
            Self::Completed(reply) => Ok(reply),
            Self::Dropped(reason, record) => Err(Unanswered::Dropped(reason, record)),
            Self::Failed(reason, record) => Err(Unanswered::Failed(reason, record)),
        }
    }

    /// The outcome with what its ticket knows of the task.
    pub(crate) fn of(self, submitted: Nanos, deadline: Nanos) -> Self {
        let of = |record: EndRecord| EndRecord { submitted, deadline, ..record };
        match self {
            Self::Completed(reply) => {
                let timing = Timing { submitted, deadline, ..reply.timing };
                Self::Completed(Reply { timing, ..reply })
            }
            Self::Dropped(reason, record) => Self::Dropped(reason, of(record)),
            Self::Failed(reason, record) => Self::Failed(reason, of(record)),
        }
    }
}

/// The process that ended a task without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EndedBy {
    /// A ModelThread.
    Scheduler,
    /// A backend.
    Backend,
    /// This client itself, because no other process could.
    Client,
}

/// The moments of a task that ended without an answer, on the client's clock
/// ([`crate::ClientConfig::clock`]). [`Outcome::explain`] puts them into words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndRecord {
    /// When the application submitted.
    pub submitted: Nanos,
    /// When the answer had to be there.
    pub deadline: Nanos,
    /// When the client received or decided the outcome.
    pub ended: Nanos,
    /// The process that ended it.
    pub by: EndedBy,
    /// How often the client had submitted it again, to schedulers that came after the first.
    pub resubmitted: u32,
    /// How long to wait before the next submit to the model, if the scheduler sent it; else zero.
    pub retry_after: Nanos,
}

impl EndRecord {
    /// An end of which `by` speaks at `ended`. What only the ticket knows is added by [`Outcome::of`].
    pub(crate) fn new(ended: Nanos, by: EndedBy, resubmitted: u32) -> Self {
        let (submitted, deadline, retry_after) = (Nanos::ZERO, Nanos::ZERO, Nanos::ZERO);
        Self { submitted, deadline, ended, by, resubmitted, retry_after }
    }
}

/// An answer, in the slot where it landed. Dropping it lets the slot be used again, so keep it only
/// as long as it is read. It stays valid after the client has left.
pub struct Reply {
    output: OutputRef,
    signature: Arc<Signature>,
    /// Of the model; `None` without any.
    variants: Option<Arc<[ModelVariant]>>,
    timing: Timing,
}

/// A variant of a model (`docs/supernets.md`), as the scheduler's catalogue has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelVariant {
    pub(crate) name: String,
    /// 1/100,000.
    pub(crate) accuracy: u32,
    pub(crate) index: u16,
}

impl ModelVariant {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many of its answers are right, in per cent.
    pub fn accuracy(&self) -> f64 {
        per_cent(self.accuracy)
    }

    /// Its place among the model's variants: 0 is the cheapest.
    pub fn index(&self) -> u16 {
        self.index
    }
}

impl Reply {
    pub(crate) fn new(
        output: OutputRef,
        signature: Arc<Signature>,
        variants: Option<Arc<[ModelVariant]>>,
        timing: Timing,
    ) -> Self {
        Self { output, signature, variants, timing }
    }

    /// The variant that answered; `None` if the model has none.
    pub fn variant(&self) -> Option<&ModelVariant> {
        self.variants.as_ref()?.get(usize::from(self.timing.variant))
    }

    /// How many of the answers of the variant that answered are right, in per cent; `None` if the model has no variants.
    pub fn accuracy(&self) -> Option<f64> {
        self.variant().map(ModelVariant::accuracy)
    }

    /// One output row of the model: at most [`crate::ModelHandle::output_bytes`] bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.output
    }

    /// What the model takes and gives.
    pub fn signature(&self) -> &Arc<Signature> {
        &self.signature
    }

    /// The elements of the model's only output, in row-major order: `reply.values::<f32>()`.
    ///
    /// # Errors
    /// The model has several outputs, or elements of another type.
    pub fn values<T: Element>(&self) -> Result<&[T], ViewError> {
        view(&self.signature.output, &self.output, None)
    }

    /// The elements of the output of this name.
    ///
    /// # Errors
    /// There is none of this name, or it has elements of another type.
    pub fn values_of<T: Element>(&self, output: &str) -> Result<&[T], ViewError> {
        view(&self.signature.output, &self.output, Some(output))
    }

    /// [`Reply::values`] of a model that answers with f32.
    ///
    /// # Errors
    /// As [`Reply::values`].
    pub fn as_f32(&self) -> Result<&[f32], ViewError> {
        self.values()
    }

    /// [`Reply::values`] of a model that answers with i64.
    ///
    /// # Errors
    /// As [`Reply::values`].
    pub fn as_i64(&self) -> Result<&[i64], ViewError> {
        self.values()
    }

    /// When it went where.
    pub fn timing(&self) -> &Timing {
        &self.timing
    }

    /// True if no GPU slot held the model's weights when the task came to the scheduler: it waited for a LOAD. Where weights are not
    /// cached, and where the scheduler, the backend or this client is of a build that cannot say it, never.
    pub fn cold(&self) -> bool {
        self.timing.cold
    }

    /// True if the answer landed after its deadline, by this process's clock.
    pub fn late(&self) -> bool {
        self.timing.late()
    }
}

impl Deref for Reply {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.bytes()
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.output.len();
        f.debug_struct("Reply").field("bytes", &bytes).field("timing", &self.timing).finish()
    }
}

/// The moments of a completed task, on the client's clock ([`crate::ClientConfig::clock`]).
/// `started` and `finished` were measured by the backend; converting them costs at most
/// `clock_error`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// When the application submitted.
    pub submitted: Nanos,
    /// When its batch began to execute.
    pub started: Nanos,
    /// When its batch was done.
    pub finished: Nanos,
    /// When the I/O thread saw the answer in its slot.
    pub landed: Nanos,
    /// When the answer had to be there.
    pub deadline: Nanos,
    /// How wrong `started` and `finished` can be against the others. [`Nanos::MAX`]: the scheduler whose clock they were
    /// measured by is no longer known, and they are `landed`.
    pub clock_error: Nanos,
    /// Tasks in its batch.
    pub batch_size: u32,
    /// The GPU slot that executed it.
    pub gpu: GpuId,
    /// The variant of the model that executed it: [`Reply::variant`] says which that is. 0 for a model without any.
    pub variant: u16,
    /// As [`Reply::cold`].
    pub cold: bool,
}

impl Timing {
    /// As [`Reply::late`].
    pub fn late(&self) -> bool {
        self.landed > self.deadline
    }

    /// From submit to answer.
    pub fn latency(&self) -> Duration {
        span(self.submitted, self.landed)
    }

    /// From submit to the start of the execution: queueing, planning and fetching.
    pub fn waited(&self) -> Duration {
        span(self.submitted, self.started)
    }

    /// The execution of its batch.
    pub fn execution(&self) -> Duration {
        span(self.started, self.finished)
    }
}

/// Saturating: a clock error may put a start before its submit.
fn span(from: Nanos, to: Nanos) -> Duration {
    Duration::from_nanos((to - from).0)
}

//! A model as the application sees it: its sizes, and where inputs come from.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use baton_topo::signature::{RowError, Signature, TensorRef, TensorSpec};
use baton_types::Nanos;

use crate::error::InputError;
use crate::input::Input;
use crate::line::{LineFull, Turn};
use crate::outcome::ModelVariant;
use crate::served::{Model, ModelOwner};
use crate::view::{Element, ViewError, tensor};

/// One model of a client. Cheap to clone; any thread may use it.
///
/// A model may be removed while the client is connected. Its handles stay handles of the removed model, also
/// if one of the same name is added later; ask [`crate::Client::model`] for that one. Drop the handles of a
/// removed model: they keep its memory.
#[derive(Clone)]
pub struct ModelHandle {
    of: Arc<ModelOwner>,
}

impl ModelHandle {
    pub(crate) fn new(of: ModelOwner) -> Self {
        Self { of: Arc::new(of) }
    }

    /// Its name in the cluster file.
    pub fn name(&self) -> &str {
        &self.model().name
    }

    /// Its latency objective: the deadline of [`crate::Deadline::Slo`]. An operator may change it.
    pub fn slo(&self) -> Duration {
        Duration::from_nanos(self.model().slo().0)
    }

    /// The tensors that it takes. An emulated model takes bytes.
    pub fn inputs(&self) -> &[TensorSpec] {
        self.model().signature.input.tensors()
    }

    /// The tensors that it gives.
    pub fn outputs(&self) -> &[TensorSpec] {
        self.model().signature.output.tensors()
    }

    /// Both, and how they lie in a slot: for callers that write tensors in place ([`lay_out`](baton_topo::signature::Row::lay_out)).
    pub fn signature(&self) -> &Signature {
        &self.model().signature
    }

    /// Bytes of the longest input row. [`crate::signature::Row`] says how the tensors lie in it; a row of one tensor with
    /// fixed extents is that tensor, row major, little endian.
    pub fn input_bytes(&self) -> usize {
        self.model().input_bytes as usize
    }

    /// Bytes of the longest output row.
    pub fn output_bytes(&self) -> usize {
        self.model().output_bytes as usize
    }

    /// A free slot's input, to be filled in place. It holds whatever its last user left in it.
    ///
    /// # Errors
    /// [`InputError::SlabExhausted`]: the bound on outstanding tasks is met. This is the only
    /// back-pressure there is; wait for a ticket or for [`ModelHandle::input_ready`], or shed load. [`InputError::ModelRemoved`]: the model is
    /// served no more.
    pub fn input(&self) -> Result<Input, InputError> {
        let acquired = if self.is_removed() { None } else { self.model().acquire().ok() };
        let slot = acquired.ok_or_else(|| self.refuse())?;
        Ok(Input::new(Arc::clone(&self.of), slot))
    }

    /// As [`ModelHandle::input`], but waits for a free slot if there is none. Futures that wait get slots in the order in which
    /// they began. [`ModelHandle::input`] does not stand in line, and may take a slot before them. Dropping the future gives its
    /// place up. Any executor may poll it; between two wakes it costs nothing. A reply keeps its slot: a program that holds
    /// as many replies as there are slots waits here for ever.
    ///
    /// # Errors
    /// [`InputError::ModelRemoved`], [`InputError::ClientClosed`], and [`InputError::SlabExhausted`] if 65,536 wait
    /// already.
    pub async fn input_ready(&self) -> Result<Input, InputError> {
        let model = self.model();
        let mut turn = Turn::new(&model.line);
        poll_fn(|context| {
            if self.is_removed() || self.of.session().leaving() {
                return Poll::Ready(Err(self.refuse()));
            }
            let slot = ready!(turn.poll(context.waker(), || model.acquire().ok()));
            Poll::Ready(match slot {
                Ok(slot) => Ok(Input::new(Arc::clone(&self.of), slot)),
                Err(LineFull) => Err(self.refuse()),
            })
        })
        .await
    }

    /// True once the model was removed from the cluster: its handles give no inputs any more. Tasks that were
    /// submitted before have their outcomes as ever.
    pub fn is_removed(&self) -> bool {
        self.model().is_removed()
    }

    /// Why there is no input. A removed model has no free slot, so it is asked last.
    #[cold]
    fn refuse(&self) -> InputError {
        let (session, model) = (self.of.session(), Arc::clone(&self.model().name));
        if self.is_removed() {
            session.counters.model_removed.add(1);
            return InputError::ModelRemoved { model };
        }
        if session.leaving() {
            session.counters.client_closed.add(1);
            return InputError::ClientClosed;
        }
        session.counters.slab_exhausted.add(1);
        InputError::SlabExhausted { model, slots: session.slots_per_model }
    }

    /// An input holding a copy of `bytes`, which are a row.
    ///
    /// # Errors
    /// As [`ModelHandle::input`], and [`InputError::WrongSize`].
    pub fn input_from(&self, bytes: &[u8]) -> Result<Input, InputError> {
        let (expected, got) = (self.input_bytes(), bytes.len());
        if !self.model().signature.input.allows(got) {
            self.of.session().counters.wrong_size.add(1);
            return Err(InputError::WrongSize {
                model: Arc::clone(&self.model().name),
                expected,
                got,
            });
        }
        let mut input = self.input()?;
        input.truncate(got);
        input.copy_from_slice(bytes);
        Ok(input)
    }

    /// An input of these tensors, by their names in any order.
    ///
    /// # Errors
    /// As [`ModelHandle::input`], and [`InputError::Tensors`] if they are not those of [`ModelHandle::inputs`].
    pub fn input_of(&self, tensors: &[(&str, TensorRef<'_>)]) -> Result<Input, InputError> {
        let mut input = self.input()?;
        input.write_tensors(tensors).map_err(|problem| self.wrong(problem))?;
        Ok(input)
    }

    /// One tensor for [`ModelHandle::input_of`]: `model.tensor("ids", &[3], &[7_i64, 8, 9])?`. The shape is without the batch.
    ///
    /// # Errors
    /// The model takes no tensor of this name, or it has elements of another type.
    pub fn tensor<'a, T: Element>(
        &self,
        name: &'a str,
        shape: &[u32],
        values: &'a [T],
    ) -> Result<(&'a str, TensorRef<'a>), ViewError> {
        Ok((name, tensor(&self.model().signature.input, name, shape, values)?))
    }

    /// The tensors of an answer of this model, in the order of [`ModelHandle::outputs`].
    ///
    /// # Errors
    /// The bytes are no answer of this model.
    pub fn tensors_of<'a>(&self, answer: &'a [u8]) -> Result<Vec<TensorRef<'a>>, RowError> {
        self.model().signature.output.unpack(answer)
    }

    #[cold]
    fn wrong(&self, problem: RowError) -> InputError {
        self.of.session().counters.wrong_size.add(1);
        InputError::Tensors { model: Arc::clone(&self.model().name), problem }
    }

    /// Its variants, the cheapest first; empty for a model without any.
    pub fn variants(&self) -> &[ModelVariant] {
        self.model().variants.as_deref().unwrap_or_default()
    }

    /// How long to wait before another submit, after tasks were dropped for `quota` (the scheduler
    /// admits a task then, if no other comes first) or `queue_full` (a place is free then at the latest).
    /// `None` if nothing is known against submitting now.
    ///
    /// The scheduler sends the time with each such outcome, in whole milliseconds; the latest one counts.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after_at(self.of.session().clock.now())
    }

    /// [`ModelHandle::retry_after`] at a moment of the client's clock.
    pub fn retry_after_at(&self, now: Nanos) -> Option<Duration> {
        let wait = self.model().closed_for(now);
        (wait > Nanos::ZERO).then(|| Duration::from_nanos(wait.0))
    }

    pub(crate) fn model(&self) -> &Model {
        &self.of.model
    }
}

impl fmt::Debug for ModelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.model().fmt(f)
    }
}

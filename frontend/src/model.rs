//! A model as the application sees it: its sizes, and where inputs come from.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use baton_core::Nanos;
use baton_topo::signature::{RowError, TensorRef, TensorSpec};

use crate::client::Owner;
use crate::error::InputError;
use crate::input::Input;
use crate::session::Model;

/// One model of a client. Cheap to clone; any thread may use it.
#[derive(Clone)]
pub struct ModelHandle {
    owner: Arc<Owner>,
    /// Position in the session's models.
    at: u32,
}

impl ModelHandle {
    pub(crate) fn new(owner: Arc<Owner>, at: u32) -> Self {
        Self { owner, at }
    }

    /// Its name in the cluster file.
    pub fn name(&self) -> &str {
        &self.model().name
    }

    /// Its latency objective: the deadline of [`crate::Deadline::Slo`].
    pub fn slo(&self) -> Duration {
        Duration::from_nanos(self.model().slo.0)
    }

    /// The tensors that it takes. An emulated model takes bytes.
    pub fn inputs(&self) -> &[TensorSpec] {
        self.model().signature.input.tensors()
    }

    /// The tensors that it gives.
    pub fn outputs(&self) -> &[TensorSpec] {
        self.model().signature.output.tensors()
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
    /// back-pressure there is; wait for a ticket, or shed load.
    pub fn input(&self) -> Result<Input, InputError> {
        let session = &self.owner.session;
        match session.slabs.acquire(self.model().id) {
            Ok(slot) => Ok(Input::new(Arc::clone(&self.owner), self.at, slot)),
            // Never an unknown model: the slabs were made from the session's models.
            Err(_) => {
                session.counters.slab_exhausted.add(1);
                let (model, slots) = (Arc::clone(&self.model().name), session.slots_per_model);
                Err(InputError::SlabExhausted { model, slots })
            }
        }
    }

    /// An input holding a copy of `bytes`, which are a row.
    ///
    /// # Errors
    /// As [`ModelHandle::input`], and [`InputError::WrongSize`].
    pub fn input_from(&self, bytes: &[u8]) -> Result<Input, InputError> {
        let (expected, got) = (self.input_bytes(), bytes.len());
        if !self.model().signature.input.allows(got) {
            self.owner.session.counters.wrong_size.add(1);
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
        let row = &self.model().signature.input;
        let named = |spec: &TensorSpec| {
            tensors.iter().find(|(name, _)| *name == spec.name).map(|(_, tensor)| tensor.clone())
        };
        let in_order: Vec<TensorRef<'_>> = row.tensors().iter().filter_map(named).collect();
        if in_order.len() != tensors.len() {
            let (expected, got) = (row.tensors().len(), in_order.len());
            return Err(self.wrong(RowError::Tensors { expected, got }));
        }
        let mut input = self.input()?;
        let len = row.pack(&in_order, &mut input).map_err(|problem| self.wrong(problem))?;
        input.truncate(len);
        Ok(input)
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
        self.owner.session.counters.wrong_size.add(1);
        InputError::Tensors { model: Arc::clone(&self.model().name), problem }
    }

    /// How long to wait before another submit, after tasks were dropped for `quota` (the scheduler
    /// admits a task then, if no other comes first) or `queue_full` (a place is free then at the latest).
    /// `None` if nothing is known against submitting now.
    ///
    /// The scheduler sends the time with each such outcome, in whole milliseconds; the latest one counts.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after_at(self.owner.session.clock.now())
    }

    /// [`ModelHandle::retry_after`] at a moment of the client's clock.
    pub fn retry_after_at(&self, now: Nanos) -> Option<Duration> {
        let wait = self.model().closed_for(now);
        (wait > Nanos::ZERO).then(|| Duration::from_nanos(wait.0))
    }

    fn model(&self) -> &Model {
        &self.owner.session.models[self.at as usize]
    }
}

impl fmt::Debug for ModelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.model().fmt(f)
    }
}

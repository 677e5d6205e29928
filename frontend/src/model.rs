//! A model as the application sees it: its sizes, and where inputs come from.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use baton_core::Nanos;

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

    /// Bytes of one input row. What they mean (element type, order) is the model's business;
    /// ONNX models take little-endian `f32`, row major.
    pub fn input_bytes(&self) -> usize {
        self.model().input_bytes as usize
    }

    /// Bytes of one output row.
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

    /// An input holding a copy of `bytes`.
    ///
    /// # Errors
    /// As [`ModelHandle::input`], and [`InputError::WrongSize`].
    pub fn input_from(&self, bytes: &[u8]) -> Result<Input, InputError> {
        let (expected, got) = (self.input_bytes(), bytes.len());
        if got != expected {
            self.owner.session.counters.wrong_size.add(1);
            return Err(InputError::WrongSize {
                model: Arc::clone(&self.model().name),
                expected,
                got,
            });
        }
        let mut input = self.input()?;
        input.copy_from_slice(bytes);
        Ok(input)
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

//! Step 1 of a task's life: the application fills a slot's input and submits it.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_rdma::InputMut;
use baton_topo::signature::{RowError, TensorRef};
use baton_topo::{Clock, accuracy_of};
use baton_types::{CostHint, Nanos};

use crate::ahead::InputAhead;
use crate::config::nanos;
use crate::error::{SubmitError, SubmitReason};
use crate::served::ModelOwner;
use crate::session::Asked;
use crate::ticket::Ticket;
use crate::view::{Element, ViewError, view_mut};

/// By when the answer must be there, counted from the submit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Deadline {
    /// The model's own objective ([`crate::ModelHandle::slo`]).
    Slo,
    /// This long. The scheduler drops a task as soon as it can no longer be met.
    Within(Duration),
    /// This moment.
    At(Instant),
}

impl Deadline {
    /// This long after the submit.
    pub fn within(span: Duration) -> Self {
        Self::Within(span)
    }

    /// A moment, such as the one by which a request that came from elsewhere must be answered.
    pub fn at(moment: Instant) -> Self {
        Self::At(moment)
    }
}

/// A slot's input, exclusively the caller's: write into it as into any `[u8]`. Dropped unsubmitted,
/// the slot is free again.
pub struct Input {
    of: Arc<ModelOwner>,
    slot: InputMut,
    cost: CostHint,
    /// 1/100,000.
    accuracy_min: u32,
}

impl Input {
    pub(crate) fn new(of: Arc<ModelOwner>, slot: InputMut) -> Self {
        Self { of, slot, cost: CostHint::NONE, accuracy_min: 0 }
    }

    /// The input is the first `len` bytes of the slot; more than there are is all of them. For models whose inputs differ
    /// in length: a task whose input has a length that its model does not take ends as `Failed(WrongSize)`.
    pub fn truncate(&mut self, len: usize) {
        self.slot.truncate(u32::try_from(len).unwrap_or(u32::MAX));
    }

    /// The elements of the model's only input, to be written where they lie: `input.values_mut::<f32>()`.
    ///
    /// # Errors
    /// The model has several inputs, elements of another type, or inputs whose length differs from task to task.
    pub fn values_mut<T: Element>(&mut self) -> Result<&mut [T], ViewError> {
        view_mut(&self.of.model.signature.input, &mut self.slot)
    }

    /// [`Input::values_mut`] of a model that takes f32.
    ///
    /// # Errors
    /// As [`Input::values_mut`].
    pub fn as_f32_mut(&mut self) -> Result<&mut [f32], ViewError> {
        self.values_mut()
    }

    /// [`Input::values_mut`] of a model that takes i64, such as tokens.
    ///
    /// # Errors
    /// As [`Input::values_mut`].
    pub fn as_i64_mut(&mut self) -> Result<&mut [i64], ViewError> {
        self.values_mut()
    }

    /// Writes the whole input: each tensor that the model takes, by its name, in any order. The input is as long as they are.
    ///
    /// # Errors
    /// They are not those of [`crate::ModelHandle::inputs`]. The input is to be written anew.
    pub fn write_tensors(&mut self, tensors: &[(&str, TensorRef<'_>)]) -> Result<(), RowError> {
        self.slot.restore();
        let row = &self.of.model.signature.input;
        let len = row.pack(&row.in_order(tensors)?, &mut self.slot)?;
        self.truncate(len);
        Ok(())
    }

    /// Says what the task will cost, for a model whose execution time depends on its input: units such as tokens, or a
    /// class of the model's. Without it the scheduler plans as for any input.
    pub fn with_cost(mut self, cost: CostHint) -> Self {
        self.cost = cost;
        self
    }

    /// Asks for the answer of a variant whose accuracy is at least this, in per cent. If none that is so accurate
    /// can answer in time, the task is dropped ([`DropReason::Accuracy`](crate::DropReason::Accuracy)). A model without variants
    /// passes it over; one of which every variant is less accurate drops the task at once.
    pub fn with_accuracy_min(mut self, per_cent: f64) -> Self {
        // More than all are right in no variant either.
        self.accuracy_min = accuracy_of(per_cent.clamp(0.0, 101.0));
        self
    }

    /// Hands the input to the scheduler's care. From here on the task has exactly one outcome,
    /// which the ticket gives. Never blocks.
    ///
    /// # Errors
    /// [`SubmitReason`]; the error gives the input back.
    pub fn submit(self, deadline: Deadline) -> Result<Ticket, SubmitError> {
        let now = self.of.session().clock.now();
        self.submit_at(now, deadline)
    }

    /// As [`Input::submit`], at a moment of the caller's: for programs that move the time of an
    /// [`crate::io::ClientIo`] by hand.
    ///
    /// # Errors
    /// As [`Input::submit`].
    pub fn submit_at(self, now: Nanos, deadline: Deadline) -> Result<Ticket, SubmitError> {
        let (input, deadline) = self.accept(now, deadline)?;
        let (session, model, asked) = (input.of.session(), &*input.of.model, input.asked());
        let task = session.submit(model, input.slot, asked, now, deadline);
        Ok(Ticket::new(input.of, task, now, deadline))
    }

    /// Submits the task before its input is written: it queues while the application decodes, resizes or waits for what the
    /// input is made of. The deadline counts from here. Say with [`Input::truncate`] before how long the input will be.
    ///
    /// Backends cannot read the input before [`InputAhead::finish`]. A batch that is formed before goes without the task,
    /// and the client submits the task again as soon as its input is there. If that is not before the deadline, the task ends as
    /// `Dropped(Deadline)`; an [`InputAhead`] that is dropped unfinished cancels its task.
    ///
    /// # Errors
    /// As [`Input::submit`].
    pub fn submit_ahead(self, deadline: Deadline) -> Result<(InputAhead, Ticket), SubmitError> {
        let now = self.of.session().clock.now();
        self.submit_ahead_at(now, deadline)
    }

    /// As [`Input::submit_ahead`], at a moment of the caller's.
    ///
    /// # Errors
    /// As [`Input::submit`].
    pub fn submit_ahead_at(
        self,
        now: Nanos,
        deadline: Deadline,
    ) -> Result<(InputAhead, Ticket), SubmitError> {
        let (input, deadline) = self.accept(now, deadline)?;
        let (session, model, asked) = (input.of.session(), &*input.of.model, input.asked());
        let slot = session.submit_ahead(model, input.slot, asked, now, deadline);
        let ticket = Ticket::new(Arc::clone(&input.of), slot.task(), now, deadline);
        Ok((InputAhead::new(input.of, slot), ticket))
    }

    fn asked(&self) -> Asked {
        Asked { cost: self.cost, accuracy_min: self.accuracy_min }
    }

    /// Whether it can be submitted now, and by when its answer must be there then.
    fn accept(self, now: Nanos, deadline: Deadline) -> Result<(Self, Nanos), SubmitError> {
        let (session, model) = (self.of.session(), &*self.of.model);
        let span = match deadline {
            Deadline::Slo => model.slo(),
            Deadline::Within(span) => nanos(span),
            Deadline::At(moment) => Clock::until(moment),
        };
        let passed = (span == Nanos::ZERO).then_some(SubmitReason::DeadlinePassed);
        let removed = || model.is_removed().then_some(SubmitReason::ModelRemoved);
        if let Some(reason) = passed.or_else(|| session.refusal()).or_else(removed) {
            return Err(self.refuse(reason));
        }
        Ok((self, now + span))
    }

    #[cold]
    fn refuse(self, reason: SubmitReason) -> SubmitError {
        let counters = &self.of.session().counters;
        match reason {
            SubmitReason::DeadlinePassed => counters.deadline_passed.add(1),
            SubmitReason::SchedulerLost => counters.scheduler_lost.add(1),
            SubmitReason::ClientClosed => counters.client_closed.add(1),
            SubmitReason::ModelRemoved => counters.model_removed.add(1),
        }
        SubmitError { input: self, reason }
    }
}

impl Deref for Input {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.slot
    }
}

impl DerefMut for Input {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.slot
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let model = &self.of.model.name;
        f.debug_struct("Input").field("model", model).field("bytes", &self.slot.len()).finish()
    }
}

//! Step 1 the other way round: the task is submitted, and the application writes its input while it queues.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use baton_types::TaskId;

use crate::served::ModelOwner;
use crate::view::{Element, ViewError, view_mut};

/// The input of a task that queues already ([`crate::Input::submit_ahead`]), exclusively the caller's: write into it as into any
/// `[u8]`, then [`InputAhead::finish`]. Dropped unfinished, it cancels the task. The task may have its outcome before, if it
/// was cancelled or its deadline has passed; its slot is free again only after this is finished or dropped.
#[must_use = "dropping an unfinished input cancels its task"]
pub struct InputAhead {
    of: Arc<ModelOwner>,
    /// `None` once it is finished.
    slot: Option<baton_rdma::InputAhead>,
    task: TaskId,
}

impl InputAhead {
    pub(crate) fn new(of: Arc<ModelOwner>, slot: baton_rdma::InputAhead) -> Self {
        let task = slot.task();
        Self { of, slot: Some(slot), task }
    }

    /// The input is written: backends may read it from now on.
    pub fn finish(mut self) {
        if let Some(slot) = self.slot.take() {
            slot.finish();
            self.of.session().written(self.task);
        }
    }

    /// The elements of the model's only input, to be written where they lie: see [`crate::Input::values_mut`].
    ///
    /// # Errors
    /// As there.
    pub fn values_mut<T: Element>(&mut self) -> Result<&mut [T], ViewError> {
        let Self { of, slot, .. } = self;
        view_mut(&of.model.signature.input, slot.as_deref_mut().unwrap_or_default())
    }
}

impl Drop for InputAhead {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            // First: an end that comes for want of the input finds that there will be none.
            drop(slot);
            self.of.session().cancel(self.task);
        }
    }
}

impl Deref for InputAhead {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.slot.as_deref().unwrap_or_default()
    }
}

impl DerefMut for InputAhead {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.slot.as_deref_mut().unwrap_or_default()
    }
}

impl fmt::Debug for InputAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let model = &self.of.model.name;
        f.debug_struct("InputAhead").field("model", model).field("bytes", &self.len()).finish()
    }
}

//! Models that are added or removed behind the complete catalogue, and what this backend says of models and slabs.

use baton_core::Profile;
use baton_rdma::Transport;
use baton_rdma::wire::{Message, ModelFailed, ProfileDesc, SlabDesc, SlabKnown};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::Join;
use crate::error::BackendError;
use crate::models::Models;

/// Most bytes of the reason why a model could not be loaded.
const REASON_MAX: usize = 4096;

impl Join {
    /// A message that changes the catalogue.
    ///
    /// # Errors
    /// It is another message, or makes no sense.
    pub(super) fn on_change(
        &mut self,
        message: Message<'_>,
        models: &mut Models,
    ) -> Result<(), BackendError> {
        match message {
            Message::ModelDesc(desc, name) => self.catalog.describe_another(desc, name),
            // What the tensors are, this backend reads in the model's file.
            Message::TensorDesc(..) => {}
            Message::ModelTable(table, text) => {
                self.catalog.add_table(table.model.get(), text)?;
                for model in self.catalog.take_described()? {
                    models.add(model, &mut self.catalog)?;
                }
            }
            Message::ModelDown(down) => models.remove(down.model.get(), &mut self.catalog),
            _ => return Err(BackendError::Protocol("a message does not fit the conversation")),
        }
        Ok(())
    }

    /// A model of the scheduler's is loaded; `profile` is its ℓ(b) if that was measured.
    ///
    /// # Errors
    /// The scheduler is lost.
    pub(crate) fn tell_loaded<T: Transport>(
        &self,
        model: u32,
        profile: Option<&Profile>,
        transport: &mut T,
    ) -> Result<(), BackendError> {
        let table = profile.into_iter().flat_map(Profile::table);
        let table: Vec<U64> = table.map(|latency| latency.0.into()).collect();
        self.tell(transport, &ProfileDesc { model: model.into() }, table.as_bytes())
    }

    /// A model of the scheduler's could not be loaded.
    ///
    /// # Errors
    /// The scheduler is lost.
    pub(crate) fn tell_failed<T: Transport>(
        &self,
        model: u32,
        why: &str,
        transport: &mut T,
    ) -> Result<(), BackendError> {
        let why = &why[..why.floor_char_boundary(REASON_MAX)];
        self.tell(transport, &ModelFailed { model: model.into() }, why.as_bytes())
    }

    /// A slab of a frontend that had joined is known here.
    ///
    /// # Errors
    /// The scheduler is lost.
    pub(crate) fn tell_known<T: Transport>(
        &self,
        slab: &SlabDesc,
        transport: &mut T,
    ) -> Result<(), BackendError> {
        let known = SlabKnown { frontend: slab.frontend, first_slot: slab.first_slot };
        self.tell(transport, &known, &[])
    }
}

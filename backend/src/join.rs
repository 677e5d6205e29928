//! What a backend brings to a join and takes from it. [`Membership`] keeps the conversation with the scheduler.
//!
//! In: what the ControlThread says that only a backend understands. Out: the models that are loaded with their measured
//! profiles, GPU slots, the slabs that are known here; and what actions are checked against.

use std::ops::Range;

use baton_membership::{DescribedModel, Membership, MembershipError, Received, Stage};
use baton_rdma::Transport;
use baton_rdma::wire::{
    JoinAck, JoinBackend, Message, ModelFailed, ProfileDesc, SlabDesc, SlabKnown, SlotMemory,
};
use baton_types::{Nanos, Profile};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::admit::ActionRules;
use crate::config::BackendConfig;
use crate::error::BackendError;
use crate::execute::Profiles;
use crate::loader::Loader;
use crate::models::Models;
use crate::served::{CatalogueError, ServedModels};

/// Most bytes of the reason why a model could not be loaded.
const REASON_MAX: usize = 4096;

/// This backend's side of the conversation.
#[derive(Debug)]
pub(crate) struct Join {
    pub(crate) membership: Membership,
    /// The models served under this scheduler.
    pub(crate) served: ServedModels,
    /// The scheduler has confirmed that our slots get batches.
    pub(crate) serves: bool,
    /// The scheduler's numbers of our GPU slots.
    gpus: Range<u32>,
}

impl Join {
    pub(crate) fn new(membership: Membership) -> Self {
        Self { membership, served: ServedModels::default(), serves: false, gpus: 0..0 }
    }

    /// The scheduler's number of our first GPU slot.
    pub(crate) fn first_gpu(&self) -> u32 {
        self.gpus.start
    }

    /// What actions are checked against; `None` before the catalogue is complete.
    pub(crate) fn rules(&self) -> Option<ActionRules<'_>> {
        let has_catalogue = self.membership.stage() >= Stage::Joining;
        let (served, sync) = (&self.served, self.membership.sync());
        has_catalogue.then(|| ActionRules { served, sync, gpus: self.gpus.clone() })
    }

    /// A moment of our clock on the scheduler's; 0 before the clocks have been compared.
    pub(crate) fn to_scheduler(&self, local: Nanos) -> Nanos {
        self.membership.sync().to_scheduler(local).unwrap_or(Nanos::ZERO)
    }

    /// A message of the ControlThread's, other than the membership of frontends.
    ///
    /// # Errors
    /// It does not fit the stage, or the catalogue does not fit our cluster file.
    pub(crate) fn on_control<'a, T: Transport>(
        &mut self,
        message: Message<'_>,
        now: Nanos,
        (config, memory): (&BackendConfig, impl FnOnce() -> Vec<&'a Loader>),
        models: &mut Models,
        transport: &mut T,
    ) -> Result<(), BackendError> {
        match self.membership.on_control(message, transport)? {
            Received::Handled | Received::Left => Ok(()),
            Received::Complete => {
                self.meet(config, models)?;
                self.tell_memory(&memory(), transport)?;
                Ok(self.ask_to_join(now, config, models, transport)?)
            }
            Received::Admitted(ack) => self.on_admitted(ack, config.gpus),
            Received::Other(message) => self.on_change(message, models),
        }
    }

    /// Compares the complete catalogue with what is loaded here.
    fn meet(&mut self, config: &BackendConfig, models: &mut Models) -> Result<(), BackendError> {
        let ours = self.membership.catalogue_mut().subcluster(&config.subcluster);
        let unknown = || CatalogueError::UnknownSubcluster(config.subcluster.clone());
        self.served.set_subcluster(ours.ok_or_else(unknown)?);
        let described = self.take_described()?;
        Ok(models.meet(described, &mut self.served)?)
    }

    /// What is described of models of our sub-cluster.
    fn take_described(&mut self) -> Result<Vec<DescribedModel>, MembershipError> {
        let threads = self.membership.threads();
        let mut described = self.membership.catalogue_mut().take_models(threads)?;
        described.retain(|model| model.desc.subcluster.get() == self.served.subcluster());
        Ok(described)
    }

    /// Announces the memory for weights of each GPU slot, and what is there. Pages of what the scheduler does not know do not
    /// count; those of a copy that a lost scheduler has ordered do, as they come back: until then a LOAD may find too few.
    fn tell_memory<T: Transport>(
        &self,
        slots: &[&Loader],
        transport: &mut T,
    ) -> Result<(), MembershipError> {
        for (slot, loader) in (0..).zip(slots) {
            let mut models = Vec::new();
            let mut pages = loader.free_pages() + loader.returning_pages();
            for (local, taken) in loader.residents() {
                if let Some(served) = self.served.iter().find(|served| served.local == local) {
                    models.push(U32::new(served.id.0));
                    pages += taken;
                }
            }
            let (page_bytes, slot) = (loader.page_bytes().into(), U32::new(slot));
            let memory = SlotMemory { slot, pages: pages.into(), page_bytes };
            self.membership.send(&memory, models.as_bytes(), transport)?;
        }
        Ok(())
    }

    /// Announces the models we have loaded, then ourselves.
    fn ask_to_join<T: Transport>(
        &mut self,
        now: Nanos,
        config: &BackendConfig,
        models: &Models,
        transport: &mut T,
    ) -> Result<(), MembershipError> {
        for model in self.served.iter() {
            let weights = models.spec(model.local).and_then(|spec| spec.weights);
            let pages = config.weights_cache.zip(weights).map(|(cache, of)| cache.pages_of(of));
            let profiles = models.profiles(model.local);
            self.tell_loaded(model.id.0, pages, profiles, transport)?;
        }
        let join =
            JoinBackend { subcluster: self.served.subcluster().into(), gpus: config.gpus.into() };
        self.membership.ask_to_join(now, &join, config.name.as_bytes(), transport)
    }

    fn on_admitted(&mut self, ack: &JoinAck, gpus: u32) -> Result<(), BackendError> {
        let first = ack.first_gpu.get();
        let end = first.checked_add(gpus).ok_or(BackendError::Protocol("GPU ids out of range"))?;
        self.gpus = first..end;
        Ok(())
    }

    /// A message that changes the catalogue behind the complete one, or confirms that this backend is ready.
    fn on_change(&mut self, message: Message<'_>, models: &mut Models) -> Result<(), BackendError> {
        let is_complete = self.membership.stage() >= Stage::Joining;
        let observed = self.membership.scheduler().ip();
        let catalogue = self.membership.catalogue_mut();
        match message {
            Message::ModelDesc(..) if is_complete => {
                // A description without a table is of a model that is known, and is not needed here.
                *catalogue = Default::default();
                catalogue.take_in(&message, observed)?;
            }
            Message::VariantDesc(..) if is_complete => {
                catalogue.take_in(&message, observed)?;
            }
            // What the tensors are, this backend reads in the model's file.
            Message::TensorDesc(..) if is_complete => {}
            Message::ModelTable(..) if is_complete => {
                catalogue.take_in(&message, observed)?;
                for model in self.take_described()? {
                    models.add(model, &mut self.served)?;
                }
            }
            Message::ModelDown(down) if is_complete => {
                models.remove(down.model.get(), &mut self.served);
            }
            Message::ReadyAck(_) if self.membership.stage() >= Stage::Ready => self.serves = true,
            _ => return Err(BackendError::Protocol("a message does not fit the conversation")),
        }
        Ok(())
    }

    /// Forgets the scheduler, and what it has given this backend.
    pub(crate) fn let_go<T: Transport>(&mut self, why: &str, transport: &mut T) {
        self.membership.let_go(why, transport);
        (self.served, self.serves, self.gpus) = (ServedModels::default(), false, 0..0);
    }

    /// A model of the scheduler's is loaded, or LOADs may bring it and it takes `pages`; `profiles` are its ℓ(b) if that was
    /// measured.
    ///
    /// # Errors
    /// The scheduler is lost.
    pub(crate) fn tell_loaded<T: Transport>(
        &self,
        model: u32,
        pages: Option<u32>,
        profiles: Option<&Profiles>,
        transport: &mut T,
    ) -> Result<(), MembershipError> {
        let table = profiles.into_iter().flatten().flat_map(Profile::table);
        let table: Vec<U64> = table.map(|latency| latency.0.into()).collect();
        let desc = ProfileDesc { model: model.into(), pages: pages.unwrap_or(0).into() };
        self.membership.send(&desc, table.as_bytes(), transport)
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
    ) -> Result<(), MembershipError> {
        let why = &why[..why.floor_char_boundary(REASON_MAX)];
        self.membership.send(&ModelFailed { model: model.into() }, why.as_bytes(), transport)
    }

    /// A slab of a frontend that had joined is known here.
    ///
    /// # Errors
    /// The scheduler is lost.
    pub(crate) fn tell_known<T: Transport>(
        &self,
        slab: &SlabDesc,
        transport: &mut T,
    ) -> Result<(), MembershipError> {
        let known = SlabKnown { frontend: slab.frontend, first_slot: slab.first_slot };
        self.membership.send(&known, &[], transport)
    }
}

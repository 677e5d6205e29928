//! The catalogue changes: models come, go and get other objectives, while the client serves or joins again.
//!
//! In: the scheduler's word, at a join all at once and afterwards bit by bit. Out: slabs that are reserved,
//! exposed and announced, and slabs that are withdrawn when their last slot is free.

use std::sync::Arc;

use baton_membership::MembershipError;
use baton_rdma::wire::{Message, ModelDesc, ModelDown, SlabKnown};
use baton_rdma::{SlabSet, Transport};
use baton_types::{DropReason, FailReason, ModelId, Nanos, Unserved};

use crate::error::ConnectError;
use crate::io::ClientIo;
use crate::io::catalogue::take_announced;
use crate::io::models::Unexpected;
use crate::served::{Announced, Model};

impl<T: Transport> ClientIo<T> {
    /// News of the catalogue, behind the one that this client has joined with.
    pub(super) fn on_catalogue_change(&mut self, message: &Message<'_>) {
        match message {
            Message::ModelDesc(desc, _) => self.on_model(desc, message),
            Message::TensorDesc(..) | Message::VariantDesc(..) => self.on_addition(message),
            Message::CatalogEnd(_) => self.on_additions(),
            Message::ModelDown(down) => self.on_model_down(down),
            Message::SlabKnown(known) => self.on_slab_known(known),
            _ => self.counters.unexpected.add(1),
        }
    }

    /// A known model has moved to another ModelThread, where the former one passes on what still comes, or has
    /// another objective. An unknown one is new, which is not complete yet.
    fn on_model(&mut self, desc: &ModelDesc, message: &Message<'_>) {
        let Some(serving) = &mut self.serving else { return };
        let (id, thread) = (ModelId(desc.model.get()), desc.thread.get());
        if serving.models.is_other(id) {
            return;
        }
        match serving.models.by_id(id) {
            Some(served) if (thread as usize) < self.membership.threads() => {
                served.thread = thread;
                served.model.set_slo(Nanos(desc.slo_ns.get()));
            }
            Some(_) => self.counters.unexpected.add(1),
            None => self.on_addition(message),
        }
    }

    /// A part of the description of a new model.
    fn on_addition(&mut self, message: &Message<'_>) {
        let observed = self.membership.scheduler().ip();
        if let Err(error) = self.membership.catalogue_mut().take_in(message, observed) {
            self.refuse_additions(&error);
        }
    }

    /// What the scheduler adds and this build cannot make sense of is left out, with whatever came along.
    fn refuse_additions(&mut self, error: &MembershipError) {
        tracing::warn!(%error, "models that the scheduler has added cannot be used");
        self.counters.unexpected.add(1);
        *self.membership.catalogue_mut() = Default::default();
    }

    /// The new models are complete: those that this client wants get slabs, which it announces.
    fn on_additions(&mut self) {
        let threads = self.membership.threads();
        let announced = match take_announced(self.membership.catalogue_mut(), threads) {
            Ok(announced) => announced,
            Err(error) => return self.refuse_additions(&error),
        };
        let Some(serving) = &mut self.serving else { return };
        let is_leaving = serving.session.leaving();
        let mut wanted = Vec::new();
        for model in announced {
            let is_double = serving.models.present().any(|served| served.model.name == model.name);
            self.counters.unexpected.add(is_double.into());
            if is_double || is_leaving || !self.config.wants(&model.name) {
                serving.models.note_other(model.id);
            } else {
                wanted.push(model);
            }
        }
        for (model, error) in self.reserve(&wanted) {
            self.do_without(model, &error);
        }
        self.announce(&wanted);
    }

    /// There is no memory for a model that was added.
    fn do_without(&mut self, model: &Announced, error: &ConnectError) {
        let remedy =
            "free memory, or connect a client that names the models it wants, or has fewer slots";
        tracing::warn!(model = %model.name, %error, remedy, "a model that was added cannot be used");
        self.counters.models_unreserved.add(1);
        if let Some(serving) = &mut self.serving {
            serving.models.note_other(model.id);
        }
    }

    /// Reserves and exposes slabs for models. Returns those for which that is not possible, and why.
    pub(super) fn reserve<'a>(
        &mut self,
        announced: &'a [Announced],
    ) -> Vec<(&'a Announced, ConnectError)> {
        let Some(serving) = &mut self.serving else { return Vec::new() };
        let (mut made, mut failed) = (Vec::new(), Vec::new());
        let backing = self.transport.backing();
        for model in announced {
            match serving.models.reserve(model, backing) {
                Ok(reserved) => made.push((model, Arc::clone(reserved))),
                Err(error) => failed.push((model, error)),
            }
        }
        SlabSet::survey(made.iter().map(|(_, model)| &model.slabs));
        serving.tasks.grow(serving.models.slots());
        serving.prefaults |= !made.is_empty();
        for (announced, model) in made {
            model.slabs.set_frontend(self.number);
            match self.transport.expose(Arc::clone(&model.slabs)) {
                Ok(()) => serving.session.add(model),
                Err(error) => {
                    serving.models.discard(&model);
                    failed.push((announced, ConnectError::Expose(error)));
                }
            }
        }
        failed
    }

    /// Tells the scheduler of the slabs of models that were added.
    fn announce(&mut self, added: &[Announced]) {
        let Some(serving) = &mut self.serving else { return };
        let is_added = |id: ModelId| added.iter().any(|model| model.id == id);
        let reserved: Vec<_> = serving.models.present().filter(|s| is_added(s.id)).collect();
        let descs: Vec<_> = reserved
            .into_iter()
            .flat_map(|served| served.descs().map(|desc| (served.model.place, desc)))
            .collect();
        for (place, desc) in descs {
            if let Some(serving) = &mut self.serving {
                serving.models.await_known(place);
            }
            if let Err(error) = self.membership.send(&desc, &[], &mut self.transport) {
                // A connection that is gone is noticed; the next join announces the slab.
                tracing::warn!(%error, "a slab could not be announced");
            }
        }
    }

    fn on_slab_known(&mut self, known: &SlabKnown) {
        let Some(serving) = &mut self.serving else { return };
        if known.frontend.get() != u32::from(self.number.0) {
            return self.counters.unexpected.add(1);
        }
        match serving.models.on_known(known.first_slot.get()) {
            Ok(Some(model)) => {
                tracing::info!(model = %model.name, "a model was added");
                self.counters.models_added.add(1);
            }
            // It was removed before it could be used.
            Ok(None) => {}
            Err(Unexpected) => self.counters.unexpected.add(1),
        }
    }

    fn on_model_down(&mut self, down: &ModelDown) {
        let Some(serving) = &mut self.serving else { return };
        let id = ModelId(down.model.get());
        let place = serving.models.by_id(id).map(|served| served.model.place);
        match place {
            Some(place) => self.remove(place, Unserved::Dropped(DropReason::ModelRemoved)),
            None if serving.models.forget_other(id) => {}
            None if self.membership.catalogue_mut().remove_model(id.0) => {}
            None => self.counters.unexpected.add(1),
        }
    }

    /// A model is gone: no more tasks of it. `why` is the end of those that are still to be submitted.
    pub(super) fn remove(&mut self, place: u32, why: Unserved) {
        let Some(serving) = &mut self.serving else { return };
        if let Some(served) = serving.models.get(place) {
            tracing::info!(model = %served.model.name, "a model was removed");
            self.counters.models_removed.add(1);
        }
        serving.models.remove(place, why);
    }

    /// Lets the slabs of removed models go whose last slot is free.
    pub(super) fn withdraw_removed(&mut self) {
        let Some(serving) = self.serving.as_mut().filter(|serving| serving.models.has_leaving())
        else {
            return;
        };
        for model in serving.models.take_retired() {
            self.transport.withdraw(&model.slabs);
            serving.session.forget(&model);
        }
    }

    /// A join's catalogue, which is complete. Names decide: a model of ours that is there as it was goes on under
    /// its new id; one that is not is removed; new ones that this client wants get slabs. False if the application
    /// names its models and the catalogue has none of them; then nothing has changed.
    pub(super) fn reconcile(&mut self, announced: Vec<Announced>) -> Result<bool, ConnectError> {
        let is_first = self.membership.life() == 0;
        let Some(serving) = &mut self.serving else { return Ok(true) };
        let goes_on = |model: &Model| {
            announced.iter().position(|new| new.name == model.name && model.fits(new))
        };
        let ours: Vec<_> = serving
            .models
            .present()
            .map(|served| (served.model.place, goes_on(&served.model)))
            .collect();
        let has_any = announced.iter().any(|model| self.config.wants(&model.name));
        if !is_first && !self.config.models.is_empty() && !has_any {
            return Ok(false);
        }
        serving.models.begin_life();
        let mut is_ours = vec![false; announced.len()];
        for (place, at) in ours {
            let Some(at) = at else {
                self.remove(place, Unserved::Failed(FailReason::UnknownModel));
                continue;
            };
            is_ours[at] = true;
            self.go_on(place, &announced[at]);
        }
        let new = announced.into_iter().zip(is_ours).filter(|(_, is_ours)| !is_ours);
        let (wanted, others): (Vec<_>, Vec<_>) =
            new.map(|(model, _)| model).partition(|model| self.config.wants(&model.name));
        for other in others {
            let Some(serving) = &mut self.serving else { break };
            serving.models.note_other(other.id);
        }
        for (model, error) in self.reserve(&wanted) {
            if is_first {
                return Err(error);
            }
            self.do_without(model, &error);
        }
        Ok(true)
    }

    /// A model of ours is there as it was.
    fn go_on(&mut self, place: u32, announced: &Announced) {
        let Some(serving) = &mut self.serving else { return };
        let served = serving.models.iter_mut().find(|served| served.model.place == place);
        if let Some(served) = served {
            (served.id, served.thread) = (announced.id, announced.thread);
            served.model.set_slo(announced.slo);
        }
    }
}

//! The models of this client, as the I/O thread knows them.
//!
//! A model has a place, and the place's slots: as many as every model has, numbered from a multiple of that.
//! When a model is gone, its place is free for another, whose generations go on where its own ended, so that
//! no task id comes twice.

use std::collections::BTreeSet;
use std::sync::Arc;

use baton_rdma::wire::SlabDesc;
use baton_rdma::{Backing, SlabSet};
use baton_types::{ModelId, Unserved};

use crate::error::ConnectError;
use crate::io::prefault::Prefaulted;
use crate::served::{Announced, Model};

/// What becomes of a model's tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Its slab is there; nothing is submitted before the scheduler says that the backends know it, or lets the
    /// client in with it.
    Reserved,
    Usable,
    /// The model is gone; so end tasks that are still to be submitted.
    Removed(Unserved),
}

/// A model with a slab.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) model: Arc<Model>,
    /// What the present scheduler calls it.
    pub(super) id: ModelId,
    /// Where its requests go: the number of its ModelThread.
    pub(super) thread: u32,
    pub(super) phase: Phase,
    pub(super) prefaulted: Prefaulted,
}

impl Served {
    pub(super) fn is_present(&self) -> bool {
        !matches!(self.phase, Phase::Removed(_))
    }

    /// How backends find its slots.
    pub(super) fn descs(&self) -> impl Iterator<Item = SlabDesc> {
        let model = self.id.0;
        let descs = self.model.slabs.descs();
        descs.into_iter().map(move |desc| SlabDesc { model: model.into(), ..desc })
    }
}

#[derive(Debug)]
struct Place {
    /// Of the next model that gets it.
    first_generation: u32,
    served: Option<Served>,
    /// The client has announced a slab here, and the scheduler has not confirmed it yet. Until then no other
    /// model gets the place: the answer would be taken for its own.
    awaits_known: bool,
}

#[derive(Debug)]
pub(super) struct Models {
    slots_each: u32,
    first_generation: u32,
    places: Vec<Place>,
    /// Places of removed models whose slots are not all free.
    leaving: Vec<usize>,
    /// Models of the catalogue that are not this client's.
    others: BTreeSet<ModelId>,
}

impl Models {
    pub(super) fn new(slots_each: u32, first_generation: u32) -> Self {
        let (places, leaving, others) = (Vec::new(), Vec::new(), BTreeSet::new());
        Self { slots_each, first_generation, places, leaving, others }
    }

    /// Reserves a slab for a model, in the first place that is free.
    pub(super) fn reserve(
        &mut self,
        announced: &Announced,
        backing: Backing,
    ) -> Result<&Arc<Model>, ConnectError> {
        let is_free = |place: &Place| place.served.is_none() && !place.awaits_known;
        let at = self.places.iter().position(is_free).unwrap_or(self.places.len());
        let first_generation =
            self.places.get(at).map_or(self.first_generation, |place| place.first_generation);
        let model =
            Model::reserve(announced, at as u32, self.slots_each, first_generation, backing)?;
        if at == self.places.len() {
            self.places.push(Place { first_generation, served: None, awaits_known: false });
        }
        let (id, thread, phase) = (announced.id, announced.thread, Phase::Reserved);
        let prefaulted = Prefaulted::default();
        let served = self.places[at].served.insert(Served { model, id, thread, phase, prefaulted });
        Ok(&served.model)
    }

    /// Takes out a reserved model that the client has announced nowhere yet.
    pub(super) fn discard(&mut self, model: &Model) {
        self.places[model.place as usize].served = None;
    }

    /// How many slots all places have.
    pub(super) fn slots(&self) -> usize {
        self.places.len() * self.slots_each as usize
    }

    pub(super) fn get(&self, place: u32) -> Option<&Served> {
        self.places.get(place as usize)?.served.as_ref()
    }

    /// Every model with a slab.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Served> {
        self.places.iter().filter_map(|place| place.served.as_ref())
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Served> {
        self.places.iter_mut().filter_map(|place| place.served.as_mut())
    }

    /// The models that are not removed.
    pub(super) fn present(&self) -> impl Iterator<Item = &Served> {
        self.iter().filter(|served| served.is_present())
    }

    pub(super) fn by_id(&mut self, id: ModelId) -> Option<&mut Served> {
        self.iter_mut().find(|served| served.id == id && served.is_present())
    }

    /// The catalogue has this model, which is not this client's.
    pub(super) fn note_other(&mut self, id: ModelId) {
        self.others.insert(id);
    }

    pub(super) fn is_other(&self, id: ModelId) -> bool {
        self.others.contains(&id)
    }

    /// False if it was not noted.
    pub(super) fn forget_other(&mut self, id: ModelId) -> bool {
        self.others.remove(&id)
    }

    /// Another scheduler, or the same one again: what was said to the former one counts no longer.
    pub(super) fn begin_life(&mut self) {
        self.others.clear();
        self.places.iter_mut().for_each(|place| place.awaits_known = false);
    }

    /// The client announces the slab in this place by itself, not with a join.
    pub(super) fn await_known(&mut self, place: u32) {
        self.places[place as usize].awaits_known = true;
    }

    /// The scheduler has let the client in: every slab that came with the join is known.
    pub(super) fn open(&mut self) {
        for place in self.places.iter_mut().filter(|place| !place.awaits_known) {
            make_usable(place);
        }
    }

    /// Every backend knows the slab that begins there. The model, if that makes one usable; an error if no
    /// place waits for that.
    pub(super) fn on_known(&mut self, first_slot: u32) -> Result<Option<&Arc<Model>>, Unexpected> {
        let at = (first_slot / self.slots_each) as usize;
        let place = self.places.get_mut(at).filter(|place| place.awaits_known);
        let place = place.filter(|_| first_slot.is_multiple_of(self.slots_each));
        let place = place.ok_or(Unexpected)?;
        place.awaits_known = false;
        Ok(make_usable(place))
    }

    /// A model is gone. Its slab goes when its last slot is free.
    pub(super) fn remove(&mut self, place: u32, why: Unserved) {
        let at = place as usize;
        let Some(served) = self.places[at].served.as_mut() else { return };
        served.phase = Phase::Removed(why);
        served.model.set_removed();
        self.leaving.push(at);
    }

    /// Takes the removed models out whose slots are all free.
    pub(super) fn take_retired(&mut self) -> Vec<Arc<Model>> {
        let Self { leaving, places, .. } = self;
        let mut retired = Vec::new();
        leaving.retain(|&at| {
            let place = &mut places[at];
            let Some(served) = place.served.take_if(|served| served.model.slabs.retire()) else {
                return true;
            };
            place.first_generation = SlabSet::next_generation(&served.model.slabs);
            retired.push(served.model);
            false
        });
        retired
    }

    /// True if [`Models::take_retired`] may have something to take.
    pub(super) fn has_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }
}

/// Said out of turn.
#[derive(Debug)]
pub(super) struct Unexpected;

fn make_usable(place: &mut Place) -> Option<&Arc<Model>> {
    let served = place.served.as_mut().filter(|served| served.phase == Phase::Reserved)?;
    served.phase = Phase::Usable;
    served.model.set_usable();
    Some(&served.model)
}

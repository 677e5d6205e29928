//! Which slot holds which model's weights, counted in pages (Clockwork §5.2): what is loaded there, and what is being loaded.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use crate::candidate::Gpu;
use baton_types::{GpuId, ModelId, Nanos};

/// One model on one slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) gpu: Gpu,
    /// The weights are there; before, their LOAD is under way.
    pub(super) is_resident: bool,
    /// Batches of the model that the slot has, or was granted for.
    pub(super) batches: u32,
    /// A batch of it has ended there.
    pub(super) has_served: bool,
    /// When the LOAD was planned or a batch was executed last.
    pub(super) used: Nanos,
    /// Where it stands among the slot's models.
    rank: u32,
}

#[derive(Clone, Debug)]
struct Slot {
    /// Absent: no backend has it.
    gpu: Option<Gpu>,
    pages: u32,
    free: u32,
    /// Places on this slot.
    places: Vec<u32>,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    copies: usize,
    /// Models that a slot may hold.
    residents: usize,
    /// `copies` for each model.
    places: Box<[Option<Place>]>,
    /// Pages that each model takes.
    pages: Box<[u32]>,
    slots: Box<[Slot]>,
    /// Of the slots, those that a backend has.
    present: usize,
}

impl Memory {
    /// No slot yet. One holds at most `residents` models, and a model is in at most `copies` of them.
    pub(super) fn new(gpus: usize, copies: usize, residents: usize, pages: Vec<u32>) -> Self {
        let slot = || Slot { gpu: None, pages: 0, free: 0, places: Vec::with_capacity(residents) };
        Self {
            copies,
            residents,
            places: vec![None; pages.len() * copies].into_boxed_slice(),
            pages: pages.into_boxed_slice(),
            slots: (0..gpus).map(|_| slot()).collect(),
            present: 0,
        }
    }

    /// A slot has come, with nothing loaded.
    pub(super) fn join(&mut self, gpu: Gpu, pages: u32) {
        self.clear(gpu.id);
        let slot = &mut self.slots[gpu.id.0 as usize];
        self.present += usize::from(slot.gpu.is_none());
        (slot.gpu, slot.pages, slot.free) = (Some(gpu), pages, pages);
    }

    /// The slot is gone, with all that it held.
    pub(super) fn leave(&mut self, gpu: Gpu) {
        if self.is_present(gpu) {
            self.clear(gpu.id);
            self.slots[gpu.id.0 as usize].gpu = None;
            self.present -= 1;
        }
    }

    fn clear(&mut self, id: GpuId) {
        let slot = &mut self.slots[id.0 as usize];
        for place in slot.places.drain(..) {
            self.places[place as usize] = None;
        }
        slot.free = slot.pages;
    }

    pub(super) fn is_present(&self, gpu: Gpu) -> bool {
        self.slots[gpu.id.0 as usize].gpu == Some(gpu)
    }

    /// The slot in its present life.
    pub(super) fn gpu(&self, slot: usize) -> Option<Gpu> {
        self.slots[slot].gpu
    }

    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Loaders that there are, one at least: each slot that is present has one.
    pub(super) fn loaders(&self) -> u64 {
        debug_assert_eq!(self.present, self.slots.iter().filter(|slot| slot.gpu.is_some()).count());
        self.present.max(1) as u64
    }

    /// Pages that nothing takes.
    pub(super) fn free_pages(&self, id: GpuId) -> u32 {
        self.slots[id.0 as usize].free
    }

    /// Whether the slot has room for the model once `left` others have given back `pages`.
    pub(super) fn has_room(&self, model: ModelId, id: GpuId, pages: u32, left: usize) -> bool {
        let slot = &self.slots[id.0 as usize];
        slot.free + pages >= self.pages_of(model) && slot.places.len() < self.residents + left
    }

    /// Whether the model is in fewer places than it may be.
    pub(super) fn may_have_more(&self, model: ModelId) -> bool {
        self.range(model).any(|at| self.places[at].is_none())
    }

    /// The model's number is another's from now on, which is nowhere.
    pub(super) fn set_pages(&mut self, model: ModelId, pages: u32) {
        self.pages[model.0 as usize] = pages;
    }

    pub(super) fn pages_of(&self, model: ModelId) -> u32 {
        self.pages[model.0 as usize]
    }

    /// Takes pages for the model's weights, which are being loaded from now on. False if there are too few, or the model is in
    /// as many places as it may be, there for instance.
    pub(super) fn take(&mut self, now: Nanos, model: ModelId, gpu: Gpu) -> bool {
        let pages = self.pages_of(model);
        let free = self.range(model).find(|&at| self.places[at].is_none());
        let slot = &mut self.slots[gpu.id.0 as usize];
        let fits = slot.free >= pages && slot.places.len() < self.residents;
        let Some(at) = free.filter(|_| fits && slot.gpu == Some(gpu)) else { return false };
        let place = Place {
            gpu,
            is_resident: false,
            batches: 0,
            has_served: false,
            used: now,
            rank: slot.places.len() as u32,
        };
        slot.free -= pages;
        slot.places.push(at as u32);
        self.places[at] = Some(place);
        true
    }

    /// Gives the pages of a place back; false if the slot has nothing of the model.
    pub(super) fn give_back(&mut self, model: ModelId, gpu: Gpu) -> bool {
        let Some(at) = self.at(model, gpu) else { return false };
        let Some(place) = self.places[at].take() else { return false };
        let slot = &mut self.slots[gpu.id.0 as usize];
        slot.free += self.pages[model.0 as usize];
        slot.places.swap_remove(place.rank as usize);
        if let Some(&moved) = slot.places.get(place.rank as usize)
            && let Some(moved) = &mut self.places[moved as usize]
        {
            moved.rank = place.rank;
        }
        true
    }

    pub(super) fn place(&self, model: ModelId, gpu: Gpu) -> Option<&Place> {
        self.at(model, gpu).and_then(|at| self.places[at].as_ref())
    }

    pub(super) fn place_mut(&mut self, model: ModelId, gpu: Gpu) -> Option<&mut Place> {
        self.at(model, gpu).and_then(|at| self.places[at].as_mut())
    }

    /// Where the model is, or is being loaded, with the number of the place among all.
    pub(super) fn places(&self, model: ModelId) -> impl Iterator<Item = (usize, &Place)> {
        self.range(model).filter_map(|at| Some((at, self.places[at].as_ref()?)))
    }

    /// What the slot holds, or is loading.
    pub(super) fn on_slot(&self, id: GpuId) -> impl Iterator<Item = (ModelId, &Place)> {
        let places = self.slots[id.0 as usize].places.iter();
        places.filter_map(|&at| {
            let model = ModelId(at / self.copies as u32);
            Some((model, self.places[at as usize].as_ref()?))
        })
    }

    /// A model that the slot holds, or is loading.
    pub(super) fn first_on(&self, id: GpuId) -> Option<ModelId> {
        self.on_slot(id).next().map(|(model, _)| model)
    }

    /// A slot that holds the model, or is loading it.
    pub(super) fn first_of(&self, model: ModelId) -> Option<Gpu> {
        self.places(model).next().map(|(_, place)| place.gpu)
    }

    /// In how many places the model is, or is being loaded.
    pub(super) fn copies(&self, model: ModelId) -> u32 {
        self.places(model).count() as u32
    }

    fn at(&self, model: ModelId, gpu: Gpu) -> Option<usize> {
        self.range(model).find(|&at| self.places[at].is_some_and(|place| place.gpu == gpu))
    }

    fn range(&self, model: ModelId) -> core::ops::Range<usize> {
        let first = model.0 as usize * self.copies;
        first..first + self.copies
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(life: u32) -> Gpu {
        Gpu { id: GpuId(0), life }
    }

    /// One slot of eight pages, and two models that take one each.
    fn memory(residents: usize) -> Memory {
        let mut memory = Memory::new(1, 2, residents, vec![1, 1]);
        memory.join(gpu(0), 8);
        memory
    }

    #[test]
    fn a_slot_has_no_more_models_than_it_may_however_small_they_are() {
        let mut memory = memory(1);
        assert!(memory.take(Nanos::ZERO, ModelId(0), gpu(0)));
        assert!(!memory.take(Nanos::ZERO, ModelId(1), gpu(0)));
        assert!(!memory.has_room(ModelId(1), GpuId(0), 0, 0));
        assert!(memory.has_room(ModelId(1), GpuId(0), 1, 1), "once the other has left");
    }

    #[test]
    fn a_slot_that_joins_again_holds_nothing() {
        let mut memory = memory(8);
        assert!(memory.take(Nanos::ZERO, ModelId(0), gpu(0)));
        memory.join(gpu(1), 8);
        assert_eq!((memory.copies(ModelId(0)), memory.first_on(GpuId(0))), (0, None));
        assert!(!memory.take(Nanos::ZERO, ModelId(0), gpu(0)), "that life is over");
        assert!(memory.take(Nanos::ZERO, ModelId(0), gpu(1)));
        assert_eq!(memory.free_pages(GpuId(0)), 7);
    }
}

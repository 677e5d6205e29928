//! Which slots hold the weights of which model, where slots do not hold those of every model (Clockwork §5.2).
//!
//! A model is either on every slot of its sub-cluster, or on those few that [`Residency::add`] names. The ready
//! candidates of the latter are ordered for each slot apart.

use alloc::boxed::Box;
use alloc::vec;

use crate::candidate::Gpu;
use crate::containers::idset::IdSet;
use crate::containers::linked_heaps::LinkedHeaps;
use baton_types::{GpuId, ModelId, Nanos};

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Residency {
    /// Slots that may hold a model.
    copies: usize,
    /// Models that may run only where they are resident.
    bound: IdSet,
    /// `copies` for each model. A slot in an earlier life holds nothing any more.
    places: Box<[Option<Gpu>]>,
    /// Per slot: ready candidates. Nodes are indices of `places`.
    ready: LinkedHeaps<Nanos>,
}

impl Residency {
    /// Every model is on every slot. At most `copies` slots will hold a model that is not.
    pub(crate) fn new(gpus: usize, models: usize, copies: usize) -> Self {
        let (gpus, places) = if copies == 0 { (0, 0) } else { (gpus, models * copies) };
        Self {
            copies,
            bound: IdSet::new(models),
            places: vec![None; places].into_boxed_slice(),
            ready: LinkedHeaps::new(gpus, places),
        }
    }

    /// Whether some model may run only where it is resident.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.bound.len() > 0
    }

    /// Whether the model may run only where it is resident.
    #[inline]
    pub(crate) fn binds(&self, model: ModelId) -> bool {
        self.is_used() && self.bound.contains(model.0)
    }

    /// The model may run only where it is resident from now on, which is nowhere; or on every slot.
    pub(crate) fn bind(&mut self, model: ModelId, is_bound: bool) {
        for place in self.range(model) {
            self.ready.remove(place as u32);
            self.places[place] = None;
        }
        match is_bound {
            true => self.bound.insert(model.0),
            false => self.bound.remove(model.0),
        }
    }

    /// Slots that may hold a model.
    pub(crate) fn copies(&self) -> usize {
        self.copies
    }

    /// One of the slots that hold the model, or did in an earlier life, if there is one with this number.
    pub(crate) fn slot(&self, model: ModelId, copy: usize) -> Option<Gpu> {
        self.places[self.range(model)][copy]
    }

    /// The slots that hold the model, and some that did in an earlier life.
    pub(crate) fn slots(&self, model: ModelId) -> impl Iterator<Item = Gpu> + '_ {
        self.places[self.range(model)].iter().copied().flatten()
    }

    /// The slot holds the model from now on. False if as many as may do already, of which `is_present` says
    /// which are still there.
    pub(crate) fn add(
        &mut self,
        model: ModelId,
        gpu: Gpu,
        is_present: impl Fn(Gpu) -> bool,
    ) -> bool {
        let range = self.range(model);
        let places = &mut self.places[range];
        if places.contains(&Some(gpu)) {
            return true;
        }
        let free = places.iter_mut().find(|place| place.is_none_or(|gpu| !is_present(gpu)));
        free.map(|place| *place = Some(gpu)).is_some()
    }

    /// The slot does not hold the model any more; false if it did not.
    pub(crate) fn remove(&mut self, model: ModelId, gpu: Gpu) -> bool {
        let held = self.range(model).find(|&place| self.places[place] == Some(gpu));
        let Some(place) = held else { return false };
        self.places[place] = None;
        self.ready.remove(place as u32);
        true
    }

    /// The slot is gone: nothing is ready for it.
    pub(crate) fn clear(&mut self, slot: GpuId) {
        if self.copies > 0 {
            while let Some((_, place)) = self.ready.peek(slot.0) {
                self.ready.remove(place);
            }
        }
    }

    /// The model's candidate is ready, for each of its slots that `is_present`.
    pub(crate) fn offer(
        &mut self,
        model: ModelId,
        urgency: Nanos,
        is_present: impl Fn(Gpu) -> bool,
    ) {
        for place in self.range(model) {
            if let Some(gpu) = self.places[place].filter(|&gpu| is_present(gpu)) {
                self.ready.set(gpu.id.0, place as u32, urgency);
            }
        }
    }

    /// The model's candidate is not ready any more; false if it was not.
    pub(crate) fn retract(&mut self, model: ModelId) -> bool {
        self.range(model)
            .fold(false, |was_ready, place| self.ready.remove(place as u32) | was_ready)
    }

    /// The most urgent candidate that is ready for the slot.
    pub(crate) fn first(&self, slot: GpuId) -> Option<(Nanos, ModelId)> {
        let (urgency, place) = self.ready.peek(slot.0)?;
        Some((urgency, ModelId(place / self.copies as u32)))
    }

    fn range(&self, model: ModelId) -> core::ops::Range<usize> {
        let first = model.0 as usize * self.copies;
        first..first + self.copies
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_no_longer_holds_a_model_leaves_it_on_the_others() {
        let gpu = |id| Gpu { id: GpuId(id), life: 0 };
        let model = ModelId(1);
        for gone in [0, 1] {
            let mut residency = Residency::new(3, 2, 2);
            residency.bind(model, true);
            assert!([0, 1].iter().all(|&id| residency.add(model, gpu(id), |_| true)));
            assert!(!residency.remove(model, gpu(2)), "it never did");
            assert!(residency.remove(model, gpu(gone)));
            assert!(residency.slots(model).eq([gpu(1 - gone)]));
        }
    }
}

//! How many slots a model may have for longer than its tasks need: those that the other models of its sub-cluster leave
//! it. A model with variants spends them on accuracy (`model/variant.rs`); nothing here knows of that.

use super::part::{PARTS_OF_SLOT, SlotPart};
use super::{Model, RankState};
use crate::candidate::{Candidate, Gpu};
use baton_types::{ModelId, SubclusterId};

/// In 1/32 slots.
const SLOT: u64 = PARTS_OF_SLOT as u64;

impl RankState {
    /// Of the slots on which the model may run, those that the others do not need, if the model has batches on no more
    /// of them; else none. Where they leave less than a slot, the part of it that they leave.
    pub(super) fn spare(&mut self, subcluster: SubclusterId, model: ModelId) -> (u32, SlotPart) {
        let slots = if self.residency.binds(model) {
            self.residency.slots(model).count() as u32
        } else {
            self.gpus.present(subcluster)
        };
        let entry = &mut self.models[model.0 as usize];
        let reserve = &self.reserves[subcluster.0 as usize];
        let needed = entry.work.needed_by_others(reserve);
        let left = (u64::from(slots) * SLOT).saturating_sub(needed);
        // Back and forth, dear batches would hold slots while others of the model take the rest.
        let to_return = if entry.left == 0 { SLOT.min(left / 2) } else { 0 };
        let is_short = needed > 0 && entry.work.needs_more_than(left - to_return);
        let left = if is_short { 0 } else { left };
        let whole = (left / SLOT) as u32;
        // Less than a slot is a turn on one.
        entry.left = match whole {
            _ if needed == 0 => u32::MAX,
            0 => u32::from(left > 0),
            whole => whole,
        };
        if entry.taken > entry.left {
            return (0, SlotPart::NONE);
        }
        let longest = || reserve.others_can_wait(&entry.work, entry.demand.slack);
        let part = if whole > 0 { SlotPart::NONE } else { SlotPart::new(left as u32, longest()) };
        (whole, part)
    }

    /// As of the last [`RankState::spare`].
    pub(super) fn is_short_of_slots(&self, model: ModelId) -> bool {
        self.models[model.0 as usize].left == 0
    }

    /// Other models lose tasks, and one of them waits for a slot while none is idle. As of the last [`RankState::spare`].
    pub(super) fn others_lose(&self, subcluster: SubclusterId, model: ModelId) -> bool {
        let at = subcluster.0 as usize;
        self.models[model.0 as usize].work.others_lose(&self.reserves[at])
            && self.ready[at].peek().is_some()
            && !self.gpus.has_idle(subcluster)
    }

    /// The model has variants, and batches on as many slots as the others leave it. While its head can, it waits for
    /// one of these: on one more slot a batch would get the cheapest variant.
    #[inline]
    pub(super) fn has_its_share(&self, model: ModelId, candidate: &Candidate) -> bool {
        let Model { taken, left, .. } = self.models[model.0 as usize];
        candidate.excess == Candidate::WITHIN_SPARE && (1..=taken).contains(&left)
    }

    /// The slot was granted to the model. Behind another batch of the same model it is not one more.
    #[inline]
    pub(super) fn take(&mut self, gpu: Gpu, model: ModelId) {
        let is_taken = self.gpus.holders(gpu).contains(&Some(model));
        self.models[model.0 as usize].taken += u32::from(!is_taken);
    }

    /// The batch that was to come last on the slot does not.
    pub(super) fn release_last(&mut self, gpu: Gpu) {
        match self.gpus.holders(gpu) {
            [first, None] => self.release(first, None),
            [first, last] => self.release(last, first),
        }
    }

    /// The first batch on the slot has ended.
    #[inline]
    pub(super) fn release_first(&mut self, gpu: Gpu) {
        let [first, last] = self.gpus.holders(gpu);
        self.release(first, last);
    }

    /// All batches on the slot are gone.
    pub(super) fn release_all(&mut self, gpu: Gpu) {
        let [first, last] = self.gpus.holders(gpu);
        self.release(first, last);
        self.release(last, None);
    }

    /// A batch of one model is gone from a slot, and another remains: the slot is still the model's if both are.
    #[inline]
    fn release(&mut self, gone: Option<ModelId>, remains: Option<ModelId>) {
        if let Some(model) = gone.filter(|_| gone != remains) {
            let taken = &mut self.models[model.0 as usize].taken;
            debug_assert!(*taken > 0, "it was granted the slot");
            *taken = taken.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::candidate::{GpuUpdate, Grant};
    use crate::rank::{RankLimits, RankSink};
    use baton_types::{GpuId, Nanos};

    const SLOT: Gpu = Gpu { id: GpuId(0), life: 1 };

    struct Out;

    impl RankSink for Out {
        fn grant(&mut self, _: ModelId, _: Grant) {}
        fn drained(&mut self, _: Gpu) {}
    }

    /// A slot with a batch of each of these models, one behind the other.
    fn holding(models: [u32; 2]) -> RankState {
        let limits = RankLimits { gpus: 1, subclusters: 1, copies: 0 };
        let mut rank = RankState::new(limits, &[SubclusterId(0); 2]);
        rank.on_gpu_join(Nanos::ZERO, SLOT, SubclusterId(0), &mut Out);
        for model in models.map(ModelId) {
            rank.models[model.0 as usize].granted = 1;
            rank.take(SLOT, model);
            rank.gpus.grant(Nanos::ZERO, SLOT, (model, Nanos::ZERO));
            let (start, latency) = (Nanos::ZERO, Nanos(5));
            let planned =
                GpuUpdate::Planned { gpu: SLOT, start, latency, work: latency, fetched_at: None };
            rank.on_gpu(Nanos::ZERO, planned, &mut Out);
        }
        rank
    }

    #[test]
    fn a_slot_is_taken_by_each_model_of_which_it_has_a_batch() {
        for models in [[0, 0], [0, 1], [1, 0], [1, 1]] {
            let taken = |release: fn(&mut RankState, Gpu), left: &[u32]| {
                let mut rank = holding(models);
                release(&mut rank, SLOT);
                let taken = [0, 1].map(|model| rank.models[model].taken);
                let expected = [0, 1].map(|model| u32::from(left.contains(&model)));
                assert_eq!(taken, expected, "{models:?}, of which {left:?} remain");
            };
            taken(|_, _| (), &models);
            taken(RankState::release_first, &models[1..]);
            taken(RankState::release_last, &models[..1]);
            taken(RankState::release_all, &[]);
        }
    }
}

//! How many slots a model may have for longer than its tasks need: those that the other models of its sub-cluster leave
//! it. A model with variants spends them on accuracy (`model/variant.rs`); nothing here knows of that.

use super::RankState;
use crate::candidate::Gpu;
use baton_types::{ModelId, SubclusterId};

impl RankState {
    /// Of the slots on which the model may run, those that the others do not need, if the model has a batch on no more
    /// of them; else none.
    pub(super) fn spare(&mut self, subcluster: SubclusterId, model: ModelId) -> u32 {
        let slots = if self.residency.binds(model) {
            self.residency.slots(model).count() as u32
        } else {
            self.gpus.present(subcluster)
        };
        let entry = &mut self.models[model.0 as usize];
        let needed = entry.work.needed_by_others(&self.reserves[subcluster.0 as usize]);
        let spare = u64::from(slots).saturating_sub(needed) as u32;
        if entry.outstanding > spare { 0 } else { spare }
    }

    /// The batch that was to come last on the slot does not.
    pub(super) fn release_last(&mut self, gpu: Gpu) {
        let last = self.gpus.holders(gpu).last();
        last.into_iter().for_each(|model| self.release(model));
    }

    /// The first batch on the slot has ended.
    pub(super) fn release_first(&mut self, gpu: Gpu) {
        let first = self.gpus.holders(gpu).next();
        first.into_iter().for_each(|model| self.release(model));
    }

    /// All batches on the slot are gone.
    pub(super) fn release_all(&mut self, gpu: Gpu) {
        let all = self.gpus.holders(gpu);
        all.for_each(|model| self.release(model));
    }

    fn release(&mut self, model: ModelId) {
        let outstanding = &mut self.models[model.0 as usize].outstanding;
        debug_assert!(*outstanding > 0, "it was granted the slot");
        *outstanding = outstanding.saturating_sub(1);
    }
}

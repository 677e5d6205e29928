//! What must hold of a slot whenever something has happened to it. Assertions ask.

use super::{GpuTable, PIPELINE_DEPTH, State};
use baton_types::GpuId;

impl GpuTable {
    /// Whether the slot's state says what else is kept of it, and it is offered if and only if it takes batches.
    pub(super) fn is_consistent(&self, id: GpuId) -> bool {
        let slot = &self.slots[id.0 as usize];
        let at = slot.subcluster.0 as usize;
        let is_offered = self.idle[at].contains(id.0) || self.busy[at].key(id.0).is_some();
        let is_full = slot.outstanding == PIPELINE_DEPTH;
        let agrees = match slot.state {
            State::Absent => true,
            State::Open => !slot.leaving && !is_full,
            State::Granted => slot.outstanding > 0,
            State::Full => !slot.leaving && is_full,
            State::Draining => slot.leaving,
        };
        agrees && is_offered == (slot.state == State::Open)
    }
}

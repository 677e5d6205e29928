//! How slow each slot is.

use super::{GpuTable, Slot, State, TRIES};
use crate::candidate::Gpu;
use crate::execution::slowdown::{Pace, Slowdown};
use baton_types::{GpuId, Nanos, SubclusterId};

impl GpuTable {
    /// A batch of the slot was measured. A slow slot's says nothing of the usual ones.
    pub(crate) fn measured(&mut self, gpu: Gpu, batch: Pace) {
        let Some(subcluster) = self.subcluster(gpu) else { return };
        let (slot, usual) =
            (&mut self.slots[gpu.id.0 as usize], &mut self.usual[subcluster.0 as usize]);
        slot.pace.observe(batch);
        slot.slowdown = slot.pace.beside(*usual);
        if !slot.slowdown.is_slow() {
            usual.observe(batch);
        }
    }

    /// How slow each of the sub-cluster's slots is that take batches.
    pub(crate) fn slowdowns(&self, subcluster: SubclusterId) -> impl Iterator<Item = Slowdown> {
        let serves = move |slot: &&Slot| {
            slot.subcluster == subcluster && !slot.leaving && slot.state != State::Absent
        };
        self.slots.iter().filter(serves).map(|slot| slot.slowdown)
    }

    /// The idle slot has been used before, and is as slow as this.
    pub(crate) fn know_slowdown(&mut self, now: Nanos, gpu: Gpu, slowdown: Slowdown) {
        let Some(slot) = self.alive_mut(gpu) else { return };
        (slot.slowdown, slot.tries) = (slowdown, TRIES);
        self.settle(now, gpu.id);
    }

    /// Whether the slot is slow.
    #[inline]
    pub(crate) fn is_slow(&self, id: GpuId) -> bool {
        self.slots[id.0 as usize].slowdown.is_slow()
    }

    /// When the slot is free, and how slow it is.
    pub(crate) fn pace_of(&self, id: GpuId) -> (Nanos, Slowdown) {
        let slot = &self.slots[id.0 as usize];
        (slot.free_at.max(self.ports.free_at(id.0)), slot.slowdown)
    }

    /// How slow the first idle slot is that is.
    #[inline]
    pub(crate) fn slow_idle(&self, subcluster: SubclusterId) -> Option<Slowdown> {
        let id = self.idle[subcluster.0 as usize].first_slow()?;
        Some(self.slots[id as usize].slowdown)
    }

    /// Whether every idle slot is slow.
    pub(crate) fn only_slow_idle(&self, subcluster: SubclusterId) -> bool {
        self.idle[subcluster.0 as usize].that_keep_pace().next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_slots_are_idle_too() {
        let (mut table, all) = (GpuTable::new(3, 1), SubclusterId(0));
        (0..3).for_each(|id| table.join(Nanos::ZERO, Gpu { id: GpuId(id), life: 1 }, all));
        table.close(GpuId(1));
        table.slots[1].slowdown = Slowdown::from_256ths(384);
        table.open_idle(1);
        assert_eq!(table.idle(Nanos::ZERO, all), 3);
    }

    #[test]
    fn how_slow_slots_are_is_that_of_those_that_serve_the_subcluster() {
        let (mut table, ours, others) = (GpuTable::new(4, 2), SubclusterId(0), SubclusterId(1));
        let gpu = |id| Gpu { id: GpuId(id), life: 1 };
        for (id, subcluster) in [(0, ours), (1, ours), (2, others)] {
            table.join(Nanos::ZERO, gpu(id), subcluster);
        }
        assert_eq!([ours, others].map(|of| table.slowdowns(of).count()), [2, 1]);
        table.drain(gpu(0));
        assert_eq!([ours, others].map(|of| table.slowdowns(of).count()), [1, 1]);
    }
}

//! Which slot a batch gets: of those that are free by then, with a port that can fetch its inputs, the one that leaves the
//! others most to choose from.

use super::{GpuTable, State};
use crate::candidate::Gpu;
use baton_types::{GpuId, Nanos, SubclusterId};

/// Idle slots that are looked at for one whose port is free.
const PORTS_LOOKED_AT: usize = 32;

impl GpuTable {
    /// The slot to use for a batch that starts at `start`: the lowest-numbered idle one, else the
    /// one that is free first, if that is early enough.
    #[inline]
    pub(crate) fn available(
        &mut self,
        now: Nanos,
        subcluster: SubclusterId,
        start: Nanos,
    ) -> Option<Gpu> {
        self.wake_idle(now, subcluster);
        if self.ports.is_used() {
            self.pass_taken_ports(subcluster, start);
        }
        let idle = self.idle[subcluster.0 as usize]
            .first()
            .map(|id| self.with_free_port(now, subcluster, id));
        let id = idle.or_else(|| self.first_busy(subcluster, start))?;
        Some(Gpu { id: GpuId(id), life: self.slots[id as usize].life })
    }

    /// The idle slot itself if its port fetches nothing; else the next idle one of which that is true, or of those looked at
    /// the one whose port is free first.
    fn with_free_port(&self, now: Nanos, subcluster: SubclusterId, first: u32) -> u32 {
        let taken_until = |id: u32| self.ports.free_at(id).max(now);
        if taken_until(first) == now {
            return first;
        }
        let others = self.idle[subcluster.0 as usize].that_keep_pace();
        others.take(PORTS_LOOKED_AT).min_by_key(|&id| taken_until(id)).unwrap_or(first)
    }

    /// A slot whose port is taken until after `start` is none that is free by then, whatever it executes.
    fn pass_taken_ports(&mut self, subcluster: SubclusterId, start: Nanos) {
        let first = |table: &Self| {
            table.idle[subcluster.0 as usize]
                .first()
                .or_else(|| table.first_busy(subcluster, start))
        };
        while let Some(id) = first(self).filter(|&id| self.ports.free_at(id) > start) {
            self.close(GpuId(id));
            self.busy[subcluster.0 as usize].set(id, self.ports.free_at(id));
        }
    }

    /// The same without idle slots that are slow, none of which suits.
    pub(crate) fn available_but_slow(&self, subcluster: SubclusterId, start: Nanos) -> Option<Gpu> {
        let overdue = || self.idle[subcluster.0 as usize].first_overdue();
        let id = overdue().or_else(|| self.first_busy(subcluster, start))?;
        let slot = &self.slots[id as usize];
        (!slot.slowdown.is_slow()).then_some(Gpu { id: GpuId(id), life: slot.life })
    }

    /// When the first slot that executes is free.
    pub(crate) fn first_end(&self, subcluster: SubclusterId) -> Option<Nanos> {
        self.busy[subcluster.0 as usize].peek().map(|(free_at, _)| free_at)
    }

    /// The slot, if it takes a batch that starts at `start`, and its place among those that do: as
    /// [`GpuTable::available`] prefers them, the least first.
    pub(crate) fn open_by(&self, now: Nanos, gpu: Gpu, start: Nanos) -> Option<(u8, Nanos, Gpu)> {
        let slot = self.alive(gpu)?;
        let free_at = self.open_at(gpu.id)?;
        let (class, moment) = match free_at <= now {
            true => (slot.preference() as u8, Nanos::ZERO),
            false => (u8::MAX, free_at),
        };
        (free_at <= start).then_some((class, moment, gpu))
    }

    /// When the slot is free; `None` while it takes no batch.
    pub(crate) fn open_at(&self, id: GpuId) -> Option<Nanos> {
        (self.slots[id.0 as usize].state == State::Open).then(|| self.pace_of(id).0)
    }

    /// Whether the slot has nothing to execute.
    pub(crate) fn is_idle(&self, now: Nanos, gpu: Gpu) -> bool {
        self.alive(gpu).is_some_and(|slot| {
            slot.state == State::Open && slot.outstanding == 0 && slot.free_at <= now
        })
    }

    /// Slots of the sub-cluster that are free by now, as far as [`GpuTable::available`] has looked.
    pub(crate) fn free(&self, subcluster: SubclusterId) -> u32 {
        self.idle[subcluster.0 as usize].all()
    }

    /// When the first slot of the sub-cluster is free; in the past if one is idle.
    pub(crate) fn first_free(&self, subcluster: SubclusterId) -> Option<Nanos> {
        match self.idle[subcluster.0 as usize].first() {
            Some(_) => Some(Nanos::ZERO),
            None => self.first_end(subcluster),
        }
    }

    /// The slot that executes and is free first, if that is early enough.
    #[inline]
    fn first_busy(&self, subcluster: SubclusterId, start: Nanos) -> Option<u32> {
        let first = self.busy[subcluster.0 as usize].peek();
        first.filter(|&(free_at, _)| free_at <= start).map(|(_, id)| id)
    }
}

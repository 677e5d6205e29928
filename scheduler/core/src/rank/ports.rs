//! The ports through which backends fetch inputs: until when each is taken by the batches planned so far.
//!
//! A port fetches one batch after the other: what the next one's plan has to wait for, whichever of the backend's slots it
//! is for. Each plan says when its inputs will be there, each report when they were. By what a batch was later than planned
//! those planned behind it will be later too; their plans knew of it if they were made after the report.
//!
//! Slots without a port, and batches whose fetching was not measured yet, take no port's time.

use alloc::boxed::Box;
use alloc::vec;
use core::mem;

use crate::rank::gpus::PIPELINE_DEPTH;
use baton_types::{GpuId, Nanos};

/// A slot without a port.
const NONE: u32 = u32::MAX;

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Ports {
    /// Per slot: its port, and its batches that are planned and not reported, oldest first.
    slots: Box<[Slot]>,
    ports: Box<[Port]>,
    /// A port has been taken.
    is_used: bool,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    port: u32,
    planned: [Planned; PIPELINE_DEPTH as usize],
    len: u8,
    /// What the batch of the slot's grant may take of the port; zero without a grant.
    granted: Nanos,
}

/// When the inputs of a batch will be there, if that is known. `correction` was the port's.
#[derive(Clone, Copy, Debug)]
struct Planned {
    fetched_at: Option<Nanos>,
    correction: i64,
}

#[derive(Clone, Copy, Default, Debug)]
struct Port {
    /// The inputs of the batch that was planned last will be there.
    free_at: Nanos,
    /// By how much later than planned, in nanoseconds, all batches so far were.
    correction: i64,
    /// What grants that are not answered yet may take of it, the last of which was made at `granted_at`.
    granted: Nanos,
    granted_at: Nanos,
}

impl Ports {
    /// No slot has a port.
    pub(crate) fn new(gpus: usize) -> Self {
        let planned = [Planned { fetched_at: None, correction: 0 }; PIPELINE_DEPTH as usize];
        Self {
            slots: vec![Slot { port: NONE, planned, len: 0, granted: Nanos::ZERO }; gpus]
                .into_boxed_slice(),
            ports: vec![Port::default(); gpus].into_boxed_slice(),
            is_used: false,
        }
    }

    /// The slot's inputs come through the port with this number, which no other backend has.
    pub(crate) fn assign(&mut self, slot: GpuId, port: GpuId) {
        self.slots[slot.0 as usize].port = port.0;
        self.ports[port.0 as usize] = Port::default();
    }

    /// The slot has no batches any more, and no grant.
    pub(crate) fn clear(&mut self, slot: u32) {
        self.answer(slot);
        self.slots[slot as usize].len = 0;
    }

    /// The slot is granted for a batch that may take this much of its port: others that are granted before the answer are
    /// behind it.
    #[inline]
    pub(crate) fn grant(&mut self, now: Nanos, slot: u32, time: Nanos) {
        let Slot { port, granted, .. } = &mut self.slots[slot as usize];
        if self.is_used && *port != NONE {
            debug_assert_eq!(*granted, Nanos::ZERO, "a grant is answered before the next");
            let port = &mut self.ports[*port as usize];
            *granted = time;
            (port.granted, port.granted_at) = (port.granted + time, now);
        }
    }

    /// The grant is answered.
    #[inline]
    pub(crate) fn answer(&mut self, slot: u32) {
        let Slot { port, granted, .. } = &mut self.slots[slot as usize];
        if *granted > Nanos::ZERO {
            let port = &mut self.ports[*port as usize];
            port.granted = port.granted - mem::take(granted);
        }
    }

    /// Whether any port is taken, now or before.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.is_used
    }

    /// When the slot's port has fetched all that is planned; in the past if it fetches nothing.
    #[inline]
    pub(crate) fn free_at(&self, slot: u32) -> Nanos {
        match self.slots[slot as usize].port {
            NONE => Nanos::ZERO,
            port => self.ports[port as usize].free_at(),
        }
    }

    /// The inputs of the slot's next batch will be there at `fetched_at`, or at a time that is not known.
    #[inline]
    pub(crate) fn plan(&mut self, slot: u32, fetched_at: Option<Nanos>) {
        let Slot { port, planned, len, .. } = &mut self.slots[slot as usize];
        if *port == NONE {
            return;
        }
        let port = &mut self.ports[*port as usize];
        debug_assert!(usize::from(*len) < planned.len(), "its backend has no room for more");
        planned[usize::from(*len)] = Planned { fetched_at, correction: port.correction };
        *len += 1;
        if let Some(fetched_at) = fetched_at {
            port.free_at = port.free_at.max(fetched_at);
            self.is_used = true;
        }
    }

    /// The slot's oldest batch is over; its inputs were there at `fetched_at`, if that was measured.
    #[inline]
    pub(crate) fn report(&mut self, slot: u32, fetched_at: Option<Nanos>) {
        let Slot { port, planned, len, .. } = &mut self.slots[slot as usize];
        if *port == NONE || *len == 0 {
            return;
        }
        let oldest = planned[0];
        planned.rotate_left(1);
        *len -= 1;
        if let (Some(planned), Some(fetched_at)) = (oldest.fetched_at, fetched_at) {
            self.ports[*port as usize].correct(oldest.correction, planned, fetched_at);
        }
    }
}

impl Port {
    fn free_at(&self) -> Nanos {
        match self.granted {
            Nanos::ZERO => self.free_at,
            granted => self.free_at.max(self.granted_at) + granted,
        }
    }

    /// A batch that was planned with `known` of the correction had its inputs at `fetched_at` instead of `planned`.
    fn correct(&mut self, known: i64, planned: Nanos, fetched_at: Nanos) {
        let later = fetched_at.0.cast_signed().saturating_sub(planned.0.cast_signed());
        let correction = known.saturating_add(later);
        let more = correction.saturating_sub(self.correction);
        self.free_at = Nanos(self.free_at.0.saturating_add_signed(more)).max(fetched_at);
        self.correction = correction;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: GpuId = GpuId(0);

    /// Two slots behind one port, and one without.
    fn ports() -> Ports {
        let mut ports = Ports::new(3);
        (0..2).for_each(|slot| ports.assign(GpuId(slot), PORT));
        ports
    }

    #[test]
    fn a_port_is_taken_by_all_slots_behind_it() {
        let mut ports = ports();
        ports.plan(0, Some(Nanos(100)));
        assert_eq!([0, 1, 2].map(|slot| ports.free_at(slot).0), [100, 100, 0]);
        ports.plan(1, Some(Nanos(150)));
        ports.plan(2, Some(Nanos(900)));
        assert_eq!([0, 1, 2].map(|slot| ports.free_at(slot).0), [150, 150, 0]);
        ports.plan(0, None);
        assert_eq!(ports.free_at(0), Nanos(150), "a fetch of unknown length takes nothing");
    }

    #[test]
    fn what_is_late_makes_what_is_planned_behind_it_late_but_once() {
        let mut ports = ports();
        ports.plan(0, Some(Nanos(100)));
        ports.plan(1, Some(Nanos(150)));
        ports.report(0, Some(Nanos(130)));
        assert_eq!(ports.free_at(1), Nanos(180), "30 later than planned");
        ports.plan(0, Some(Nanos(220)));
        ports.report(1, Some(Nanos(180)));
        assert_eq!(ports.free_at(0), Nanos(220), "that was known when it was planned");
        ports.report(0, Some(Nanos(210)));
        assert_eq!(ports.free_at(0), Nanos(210), "and what is early makes it early");
    }

    #[test]
    fn grants_take_a_port_until_they_are_answered() {
        let mut ports = ports();
        ports.grant(Nanos(40), 0, Nanos(60));
        assert_eq!(ports.free_at(1), Nanos::ZERO, "nothing was measured yet");
        ports.plan(0, Some(Nanos(100)));
        ports.grant(Nanos(50), 0, Nanos(60));
        ports.grant(Nanos(120), 1, Nanos(70));
        assert_eq!(ports.free_at(0), Nanos(250), "both, from now on");
        ports.answer(0);
        ports.plan(0, Some(Nanos(170)));
        assert_eq!(ports.free_at(0), Nanos(240), "one is planned, one granted");
        ports.clear(1);
        assert_eq!(ports.free_at(0), Nanos(170));
        ports.answer(1);
        assert_eq!(ports.free_at(0), Nanos(170), "once");
    }

    #[test]
    fn batches_without_a_measurement_correct_nothing() {
        let mut ports = ports();
        ports.plan(0, Some(Nanos(100)));
        ports.plan(0, Some(Nanos(150)));
        ports.report(0, None);
        assert_eq!(ports.free_at(0), Nanos(150));
        ports.report(0, Some(Nanos(190)));
        assert_eq!(ports.free_at(0), Nanos(190), "the reports are those of the batches in turn");
        ports.report(0, Some(Nanos(500)));
        assert_eq!(ports.free_at(0), Nanos(190), "none is left");
    }

    #[test]
    fn a_slot_that_joins_again_has_no_batches() {
        let mut ports = ports();
        ports.plan(1, Some(Nanos(100)));
        ports.clear(1);
        ports.plan(1, Some(Nanos(200)));
        ports.report(1, Some(Nanos(230)));
        assert_eq!(ports.free_at(1), Nanos(230), "the report is not taken for the former batch's");
    }
}

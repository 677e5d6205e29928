//! The GPU slots as a central baseline sees them: idle, or free at a predicted moment.
//!
//! With network delays a slot may be given a second batch before the first has ended, so that
//! plan and inputs travel meanwhile; without, there is nothing to gain from that.

use baton_core::{IndexedHeap, Nanos, NetworkDelay};

use crate::scenario::Scenario;

/// A batch as planned.
#[derive(Clone, Copy, Debug)]
struct Planned {
    exec_at: Nanos,
    latency: Nanos,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Slots {
    /// Idle slots, by number.
    idle: IndexedHeap<u32>,
    /// Slots with one batch, by its predicted end. Empty unless `overlaps`.
    ending: IndexedHeap<Nanos>,
    /// Batches each slot has.
    batches: Vec<u8>,
    /// The last batch each slot got.
    last: Vec<Planned>,
    overlaps: bool,
}

impl Slots {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let gpus = scenario.gpus as usize;
        let mut slots = Self {
            idle: IndexedHeap::new(gpus),
            ending: IndexedHeap::new(gpus),
            batches: vec![0; gpus],
            last: vec![Planned { exec_at: Nanos::ZERO, latency: Nanos::ZERO }; gpus],
            overlaps: scenario.network != NetworkDelay::default(),
        };
        let present = (0..).zip(scenario.present_at_first());
        present.filter(|&(_, is)| is).for_each(|(gpu, _)| slots.join(gpu));
        slots
    }

    /// The slot for a batch that could start at `start`: the lowest-numbered idle one, else one
    /// that is free by then.
    pub(crate) fn free_by(&self, start: Nanos) -> Option<u32> {
        let idle = self.idle.peek().map(|(_, gpu)| gpu);
        idle.or_else(|| self.ending.peek().filter(|&(end, _)| end <= start).map(|(_, gpu)| gpu))
    }

    /// When a slot that is not idle will be free; [`Nanos::MAX`] if no end is known.
    pub(crate) fn next_end(&self) -> Nanos {
        self.ending.peek().map_or(Nanos::MAX, |(end, _)| end)
    }

    /// The slot got a batch, which is not to start before `exec_at`.
    pub(crate) fn take(&mut self, gpu: u32, exec_at: Nanos, latency: Nanos) {
        self.idle.remove(gpu);
        self.ending.remove(gpu);
        let slot = gpu as usize;
        self.batches[slot] += 1;
        self.last[slot] = Planned { exec_at, latency };
        if self.overlaps && self.batches[slot] == 1 {
            self.ending.set(gpu, exec_at + latency);
        }
    }

    /// A batch of the slot has ended.
    pub(crate) fn finished(&mut self, now: Nanos, gpu: u32) {
        let slot = gpu as usize;
        self.batches[slot] -= 1;
        if self.batches[slot] == 0 {
            return self.join(gpu);
        }
        let Planned { exec_at, latency } = self.last[slot];
        self.ending.set(gpu, exec_at.max(now) + latency);
    }

    /// The slot has come, or become idle.
    pub(crate) fn join(&mut self, gpu: u32) {
        self.ending.remove(gpu);
        self.idle.set(gpu, gpu);
    }

    /// The slot is gone, with what it had.
    pub(crate) fn leave(&mut self, gpu: u32) {
        self.idle.remove(gpu);
        self.ending.remove(gpu);
        self.batches[gpu as usize] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = Nanos::from_millis(1);

    fn slots(network: &str) -> Slots {
        let text = format!(
            "gpus = 2\nduration_s = 1\n{network}\n[[model]]\nname = 'm'\nalpha_ms = 1\nbeta_ms = 1\n\
             slo_ms = 9"
        );
        Slots::new(&Scenario::parse(&text).unwrap())
    }

    #[test]
    fn a_slot_is_offered_before_its_batch_ends_but_not_with_two() {
        let mut slots = slots("network = { ctrl_us = 1000 }");
        slots.take(0, MS, MS.times(10));
        slots.take(1, MS, MS.times(20));
        assert_eq!((slots.free_by(MS.times(10)), slots.next_end()), (None, MS.times(11)));
        assert_eq!(slots.free_by(MS.times(11)), Some(0));
        slots.take(0, MS.times(11), MS.times(5));
        assert_eq!((slots.free_by(MS.times(20)), slots.next_end()), (None, MS.times(21)));
        // The first overruns by 4 ms: what follows starts then.
        slots.finished(MS.times(15), 0);
        assert_eq!((slots.free_by(MS.times(19)), slots.next_end()), (None, MS.times(20)));
        slots.finished(MS.times(20), 0);
        assert_eq!(slots.free_by(MS.times(20)), Some(0));
    }

    #[test]
    fn without_delays_a_slot_is_offered_when_it_is_idle() {
        let mut slots = slots("");
        slots.take(0, Nanos::ZERO, MS);
        slots.take(1, Nanos::ZERO, MS);
        assert_eq!((slots.free_by(MS.times(9)), slots.next_end()), (None, Nanos::MAX));
        slots.finished(MS, 1);
        assert_eq!(slots.free_by(MS), Some(1));
    }

    #[test]
    fn a_slot_that_left_comes_back_idle() {
        let mut slots = slots("network = { ctrl_us = 1000 }");
        slots.take(0, MS, MS.times(10));
        slots.leave(0);
        slots.leave(1);
        assert_eq!((slots.free_by(MS.times(99)), slots.next_end()), (None, Nanos::MAX));
        slots.join(0);
        assert_eq!(slots.free_by(Nanos::ZERO), Some(0));
        slots.take(0, MS, MS);
        slots.finished(MS.times(2), 0);
        assert_eq!(slots.free_by(Nanos::ZERO), Some(0));
    }
}

//! The GPU slots of all sub-clusters: which are idle, which become free when.
//!
//! Each slot is used a few times once it has joined, so that its pace is known. After that idle slots are ordered by
//! number, so that load consolidates on the low ones and the idle rest is a clean signal to an autoscaler
//! (Symphony §4.4) where batches wait (`Prefer::FewestGpus`). A slot has at most [`PIPELINE_DEPTH`] batches: one that executes and one whose inputs are fetched
//! meanwhile.

mod checks;
mod choice;
mod idle;
mod pace;

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use crate::candidate::Gpu;
use crate::containers::heap::IndexedHeap;
use crate::execution::slowdown::{Pace, Slowdown};
use crate::rank::ports::Ports;
use baton_types::{GpuId, ModelId, Nanos, SubclusterId};
use idle::{IdleSlots, Preference};

/// Batches a slot may have: executing, and being fetched.
pub const PIPELINE_DEPTH: u8 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// No backend has this slot.
    Absent,
    /// Available from `free_at` on.
    Open,
    /// Granted; the model has not answered yet.
    Granted,
    /// Pipeline full: not available before a batch has finished.
    Full,
    /// Its backend leaves: finishes what it has, gets nothing new.
    Draining,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    state: State,
    life: u32,
    subcluster: SubclusterId,
    /// Batches granted and not reported finished.
    outstanding: u8,
    /// Expected end of everything it has.
    free_at: Nanos,
    /// Start and ℓ(b) of the batch planned last.
    tail: (Nanos, Nanos),
    /// Its backend asked to leave while a grant was out.
    leaving: bool,
    /// Which models it was granted to, last and before.
    holder: ModelId,
    former: ModelId,
    /// The mean of its batches, and how slow it is by that.
    pace: Pace,
    slowdown: Slowdown,
    /// Grants since it joined, [`TRIES`] at most.
    tries: u8,
}

impl Slot {
    /// Among slots that are free.
    fn preference(&self) -> Preference {
        match (self.outstanding, self.slowdown, self.tries) {
            (1.., ..) => Preference::Overdue,
            (0, Slowdown::NONE, TRIES) => Preference::Usual,
            (0, Slowdown::NONE, _) => Preference::Untried,
            (0, ..) => Preference::Slow,
        }
    }
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct GpuTable {
    slots: Box<[Slot]>,
    ports: Ports,
    /// Per sub-cluster.
    idle: Vec<IdleSlots>,
    /// Per sub-cluster: slots that execute, by expected end.
    busy: Vec<IndexedHeap<Nanos>>,
    /// Per sub-cluster: slots present, draining ones not counted.
    present: Vec<u32>,
    /// Per sub-cluster: moving mean of planned executions, and the same over the slots present.
    execution: Vec<Nanos>,
    turn: Vec<Nanos>,
    /// Per sub-cluster: of the slots that are not slow.
    usual: Vec<Pace>,
}

/// After this many batches the mean is mostly theirs: the slot's pace is known.
const TRIES: u8 = 16;
/// Weight of one execution in the mean: 1/32.
const WEIGHT: u64 = 32;

impl GpuTable {
    pub(crate) fn new(gpus: usize, subclusters: usize) -> Self {
        let absent = Slot {
            state: State::Absent,
            life: 0,
            subcluster: SubclusterId(0),
            outstanding: 0,
            free_at: Nanos::ZERO,
            tail: (Nanos::ZERO, Nanos::ZERO),
            leaving: false,
            holder: ModelId(0),
            former: ModelId(0),
            pace: Pace::AS_PREDICTED,
            slowdown: Slowdown::NONE,
            tries: 0,
        };
        Self {
            slots: vec![absent; gpus].into_boxed_slice(),
            ports: Ports::new(gpus),
            idle: vec![IdleSlots::new(gpus); subclusters],
            busy: vec![IndexedHeap::new(gpus); subclusters],
            present: vec![0; subclusters],
            execution: vec![Nanos::ZERO; subclusters],
            turn: vec![Nanos::ZERO; subclusters],
            usual: vec![Pace::AS_PREDICTED; subclusters],
        }
    }

    /// The slot's inputs come through this port, from when it joins next.
    pub(crate) fn assign_port(&mut self, slot: GpuId, port: GpuId) {
        self.ports.assign(slot, port);
    }

    /// The mean time from one slot's becoming free to the next one's while all execute, as of the
    /// batch planned last.
    pub(crate) fn turn(&self, subcluster: SubclusterId) -> Nanos {
        self.turn[subcluster.0 as usize]
    }

    /// Slots of the sub-cluster that take batches.
    pub(crate) fn present(&self, subcluster: SubclusterId) -> u32 {
        self.present[subcluster.0 as usize]
    }

    /// Slots of the sub-cluster that have nothing to execute. One whose batch is overdue is none.
    #[inline]
    pub(crate) fn idle(&mut self, now: Nanos, subcluster: SubclusterId) -> u32 {
        self.wake_idle(now, subcluster);
        self.idle[subcluster.0 as usize].idle()
    }

    /// Whether [`GpuTable::idle`] finds any.
    pub(crate) fn has_idle(&self, subcluster: SubclusterId) -> bool {
        self.idle[subcluster.0 as usize].idle() > 0
    }

    /// The sub-cluster of a slot, while it is in this life, and the model it was granted to last.
    pub(crate) fn holder(&self, gpu: Gpu) -> Option<(SubclusterId, ModelId)> {
        self.alive(gpu).map(|slot| (slot.subcluster, slot.holder))
    }

    /// Whose batches are outstanding on the slot, the one that ends first first.
    #[inline]
    pub(crate) fn holders(&self, gpu: Gpu) -> [Option<ModelId>; PIPELINE_DEPTH as usize] {
        let Some(slot) = self.alive(gpu) else { return [None; _] };
        match slot.outstanding {
            0 => [None, None],
            1 => [Some(slot.holder), None],
            _ => [Some(slot.former), Some(slot.holder)],
        }
    }

    /// The slot in its present life, or in its last one.
    pub(crate) fn present_life(&self, id: GpuId) -> Gpu {
        Gpu { id, life: self.slots[id.0 as usize].life }
    }

    /// The sub-cluster the slot belongs to, while it is in this life.
    #[inline]
    pub(crate) fn subcluster(&self, gpu: Gpu) -> Option<SubclusterId> {
        self.alive(gpu).map(|slot| slot.subcluster)
    }

    /// A backend brought the slot. Whatever the number stood for before is gone.
    pub(crate) fn join(&mut self, now: Nanos, gpu: Gpu, subcluster: SubclusterId) {
        let life = self.slots[gpu.id.0 as usize].life;
        self.leave(Gpu { id: gpu.id, life });
        self.slots[gpu.id.0 as usize] = Slot {
            state: State::Open,
            life: gpu.life,
            subcluster,
            outstanding: 0,
            free_at: now,
            tail: (now, Nanos::ZERO),
            leaving: false,
            holder: ModelId(0),
            former: ModelId(0),
            pace: Pace::AS_PREDICTED,
            slowdown: Slowdown::NONE,
            tries: 0,
        };
        self.present[subcluster.0 as usize] += 1;
        self.open(now, gpu.id);
        debug_assert!(self.is_consistent(gpu.id));
    }

    /// The slot's backend is gone, and what it executed with it.
    pub(crate) fn leave(&mut self, gpu: Gpu) {
        let Some(slot) = self.alive(gpu).copied() else { return };
        self.close(gpu.id);
        if !slot.leaving {
            self.present[slot.subcluster.0 as usize] -= 1;
        }
        self.slots[gpu.id.0 as usize].state = State::Absent;
        self.ports.clear(gpu.id.0);
        debug_assert!(self.is_consistent(gpu.id));
    }

    /// The slot's backend wants to leave. True if nothing is outstanding any more; said once.
    pub(crate) fn drain(&mut self, gpu: Gpu) -> bool {
        let Some(slot) = self.alive(gpu).copied() else { return true };
        if slot.leaving {
            return false;
        }
        self.present[slot.subcluster.0 as usize] -= 1;
        self.close(gpu.id);
        let slot = &mut self.slots[gpu.id.0 as usize];
        slot.leaving = true;
        if slot.state != State::Granted {
            slot.state = State::Draining;
        }
        let is_drained = slot.outstanding == 0;
        debug_assert!(self.is_consistent(gpu.id));
        is_drained
    }

    /// True when the slot drains and has finished everything.
    #[inline]
    pub(crate) fn drained(&self, gpu: Gpu) -> bool {
        self.alive(gpu).is_some_and(|slot| slot.leaving && slot.outstanding == 0)
    }

    /// Batches granted and not reported finished, over all slots there are. Walks all slots: for
    /// tests and diagnosis.
    pub(crate) fn outstanding(&self) -> usize {
        let there = self.slots.iter().filter(|slot| slot.state != State::Absent);
        there.map(|slot| usize::from(slot.outstanding)).sum()
    }

    /// Slots that are offered for a batch, now or when what they have ends. Walks all slots: for tests
    /// and diagnosis.
    pub(crate) fn offered(&self) -> usize {
        let idle = self.idle.iter().map(|idle| idle.all() as usize);
        idle.chain(self.busy.iter().map(IndexedHeap::len)).sum()
    }

    /// Takes the slot for a batch of the model whose inputs are there `delay` after the grant at the earliest. Returns when
    /// the slot is expected to be free, for how long its port is taken, and how slow the slot is.
    #[inline]
    pub(crate) fn grant(
        &mut self,
        now: Nanos,
        gpu: Gpu,
        (model, delay): (ModelId, Nanos),
    ) -> (Nanos, Nanos, Slowdown) {
        self.close(gpu.id);
        let port_wait = self.ports.free_at(gpu.id.0) - now;
        self.ports.grant(now, gpu.id.0, delay);
        let slot = &mut self.slots[gpu.id.0 as usize];
        debug_assert_eq!(slot.state, State::Open, "only what takes batches is granted");
        slot.state = State::Granted;
        (slot.former, slot.holder) = (slot.holder, model);
        slot.outstanding += 1;
        slot.tries = (slot.tries + 1).min(TRIES);
        let granted = (slot.free_at, port_wait, slot.slowdown);
        debug_assert!(self.is_consistent(gpu.id));
        granted
    }

    /// The granted slot got a batch. It starts no earlier than what the slot has before it ends,
    /// of which a report may have arrived since the grant.
    #[inline]
    pub(crate) fn planned(
        &mut self,
        now: Nanos,
        gpu: Gpu,
        (start, latency): (Nanos, Nanos),
        fetched_at: Option<Nanos>,
    ) {
        let Some(slot) = self.alive_mut(gpu) else { return };
        debug_assert_eq!(slot.state, State::Granted, "a plan answers a grant");
        let before = slot.free_at;
        slot.tail = (start, latency);
        slot.free_at = slot.free_at.max(start) + latency;
        debug_assert!(slot.free_at >= before + latency, "it runs behind what the slot has");
        let subcluster = slot.subcluster;
        self.learn_turn(subcluster, latency);
        self.ports.answer(gpu.id.0);
        self.ports.plan(gpu.id.0, fetched_at);
        self.settle(now, gpu.id);
    }

    fn learn_turn(&mut self, subcluster: SubclusterId, latency: Nanos) {
        let at = subcluster.0 as usize;
        let mean = self.execution[at];
        self.execution[at] = mean - Nanos(mean.0 / WEIGHT) + Nanos(latency.0 / WEIGHT);
        self.turn[at] = Nanos(self.execution[at].0 / u64::from(self.present[at].max(1)));
    }

    /// The granted slot got none.
    pub(crate) fn returned(&mut self, now: Nanos, gpu: Gpu) {
        let Some(slot) = self.alive_mut(gpu) else { return };
        debug_assert_eq!(slot.state, State::Granted, "only what was granted is given back");
        debug_assert!(slot.outstanding > 0, "a grant counts");
        slot.holder = slot.former;
        slot.outstanding = slot.outstanding.saturating_sub(1);
        self.ports.answer(gpu.id.0);
        self.settle(now, gpu.id);
    }

    /// A batch of the slot ended at `at`: what follows it starts then, not when it was planned to.
    #[inline]
    pub(crate) fn finished(&mut self, now: Nanos, gpu: Gpu, at: Nanos, fetched_at: Option<Nanos>) {
        let Some(slot) = self.alive_mut(gpu) else { return };
        let granted = slot.state == State::Granted;
        debug_assert!(slot.outstanding > u8::from(granted), "a batch that ended was planned");
        slot.outstanding = slot.outstanding.saturating_sub(1);
        let (start, latency) = slot.tail;
        let follows = slot.outstanding > u8::from(granted);
        slot.free_at = if follows { start.max(at) + latency } else { at };
        self.ports.report(gpu.id.0, fetched_at);
        if !granted {
            self.settle(now, gpu.id); // else the answer to the grant settles it
        }
    }

    fn alive(&self, gpu: Gpu) -> Option<&Slot> {
        let slot = self.slots.get(gpu.id.0 as usize)?;
        (slot.state != State::Absent && slot.life == gpu.life).then_some(slot)
    }

    fn alive_mut(&mut self, gpu: Gpu) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(gpu.id.0 as usize)?;
        (slot.state != State::Absent && slot.life == gpu.life).then_some(slot)
    }

    /// Puts the slot where its outstanding batches and its backend's wish to leave say.
    fn settle(&mut self, now: Nanos, id: GpuId) {
        self.close(id);
        let slot = &mut self.slots[id.0 as usize];
        debug_assert!(slot.outstanding <= PIPELINE_DEPTH, "its backend has no room for more");
        slot.state = match (slot.leaving, slot.outstanding < PIPELINE_DEPTH) {
            (true, _) => State::Draining,
            (false, true) => State::Open,
            (false, false) => State::Full,
        };
        if slot.state == State::Open {
            self.open(now, id);
        }
        debug_assert!(self.is_consistent(id));
    }

    fn open(&mut self, now: Nanos, id: GpuId) {
        let slot = &self.slots[id.0 as usize];
        if slot.free_at <= now {
            self.open_idle(id.0);
        } else {
            self.busy[slot.subcluster.0 as usize].set(id.0, slot.free_at);
        }
    }

    fn open_idle(&mut self, id: u32) {
        let slot = &self.slots[id as usize];
        self.idle[slot.subcluster.0 as usize].insert(slot.preference(), id);
    }

    fn close(&mut self, id: GpuId) {
        let at = self.slots[id.0 as usize].subcluster.0 as usize;
        self.idle[at].remove(id.0);
        self.busy[at].remove(id.0);
    }

    /// Moves the slots that are free by now among the idle ones.
    fn wake_idle(&mut self, now: Nanos, subcluster: SubclusterId) {
        let at = subcluster.0 as usize;
        while let Some((_, id)) = self.busy[at].pop_up_to(now) {
            self.open_idle(id);
        }
    }
}

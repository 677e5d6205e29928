//! The global half of the scheduler: candidates × GPU slots → grants (Symphony App. C, RankThread).
//!
//! A candidate waits on its model's timer until it becomes schedulable; then it is ready. Whenever
//! a slot is idle or about to be free, the most urgent ready candidate that may run there gets it.
//! Every operation is O(log n) in models or slots.

mod catalogue;
mod eligibility;
pub(crate) mod gpus;
mod matching;
mod part;
mod ports;
mod reserve;
mod residency;
mod share;
mod slot_wait;
mod spare;

use alloc::vec;
use alloc::vec::Vec;

use crate::candidate::{Candidate, Gpu, GpuUpdate, Grant};
use crate::containers::heap::IndexedHeap;
use crate::containers::idset::IdSet;
use crate::execution::slowdown::Slowdown;
use crate::rank::gpus::GpuTable;
use crate::rank::reserve::{Demand, OwnWork, Reserve};
use crate::rank::residency::Residency;
use baton_types::{GpuId, ModelId, Nanos, SubclusterId};
use slot_wait::Waited;

pub(crate) use part::PARTS_OF_SLOT;
pub use part::SlotPart;

/// Turns by which a model all of whose tasks are bad would be advanced.
const TURNS_PER_BAD: u64 = 100;

/// How much of everything there may be; fixes the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RankLimits {
    /// GPU slot numbers: `0..gpus`.
    pub gpus: u32,
    /// Sub-clusters: `0..subclusters`.
    pub subclusters: u32,
    /// Slots that may hold one model, of those that may run only where they are resident. 0: every model may run on every
    /// slot of its sub-cluster.
    pub copies: u32,
}

/// Receives what RankState decides.
pub trait RankSink {
    /// The model may use the slot for its next batch.
    fn grant(&mut self, model: ModelId, grant: Grant);
    /// A draining slot has finished everything.
    fn drained(&mut self, gpu: Gpu);
}

/// What RankState counted since start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RankCounters {
    /// Candidates taken into account.
    pub candidates: u64,
    /// Candidates ignored: computed before a grant the model had not seen.
    pub superseded: u64,
    /// Grants made.
    pub grants: u64,
    /// Of these, of slots that are slower than the others of their sub-cluster.
    pub grants_of_slow: u64,
    /// Ready candidates whose window closed before a slot was free.
    pub expired: u64,
}

#[derive(Clone, Copy, Debug)]
struct Model {
    subcluster: SubclusterId,
    candidate: Option<Candidate>,
    /// Grants made to it, modulo 2³². A candidate that has seen fewer is stale.
    grants: u32,
    demand: Demand,
    work: OwnWork,
    /// Tasks in the candidate that was granted a slot last; the batch may have become larger or smaller since.
    granted: u32,
    /// Slots with batches of it that have not ended.
    taken: u32,
    /// Slots that the others left it as of the last grant; [`u32::MAX`] if all.
    left: u32,
    waited: Waited,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct RankState {
    models: Vec<Model>,
    gpus: GpuTable,
    /// Candidates that are not due yet, or leave slots to shorter objectives, by the moment at which
    /// that changes.
    waiting: IndexedHeap<Nanos>,
    /// Per sub-cluster: schedulable candidates without a slot that may have any, most urgent first.
    ready: Vec<IndexedHeap<Nanos>>,
    /// Per sub-cluster with ready candidates: when the next slot must be granted.
    matching: IndexedHeap<Nanos>,
    /// Which models may run only where they are resident, and their schedulable candidates.
    residency: Residency,
    /// Per slot with such candidates: when it must be granted.
    matching_slots: IndexedHeap<Nanos>,
    /// Those that are being granted, by the urgency of their first candidate. Empty between two inputs.
    due_slots: IndexedHeap<Nanos>,
    /// Per sub-cluster: what is kept of its idle slots.
    reserves: Vec<Reserve>,
    /// Per sub-cluster: a slot has become idle, or fewer are kept.
    spared: Vec<bool>,
    /// Waiting candidates that have changed.
    changed: IdSet,
    /// There are candidates that may start early, or yield. Otherwise nothing is kept.
    is_flexible: bool,
    counters: RankCounters,
}

impl RankState {
    /// No GPU slots yet. `models[m]` is the sub-cluster that serves model m. Allocates everything
    /// it will ever use.
    pub fn new(limits: RankLimits, models: &[SubclusterId]) -> Self {
        let fresh = |&subcluster| Model {
            subcluster,
            candidate: None,
            grants: 0,
            demand: Demand::default(),
            work: OwnWork::default(),
            granted: 1,
            taken: 0,
            left: u32::MAX,
            waited: Waited::default(),
        };
        let subclusters = limits.subclusters as usize;
        let (gpus, copies) = (limits.gpus as usize, limits.copies as usize);
        Self {
            models: models.iter().map(fresh).collect(),
            gpus: GpuTable::new(gpus, subclusters),
            waiting: IndexedHeap::new(models.len()),
            ready: vec![IndexedHeap::new(models.len()); subclusters],
            matching: IndexedHeap::new(subclusters),
            residency: Residency::new(gpus, models.len(), copies),
            matching_slots: IndexedHeap::new(if copies > 0 { gpus } else { 0 }),
            due_slots: IndexedHeap::new(if copies > 0 { gpus } else { 0 }),
            reserves: vec![Reserve::new(); subclusters],
            spared: vec![false; subclusters],
            changed: IdSet::new(models.len()),
            is_flexible: false,
            counters: RankCounters::default(),
        }
    }

    /// A model's latest candidate, computed after it had seen `grants` grants.
    pub fn on_candidate(
        &mut self,
        now: Nanos,
        model: ModelId,
        candidate: Option<Candidate>,
        grants: u32,
        out: &mut impl RankSink,
    ) {
        self.note_candidate(now, model, candidate, grants);
        self.on_timer(now, out);
    }

    /// The first half of [`RankState::on_candidate`], without deciding. Of several messages that
    /// arrive at a time, each is noted and then [`RankState::on_timer`] is called once, at the same
    /// `now`: the most urgent of them all is served first.
    pub fn note_candidate(
        &mut self,
        now: Nanos,
        model: ModelId,
        candidate: Option<Candidate>,
        grants: u32,
    ) {
        let entry = &mut self.models[model.0 as usize];
        if entry.grants != grants {
            self.counters.superseded += 1;
            return;
        }
        self.counters.candidates += 1;
        entry.candidate = candidate;
        if let Some(candidate) = candidate {
            entry.demand = Demand::of(&candidate);
            self.is_flexible |=
                candidate.excess != Candidate::NOT_EARLY || candidate.slack > Nanos::ZERO;
        }
        let subcluster = entry.subcluster;
        let until =
            candidate.and_then(|candidate| self.waits_until(now, subcluster, model, &candidate));
        match until {
            Some(until) => self.wait(model, subcluster, until),
            None => drop(self.waiting.remove(model.0)),
        }
        match candidate.filter(|_| until.is_none()) {
            Some(candidate) => self.join_ready(now, model, subcluster, candidate),
            None => {
                if candidate.is_none() {
                    self.models[model.0 as usize].waited.ends(now);
                }
                self.retract(model, subcluster);
            }
        }
        debug_assert!(self.is_in_its_place(model), "a candidate waits, or is ready");
    }

    /// Whether the model's candidate waits, or is ready: one of the two, and neither without a candidate.
    fn is_in_its_place(&self, model: ModelId) -> bool {
        let Model { subcluster, candidate, .. } = self.models[model.0 as usize];
        let waits = self.waiting.key(model.0).is_some();
        let is_ready = self.ready[subcluster.0 as usize].key(model.0).is_some();
        match candidate {
            None => !waits && !is_ready,
            // One that may not run on every slot is ready for each of its slots apart.
            Some(_) if self.residency.binds(model) => !is_ready,
            Some(_) => waits != is_ready,
        }
    }

    /// The slots that are given this port number fetch their inputs through one port, from when they join next: plans of one
    /// count for all. Slots without a port wait for none.
    pub fn share_port(&mut self, slot: GpuId, port: GpuId) {
        self.gpus.assign_port(slot, port);
    }

    /// A backend brought a slot.
    pub fn on_gpu_join(
        &mut self,
        now: Nanos,
        gpu: Gpu,
        subcluster: SubclusterId,
        out: &mut impl RankSink,
    ) {
        self.release_all(self.gpus.present_life(gpu.id));
        self.gpus.join(now, gpu, subcluster);
        self.spared[subcluster.0 as usize] = true;
        self.residency.clear(gpu.id);
        self.rearm_for(gpu, subcluster);
        self.on_timer(now, out);
    }

    /// A slot's backend is gone.
    pub fn on_gpu_leave(&mut self, gpu: Gpu) {
        let Some(subcluster) = self.gpus.subcluster(gpu) else { return };
        self.release_all(gpu);
        self.gpus.leave(gpu);
        self.residency.clear(gpu.id);
        self.rearm_for(gpu, subcluster);
    }

    /// A slot's backend wants to leave: no more grants; [`RankSink::drained`] follows.
    pub fn on_gpu_drain(&mut self, gpu: Gpu, out: &mut impl RankSink) {
        let subcluster = self.gpus.subcluster(gpu);
        if self.gpus.drain(gpu) {
            out.drained(gpu);
        }
        if let Some(subcluster) = subcluster {
            self.rearm_for(gpu, subcluster);
        }
    }

    /// News of a slot, from the model it was granted to.
    pub fn on_gpu(&mut self, now: Nanos, update: GpuUpdate, out: &mut impl RankSink) {
        self.note_gpu(now, update, out);
        self.on_timer(now, out);
    }

    /// The first half of [`RankState::on_gpu`]: see [`RankState::note_candidate`].
    pub fn note_gpu(&mut self, now: Nanos, update: GpuUpdate, out: &mut impl RankSink) {
        let gpu = match update {
            GpuUpdate::Planned { gpu, start, latency, work, fetched_at } => {
                self.note_work(now, gpu, work, latency);
                self.gpus.planned(now, gpu, (start, latency), fetched_at);
                gpu
            }
            GpuUpdate::Returned { gpu } => {
                self.release_last(gpu);
                self.gpus.returned(now, gpu);
                gpu
            }
            GpuUpdate::Finished { gpu, at, pace, fetched_at } => {
                if let Some(pace) = pace {
                    self.gpus.measured(gpu, pace);
                }
                self.release_first(gpu);
                self.gpus.finished(now, gpu, at, fetched_at);
                gpu
            }
        };
        if self.gpus.drained(gpu) {
            out.drained(gpu);
        }
        if let Some(subcluster) = self.gpus.subcluster(gpu) {
            let is_taken = matches!(update, GpuUpdate::Planned { .. });
            self.spared[subcluster.0 as usize] |= !is_taken;
            self.rearm_for(gpu, subcluster);
        }
    }

    /// Does everything that is due, and then starts early what there are slots to spare for.
    pub fn on_timer(&mut self, now: Nanos, out: &mut impl RankSink) {
        while let Some((_, model)) = self.waiting.pop_up_to(now) {
            self.fall_due(now, ModelId(model));
        }
        self.match_all(now, out);
        while let Some(model) = self.changed.first() {
            self.changed.remove(model);
            self.start_early(now, ModelId(model), out);
        }
        for subcluster in (0..self.spared.len() as u32).map(SubclusterId) {
            self.use_spared(now, subcluster, out);
        }
        debug_assert!(!self.may_use_spared(), "else the driver would not sleep");
        debug_assert!(self.next_timer().is_none_or(|at| at > now), "all that is due is done");
    }

    /// When [`RankState::on_timer`] must be called; `None` while nothing is pending.
    #[must_use]
    pub fn next_timer(&self) -> Option<Nanos> {
        if self.may_use_spared() {
            return Some(Nanos::ZERO);
        }
        let due = |heap: &IndexedHeap<Nanos>| heap.peek().map(|(at, _)| at);
        let waiting = due(&self.waiting);
        let tick = waiting.filter(|_| self.is_flexible).and_then(|_| self.next_tick());
        let slots = due(&self.matching_slots);
        [waiting, due(&self.matching), slots, tick].into_iter().flatten().min()
    }

    /// Batches granted and not reported finished, over all slots. Walks all slots: for tests and
    /// diagnosis.
    pub fn outstanding(&self) -> usize {
        self.gpus.outstanding()
    }

    /// Slots that are offered for a batch, now or when what they have ends: with nothing outstanding,
    /// all that are present. Walks all slots: for tests and diagnosis.
    pub fn gpus_offered(&self) -> usize {
        self.gpus.offered()
    }

    /// Slots of the sub-cluster that take batches.
    pub fn gpus_present(&self, subcluster: SubclusterId) -> u32 {
        self.gpus.present(subcluster)
    }

    /// How slow each of the sub-cluster's slots is that take batches. Walks all slots: for trials.
    pub fn slowdowns(&self, subcluster: SubclusterId) -> impl Iterator<Item = Slowdown> {
        self.gpus.slowdowns(subcluster)
    }

    /// The idle slot has been used before, and is as slow as this.
    pub(crate) fn know_slowdown(&mut self, now: Nanos, gpu: Gpu, slowdown: Slowdown) {
        self.gpus.know_slowdown(now, gpu, slowdown);
    }

    /// Counted since start.
    pub fn counters(&self) -> RankCounters {
        self.counters
    }

    /// The candidate may have any slot from now on, and waits until there is one.
    fn join_ready(
        &mut self,
        now: Nanos,
        model: ModelId,
        subcluster: SubclusterId,
        candidate: Candidate,
    ) {
        self.models[model.0 as usize].waited.begins(now);
        self.make_ready(model, subcluster, candidate);
    }

    #[inline]
    fn make_ready(&mut self, model: ModelId, subcluster: SubclusterId, candidate: Candidate) {
        let urgency = self.urgency(subcluster, candidate);
        self.offer(model, subcluster, urgency);
    }

    /// What ready candidates are ordered by. One per cent of bad tasks is worth a turn: no
    /// model's bad rate shall grow while others have time to spare.
    fn urgency(&self, subcluster: SubclusterId, candidate: Candidate) -> Nanos {
        let turns = u64::from(candidate.bad_rate) * TURNS_PER_BAD;
        candidate.urgency - Nanos(self.gpus.turn(subcluster).times(turns).0 >> 16)
    }
}

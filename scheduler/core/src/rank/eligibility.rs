//! Who may run what: a ready candidate competes for the slots on which its model may run.
//!
//! That is every slot of the model's sub-cluster, or those that hold its weights ([`Residency`]). The first kind is
//! ordered once for each sub-cluster, the second once for each slot. A candidate of the second kind, with fewer slots to
//! choose from, is matched first; but slots that the more urgent ones of the first kind need all of go to these.

use super::{RankSink, RankState};
use crate::candidate::Gpu;
use crate::model::sizing::PER_CENT;
use baton_types::{GpuId, ModelId, Nanos, SubclusterId};

impl RankState {
    /// As [`RankState::serve`], for a model that may run only where it is resident: nowhere at first. Takes
    /// [`RankLimits::copies`](crate::RankLimits) > 0.
    pub fn serve_where_resident(&mut self, model: ModelId, subcluster: SubclusterId) {
        self.serve(model, subcluster);
        debug_assert_ne!(self.residency.copies(), 0, "there is room for copies");
        self.residency.bind(model, true);
    }

    /// A slot of the model's sub-cluster holds its weights from now on. False if that changes nothing: the slot is not
    /// there any more, or as many slots hold the model as may.
    #[must_use]
    pub fn on_resident(
        &mut self,
        now: Nanos,
        model: ModelId,
        gpu: Gpu,
        out: &mut impl RankSink,
    ) -> bool {
        let entry = &self.models[model.0 as usize];
        if !self.residency.binds(model) || self.gpus.subcluster(gpu) != Some(entry.subcluster) {
            return false;
        }
        let gpus = &self.gpus;
        if !self.residency.add(model, gpu, |gpu| gpus.subcluster(gpu).is_some()) {
            return false;
        }
        match (entry.candidate, self.waiting.key(model.0)) {
            (Some(candidate), None) => self.make_ready(model, entry.subcluster, candidate),
            (Some(_), Some(_)) => self.changed.insert(model.0),
            (None, _) => {}
        }
        self.on_timer(now, out);
        true
    }

    /// The slot gives the model's weights up: it gets no more grants for this slot. What was granted before is still to
    /// be executed.
    pub fn on_evicted(&mut self, model: ModelId, gpu: Gpu) {
        if self.residency.remove(model, gpu) {
            self.rearm_slot(gpu.id);
        }
    }

    /// Whether the slot may execute batches of the model now.
    pub fn may_run(&self, model: ModelId, gpu: Gpu) -> bool {
        let subcluster = self.models[model.0 as usize].subcluster;
        let is_there = self.gpus.subcluster(gpu) == Some(subcluster);
        let is_bound = self.residency.binds(model);
        is_there && (!is_bound || self.residency.slots(model).any(|slot| slot == gpu))
    }

    /// Whether one of the slots on which the model may run is idle, if any of its sub-cluster is.
    #[inline]
    pub(super) fn may_use_idle(&self, now: Nanos, model: ModelId) -> bool {
        !self.residency.binds(model) || self.has_idle_copy(now, model)
    }

    fn has_idle_copy(&self, now: Nanos, model: ModelId) -> bool {
        self.residency.slots(model).any(|gpu| self.gpus.is_idle(now, gpu))
    }

    /// The candidate competes for slots from now on.
    #[inline(always)]
    pub(super) fn offer(&mut self, model: ModelId, subcluster: SubclusterId, urgency: Nanos) {
        if !self.residency.binds(model) {
            self.ready[subcluster.0 as usize].set(model.0, urgency);
            return self.rearm(subcluster);
        }
        self.offer_to_copies(model, urgency);
    }

    fn offer_to_copies(&mut self, model: ModelId, urgency: Nanos) {
        let urgency = urgency - self.wait_for_copy(model);
        let gpus = &self.gpus;
        self.residency.offer(model, urgency, |gpu| gpus.subcluster(gpu).is_some());
        self.rearm_slots_of(model);
    }

    /// How much longer it takes until one of the model's slots is free than until any is, if all execute: so much earlier it
    /// must claim one. Where one per cent of the tasks is lost it counts for nothing: there is no time to give to single
    /// tasks in place of large batches.
    fn wait_for_copy(&self, model: ModelId) -> Nanos {
        let subcluster = self.models[model.0 as usize].subcluster;
        let copies = self.residency.slots(model).filter(|&gpu| self.gpus.subcluster(gpu).is_some());
        let (turn, slots) = (self.gpus.turn(subcluster), self.gpus.present(subcluster));
        let longer = turn.times(slots.into()).0 / copies.count().max(1) as u64;
        let lost = u64::from(self.reserves[subcluster.0 as usize].bad_rate());
        Nanos((Nanos(longer) - turn).0 * PER_CENT.saturating_sub(lost) / PER_CENT)
    }

    /// The candidate does not compete any more.
    #[inline(always)]
    pub(super) fn retract(&mut self, model: ModelId, subcluster: SubclusterId) {
        if !self.residency.binds(model) {
            if self.ready[subcluster.0 as usize].remove(model.0) {
                self.rearm(subcluster);
            }
        } else {
            self.retract_from_copies(model);
        }
    }

    fn retract_from_copies(&mut self, model: ModelId) {
        if self.residency.retract(model) {
            self.rearm_slots_of(model);
        }
    }

    /// Slots that are due at the same moment take turns by the urgency of their candidates.
    pub(super) fn gather_due_slots(&mut self, now: Nanos) {
        while let Some((_, slot)) = self.matching_slots.pop_up_to(now) {
            let first = self.residency.first(GpuId(slot));
            first.into_iter().for_each(|(urgency, _)| self.due_slots.set(slot, urgency));
        }
    }

    /// A slot is about to be free: the most urgent candidate of a model that it holds is ready no longer, and which slot it
    /// may have.
    #[inline(never)]
    pub(super) fn match_resident(&mut self, now: Nanos, slot: GpuId) -> Option<(ModelId, Gpu)> {
        let (urgency, model) = self.residency.first(slot)?;
        let entry = &self.models[model.0 as usize];
        let (subcluster, candidate) = (entry.subcluster, entry.candidate);
        let start = now + candidate.expect("only candidates are ready").delay;
        let found = self.best_slot(now, model, urgency, start);
        let Some(gpu) = found else {
            let is_free = self.gpus.open_at(slot).is_some_and(|free_at| free_at <= start);
            debug_assert!(!is_free, "else it would be looked at for ever");
            self.rearm_slot(slot);
            return None;
        };
        if self.is_claimed(now, subcluster, gpu, urgency) {
            self.rearm_slot(slot);
            return self.match_ready(now, subcluster);
        }
        self.retract(model, subcluster);
        Some((model, gpu))
    }

    /// Of the slots for which the model's candidate is the most urgent and that are free by `start`, the one that any
    /// candidate would get.
    fn best_slot(&self, now: Nanos, model: ModelId, urgency: Nanos, start: Nanos) -> Option<Gpu> {
        let first = |gpu: &Gpu| self.residency.first(gpu.id) == Some((urgency, model));
        let slots = self.residency.slots(model).filter(first);
        let open = slots.filter_map(|gpu| self.gpus.open_by(now, gpu, start));
        open.min_by_key(|&(class, free_at, gpu)| (class, free_at, gpu.id)).map(|(.., gpu)| gpu)
    }

    /// Whether the slots that are free without this one are too few for the more urgent candidates of models that may run
    /// anywhere.
    fn is_claimed(
        &mut self,
        now: Nanos,
        subcluster: SubclusterId,
        gpu: Gpu,
        urgency: Nanos,
    ) -> bool {
        let ready = &self.ready[subcluster.0 as usize];
        if ready.peek().is_none_or(|(other, _)| other >= urgency) {
            return false;
        }
        let Some((_, wanted)) = self.first_match(now, subcluster) else { return false };
        match self.gpus.free(subcluster) as usize {
            0 => wanted == gpu,
            free => self.ready[subcluster.0 as usize].count_below(urgency, free) >= free,
        }
    }

    /// Sets when [`RankState::match_resident`] must look at the slot: as [`RankState::rearm`] does for a sub-cluster.
    #[inline]
    pub(super) fn rearm_slot(&mut self, slot: GpuId) {
        if self.residency.is_used() {
            self.rearm_used_slot(slot);
        }
    }

    fn rearm_used_slot(&mut self, slot: GpuId) {
        self.due_slots.remove(slot.0);
        match (self.residency.first(slot), self.gpus.open_at(slot)) {
            (Some((_, model)), Some(free_at)) => {
                let candidate = self.models[model.0 as usize].candidate;
                let delay = candidate.map_or(Nanos::ZERO, |c| c.delay);
                self.matching_slots.set(slot.0, free_at - delay);
            }
            _ => drop(self.matching_slots.remove(slot.0)),
        }
    }

    fn rearm_slots_of(&mut self, model: ModelId) {
        for copy in 0..self.residency.copies() {
            if let Some(gpu) = self.residency.slot(model, copy) {
                self.rearm_slot(gpu.id);
            }
        }
    }
}

//! Matching: which ready candidate gets which slot, and when to look.

use super::{RankSink, RankState};
use crate::candidate::{Candidate, Gpu, Grant};
use baton_types::{GpuId, ModelId, Nanos, SubclusterId};

/// Ready candidates that are looked at for one that a slow slot would serve in time.
const PROBED: usize = 16;

impl RankState {
    /// Gives slots to ready candidates, as far as there are any.
    #[inline]
    pub(super) fn match_all(&mut self, now: Nanos, out: &mut impl RankSink) {
        if self.residency.is_used() {
            self.match_resident_first(now, out);
        }
        // Most often there is none: that costs one comparison, and no call.
        while self.matching.peek().is_some_and(|(at, _)| at <= now) {
            self.match_next(now, out);
        }
    }

    /// Gives slots to ready candidates, as far as there are any of models that may run only where they are resident.
    #[inline(never)]
    fn match_resident_first(&mut self, now: Nanos, out: &mut impl RankSink) {
        loop {
            self.gather_due_slots(now);
            if let Some((_, slot)) = self.due_slots.pop_up_to(Nanos::MAX) {
                if let Some((model, gpu)) = self.match_resident(now, GpuId(slot)) {
                    self.decide(now, model, gpu, out);
                }
            } else if !self.match_next(now, out) {
                return;
            }
        }
    }

    /// Looks at the sub-cluster that is due first; false if none is due.
    #[inline(never)]
    fn match_next(&mut self, now: Nanos, out: &mut impl RankSink) -> bool {
        let Some((_, subcluster)) = self.matching.pop_up_to(now) else { return false };
        if let Some((model, gpu)) = self.match_ready(now, SubclusterId(subcluster)) {
            self.decide(now, model, gpu, out);
        }
        true
    }

    /// A slot is about to be free: the most urgent candidate is ready no longer, and which slot it may have.
    #[inline]
    pub(super) fn match_ready(
        &mut self,
        now: Nanos,
        subcluster: SubclusterId,
    ) -> Option<(ModelId, Gpu)> {
        let Some((model, gpu)) = self.first_match(now, subcluster) else {
            self.rearm_at_end(now, subcluster);
            return None;
        };
        self.ready[subcluster.0 as usize].remove(model.0);
        Some((model, gpu))
    }

    /// The most urgent candidate, and the slot that it gets. A slow slot that would be too late for it goes to another, and it
    /// waits for a usual one.
    pub(super) fn first_match(
        &mut self,
        now: Nanos,
        subcluster: SubclusterId,
    ) -> Option<(ModelId, Gpu)> {
        let (_, model) = self.ready[subcluster.0 as usize].peek()?;
        let start = now + self.ready_candidate(model).delay;
        let gpu = self.gpus.available(now, subcluster, start)?;
        if !self.gpus.is_slow(gpu.id) {
            return Some((ModelId(model), gpu));
        }
        let other = self.for_slow(now, subcluster, gpu.id);
        let beside =
            || self.gpus.available_but_slow(subcluster, start).map(|gpu| (ModelId(model), gpu));
        other.map(|model| (model, gpu)).or_else(beside)
    }

    /// Of the ready candidates looked at, the most urgent one that the slot executes in time; else one of which it does a part.
    #[inline(never)]
    fn for_slow(&self, now: Nanos, subcluster: SubclusterId, slot: GpuId) -> Option<ModelId> {
        let (free_at, slowdown) = self.gpus.pace_of(slot);
        let first = |part: fn(&Candidate) -> Nanos| {
            let ready = self.ready[subcluster.0 as usize].smallest_about(PROBED);
            let in_time = ready.filter(|&(_, model)| {
                let candidate = self.ready_candidate(model);
                candidate.is_in_time(now, free_at, slowdown.applied(part(candidate)))
            });
            in_time.min().map(|(_, model)| ModelId(model))
        };
        first(|whole| whole.latency).or_else(|| first(|part| part.alone))
    }

    fn ready_candidate(&self, model: u32) -> &Candidate {
        self.models[model as usize].candidate.as_ref().expect("only candidates are ready")
    }

    /// No slot suits any ready candidate: nothing is to be looked at before one that executes is about to be free.
    #[inline(never)]
    fn rearm_at_end(&mut self, now: Nanos, subcluster: SubclusterId) {
        let ready = self.ready[subcluster.0 as usize].peek();
        match (ready, self.gpus.first_end(subcluster)) {
            (Some((_, model)), Some(end)) => {
                let early = end - self.ready_candidate(model).delay;
                self.matching.set(subcluster.0, if early > now { early } else { end });
            }
            _ => drop(self.matching.remove(subcluster.0)),
        }
    }

    /// Gives the slot to a candidate that is ready no longer, unless its window has closed.
    fn decide(&mut self, now: Nanos, model: ModelId, gpu: Gpu, out: &mut impl RankSink) {
        let entry = &mut self.models[model.0 as usize];
        let (subcluster, candidate) = (entry.subcluster, entry.candidate);
        let candidate = candidate.expect("only candidates are ready");
        entry.waited.ends(now);
        if now + candidate.delay > candidate.invalid_after {
            // The model's own timer has re-formed the batch, or is about to: word is on its way.
            self.counters.expired += 1;
        } else {
            self.grant(now, model, gpu, out);
        }
        self.rearm_for(gpu, subcluster);
    }

    fn grant(&mut self, now: Nanos, model: ModelId, gpu: Gpu, out: &mut impl RankSink) {
        let subcluster = self.models[model.0 as usize].subcluster;
        let slot_wait = self.slot_wait(subcluster, model);
        self.take(gpu, model);
        let entry = &mut self.models[model.0 as usize];
        let candidate = entry.candidate.take().expect("only candidates are granted slots");
        entry.granted = candidate.batch;
        entry.grants = entry.grants.wrapping_add(1);
        self.counters.grants += 1;
        let (free_at, port_wait, slowdown) = self.gpus.grant(now, gpu, (model, candidate.delay));
        self.counters.grants_of_slow += u64::from(slowdown.is_slow());
        let longest = self.reserves[subcluster.0 as usize].longest(entry.demand.slack);
        let (spare, part) = self.spare(subcluster, model);
        let is_short_of_slots = self.is_short_of_slots(model);
        let others_lose = self.others_lose(subcluster, model);
        let grant = Grant {
            gpu,
            free_at,
            port_wait,
            slowdown,
            slot_wait,
            longest,
            spare,
            part,
            is_short_of_slots,
            others_lose,
        };
        out.grant(model, grant);
    }

    /// Something of the slot has changed.
    #[inline]
    pub(super) fn rearm_for(&mut self, gpu: Gpu, subcluster: SubclusterId) {
        self.rearm(subcluster);
        self.rearm_slot(gpu.id);
    }

    /// Sets when `match_ready` must look at the sub-cluster: early enough before a slot is free
    /// for the most urgent candidate's plan and inputs to arrive in time.
    pub(super) fn rearm(&mut self, subcluster: SubclusterId) {
        let ready = self.ready[subcluster.0 as usize].peek();
        match (ready, self.gpus.first_free(subcluster)) {
            (Some((_, model)), Some(free_at)) => {
                let delay = self.models[model as usize].candidate.map_or(Nanos::ZERO, |c| c.delay);
                self.matching.set(subcluster.0, free_at - delay);
            }
            _ => drop(self.matching.remove(subcluster.0)),
        }
    }
}

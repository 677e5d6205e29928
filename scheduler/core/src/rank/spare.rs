//! Slots to spare: which waiting candidates start before they are due, and which leave slots to
//! shorter objectives although they are due. How many slots are kept says [`crate::rank::reserve`].

use super::{Model, RankSink, RankState};
use crate::candidate::{Candidate, Gpu};
use crate::execution::slowdown::Slowdown;
use baton_types::{ModelId, Nanos, SubclusterId};

/// How many waiting candidates are probed for one that may start early, those due next first.
const PROBED: usize = 16;

impl RankState {
    /// When the candidate's claim to slots changes next; `None` if it may have any slot.
    pub(super) fn waits_until(
        &self,
        now: Nanos,
        subcluster: SubclusterId,
        model: ModelId,
        candidate: &Candidate,
    ) -> Option<Nanos> {
        match self.gpus.slow_idle(subcluster) {
            None => self.claim_changes(now, (subcluster, model, candidate), Nanos::ZERO),
            Some(slow) => self.waits_beside_slow(now, (subcluster, model, candidate), slow),
        }
    }

    /// While only slow slots are idle, everything is so much earlier as the first of them takes longer: afterwards that slot
    /// would be too late.
    #[inline(never)]
    fn waits_beside_slow(
        &self,
        now: Nanos,
        of: (SubclusterId, ModelId, &Candidate),
        slowdown: Slowdown,
    ) -> Option<Nanos> {
        let (subcluster, model, candidate) = of;
        let takes = slowdown.applied(candidate.latency);
        let longer = takes - candidate.latency;
        let is_early = candidate.due() - longer > now;
        let suits = !self.residency.binds(model)
            && self.gpus.only_slow_idle(subcluster)
            && candidate.is_in_time(now, now, takes);
        self.claim_changes(now, of, if is_early || suits { longer } else { Nanos::ZERO })
    }

    /// See [`RankState::waits_until`], with everything so much earlier.
    #[inline]
    fn claim_changes(
        &self,
        now: Nanos,
        (subcluster, model, candidate): (SubclusterId, ModelId, &Candidate),
        earlier: Nanos,
    ) -> Option<Nanos> {
        let due = candidate.due() - earlier;
        if due > now {
            return Some(due);
        }
        let until = candidate.yields_until() - earlier;
        let yields = until > now
            && (self.has_its_share(model, candidate)
                || self.reserves[subcluster.0 as usize].when_due(candidate) > 0);
        yields.then_some(until)
    }

    /// The candidate waits until then, unless there is a slot to spare. Without an idle slot there is
    /// nothing to look at: when one becomes idle, all that wait are.
    pub(super) fn wait(&mut self, model: ModelId, subcluster: SubclusterId, until: Nanos) {
        self.waiting.set(model.0, until);
        if self.is_flexible && self.gpus.has_idle(subcluster) {
            self.changed.insert(model.0);
        }
    }

    /// A candidate's moment has come. It joins the ready ones even if a slot is idle: what falls
    /// due at the same moment is then served by urgency, not in the order of the timers.
    pub(super) fn fall_due(&mut self, now: Nanos, model: ModelId) {
        let Model { subcluster, candidate, .. } = self.models[model.0 as usize];
        let candidate = candidate.expect("only candidates wait");
        match self.waits_until(now, subcluster, model, &candidate) {
            None => self.join_ready(now, model, subcluster, candidate),
            Some(until) => self.wait(model, subcluster, until),
        }
    }

    /// A batch was planned for the slot.
    pub(super) fn note_work(&mut self, now: Nanos, gpu: Gpu, work: Nanos, latency: Nanos) {
        let Some((subcluster, model)) = self.gpus.holder(gpu) else { return };
        let Model { demand, work: own, granted, .. } = &mut self.models[model.0 as usize];
        let reserve = &mut self.reserves[subcluster.0 as usize];
        self.spared[subcluster.0 as usize] |= reserve.refresh(now, self.gpus.present(subcluster));
        reserve.planned(demand, *granted, work);
        own.planned(reserve, demand, *granted, (work, latency));
    }

    /// Gives a waiting candidate a slot, or one that it would overtake, if more are idle than it has to
    /// leave.
    #[inline]
    pub(super) fn start_early(&mut self, now: Nanos, model: ModelId, out: &mut impl RankSink) {
        let Model { subcluster, candidate, .. } = self.models[model.0 as usize];
        let Some(candidate) = candidate.filter(|_| self.waiting.key(model.0).is_some()) else {
            return;
        };
        let idle = self.gpus.idle(now, subcluster);
        if self.may_use_idle(now, model)
            && self.may_start(now, idle, (subcluster, model), &candidate)
        {
            let model = self.first_to_start(now, idle, subcluster, (model, candidate));
            let candidate = self.models[model.0 as usize].candidate;
            let candidate = candidate.expect("only candidates wait");
            self.waiting.remove(model.0);
            self.make_ready(model, subcluster, candidate);
            self.match_all(now, out);
        }
    }

    /// Who starts if this candidate may: itself, unless it would take the last slot from candidates that
    /// must start before it ends. Then it is the one of them that is due first.
    fn first_to_start(
        &self,
        now: Nanos,
        idle: u32,
        subcluster: SubclusterId,
        early: (ModelId, Candidate),
    ) -> ModelId {
        if idle as usize > PROBED {
            return early.0;
        }
        let ends = now + early.1.delay + early.1.latency;
        let (mut first, mut overtaken) = ((early.1.due(), early.0), 0);
        for (model, other) in self.probed(now, subcluster) {
            let may_be_early = model != early.0 && other.excess != Candidate::NOT_EARLY;
            if may_be_early && other.invalid_after < ends {
                overtaken += 1;
                first = first.min((other.due(), model));
            }
        }
        if overtaken < idle { early.0 } else { first.1 }
    }

    /// Whether `idle` slots are more than a waiting candidate has to leave.
    fn may_start(
        &self,
        now: Nanos,
        idle: u32,
        (subcluster, model): (SubclusterId, ModelId),
        candidate: &Candidate,
    ) -> bool {
        if self.has_its_share(model, candidate) {
            return false;
        }
        let reserve = &self.reserves[subcluster.0 as usize];
        let others = if self.gpus.slow_idle(subcluster).is_some()
            && self.waits_until(now, subcluster, model, candidate).is_none()
        {
            Some(0)
        } else if candidate.due() > now {
            reserve.before_due(candidate)
        } else {
            Some(reserve.when_due(candidate))
        };
        others.is_some_and(|others| idle > others)
    }

    /// Slots have become idle, or fewer of them are kept: the waiting candidates that are due first
    /// get those that are to spare.
    pub(super) fn use_spared(
        &mut self,
        now: Nanos,
        subcluster: SubclusterId,
        out: &mut impl RankSink,
    ) {
        let at = subcluster.0 as usize;
        if !self.is_flexible || self.waiting.is_empty() || self.gpus.idle(now, subcluster) == 0 {
            return;
        }
        self.spared[at] |= self.reserves[at].refresh(now, self.gpus.present(subcluster));
        while self.spared[at] {
            match self.first_early(now, subcluster) {
                Some(model) => self.start_early(now, model, out),
                None => self.spared[at] = false,
            }
        }
    }

    fn first_early(&mut self, now: Nanos, subcluster: SubclusterId) -> Option<ModelId> {
        // By when it is due; no two are equal.
        let mut first: Option<(Nanos, ModelId)> = None;
        let idle = self.gpus.idle(now, subcluster);
        for (model, candidate) in self.probed(now, subcluster) {
            let due = (candidate.due(), model);
            let sooner = first.is_none_or(|first| due < first);
            if sooner && self.may_start(now, idle, (subcluster, model), candidate) {
                first = Some(due);
            }
        }
        first.map(|(_, model)| model)
    }

    /// Waiting candidates of the sub-cluster that could use an idle slot.
    fn probed(
        &self,
        now: Nanos,
        subcluster: SubclusterId,
    ) -> impl Iterator<Item = (ModelId, &Candidate)> {
        self.waiting.smallest_about(PROBED).filter_map(move |(_, model)| {
            let Model { subcluster: its, candidate, .. } = &self.models[model as usize];
            let model = ModelId(model);
            let may = *its == subcluster && self.may_use_idle(now, model);
            candidate.as_ref().filter(|_| may).map(|candidate| (model, candidate))
        })
    }

    /// Whether a candidate or a slot was noted that [`RankState::on_timer`] has not looked at yet.
    pub(super) fn may_use_spared(&self) -> bool {
        let spared = |(at, &spared): (u32, &bool)| spared && self.gpus.has_idle(SubclusterId(at));
        let may_wait = self.is_flexible && !self.waiting.is_empty();
        self.changed.first().is_some() || may_wait && (0..).zip(&self.spared).any(spared)
    }

    /// When less may be kept of a sub-cluster's idle slots than now.
    pub(super) fn next_tick(&self) -> Option<Nanos> {
        let subclusters = (0..).map(SubclusterId).zip(&self.reserves);
        let idle = subclusters.filter(|&(subcluster, _)| self.gpus.has_idle(subcluster));
        idle.map(|(_, reserve)| reserve.next_tick()).min()
    }
}

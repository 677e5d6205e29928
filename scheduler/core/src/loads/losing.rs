//! What is loaded for models that lose tasks, before what tasks wait for: a LOAD is worth the tasks that it saves in the next
//! seconds.
//!
//! A model that loses tasks although slots hold it lacks execution time, if these execute most of the time. A copy gives it what
//! another slot has to spare. A model that no slot holds, and whose tasks cannot wait for a LOAD, lacks its weights, and all its tasks
//! count. Either LOAD is made if that is more than what leaves for it is worth.

use core::cmp::Reverse;

use super::baton::{BUSY, LOSING, PROBED, Pool, WORK_UNIT, Wanted};
use super::worth::SPAN;
use super::{LoadReason, LoadSink, LoadState, Rule};
use crate::candidate::Gpu;
use baton_types::{ModelId, Nanos};

/// Models that get a LOAD at each look.
const COPIES_AT_A_TIME: u32 = 4;
/// How often models that lose tasks are looked at. A crowd may last a second.
const LOOK: Nanos = Nanos::from_millis(10);
/// What a slot executes is a mean over about this many looks.
const LOOKS: u64 = 10;
/// In 1/1024 of the time, six tenths: a slot that executes more has no time to spare for what comes in bursts.
const FULL: u64 = 614;
/// What a copy may have of a slot that is full as well: others may lose less there.
const SHARED: u64 = 100;
/// A LOAD saves at least this many tasks while others wait for theirs.
const LEAST: u64 = 8;
/// A model is loaded for tasks to come if it is worth this many times what leaves, so that chance makes none change places.
const CHANCE: u64 = 2;

/// What a slot has executed in the last tenth of a second.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Recent {
    /// Time of what was planned since the last look.
    pub(super) planned: Nanos,
    /// A mean, in 1/1024 of the time.
    used: u64,
}

impl Recent {
    fn look(&mut self, span: Nanos) {
        let part = (self.planned.0 * 1024 / span.0.max(1)).min(2 * 1024);
        self.used = (self.used * (LOOKS - 1) + part) / LOOKS;
        self.planned = Nanos::ZERO;
    }

    fn is_full(&self) -> bool {
        self.used > FULL
    }
}

/// A part of it, in 65536ths.
pub(super) fn part_of(worth: u64, of_65536: u32) -> u64 {
    (worth >> 16).saturating_mul(of_65536.into())
}

impl Pool {
    /// What waits for the model: tasks as many as go into one batch.
    pub(super) fn wanted(&self, model: ModelId) -> Wanted {
        self.wanted[model.0 as usize]
    }

    pub(super) fn is_losing(&self, model: ModelId) -> bool {
        self.wanted(model).bad_rate > LOSING
    }

    /// Of the model's tasks, which are worth `come`, those that so much of a slot's time serves.
    pub(super) fn served_in(&self, time: Nanos, model: ModelId, come: u64) -> u64 {
        let served = come - part_of(come, self.wanted(model).bad_rate);
        let took = self.work.sum_in_tasks(model).max(1);
        (served / took).saturating_mul(time.0 / WORK_UNIT.0)
    }

    /// Whether it is time to look, and then what slots execute is known anew.
    fn look(&mut self, now: Nanos) -> bool {
        let span = now - self.looked_at;
        let is_due = span >= LOOK;
        if is_due {
            self.slots.iter_mut().for_each(|slot| slot.recent.look(span));
            self.looked_at = now;
        }
        is_due
    }

    fn recent(&self, gpu: Gpu) -> Recent {
        self.slots[gpu.id.0 as usize].recent
    }
}

impl LoadState {
    /// See the module documentation.
    pub(super) fn load_losing(&mut self, now: Nanos, out: &mut impl LoadSink) {
        let Rule::Baton(pool) = &mut self.rule else { return };
        if !pool.look(now) {
            return;
        }
        for _ in 0..COPIES_AT_A_TIME {
            let Rule::Baton(pool) = &mut self.rule else { return };
            let Some((key, model)) = pool.losing.pop_up_to(Reverse(0)) else { return };
            let is_loading = self.load_if_worth(now, ModelId(model), out);
            let Rule::Baton(pool) = &mut self.rule else { return };
            if !is_loading && !pool.has_cold() {
                // It may get a slot that has time.
                pool.losing.set(model, key);
            }
        }
    }

    /// A model that loses tasks may lack a slot at the moments that matter: it gets another one that has time.
    pub(super) fn copy_losing(&mut self, now: Nanos, out: &mut impl LoadSink) {
        for _ in 0..COPIES_AT_A_TIME {
            let Rule::Baton(pool) = &mut self.rule else { return };
            let Some((_, model)) = pool.losing.pop_up_to(Reverse(0)) else { return };
            let model = ModelId(model);
            let lacks = |slot: &u32| {
                let gpu = self.memory.gpu(*slot as usize);
                gpu.is_some_and(|gpu| self.memory.place(model, gpu).is_none())
            };
            let slots = self.open.iter();
            let work = |slot: &u32| (pool.slots[*slot as usize].used, *slot);
            let to = slots.take(PROBED).filter(lacks).min_by_key(work);
            let to = to.filter(|slot| work(slot).0 < BUSY);
            let to = to.and_then(|slot| self.memory.gpu(slot as usize));
            if let Some(gpu) = to.filter(|&gpu| self.is_worth_its_victims(model, gpu))
                && self.load_for(LoadReason::Losing, now, (model, gpu), out)
            {
                self.counters.copied += 1;
            }
        }
    }

    /// False if nothing is loaded.
    fn load_if_worth(&mut self, now: Nanos, model: ModelId, out: &mut impl LoadSink) -> bool {
        let Some(gpu) = self.with_most_to_spare(model) else { return false };
        let is_cold = self.memory.first_of(model).is_none();
        if is_cold && self.may_wait(now, model) {
            return false;
        }
        let saves = if is_cold { self.worth.of(model) } else { self.saved_by_copy(model, gpu) };
        let Rule::Baton(pool) = &self.rule else { return false };
        // Those that wait need the loader as well.
        let least = self.worth.tasks(if pool.has_cold() { LEAST } else { 0 });
        if saves <= least || !self.choose_victims(model, gpu) {
            return false;
        }
        let per_copy = |&victim: &ModelId| {
            self.worth.of(victim) / u64::from(self.memory.copies(victim).max(1))
        };
        let costs: u64 = self.victims.iter().map(per_copy).sum();
        let (reason, times) =
            if is_cold { (LoadReason::Expected, CHANCE) } else { (LoadReason::Losing, 1) };
        let is_worth = saves > costs.saturating_mul(times) + least;
        let is_loading = is_worth && self.load_for(reason, now, (model, gpu), out);
        self.counters.copied += u64::from(is_loading && !is_cold);
        is_loading
    }

    /// Tasks of the cold model wait that a LOAD would still help: it is a job beside the others.
    fn may_wait(&self, now: Nanos, model: ModelId) -> bool {
        let Rule::Baton(pool) = &self.rule else { return false };
        pool.latest_load(model).is_some_and(|latest| latest >= now)
    }

    /// Of the slots with an open loader that lack the model.
    fn with_most_to_spare(&self, model: ModelId) -> Option<Gpu> {
        let Rule::Baton(pool) = &self.rule else { return None };
        let slots = self.open.iter();
        let gpus = slots.take(PROBED).filter_map(|slot| self.memory.gpu(slot as usize));
        let lacking = gpus.filter(|&gpu| self.memory.place(model, gpu).is_none());
        lacking.min_by_key(|&gpu| (pool.recent(gpu).used, gpu.id))
    }

    /// Tasks of the model that another slot would serve in the next seconds: no more than are lost, nor than it has time for.
    fn saved_by_copy(&self, model: ModelId, gpu: Gpu) -> u64 {
        let Rule::Baton(pool) = &self.rule else { return 0 };
        let is_full =
            self.memory.places(model).all(|(_, p)| p.is_resident && pool.recent(p.gpu).is_full());
        if !is_full {
            return 0;
        }
        let come = self.worth.sum(model);
        let spare = 1024_u64.saturating_sub(pool.recent(gpu).used).max(SHARED);
        let served = pool.served_in(Nanos(SPAN.0 / 1024 * spare), model, come);
        part_of(come, pool.wanted(model).bad_rate).min(served)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = Nanos::from_millis(1);

    #[test]
    fn what_a_slot_executed_is_a_mean_over_a_tenth_of_a_second() {
        let mut pool = Pool::new(1, 1);
        let mut look = |at_ms: u64, planned_ms: u64| {
            pool.slots[0].recent.planned = MS.times(planned_ms);
            let is_due = pool.look(MS.times(at_ms));
            (is_due, pool.slots[0].recent.used)
        };
        assert_eq!(look(9, 9), (false, 0));
        assert_eq!(look(10, 10), (true, 102), "a tenth of 1024");
        assert_eq!(look(30, 10), (true, 143), "half of the time since");
        let mut twice = Recent { planned: MS.times(30), used: 0 };
        twice.look(MS.times(10));
        assert_eq!(twice.used, 204, "a tenth of 2048: twice the time at most");
        let used = |used| Recent { planned: Nanos::ZERO, used };
        assert!(!used(FULL).is_full() && used(FULL + 1).is_full());
        for at in 4..40 {
            look(at * 10, 10);
        }
        assert!(pool.slots[0].recent.is_full());
        (40..44).for_each(|at| assert!(pool.look(MS.times(at * 10))));
        assert!(pool.slots[0].recent.is_full(), "two thirds");
        assert!(pool.look(MS.times(440)));
        assert!(!pool.slots[0].recent.is_full());
    }
}

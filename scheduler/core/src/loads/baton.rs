//! What `baton` loads: the cold models that are loaded in time, so that most tasks are served; then copies of hot models.
//!
//! A model with waiting tasks that no slot has is a job: its LOAD has a length, a latest start and a value, the tasks that it
//! would serve. Moore's and Hodgson's algorithm over the jobs by latest start leaves those out that would make others late and
//! serve the fewest tasks for their length. In underload that is earliest deadline first. In overload no LOAD is spent on a model
//! whose tasks expire meanwhile.

use alloc::boxed::Box;
use alloc::collections::BinaryHeap;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::expected::ColdTasks;
use super::losing::{Recent, part_of};
use super::worth::Worth;
use super::{LoadReason, LoadSink, LoadState, Rule};
use crate::candidate::{Candidate, Gpu, GpuUpdate};
use crate::containers::heap::IndexedHeap;
use baton_types::{GpuId, ModelId, Nanos};

/// Jobs that are looked at, those with the earliest latest start.
const LOOKED_AT: usize = 256;
/// Loaders that are compared for a LOAD.
pub(super) const PROBED: usize = 64;
/// Backlogs that differ by less count as the same.
const BACKLOG_STEP: Nanos = Nanos::from_millis(4);
/// How often slots are compared for a copy.
const TICK: Nanos = Nanos::from_millis(100);
/// A slot's use is a mean over about this many ticks.
const TICKS: u64 = 8;
/// In 1/1024: above this a slot is busy, and one that is this much less so can take a copy.
pub(super) const BUSY: u64 = 819;
const LESS: u64 = 26;

/// A model loses tasks if more than half a per cent of them are bad, in 1/65536.
pub(super) const LOSING: u32 = 328;

/// What execution times are counted in: sums over minutes fit.
pub(super) const WORK_UNIT: Nanos = Nanos(1 << 16);

/// A cold model, as a job for a loader.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Job {
    latest: Nanos,
    model: u32,
    /// In nanoseconds of a single loader, over the number of loaders.
    length: u64,
    tasks: u32,
}

/// What waits for a model: until when its execution may begin, and how many tasks.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Wanted {
    start_by: Nanos,
    pub(super) tasks: u32,
    /// How long they take of a slot.
    pub(super) latency: Nanos,
    /// Of the tasks of the last seconds those given up, in 1/65536.
    pub(super) bad_rate: u32,
}

/// What a slot executes.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Work {
    /// When it has executed what was planned.
    until: Nanos,
    /// Since the last tick: time of what was planned, and what that would take in efficient batches.
    planned: Nanos,
    efficient: Nanos,
    /// Both as parts of the time, in 1/1024.
    pub(super) used: u64,
    loaded: u64,
    /// The same of what was planned, over a short while.
    pub(super) recent: Recent,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub(super) wanted: Box<[Wanted]>,
    /// Cold models by the latest start of their LOAD.
    cold: IndexedHeap<Nanos>,
    /// Cold models whose tasks could not wait for a LOAD, those with the most demand first.
    missed: IndexedHeap<Reverse<u64>>,
    /// Models that lose tasks, those that lose most first.
    pub(super) losing: IndexedHeap<Reverse<u64>>,
    pub(super) slots: Box<[Work]>,
    /// Execution time that each model takes, in [`WORK_UNIT`].
    pub(super) work: Worth,
    pub(super) cold_tasks: ColdTasks,
    next_tick: Nanos,
    /// When [`Recent`] was looked at last.
    pub(super) looked_at: Nanos,
    jobs: Vec<Job>,
    /// Of the jobs that are kept, the one that serves the fewest tasks for its length is on top.
    kept: BinaryHeap<Reverse<(u64, u32)>>,
    is_left_out: Vec<bool>,
    probed: Vec<u32>,
}

impl Pool {
    pub(super) fn new(gpus: usize, models: usize) -> Self {
        Self {
            wanted: vec![Wanted::default(); models].into_boxed_slice(),
            cold: IndexedHeap::new(models),
            missed: IndexedHeap::new(models),
            losing: IndexedHeap::new(models),
            slots: vec![Work::default(); gpus].into_boxed_slice(),
            work: Worth::new(models),
            cold_tasks: ColdTasks::new(models),
            next_tick: TICK,
            looked_at: Nanos::ZERO,
            jobs: Vec::with_capacity(2 * LOOKED_AT),
            kept: BinaryHeap::with_capacity(2 * LOOKED_AT),
            is_left_out: Vec::with_capacity(2 * LOOKED_AT),
            probed: Vec::with_capacity(PROBED),
        }
    }

    /// Nothing of the model waits, nor will.
    pub(super) fn forget(&mut self, model: ModelId) {
        self.wanted[model.0 as usize] = Wanted::default();
        self.cold.remove(model.0);
        self.missed.remove(model.0);
        self.losing.remove(model.0);
        self.work.forget(model);
        self.cold_tasks.forget(model);
    }

    /// When the LOAD of a cold model must begin, if tasks wait for it.
    pub(super) fn latest_load(&self, model: ModelId) -> Option<Nanos> {
        self.cold.key(model.0)
    }

    /// Whether tasks wait for models that no slot holds.
    pub(super) fn has_cold(&self) -> bool {
        !self.cold.is_empty()
    }

    /// The first of the jobs that are worth doing.
    fn first(
        &mut self,
        now: Nanos,
        loaders: u64,
        length: impl Fn(ModelId) -> Nanos,
    ) -> Option<ModelId> {
        self.jobs.clear();
        for (latest, model) in self.cold.smallest_about(LOOKED_AT).take(self.jobs.capacity()) {
            if latest >= now {
                let length = length(ModelId(model)).0 / loaders;
                self.jobs.push(Job {
                    latest,
                    model,
                    length,
                    tasks: self.wanted[model as usize].tasks,
                });
            }
        }
        self.jobs.sort_unstable();
        self.leave_out(now);
        let first = self.jobs.iter().zip(&self.is_left_out).find(|(_, is_left_out)| !**is_left_out);
        first.map(|(job, _)| ModelId(job.model))
    }

    /// Moore and Hodgson: in the order of their deadlines; where one would be late, the least valuable so far is left out.
    fn leave_out(&mut self, now: Nanos) {
        self.kept.clear();
        self.is_left_out.clear();
        let mut begins = now;
        for (at, job) in self.jobs.iter().enumerate() {
            self.is_left_out.push(false);
            let value = (u64::from(job.tasks) << 40) / job.length.max(1);
            self.kept.push(Reverse((value, at as u32)));
            let is_late = begins > job.latest;
            begins = begins + Nanos(job.length);
            if is_late && let Some(Reverse((_, least))) = self.kept.pop() {
                self.is_left_out[least as usize] = true;
                begins = begins - Nanos(self.jobs[least as usize].length);
            }
        }
    }

    /// Slots whose use is furthest apart, if one is busy and another much less so.
    fn apart(&self, present: impl Iterator<Item = usize> + Clone) -> Option<(usize, usize)> {
        let busiest = present.clone().max_by_key(|&slot| self.slots[slot].loaded)?;
        let idlest = present.min_by_key(|&slot| self.slots[slot].loaded)?;
        let (most, least) = (self.slots[busiest], self.slots[idlest]);
        let differ = most.loaded - least.loaded > LESS;
        (most.used > BUSY && differ).then_some((busiest, idlest))
    }

    fn tick(&mut self, now: Nanos) {
        self.next_tick = now + TICK;
        for slot in &mut self.slots {
            let part = |span: Nanos| (span.0 * 1024 / TICK.0).min(2 * 1024);
            slot.used = (slot.used * (TICKS - 1) + part(slot.planned)) / TICKS;
            slot.loaded = (slot.loaded * (TICKS - 1) + part(slot.efficient)) / TICKS;
            (slot.planned, slot.efficient) = (Nanos::ZERO, Nanos::ZERO);
        }
    }
}

impl LoadState {
    /// The model's latest candidate, under [`LoadRule::Baton`](super::LoadRule::Baton).
    pub fn on_candidate(&mut self, now: Nanos, model: ModelId, candidate: Option<Candidate>) {
        let alone = self.models[model.0 as usize].alone;
        let was_wanted =
            core::mem::replace(&mut self.models[model.0 as usize].is_wanted, candidate.is_some());
        // It may leave from now on.
        self.is_changed |= was_wanted && candidate.is_none();
        let worth = self.worth.of(model);
        let Rule::Baton(pool) = &mut self.rule else { return };
        match candidate {
            Some(candidate) if candidate.bad_rate > LOSING => {
                pool.losing.set(model.0, Reverse(part_of(worth, candidate.bad_rate)));
            }
            Some(_) => drop(pool.losing.remove(model.0)),
            None => {}
        }
        let wanted = candidate.map_or_else(Wanted::default, |candidate| {
            let Candidate { invalid_after, latency, delay, batch: tasks, bad_rate, .. } = candidate;
            let start_by = invalid_after + latency - alone - delay.times(2);
            Wanted { start_by, tasks, latency, bad_rate }
        });
        if !was_wanted && candidate.is_some() {
            pool.cold_tasks.came(model, wanted.start_by - now);
        }
        pool.wanted[model.0 as usize] = wanted;
        self.note_pool(model);
    }

    /// A batch of the model was planned. Other news of slots changes nothing.
    pub fn on_planned(&mut self, now: Nanos, model: ModelId, update: GpuUpdate) {
        let GpuUpdate::Planned { gpu, start, latency, work, .. } = update else { return };
        if let Rule::Baton(pool) = &mut self.rule {
            let slot = &mut pool.slots[gpu.id.0 as usize];
            slot.until = slot.until.max(start + latency);
            slot.planned = slot.planned + latency;
            slot.recent.planned = slot.recent.planned + latency;
            slot.efficient = slot.efficient + work;
            pool.work.add(now, model, (work.0 / WORK_UNIT.0) as u32);
        }
    }

    /// Cold models that tasks wait for are in the pool.
    pub(super) fn note_pool(&mut self, model: ModelId) {
        let is_cold = self.memory.places(model).next().is_none();
        let load = self.load_time(model);
        let Rule::Baton(pool) = &mut self.rule else { return };
        let Wanted { start_by, tasks, .. } = pool.wanted[model.0 as usize];
        if is_cold && tasks > 0 {
            pool.cold.set(model.0, start_by - load);
            self.is_changed = true;
            pool.missed.remove(model.0);
        } else {
            pool.cold.remove(model.0);
            if !is_cold {
                pool.missed.remove(model.0);
            }
        }
    }

    /// Tasks have come. If they are given up because their model is cold, the next ones shall not be.
    pub(super) fn note_cold(&mut self, now: Nanos, model: ModelId, tasks: u32) {
        let is_cold = self.memory.first_of(model).is_none();
        let load = self.load_time(model);
        let Rule::Baton(pool) = &mut self.rule else { return };
        let can_wait = is_cold && pool.cold_tasks.can_wait(model, load);
        pool.cold_tasks.count(now, if can_wait { tasks } else { 0 });
        if is_cold && pool.wanted[model.0 as usize].tasks == 0 {
            pool.missed.set(model.0, Reverse(self.worth.of(model)));
            self.is_changed = true;
        }
    }

    /// Loads what is on time, as far as there are loaders; with none of that waiting, copies of hot models.
    pub(super) fn load_on_time(&mut self, now: Nanos, out: &mut impl LoadSink) {
        self.load_losing(now, out);
        while self.open.len() > 0
            && let Some(model) = self.next_job(now)
            && self.load_on_the_best(now, model, LoadReason::Waiting, out)
        {}
        self.load_missed(now, out);
        let Rule::Baton(pool) = &mut self.rule else { return };
        if pool.next_tick <= now {
            pool.tick(now);
            if !pool.has_cold() {
                self.copy_hot(now, out);
                self.copy_losing(now, out);
            }
        }
        self.is_changed = false;
    }

    /// With no LOAD for tasks that wait: for those to come, of models that are worth more than what leaves for them.
    fn load_missed(&mut self, now: Nanos, out: &mut impl LoadSink) {
        while self.open.len() > 0 {
            let Rule::Baton(pool) = &mut self.rule else { return };
            if pool.has_cold() {
                return;
            }
            let Some((_, model)) = pool.missed.pop_up_to(Reverse(0)) else { return };
            self.load_on_the_best(now, ModelId(model), LoadReason::Expected, out);
        }
    }

    fn next_job(&mut self, now: Nanos) -> Option<ModelId> {
        let loaders = self.memory.loaders();
        let Rule::Baton(pool) = &mut self.rule else { return None };
        if !pool.has_cold() {
            return None;
        }
        let (models, times) = (&self.models, &self.times);
        pool.first(now, loaders, |model| times.predicted(&models[model.0 as usize].time))
    }

    /// On the slot with the least to execute whose loader is open and that has room; if no task waits, of what is worth less.
    /// False if there is none.
    fn load_on_the_best(
        &mut self,
        now: Nanos,
        model: ModelId,
        reason: LoadReason,
        out: &mut impl LoadSink,
    ) -> bool {
        let Rule::Baton(pool) = &mut self.rule else { return false };
        let slots = self.open.iter();
        let mut probed = core::mem::take(&mut pool.probed);
        probed.clear();
        probed.extend(slots.take(PROBED));
        let (work, times, time) = (&pool.slots, &self.times, &self.models[model.0 as usize].time);
        let usual = times.predicted(time);
        probed.sort_unstable_by_key(|&slot| {
            let Work { until, loaded, .. } = work[slot as usize];
            // What a slow link takes longer counts as more to execute.
            let longer = times.predicted_on(GpuId(slot), time) - usual;
            ((until - now + longer).0 / BACKLOG_STEP.0, loaded, slot)
        });
        let must_be_worth = reason != LoadReason::Waiting;
        let is_loading = probed.iter().any(|&slot| {
            let gpu = self.memory.gpu(slot as usize);
            let gpu = gpu.filter(|&gpu| !must_be_worth || self.is_worth_its_victims(model, gpu));
            gpu.is_some_and(|gpu| self.load_for(reason, now, (model, gpu), out))
        });
        if let Rule::Baton(pool) = &mut self.rule {
            if is_loading && reason == LoadReason::Waiting {
                pool.cold_tasks.save(now, pool.wanted[model.0 as usize].tasks);
            }
            pool.probed = probed;
        }
        is_loading
    }

    pub(super) fn is_worth_its_victims(&mut self, model: ModelId, gpu: Gpu) -> bool {
        if !self.choose_victims(model, gpu) {
            return false;
        }
        let copies = |victim| u64::from(self.memory.copies(victim).max(1));
        let per_copy = |victim| self.worth.of(victim) / copies(victim);
        let copies = u64::from(self.memory.copies(model));
        let gain = self.worth.of(model) / (copies + 1);
        self.victims.iter().all(|&victim| per_copy(victim) < gain)
            && (copies > 0 || self.lost_to_load(model) < gain)
    }

    /// Loads the model with the most work per copy of the busiest slot onto the one that has least to do.
    fn copy_hot(&mut self, now: Nanos, out: &mut impl LoadSink) {
        let Rule::Baton(pool) = &self.rule else { return };
        let memory = &self.memory;
        let present = (0..memory.slots()).filter(|&slot| memory.gpu(slot).is_some());
        let Some((busiest, idlest)) = pool.apart(present) else { return };
        let Some(to) = memory.gpu(idlest).filter(|to| self.open.contains(to.id.0)) else { return };
        let on_busiest = memory.on_slot(GpuId(busiest as u32));
        let movable = on_busiest
            .filter(|&(model, place)| place.is_resident && memory.place(model, to).is_none());
        let work = |model: ModelId| pool.work.sum(model) / u64::from(memory.copies(model).max(1));
        let hottest = movable.map(|(model, _)| model).max_by_key(|&model| (work(model), model));
        if let Some(model) = hottest.filter(|&model| work(model) > 0)
            && self.load_for(LoadReason::Busy, now, (model, to), out)
        {
            self.counters.copied += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_slot_does_counts_for_an_eighth_of_its_mean() {
        let mut pool = Pool::new(1, 1);
        let mut tick = |planned_ms, efficient_ms| {
            pool.slots[0].planned = Nanos::from_millis(planned_ms);
            pool.slots[0].efficient = Nanos::from_millis(efficient_ms);
            pool.tick(Nanos::ZERO);
            (pool.slots[0].used, pool.slots[0].loaded)
        };
        assert_eq!(tick(100, 50), (128, 64), "of 1024 and 512");
        assert_eq!(tick(100, 50), (240, 120));
        assert_eq!(tick(0, 0), (210, 105));
        assert_eq!(tick(1_000, 0).0, 439, "twice the time at most");
        assert_eq!(pool.next_tick, TICK);
    }

    #[test]
    fn of_jobs_that_exclude_each_other_the_one_that_serves_fewer_tasks_is_left_out() {
        let mut pool = Pool::new(1, 3);
        for (tasks, left_out) in [([9, 2], [false, true, false]), ([2, 9], [true, false, false])] {
            let job = |model: u32, tasks| {
                let latest = Nanos::from_millis([3, 4, 6][model as usize]);
                Job { latest, model, length: 5_000_000, tasks }
            };
            // The third has the time in which one of the others is loaded.
            pool.jobs.clear();
            pool.jobs.extend([job(0, tasks[0]), job(1, tasks[1]), job(2, 1)]);
            pool.leave_out(Nanos::ZERO);
            assert_eq!(pool.is_left_out, left_out);
        }
    }

    #[test]
    fn a_job_that_is_left_out_makes_room_for_its_whole_length() {
        let mut pool = Pool::new(1, 3);
        let job = |model: u32, latest_ms, length_ms: u64, tasks| {
            let latest = Nanos::from_millis(latest_ms);
            Job { latest, model, length: Nanos::from_millis(length_ms).0, tasks }
        };
        // Without the long one the second begins at once, and the third 2 ms later.
        pool.jobs.extend([job(0, 3, 8, 4), job(1, 4, 2, 9), job(2, 6, 2, 9)]);
        pool.leave_out(Nanos::ZERO);
        assert_eq!(pool.is_left_out, [true, false, false]);
    }

    #[test]
    fn slots_are_apart_if_one_is_busy_and_the_other_much_less_so() {
        let apart = |used, loaded: [u64; 2]| {
            let mut pool = Pool::new(2, 1);
            (pool.slots[0].used, pool.slots[0].loaded) = (used, loaded[0]);
            pool.slots[1].loaded = loaded[1];
            pool.apart(0..2)
        };
        assert_eq!(apart(BUSY + 1, [500, 500 - LESS - 1]), Some((0, 1)));
        assert_eq!(apart(BUSY, [500, 0]), None);
        assert_eq!(apart(BUSY + 1, [500, 500 - LESS]), None);
    }
}

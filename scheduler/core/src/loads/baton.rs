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

use super::worth::Worth;
use super::{LoadSink, LoadState, Rule};
use crate::candidate::{Candidate, Gpu};
use crate::containers::heap::IndexedHeap;
use baton_types::{GpuId, ModelId, Nanos};

/// Jobs that are looked at, those with the earliest latest start.
const LOOKED_AT: usize = 256;
/// Loaders that are compared for a LOAD.
const PROBED: usize = 64;
/// Backlogs that differ by less count as the same.
const BACKLOG_STEP: Nanos = Nanos::from_millis(4);
/// How often slots are compared for a copy.
const TICK: Nanos = Nanos::from_millis(100);
/// A slot's use is a mean over about this many ticks.
const TICKS: u64 = 8;
/// In 1/1024: above this a slot is busy, and one that is this much less so can take a copy.
const BUSY: u64 = 819;
const LESS: u64 = 102;

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
struct Wanted {
    start_by: Nanos,
    tasks: u32,
}

/// What a slot executes.
#[derive(Clone, Copy, Default, Debug)]
struct Work {
    /// When it has executed what was planned.
    until: Nanos,
    /// Time of what was planned since the last tick.
    planned: Nanos,
    /// Part of the time that it executes, in 1/1024.
    used: u64,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    wanted: Box<[Wanted]>,
    /// Cold models by the latest start of their LOAD.
    cold: IndexedHeap<Nanos>,
    slots: Box<[Work]>,
    /// Execution time that each model takes.
    work: Worth,
    next_tick: Nanos,
    jobs: Vec<Job>,
    /// Of the jobs that are kept, the one that serves the fewest tasks for its length is on top.
    kept: BinaryHeap<Reverse<(u64, u32)>>,
    is_left_out: Vec<bool>,
    passed: Vec<u32>,
}

impl Pool {
    pub(super) fn new(gpus: usize, models: usize) -> Self {
        Self {
            wanted: vec![Wanted::default(); models].into_boxed_slice(),
            cold: IndexedHeap::new(models),
            slots: vec![Work::default(); gpus].into_boxed_slice(),
            work: Worth::new(models),
            next_tick: TICK,
            jobs: Vec::with_capacity(2 * LOOKED_AT),
            kept: BinaryHeap::with_capacity(2 * LOOKED_AT),
            is_left_out: Vec::with_capacity(2 * LOOKED_AT),
            passed: Vec::with_capacity(PROBED),
        }
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
        let busiest = present.clone().max_by_key(|&slot| self.slots[slot].used)?;
        let idlest = present.min_by_key(|&slot| self.slots[slot].used)?;
        let (most, least) = (self.slots[busiest].used, self.slots[idlest].used);
        (most > BUSY && most - least > LESS).then_some((busiest, idlest))
    }

    fn tick(&mut self, now: Nanos) {
        self.next_tick = now + TICK;
        for slot in &mut self.slots {
            let used = (slot.planned.0 * 1024 / TICK.0).min(1024);
            slot.used = (slot.used * (TICKS - 1) + used) / TICKS;
            slot.planned = Nanos::ZERO;
        }
    }
}

impl LoadState {
    /// The model's latest candidate, under [`LoadRule::Baton`](super::LoadRule::Baton).
    pub fn on_candidate(&mut self, model: ModelId, candidate: Option<Candidate>) {
        let alone = self.models[model.0 as usize].alone;
        let was_wanted =
            core::mem::replace(&mut self.models[model.0 as usize].is_wanted, candidate.is_some());
        // It may leave from now on.
        self.is_changed |= was_wanted && candidate.is_none();
        let Rule::Baton(pool) = &mut self.rule else { return };
        pool.wanted[model.0 as usize] = candidate.map_or_else(Wanted::default, |candidate| {
            let Candidate { invalid_after, latency, delay, batch, .. } = candidate;
            Wanted { start_by: invalid_after + latency - alone - delay.times(2), tasks: batch }
        });
        self.note_pool(model);
    }

    /// A batch of the model was planned for the slot: until when, and how long it takes.
    pub fn on_planned(
        &mut self,
        now: Nanos,
        model: ModelId,
        gpu: Gpu,
        until: Nanos,
        latency: Nanos,
    ) {
        if let Rule::Baton(pool) = &mut self.rule {
            let slot = &mut pool.slots[gpu.id.0 as usize];
            slot.until = slot.until.max(until);
            slot.planned = slot.planned + latency;
            // In 65 µs: sums over minutes fit.
            pool.work.add(now, model, (latency.0 >> 16) as u32);
        }
    }

    /// Cold models that tasks wait for are in the pool.
    pub(super) fn note_pool(&mut self, model: ModelId) {
        let is_cold = self.memory.places(model).next().is_none();
        let load = self.models[model.0 as usize].time.predicted();
        let Rule::Baton(pool) = &mut self.rule else { return };
        let Wanted { start_by, tasks } = pool.wanted[model.0 as usize];
        if is_cold && tasks > 0 {
            pool.cold.set(model.0, start_by - load);
            self.is_changed = true;
        } else {
            pool.cold.remove(model.0);
        }
    }

    /// Loads what is on time, as far as there are loaders; with none of that waiting, copies of hot models.
    pub(super) fn load_on_time(&mut self, now: Nanos, out: &mut impl LoadSink) {
        while self.open.len() > 0
            && let Some(model) = self.next_job(now)
            && self.load_somewhere(now, model, out)
        {}
        let Rule::Baton(pool) = &mut self.rule else { return };
        if pool.next_tick <= now {
            pool.tick(now);
            if pool.cold.is_empty() {
                self.copy_hot(now, out);
            }
        }
        self.is_changed = false;
    }

    fn next_job(&mut self, now: Nanos) -> Option<ModelId> {
        let loaders = (0..self.memory.slots()).filter(|&slot| self.memory.gpu(slot).is_some());
        let loaders = loaders.count().max(1) as u64;
        let Rule::Baton(pool) = &mut self.rule else { return None };
        if pool.cold.is_empty() {
            return None;
        }
        let models = &self.models;
        pool.first(now, loaders, |model| models[model.0 as usize].time.predicted())
    }

    /// On the slot with the least to execute whose loader is open and that has room.
    fn load_somewhere(&mut self, now: Nanos, model: ModelId, out: &mut impl LoadSink) -> bool {
        let Rule::Baton(pool) = &mut self.rule else { return false };
        let slots = core::iter::successors(self.open.first(), |&slot| self.open.above(slot));
        let mut probed = core::mem::take(&mut pool.passed);
        probed.clear();
        probed.extend(slots.take(PROBED));
        let work = &pool.slots;
        probed.sort_unstable_by_key(|&slot| {
            let Work { until, used, .. } = work[slot as usize];
            ((until - now).0 / BACKLOG_STEP.0, used, slot)
        });
        let mut is_loading = false;
        for &slot in &probed {
            let gpu = self.memory.gpu(slot as usize);
            is_loading = gpu.is_some_and(|gpu| self.load(now, model, gpu, out));
            if is_loading {
                break;
            }
        }
        if let Rule::Baton(pool) = &mut self.rule {
            pool.passed = probed;
        }
        is_loading
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
        let work = |model: ModelId| pool.work.of(model) / u64::from(memory.copies(model).max(1));
        let hottest = movable.map(|(model, _)| model).max_by_key(|&model| (work(model), model));
        if let Some(model) = hottest.filter(|&model| work(model) > 0)
            && self.load(now, model, to, out)
        {
            self.counters.copied += 1;
        }
    }
}

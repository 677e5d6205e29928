//! Which models' weights are on which GPU slots, and what is loaded next (Clockwork §5.2, §5.3).
//!
//! [`LoadState`] stands beside [`RankState`](crate::RankState): it counts pages, gives each slot one LOAD at a time beside its
//! batches, chooses the models that leave for it, and learns from [`LoadDone`] how long LOADs take. What to load says a
//! [`LoadRule`]. `docs/cache.md` explains it.

mod baton;
mod clockwork;
mod expected;
mod links;
mod load_time;
mod losing;
mod memory;
mod message;
mod victims;
mod worth;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::candidate::Gpu;
use crate::containers::heap::IndexedHeap;
use crate::containers::idset::IdSet;
use baton::Pool;
use baton_types::{GpuId, ModelId, Nanos};
use clockwork::Priorities;
use load_time::{LoadTime, LoadTimes};
use memory::Memory;
use worth::Worth;

pub use clockwork::Demand;
pub use message::{
    Load, LoadCounters, LoadDone, LoadLimits, LoadOutcome, LoadReason, LoadRule, LoadSink,
    Readiness, Weights,
};

/// LOADs that a slot has at a time: one that copies, and the next.
const PENDING_MAX: u32 = 2;
/// A LOAD that begins so much later than planned is cancelled, as in Clockwork's published code.
const SLIP: Nanos = Nanos::from_millis(10);

#[derive(Clone, Copy, Debug)]
struct Model {
    time: LoadTime,
    /// ℓ(1).
    alone: Nanos,
    /// Tasks of it wait.
    is_wanted: bool,
}

impl Model {
    fn new(weights: &Weights) -> Self {
        let Weights { load, is_guess, alone, .. } = *weights;
        Self { time: LoadTime::new(load, is_guess), alone, is_wanted: false }
    }
}

/// The thread that copies weights to one slot.
#[derive(Clone, Copy, Default, Debug)]
struct Loader {
    /// When the LOADs that it has should be done.
    free_at: Nanos,
    pending: u32,
}

/// What the rule looks at.
#[derive(Clone, Debug)]
enum Rule {
    Commanded,
    Clockwork(Box<Priorities>),
    Baton(Box<Pool>),
}

/// See the module documentation. Allocates everything it will ever use when it is made.
#[derive(Clone, Debug)]
pub struct LoadState {
    memory: Memory,
    models: Box<[Model]>,
    times: LoadTimes,
    worth: Worth,
    loaders: Box<[Loader]>,
    /// Loaders that have enough to do, by the moment at which they may get another LOAD.
    busy: IndexedHeap<Nanos>,
    /// The others, of slots that are present.
    open: IdSet,
    /// A loader gets another LOAD while it has less than this to do.
    outstanding: Nanos,
    rule: Rule,
    /// Something has happened that may let a LOAD begin.
    is_changed: bool,
    victims: Vec<ModelId>,
    leaving: Vec<(victims::Rank, ModelId)>,
    counters: LoadCounters,
}

impl LoadState {
    /// No slots yet; model m has `weights[m]`.
    pub fn new(limits: LoadLimits, weights: &[Weights]) -> Self {
        let LoadLimits { gpus, copies, residents, rule, outstanding } = limits;
        let (gpus, copies, residents) = (gpus as usize, copies as usize, residents as usize);
        let pages = weights.iter().map(|weights| weights.pages).collect();
        Self {
            memory: Memory::new(gpus, copies, residents, pages),
            models: weights.iter().map(Model::new).collect(),
            times: LoadTimes::new(gpus),
            worth: Worth::new(weights.len()),
            loaders: (0..gpus).map(|_| Loader::default()).collect(),
            busy: IndexedHeap::new(gpus),
            open: IdSet::new(gpus),
            outstanding,
            rule: match rule {
                LoadRule::Commanded => Rule::Commanded,
                LoadRule::Clockwork => {
                    Rule::Clockwork(Box::new(Priorities::new(gpus, weights.len(), copies)))
                }
                LoadRule::Baton => Rule::Baton(Box::new(Pool::new(gpus, weights.len()))),
            },
            is_changed: false,
            victims: Vec::with_capacity(residents),
            leaving: Vec::with_capacity(residents),
            counters: LoadCounters::default(),
        }
    }

    /// A backend brought a slot, and all its `pages` are free.
    pub fn on_gpu_join(&mut self, now: Nanos, gpu: Gpu, pages: u32) {
        self.memory.join(gpu, pages);
        self.times.join(gpu.id);
        self.loaders[gpu.id.0 as usize] = Loader { free_at: now, pending: 0 };
        self.busy.remove(gpu.id.0);
        self.open.insert(gpu.id.0);
        self.is_changed = true;
    }

    /// A slot's backend is gone, with its weights and LOADs.
    pub fn on_gpu_leave(&mut self, gpu: Gpu, out: &mut impl LoadSink) {
        if !self.memory.is_present(gpu) {
            return;
        }
        while let Some(model) = self.memory.first_on(gpu.id) {
            self.memory.give_back(model, gpu);
            self.moved(model, out);
        }
        self.memory.leave(gpu);
        self.busy.remove(gpu.id.0);
        self.open.remove(gpu.id.0);
    }

    /// The slot holds the model already, though nothing was loaded: what a backend brings, or what is there from the start.
    /// False if it has no room.
    pub fn place(&mut self, now: Nanos, model: ModelId, gpu: Gpu, out: &mut impl LoadSink) -> bool {
        let fits = self.memory.is_present(gpu)
            && self.memory.place(model, gpu).is_none()
            && self.memory.take(now, model, gpu);
        if fits {
            self.memory.place_mut(model, gpu).into_iter().for_each(|p| p.is_resident = true);
            self.moved(model, out);
        }
        fits
    }

    /// Tasks of the model have come.
    pub fn on_tasks(&mut self, now: Nanos, model: ModelId, tasks: u32) {
        self.worth.add(now, model, tasks);
        self.note_cold(now, model, tasks);
    }

    /// The slot was granted to the model for a batch: the weights stay until it is over.
    pub fn on_granted(&mut self, now: Nanos, model: ModelId, gpu: Gpu) {
        if let Some(place) = self.memory.place_mut(model, gpu) {
            place.batches += 1;
            place.used = now;
        }
    }

    /// That batch was executed, or there was none.
    pub fn on_ended(&mut self, now: Nanos, model: ModelId, gpu: Gpu) {
        if let Some(place) = self.memory.place_mut(model, gpu) {
            debug_assert!(place.batches > 0, "a batch was granted");
            place.batches = place.batches.saturating_sub(1);
            place.has_served = true;
            place.used = now;
            self.is_changed = true;
        }
    }

    /// What became of a LOAD. False if it is news of an earlier life of the slot.
    pub fn on_load_done(&mut self, now: Nanos, done: LoadDone, out: &mut impl LoadSink) -> bool {
        let LoadDone { model, gpu, outcome } = done;
        let is_loading = self.memory.place(model, gpu).is_some_and(|place| !place.is_resident);
        if !is_loading {
            return false;
        }
        self.ended_load(now, gpu, outcome);
        self.counters.count(outcome);
        if let LoadOutcome::Loaded { took } = outcome {
            self.times.observe(gpu.id, &mut self.models[model.0 as usize].time, took);
            self.memory.place_mut(model, gpu).into_iter().for_each(|p| p.is_resident = true);
        } else {
            self.memory.give_back(model, gpu);
        }
        self.moved(model, out);
        true
    }

    fn ended_load(&mut self, now: Nanos, gpu: Gpu, outcome: LoadOutcome) {
        let loader = &mut self.loaders[gpu.id.0 as usize];
        loader.pending = loader.pending.saturating_sub(1);
        if loader.pending == 0 || matches!(outcome, LoadOutcome::Late) {
            loader.free_at = loader.free_at.min(now);
        }
        self.rearm(now, gpu.id);
    }

    /// Does everything that is due.
    pub fn on_timer(&mut self, now: Nanos, out: &mut impl LoadSink) {
        while let Some((_, slot)) = self.busy.pop_up_to(now) {
            self.open.insert(slot);
            self.is_changed = true;
        }
        if core::mem::take(&mut self.is_changed) {
            match self.rule {
                Rule::Commanded => {}
                Rule::Clockwork(_) => self.load_by_priority(now, out),
                Rule::Baton(_) => self.load_on_time(now, out),
            }
        }
    }

    /// When [`LoadState::on_timer`] must be called; `None` while nothing is pending.
    #[must_use]
    pub fn next_timer(&self) -> Option<Nanos> {
        if self.is_changed { Some(Nanos::ZERO) } else { self.busy.peek().map(|(at, _)| at) }
    }

    /// Plans a LOAD of the model for this slot. False if the slot's loader has enough to do, or there is no room: what is
    /// there has batches, or is all that waiting tasks have.
    pub fn load(&mut self, now: Nanos, model: ModelId, gpu: Gpu, out: &mut impl LoadSink) -> bool {
        self.load_for(LoadReason::Commanded, now, (model, gpu), out)
    }

    fn load_for(
        &mut self,
        reason: LoadReason,
        now: Nanos,
        (model, gpu): (ModelId, Gpu),
        out: &mut impl LoadSink,
    ) -> bool {
        let loader = self.loaders[gpu.id.0 as usize];
        let is_possible = self.memory.is_present(gpu)
            && loader.pending < PENDING_MAX
            && self.memory.place(model, gpu).is_none()
            && self.memory.may_have_more(model)
            && self.choose_victims(model, gpu);
        if !is_possible {
            return false;
        }
        let victims = core::mem::take(&mut self.victims);
        for &victim in &victims {
            self.memory.give_back(victim, gpu);
            self.counters.evicted += 1;
        }
        let is_taken = self.memory.take(now, model, gpu);
        debug_assert!(is_taken, "victims leave enough pages");
        let latency = self.load_time_on(gpu.id, model);
        let start = loader.free_at.max(now);
        let loader = &mut self.loaders[gpu.id.0 as usize];
        let until = start + latency;
        (loader.free_at, loader.pending) = (until, loader.pending + 1);
        self.rearm(now, gpu.id);
        self.counters.loads += 1;
        let latest = start + SLIP;
        let load =
            Load { model, gpu, earliest: now, latest, latency, until, reason, victims: &victims };
        out.load(&load);
        victims.iter().for_each(|&victim| self.moved(victim, out));
        self.victims = victims;
        self.moved(model, out);
        true
    }

    /// Sets when the loader may get another LOAD.
    fn rearm(&mut self, now: Nanos, slot: GpuId) {
        let Loader { free_at, pending } = self.loaders[slot.0 as usize];
        // Strictly less than what may be outstanding.
        let refill_at = if pending < PENDING_MAX {
            free_at - self.outstanding + Nanos(u64::from(self.outstanding != Nanos::ZERO))
        } else {
            Nanos::MAX
        };
        if refill_at <= now {
            self.busy.remove(slot.0);
            self.open.insert(slot.0);
            self.is_changed = true;
        } else {
            self.open.remove(slot.0);
            // Late LOADs and those beyond the second are waited for: their report opens the loader.
            if self.outstanding == Nanos::ZERO || refill_at == Nanos::MAX {
                self.busy.remove(slot.0);
            } else {
                self.busy.set(slot.0, refill_at);
            }
        }
    }

    /// The places of the model have changed.
    fn moved(&mut self, model: ModelId, out: &mut impl LoadSink) {
        match &mut self.rule {
            Rule::Commanded => {}
            Rule::Clockwork(priorities) => priorities.refresh(&self.memory, model),
            Rule::Baton(_) => self.note_pool(model),
        }
        self.is_changed = true;
        out.readiness(model, self.readiness(model));
    }

    /// When batches of the model could start.
    pub fn readiness(&self, model: ModelId) -> Readiness {
        let mut until = None::<Nanos>;
        for (_, place) in self.memory.places(model) {
            if place.is_resident {
                return Readiness::Resident;
            }
            let free_at = self.loaders[place.gpu.id.0 as usize].free_at;
            until = Some(until.map_or(free_at, |until| until.min(free_at)));
        }
        let load = self.load_time(model);
        until.map_or(Readiness::Cold { load }, |until| Readiness::Loading { until })
    }

    /// Whether batches of the model may start on the slot.
    pub fn is_resident(&self, model: ModelId, gpu: Gpu) -> bool {
        self.memory.place(model, gpu).is_some_and(|place| place.is_resident)
    }

    /// The slots on which batches of the model may start.
    pub fn resident_on(&self, model: ModelId) -> impl Iterator<Item = Gpu> {
        self.memory.places(model).filter(|(_, place)| place.is_resident).map(|(_, place)| place.gpu)
    }

    /// How long a LOAD of the model should take, on a slot whose link is not slower than the others.
    pub fn load_time(&self, model: ModelId) -> Nanos {
        self.times.predicted(&self.models[model.0 as usize].time)
    }

    fn load_time_on(&self, slot: GpuId, model: ModelId) -> Nanos {
        self.times.predicted_on(slot, &self.models[model.0 as usize].time)
    }

    /// Pages of the slot that no model takes.
    pub fn free_pages(&self, slot: GpuId) -> u32 {
        self.memory.free_pages(slot)
    }

    /// A model was added, which no slot holds: its number is one that no model had, or that [`LoadState::forget`] has freed.
    pub fn serve(&mut self, model: ModelId, weights: Weights, out: &mut impl LoadSink) {
        debug_assert!(
            self.memory.first_of(model).is_none(),
            "nothing of the former model is anywhere"
        );
        self.memory.set_pages(model, weights.pages);
        self.models[model.0 as usize] = Model::new(&weights);
        self.moved(model, out);
    }

    /// The model was removed: its slots are to unload it, and nothing waits for it. False while a LOAD of it is under way, after
    /// which this is to be asked again: then its number is free for another.
    pub fn forget(&mut self, model: ModelId) -> bool {
        loop {
            let Some(gpu) = self.resident_on(model).next() else { break };
            self.memory.give_back(model, gpu);
        }
        self.models[model.0 as usize].is_wanted = false;
        self.worth.forget(model);
        match &mut self.rule {
            Rule::Commanded => {}
            Rule::Clockwork(priorities) => {
                priorities.demand(&self.memory, model, Demand::default());
            }
            Rule::Baton(pool) => pool.forget(model),
        }
        self.is_changed = true;
        self.memory.first_of(model).is_none()
    }

    /// Counted since start.
    pub fn counters(&self) -> LoadCounters {
        self.counters
    }

    /// What of the model waits has changed, under [`LoadRule::Clockwork`].
    pub fn on_demand(&mut self, model: ModelId, demand: Demand) {
        self.models[model.0 as usize].is_wanted = demand.total > Nanos::ZERO;
        if let Rule::Clockwork(priorities) = &mut self.rule {
            priorities.demand(&self.memory, model, demand);
            self.is_changed = true;
        }
    }
}

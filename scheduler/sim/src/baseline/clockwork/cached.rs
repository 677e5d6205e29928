//! Clockwork with memory to manage: LOADs by priority, INFERs only for models that the slot has (§5.3).
//!
//! A batch has one of the sizes that Clockwork compiles. The strategy that is popped says which model's turn it is, and the smallest size. The
//! batch then grows as far as the queues of larger sizes have tasks enough; older tasks, which only smaller batches could have served, are
//! given up.

use std::collections::BTreeSet;

use baton_core::{
    Demand, Gpu, GpuId, IndexedHeap, Load, LoadDone, LoadLimits, LoadOutcome, LoadRule, LoadSink,
    LoadState, ModelId, Nanos, NetworkDelay, Readiness, Request,
};

use super::strategies::Strategies;
use super::{Horizon, Model, Slot, Strategy};
use crate::baseline::queue::enqueue;
use crate::cluster::{Cluster, Finished, Lost};
use crate::drive::Scheduler;
use crate::loaders::LoadEnd;
use crate::scenario::{Scenario, SimModel};
use crate::weights::{self, GpuMemory};

/// See the module documentation.
pub(crate) struct Cached {
    memory: GpuMemory,
    models: Vec<Model>,
    /// Models with waiting tasks.
    waiting: BTreeSet<u32>,
    slots: Vec<Slot>,
    /// Of each slot.
    strategies: Vec<Strategies>,
    lives: Vec<Option<u32>>,
    /// Slots with enough to do, by the moment at which they may get another batch.
    busy: IndexedHeap<Nanos>,
    /// Models by the moment at which a task is lost, or cannot be helped by a LOAD any more.
    expiry: IndexedHeap<Nanos>,
    loads: LoadState,
    outstanding: Nanos,
    network: NetworkDelay,
}

impl Cached {
    pub(crate) fn new(scenario: &Scenario, memory: GpuMemory, outstanding: Nanos) -> Self {
        let gpus = scenario.gpus as usize;
        let model = |m: &SimModel| Model { queue: Default::default(), profile: m.profile.clone() };
        let limits = LoadLimits { outstanding, ..weights::limits(scenario, LoadRule::Clockwork) };
        let weights: Vec<_> = scenario.models.iter().map(|m| memory.weights(m)).collect();
        let mut cached = Self {
            memory,
            models: scenario.models.iter().map(model).collect(),
            waiting: BTreeSet::new(),
            slots: vec![Slot::default(); gpus],
            strategies: vec![Strategies::default(); gpus],
            lives: vec![None; gpus],
            busy: IndexedHeap::new(gpus),
            expiry: IndexedHeap::new(scenario.models.len()),
            loads: LoadState::new(limits, &weights),
            outstanding,
            network: scenario.network,
        };
        let present = (0..).zip(scenario.present_at_first()).filter(|&(_, is)| is);
        present.for_each(|(gpu, _)| cached.join(Nanos::ZERO, gpu));
        cached
    }

    fn join(&mut self, now: Nanos, gpu: u32) {
        let life = self.lives[gpu as usize].map_or(0, |life| life + 1);
        self.lives[gpu as usize] = Some(life);
        self.slots[gpu as usize] = Slot { free_at: now, ..Slot::default() };
        self.loads.on_gpu_join(now, self.gpu(gpu), self.memory.pages);
    }

    fn gpu(&self, gpu: u32) -> Gpu {
        Gpu { id: GpuId(gpu), life: self.lives[gpu as usize].unwrap_or_default() }
    }

    /// Tasks of the model came or went.
    fn changed(&mut self, now: Nanos, id: u32) {
        if self.models[id as usize].queue.is_empty() {
            self.waiting.remove(&id);
        } else {
            self.waiting.insert(id);
        }
        self.note_demand(now, id);
    }

    fn note_demand(&mut self, now: Nanos, id: u32) {
        let model = &self.models[id as usize];
        let alone = model.profile.latency(1);
        let served = self.network.before(1) + alone;
        let helped = served + self.loads.load_time(ModelId(id));
        let lost = model.queue.partition_point(|task| task.deadline < now + helped);
        let (waiting, helpable) = (model.queue.len(), model.queue.len() - lost);
        let just_after = Nanos(1);
        let head = model.queue.front().map(|task| task.deadline - served + just_after);
        let first_helped = model.queue.get(lost).map(|task| task.deadline - helped + just_after);
        match head.into_iter().chain(first_helped).min() {
            Some(at) => self.expiry.set(id, at),
            None => drop(self.expiry.remove(id)),
        }
        let demand =
            Demand { total: alone.times(waiting as u64), loadable: alone.times(helpable as u64) };
        self.loads.on_demand(ModelId(id), demand);
    }

    /// Gives up the tasks that could not even run alone on an idle slot.
    fn give_up_hopeless(&mut self, now: Nanos, id: u32, cluster: &mut Cluster) {
        let model = &mut self.models[id as usize];
        let earliest = now + self.network.before(1) + model.profile.latency(1);
        while let Some(head) = model.queue.front().filter(|head| head.deadline < earliest) {
            cluster.give_up(id, head.task, "deadline");
            model.queue.pop_front();
        }
        self.changed(now, id);
    }

    /// Gives the slot batches until it has enough to do.
    fn fill(&mut self, now: Nanos, gpu: u32, cluster: &mut Cluster) {
        while self.lives[gpu as usize].is_some() && self.refill_at(gpu) <= now {
            self.busy.remove(gpu);
            let Some(strategy) = self.first_to_start(now, gpu) else { return };
            self.infer(now, gpu, strategy, cluster);
        }
        if self.outstanding > Nanos::ZERO {
            self.busy.set(gpu, self.refill_at(gpu));
        }
    }

    /// When the slot has little enough outstanding.
    fn refill_at(&self, gpu: u32) -> Nanos {
        let Slot { free_at, pending } = &self.slots[gpu as usize];
        if self.outstanding == Nanos::ZERO {
            return if pending.is_empty() { Nanos::ZERO } else { Nanos::MAX };
        }
        *free_at - self.outstanding + Nanos(1)
    }

    /// Pops strategies until one can be kept: there are tasks enough for a batch of its size.
    fn first_to_start(&mut self, now: Nanos, gpu: u32) -> Option<Strategy> {
        let horizon = self.horizon(now, gpu);
        while let Some((id, size)) = self.strategies[gpu as usize].pop() {
            if !self.loads.is_resident(ModelId(id), self.gpu(gpu)) {
                continue;
            }
            let model = &self.models[id as usize];
            let largest = model.strategies(id, horizon, model.sizes()).last();
            if let Some(strategy) = largest.filter(|strategy| strategy.batch >= size) {
                return Some(strategy);
            }
            self.renew(now, gpu, id, size - 1);
        }
        None
    }

    fn horizon(&self, now: Nanos, gpu: u32) -> Horizon {
        Horizon { now, free_at: self.slots[gpu as usize].free_at, network: self.network }
    }

    /// New strategies of the model on the slot: one for each size up to this for which a task waits that it could serve.
    fn renew(&mut self, now: Nanos, gpu: u32, id: u32, size_max: u32) {
        let horizon = self.horizon(now, gpu);
        let model = &self.models[id as usize];
        let sizes = model.sizes().filter(|&size| size <= size_max);
        let made = sizes.filter_map(|size| Some((model.latest(horizon, size)?, size)));
        self.strategies[gpu as usize].renew(id, made);
    }

    /// Tasks of the model came: slots that have it and no strategy of it get some.
    fn activate(&mut self, now: Nanos, id: u32) {
        let slots: Vec<u32> = self.loads.resident_on(ModelId(id)).map(|gpu| gpu.id.0).collect();
        for gpu in slots {
            if !self.strategies[gpu as usize].has(id) {
                self.renew(now, gpu, id, u32::MAX);
            }
        }
    }

    fn infer(&mut self, now: Nanos, gpu: u32, strategy: Strategy, cluster: &mut Cluster) {
        let Strategy { model: id, head, batch, .. } = strategy;
        let model = &mut self.models[id as usize];
        for older in model.queue.drain(..head) {
            cluster.give_up(id, older.task, "window");
        }
        let slot = &mut self.slots[gpu as usize];
        let latency = model.profile.latency(batch);
        let exec_at = now + self.network.before(batch);
        slot.free_at = slot.free_at.max(exec_at) + latency;
        slot.pending.push_back((exec_at, latency));
        cluster.execute(gpu, id, exec_at, model.queue.drain(..batch as usize));
        self.loads.on_granted(now, ModelId(id), self.gpu(gpu));
        self.renew(now, gpu, id, u32::MAX);
        self.changed(now, id);
    }

    /// The slots that have the model and little to do get a batch, the one that is free first before the others.
    fn serve(&mut self, now: Nanos, id: u32, cluster: &mut Cluster) {
        let here = self.loads.resident_on(ModelId(id)).map(|gpu| gpu.id.0);
        let ready = here.filter(|&gpu| self.refill_at(gpu) <= now);
        let first = ready.min_by_key(|&gpu| (self.slots[gpu as usize].free_at, gpu));
        if let Some(gpu) = first {
            self.fill(now, gpu, cluster);
        }
    }

    fn load(&mut self, now: Nanos, cluster: &mut Cluster) {
        self.loads.on_timer(now, &mut Send { now, cluster });
    }

    fn back(&mut self, now: Nanos, lost: Vec<Lost>) {
        for Lost { model, requests } in lost {
            let queue = &mut self.models[model as usize].queue;
            requests.into_iter().for_each(|request| enqueue(queue, request));
            self.activate(now, model);
            self.changed(now, model);
        }
    }
}

/// Sends LOADs to the slots.
struct Send<'a> {
    now: Nanos,
    cluster: &'a mut Cluster,
}

impl LoadSink for Send<'_> {
    fn load(&mut self, load: &Load<'_>) {
        self.cluster.loaders().begin(self.now, load);
    }

    fn readiness(&mut self, _model: ModelId, _readiness: Readiness) {}
}

impl Scheduler for Cached {
    fn on_arrival(&mut self, now: Nanos, model: u32, request: Request, cluster: &mut Cluster) {
        enqueue(&mut self.models[model as usize].queue, request);
        self.loads.on_tasks(now, ModelId(model), 1);
        self.activate(now, model);
        self.changed(now, model);
        self.serve(now, model, cluster);
        self.load(now, cluster);
    }

    fn on_finished(&mut self, now: Nanos, finished: Finished, cluster: &mut Cluster) {
        let Finished { gpu, model, .. } = finished;
        let slot = &mut self.slots[gpu as usize];
        slot.pending.pop_front();
        let after =
            |free_at: Nanos, &(exec_at, latency): &(Nanos, Nanos)| free_at.max(exec_at) + latency;
        slot.free_at = slot.pending.iter().fold(now, after);
        self.loads.on_ended(now, ModelId(model), self.gpu(gpu));
        self.fill(now, gpu, cluster);
        self.load(now, cluster);
    }

    fn on_loaded(&mut self, now: Nanos, load: LoadEnd, cluster: &mut Cluster) {
        let LoadEnd { gpu, model, outcome, .. } = load;
        let done = LoadDone { model: ModelId(model), gpu: self.gpu(gpu), outcome };
        self.loads.on_load_done(now, done, &mut Send { now, cluster });
        if matches!(outcome, LoadOutcome::Loaded { .. }) {
            self.renew(now, gpu, model, u32::MAX);
            self.fill(now, gpu, cluster);
        }
        self.note_demand(now, model);
        self.load(now, cluster);
    }

    fn on_gpu_loss(&mut self, now: Nanos, gpu: u32, lost: Vec<Lost>, cluster: &mut Cluster) {
        self.loads.on_gpu_leave(self.gpu(gpu), &mut Send { now, cluster });
        self.busy.remove(gpu);
        self.slots[gpu as usize] = Slot::default();
        self.strategies[gpu as usize] = Strategies::default();
        self.back(now, lost);
        self.load(now, cluster);
    }

    fn on_gpu_join(&mut self, now: Nanos, gpu: u32, cluster: &mut Cluster) {
        self.join(now, gpu);
        self.load(now, cluster);
    }

    fn next_timer(&self) -> Nanos {
        let first = |heap: &IndexedHeap<Nanos>| heap.peek().map_or(Nanos::MAX, |(at, _)| at);
        let load = self.loads.next_timer().filter(|_| !self.waiting.is_empty());
        first(&self.busy).min(first(&self.expiry)).min(load.unwrap_or(Nanos::MAX))
    }

    fn on_timer(&mut self, now: Nanos, cluster: &mut Cluster) {
        while let Some((_, model)) = self.expiry.pop_up_to(now) {
            self.give_up_hopeless(now, model, cluster);
        }
        while let Some((_, gpu)) = self.busy.pop_up_to(now) {
            self.fill(now, gpu, cluster);
        }
        self.load(now, cluster);
    }
}

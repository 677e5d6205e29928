//! Clockwork's INFER scheduling (§5.3): for each model and batch size a *strategy* with the latest
//! moment at which it could start; a slot with little outstanding work takes the valid strategy
//! that must start first, and grows it. With memory to manage it is [`Cached`].

mod cached;
mod strategies;

use std::collections::VecDeque;

use baton_core::{IndexedHeap, Nanos, NetworkDelay, Profile, Request};

use crate::baseline::queue::enqueue;
use crate::cluster::{Cluster, Finished, Lost};
use crate::drive::Scheduler;
use crate::scenario::{Scenario, SimModel};

pub(crate) use cached::Cached;

/// The batch sizes that Clockwork compiles.
const SIZES: [u32; 5] = [1, 2, 4, 8, 16];

#[derive(Debug)]
struct Model {
    /// In the order of deadlines.
    queue: VecDeque<Request>,
    profile: Profile,
}

/// What a slot has to execute, as predicted.
#[derive(Clone, Default, Debug)]
struct Slot {
    free_at: Nanos,
    /// ℓ(b) of each batch, and when its plan and inputs are there.
    pending: VecDeque<(Nanos, Nanos)>,
}

/// When a batch can start that is decided on now: its plan and inputs travel while the slot still
/// executes.
#[derive(Clone, Copy, Debug)]
struct Horizon {
    now: Nanos,
    free_at: Nanos,
    network: NetworkDelay,
}

/// A batch that could run: `batch` tasks from rank `head` on.
#[derive(Clone, Copy, Debug)]
struct Strategy {
    model: u32,
    latest: Nanos,
    head: usize,
    batch: u32,
}

/// See the module documentation.
pub(crate) struct Clockwork {
    models: Vec<Model>,
    slots: Vec<Slot>,
    /// Slots that may get another batch, by predicted end of what they have.
    open: IndexedHeap<Nanos>,
    /// A slot gets another batch while it has less than this.
    outstanding: Nanos,
    network: NetworkDelay,
    /// Tasks waiting, all models.
    waiting: usize,
}

impl Clockwork {
    pub(crate) fn new(scenario: &Scenario, outstanding: Nanos) -> Self {
        let gpus = scenario.gpus as usize;
        let mut open = IndexedHeap::new(gpus);
        let present = scenario.present_at_first();
        (0..).zip(present).filter(|&(_, is)| is).for_each(|(gpu, _)| open.set(gpu, Nanos::ZERO));
        let model = |m: &SimModel| Model { queue: VecDeque::new(), profile: m.profile.clone() };
        Self {
            models: scenario.models.iter().map(model).collect(),
            slots: vec![Slot::default(); gpus],
            open,
            outstanding,
            network: scenario.network,
            waiting: 0,
        }
    }

    /// Fills the slots that have little to do.
    fn fill(&mut self, now: Nanos, cluster: &mut Cluster) {
        while let Some((free_at, gpu)) = self.open.peek() {
            if self.waiting == 0 || self.refill_at(free_at) > now {
                return;
            }
            let horizon = Horizon { now, free_at, network: self.network };
            self.give_up_hopeless(horizon, cluster);
            let Some(strategy) = self.first_to_start(horizon) else { return };
            self.infer(now, gpu, strategy, cluster);
        }
    }

    /// When a slot that is free at `free_at` has little enough outstanding.
    fn refill_at(&self, free_at: Nanos) -> Nanos {
        let strictly_less = Nanos(u64::from(self.outstanding != Nanos::ZERO));
        free_at - self.outstanding + strictly_less
    }

    /// A task that cannot even run alone on the slot that is free first can run nowhere.
    fn give_up_hopeless(&mut self, horizon: Horizon, cluster: &mut Cluster) {
        for (id, model) in self.models.iter_mut().enumerate() {
            let latest_end = horizon.end(&model.profile, 1);
            while model.queue.front().is_some_and(|head| head.deadline < latest_end) {
                let head = model.queue.pop_front().expect("the queue has a head");
                cluster.give_up(id as u32, head.task, "deadline");
                self.waiting -= 1;
            }
        }
    }

    fn first_to_start(&self, horizon: Horizon) -> Option<Strategy> {
        let models = self.models.iter().enumerate();
        models.filter_map(|(id, m)| m.strategy(id as u32, horizon)).min_by_key(|s| s.latest)
    }

    fn infer(&mut self, now: Nanos, gpu: u32, strategy: Strategy, cluster: &mut Cluster) {
        let Strategy { model: id, head, batch, .. } = strategy;
        let model = &mut self.models[id as usize];
        let slot = &mut self.slots[gpu as usize];
        let latency = model.profile.latency(batch);
        let exec_at = now + self.network.before(batch);
        slot.free_at = slot.free_at.max(exec_at) + latency;
        slot.pending.push_back((exec_at, latency));
        cluster.execute(gpu, id, exec_at, model.queue.drain(head..head + batch as usize));
        self.waiting -= batch as usize;
        if self.outstanding == Nanos::ZERO {
            self.open.remove(gpu);
        } else {
            self.open.set(gpu, slot.free_at);
        }
    }
}

impl Scheduler for Clockwork {
    fn on_arrival(&mut self, now: Nanos, model: u32, request: Request, cluster: &mut Cluster) {
        enqueue(&mut self.models[model as usize].queue, request);
        self.waiting += 1;
        self.fill(now, cluster);
    }

    fn on_finished(&mut self, now: Nanos, finished: Finished, cluster: &mut Cluster) {
        let slot = &mut self.slots[finished.gpu as usize];
        slot.pending.pop_front();
        let after =
            |free_at: Nanos, &(exec_at, latency): &(Nanos, Nanos)| free_at.max(exec_at) + latency;
        slot.free_at = slot.pending.iter().fold(now, after);
        self.open.set(finished.gpu, slot.free_at);
        self.fill(now, cluster);
    }

    fn on_gpu_loss(&mut self, now: Nanos, gpu: u32, lost: Vec<Lost>, cluster: &mut Cluster) {
        self.open.remove(gpu);
        for Lost { model, requests } in lost {
            self.waiting += requests.len();
            let queue = &mut self.models[model as usize].queue;
            requests.into_iter().for_each(|request| enqueue(queue, request));
        }
        self.fill(now, cluster);
    }

    fn on_gpu_join(&mut self, now: Nanos, gpu: u32, cluster: &mut Cluster) {
        self.slots[gpu as usize] = Slot { free_at: now, pending: VecDeque::new() };
        self.open.set(gpu, now);
        self.fill(now, cluster);
    }

    fn next_timer(&self) -> Nanos {
        let first = self.open.peek().filter(|_| self.waiting > 0);
        first.map_or(Nanos::MAX, |(free_at, _)| self.refill_at(free_at))
    }

    fn on_timer(&mut self, now: Nanos, cluster: &mut Cluster) {
        self.fill(now, cluster);
    }
}

impl Horizon {
    fn end(&self, profile: &Profile, batch: u32) -> Nanos {
        self.free_at.max(self.now + self.network.before(batch)) + profile.latency(batch)
    }
}

impl Model {
    /// Those of [`SIZES`] that it has.
    fn sizes(&self) -> impl Iterator<Item = u32> + use<> {
        let most = self.profile.batch_max();
        SIZES.into_iter().filter(move |&size| size <= most)
    }

    /// When a batch of this size must start, by the first task that it could serve.
    fn latest(&self, horizon: Horizon, size: u32) -> Option<Nanos> {
        let end = horizon.end(&self.profile, size);
        let head = self.queue.iter().find(|task| task.deadline >= end)?;
        Some(head.deadline - self.profile.latency(size))
    }

    /// The model's strategies of these sizes, the smallest first.
    fn strategies(
        &self,
        model: u32,
        horizon: Horizon,
        sizes: impl Iterator<Item = u32>,
    ) -> impl Iterator<Item = Strategy> {
        let mut head = 0;
        sizes.map_while(move |batch| {
            let end = horizon.end(&self.profile, batch);
            head += self.queue.range(head..).take_while(|task| task.deadline < end).count();
            (head + batch as usize <= self.queue.len()).then(|| {
                let latest = self.queue[head].deadline - self.profile.latency(batch);
                Strategy { model, latest, head, batch }
            })
        })
    }

    /// The model's strategy that must start first, grown as far as tasks and the deadline of its
    /// head allow.
    fn strategy(&self, model: u32, horizon: Horizon) -> Option<Strategy> {
        let mut first = None::<Strategy>;
        for strategy in self.strategies(model, horizon, 1..=self.profile.batch_max()) {
            if first.is_none_or(|first| strategy.latest <= first.latest) {
                first = Some(strategy);
            }
        }
        first.map(|strategy| self.grown(strategy, horizon))
    }

    fn grown(&self, strategy: Strategy, horizon: Horizon) -> Strategy {
        let waiting = (self.queue.len() - strategy.head) as u32;
        let deadline = self.queue[strategy.head].deadline;
        let most = waiting.min(self.profile.batch_max());
        let fits = |&batch: &u32| horizon.end(&self.profile, batch) <= deadline;
        let batch = (strategy.batch..=most).take_while(fits).last().unwrap_or(strategy.batch);
        Strategy { batch, ..strategy }
    }
}

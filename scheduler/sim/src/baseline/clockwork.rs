//! Clockwork's INFER scheduling (§5.3): for each model and batch size a *strategy* with the latest
//! moment at which it could start; a slot with little outstanding work takes the valid strategy
//! that must start first, and grows it.

use std::collections::VecDeque;

use baton_core::{IndexedHeap, Nanos, Profile, Request};

use crate::cluster::{Cluster, Finished};
use crate::drive::Scheduler;
use crate::scenario::{Scenario, SimModel};

#[derive(Debug)]
struct Model {
    /// In the order of deadlines, which is that of arrival: one objective for all.
    queue: VecDeque<Request>,
    profile: Profile,
}

/// What a slot has to execute, as predicted.
#[derive(Clone, Copy, Default, Debug)]
struct Slot {
    free_at: Nanos,
    pending: Nanos,
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
    /// Tasks waiting, all models.
    waiting: usize,
}

impl Clockwork {
    pub(crate) fn new(scenario: &Scenario, outstanding: Nanos) -> Self {
        let gpus = scenario.gpus as usize;
        let mut open = IndexedHeap::new(gpus);
        (0..scenario.gpus).for_each(|gpu| open.set(gpu, Nanos::ZERO));
        let model = |m: &SimModel| Model { queue: VecDeque::new(), profile: m.profile.clone() };
        Self {
            models: scenario.models.iter().map(model).collect(),
            slots: vec![Slot::default(); gpus],
            open,
            outstanding,
            waiting: 0,
        }
    }

    /// Fills the slots that have little to do.
    fn fill(&mut self, now: Nanos, cluster: &mut Cluster) {
        while let Some((free_at, gpu)) = self.open.peek() {
            if self.waiting == 0 || self.refill_at(free_at) > now {
                return;
            }
            let start = now.max(free_at);
            self.give_up_hopeless(start, cluster);
            let Some(strategy) = self.first_to_start(start) else { return };
            self.infer(now, gpu, strategy, cluster);
        }
    }

    /// When a slot that is free at `free_at` has little enough outstanding.
    fn refill_at(&self, free_at: Nanos) -> Nanos {
        let strictly_less = Nanos(u64::from(self.outstanding != Nanos::ZERO));
        free_at - self.outstanding + strictly_less
    }

    /// A task that cannot even run alone on the slot that is free first can run nowhere.
    fn give_up_hopeless(&mut self, start: Nanos, cluster: &mut Cluster) {
        for (id, model) in self.models.iter_mut().enumerate() {
            let latest_end = start + model.profile.latency(1);
            while model.queue.front().is_some_and(|head| head.deadline < latest_end) {
                let head = model.queue.pop_front().expect("the queue has a head");
                cluster.give_up(id as u32, head.task, "deadline");
                self.waiting -= 1;
            }
        }
    }

    fn first_to_start(&self, start: Nanos) -> Option<Strategy> {
        let models = self.models.iter().enumerate();
        models.filter_map(|(id, m)| m.strategy(id as u32, start)).min_by_key(|s| s.latest)
    }

    fn infer(&mut self, now: Nanos, gpu: u32, strategy: Strategy, cluster: &mut Cluster) {
        let Strategy { model: id, head, batch, .. } = strategy;
        let model = &mut self.models[id as usize];
        let slot = &mut self.slots[gpu as usize];
        let latency = model.profile.latency(batch);
        slot.free_at = slot.free_at.max(now) + latency;
        slot.pending = slot.pending + latency;
        cluster.execute(gpu, id, now, model.queue.drain(head..head + batch as usize));
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
        self.models[model as usize].queue.push_back(request);
        self.waiting += 1;
        self.fill(now, cluster);
    }

    fn on_finished(&mut self, now: Nanos, finished: Finished, cluster: &mut Cluster) {
        let slot = &mut self.slots[finished.gpu as usize];
        let latency = self.models[finished.model as usize].profile.latency(finished.batch);
        slot.pending = slot.pending - latency;
        slot.free_at = now + slot.pending;
        self.open.set(finished.gpu, slot.free_at);
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

impl Model {
    /// The model's strategy that must start first, grown as far as tasks and the deadline of its
    /// head allow.
    fn strategy(&self, model: u32, start: Nanos) -> Option<Strategy> {
        let (mut head, mut first) = (0, None::<Strategy>);
        for batch in 1..=self.profile.batch_max() {
            let end = start + self.profile.latency(batch);
            head += self.queue.range(head..).take_while(|task| task.deadline < end).count();
            if head + batch as usize > self.queue.len() {
                break;
            }
            let latest = self.queue[head].deadline - self.profile.latency(batch);
            if first.is_none_or(|first| latest <= first.latest) {
                first = Some(Strategy { model, latest, head, batch });
            }
        }
        first.map(|strategy| self.grown(strategy, start))
    }

    fn grown(&self, strategy: Strategy, start: Nanos) -> Strategy {
        let waiting = (self.queue.len() - strategy.head) as u32;
        let deadline = self.queue[strategy.head].deadline;
        let most = waiting.min(self.profile.batch_max());
        let fits = |&batch: &u32| start + self.profile.latency(batch) <= deadline;
        let batch = (strategy.batch..=most).take_while(fits).last().unwrap_or(strategy.batch);
        Strategy { batch, ..strategy }
    }
}

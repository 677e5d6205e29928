//! Shepherd's online scheduler, Flex (Shepherd, NSDI '23): a GPU takes the
//! largest feasible batch of any model, and gives up what it executes for one λ times larger.

use std::collections::VecDeque;

use baton_core::{Nanos, Profile, Request};

use crate::baseline::queue::enqueue;
use crate::cluster::{Cluster, Finished, Lost};
use crate::drive::Scheduler;
use crate::scenario::{Scenario, SimModel};

#[derive(Debug)]
struct Model {
    /// In the order of deadlines.
    queue: VecDeque<Request>,
    profile: Profile,
}

/// What a GPU executes, earliest deadline first. Empty while it is idle or absent.
#[derive(Debug)]
struct Slot {
    is_present: bool,
    model: u32,
    batch: Vec<Request>,
}

/// A feasible batch: the first `size` tasks of what waits, together with what the GPU executes if
/// that is of the same model.
#[derive(Clone, Copy, Debug)]
struct Generated {
    model: u32,
    size: usize,
}

/// See the module documentation.
pub(crate) struct Shepherd {
    models: Vec<Model>,
    slots: Vec<Slot>,
    lambda: f64,
    /// Models with tasks that no GPU has been asked about yet.
    changed: Vec<u32>,
}

impl Shepherd {
    pub(crate) fn new(scenario: &Scenario, lambda: f64) -> Self {
        let model = |m: &SimModel| Model { queue: VecDeque::new(), profile: m.profile.clone() };
        let slot = |is_present| Slot { is_present, model: 0, batch: Vec::new() };
        Self {
            models: scenario.models.iter().map(model).collect(),
            slots: scenario.present_at_first().into_iter().map(slot).collect(),
            lambda,
            changed: Vec::new(),
        }
    }

    /// Offers the tasks of the changed models to every GPU. Tasks that lose theirs are offered in
    /// turn; that ends, because a GPU's batch grows by λ > 1 each time.
    fn offer(&mut self, now: Nanos, cluster: &mut Cluster) {
        while let Some(model) = self.changed.pop() {
            self.models[model as usize].drop_stale(now, model, cluster);
            for gpu in 0..self.slots.len() {
                self.offer_to(now, gpu, model, cluster);
            }
        }
    }

    fn offer_to(&mut self, now: Nanos, gpu: usize, model: u32, cluster: &mut Cluster) {
        let Slot { is_present, model: running, batch } = &self.slots[gpu];
        let (running, size) = (*running, batch.len());
        if !is_present {
            return;
        }
        if size == 0 {
            let generated =
                Generated { model, size: self.models[model as usize].feasible(now, &[]) };
            return self.execute(now, gpu, generated, cluster);
        }
        self.models[running as usize].drop_stale(now, running, cluster);
        let larger = (self.lambda * size as f64).ceil() as usize;
        let joined = self.generate(now, gpu, running, larger);
        let other = || self.generate(now, gpu, model, larger);
        let Some(generated) = joined.into_iter().chain(other()).max_by_key(|g| g.size) else {
            return;
        };
        let models = &mut self.models;
        cluster.preempt(now, gpu as u32, |task| enqueue(&mut models[running as usize].queue, task));
        self.changed.push(running);
        self.execute(now, gpu, generated, cluster);
    }

    /// The largest batch of a model if the GPU stopped what it does, if it is of this size at least.
    fn generate(&self, now: Nanos, gpu: usize, model: u32, at_least: usize) -> Option<Generated> {
        let slot = &self.slots[gpu];
        let executing: &[Request] = if slot.model == model { &slot.batch } else { &[] };
        let waiting = &self.models[model as usize];
        if executing.len() + waiting.queue.len() < at_least {
            return None;
        }
        let size = waiting.feasible(now, executing);
        (size >= at_least).then_some(Generated { model, size })
    }

    /// An idle GPU takes the largest batch of any model.
    fn take_largest(&mut self, now: Nanos, gpu: usize, cluster: &mut Cluster) {
        let mut largest = Generated { model: 0, size: 0 };
        for (id, model) in self.models.iter_mut().enumerate() {
            model.drop_stale(now, id as u32, cluster);
            let size = model.feasible(now, &[]);
            if size > largest.size {
                largest = Generated { model: id as u32, size };
            }
        }
        self.execute(now, gpu, largest, cluster);
    }

    fn execute(&mut self, now: Nanos, gpu: usize, generated: Generated, cluster: &mut Cluster) {
        let Generated { model, size } = generated;
        let slot = &mut self.slots[gpu];
        slot.batch.clear();
        if size > 0 {
            slot.model = model;
            slot.batch.extend(self.models[model as usize].queue.drain(..size));
            cluster.execute(gpu as u32, model, now, slot.batch.iter().copied());
        }
    }
}

impl Scheduler for Shepherd {
    fn on_arrival(&mut self, now: Nanos, model: u32, request: Request, cluster: &mut Cluster) {
        enqueue(&mut self.models[model as usize].queue, request);
        self.changed.push(model);
        self.offer(now, cluster);
    }

    fn on_finished(&mut self, now: Nanos, finished: Finished, cluster: &mut Cluster) {
        self.take_largest(now, finished.gpu as usize, cluster);
    }

    fn on_gpu_loss(&mut self, now: Nanos, gpu: u32, lost: Vec<Lost>, cluster: &mut Cluster) {
        let slot = &mut self.slots[gpu as usize];
        slot.is_present = false;
        slot.batch.clear();
        for Lost { model, requests } in lost {
            let queue = &mut self.models[model as usize].queue;
            requests.into_iter().for_each(|request| enqueue(queue, request));
            self.changed.push(model);
        }
        self.offer(now, cluster);
    }

    fn on_gpu_join(&mut self, now: Nanos, gpu: u32, cluster: &mut Cluster) {
        self.slots[gpu as usize].is_present = true;
        self.take_largest(now, gpu as usize, cluster);
    }

    fn next_timer(&self) -> Nanos {
        Nanos::MAX
    }

    fn on_timer(&mut self, _now: Nanos, _cluster: &mut Cluster) {}
}

impl Model {
    /// Gives up the tasks that cannot even run alone. They are those with the *earliest* deadlines.
    fn drop_stale(&mut self, now: Nanos, id: u32, cluster: &mut Cluster) {
        let soonest = now + self.profile.latency(1);
        while self.queue.front().is_some_and(|head| head.deadline < soonest) {
            let head = self.queue.pop_front().expect("the queue has a head");
            cluster.give_up(id, head.task, "deadline");
        }
    }

    /// How many tasks, `executing` before those that wait, can run together from now on: one after
    /// another joins until one would miss its deadline in a batch of that size.
    fn feasible(&self, now: Nanos, executing: &[Request]) -> usize {
        let tasks = executing.iter().chain(&self.queue).take(self.profile.batch_max() as usize);
        let fits = |(before, task): &(usize, &Request)| {
            now + self.profile.latency(*before as u32 + 1) <= task.deadline
        };
        tasks.enumerate().take_while(fits).count()
    }
}

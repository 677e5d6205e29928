//! Central deferred batching with window formation, by rules other than the production one: until
//! one more task would not fit (*frontrun*), or for a fixed part of the objective (*timeout*).
//!
//! Knows every model's rate exactly, which gives the rules their best case.

use std::collections::VecDeque;

use baton_core::{IndexedHeap, Nanos, Profile, Request};

use crate::cluster::{Cluster, Finished};
use crate::drive::Scheduler;
use crate::scenario::{Scenario, SimModel};

/// When a candidate batch becomes schedulable.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Rule {
    /// At dl − ℓ(b + 1).
    Frontrun,
    /// Once its head has waited for this fraction of the objective, or at dl − ℓ(b + 1) if that is
    /// earlier.
    Timeout(f64),
}

#[derive(Debug)]
struct Model {
    /// In the order of deadlines, which is that of arrival: one objective for all.
    queue: VecDeque<Request>,
    profile: Profile,
    /// From arrival to deadline, and how much of it the head may wait.
    slo: Nanos,
    patience: Nanos,
    target: u32,
    /// dl − ℓ(b + 1) of the candidate.
    urgency: Nanos,
}

/// Ranks `head .. head + batch` of a queue.
#[derive(Clone, Copy)]
struct Window {
    head: usize,
    batch: u32,
}

/// See the module documentation.
pub(crate) struct Deferred {
    models: Vec<Model>,
    /// Idle slots, by number.
    idle: IndexedHeap<u32>,
    /// Candidates that are not schedulable yet.
    due: IndexedHeap<Nanos>,
    /// Schedulable candidates by urgency.
    ready: IndexedHeap<Nanos>,
    /// When a model's window stops fitting.
    expiry: IndexedHeap<Nanos>,
}

impl Deferred {
    pub(crate) fn new(scenario: &Scenario, rule: Rule, rate_rps: f64) -> Self {
        let models = scenario.models.len();
        let mut idle = IndexedHeap::new(scenario.gpus as usize);
        (0..scenario.gpus).for_each(|gpu| idle.set(gpu, gpu));
        let model = |model: &SimModel| Model::new(model, rule, rate_rps * model.share);
        Self {
            models: scenario.models.iter().map(model).collect(),
            idle,
            due: IndexedHeap::new(models),
            ready: IndexedHeap::new(models),
            expiry: IndexedHeap::new(models),
        }
    }

    /// Forms a model's candidate anew; gives up the tasks that cannot even run alone.
    fn reform(&mut self, now: Nanos, id: u32, cluster: &mut Cluster) {
        let model = &mut self.models[id as usize];
        while let Some(task) = model.hopeless(now) {
            cluster.give_up(id, task.task, "deadline");
        }
        self.ready.remove(id);
        let Some(window) = model.form(now) else {
            self.due.remove(id);
            self.expiry.remove(id);
            return;
        };
        let deadline = model.queue[window.head].deadline;
        model.urgency = deadline - model.profile.latency(window.batch + 1);
        let waited_enough = deadline - model.slo + model.patience;
        let full = window.batch == model.profile.batch_max();
        self.due.set(id, if full { now } else { model.urgency.min(waited_enough) });
        self.expiry.set(id, model.expiry(window));
    }

    /// Serves what is schedulable, most urgent first.
    fn serve(&mut self, now: Nanos, cluster: &mut Cluster) {
        loop {
            while let Some((_, id)) = self.due.pop_up_to(now) {
                self.ready.set(id, self.models[id as usize].urgency);
            }
            let (Some((_, id)), Some((_, gpu))) = (self.ready.peek(), self.idle.peek()) else {
                return;
            };
            let model = &mut self.models[id as usize];
            if let Some(window) = model.form(now) {
                let given_up = model.queue.drain(..window.head);
                given_up.for_each(|task| cluster.give_up(id, task.task, "window"));
                cluster.execute(gpu, id, now, model.queue.drain(..window.batch as usize));
                self.idle.remove(gpu);
            }
            self.reform(now, id, cluster);
        }
    }
}

impl Scheduler for Deferred {
    fn on_arrival(&mut self, now: Nanos, model: u32, request: Request, cluster: &mut Cluster) {
        self.models[model as usize].queue.push_back(request);
        self.reform(now, model, cluster);
        self.serve(now, cluster);
    }

    fn on_finished(&mut self, now: Nanos, finished: Finished, cluster: &mut Cluster) {
        self.idle.set(finished.gpu, finished.gpu);
        self.serve(now, cluster);
    }

    fn next_timer(&self) -> Nanos {
        let first = |heap: &IndexedHeap<Nanos>| heap.peek().map_or(Nanos::MAX, |(at, _)| at);
        first(&self.due).min(first(&self.expiry))
    }

    fn on_timer(&mut self, now: Nanos, cluster: &mut Cluster) {
        while let Some((_, model)) = self.expiry.pop_up_to(now) {
            self.reform(now, model, cluster);
        }
        self.serve(now, cluster);
    }
}

impl Model {
    fn new(model: &SimModel, rule: Rule, rate_rps: f64) -> Self {
        let slo = model.slo();
        let profile = model.profile.clone();
        let gap_ns = 1e9 / rate_rps;
        let balanced = |&b: &u32| profile.latency(b) + Nanos((gap_ns * f64::from(b)) as u64) <= slo;
        let target = (1..=profile.batch_max()).take_while(balanced).last().unwrap_or(1);
        let fraction = if let Rule::Timeout(fraction) = rule { fraction } else { 1.0 };
        let patience = Nanos((slo.0 as f64 * fraction) as u64);
        let queue = VecDeque::new();
        Self { queue, profile, slo, patience, target, urgency: Nanos::ZERO }
    }

    fn fits(&self, now: Nanos, batch: u32, rank: usize) -> bool {
        now + self.profile.latency(batch) <= self.queue[rank].deadline
    }

    /// Takes out the head if it cannot run alone any more.
    fn hopeless(&mut self, now: Nanos) -> Option<Request> {
        let hopeless = !self.queue.is_empty() && !self.fits(now, 1, 0);
        hopeless.then(|| self.queue.pop_front())?
    }

    /// The first head from which the target size, or all that wait behind it, fits; then as many
    /// as fit. Both are monotone.
    fn form(&self, now: Nanos) -> Option<Window> {
        let waiting = self.queue.len();
        let wanted = |head: usize| ((waiting - head) as u32).min(self.target);
        let head = first(0, waiting, |head| self.fits(now, wanted(head), head));
        if head == waiting {
            return None;
        }
        let most = ((waiting - head) as u32).min(self.profile.batch_max()) as usize;
        let spoilt = first(1, most + 1, |batch| !self.fits(now, batch as u32, head));
        Some(Window { head, batch: spoilt as u32 - 1 })
    }

    /// Just after the last moment at which the window fits and its queue's head could run alone.
    fn expiry(&self, window: Window) -> Nanos {
        let latest = |rank: usize, batch| self.queue[rank].deadline - self.profile.latency(batch);
        latest(0, 1).min(latest(window.head, window.batch)) + Nanos(1)
    }
}

/// The first of `low..high` for which `holds`, which stays true from there on; else `high`.
fn first(mut low: usize, mut high: usize, holds: impl Fn(usize) -> bool) -> usize {
    while low < high {
        let middle = usize::midpoint(low, high);
        if holds(middle) { high = middle } else { low = middle + 1 }
    }
    low
}

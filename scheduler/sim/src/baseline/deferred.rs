//! Central deferred batching by rules other than the production one. With window formation: until
//! one more task would not fit (*frontrun*), or for a fixed part of the objective (*timeout*). With
//! the pruning that Symphony's text describes: until βλ tasks wait or one more would not fit.
//!
//! Knows every model's rate exactly, which gives the rules their best case.

use std::collections::VecDeque;

use baton_core::{IndexedHeap, Nanos, NetworkDelay, Profile, Request, TaskId};

use crate::baseline::queue::enqueue;
use crate::baseline::slots::Slots;
use crate::cluster::{Cluster, Finished, Lost};
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
    /// Once it has βλ tasks, or at dl − ℓ(b + 1); no head is given up for the tasks behind it.
    Text,
}

#[derive(Debug)]
struct Model {
    /// In the order of deadlines.
    queue: VecDeque<Request>,
    /// From the decision to the end of the execution: plan delivery, fetching and ℓ(b).
    profile: Profile,
    /// ℓ(b) alone.
    real: Profile,
    /// How much of the time from its arrival to its deadline the head may wait.
    patience: f64,
    /// The batch size worth giving up heads for; `None`: a head ends only when it cannot run alone.
    target: Option<u32>,
    /// A batch of this many tasks waits for no more (βλ).
    enough: f64,
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
    slots: Slots,
    network: NetworkDelay,
    /// When a slot can be given to the most urgent candidate although its batch has not ended.
    match_at: Nanos,
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
        let model = |model: &SimModel| Model::new(model, scenario.network, rule, rate_rps);
        Self {
            models: scenario.models.iter().map(model).collect(),
            slots: Slots::new(scenario),
            network: scenario.network,
            match_at: Nanos::MAX,
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
        let Request { task: TaskId(arrived), deadline, .. } = model.queue[window.head];
        model.urgency = deadline - model.profile.latency(window.batch + 1);
        let patience = (deadline.0 - arrived) as f64 * model.patience;
        let waited_enough = Nanos(arrived + patience as u64);
        let full = window.batch == model.profile.batch_max();
        let ripe = full || f64::from(window.batch) >= model.enough;
        self.due.set(id, if ripe { now } else { model.urgency.min(waited_enough) });
        self.expiry.set(id, model.expiry(window));
    }

    /// Serves what is schedulable, most urgent first.
    fn serve(&mut self, now: Nanos, cluster: &mut Cluster) {
        self.match_at = Nanos::MAX;
        loop {
            while let Some((_, id)) = self.due.pop_up_to(now) {
                self.ready.set(id, self.models[id as usize].urgency);
            }
            let Some((_, id)) = self.ready.peek() else { return };
            if let Some(window) = self.models[id as usize].form(now) {
                let delay = self.network.before(window.batch);
                let Some(gpu) = self.slots.free_by(now + delay) else {
                    self.match_at = self.slots.next_end() - delay;
                    return;
                };
                self.dispatch(now, gpu, id, window, cluster);
            }
            self.reform(now, id, cluster);
        }
    }

    fn dispatch(&mut self, now: Nanos, gpu: u32, id: u32, window: Window, cluster: &mut Cluster) {
        let Model { queue, real, .. } = &mut self.models[id as usize];
        queue.drain(..window.head).for_each(|task| cluster.give_up(id, task.task, "window"));
        let exec_at = now + self.network.before(window.batch);
        cluster.execute(gpu, id, exec_at, queue.drain(..window.batch as usize));
        self.slots.take(gpu, exec_at, real.latency(window.batch));
    }
}

impl Scheduler for Deferred {
    fn on_arrival(&mut self, now: Nanos, model: u32, request: Request, cluster: &mut Cluster) {
        enqueue(&mut self.models[model as usize].queue, request);
        self.reform(now, model, cluster);
        self.serve(now, cluster);
    }

    fn on_finished(&mut self, now: Nanos, finished: Finished, cluster: &mut Cluster) {
        self.slots.finished(now, finished.gpu);
        self.serve(now, cluster);
    }

    fn on_gpu_loss(&mut self, now: Nanos, gpu: u32, lost: Vec<Lost>, cluster: &mut Cluster) {
        self.slots.leave(gpu);
        for Lost { model, requests } in lost {
            let queue = &mut self.models[model as usize].queue;
            requests.into_iter().for_each(|request| enqueue(queue, request));
            self.reform(now, model, cluster);
        }
        self.serve(now, cluster);
    }

    fn on_gpu_join(&mut self, now: Nanos, gpu: u32, cluster: &mut Cluster) {
        self.slots.join(gpu);
        self.serve(now, cluster);
    }

    fn next_timer(&self) -> Nanos {
        let first = |heap: &IndexedHeap<Nanos>| heap.peek().map_or(Nanos::MAX, |(at, _)| at);
        first(&self.due).min(first(&self.expiry)).min(self.match_at)
    }

    fn on_timer(&mut self, now: Nanos, cluster: &mut Cluster) {
        while let Some((_, model)) = self.expiry.pop_up_to(now) {
            self.reform(now, model, cluster);
        }
        self.serve(now, cluster);
    }
}

impl Model {
    fn new(model: &SimModel, network: NetworkDelay, rule: Rule, total_rps: f64) -> Self {
        let slo = model.slo();
        let profile = delayed(&model.profile, network);
        let gap_ns = 1e9 / (total_rps * model.share);
        let balanced = |&b: &u32| profile.latency(b) + Nanos((gap_ns * f64::from(b)) as u64) <= slo;
        let target = (1..=profile.batch_max()).take_while(balanced).last().unwrap_or(1);
        let text = rule == Rule::Text;
        Self {
            queue: VecDeque::new(),
            patience: if let Rule::Timeout(fraction) = rule { fraction } else { 1.0 },
            target: (!text).then_some(target),
            enough: if text { model.profile.beta().0 as f64 / gap_ns } else { f64::INFINITY },
            urgency: Nanos::ZERO,
            profile,
            real: model.profile.clone(),
        }
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
    /// as fit. Both are monotone. Without a target, the first head.
    fn form(&self, now: Nanos) -> Option<Window> {
        let waiting = self.queue.len();
        let wanted = |head: usize| ((waiting - head) as u32).min(self.target.unwrap_or(1));
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

fn delayed(profile: &Profile, network: NetworkDelay) -> Profile {
    let table: Vec<Nanos> =
        (1..).zip(profile.table()).map(|(batch, &l)| l + network.before(batch)).collect();
    Profile::from_table(&table).expect("a profile stays one when the delay of each size is added")
}

/// The first of `low..high` for which `holds`, which stays true from there on; else `high`.
fn first(mut low: usize, mut high: usize, holds: impl Fn(usize) -> bool) -> usize {
    while low < high {
        let middle = usize::midpoint(low, high);
        if holds(middle) { high = middle } else { low = middle + 1 }
    }
    low
}

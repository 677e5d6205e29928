//! The production scheduler under the simulator: real [`ModelState`]s, the real [`RankState`], and
//! between them messages that arrive in order, after `lag`.

use baton_core::{
    Batch, BatchShape, Candidate, Choice, FailReason, Gpu, GpuId, GpuUpdate, IndexedHeap, LoadDone,
    ModelConfig, ModelCounters, ModelId, ModelSink, ModelState, Nanos, NetworkDelay, Policy,
    RankLimits, RankState, Readiness, Request, Slowdown, SubclusterId, TaskId, Unserved,
    gpus_needed,
};

use crate::cache::{Cache, Caching};
use crate::cluster::{Cluster, Finished, Lost};
use crate::drive::Scheduler;
use crate::loaders::LoadEnd;
use crate::mail::{Mail, Message, Post};
use crate::observer::{Event, Observer};
use crate::ports::{Fetched, Ports};
use crate::scenario::{Scenario, SimModel};
use crate::subclusters::Subclusters;
use crate::trying::Trying;

/// See the module documentation. `W` hears of everything and changes nothing.
pub(crate) struct Production<W = ()> {
    models: Vec<ModelState>,
    /// Which sub-cluster serves which model.
    homes: Vec<SubclusterId>,
    subclusters: Subclusters,
    rank: RankState,
    timers: IndexedHeap<Nanos>,
    mail: Mail,
    slots: Vec<Slot>,
    ports: Ports,
    /// Tasks of plans that found their slot gone.
    returned: Vec<Request>,
    /// `None`: every slot holds every model.
    cache: Option<Cache>,
    /// By sub-cluster; empty where no other rules are tried.
    trying: Vec<Trying>,
    watch: W,
}

/// A slot as the backends have it; grants and plans under way may be for an earlier life.
#[derive(Clone, Copy)]
struct Slot {
    life: u32,
    is_present: bool,
    /// When it was granted last.
    slowdown: Slowdown,
}

impl<W: Observer> Production<W> {
    pub(crate) fn new(
        scenario: &Scenario,
        (policy, choice, caching): (Policy, Choice, Caching),
        rate_rps: f64,
        watch: W,
    ) -> Self {
        let subclusters = scenario.subclusters.clone();
        let (gpus, count) = (scenario.gpus, subclusters.count());
        let copies = Cache::copies(scenario, caching);
        let limits = RankLimits { gpus, subclusters: count, copies };
        let homes: Vec<_> = scenario.models.iter().map(|model| model.subcluster).collect();
        let mut rank = RankState::new(limits, &homes);
        let mut cache = scenario.memory.map(|memory| Cache::new(scenario, memory, caching));
        cache.iter().for_each(|cache| cache.bind(&mut rank, &homes));
        let mut mail = Mail::new(scenario.message_lag);
        let slot = |is_present| Slot { life: 0, is_present, slowdown: Slowdown::NONE };
        let slots: Vec<Slot> = scenario.present_at_first().into_iter().map(slot).collect();
        let ports = Ports::new(scenario);
        for (id, slot) in (0..).map(GpuId).zip(&slots).filter(|(_, slot)| slot.is_present) {
            let gpu = Gpu { id, life: slot.life };
            let home = subclusters.of_slot(id.0);
            ports.of_slot(id.0).into_iter().for_each(|port| rank.share_port(id, port));
            rank.on_gpu_join(Nanos::ZERO, gpu, home, &mut mail.at(Nanos::ZERO));
            if let Some(cache) = &mut cache {
                cache.join(Nanos::ZERO, gpu, &mut rank, &mut mail.at(Nanos::ZERO));
            }
        }
        let timers = IndexedHeap::new(homes.len());
        let models = models(scenario, (policy, choice), rate_rps);
        let trying = Trying::all(scenario, policy, &homes);
        let returned = Vec::new();
        Self {
            models,
            homes,
            subclusters,
            rank,
            timers,
            mail,
            slots,
            ports,
            returned,
            cache,
            trying,
            watch,
        }
    }

    /// The observer, with what it has heard.
    pub(crate) fn into_watch(self) -> W {
        self.watch
    }

    /// Delivers what is due, until both sides fall silent.
    fn settle(&mut self, now: Nanos, cluster: &mut Cluster) {
        self.deliver_due(now, cluster);
        if self.cache.is_none() {
            return self.mail.granted.clear();
        }
        self.cache_settles(now, cluster);
    }

    /// The cache hears of grants, loads what is to be loaded, and models hear where their weights are, until nothing changes.
    fn cache_settles(&mut self, now: Nanos, cluster: &mut Cluster) {
        loop {
            let Some(cache) = &mut self.cache else { return };
            for (model, gpu) in self.mail.granted.drain(..) {
                cache.granted(now, model, gpu);
            }
            cache.load(now, &mut self.rank, cluster);
            let Some((model, readiness)) = cache.news() else { return };
            self.inform(now, model.0, readiness, cluster);
            self.deliver_due(now, cluster);
        }
    }

    /// A model hears where its weights are.
    fn inform(&mut self, now: Nanos, id: u32, readiness: Readiness, cluster: &mut Cluster) {
        self.watch.event(now, Event::Readiness { model: id, readiness });
        self.with(now, id, cluster, |model, outbox| model.on_readiness(now, readiness, outbox));
    }

    fn deliver_due(&mut self, now: Nanos, cluster: &mut Cluster) {
        while let Some(&(due, message)) = self.mail.queue.front() {
            if due > now {
                return;
            }
            self.mail.queue.pop_front();
            self.deliver(now, message, cluster);
        }
    }

    fn deliver(&mut self, now: Nanos, message: Message, cluster: &mut Cluster) {
        match message {
            Message::Candidate(model, candidate, grants) => {
                self.cache.iter_mut().for_each(|cache| cache.candidate(now, model, candidate));
                self.rank.on_candidate(now, model, candidate, grants, &mut self.mail.at(now));
            }
            Message::Gpu(update) => self.rank.on_gpu(now, update, &mut self.mail.at(now)),
            Message::Grant(id, grant) => {
                self.watch.event(now, Event::Granted { model: id.0, grant });
                self.with(now, id.0, cluster, |model, outbox| model.on_grant(now, grant, outbox));
                while let Some(request) = self.returned.pop() {
                    self.requeue(now, id.0, request, cluster);
                }
            }
        }
    }

    /// A task's slot is gone.
    fn requeue(&mut self, now: Nanos, id: u32, request: Request, cluster: &mut Cluster) {
        self.watch.event(now, Event::Requeued { model: id, request });
        let otherwise = Unserved::Failed(FailReason::BackendLost);
        self.with(now, id, cluster, |model, outbox| {
            model.on_requeue(now, request, otherwise, outbox);
        });
    }

    /// Where tasks are being lost, other rules may be better.
    fn try_rules(&mut self, now: Nanos, id: u32, request: &Request, cluster: &mut Cluster) {
        let home = self.homes[id as usize];
        let Some(trying) = self.trying.get_mut(home.0 as usize) else { return };
        let task = (id, request.deadline);
        let Some(rules) = trying.arrived(now, task, (&self.models, &self.rank)) else { return };
        for id in trying.models().to_vec() {
            self.with(now, id as u32, cluster, |model, outbox| {
                model.set_rules(rules.rules());
                model.reform(now, outbox);
            });
        }
    }

    fn gpus_needed_in(&self, now: Nanos, subcluster: SubclusterId) -> u32 {
        let homes = self.homes.iter().zip(&self.models);
        let served = || homes.clone().filter(|(home, _)| **home == subcluster).map(|(_, m)| m);
        let load = served().map(|model| model.load(now)).sum();
        let counted = |of: fn(&ModelCounters) -> u64| {
            served().map(|model| of(&model.counters())).sum::<u64>()
        };
        let (lost, received) = (counted(|c| c.given_up), counted(|c| c.received).max(1));
        let bad_rate = (lost << 16) / received;
        gpus_needed(load, bad_rate as u32, self.rank.gpus_present(subcluster))
    }

    /// The slot in its present life.
    fn gpu(&self, id: u32) -> Gpu {
        Gpu { id: GpuId(id), life: self.slots[id as usize].life }
    }

    /// Gives a model an input, and sets its timer.
    fn with(
        &mut self,
        now: Nanos,
        id: u32,
        cluster: &mut Cluster,
        input: impl FnOnce(&mut ModelState, &mut Outbox<'_, W>),
    ) {
        let mail = self.mail.at(now);
        let model = &mut self.models[id as usize];
        let (slots, ports, returned) = (&mut self.slots, &mut self.ports, &mut self.returned);
        let (cache, watch) = (self.cache.as_mut(), &mut self.watch);
        input(
            model,
            &mut Outbox { now, model: id, mail, cluster, slots, ports, returned, cache, watch },
        );
        self.watch.event(now, Event::Looked { model: id, state: model });
        match model.next_timer() {
            Some(at) => self.timers.set(id, at),
            None => drop(self.timers.remove(id)),
        }
    }
}

impl<W: Observer> Scheduler for Production<W> {
    fn begin(&mut self, cluster: &mut Cluster) {
        let Some(cache) = &self.cache else { return };
        let present = (0..).zip(&self.slots).filter(|(_, slot)| slot.is_present);
        present.for_each(|(slot, _)| cache.place_pinned(slot, cluster));
        let news: Vec<_> =
            (0..self.models.len() as u32).map(|id| (id, cache.readiness(ModelId(id)))).collect();
        for (id, readiness) in news {
            self.inform(Nanos::ZERO, id, readiness, cluster);
        }
        self.settle(Nanos::ZERO, cluster);
    }

    fn on_loaded(&mut self, now: Nanos, load: LoadEnd, cluster: &mut Cluster) {
        self.watch.event(now, Event::Loaded(load));
        let LoadEnd { gpu, model, outcome, .. } = load;
        let done = LoadDone { model: ModelId(model), gpu: self.gpu(gpu), outcome };
        if let Some(cache) = &mut self.cache {
            cache.loaded(now, done, &mut self.rank, &mut self.mail.at(now));
        }
        self.settle(now, cluster);
    }

    fn on_arrival(&mut self, now: Nanos, id: u32, request: Request, cluster: &mut Cluster) {
        self.cache.iter_mut().for_each(|cache| cache.arrived(now, ModelId(id)));
        self.watch.event(now, Event::Arrived { model: id, request });
        self.try_rules(now, id, &request, cluster);
        self.with(now, id, cluster, |model, outbox| model.on_request(now, request, outbox));
        self.settle(now, cluster);
    }

    fn on_finished(&mut self, now: Nanos, finished: Finished, cluster: &mut Cluster) {
        self.watch.event(now, Event::Finished(finished));
        let Finished { gpu, model, variant, batch, took } = finished;
        let slowdown = self.slots[gpu as usize].slowdown;
        let shape = BatchShape { variant, ..BatchShape::of(batch) };
        let pace = self.models[model as usize].on_measured(shape, took, slowdown);
        let fetched = self.ports.report(gpu);
        if let Some(Fetched { took, late, .. }) = fetched {
            self.models[model as usize].on_fetched(batch, took, late);
        }
        let slot = self.gpu(gpu);
        self.cache.iter_mut().for_each(|cache| cache.ended(now, ModelId(model), slot));
        let (gpu, fetched_at) = (self.gpu(gpu), fetched.map(|fetched| fetched.at));
        let finished = GpuUpdate::Finished { gpu, at: now, pace, fetched_at };
        self.mail.at(now).post(Message::Gpu(finished));
        self.settle(now, cluster);
    }

    fn on_gpu_loss(&mut self, now: Nanos, id: u32, lost: Vec<Lost>, cluster: &mut Cluster) {
        self.slots[id as usize].is_present = false;
        self.ports.clear(id);
        let gpu = self.gpu(id);
        self.rank.on_gpu_leave(gpu);
        self.cache.iter_mut().for_each(|cache| cache.leave(gpu));
        for Lost { model, requests } in lost {
            for request in requests {
                self.requeue(now, model, request, cluster);
            }
        }
        self.settle(now, cluster);
    }

    fn on_gpu_join(&mut self, now: Nanos, id: u32, cluster: &mut Cluster) {
        let slot = &mut self.slots[id as usize];
        *slot = Slot { life: slot.life + 1, is_present: true, slowdown: Slowdown::NONE };
        let gpu = self.gpu(id);
        let home = self.subclusters.of_slot(id);
        self.rank.on_gpu_join(now, gpu, home, &mut self.mail.at(now));
        if let Some(cache) = &mut self.cache {
            cache.place_pinned(id, cluster);
            cache.join(now, gpu, &mut self.rank, &mut self.mail.at(now));
        }
        self.settle(now, cluster);
    }

    fn gpus_needed(&self, now: Nanos) -> Option<u32> {
        let subclusters = (0..self.subclusters.count()).map(SubclusterId);
        Some(subclusters.map(|subcluster| self.gpus_needed_in(now, subcluster)).sum())
    }

    fn next_timer(&self) -> Nanos {
        let model = self.timers.peek().map_or(Nanos::MAX, |(at, _)| at);
        let mail = self.mail.queue.front().map_or(Nanos::MAX, |&(due, _)| due);
        let load = self.cache.as_ref().map_or(Nanos::MAX, Cache::next_timer);
        model.min(mail).min(self.rank.next_timer().unwrap_or(Nanos::MAX)).min(load)
    }

    fn on_timer(&mut self, now: Nanos, cluster: &mut Cluster) {
        self.settle(now, cluster);
        while let Some((_, model)) = self.timers.pop_up_to(now) {
            self.with(now, model, cluster, |model, outbox| model.on_timer(now, outbox));
            self.settle(now, cluster);
        }
        self.rank.on_timer(now, &mut self.mail.at(now));
        self.settle(now, cluster);
    }
}

fn models(
    scenario: &Scenario,
    (policy, choice): (Policy, Choice),
    rate_rps: f64,
) -> Vec<ModelState> {
    // A candidate and its grant may be late, each by a message.
    let jitter = scenario.network.jitter.max(scenario.message_lag.times(2));
    let network = NetworkDelay { jitter, ..scenario.network };
    let config = |(m, model): (usize, &SimModel)| ModelConfig {
        id: ModelId(m as u32),
        profile: model.profile.clone(),
        slo: model.slo(),
        queue_capacity: queue_capacity(scenario, model, rate_rps),
        policy,
        prefer: scenario.prefer,
        network,
    };
    let state = |(m, model): (usize, &SimModel)| {
        let state = ModelState::new(config((m, model)));
        match model.checked_variants() {
            None => state,
            Some(variants) => state.with_variants(&variants, choice),
        }
    };
    scenario.models.iter().enumerate().map(state).collect()
}

/// Room for eight times what arrives within the objective when the load is highest: only a load
/// that is hopeless anyway fills the queue.
fn queue_capacity(scenario: &Scenario, model: &SimModel, rate_rps: f64) -> u32 {
    let load = scenario.load_of(model);
    let peak = load.map_or(1.0, |load| load.peak(scenario.warmup, scenario.end()));
    let within_objective = rate_rps * model.share * peak * model.slo_ms / 1e3;
    1024 + (8.0 * within_objective).min(1e6) as u32
}

/// What a model decides: plans and ends take effect at once, the rest is mail.
struct Outbox<'a, W> {
    now: Nanos,
    model: u32,
    mail: Post<'a>,
    cluster: &'a mut Cluster,
    slots: &'a mut [Slot],
    ports: &'a mut Ports,
    returned: &'a mut Vec<Request>,
    cache: Option<&'a mut Cache>,
    watch: &'a mut W,
}

impl<W: Observer> ModelSink for Outbox<'_, W> {
    fn candidate(&mut self, model: ModelId, candidate: Option<Candidate>, grants: u32) {
        self.mail.post(Message::Candidate(model, candidate, grants));
    }

    fn dispatch(&mut self, batch: &Batch<'_>) {
        self.watch.event(self.now, Event::Sealed(batch));
        let Gpu { id: GpuId(gpu), life } = batch.grant.gpu;
        let slot = &mut self.slots[gpu as usize];
        slot.slowdown = batch.grant.slowdown;
        if !slot.is_present || slot.life != life {
            return self.returned.extend(batch.requests());
        }
        let fetched_at = self.ports.fetch(self.now, gpu, batch.len(), batch.fetched_at);
        let mut start = batch.exec_at.max(fetched_at);
        if let Some(cache) = &mut self.cache {
            let id = ModelId(self.model);
            let there_at = cache.miss(self.now, id, batch.grant.gpu, self.cluster);
            start = start.max(there_at.expect("there is room for what a slot's batches need"));
        }
        let variant = (self.model, batch.shape.variant);
        self.cluster.execute_variant(gpu, variant, start, batch.requests());
    }

    fn gpu(&mut self, update: GpuUpdate) {
        self.watch.event(self.now, Event::Slot(update));
        if let Some(cache) = &mut self.cache {
            cache.update(self.now, ModelId(self.model), update);
        }
        self.mail.post(Message::Gpu(update));
    }

    fn end_task(&mut self, task: TaskId, why: Unserved) {
        self.watch.event(self.now, Event::Ended { model: self.model, task, why });
        let why = match why {
            Unserved::Dropped(why) => why.as_str(),
            Unserved::Failed(why) => why.as_str(),
        };
        self.cluster.give_up(self.model, task, why);
    }
}

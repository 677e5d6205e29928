//! What a policy of the production scheduler does with memory that not all models fit into.

use baton_core::{
    Candidate, Gpu, GpuUpdate, Load, LoadDone, LoadLimits, LoadRule, LoadSink, LoadState, ModelId,
    Nanos, RankSink, RankState, Readiness, SubclusterId,
};

use crate::cluster::Cluster;
use crate::scenario::{Scenario, SimModel};
use crate::weights::{self, GpuMemory};

/// Who decides what is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Caching {
    /// There is nothing to decide: every slot holds every model.
    Everything,
    /// [`LoadState`], beside RankState.
    Managed,
    /// A batch is granted any slot, and loads its model there if it must.
    OnMiss,
    /// Models are where they were placed by their popularity, for ever.
    Pinned,
}

impl Caching {
    /// What a policy of the production scheduler does.
    pub(crate) fn of(scenario: &Scenario) -> Self {
        if scenario.memory.is_some() { Self::Managed } else { Self::Everything }
    }
}

/// See the module documentation.
pub(crate) struct Cache {
    caching: Caching,
    loads: LoadState,
    memory: GpuMemory,
    /// What each slot holds for ever.
    pinned: Vec<Vec<u32>>,
    /// News for models: where their weights are.
    news: Vec<(ModelId, Readiness)>,
}

impl Cache {
    pub(crate) fn new(scenario: &Scenario, memory: GpuMemory, caching: Caching) -> Self {
        let weights: Vec<_> = scenario.models.iter().map(|m| memory.weights(m)).collect();
        let rule = if caching == Caching::Managed { LoadRule::Baton } else { LoadRule::Commanded };
        let limits = weights::limits(scenario, rule);
        // A second LOAD waits in the loader, so that it never waits for word of the first.
        let outstanding = Nanos::from_millis(u64::from(caching == Caching::Managed));
        let limits = LoadLimits { outstanding, ..limits };
        let is_pinned = caching == Caching::Pinned;
        Self {
            caching,
            loads: LoadState::new(limits, &weights),
            memory,
            pinned: if is_pinned { pinned(scenario, memory) } else { Vec::new() },
            news: Vec::new(),
        }
    }

    /// Slots that may hold a model, if models may run only there.
    pub(crate) fn copies(scenario: &Scenario, caching: Caching) -> u32 {
        let is_bound = matches!(caching, Caching::Managed | Caching::Pinned);
        if is_bound { weights::limits(scenario, LoadRule::Baton).copies } else { 0 }
    }

    /// Which models may run only where they are.
    pub(crate) fn bind(&self, rank: &mut RankState, homes: &[SubclusterId]) {
        if matches!(self.caching, Caching::Managed | Caching::Pinned) {
            for (model, &home) in (0..).map(ModelId).zip(homes) {
                rank.serve_where_resident(model, home);
            }
        }
    }

    /// A slot has come, RankState knows of it. What is pinned is there at once.
    pub(crate) fn join(
        &mut self,
        now: Nanos,
        gpu: Gpu,
        rank: &mut RankState,
        out: &mut impl RankSink,
    ) {
        self.loads.on_gpu_join(now, gpu, self.memory.pages);
        for &model in self.pinned.get(gpu.id.0 as usize).into_iter().flatten() {
            let mut news = News(&mut self.news);
            let fits = self.loads.place(now, ModelId(model), gpu, &mut news)
                && rank.on_resident(now, ModelId(model), gpu, out);
            debug_assert!(fits, "models are pinned to slots with room");
        }
    }

    /// What the slots hold before a run, or when they come back.
    pub(crate) fn place_pinned(&self, slot: u32, cluster: &mut Cluster) {
        for &model in self.pinned.get(slot as usize).into_iter().flatten() {
            cluster.loaders().place(slot, model);
        }
    }

    pub(crate) fn leave(&mut self, gpu: Gpu) {
        self.loads.on_gpu_leave(gpu, &mut News(&mut self.news));
    }

    pub(crate) fn granted(&mut self, now: Nanos, model: ModelId, gpu: Gpu) {
        if self.caching != Caching::OnMiss {
            self.loads.on_granted(now, model, gpu);
        }
    }

    pub(crate) fn ended(&mut self, now: Nanos, model: ModelId, gpu: Gpu) {
        self.loads.on_ended(now, model, gpu);
    }

    pub(crate) fn arrived(&mut self, now: Nanos, model: ModelId) {
        self.loads.on_tasks(now, model, 1);
    }

    pub(crate) fn candidate(&mut self, now: Nanos, model: ModelId, candidate: Option<Candidate>) {
        self.loads.on_candidate(now, model, candidate);
    }

    /// What became of a slot that was granted to the model.
    pub(crate) fn update(&mut self, now: Nanos, model: ModelId, update: GpuUpdate) {
        match update {
            GpuUpdate::Planned { .. } => self.loads.on_planned(now, model, update),
            GpuUpdate::Returned { gpu } if self.caching != Caching::OnMiss => {
                self.loads.on_ended(now, model, gpu);
            }
            GpuUpdate::Returned { .. } | GpuUpdate::Finished { .. } => {}
        }
    }

    /// When a batch of the model can start on the slot, which loads it if it must. `None` if there is no room.
    pub(crate) fn miss(
        &mut self,
        now: Nanos,
        model: ModelId,
        gpu: Gpu,
        cluster: &mut Cluster,
    ) -> Option<Nanos> {
        if self.caching != Caching::OnMiss {
            return Some(now);
        }
        if cluster.loaders().ready_at(gpu.id.0, model.0).is_none() {
            let news = News(&mut self.news);
            let mut send = Send { now, cluster: &mut *cluster, victims: Vec::new(), news };
            if !self.loads.load(now, model, gpu, &mut send) {
                return None;
            }
        }
        // Batches that wait for it count from now on.
        self.loads.on_granted(now, model, gpu);
        cluster.loaders().ready_at(gpu.id.0, model.0)
    }

    /// A LOAD is over.
    pub(crate) fn loaded(
        &mut self,
        now: Nanos,
        done: LoadDone,
        rank: &mut RankState,
        out: &mut impl RankSink,
    ) {
        self.loads.on_load_done(now, done, &mut News(&mut self.news));
        let is_there = self.loads.is_resident(done.model, done.gpu);
        if is_there && self.caching == Caching::Managed {
            let is_known = rank.on_resident(now, done.model, done.gpu, out);
            debug_assert!(is_known, "as many copies as LoadState plans");
        }
    }

    /// Loads what is to be loaded.
    pub(crate) fn load(&mut self, now: Nanos, rank: &mut RankState, cluster: &mut Cluster) {
        let mut send = Send { now, cluster, victims: Vec::new(), news: News(&mut self.news) };
        self.loads.on_timer(now, &mut send);
        for (gpu, victim) in send.victims {
            rank.on_evicted(victim, gpu);
        }
    }

    /// Where the weights of models are that have moved, last first.
    pub(crate) fn news(&mut self) -> Option<(ModelId, Readiness)> {
        self.news.pop()
    }

    pub(crate) fn next_timer(&self) -> Nanos {
        self.loads.next_timer().unwrap_or(Nanos::MAX)
    }

    pub(crate) fn readiness(&self, model: ModelId) -> Readiness {
        self.loads.readiness(model)
    }
}

/// Keeps what models are to hear.
struct News<'a>(&'a mut Vec<(ModelId, Readiness)>);

impl LoadSink for News<'_> {
    fn load(&mut self, _load: &Load<'_>) {
        unreachable!("nothing is loaded but by `load` and `on_timer`");
    }

    fn readiness(&mut self, model: ModelId, readiness: Readiness) {
        self.0.retain(|(other, _)| *other != model);
        self.0.push((model, readiness));
    }
}

/// Sends LOADs to the slots.
struct Send<'a> {
    now: Nanos,
    cluster: &'a mut Cluster,
    /// Victims, with their slots.
    victims: Vec<(Gpu, ModelId)>,
    news: News<'a>,
}

impl LoadSink for Send<'_> {
    fn load(&mut self, load: &Load<'_>) {
        self.victims.extend(load.victims.iter().map(|&victim| (load.gpu, victim)));
        self.cluster.loaders().begin(self.now, load);
    }

    fn readiness(&mut self, model: ModelId, readiness: Readiness) {
        self.news.readiness(model, readiness);
    }
}

/// What each slot holds for ever: the most popular models first, each on as many slots as it keeps half busy, and where there is
/// room then further copies in the same order.
fn pinned(scenario: &Scenario, memory: GpuMemory) -> Vec<Vec<u32>> {
    let gpus = scenario.gpus as usize;
    let mut room = vec![memory.pages; gpus];
    let mut load = vec![0.0_f64; gpus];
    let mut pinned = vec![Vec::new(); gpus];
    let most = weights::limits(scenario, LoadRule::Commanded).copies as usize;
    let mut copies_of = vec![0; scenario.models.len()];
    let total: f64 = scenario.models.iter().map(each).sum();
    let mut order: Vec<usize> = (0..scenario.models.len()).collect();
    order.sort_by(|&a, &b| each(&scenario.models[b]).total_cmp(&each(&scenario.models[a])));
    for round in 0..gpus {
        for &id in &order {
            let model = &scenario.models[id];
            let work = each(model) / total * gpus as f64;
            let copies = if round == 0 { (work * 2.0).ceil().max(1.0) as usize } else { 1 };
            let pages = memory.weights(model).pages;
            for _ in 0..copies.min(most - copies_of[id]) {
                let open = (0..gpus)
                    .filter(|&gpu| room[gpu] >= pages && !pinned[gpu].contains(&(id as u32)));
                let Some(gpu) = open.min_by(|&a, &b| load[a].total_cmp(&load[b])) else { break };
                room[gpu] -= pages;
                load[gpu] += work / copies as f64;
                pinned[gpu].push(id as u32);
                copies_of[id] += 1;
            }
        }
    }
    pinned
}

/// A model's load, up to a factor: the tasks of efficient batches.
fn each(model: &SimModel) -> f64 {
    let most = model.profile.batch_max();
    let share = model.share.max(f64::from(model.clients) * 1e-6);
    share * model.profile.latency(most).as_millis_f64() / f64::from(most)
}

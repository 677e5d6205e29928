//! Weights on the RankThread: [`LoadState`] beside [`RankState`], and what connects it with backends and models.
//!
//! In: slots that come with their memory, grants, plans, candidates, arrivals, reports of LOADs. Out: LOADs and where the
//! weights of models are, by the ModelThreads; and to RankState which slot holds which model.

pub(crate) mod cold;
pub(crate) mod levels;
pub(crate) mod link;
pub(crate) mod news;
mod outstanding;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use baton_core::{
    Candidate, Gpu, GpuId, GpuUpdate, Load, LoadCounters, LoadDone, LoadLimits, LoadOutcome,
    LoadRule, LoadSink, LoadState, ModelId, Nanos, RankSink, RankState, SubclusterId, Weights,
};
use baton_topo::{Cluster, ModelSpec, WeightsCacheSpec, WeightsSpec};
use crossbeam_channel::TrySendError;

use crate::commands::SlotMemory;
use levels::CacheLevels;
use link::{CacheEnds, CacheOrder, LoadOrder, LoadReport};
use news::{Failure, LoadEnd, LoadNews, LoadOrdered};
use outstanding::Outstanding;

/// Slots that may hold one model.
const COPIES_MAX: u32 = 64;
/// A slot gets its next LOAD while the one it has takes less than this, so that its loader never waits for word of it.
const OUTSTANDING: Nanos = Nanos::from_millis(1);
/// A LOAD that failed counts as over only after this long: a slot that cannot load is not asked again at once.
const FAILED_PAUSE: Nanos = Nanos::from_millis(10);
/// How often arrivals are counted.
const COUNT_EVERY: Nanos = Nanos::from_millis(10);

/// What a cluster's caches can hold. `None` of these where there are none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CacheLimits {
    /// Slots that may be joined, of backends with and without a cache.
    pub(crate) slots: u32,
    /// Slots that may hold one model.
    pub(crate) copies: u32,
    /// Models that one slot may hold.
    residents: u32,
}

impl CacheLimits {
    /// Twice the slots of the file, so that others may join. `None`: every backend holds every model.
    pub(crate) fn of(cluster: &Cluster) -> Option<Self> {
        let subclusters = || (0..cluster.subclusters.len() as u32).map(SubclusterId);
        let pages = subclusters().filter_map(|id| Some(cluster.weights_cache(id)?.pages)).max()?;
        let slots: u32 = cluster.backends.iter().map(|backend| backend.gpus).sum();
        let slots = (2 * slots).clamp(COPIES_MAX, crate::limits::GPUS_MAX);
        let residents = pages.min(cluster.models_max());
        Some(Self { slots, copies: COPIES_MAX, residents })
    }
}

/// What a model takes of such a cache.
pub(crate) fn weights(cache: WeightsCacheSpec, of: WeightsSpec, model: &ModelSpec) -> Weights {
    let WeightsSpec { load, is_guess, .. } = of;
    Weights { pages: cache.pages_of(of), load, is_guess, alone: model.profile.latency(1) }
}

/// See the module documentation.
#[derive(Debug)]
pub struct Cache {
    loads: LoadState,
    /// Slots with caches have numbers below this.
    slots: u32,
    /// By model: the sub-cluster and the pages that it takes there, if that has caches.
    bound: Box<[Option<(SubclusterId, u32)>]>,
    planned: Planned,
    /// LOADs that failed, with when that counts.
    failed: VecDeque<(Nanos, LoadDone)>,
    ends: CacheEnds,
    /// By model: how many of its arrivals are counted.
    counted: Box<[u32]>,
    next_count: Nanos,
}

/// What LoadState has decided and no ModelThread knows.
#[derive(Debug)]
struct Planned {
    outstanding: Outstanding,
    orders: Vec<LoadOrder>,
    /// What operators may want to know of these.
    levels: Arc<CacheLevels>,
    /// Models whose weights have moved, each once.
    moved: VecDeque<ModelId>,
    has_moved: Box<[bool]>,
}

impl LoadSink for Planned {
    fn load(&mut self, load: &Load<'_>) {
        let Load { model, gpu, earliest: at, latest, until, reason, victims, .. } = *load;
        let name = self.outstanding.insert(model, gpu);
        let (slot, leaving) = (gpu.id, victims.len() as u32);
        let ordered = LoadOrdered { name, model, slot, reason, at, until, victims: leaving };
        self.levels.tell(LoadNews::Ordered(ordered));
        self.orders.push(LoadOrder { name, model, gpu, latest, victims: victims.into() });
    }

    fn readiness(&mut self, model: ModelId, _: baton_core::Readiness) {
        // The newest counts, which is read when it is sent.
        if !std::mem::replace(&mut self.has_moved[model.0 as usize], true) {
            self.moved.push_back(model);
        }
    }
}

impl Cache {
    /// The caches of the cluster, empty. There are `models` model numbers.
    pub(crate) fn new(
        cluster: &Cluster,
        limits: CacheLimits,
        models: usize,
        ends: CacheEnds,
    ) -> Self {
        let mut bound = vec![None; models];
        let nothing = Weights { pages: 1, load: Nanos::ZERO, is_guess: false, alone: Nanos::ZERO };
        let mut weights = vec![nothing; models];
        for (at, model) in cluster.models.iter().enumerate() {
            if let (Some(cache), Some(of)) =
                (cluster.weights_cache(model.subcluster), model.weights)
            {
                let pages = cache.pages_of(of);
                bound[at] = Some((model.subcluster, pages));
                weights[at] = self::weights(cache, of, model);
            }
        }
        let CacheLimits { slots: gpus, copies, residents } = limits;
        let (rule, outstanding) = (LoadRule::Baton, OUTSTANDING);
        let limits = LoadLimits { gpus, copies, residents, rule, outstanding };
        let is_bound: Vec<bool> = bound.iter().map(Option::is_some).collect();
        let moved =
            (0..).map(ModelId).zip(&is_bound).filter(|(_, is)| **is).map(|(model, _)| model);
        Self {
            loads: LoadState::new(limits, &weights),
            planned: Planned {
                outstanding: Outstanding::default(),
                orders: Vec::new(),
                levels: Arc::clone(&ends.levels),
                // Where the weights are at first, which is nowhere, is news as well.
                moved: moved.collect(),
                has_moved: is_bound.into(),
            },
            slots: gpus,
            bound: bound.into(),
            failed: VecDeque::new(),
            ends,
            counted: vec![0; models].into(),
            next_count: Nanos::ZERO,
        }
    }

    /// How they fare.
    pub(crate) fn levels(&self) -> Arc<CacheLevels> {
        Arc::clone(&self.ends.levels)
    }

    /// Models with caches may run only where they are.
    pub(crate) fn bind(&self, rank: &mut RankState) {
        for (model, bound) in (0..).map(ModelId).zip(&self.bound) {
            if let &Some((subcluster, _)) = bound {
                rank.serve_where_resident(model, subcluster);
            }
        }
    }

    /// A model was added to a sub-cluster with caches. No slot holds it.
    pub(crate) fn serve(
        &mut self,
        model: ModelId,
        subcluster: SubclusterId,
        weights: Weights,
        rank: &mut RankState,
    ) {
        self.bound[model.0 as usize] = Some((subcluster, weights.pages));
        self.loads.serve(model, weights, &mut self.planned);
        rank.serve_where_resident(model, subcluster);
    }

    /// A model was removed, and its backends will hear of it. False while a LOAD of it is under way: then it is to be asked again.
    pub(crate) fn forget(&mut self, model: ModelId) -> bool {
        if !self.is_bound(model) {
            return true;
        }
        let slots: Vec<Gpu> = self.loads.resident_on(model).collect();
        let is_over = self.loads.forget(model);
        slots.iter().for_each(|gpu| self.show_pages(gpu.id));
        if is_over {
            self.bound[model.0 as usize] = None;
            self.counted[model.0 as usize] =
                self.ends.arrivals[model.0 as usize].load(Ordering::Relaxed);
            self.ends.levels.forget(model);
        }
        is_over
    }

    fn is_bound(&self, model: ModelId) -> bool {
        self.bound[model.0 as usize].is_some()
    }

    /// A slot has come, RankState knows of it.
    pub(crate) fn join(
        &mut self,
        now: Nanos,
        gpu: Gpu,
        memory: &SlotMemory,
        rank: &mut RankState,
        out: &mut impl RankSink,
    ) {
        self.loads.on_gpu_join(now, gpu, memory.pages);
        let (mut placed, left): (Vec<ModelId>, Vec<ModelId>) =
            memory.models.iter().partition(|&&model| self.place(now, model, gpu));
        if !left.is_empty() {
            // The slot has them, and no LOAD may count on their pages.
            let of = |model: &ModelId| self.bound[model.0 as usize].map_or(0, |(_, pages)| pages);
            let pages: u32 = left.iter().map(of).sum();
            tracing::warn!(
                gpu = gpu.id.0,
                pages,
                "a slot holds models for which there is no room in its cache as this scheduler \
                            knows it; restart its backend, with the same cluster file"
            );
            self.loads.on_gpu_leave(gpu, &mut self.planned);
            self.loads.on_gpu_join(now, gpu, memory.pages.saturating_sub(pages));
            placed.retain(|&model| self.place(now, model, gpu));
        }
        for model in placed {
            _ = rank.on_resident(now, model, gpu, out);
        }
        self.show_pages(gpu.id);
    }

    fn place(&mut self, now: Nanos, model: ModelId, gpu: Gpu) -> bool {
        self.is_bound(model) && self.loads.place(now, model, gpu, &mut self.planned)
    }

    /// A slot is gone, or takes nothing new.
    pub(crate) fn leave(&mut self, now: Nanos, gpu: Gpu) {
        if gpu.id.0 >= self.slots {
            return;
        }
        let levels = &self.ends.levels;
        let tell = |name| levels.tell(LoadNews::Ended { name, at: now, end: LoadEnd::Lost });
        self.planned.outstanding.forget(gpu, tell);
        self.loads.on_gpu_leave(gpu, &mut self.planned);
        self.show_pages(gpu.id);
    }

    fn show_pages(&self, slot: GpuId) {
        self.ends.levels.set_pages_free(slot, self.loads.free_pages(slot));
    }

    /// A slot was granted to the model.
    pub(crate) fn granted(&mut self, now: Nanos, model: ModelId, gpu: Gpu) {
        if self.is_bound(model) {
            self.loads.on_granted(now, model, gpu);
        }
    }

    /// What became of that.
    pub(crate) fn update(&mut self, now: Nanos, model: ModelId, update: GpuUpdate) {
        if !self.is_bound(model) {
            return;
        }
        match update {
            GpuUpdate::Planned { .. } => self.loads.on_planned(now, model, update),
            GpuUpdate::Returned { gpu } | GpuUpdate::Finished { gpu, .. } => {
                self.loads.on_ended(now, model, gpu);
            }
        }
    }

    /// The model's latest candidate.
    pub(crate) fn candidate(&mut self, now: Nanos, model: ModelId, candidate: Option<Candidate>) {
        if self.is_bound(model) {
            self.loads.on_candidate(now, model, candidate);
        }
    }

    /// The model lives on another ModelThread now, which may not have heard where its weights are.
    pub(crate) fn has_moved(&mut self, model: ModelId) {
        if self.is_bound(model) {
            let readiness = self.loads.readiness(model);
            self.planned.readiness(model, readiness);
        }
    }

    /// LOADs that are over: RankState hears which slots hold their models. Returns how many.
    pub(crate) fn take_reports(
        &mut self,
        now: Nanos,
        rank: &mut RankState,
        out: &mut impl RankSink,
    ) -> usize {
        let mut taken = 0;
        while let Ok(report) = self.ends.reports.try_recv() {
            taken += 1;
            let LoadReport { name, slot, end } = report;
            if let Some(done) = self.over(now, name, slot, end) {
                self.ended(now, done, rank, out);
            }
        }
        while let Some((_, done)) = self.failed.pop_front_if(|(due, _)| *due <= now) {
            taken += 1;
            self.loads.on_load_done(now, done, &mut self.planned);
            self.show_pages(done.gpu.id);
        }
        taken
    }

    /// A LOAD is over. `None` if the slot has no such LOAD.
    fn over(&mut self, now: Nanos, name: u64, slot: GpuId, end: LoadEnd) -> Option<LoadDone> {
        let (model, gpu) = self.planned.outstanding.remove(name, slot)?;
        let levels = &self.ends.levels;
        levels.tell(LoadNews::Ended { name, at: now, end });
        if let LoadEnd::Failed(failure) = end {
            levels.failed(model, failure);
        }
        Some(LoadDone { model, gpu, outcome: end.outcome()? })
    }

    fn ended(&mut self, now: Nanos, done: LoadDone, rank: &mut RankState, out: &mut impl RankSink) {
        if matches!(done.outcome, LoadOutcome::NoPages | LoadOutcome::Failed) {
            return self.failed.push_back((now + FAILED_PAUSE, done));
        }
        self.loads.on_load_done(now, done, &mut self.planned);
        self.show_pages(done.gpu.id);
        if self.loads.is_resident(done.model, done.gpu) {
            _ = rank.on_resident(now, done.model, done.gpu, out);
        }
    }

    /// Loads what is to be loaded, and informs the ModelThreads: `home` says on which one a model lives, and `told` hears of each
    /// that was sent something. Returns how much there was to do.
    pub(crate) fn settle(
        &mut self,
        now: Nanos,
        rank: &mut RankState,
        home: impl Fn(ModelId) -> usize,
        mut told: impl FnMut(usize),
    ) -> usize {
        self.count_arrivals(now);
        self.loads.on_timer(now, &mut self.planned);
        let mut sent = 0;
        for order in std::mem::take(&mut self.planned.orders) {
            order.victims.iter().for_each(|&victim| rank.on_evicted(victim, order.gpu));
            let (thread, name, slot) = (home(order.model), order.name, order.gpu.id);
            sent += 1;
            self.show_pages(slot);
            match self.ends.threads[thread].try_send(CacheOrder::Load(order)) {
                Ok(()) => told(thread),
                Err(_) => self.fail(now, name, slot),
            }
        }
        sent + self.send_news(home, told)
    }

    /// A ModelThread does not take it: it stands still, or has ended.
    #[cold]
    fn fail(&mut self, now: Nanos, name: u64, slot: GpuId) {
        let done = self.over(now, name, slot, LoadEnd::Failed(Failure::Unsent));
        self.failed.extend(done.map(|done| (now + FAILED_PAUSE, done)));
    }

    fn send_news(&mut self, home: impl Fn(ModelId) -> usize, mut told: impl FnMut(usize)) -> usize {
        let mut sent = 0;
        while let Some(&model) = self.planned.moved.front() {
            let (thread, readiness) = (home(model), self.loads.readiness(model));
            let copies = self.loads.resident_on(model).count() as u32;
            self.ends.levels.set_copies(model, copies);
            match self.ends.threads[thread].try_send(CacheOrder::Readiness(model, readiness)) {
                Ok(()) => told(thread),
                Err(TrySendError::Full(_)) => return sent,
                Err(TrySendError::Disconnected(_)) => {}
            }
            self.planned.moved.pop_front();
            self.planned.has_moved[model.0 as usize] = false;
            sent += 1;
        }
        sent
    }

    fn count_arrivals(&mut self, now: Nanos) {
        if now < self.next_count {
            return;
        }
        self.next_count = now + COUNT_EVERY;
        for at in 0..self.bound.len() {
            let arrived = self.ends.arrivals[at].load(Ordering::Relaxed);
            let tasks = arrived.wrapping_sub(std::mem::replace(&mut self.counted[at], arrived));
            if tasks > 0 {
                self.loads.on_tasks(now, ModelId(at as u32), tasks);
            }
        }
    }

    /// When [`Cache::settle`] or [`Cache::take_reports`] must be called.
    pub(crate) fn next_timer(&self) -> Nanos {
        let failed = self.failed.front().map_or(Nanos::MAX, |&(due, _)| due);
        let loads = self.loads.next_timer().unwrap_or(Nanos::MAX);
        self.next_count.min(failed).min(loads)
    }

    /// Counted since start.
    pub(crate) fn counters(&self) -> LoadCounters {
        self.loads.counters()
    }
}

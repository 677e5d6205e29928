//! Steps 3 → 4 of a task's way: candidates and slot updates in, grants out.

use baton_core::{Gpu, Grant, ModelId, Nanos, RankLimits, RankSink, RankState, SubclusterId};
use baton_topo::{Agent, SLEEP_MAX, Waker};
use crossbeam_channel::Receiver;
use std::sync::Arc;

use crate::board::{BoardReader, PublishedCandidate};
use crate::cache::Cache;
use crate::cache::levels::CacheLevels;
use crate::cache::news::Failure;
use crate::commands::{Notice, RankCommand, SlotMemory};
use crate::counters::RankThreadCounters;
use crate::limits::{GPUS_MAX, RANK_MAIL_RING};
use crate::link::{NoticeSender, RankLink, Sleeper};
use crate::mail::{Packed, ToRank};

/// Where a model lives.
#[derive(Clone, Copy, Debug)]
pub struct Home {
    /// Its ModelThread.
    pub thread: usize,
    /// The sub-cluster that serves it.
    pub subcluster: SubclusterId,
}

/// The agent that owns the [`RankState`].
pub struct RankThread {
    state: RankState,
    /// `None`: every slot holds every model of its sub-cluster.
    cache: Option<Cache>,
    subclusters: u32,
    out: Outbox,
    /// Per ModelThread: the candidates of the models on it.
    boards: Vec<BoardReader>,
    commands: Receiver<RankCommand>,
    /// Models that are removed, and of which a LOAD may be under way.
    leaving: Vec<ModelId>,
    /// What arrived in this pass from one thread, and the candidates it speaks of.
    mail: Vec<Packed>,
    candidates: Vec<(usize, PublishedCandidate)>,
    sleeper: Sleeper,
    waker: Waker,
    counters: Arc<RankThreadCounters>,
}

/// Where decisions go.
struct Outbox {
    links: Vec<RankLink>,
    /// Where each model lives now, and how often it had moved by then: where its newest candidate
    /// came from. Until the first one comes from a new home, grants go to the former, which passes
    /// them on.
    homes: Vec<(usize, u32)>,
    notices: NoticeSender,
    /// Grants that the cache has not heard of; `None`: there is none.
    granted: Option<Vec<(ModelId, Gpu)>>,
}

impl RankSink for Outbox {
    fn grant(&mut self, model: ModelId, grant: Grant) {
        let (thread, _) = self.homes[model.0 as usize];
        self.links[thread].grant(model, grant);
        self.granted.iter_mut().for_each(|granted| granted.push((model, grant.gpu)));
    }

    fn drained(&mut self, gpu: Gpu) {
        self.notices.send(Notice::Drained(gpu));
    }
}

impl Outbox {
    fn tell_granted(&mut self, now: Nanos, cache: &mut Cache) {
        for (model, gpu) in self.granted.iter_mut().flat_map(|granted| granted.drain(..)) {
            cache.granted(now, model, gpu);
        }
    }
}

impl RankThread {
    /// `homes[m]` says where model m lives; `links[t]` leads to ModelThread t.
    pub fn new(
        (homes, subclusters): (&[Home], u32),
        links: Vec<(BoardReader, RankLink)>,
        commands: Receiver<RankCommand>,
        notices: NoticeSender,
        (sleeper, waker): (Sleeper, Waker),
        (cache, copies): (Option<Cache>, u32),
        counters: Arc<RankThreadCounters>,
    ) -> Self {
        let serving: Vec<SubclusterId> = homes.iter().map(|home| home.subcluster).collect();
        let (boards, links): (Vec<_>, Vec<_>) = links.into_iter().unzip();
        let homes = homes.iter().map(|home| (home.thread, 0)).collect();
        let mut state =
            RankState::new(RankLimits { gpus: GPUS_MAX, subclusters, copies }, &serving);
        cache.iter().for_each(|cache| cache.bind(&mut state));
        let granted = cache.is_some().then(Vec::new);
        Self {
            state,
            cache,
            subclusters,
            out: Outbox { links, homes, notices, granted },
            boards,
            commands,
            leaving: Vec::new(),
            mail: Vec::with_capacity(RANK_MAIL_RING),
            candidates: Vec::with_capacity(serving.len()),
            sleeper,
            waker,
            counters,
        }
    }

    /// How caches of weights fare, if there are any.
    pub(crate) fn cache_levels(&self) -> Option<Arc<CacheLevels>> {
        self.cache.as_ref().map(Cache::levels)
    }

    /// Batches granted and not reported finished. Walks all slots: for tests and diagnosis.
    pub fn outstanding(&self) -> usize {
        self.state.outstanding()
    }

    /// Slots that take batches, as counted, and those that are offered for one, as listed. With
    /// nothing outstanding they are the same. Walks all slots: for tests and diagnosis.
    pub fn slots(&self) -> (u32, usize) {
        let subclusters = (0..self.subclusters).map(SubclusterId);
        let present = subclusters.map(|subcluster| self.state.gpus_present(subcluster)).sum();
        (present, self.state.gpus_offered())
    }

    fn take_commands(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        while let Ok(command) = self.commands.try_recv() {
            taken += 1;
            match command {
                RankCommand::Join { gpus, subcluster, memory } => {
                    // All before the first joins, which may be granted at once.
                    gpus.iter().for_each(|gpu| self.state.share_port(gpu.id, gpus[0].id));
                    for &gpu in &gpus {
                        self.state.on_gpu_join(now, gpu, subcluster, &mut self.out);
                    }
                    self.join_cache(now, &gpus, &memory);
                }
                RankCommand::Drain { gpus } => {
                    for gpu in gpus {
                        self.state.on_gpu_drain(gpu, &mut self.out);
                        self.cache.iter_mut().for_each(|cache| cache.leave(now, gpu));
                    }
                }
                RankCommand::Leave { gpus } => {
                    for gpu in gpus {
                        self.state.on_gpu_leave(gpu);
                        self.cache.iter_mut().for_each(|cache| cache.leave(now, gpu));
                    }
                }
                RankCommand::TellSlots { subcluster, mut slowdowns } => {
                    slowdowns.extend(self.state.slowdowns(subcluster));
                    self.out.notices.send(Notice::Slots { subcluster, slowdowns });
                }
                RankCommand::Serve { model, subcluster, weights } => {
                    match (&mut self.cache, weights) {
                        (Some(cache), Some(weights)) => {
                            cache.serve(model, subcluster, weights, &mut self.state);
                        }
                        _ => self.state.serve(model, subcluster),
                    }
                    self.out.notices.send(Notice::Ranked(model));
                }
                RankCommand::Forget { model } => self.leaving.push(model),
            }
        }
        taken
    }

    /// Forgets the models that are removed, once no LOAD of them is under way.
    fn forget_models(&mut self) -> usize {
        let Self { state, cache, out, leaving, .. } = self;
        let before = leaving.len();
        leaving.retain(|&model| {
            let is_over = cache.as_mut().is_none_or(|cache| cache.forget(model));
            if is_over {
                let grants = state.forget(model);
                out.notices.send(Notice::Unranked { model, grants });
            }
            !is_over
        });
        before - leaving.len()
    }

    /// Notes what has arrived; nothing is decided before all of it is known.
    fn take_mail(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        for thread in 0..self.boards.len() {
            self.out.links[thread].take_mail(&mut self.mail);
            for message in self.mail.drain(..) {
                match ToRank::unpack(message) {
                    ToRank::Update(model, update) => {
                        self.cache.iter_mut().for_each(|cache| cache.update(now, model, update));
                        self.state.note_gpu(now, update, &mut self.out);
                        taken += 1;
                    }
                    ToRank::Changed { word, models } => {
                        self.boards[thread].read(word, models, &mut self.candidates);
                    }
                }
            }
            taken += self.note_candidates(now, thread);
        }
        taken
    }

    fn note_candidates(&mut self, now: Nanos, thread: usize) -> usize {
        let taken = self.candidates.len();
        for (model, PublishedCandidate { candidate, grants, moves }) in self.candidates.drain(..) {
            let home = &mut self.out.homes[model];
            // What a former home published last is not news.
            if moves >= home.1 {
                let has_moved = moves > home.1;
                *home = (thread, moves);
                if let Some(cache) = &mut self.cache {
                    if has_moved {
                        cache.has_moved(ModelId(model as u32));
                    }
                    cache.candidate(now, ModelId(model as u32), candidate);
                }
                self.state.note_candidate(now, ModelId(model as u32), candidate, grants);
            }
        }
        taken
    }

    fn join_cache(&mut self, now: Nanos, gpus: &[Gpu], memory: &[SlotMemory]) {
        let Some(cache) = &mut self.cache else { return };
        for (&gpu, memory) in gpus.iter().zip(memory) {
            cache.join(now, gpu, memory, &mut self.state, &mut self.out);
        }
    }

    /// Once RankState has decided: what is loaded, and what becomes of LOADs.
    fn tend_cache(&mut self, now: Nanos) -> usize {
        let Self { state, cache: Some(cache), out, .. } = self else { return 0 };
        out.tell_granted(now, cache);
        let reports = cache.take_reports(now, state, out);
        out.tell_granted(now, cache);
        let Outbox { links, homes, .. } = out;
        let home = |model: ModelId| homes[model.0 as usize].0;
        reports + cache.settle(now, state, home, |thread| links[thread].has_orders())
    }

    fn publish_counters(&self) {
        if let Some(cache) = &self.cache {
            let counted = cache.counters();
            self.counters.loads_planned.set(counted.loads);
            self.counters.loads_done.set(counted.loaded);
            self.counters.loads_late.set(counted.late);
            self.counters.loads_failed.set(counted.failed);
            let levels = cache.levels();
            let of = |failure| levels.failures(failure);
            self.counters.loads_without_pages.set(of(Failure::NoPages));
            self.counters.loads_unreadable.set(of(Failure::Unreadable));
            self.counters.loads_different.set(of(Failure::Different));
            self.counters.loads_hung.set(of(Failure::Hung));
            self.counters.load_news_lost.set(levels.news_lost());
            self.counters.models_evicted.set(counted.evicted);
            self.counters.models_copied.set(counted.copied);
        }
        let counted = self.state.counters();
        self.counters.candidates.set(counted.candidates);
        self.counters.superseded.set(counted.superseded);
        self.counters.grants.set(counted.grants);
        self.counters.grants_of_slow.set(counted.grants_of_slow);
        self.counters.candidates_expired.set(counted.expired);
    }
}

impl Agent for RankThread {
    fn poll(&mut self, now: Nanos) -> usize {
        let taken = [self.take_commands(now), self.take_mail(now), self.forget_models()];
        let due = self.state.next_timer().is_some_and(|at| at <= now);
        if due {
            self.state.on_timer(now, &mut self.out);
        }
        let work = taken.into_iter().chain([usize::from(due), self.tend_cache(now)]).sum();
        if work > 0 {
            self.out.links.iter_mut().for_each(RankLink::announce);
            self.publish_counters();
        }
        work
    }

    fn next_timer(&self) -> Option<Nanos> {
        let cache = self.cache.as_ref().map(Cache::next_timer);
        self.state.next_timer().into_iter().chain(cache).min()
    }

    fn wait(&mut self, timeout: Option<Nanos>) {
        self.sleeper.sleep(timeout);
    }

    fn sleep_max(&self) -> Nanos {
        SLEEP_MAX
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }
}

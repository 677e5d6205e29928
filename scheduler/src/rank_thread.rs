//! Steps 3 → 4 of a task's way: candidates and slot updates in, grants out.

use baton_core::{Gpu, Grant, ModelId, Nanos, RankLimits, RankSink, RankState, SubclusterId};
use baton_topo::{Agent, SLEEP_MAX, Waker};
use crossbeam_channel::Receiver;
use std::sync::Arc;

use crate::board::{BoardReader, PublishedCandidate};
use crate::commands::{Notice, RankCommand};
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
    subclusters: u32,
    out: Outbox,
    /// Per ModelThread: the candidates of the models on it.
    boards: Vec<BoardReader>,
    commands: Receiver<RankCommand>,
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
}

impl RankSink for Outbox {
    fn grant(&mut self, model: ModelId, grant: Grant) {
        let (thread, _) = self.homes[model.0 as usize];
        self.links[thread].grant(model, grant);
    }

    fn drained(&mut self, gpu: Gpu) {
        self.notices.send(Notice::Drained(gpu));
    }
}

impl RankThread {
    /// `homes[m]` says where model m lives; `links[t]` leads to ModelThread t.
    pub fn new(
        homes: &[Home],
        subclusters: u32,
        links: Vec<(BoardReader, RankLink)>,
        commands: Receiver<RankCommand>,
        notices: NoticeSender,
        (sleeper, waker): (Sleeper, Waker),
        counters: Arc<RankThreadCounters>,
    ) -> Self {
        let serving: Vec<SubclusterId> = homes.iter().map(|home| home.subcluster).collect();
        let (boards, links): (Vec<_>, Vec<_>) = links.into_iter().unzip();
        let homes = homes.iter().map(|home| (home.thread, 0)).collect();
        Self {
            state: RankState::new(RankLimits { gpus: GPUS_MAX, subclusters, copies: 0 }, &serving),
            subclusters,
            out: Outbox { links, homes, notices },
            boards,
            commands,
            mail: Vec::with_capacity(RANK_MAIL_RING),
            candidates: Vec::with_capacity(serving.len()),
            sleeper,
            waker,
            counters,
        }
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
                RankCommand::Join { gpus, subcluster } => {
                    // All before the first joins, which may be granted at once.
                    gpus.iter().for_each(|gpu| self.state.share_port(gpu.id, gpus[0].id));
                    for gpu in gpus {
                        self.state.on_gpu_join(now, gpu, subcluster, &mut self.out);
                    }
                }
                RankCommand::Drain { gpus } => {
                    for gpu in gpus {
                        self.state.on_gpu_drain(gpu, &mut self.out);
                    }
                }
                RankCommand::Leave { gpus } => {
                    gpus.into_iter().for_each(|gpu| self.state.on_gpu_leave(gpu));
                }
                RankCommand::Serve { model, subcluster } => {
                    self.state.serve(model, subcluster);
                    self.out.notices.send(Notice::Ranked(model));
                }
                RankCommand::Forget { model } => {
                    let grants = self.state.forget(model);
                    self.out.notices.send(Notice::Unranked { model, grants });
                }
            }
        }
        taken
    }

    /// Notes what has arrived; nothing is decided before all of it is known.
    fn take_mail(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        for thread in 0..self.boards.len() {
            self.out.links[thread].take_mail(&mut self.mail);
            for message in self.mail.drain(..) {
                match ToRank::unpack(message) {
                    ToRank::Update(update) => {
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
                *home = (thread, moves);
                self.state.note_candidate(now, ModelId(model as u32), candidate, grants);
            }
        }
        taken
    }

    fn publish_counters(&self) {
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
        let work = self.take_commands(now) + self.take_mail(now);
        let due = self.state.next_timer().is_some_and(|at| at <= now);
        if due {
            self.state.on_timer(now, &mut self.out);
        }
        if work > 0 || due {
            self.out.links.iter_mut().for_each(RankLink::announce);
            self.publish_counters();
        }
        work + usize::from(due)
    }

    fn next_timer(&self) -> Option<Nanos> {
        self.state.next_timer()
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

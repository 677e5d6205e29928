//! Steps 3 → 4 of a task's way: candidates and slot updates in, grants out.

use baton_core::{Gpu, Grant, ModelId, Nanos, RankLimits, RankSink, RankState, SubclusterId};
use baton_topo::{Agent, Waker};
use crossbeam_channel::Receiver;
use std::sync::Arc;

use crate::board::{BoardReader, Published};
use crate::counters::RankThreadCounters;
use crate::limits::GPUS_MAX;
use crate::link::{Notice, NoticeSender, RankCommand, RankLink, Sleeper};

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
    out: Outbox,
    /// Per ModelThread: its candidates, and the models on it by their number there.
    boards: Vec<(BoardReader, Vec<ModelId>)>,
    commands: Receiver<RankCommand>,
    sleeper: Sleeper,
    waker: Waker,
    counters: Arc<RankThreadCounters>,
}

/// Where decisions go.
struct Outbox {
    links: Vec<RankLink>,
    /// `thread_of[m]` = the ModelThread of model m.
    thread_of: Vec<usize>,
    notices: NoticeSender,
}

impl RankSink for Outbox {
    fn grant(&mut self, model: ModelId, grant: Grant) {
        self.links[self.thread_of[model.0 as usize]].grant(model, grant);
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
        let (readers, links): (Vec<_>, Vec<_>) = links.into_iter().unzip();
        let mut boards: Vec<_> = readers.into_iter().map(|board| (board, Vec::new())).collect();
        for (model, home) in homes.iter().enumerate() {
            boards[home.thread].1.push(ModelId(model as u32));
        }
        let thread_of = homes.iter().map(|home| home.thread).collect();
        Self {
            state: RankState::new(RankLimits { gpus: GPUS_MAX, subclusters }, &serving),
            out: Outbox { links, thread_of, notices },
            boards,
            commands,
            sleeper,
            waker,
            counters,
        }
    }

    fn take_commands(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        while let Ok(command) = self.commands.try_recv() {
            taken += 1;
            match command {
                RankCommand::Join { gpus, subcluster } => {
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
            }
        }
        taken
    }

    /// Updates before candidates: a slot that has just become free can serve what comes next.
    fn take_updates(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        for thread in 0..self.out.links.len() {
            while let Some(update) = self.out.links[thread].update() {
                self.state.note_gpu(now, update, &mut self.out);
                taken += 1;
            }
        }
        taken
    }

    fn take_candidates(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        for (board, residents) in &self.boards {
            taken += board.collect(|at, value| {
                let Published { candidate, grants } = value;
                self.state.note_candidate(now, residents[at], candidate, grants);
            });
        }
        taken
    }

    fn publish_counters(&self) {
        let counted = self.state.counters();
        self.counters.candidates.set(counted.candidates);
        self.counters.superseded.set(counted.superseded);
        self.counters.grants.set(counted.grants);
        self.counters.candidates_expired.set(counted.expired);
    }
}

impl Agent for RankThread {
    fn poll(&mut self, now: Nanos) -> usize {
        let work = self.take_commands(now) + self.take_updates(now) + self.take_candidates(now);
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

    fn waker(&self) -> Waker {
        self.waker.clone()
    }
}

//! A copy of a sub-cluster's scheduler with slots that execute in virtual time, each batch for as long as planned, less the
//! margin, and at first for longer. It knows nothing else of what the simulator (`scheduler/sim`) simulates, and the
//! scheduler need not contain that.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use super::{Replica, Trial};
use crate::candidate::{Candidate, Gpu, GpuUpdate, Grant};
use crate::containers::heap::IndexedHeap;
use crate::model::batch::Batch;
use crate::model::sink::ModelSink;
use crate::model::{ModelConfig, ModelState};
use crate::policy::Rules;
use crate::rank::{RankLimits, RankSink, RankState};
use baton_types::{GpuId, ModelId, Nanos, Request, SubclusterId, TaskId, Unserved};

/// A task that is replayed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    /// When it comes, from the beginning of the replay on.
    pub(super) at: Nanos,
    /// Its model's position.
    pub(super) model: usize,
    /// Its deadline less its arrival.
    pub(super) budget: Nanos,
}

/// What became of a model's tasks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Lost {
    /// Tasks that came.
    pub(super) tasks: u64,
    /// Of these, those that were not served.
    pub(super) lost: u64,
    /// How long the others took, together.
    pub(super) took: Nanos,
}

enum Message {
    Candidate(ModelId, Option<Candidate>, u32),
    Gpu(GpuUpdate),
    Grant(ModelId, Grant),
}

/// See the module documentation. A task's id is its arrival time.
pub(super) struct Shadow {
    models: Vec<ModelState>,
    /// Per model: by how much its batches end earlier than planned.
    margins: Vec<Box<[Nanos]>>,
    rank: RankState,
    /// Of models.
    timers: IndexedHeap<Nanos>,
    /// Per slot: when each of its batches ends.
    batches: Vec<VecDeque<Nanos>>,
    /// Slots that execute, by the end of their first batch.
    ends: IndexedHeap<Nanos>,
    mail: VecDeque<Message>,
    lost: Vec<Lost>,
    /// Tasks that came earlier do not count.
    counts_from: Nanos,
    /// The next replay.
    begins: Nanos,
    now: Nanos,
    /// The overload's end.
    overloaded_until: Nanos,
    /// When its losses are forgotten.
    forgets_at: Option<Nanos>,
}

const ONLY: SubclusterId = SubclusterId(0);
/// The copy begins in an overload: batches take four times as long …
const OVERLOAD: u64 = 4;
/// … for four of the longest objectives, or a quarter of what was recorded if that is less. As long after it, what was lost
/// then has come to its end and is forgotten.
const OVERLOAD_OBJECTIVES: u64 = 4;

fn slot(id: u32) -> Gpu {
    Gpu { id: GpuId(id), life: 0 }
}

impl Shadow {
    /// For replays of a trial's tasks.
    pub(super) fn new(trial: &Trial, rules: Rules) -> Self {
        let Trial { models: replicas, slots, .. } = trial;
        let room = room(trial);
        let overload =
            trial.longest_objective().times(OVERLOAD_OBJECTIVES).min(Nanos(trial.span.0 / 4));
        let model = |(id, Replica { config, patience, .. }): (u32, &Replica)| {
            let queue_capacity = config.queue_capacity.min(room[id as usize]);
            let config = ModelConfig { id: ModelId(id), queue_capacity, ..config.clone() };
            let profile = config.profile.clone();
            let mut model = ModelState::new(config);
            model.set_profiles(&[profile], patience.clone());
            model.set_rules(rules);
            model
        };
        let limits = RankLimits { gpus: slots.len() as u32, subclusters: 1, copies: 0 };
        let mut shadow = Self {
            models: (0..).zip(replicas).map(model).collect(),
            margins: replicas.iter().map(|replica| replica.margins.clone()).collect(),
            rank: RankState::new(limits, &vec![ONLY; replicas.len()]),
            timers: IndexedHeap::new(replicas.len()),
            batches: vec![VecDeque::new(); slots.len()],
            ends: IndexedHeap::new(slots.len()),
            mail: VecDeque::new(),
            lost: vec![Lost::default(); replicas.len()],
            counts_from: Nanos::ZERO,
            begins: Nanos::ZERO,
            now: Nanos::ZERO,
            overloaded_until: overload,
            forgets_at: Some(overload.times(2)),
        };
        for (gpu, &slowdown) in (0..).map(slot).zip(slots) {
            shadow.rank.on_gpu_join(Nanos::ZERO, gpu, ONLY, &mut Mail(&mut shadow.mail));
            shadow.rank.know_slowdown(Nanos::ZERO, gpu, slowdown);
        }
        shadow
    }

    /// The tasks come, as long after the last replay began as it took them to come.
    pub(super) fn replay(&mut self, trial: &Trial) {
        for &Task { at, model, budget } in &trial.tasks {
            let at = self.begins + at;
            self.advance(at);
            self.now = at;
            if self.forgets_at.take_if(|due| *due <= at).is_some() {
                self.models.iter_mut().for_each(ModelState::forget_losses);
            }
            self.lost[model].tasks += 1;
            let request = Request::new(TaskId(at.0), at + budget);
            self.with(model as u32, |model, out| model.on_request(at, request, out));
            self.settle();
        }
        self.begins = self.begins + trial.span;
    }

    /// Forgets what was lost so far.
    pub(super) fn count_anew(&mut self) {
        self.counts_from = self.begins;
        self.lost.fill(Lost::default());
    }

    /// What was lost of each model, once nothing waits any more.
    pub(super) fn end(mut self) -> Vec<Lost> {
        self.advance(Nanos::MAX);
        debug_assert!(self.models.iter().all(|model| model.waiting() == 0), "every task has ended");
        self.lost
    }

    /// Does what is due before or at this moment.
    fn advance(&mut self, until: Nanos) {
        loop {
            let first = |heap: &IndexedHeap<Nanos>| heap.peek().map_or(Nanos::MAX, |(at, _)| at);
            let (end, timer) = (first(&self.ends), first(&self.timers));
            // Ticks alone are no reason to go on.
            let is_idle = end == Nanos::MAX && timer == Nanos::MAX;
            let rank = self.rank.next_timer().filter(|_| !is_idle).unwrap_or(Nanos::MAX);
            let due = end.min(timer).min(rank);
            if due > until || due == Nanos::MAX {
                return;
            }
            self.now = self.now.max(due);
            let now = self.now;
            if end <= now {
                self.end_batch();
            } else if let Some((_, model)) = self.timers.pop_up_to(now) {
                self.with(model, |model, out| model.on_timer(now, out));
            } else {
                self.rank.on_timer(now, &mut Mail(&mut self.mail));
            }
            self.settle();
        }
    }

    fn end_batch(&mut self) {
        let Some((at, id)) = self.ends.peek() else { return };
        let batches = &mut self.batches[id as usize];
        batches.pop_front();
        match batches.front() {
            Some(&next) => self.ends.set(id, next),
            None => drop(self.ends.remove(id)),
        }
        let finished = GpuUpdate::Finished { gpu: slot(id), at, pace: None, fetched_at: None };
        self.mail.push_back(Message::Gpu(finished));
    }

    /// Delivers messages until there are none.
    fn settle(&mut self) {
        let now = self.now;
        while let Some(message) = self.mail.pop_front() {
            let mail = &mut Mail(&mut self.mail);
            match message {
                Message::Candidate(model, candidate, grants) => {
                    self.rank.on_candidate(now, model, candidate, grants, mail);
                }
                Message::Gpu(update) => self.rank.on_gpu(now, update, mail),
                Message::Grant(id, grant) => {
                    self.with(id.0, |model, out| model.on_grant(now, grant, out));
                }
            }
        }
    }

    /// Gives a model an input, and sets its timer.
    fn with(&mut self, id: u32, input: impl FnOnce(&mut ModelState, &mut Outbox<'_>)) {
        let Self { mail, batches, ends, counts_from, .. } = self;
        let counts_from = *counts_from;
        let lost = &mut self.lost[id as usize];
        let model = &mut self.models[id as usize];
        let margins = &self.margins[id as usize];
        let stretch = if self.now < self.overloaded_until { OVERLOAD } else { 1 };
        let latency = Nanos::ZERO;
        let out = &mut Outbox { mail, batches, ends, margins, stretch, lost, counts_from, latency };
        input(model, out);
        match model.next_timer() {
            Some(at) => self.timers.set(id, at),
            None => drop(self.timers.remove(id)),
        }
    }
}

/// How many tasks of each model can wait at a time while they are replayed again and again: none waits for longer than its
/// budget.
fn room(trial: &Trial) -> Vec<u32> {
    let mut room = vec![1_u32; trial.models.len()];
    let budget = trial.tasks.iter().map(|task| task.budget).max().unwrap_or_default();
    let replays = u32::try_from(budget.0 / trial.span.0).unwrap_or(u32::MAX).saturating_add(2);
    trial.tasks.iter().for_each(|task| room[task.model] = room[task.model].saturating_add(replays));
    room
}

struct Mail<'a>(&'a mut VecDeque<Message>);

impl RankSink for Mail<'_> {
    fn grant(&mut self, model: ModelId, grant: Grant) {
        self.0.push_back(Message::Grant(model, grant));
    }

    fn drained(&mut self, _gpu: Gpu) {}
}

/// What a model decides.
struct Outbox<'a> {
    mail: &'a mut VecDeque<Message>,
    batches: &'a mut [VecDeque<Nanos>],
    ends: &'a mut IndexedHeap<Nanos>,
    /// Of its batches of 1, 2, … tasks.
    margins: &'a [Nanos],
    stretch: u64,
    lost: &'a mut Lost,
    counts_from: Nanos,
    /// What is planned for the newest batch.
    latency: Nanos,
}

impl ModelSink for Outbox<'_> {
    fn candidate(&mut self, model: ModelId, candidate: Option<Candidate>, grants: u32) {
        self.mail.push_back(Message::Candidate(model, candidate, grants));
    }

    fn dispatch(&mut self, batch: &Batch<'_>) {
        let end = self.execute(batch);
        let came = batch.requests().map(|request| Nanos(request.task.0));
        let counted = came.filter(|&came| came >= self.counts_from);
        self.lost.took = counted.fold(self.lost.took, |took, came| took + (end - came));
    }

    fn gpu(&mut self, update: GpuUpdate) {
        if let GpuUpdate::Planned { latency, .. } = update {
            self.latency = latency;
        }
        self.mail.push_back(Message::Gpu(update));
    }

    fn end_task(&mut self, task: TaskId, _: Unserved) {
        self.lost.lost += u64::from(task.0 >= self.counts_from.0);
    }
}

impl Outbox<'_> {
    /// When the batch ends, which was planned just now.
    fn execute(&mut self, batch: &Batch<'_>) -> Nanos {
        let (GpuId(id), start) = (batch.grant.gpu.id, batch.exec_at);
        let batches = &mut self.batches[id as usize];
        let begins = batches.back().map_or(start, |&free| free.max(start));
        let margin = self.margins[batch.len() as usize - 1];
        let end = begins + (self.latency - margin).times(self.stretch);
        batches.push_back(end);
        if batches.len() == 1 {
            self.ends.set(id, end);
        }
        end
    }
}

#[cfg(test)]
#[path = "shadow_tests.rs"]
mod tests;

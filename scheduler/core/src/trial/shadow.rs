//! A copy of a sub-cluster's scheduler with slots that execute in virtual time, each batch for as long as planned, less the
//! margin, and at first for longer. It knows nothing else of what the simulator (`scheduler/sim`) simulates, and the
//! scheduler need not contain that.

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
    margins: Vec<Nanos>,
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
            margins: replicas.iter().map(|replica| replica.margin).collect(),
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
        shadow.rank.set_rules(ONLY, rules);
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
        let lost = &mut self.lost[id as usize];
        let model = &mut self.models[id as usize];
        let (margin, counts_from) = (self.margins[id as usize], *counts_from);
        let stretch = if self.now < self.overloaded_until { OVERLOAD } else { 1 };
        let end = self.now;
        let out = &mut Outbox { mail, batches, ends, margin, stretch, lost, counts_from, end };
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
    margin: Nanos,
    stretch: u64,
    lost: &'a mut Lost,
    counts_from: Nanos,
    /// When the newest batch ends.
    end: Nanos,
}

impl ModelSink for Outbox<'_> {
    fn candidate(&mut self, model: ModelId, candidate: Option<Candidate>, grants: u32) {
        self.mail.push_back(Message::Candidate(model, candidate, grants));
    }

    fn dispatch(&mut self, batch: &Batch<'_>) {
        let came = batch.requests().map(|request| Nanos(request.task.0));
        let counted = came.filter(|&came| came >= self.counts_from);
        self.lost.took = counted.fold(self.lost.took, |took, came| took + (self.end - came));
    }

    fn gpu(&mut self, update: GpuUpdate) {
        self.mail.push_back(Message::Gpu(update));
        let GpuUpdate::Planned { gpu, start, latency, .. } = update else { return };
        let GpuId(id) = gpu.id;
        let batches = &mut self.batches[id as usize];
        let begins = batches.back().map_or(start, |&free| free.max(start));
        let end = begins + (latency - self.margin).times(self.stretch);
        self.end = end;
        batches.push_back(end);
        if batches.len() == 1 {
            self.ends.set(id, end);
        }
    }

    fn end_task(&mut self, task: TaskId, _: Unserved) {
        self.lost.lost += u64::from(task.0 >= self.counts_from.0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Replica;
    use super::*;
    use crate::policy::patience::Patience;
    use crate::{Alternative, NetworkDelay, Policy, Prefer, Profile, Slowdown};

    const MS: Nanos = Nanos::from_millis(1);

    /// One whose only batch takes so long.
    fn replica(latency_ms: u64, slo_ms: u64) -> Replica {
        let config = ModelConfig {
            id: ModelId(0),
            profile: Profile::from_table(&[MS.times(latency_ms)]).unwrap(),
            slo: MS.times(slo_ms),
            queue_capacity: 64,
            policy: Policy::Baton,
            prefer: Prefer::Latency,
            network: NetworkDelay::default(),
        };
        let patience = Patience::new(&config.profile);
        Replica { config, patience, margin: Nanos::ZERO, has_variants: false }
    }

    /// What a candidate of the only model would say of its losses, at the end of the last replay.
    fn bad_rate(shadow: &mut Shadow) -> u32 {
        let now = shadow.begins;
        shadow.advance(now);
        shadow.now = now;
        let request = Request::new(TaskId(now.0), now + MS.times(100));
        shadow.with(0, |model, out| model.on_request(now, request, out));
        let said = shadow.mail.iter().find_map(|message| match message {
            Message::Candidate(_, candidate, _) => *candidate,
            _ => None,
        });
        shadow.settle();
        said.expect("something waits").bad_rate
    }

    /// A task every 10 ms, in batches of 5 ms: in time, but for the overload, which is over after 80 ms.
    #[test]
    fn losses_of_the_overload_are_forgotten_once_its_tasks_have_ended() {
        let models = vec![replica(5, 20)];
        let task = |at| Task { at: MS.times(10 * at), model: 0, budget: MS.times(20) };
        let part = |models, tasks: u64| Trial {
            models,
            slots: vec![Slowdown::NONE],
            tasks: (0..tasks).map(task).collect(),
            span: MS.times(10 * tasks),
        };
        let (first, rest) = (part(models.clone(), 15), part(models.clone(), 40));
        let mut shadow = Shadow::new(&rest, Alternative::Own.rules());
        assert_eq!(
            (shadow.overloaded_until, shadow.forgets_at),
            (MS.times(80), Some(MS.times(160)))
        );
        shadow.replay(&first);
        assert!(bad_rate(&mut shadow) > 0, "{:?}", shadow.lost);
        let lost = shadow.lost.clone();
        shadow.replay(&rest);
        assert_eq!(shadow.lost[0].lost, lost[0].lost, "only the overload lost tasks");
        assert_eq!(bad_rate(&mut shadow), 0);
    }

    /// The second one of each pair waits until the slot is free.
    #[test]
    fn what_tasks_took_is_from_their_arrival_to_the_end_of_their_batch() {
        let pair = |i: u64| {
            [10 * i, 10 * i + 1].map(|at| Task { at: MS.times(at), model: 0, budget: MS.times(20) })
        };
        let trial = Trial {
            models: vec![replica(4, 20)],
            slots: vec![Slowdown::NONE],
            tasks: (0..60).flat_map(pair).collect(),
            span: MS.times(600),
        };
        let mut shadow = Shadow::new(&trial, Alternative::AtOnce.rules());
        shadow.replay(&trial);
        shadow.count_anew();
        shadow.replay(&trial);
        let lost = shadow.end()[0];
        assert_eq!((lost.tasks, lost.lost, lost.took), (120, 0, MS.times(60 * (4 + 7))));
    }

    /// They wait when the count begins, and end in it.
    #[test]
    fn tasks_that_came_before_the_count_are_not_lost_in_it() {
        let task = |at| Task { at: MS.times(at), model: 0, budget: MS.times(100) };
        let (tasks, span) = ((0..40).map(task).collect(), MS.times(40));
        let trial =
            Trial { models: vec![replica(10, 100)], slots: vec![Slowdown::NONE], tasks, span };
        let lost = |counts_anew: bool| {
            let mut shadow = Shadow::new(&trial, Alternative::Own.rules());
            shadow.replay(&trial);
            if counts_anew {
                shadow.count_anew();
            }
            shadow.end()[0].lost
        };
        assert!(lost(false) > 20);
        assert_eq!(lost(true), 0);
    }

    /// What comes in 40 ms and can wait for 100 ms waits for two further replays at most.
    #[test]
    fn there_is_room_for_the_tasks_of_as_many_replays_as_can_wait() {
        let task = |(at, model)| Task { at: MS.times(at), model, budget: MS.times(100) };
        let tasks = [(0, 0), (3, 1), (9, 0), (12, 0)].map(task).to_vec();
        let trial = |slo_ms, span_ms| Trial {
            models: vec![replica(1, slo_ms); 2],
            slots: vec![Slowdown::NONE],
            tasks: tasks.clone(),
            span: MS.times(span_ms),
        };
        assert_eq!(room(&trial(100, 40)), [1 + 3 * 4, 1 + 4]);
        let replays =
            [(100, 40), (20, 40), (100, 5)].map(|(slo, span)| trial(slo, span).learning());
        assert_eq!(replays, [20, 13, 32], "eight objectives, half a second, and no more than 32");
    }

    /// Of both models there may be as many as if all could wait so long.
    #[test]
    fn there_is_room_for_as_long_as_any_task_can_wait() {
        let task = |model, budget_ms| Task { at: MS, model, budget: MS.times(budget_ms) };
        let trial = Trial {
            models: vec![replica(1, 100); 2],
            slots: vec![Slowdown::NONE],
            tasks: [task(0, 100), task(1, 10)].to_vec(),
            span: MS.times(40),
        };
        assert_eq!(room(&trial), [1 + 4; 2]);
    }

    #[test]
    fn a_bad_rate_is_beside_twenty_tasks_that_were_in_time() {
        let rate = |tasks, lost| super::super::bad_rate(&Lost { tasks, lost, ..Lost::default() });
        assert_eq!([rate(80, 1), rate(80, 50), rate(0, 0)], [655, 1 << 15, 0]);
    }
}

//! Writes down, in a second run, everything that concerns certain tasks.

use std::cell::LazyCell;
use std::ops::Deref;

use baton_core::{
    Candidate, Deferral, GpuUpdate, Grant, ModelState, Nanos, NetworkDelay, Readiness, Request,
    TaskId, Unserved,
};

use super::ask::{Answer, ask};
use super::batch::TheBatch;
use super::locator::{Found, Key};
use super::slots::{Sealed, Slots};
use super::story::{
    BatchStory, CandidateView, Cause, Decision, Outcome, Step, TaskStory, What, frontrun, ms,
    ms_between,
};
use crate::observer::{Event, Observer};
use crate::scenario::Scenario;

/// A task and its story so far.
struct Told {
    key: Key,
    deadline: Nanos,
    life: Life,
    /// The candidate as last written down.
    candidate: Option<Candidate>,
    /// Since when it waits for its model's weights.
    without_weights: Option<Nanos>,
    /// When other models got slots since it arrived.
    others: Vec<Nanos>,
    story: TaskStory,
}

enum Life {
    Expected,
    Waits,
    InBatch(u64),
    Ended,
}

/// What a model's present input has brought about so far.
struct Input {
    cause: Cause,
    grant: Option<Grant>,
    sealed: Option<Seal>,
    ended: Vec<(TaskId, Unserved)>,
}

/// The batch that a model answered a grant with.
#[derive(Clone, Copy)]
struct Seal {
    number: u64,
    tasks: u32,
    exec_at: Nanos,
    invalid_after: Nanos,
}

/// A model after an input, and what it would do with a slot.
struct Look<'a> {
    now: Nanos,
    cause: Cause,
    state: &'a ModelState,
    network: &'a NetworkDelay,
    idle_gpus: u32,
    answer: &'a dyn Deref<Target = Answer>,
}

/// See the module documentation.
pub(super) struct Narrator {
    network: NetworkDelay,
    /// The tasks that wait, of every model, by deadline.
    queues: Vec<Vec<Request>>,
    /// Where each model's weights are.
    readiness: Vec<Readiness>,
    slots: Slots,
    told: Vec<Told>,
    /// The batch to tell of; its head is the last one told of.
    batch: Option<u64>,
    sealed: Option<TheBatch>,
    input: Input,
}

const NO_INPUT: Input = Input { cause: Cause::Timer, grant: None, sealed: None, ended: Vec::new() };

impl Narrator {
    pub(super) fn new(scenario: &Scenario, found: &Found) -> Self {
        let names: Vec<String> = scenario.models.iter().map(|model| model.name.clone()).collect();
        let heads = found.batch.iter().map(|&(_, head)| head);
        let told = found.tasks.iter().copied().chain(heads).map(|key| told(key, &names));
        Self {
            network: scenario.network,
            told: told.collect(),
            queues: vec![Vec::new(); names.len()],
            readiness: vec![Readiness::Resident; names.len()],
            slots: Slots::new(scenario),
            batch: found.batch.map(|(number, _)| number),
            sealed: None,
            input: NO_INPUT,
        }
    }

    /// The batch with its head's story, and the other tasks'.
    pub(super) fn stories(mut self) -> (Vec<BatchStory>, Vec<TaskStory>) {
        let head = if self.batch.is_some() { self.told.pop() } else { None };
        let batch = self.sealed.zip(head).map(|(batch, head)| batch.story(head.story));
        let mut tasks: Vec<TaskStory> = self.told.into_iter().map(|told| told.story).collect();
        tasks.sort_by_key(|story| story.task);
        (batch.into_iter().collect(), tasks)
    }

    /// A task is about to reach its model, for the first time or again.
    fn queued(&mut self, now: Nanos, cause: Cause, model: u32, request: Request) {
        self.input.cause = cause;
        let queue = &mut self.queues[model as usize];
        let rank = queue.partition_point(|waiting| waiting.deadline <= request.deadline);
        queue.insert(rank, request);
        let (number, waiting) = (rank as u32 + 1, queue.len() as u32);
        for told in self.told.iter_mut().filter(|told| told.key == (model, request.task)) {
            told.life = Life::Waits;
            told.deadline = request.deadline;
            told.story.deadline_ms = ms(request.deadline);
            told.step(now, What::Queued { cause, number, waiting });
            told.weights(now, self.readiness[model as usize]);
        }
    }

    /// Where a model's weights are.
    fn informed(&mut self, now: Nanos, model: u32, readiness: Readiness) {
        self.readiness[model as usize] = readiness;
        let waiting = self.told.iter_mut().filter(|told| told.waits() && told.key.0 == model);
        waiting.for_each(|told| told.weights(now, readiness));
    }

    fn granted(&mut self, now: Nanos, model: u32, grant: Grant) {
        self.input.cause = Cause::Grant;
        self.input.grant = Some(grant);
        for told in self.told.iter_mut().filter(|told| told.waits()) {
            if told.key.0 != model {
                told.others.push(now);
                continue;
            }
            // A slot is granted where the weights are; the model hears of them after.
            told.weights(now, Readiness::Resident);
            let due = told.candidate.map_or(now, |candidate| candidate.exec_at - candidate.delay);
            let others_first = told.others.iter().filter(|&&at| at >= due).count() as u32;
            let (gpu, free_at_ms) = (grant.gpu.id.0, ms(grant.free_at));
            let due_for_ms = ms(now - due);
            told.step(now, What::Granted { gpu, free_at_ms, due_for_ms, others_first });
        }
    }

    fn sealed(&mut self, now: Nanos, batch: &baton_core::Batch<'_>) {
        let sealed = self.slots.seal(batch);
        let queue = &mut self.queues[sealed.model as usize];
        let given_up = batch.given_up;
        queue.retain(|waiting| !sealed.requests.contains(waiting));
        let tasks = sealed.requests.len() as u32;
        for told in self.told.iter_mut().filter(|told| told.waits() && told.key.0 == sealed.model) {
            let rank = sealed.requests.iter().position(|request| request.task == told.key.1);
            let Some(rank) = rank else { continue };
            told.life = Life::InBatch(sealed.number);
            let what = What::Sealed {
                batch: sealed.number,
                gpu: sealed.gpu,
                tasks,
                number: rank as u32 + 1,
                exec_at_ms: ms(sealed.exec_at),
                invalid_after_ms: ms(sealed.invalid_after),
                given_up: given_up as u32,
            };
            told.step(now, what);
        }
        let &Sealed { number, exec_at, invalid_after, .. } = sealed;
        self.input.sealed = Some(Seal { number, tasks, exec_at, invalid_after });
        if self.batch == Some(number) {
            self.sealed = Some(TheBatch::new(now, sealed.clone(), queue, given_up));
        }
    }

    /// The model has dealt with its input: what it gave up, what it left, what it wants now.
    fn looked(&mut self, now: Nanos, model: u32, state: &ModelState) {
        let input = std::mem::replace(&mut self.input, NO_INPUT);
        let queue = &mut self.queues[model as usize];
        queue.retain(|waiting| !input.ended.iter().any(|&(task, _)| task == waiting.task));
        let idle_gpus = self.slots.idle(now);
        let answer = LazyCell::new(|| ask(now, state));
        let (cause, network) = (input.cause, &self.network);
        let look = Look { now, cause, state, network, idle_gpus, answer: &answer };
        for told in self.told.iter_mut().filter(|told| told.waits() && told.key.0 == model) {
            let ended = input.ended.iter().find(|&&(task, _)| task == told.key.1);
            if let Some(&(_, why)) = ended {
                told.dropped(now, why, &input, state);
                continue;
            }
            if let Some(seal) = input.sealed {
                told.left_behind(now, seal, state);
            }
            told.look(&look);
        }
    }

    fn finished(&mut self, now: Nanos, sealed: &Sealed) {
        for told in &mut self.told {
            if !matches!(told.life, Life::InBatch(number) if number == sealed.number) {
                continue;
            }
            let late = now > told.deadline;
            told.life = Life::Ended;
            told.story.outcome = if late { Outcome::Late } else { Outcome::InTime };
            told.step(now, What::Executed { late_by_ms: ms_between(now, told.deadline) });
        }
        if let Some(batch) = &mut self.sealed {
            batch.finished(now, sealed);
        }
    }
}

impl Observer for Narrator {
    fn event(&mut self, now: Nanos, event: Event<'_>) {
        match event {
            Event::Arrived { model, request } => self.queued(now, Cause::Arrival, model, request),
            Event::Requeued { model, request } => {
                self.slots.forget(request.task);
                self.queued(now, Cause::SlotLost, model, request);
            }
            Event::Granted { model, grant } => self.granted(now, model, grant),
            Event::Sealed(batch) => self.sealed(now, batch),
            Event::Slot(GpuUpdate::Returned { gpu }) => {
                let waiting = self.told.iter_mut().filter(|told| told.waits());
                waiting.for_each(|told| told.step(now, What::Returned { gpu: gpu.id.0 }));
            }
            Event::Slot(_) | Event::Loaded(_) => {}
            Event::Readiness { model, readiness } => self.informed(now, model, readiness),
            Event::Ended { task, why, .. } => self.input.ended.push((task, why)),
            Event::Looked { model, state } => self.looked(now, model, state),
            Event::Finished(finished) => {
                if let Some(sealed) = self.slots.finish(finished) {
                    self.finished(now, &sealed);
                }
            }
        }
    }
}

impl Told {
    fn waits(&self) -> bool {
        matches!(self.life, Life::Waits)
    }

    fn step(&mut self, now: Nanos, what: What) {
        self.story.steps.push(Step { at_ms: ms(now), what });
    }

    /// Writes down that it waits for its model's weights, or does so no more.
    fn weights(&mut self, now: Nanos, readiness: Readiness) {
        let what = match readiness {
            Readiness::Cold { load } => What::Cold { load_ms: ms(load) },
            Readiness::Loading { until } => What::Loading { until_ms: ms(until) },
            Readiness::Resident => {
                let Some(since) = self.without_weights.take() else { return };
                return self.step(now, What::Loaded { waited_ms: ms(now - since) });
            }
        };
        self.without_weights.get_or_insert(now);
        self.step(now, what);
    }

    fn left_behind(&mut self, now: Nanos, seal: Seal, state: &ModelState) {
        let Seal { number: batch, tasks, exec_at, invalid_after } = seal;
        let head_deadline = invalid_after + state.latency().of(tasks);
        let end = exec_at + state.latency().of(tasks + 1);
        self.step(now, What::LeftBehind { batch, tasks, over_ms: ms(end - head_deadline) });
    }

    fn dropped(&mut self, now: Nanos, why: Unserved, input: &Input, state: &ModelState) {
        let reason = match why {
            Unserved::Dropped(why) => why.as_str(),
            Unserved::Failed(why) => why.as_str(),
        };
        let free_at = input.grant.map_or(Nanos::ZERO, |grant| grant.free_at);
        let start = input.sealed.map_or_else(|| free_at.max(now), |seal| seal.exec_at);
        let latency = state.latency();
        let in_time = |&batch: &u32| start + latency.of(batch) <= self.deadline;
        let what = What::Dropped {
            reason,
            room_ms: ms_between(self.deadline, start),
            fits: (1..=latency.batch_max()).take_while(in_time).count() as u32,
            alone_ms: ms(latency.of(1)),
            instead: input.sealed.map(|seal| (seal.number, seal.tasks)),
            floor: state.floor(),
        };
        self.life = Life::Ended;
        self.story.outcome = Outcome::Dropped;
        self.step(now, what);
    }

    /// Writes the candidate down if it is another one.
    fn look(&mut self, look: &Look<'_>) {
        let &Look { now, cause, state, network, idle_gpus, answer } = look;
        if state.candidate() == self.candidate && self.candidate.is_some() {
            return;
        }
        self.candidate = state.candidate();
        let Some(candidate) = self.candidate else {
            return self.step(now, What::NoCandidate);
        };
        let what = What::Candidate {
            cause,
            candidate: CandidateView::of(candidate, state, network),
            place: answer.place(self.key.1),
            decision: decision(now, candidate, state, network),
            gives_up: answer.given_up.len() as u32,
            waiting: state.waiting() as u32,
            idle_gpus,
            target: state.target(),
            floor: state.floor(),
            beta_lambda: state.rate().map(|rate| rate.arrivals_in(state.latency().beta())),
        };
        self.step(now, what);
    }
}

/// Which of the rules of `docs/scheduling.md` the candidate's window shows.
fn decision(
    now: Nanos,
    candidate: Candidate,
    state: &ModelState,
    network: &NetworkDelay,
) -> Decision {
    let frontrun = frontrun(candidate, state, network);
    if candidate.exec_at - candidate.delay > now {
        let waits = candidate.exec_at == frontrun;
        return if waits { Decision::WaitsForFrontrun } else { Decision::WaitsForMore };
    }
    match state.rules().deferral {
        Deferral::None => Decision::AtOnce,
        _ if candidate.exec_at >= frontrun => Decision::Frontrun,
        _ if candidate.batch >= state.latency().batch_max() => Decision::Largest,
        Deferral::Fill => Decision::Filled,
        Deferral::Expectation => Decision::FewExpected,
        Deferral::Tenths(_) => Decision::WaitedLongEnough,
        Deferral::Frontrun => Decision::Frontrun,
    }
}

fn told(key: Key, names: &[String]) -> Told {
    let (model, task) = key;
    let arrived_ms = ms(Nanos(task.0));
    let story = TaskStory {
        task: task.0,
        model: names[model as usize].clone(),
        arrived_ms,
        deadline_ms: arrived_ms,
        outcome: Outcome::Open,
        steps: Vec::new(),
    };
    let deadline = Nanos(task.0);
    Told {
        key,
        deadline,
        life: Life::Expected,
        candidate: None,
        without_weights: None,
        others: Vec::new(),
        story,
    }
}

//! The thread that offers the load: it submits what is due and reaps what has ended.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_client::{
    Client, Deadline, Input, InputError, ModelHandle, Outcome, SubmitReason, Ticket,
};
use baton_core::Nanos;
use baton_topo::{Clock, Cluster, EngineSpec, park_thread};

use super::inputs::{Expected, Inputs, Verdict};
use super::outcomes::{Record, Writer};
use super::schedule::Due;
use super::supply::Supply;
use super::tally::Tally;
use super::{Finished, LoadConfig, LoadError, Progress};

/// A generator at rest looks at the tickets this often; landing times are the client's.
const REST_MAX: Nanos = Nanos::from_millis(5);
/// All tickets are looked at this often at most while slots are free: one look at a thousand takes as long as it
/// takes to submit ten.
const REAP_INTERVAL: Nanos = Nanos::from_micros(500);
/// Arrivals submitted between two looks at the clock. A generator without free slots that has fallen behind frees
/// some that often.
const BURST_MAX: usize = 32;

pub(super) fn targets(
    cluster: &Cluster,
    config: &LoadConfig,
    client: &Client,
) -> Result<Vec<Target>, LoadError> {
    let target = |(index, name): (usize, &str)| {
        let handle = client.model(name)?;
        let tally = Tally::new(name, handle.slo());
        let seed = config.seed.wrapping_add(index as u64);
        // A model that was added at run time is in no cluster file.
        let Some(spec) = cluster.models.iter().find(|model| model.name == *name) else {
            let (engine, inputs) = (engine_of(&handle), Inputs::by_handle(&handle, seed));
            return Ok(Target { handle, engine, inputs, tally });
        };
        let row_bytes = (handle.input_bytes(), handle.output_bytes());
        let inputs = Inputs::new(&spec.engine, row_bytes, seed)
            .map_err(|source| LoadError::Inputs { name: name.to_owned(), source })?;
        let engine = engine_name(&spec.engine);
        Ok(Target { handle, engine, inputs, tally })
    };
    config.offered.models().enumerate().map(target).collect()
}

/// A model under load.
pub(super) struct Target {
    handle: ModelHandle,
    /// What executes it, in a word.
    engine: &'static str,
    inputs: Inputs,
    tally: Tally,
}

impl Target {
    /// An input of the model; after an exchange, of the one that has its name now.
    fn input(&mut self, client: &Client) -> Result<Input, InputError> {
        let input = self.handle.input();
        if !matches!(input, Err(InputError::ModelRemoved { .. })) {
            return input;
        }
        let bytes = |handle: &ModelHandle| (handle.input_bytes(), handle.output_bytes());
        match client.model(self.handle.name()) {
            Ok(model) if bytes(&model) == bytes(&self.handle) => {
                self.handle = model;
                self.handle.input()
            }
            _ => input,
        }
    }
}

/// A task without outcome.
pub(super) struct Outstanding {
    ticket: Ticket,
    target: usize,
    due: Nanos,
    expected: Expected,
}

/// The load under way.
pub(super) struct Generator {
    pub(super) client: Client,
    pub(super) clock: Clock,
    pub(super) targets: Vec<Target>,
    pub(super) supply: Supply,
    /// Oldest first.
    pub(super) outstanding: VecDeque<Outstanding>,
    pub(super) start: Nanos,
    pub(super) outcomes: Option<Writer>,
    /// All tickets have been looked at since the burst of arrivals began.
    has_reaped: bool,
}

impl Generator {
    pub(super) fn new(
        client: Client,
        clock: Clock,
        targets: Vec<Target>,
        supply: Supply,
        start: Nanos,
    ) -> Self {
        let (outstanding, outcomes) = (VecDeque::new(), None);
        Self { client, clock, targets, supply, outstanding, start, outcomes, has_reaped: false }
    }

    /// Submits every arrival until `end` or `stop`; `progress` is called every so often. Returns for how long.
    pub(super) fn offer(
        &mut self,
        end: Nanos,
        progress_every: Nanos,
        stop: &AtomicBool,
        progress: &mut impl FnMut(&Progress),
    ) -> Nanos {
        let mut next_progress = self.start + progress_every;
        let mut next_reap = self.start;
        loop {
            let now = self.clock.now();
            self.has_reaped = false;
            let caught_up = self.submit_due(now.min(end));
            if now >= next_reap {
                self.reap();
                next_reap = now + REAP_INTERVAL;
            }
            if now >= next_progress {
                progress(&self.progress(now));
                next_progress = now + progress_every;
            }
            if stop.load(Ordering::Relaxed) || (now >= end && caught_up) {
                return now.min(end) - self.start;
            }
            if caught_up {
                self.rest(end.min(next_progress));
            }
        }
    }

    /// Sleeps until the next arrival, or until there may be something to reap. In a closed loop the end of the oldest
    /// task ends the sleep; one that overtakes it is found at the next look at all.
    fn rest(&mut self, until: Nanos) {
        let is_closed = matches!(self.supply, Supply::Closed(_));
        let may_overtake = is_closed && self.outstanding.len() > 1;
        let longest = if may_overtake { REAP_INTERVAL } else { REST_MAX };
        let now = self.clock.now();
        let timeout = self.supply.next_at().min(until).min(now + longest) - now;
        if is_closed && !self.outstanding.is_empty() {
            self.reap_oldest(timeout);
        } else if timeout > Nanos::ZERO {
            park_thread(Some(timeout));
        }
    }

    /// Takes outcomes in the order of the tasks up to the first one that is not there, for which it waits so long
    /// if it is the first of all.
    fn reap_oldest(&mut self, timeout: Nanos) {
        let mut timeout = Duration::from_nanos(timeout.0);
        while let Some(oldest) = self.outstanding.front_mut()
            && let Some(outcome) = oldest.ticket.wait_timeout(timeout)
        {
            timeout = Duration::ZERO;
            if let Some(task) = self.outstanding.pop_front() {
                self.judge(&task, &outcome);
            }
        }
    }

    /// False if there are more arrivals than one burst takes.
    fn submit_due(&mut self, until: Nanos) -> bool {
        for _ in 0..BURST_MAX {
            let Some(due) = self.supply.take(until) else { return true };
            self.submit(due);
        }
        false
    }

    fn submit(&mut self, due: Due) {
        let tally = &mut self.targets[due.model].tally;
        let number = tally.submitted;
        tally.arrival(due.at, self.clock.now());
        match self.try_submit(number, due) {
            Ok(task) => self.outstanding.push_back(task),
            Err(reason) => {
                self.targets[due.model].tally.refuse_for(reason);
                self.supply.refused(due.model);
            }
        }
    }

    /// The model's `number`th task, or the reason why there is none.
    fn try_submit(&mut self, number: u64, due: Due) -> Result<Outstanding, &'static str> {
        let Due { at: due, model: index, within } = due;
        let mut input = self.input(index).map_err(|refusal| match refusal {
            InputError::SlabExhausted { .. } => "slab_exhausted",
            InputError::ModelRemoved { .. } => "model_removed",
            InputError::ClientClosed => "client_closed",
            InputError::WrongSize { .. } | InputError::Tensors { .. } => "wrong_size",
        })?;
        let expected = self.targets[index].inputs.fill(number, &mut input);
        let within = within.map(|within| Duration::from_nanos(within.0));
        let submitted = input.submit(within.map_or(Deadline::Slo, Deadline::Within));
        let ticket = submitted.map_err(|refusal| match refusal.reason {
            SubmitReason::DeadlinePassed => "deadline_passed",
            SubmitReason::SchedulerLost => "scheduler_lost",
            SubmitReason::ClientClosed => "client_closed",
            SubmitReason::ModelRemoved => "model_removed",
        })?;
        Ok(Outstanding { ticket, target: index, due, expected })
    }

    /// An input; where no slot is free, the one of a task that has ended meanwhile.
    fn input(&mut self, index: usize) -> Result<Input, InputError> {
        let input = self.targets[index].input(&self.client);
        if !matches!(input, Err(InputError::SlabExhausted { .. })) || self.has_reaped {
            return input;
        }
        self.reap();
        self.targets[index].input(&self.client)
    }

    /// Takes every outcome that has come.
    fn reap(&mut self) {
        self.has_reaped = true;
        let mut outstanding = std::mem::take(&mut self.outstanding);
        outstanding.retain_mut(|task| {
            let outcome = task.ticket.poll();
            outcome.inspect(|outcome| self.judge(task, outcome)).is_none()
        });
        self.outstanding = outstanding;
    }

    fn judge(&mut self, task: &Outstanding, outcome: &Outcome) {
        self.supply.ended(task.target);
        let target = &mut self.targets[task.target];
        let verdict = target.judge(task, outcome);
        let in_time = matches!(outcome, Outcome::Completed(reply) if !reply.late());
        let wrong = verdict == Some(Verdict::Wrong);
        if let Some(outcomes) = &mut self.outcomes
            && (wrong || !in_time)
        {
            let submitted_ms = (task.ticket.submitted() - self.start).as_millis_f64();
            let (id, model) = (task.ticket.task(), target.handle.name());
            outcomes.write(&Record::new(id, model, submitted_ms, outcome, wrong));
        }
    }

    /// Leaves: every ticket has its outcome afterwards.
    pub(super) fn collect(&mut self, client: Client) {
        if let Err(error) = client.leave() {
            tracing::warn!(%error, "the client did not leave in order");
        }
        self.reap();
        for task in self.outstanding.drain(..) {
            tracing::error!(task = ?task.ticket.task(), "no outcome");
        }
    }

    pub(super) fn progress(&self, now: Nanos) -> Progress {
        let mut progress =
            Progress { seconds: (now - self.start).as_millis_f64() / 1e3, ..Progress::default() };
        for Target { tally, .. } in &self.targets {
            progress.submitted += tally.submitted;
            progress.completed += tally.completed;
            progress.late += tally.late;
            progress.dropped += tally.dropped_total();
            progress.failed += tally.failed_total();
            progress.wrong_answers += tally.wrong_answers;
        }
        progress
    }

    pub(super) fn finish(self, offered: Nanos, transport: &str) -> Finished {
        let answered = self.targets.iter().filter(|target| target.tally.completed > 0);
        let mut engines: Vec<String> = answered.map(|target| target.engine.to_owned()).collect();
        engines.sort();
        engines.dedup();
        Finished {
            seconds: offered.as_millis_f64() / 1e3,
            transport: transport.to_owned(),
            engines,
            tallies: self.targets.into_iter().map(|target| target.tally).collect(),
        }
    }
}

impl Target {
    /// Counts an outcome. What an answer is worth, if it is one.
    fn judge(&mut self, task: &Outstanding, outcome: &Outcome) -> Option<Verdict> {
        match outcome {
            Outcome::Dropped(reason, _) => self.tally.drop_for(*reason),
            Outcome::Failed(reason, _) => self.tally.fail_for(*reason),
            Outcome::Completed(reply) => {
                let verdict = self.inputs.judge(task.expected, reply.bytes());
                if verdict == Verdict::Wrong {
                    let (model, task) = (self.handle.name(), task.ticket.task());
                    tracing::error!(model, ?task, gpu = ?reply.timing().gpu, "wrong answer");
                }
                self.tally.answer(task.due, reply.timing(), verdict);
                return Some(verdict);
            }
        }
        None
    }
}

/// Emulated models take bytes, the others tensors.
fn engine_of(handle: &ModelHandle) -> &'static str {
    if handle.inputs().is_empty() { "emulated" } else { "onnx" }
}

fn engine_name(engine: &EngineSpec) -> &'static str {
    match engine {
        EngineSpec::Emulated { .. } => "emulated",
        EngineSpec::Onnx { .. } => "onnx",
    }
}

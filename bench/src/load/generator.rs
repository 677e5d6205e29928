//! The thread that offers the load: it submits what is due and reaps what has ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_client::{
    Client, Deadline, Input, InputError, ModelHandle, Outcome, SubmitReason, Ticket,
};
use baton_core::Nanos;
use baton_topo::{Clock, Cluster, EngineSpec, park_thread};

use super::inputs::{Expected, Inputs, Verdict};
use super::outcomes::{Record, Writer};
use super::schedule::{Due, Schedule};
use super::tally::Tally;
use super::{Finished, LoadConfig, LoadError, Progress};

/// A finished ticket waits this long at most for being reaped; landing times are the client's.
const REAP_INTERVAL: Nanos = Nanos::from_millis(5);
/// Arrivals submitted between two looks at the tickets, so that a generator that has fallen behind
/// frees slots while it catches up.
const BURST_MAX: usize = 32;
const PROGRESS_INTERVAL: Nanos = Nanos::from_millis(1_000);

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
    pub(super) schedule: Schedule,
    pub(super) outstanding: Vec<Outstanding>,
    pub(super) start: Nanos,
    pub(super) outcomes: Option<Writer>,
}

impl Generator {
    /// Submits every arrival until `end` or `stop`. Returns for how long.
    pub(super) fn offer(
        &mut self,
        end: Nanos,
        stop: &AtomicBool,
        progress: &mut impl FnMut(&Progress),
    ) -> Nanos {
        let mut next_progress = self.start + PROGRESS_INTERVAL;
        loop {
            let now = self.clock.now();
            let caught_up = self.submit_due(now.min(end));
            self.reap();
            if now >= next_progress {
                progress(&self.progress(now));
                next_progress = now + PROGRESS_INTERVAL;
            }
            if stop.load(Ordering::Relaxed) || (now >= end && caught_up) {
                return now.min(end) - self.start;
            }
            if caught_up {
                self.idle(end.min(next_progress));
            }
        }
    }

    /// Sleeps until the next arrival, or until there may be something to reap.
    fn idle(&self, until: Nanos) {
        let now = self.clock.now();
        let timeout = self.schedule.next_at().min(until).min(now + REAP_INTERVAL) - now;
        if timeout > Nanos::ZERO {
            park_thread(Some(timeout));
        }
    }

    /// False if there are more arrivals than one burst takes.
    fn submit_due(&mut self, until: Nanos) -> bool {
        for _ in 0..BURST_MAX {
            let Some(due) = self.schedule.take(until) else { return true };
            self.submit(due);
        }
        false
    }

    fn submit(&mut self, Due { at: due, model: index, within }: Due) {
        let target = &mut self.targets[index];
        let number = target.tally.submitted;
        target.tally.arrival(due, self.clock.now());
        let mut input = match target.input(&self.client) {
            Ok(input) => input,
            Err(InputError::SlabExhausted { .. }) => {
                return target.tally.refuse_for("slab_exhausted");
            }
            Err(InputError::ModelRemoved { .. }) => {
                return target.tally.refuse_for("model_removed");
            }
            Err(InputError::ClientClosed) => return target.tally.refuse_for("client_closed"),
            Err(InputError::WrongSize { .. } | InputError::Tensors { .. }) => {
                return target.tally.refuse_for("wrong_size");
            }
        };
        let expected = target.inputs.fill(number, &mut input);
        let within = within.map(|within| Duration::from_nanos(within.0));
        match input.submit(within.map_or(Deadline::Slo, Deadline::Within)) {
            Ok(ticket) => {
                self.outstanding.push(Outstanding { ticket, target: index, due, expected });
            }
            Err(refusal) => target.tally.refuse_for(match refusal.reason {
                SubmitReason::DeadlinePassed => "deadline_passed",
                SubmitReason::SchedulerLost => "scheduler_lost",
                SubmitReason::ClientClosed => "client_closed",
                SubmitReason::ModelRemoved => "model_removed",
            }),
        }
    }

    /// Takes every outcome that has come.
    fn reap(&mut self) {
        let mut i = 0;
        while i < self.outstanding.len() {
            match self.outstanding[i].ticket.poll() {
                None => i += 1,
                Some(outcome) => {
                    let task = self.outstanding.swap_remove(i);
                    self.judge(&task, &outcome);
                }
            }
        }
    }

    fn judge(&mut self, task: &Outstanding, outcome: &Outcome) {
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

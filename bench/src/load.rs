//! The load generator: open-loop Poisson arrivals over the client library.
//!
//! One thread submits what is due, whatever became of earlier tasks, and reaps outcomes without
//! blocking. Every arrival is counted: one that finds no free slot has failed, not vanished.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use baton_client::{
    Client, ClientConfig, ConnectError, Deadline, InputError, ModelHandle, Outcome, SubmitReason,
    Ticket, TransportCounters, UnknownModel,
};
use baton_core::Nanos;
use baton_leader::Whereabouts;
use baton_topo::{Clock, Cluster, EngineSpec, park_thread};
use serde::{Deserialize, Serialize};

use crate::arrivals::Arrivals;
use crate::inputs::{Expected, Inputs, InputsError, Verdict};
use crate::outcomes::{OutcomesError, Record, Writer};
use crate::tally::Tally;

/// A finished ticket waits this long at most for being reaped; landing times are the client's.
const REAP_INTERVAL: Nanos = Nanos::from_millis(5);
/// Arrivals submitted between two looks at the tickets, so that a generator that has fallen behind
/// frees slots while it catches up.
const BURST_MAX: usize = 32;
const PROGRESS_INTERVAL: Nanos = Nanos::from_millis(1_000);

/// What load to offer.
#[derive(Clone, Debug)]
pub struct LoadConfig {
    /// Where the scheduler is.
    pub scheduler: Whereabouts,
    /// Models of the cluster file and their tasks per second.
    pub rates: Vec<(String, f64)>,
    /// For how long.
    pub seconds: f64,
    /// Same seed, same arrivals and inputs.
    pub seed: u64,
    /// Where to write what became of tasks that were not answered in time ([`crate::outcomes`]).
    pub outcomes: Option<PathBuf>,
}

/// Counts so far, once a second.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// Since the first arrival could have come.
    pub seconds: f64,
    /// See [`Tally`].
    pub submitted: u64,
    /// See [`Tally`].
    pub completed: u64,
    /// See [`Tally`].
    pub late: u64,
    /// See [`Tally`].
    pub dropped: u64,
    /// See [`Tally`].
    pub failed: u64,
    /// See [`Tally`].
    pub wrong_answers: u64,
}

impl Progress {
    /// Adds another generator's counts; the time is the later one's.
    pub fn merge(&mut self, other: &Self) {
        self.seconds = self.seconds.max(other.seconds);
        self.submitted += other.submitted;
        self.completed += other.completed;
        self.late += other.late;
        self.dropped += other.dropped;
        self.failed += other.failed;
        self.wrong_answers += other.wrong_answers;
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = self.completed + self.dropped + self.failed;
        write!(
            f,
            "{:5.1} s  submitted {}  completed {}  late {}  dropped {}  failed {}  wrong {}  in flight {}",
            self.seconds,
            self.submitted,
            self.completed,
            self.late,
            self.dropped,
            self.failed,
            self.wrong_answers,
            self.submitted.saturating_sub(ended),
        )
    }
}

/// A finished generator's counts, complete enough to be summed up with others'.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Finished {
    /// How long load was offered.
    pub seconds: f64,
    /// What carried inputs and answers.
    pub transport: String,
    /// Kinds of engine that answered.
    pub engines: Vec<String>,
    /// One per model, in the order of [`LoadConfig::rates`].
    pub tallies: Vec<Tally>,
}

/// What a generator tells whoever started it: one JSON object a line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Message {
    /// Once a second.
    Progress(Progress),
    /// The last line.
    Finished(Finished),
}

/// Why there was no load.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// No client.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A rate for a model that is not in the cluster file.
    #[error("no [[model]] is named `{name}`; the cluster file has: {known}")]
    UnknownModel {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The scheduler reads another cluster file.
    #[error("the scheduler does not serve what the cluster file says: {0}")]
    OtherCatalogue(#[from] UnknownModel),
    /// A rate that is no rate.
    #[error("rate of {name}: {rate}; give tasks per second from 0 to 1000000")]
    Rate {
        /// The model.
        name: String,
        /// What was asked for.
        rate: f64,
    },
    /// No inputs for a model.
    #[error("model {name}: {source}")]
    Inputs {
        /// The model.
        name: String,
        /// What is wrong.
        source: InputsError,
    },
    /// The file of outcomes cannot be written.
    #[error(transparent)]
    Outcomes(#[from] OutcomesError),
}

/// Offers the load and waits for every outcome. `stop` ends the offering early; `progress` is called
/// once a second.
///
/// # Errors
/// Nothing was offered, or its outcomes could not be written; see [`LoadError`].
pub fn run(
    cluster: &Cluster,
    config: &LoadConfig,
    clock: Clock,
    stop: &AtomicBool,
    mut progress: impl FnMut(&Progress),
) -> Result<Finished, LoadError> {
    check_rates(cluster, &config.rates)?;
    let outcomes = config.outcomes.as_deref().map(Writer::create).transpose()?;
    let names = config.rates.iter().map(|(name, _)| name.as_str());
    let client = Client::connect(
        ClientConfig::from_cluster(cluster, config.scheduler.clone()).models(names).clock(clock),
    )?;
    let targets = targets(cluster, config, &client)?;
    let start = clock.now();
    let rates: Vec<f64> = config.rates.iter().map(|(_, rate)| *rate).collect();
    let arrivals = Arrivals::new(&rates, config.seed, start);
    let outstanding = Vec::new();
    let mut generator = Generator { clock, targets, arrivals, outstanding, start, outcomes };
    let end = start + Nanos::from_millis_f64(config.seconds * 1e3);
    let offered = generator.offer(end, stop, &mut progress);
    let witness = client.clone();
    generator.collect(client);
    progress(&generator.progress(clock.now()));
    generator.outcomes.take().map_or(Ok(()), Writer::finish)?;
    Ok(generator.finish(offered, carrier(&witness.counters().transport)))
}

/// What backends read the inputs and sent the answers over: what was served by message is counted,
/// what a device served without anybody's help is not, but the queue pairs are.
fn carrier(counters: &TransportCounters) -> &'static str {
    let has_links = counters.links_rdma > 0;
    match (has_links, counters.reads_served > 0, counters.answers_rdma > 0) {
        (true, false, true) => "rdma",
        (true, false, false) => "rdma, answers over tcp",
        (true, true, _) => "rdma and tcp",
        (false, ..) => "tcp",
    }
}

fn check_rates(cluster: &Cluster, rates: &[(String, f64)]) -> Result<(), LoadError> {
    for (name, rate) in rates {
        if !cluster.models.iter().any(|model| model.name == *name) {
            let known: Vec<&str> = cluster.models.iter().map(|m| m.name.as_str()).collect();
            return Err(LoadError::UnknownModel { name: name.clone(), known: known.join(", ") });
        }
        if !(0.0..=1e6).contains(rate) {
            return Err(LoadError::Rate { name: name.clone(), rate: *rate });
        }
    }
    Ok(())
}

fn targets(
    cluster: &Cluster,
    config: &LoadConfig,
    client: &Client,
) -> Result<Vec<Target>, LoadError> {
    let target = |(index, (name, _)): (usize, &(String, f64))| {
        let handle = client.model(name)?;
        let engine = cluster
            .models
            .iter()
            .find(|model| model.name == *name)
            .map(|model| model.engine.clone())
            .expect("check_rates has looked every name up");
        let row_bytes = (handle.input_bytes(), handle.output_bytes());
        let inputs = Inputs::new(&engine, row_bytes, config.seed.wrapping_add(index as u64))
            .map_err(|source| LoadError::Inputs { name: name.clone(), source })?;
        Ok(Target { handle, engine, inputs, tally: Tally::new(name) })
    };
    config.rates.iter().enumerate().map(target).collect()
}

/// A model under load.
struct Target {
    handle: ModelHandle,
    engine: EngineSpec,
    inputs: Inputs,
    tally: Tally,
}

/// A task without outcome.
struct Outstanding {
    ticket: Ticket,
    target: usize,
    due: Nanos,
    expected: Expected,
}

struct Generator {
    clock: Clock,
    targets: Vec<Target>,
    arrivals: Arrivals,
    outstanding: Vec<Outstanding>,
    start: Nanos,
    outcomes: Option<Writer>,
}

impl Generator {
    /// Submits every arrival until `end` or `stop`. Returns for how long.
    fn offer(
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
        let timeout = self.arrivals.due().min(until).min(now + REAP_INTERVAL) - now;
        if timeout > Nanos::ZERO {
            park_thread(Some(timeout));
        }
    }

    /// False if there are more arrivals than one burst takes.
    fn submit_due(&mut self, until: Nanos) -> bool {
        for _ in 0..BURST_MAX {
            let Some((due, target)) = self.arrivals.take(until) else { return true };
            self.submit(due, target);
        }
        false
    }

    fn submit(&mut self, due: Nanos, index: usize) {
        let target = &mut self.targets[index];
        let number = target.tally.submitted;
        target.tally.arrival(due, self.clock.now());
        let mut input = match target.handle.input() {
            Ok(input) => input,
            Err(InputError::SlabExhausted { .. }) => {
                return target.tally.refuse_for("slab_exhausted");
            }
            Err(InputError::WrongSize { .. }) => return target.tally.refuse_for("wrong_size"),
        };
        let expected = target.inputs.fill(number, &mut input);
        match input.submit(Deadline::Slo) {
            Ok(ticket) => {
                self.outstanding.push(Outstanding { ticket, target: index, due, expected });
            }
            Err(refusal) => target.tally.refuse_for(match refusal.reason {
                SubmitReason::DeadlinePassed => "deadline_passed",
                SubmitReason::SchedulerLost => "scheduler_lost",
                SubmitReason::ClientClosed => "client_closed",
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
    fn collect(&mut self, client: Client) {
        if let Err(error) = client.leave() {
            tracing::warn!(%error, "the client did not leave in order");
        }
        self.reap();
        for task in self.outstanding.drain(..) {
            tracing::error!(task = ?task.ticket.task(), "no outcome");
        }
    }

    fn progress(&self, now: Nanos) -> Progress {
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

    fn finish(self, offered: Nanos, transport: &str) -> Finished {
        let answered = self.targets.iter().filter(|target| target.tally.completed > 0);
        let mut engines: Vec<String> =
            answered.map(|target| engine_name(&target.engine).to_owned()).collect();
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

fn engine_name(engine: &EngineSpec) -> &'static str {
    match engine {
        EngineSpec::Emulated { .. } => "emulated",
        EngineSpec::Onnx { .. } => "onnx",
    }
}

//! The thread that offers the load: it submits what is due and reaps what has ended.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use baton_client::{
    Client, Deadline, Driver, Input, InputError, ModelHandle, Outcome, Reply, SubmitReason, Ticket,
};
use baton_core::Nanos;
use baton_sim::Asking;
use baton_topo::{Clock, Cluster, Idle, per_cent};

use super::groups::Groups;
use super::inputs::{Expected, Inputs, Verdict, say_unchecked};
use super::outcomes::{Record, Writer};
use super::schedule::Due;
use super::supply::Supply;
use super::tally::Tally;
use super::{Finished, LoadConfig, LoadError, Progress};

/// How long a task that has overtaken an older one may wait to be noticed: a look at a thousand tickets takes as long as
/// submitting ten. Landing times are the client's.
const REAP_INTERVAL: Nanos = Nanos::from_micros(500);
/// Arrivals submitted between two passes of the I/O, which sends them together. A generator without free slots that has fallen behind frees
/// some that often.
const BURST_MAX: usize = 256;
/// How long such a burst may take: over TCP the I/O also answers the READs, which time out if it waits for many long inputs to be written.
const BURST_TIME: Nanos = Nanos::from_micros(200);

/// Between two models the client gets to say that it lives: inputs for hundreds of them take their time.
pub(super) fn targets(
    cluster: &Cluster,
    config: &LoadConfig,
    (client, driver): (&Client, &mut Driver),
    start: Nanos,
) -> Result<Vec<Target>, LoadError> {
    let target = |(index, name): (usize, &str)| {
        driver.poll();
        let (handle, asking) = (client.model(name)?, config.offered.asking(index));
        let mut tally = Tally::new(name, handle.slo()).with_timeline(start, config.seconds);
        tally.set_variants(handle.variants());
        let refused = |source| LoadError::Inputs { name: name.to_owned(), source };
        if let Some(file) = config.expect.of(name) {
            let (engine, row) = (engine_of(&handle), &handle.signature().input);
            let inputs = Inputs::of_file(file, row, handle.outputs()).map_err(refused)?;
            return Ok(Target { handle, engine, inputs, asking, tally });
        }
        let seed = config.seed.wrapping_add(index as u64);
        // A model that was added at run time is in no cluster file.
        let Some(spec) = cluster.models.iter().find(|model| model.name == *name) else {
            let (engine, inputs) = (engine_of(&handle), Inputs::by_handle(&handle, seed));
            return Ok(Target { handle, engine, inputs, asking, tally });
        };
        let row_bytes = (handle.input_bytes(), handle.output_bytes());
        let inputs = Inputs::new(&spec.engine, row_bytes, seed).map_err(refused)?;
        let engine = spec.engine.name();
        Ok(Target { handle, engine, inputs, asking, tally })
    };
    let targets: Result<Vec<Target>, LoadError> =
        config.offered.models().enumerate().map(target).collect();
    let targets = targets?;
    say_unchecked(targets.iter().map(|target| (target.handle.name(), &target.inputs)));
    Ok(targets)
}

/// A model under load.
pub(super) struct Target {
    handle: ModelHandle,
    /// What executes it, in a word.
    engine: &'static str,
    inputs: Inputs,
    /// Which of its tasks ask for an accuracy.
    asking: Asking,
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

/// Counts the tasks that have ended.
#[derive(Default)]
struct Ended(AtomicU64);

impl Wake for Ended {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The load under way.
pub(super) struct Generator {
    pub(super) client: Client,
    driver: Driver,
    pub(super) clock: Clock,
    pub(super) targets: Vec<Target>,
    pub(super) supply: Supply,
    /// Oldest first.
    pub(super) outstanding: VecDeque<Outstanding>,
    pub(super) start: Nanos,
    pub(super) outcomes: Option<Writer>,
    pub(super) idle: Idle,
    /// All tickets have been looked at since the burst of arrivals began.
    has_reaped: bool,
    groups: Groups,
    /// When to look at all tickets.
    next_reap: Nanos,
    ended: Arc<Ended>,
    /// Of those that ended, how many were judged.
    reaped: u64,
}

impl Generator {
    pub(super) fn new(
        (client, driver): (Client, Driver),
        clock: Clock,
        targets: Vec<Target>,
        supply: Supply,
        start: Nanos,
    ) -> Self {
        Self {
            client,
            driver,
            clock,
            targets,
            supply,
            outstanding: VecDeque::new(),
            start,
            outcomes: None,
            idle: Idle::Park,
            has_reaped: false,
            groups: Groups::default(),
            next_reap: Nanos::MAX,
            ended: Arc::default(),
            reaped: 0,
        }
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
        loop {
            let now = self.clock.now();
            self.has_reaped = false;
            self.driver.poll();
            self.reap_due(now);
            // What this submits leaves with the next pass, the one that precedes a rest included.
            let caught_up = self.groups.gathers(now, end) || self.submit_due(now, end);
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

    /// Sleeps until the next arrival, or until something comes. A generator that spins looks again at once.
    fn rest(&mut self, until: Nanos) {
        if self.idle == Idle::Spin {
            return std::hint::spin_loop();
        }
        let now = self.clock.now();
        let next = self.groups.leaves_at(self.supply.next_at());
        let timeout = next.min(until).min(self.next_reap) - now;
        if timeout > Nanos::ZERO {
            self.driver.wait(Some(Duration::from_nanos(timeout.0)));
        }
    }

    /// Takes the outcomes of the oldest tasks. One that overtakes them is found at the next look at all, which is soon.
    fn reap_due(&mut self, now: Nanos) {
        while let Some(oldest) = self.outstanding.front_mut()
            && let Some(outcome) = oldest.ticket.poll()
            && let Some(task) = self.outstanding.pop_front()
        {
            self.judge(&task, &outcome);
        }
        if now >= self.next_reap {
            self.reap();
            self.next_reap = Nanos::MAX;
        }
        self.next_reap = match self.reaped == self.ended.0.load(Ordering::Relaxed) {
            true => Nanos::MAX,
            false => self.next_reap.min(now + REAP_INTERVAL),
        };
    }

    /// False if there are more arrivals than one burst takes.
    fn submit_due(&mut self, now: Nanos, end: Nanos) -> bool {
        let first = self.supply.next_at();
        for _ in 0..BURST_MAX {
            let Some(due) = self.supply.take(now.min(end)) else {
                // In a closed loop no arrival has a moment of its own.
                if self.idle != Idle::Spin && self.supply.next_at() > first {
                    self.groups.have_left(now);
                }
                return true;
            };
            let began = self.submit(due);
            if began - now > BURST_TIME {
                break;
            }
        }
        false
    }

    /// Returns when it began to.
    fn submit(&mut self, due: Due) -> Nanos {
        let tally = &mut self.targets[due.model].tally;
        let (number, now) = (tally.submitted, self.clock.now());
        due.within.into_iter().for_each(|within| tally.asks_for(within));
        tally.arrival(due.at, now);
        match self.try_submit(number, due) {
            Ok(task) => self.follow(task),
            Err(reason) => {
                self.targets[due.model].tally.refuse_for(due.at, reason);
                self.supply.refused(due.model);
            }
        }
        now
    }

    /// The end of the task will be counted.
    fn follow(&mut self, mut task: Outstanding) {
        let waker = Waker::from(Arc::clone(&self.ended));
        match Pin::new(&mut task.ticket).poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => self.outstanding.push_back(task),
            Poll::Ready(outcome) => {
                waker.wake();
                self.judge(&task, &outcome);
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
        let inputs = &self.targets[index].inputs;
        let expected = inputs.fill(number, &mut input);
        let bytes = inputs.bytes(number, input.len());
        input.truncate(bytes);
        let within = within.map(|within| Duration::from_nanos(within.0));
        let input = match self.targets[index].asking.of(number) {
            0 => input,
            least => input.with_accuracy_min(per_cent(least)),
        };
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
        self.reaped += 1;
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
    pub(super) fn collect(&mut self) {
        if let Err(error) = self.driver.leave(self.client.clone()) {
            tracing::warn!(%error, "the client did not leave in order");
        }
        self.reap();
        for task in self.outstanding.drain(..) {
            tracing::error!(task = ?task.ticket.task(), "no outcome");
        }
    }

    pub(super) fn progress(&self, now: Nanos) -> Progress {
        Progress::of(now - self.start, self.targets.iter().map(|target| &target.tally))
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
            Outcome::Dropped(reason, _) => self.tally.drop_for(task.due, *reason),
            Outcome::Failed(reason, _) => self.tally.fail_for(task.due, *reason),
            Outcome::Completed(reply) => {
                let variant = reply.timing().variant;
                let verdict = self.inputs.judge(task.expected, variant, &self.answer(reply));
                if verdict == Verdict::Wrong {
                    let (model, task) = (self.handle.name(), task.ticket.task());
                    tracing::error!(model, ?task, gpu = ?reply.timing().gpu, "wrong answer");
                }
                self.tally.answer(task.due, reply.timing(), verdict);
                let variant = reply.variant();
                variant.into_iter().for_each(|of| self.tally.answered_by(task.due, of));
                return Some(verdict);
            }
        }
        None
    }

    /// What inputs are compared with; nothing if the answer is none of this model.
    fn answer<'a>(&self, reply: &'a Reply) -> Cow<'a, [u8]> {
        if !self.inputs.compares_tensors() {
            return Cow::Borrowed(reply.bytes());
        }
        let tensors = self.handle.tensors_of(reply.bytes()).unwrap_or_default();
        Cow::Owned(tensors.iter().flat_map(|tensor| tensor.bytes).copied().collect())
    }
}

/// Emulated models take bytes, the others tensors.
fn engine_of(handle: &ModelHandle) -> &'static str {
    if handle.inputs().is_empty() { "emulated" } else { "onnx" }
}

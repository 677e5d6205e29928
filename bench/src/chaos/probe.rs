//! A client in this process that is never disturbed itself: it submits all the time, holds each answer
//! against its input, and sees how soon the cluster serves again.

use std::net::SocketAddr;
use std::time::Duration;

use baton_client::{
    Client, ClientConfig, Counters, Deadline, ModelHandle, Outcome, Ticket, TransportChoice,
};
use baton_core::Nanos;
use baton_topo::{Clock, EngineSpec};

use crate::chaos::ChaosError;
use crate::chaos::cluster::MODEL;
use crate::load::{Expected, Inputs, Tally, Verdict};

/// Between two submits.
const GAP: Nanos = Nanos::from_millis(10);
/// One task in this number has time enough for any recovery: these show what resubmission is worth.
const PATIENT: u64 = 5;
const PATIENCE: Duration = Duration::from_secs(5);

struct Open {
    ticket: Ticket,
    expected: Expected,
}

pub(super) struct ProbeClient {
    client: Client,
    model: ModelHandle,
    inputs: Inputs,
    clock: Clock,
    open: Vec<Open>,
    due: Nanos,
    /// A task submitted since was answered: when it was there.
    answered: Option<(Nanos, Option<Nanos>)>,
    pub(super) tally: Tally,
}

/// What is left of it.
pub(super) struct ProbeReport {
    pub(super) tally: Tally,
    pub(super) counters: Counters,
    /// Tickets that never got an outcome.
    pub(super) forgotten: usize,
    /// Slots that are still taken.
    pub(super) leaked: u32,
    /// Why leaving was not clean.
    pub(super) farewell: Option<String>,
}

impl ProbeClient {
    pub(super) fn connect(scheduler: SocketAddr, clock: Clock) -> Result<Self, ChaosError> {
        let fabric =
            baton_client::FabricSpec { transport: TransportChoice::Tcp, ..Default::default() };
        let config = ClientConfig::new(scheduler).clock(clock).fabric(fabric);
        let client = Client::connect(config)?;
        let model = client.model(MODEL).expect("it is in the file");
        let engine = EngineSpec::Emulated { jitter: 0.0 };
        let rows = (model.input_bytes(), model.output_bytes());
        let inputs = Inputs::new(&engine, rows, 1).expect("emulated engines take any size");
        let tally = Tally::new(MODEL, model.slo());
        let (open, due, answered) = (Vec::new(), clock.now(), None);
        Ok(Self { client, model, inputs, clock, open, due, answered, tally })
    }

    /// Submits what is due, takes what is there.
    pub(super) fn step(&mut self) {
        let now = self.clock.now();
        if now >= self.due {
            self.due = now + GAP;
            self.submit(now);
        }
        self.reap();
    }

    fn submit(&mut self, now: Nanos) {
        let number = self.tally.submitted;
        let due = self.due.min(now);
        self.tally.arrival(due, now);
        let Ok(mut input) = self.model.input() else {
            return self.tally.refuse_for(due, "slab_exhausted");
        };
        let expected = self.inputs.fill(number, &mut input);
        let patient = number.is_multiple_of(PATIENT);
        let deadline = if patient { Deadline::within(PATIENCE) } else { Deadline::Slo };
        match input.submit(deadline) {
            Ok(ticket) => self.open.push(Open { ticket, expected }),
            // The deadline is ahead and the client open: nothing else can be against it.
            Err(_) => self.tally.refuse_for(due, "scheduler_lost"),
        }
    }

    fn reap(&mut self) {
        let mut at = 0;
        while at < self.open.len() {
            match self.open[at].ticket.poll() {
                None => at += 1,
                Some(outcome) => {
                    let task = self.open.swap_remove(at);
                    self.judge(&task, &outcome);
                }
            }
        }
    }

    fn judge(&mut self, task: &Open, outcome: &Outcome) {
        let due = task.ticket.submitted();
        match outcome {
            Outcome::Dropped(reason, _) => self.tally.drop_for(due, *reason),
            Outcome::Failed(reason, _) => self.tally.fail_for(due, *reason),
            Outcome::Completed(reply) => {
                let verdict =
                    self.inputs.judge(task.expected, reply.timing().variant, reply.bytes());
                if verdict == Verdict::Wrong {
                    tracing::error!(task = ?task.ticket.task(), "wrong answer");
                }
                let timing = reply.timing();
                self.tally.answer(timing.submitted, timing, verdict);
                if let Some((since, first @ None)) = &mut self.answered
                    && timing.submitted >= *since
                {
                    *first = Some(timing.landed);
                }
            }
        }
    }

    /// From now on looks for an answer to a task of from now on.
    pub(super) fn look_out(&mut self) {
        self.answered = Some((self.clock.now(), None));
    }

    /// How long it took, once there is one.
    pub(super) fn answered_after(&self) -> Option<Nanos> {
        let (since, first) = self.answered?;
        first.map(|first| first - since)
    }

    pub(super) fn counters(&self) -> Counters {
        self.client.counters()
    }

    /// Waits for what is outstanding, and leaves.
    pub(super) fn leave(mut self) -> ProbeReport {
        let client = self.client.clone();
        let farewell = client.leave().err().map(|error| error.to_string());
        self.reap();
        let forgotten = self.open.len();
        self.open.clear();
        let (counters, leaked) = (self.client.counters(), self.client.slots_in_use());
        ProbeReport { tally: self.tally, counters, forgotten, leaked, farewell }
    }
}

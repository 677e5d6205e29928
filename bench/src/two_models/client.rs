//! The client: open-loop Poisson arrivals, whatever becomes of the tasks.
//!
//! It is bounded by its slots: an arrival that finds none is counted as `no_slot` and goes nowhere.

use std::net::SocketAddr;

use baton_client::{Client, ClientConfig, Deadline, ModelHandle, Outcome, Ticket};
use baton_core::Nanos;
use baton_topo::{Clock, park_thread};

use super::ClusterError;
use super::cluster::MODELS;
use crate::load::{Schedule, Tally, Verdict};

/// Width of a window.
pub(crate) const WINDOW: Nanos = Nanos::from_millis(100);
/// Tasks of one model outstanding at a time: more than come within the objective at ten times what
/// the GPUs bear.
const SLOTS: u32 = 2048;
/// Arrivals submitted between two looks at the tickets.
const BURST_MAX: usize = 64;
/// A finished ticket waits this long at most for being looked at.
const REAP_INTERVAL: Nanos = Nanos::from_millis(2);
const MEMORY_INTERVAL: Nanos = Nanos::from_millis(500);

/// Tasks due in one span of time: of each model, and of both together window by window.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) seconds: f64,
    pub(crate) models: [Tally; 2],
    /// Of each window of [`WINDOW`]: due, and of those answered in time.
    pub(crate) windows: Vec<[u64; 2]>,
}

impl Span {
    fn new(seconds: f64) -> Self {
        let windows = vec![[0; 2]; (seconds * 1e9 / WINDOW.0 as f64).ceil() as usize + 1];
        Self { seconds, models: Default::default(), windows }
    }
}

struct Outstanding {
    ticket: Ticket,
    model: usize,
    due: Nanos,
    /// Its place among the spans.
    span: usize,
}

/// The client, and what it has offered so far.
pub(crate) struct LoadClient {
    clock: Clock,
    client: Option<Client>,
    handles: [ModelHandle; 2],
    seed: u64,
    outstanding: Vec<Outstanding>,
    /// Of each span when it began, and what became of its tasks.
    spans: Vec<(Nanos, Span)>,
    /// Of the spans that were taken.
    taken: Tally,
    /// Spans so far, those that were taken included.
    offered: u64,
    /// Drops that came with word how long to wait.
    pub(crate) hinted: u64,
}

impl LoadClient {
    pub(crate) fn connect(
        scheduler: SocketAddr,
        clock: Clock,
        seed: u64,
    ) -> Result<Self, ClusterError> {
        let config = ClientConfig::new(scheduler).models(MODELS).clock(clock);
        let client = Client::connect(config.slots_per_model(SLOTS))?;
        let handles = [client.model(MODELS[0])?, client.model(MODELS[1])?];
        let (outstanding, spans) = (Vec::new(), Vec::new());
        let (client, taken) = (Some(client), Tally::default());
        Ok(Self { clock, client, handles, seed, outstanding, spans, taken, offered: 0, hinted: 0 })
    }

    /// Offers tasks of both models at these rates and returns the number of their span; the last of
    /// them may be without outcome yet. `each` is called twice a second.
    pub(crate) fn offer(&mut self, rates: [f64; 2], seconds: f64, mut each: impl FnMut()) -> usize {
        let number = self.spans.len();
        self.offered += 1;
        let start = self.clock.now();
        let end = start + Nanos::from_millis_f64(seconds * 1e3);
        self.spans.push((start, Span::new(seconds)));
        let seed = self.seed.wrapping_add(self.offered);
        let mut schedule = Schedule::poisson(&rates, seed, start);
        let mut next_call = start;
        loop {
            let now = self.clock.now();
            let caught_up = self.submit_due(&mut schedule, now.min(end), number);
            self.reap();
            if now >= next_call {
                each();
                next_call = now + MEMORY_INTERVAL;
            }
            if now >= end && caught_up {
                break;
            }
            if caught_up {
                let until = schedule.next_at().min(end).min(now + REAP_INTERVAL);
                let rest = until - self.clock.now();
                if rest > Nanos::ZERO {
                    park_thread(Some(rest));
                }
            }
        }
        number
    }

    /// Waits until every task has its outcome: at the latest when its lease is over.
    pub(crate) fn settle(&mut self) {
        while !self.outstanding.is_empty() {
            park_thread(Some(REAP_INTERVAL));
            self.reap();
        }
    }

    /// What has become of a span's tasks so far.
    pub(crate) fn span(&self, number: usize) -> &Span {
        &self.spans[number].1
    }

    /// Hands out the last span, all of whose tasks have their outcome; it counts in the total only.
    pub(crate) fn take_last(&mut self) -> Span {
        assert!(self.outstanding.is_empty(), "settle first");
        let (_, span) = self.spans.pop().expect("something was offered");
        span.models.iter().for_each(|tally| self.taken.merge(tally));
        span
    }

    /// All spans' tasks together.
    pub(crate) fn total(&self) -> Tally {
        let mut total = self.taken.clone();
        let models = self.spans.iter().flat_map(|(_, span)| &span.models);
        models.for_each(|tally| total.merge(tally));
        total
    }

    /// Leaves: afterwards every task has its outcome.
    pub(crate) fn leave(&mut self) {
        self.settle();
        let Some(client) = self.client.take() else { return };
        self.hinted = client.counters().hinted;
        if let Err(error) = client.leave() {
            tracing::warn!(%error, "the client did not leave in order");
        }
    }

    /// False if more arrivals are due than one burst takes.
    fn submit_due(&mut self, schedule: &mut Schedule, until: Nanos, span: usize) -> bool {
        for _ in 0..BURST_MAX {
            let Some(due) = schedule.take(until) else { return true };
            self.submit(due.at, due.model, span);
        }
        false
    }

    fn submit(&mut self, due: Nanos, model: usize, number: usize) {
        let (start, span) = &mut self.spans[number];
        let window = ((due - *start).0 / WINDOW.0) as usize;
        span.models[model].arrival(due, self.clock.now());
        span.windows[window][0] += 1;
        let ticket = match self.handles[model].input() {
            Ok(input) => input.submit(Deadline::Slo).map_err(|_| "scheduler_lost"),
            Err(_) => Err("no_slot"),
        };
        match ticket {
            Ok(ticket) => self.outstanding.push(Outstanding { ticket, model, due, span: number }),
            Err(reason) => span.models[model].refuse_for(due, reason),
        }
    }

    fn reap(&mut self) {
        let mut at = 0;
        while let Some(task) = self.outstanding.get_mut(at) {
            match task.ticket.poll() {
                Some(outcome) => {
                    let task = self.outstanding.swap_remove(at);
                    self.count(&task, &outcome);
                }
                None => at += 1,
            }
        }
    }

    fn count(&mut self, task: &Outstanding, outcome: &Outcome) {
        let (start, span) = &mut self.spans[task.span];
        let tally = &mut span.models[task.model];
        match outcome {
            Outcome::Completed(reply) => {
                let window = ((task.due - *start).0 / WINDOW.0) as usize;
                span.windows[window][1] += u64::from(!reply.late());
                // Since its submit: how late this client is says nothing about the cluster.
                let timing = reply.timing();
                tally.answer(timing.submitted, timing, Verdict::Unchecked);
            }
            Outcome::Dropped(reason, _) => tally.drop_for(task.due, *reason),
            Outcome::Failed(reason, _) => tally.fail_for(task.due, *reason),
        }
    }
}

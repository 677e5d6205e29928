//! The simulated GPU slots. A slot executes its batches in the order it got them, one at a time,
//! each for ℓ(b) plus the scenario's overrun.
//!
//! What a slot does with a batch is known when it gets it, so its tasks are tallied then, and only
//! the end of the batch is an event. A batch that cannot keep its window executes nevertheless, and
//! its tasks count as late.

use std::collections::VecDeque;
use std::io::Write as _;

use baton_core::{IndexedHeap, Nanos, Profile, Request, TaskId};

use crate::random::{Concern, Stream};
use crate::scenario::Scenario;
use crate::tally::Tally;

/// The measured end of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Finished {
    pub(crate) gpu: u32,
    pub(crate) model: u32,
    pub(crate) batch: u32,
    pub(crate) took: Nanos,
}

#[derive(Debug)]
struct Slot {
    /// What it executes and what waits behind it, with the moments they end.
    batches: VecDeque<(Nanos, Finished)>,
    /// When it will have executed all of it.
    free_at: Nanos,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Cluster {
    slots: Vec<Slot>,
    /// Slots that execute, by the end of their first batch.
    ends: IndexedHeap<Nanos>,
    profiles: Vec<Profile>,
    overrun: Nanos,
    stream: Stream,
    tally: Tally,
    /// One line for each batch and drop, if asked for.
    trace: Option<Vec<u8>>,
}

impl Cluster {
    pub(crate) fn new(scenario: &Scenario, seed: u64, traced: bool) -> Self {
        let idle = || Slot { batches: VecDeque::with_capacity(4), free_at: Nanos::ZERO };
        let models = &scenario.models;
        Self {
            slots: (0..scenario.gpus).map(|_| idle()).collect(),
            ends: IndexedHeap::new(scenario.gpus as usize),
            profiles: models.iter().map(|model| model.profile.clone()).collect(),
            overrun: scenario.overrun,
            stream: Stream::new(seed, Concern::Overrun),
            tally: Tally::new(models.len(), scenario.warmup, scenario.end()),
            trace: traced.then(Vec::new),
        }
    }

    /// Executes a batch on a slot, not before `exec_at`. `requests` is not empty.
    pub(crate) fn execute(
        &mut self,
        gpu: u32,
        model: u32,
        exec_at: Nanos,
        requests: impl ExactSizeIterator<Item = Request>,
    ) {
        let batch = requests.len() as u32;
        let took = self.profiles[model as usize].latency(batch) + self.draw_overrun();
        let slot = &mut self.slots[gpu as usize];
        let start = slot.free_at.max(exec_at);
        let end = start + took;
        slot.free_at = end;
        if slot.batches.is_empty() {
            self.ends.set(gpu, end);
        }
        slot.batches.push_back((end, Finished { gpu, model, batch, took }));
        self.tally.batch(model, batch, start, end);
        requests.for_each(|request| self.tally.completed(model, request, end));
        self.note(format_args!("batch model={model} gpu={gpu} tasks={batch} {start:?} {end:?}"));
    }

    /// Gives a task up.
    pub(crate) fn give_up(&mut self, model: u32, task: TaskId, why: &str) {
        self.tally.dropped(model, task);
        self.note(format_args!("drop model={model} arrived={}ns {why}", task.0));
    }

    /// When the next batch ends; [`Nanos::MAX`] while none executes.
    pub(crate) fn next_end(&self) -> Nanos {
        self.ends.peek().map_or(Nanos::MAX, |(at, _)| at)
    }

    /// The batch that ends next. The slot goes on with the one behind it.
    pub(crate) fn take_ended(&mut self) -> Option<Finished> {
        let (_, gpu) = self.ends.peek()?;
        let slot = &mut self.slots[gpu as usize];
        let (_, finished) = slot.batches.pop_front()?;
        match slot.batches.front() {
            Some(&(end, _)) => self.ends.set(gpu, end),
            None => drop(self.ends.remove(gpu)),
        }
        Some(finished)
    }

    pub(crate) fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }

    /// The counts, and the trace if there is one.
    pub(crate) fn into_results(self) -> (Tally, Option<Vec<u8>>) {
        (self.tally, self.trace)
    }

    fn draw_overrun(&mut self) -> Nanos {
        if self.overrun == Nanos::ZERO {
            return Nanos::ZERO;
        }
        Nanos((self.overrun.0 as f64 * self.stream.exponential()) as u64)
    }

    fn note(&mut self, line: std::fmt::Arguments<'_>) {
        if let Some(trace) = &mut self.trace {
            writeln!(trace, "{line}").expect("memory takes every line");
        }
    }
}

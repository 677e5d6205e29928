//! The simulated GPU slots. A slot executes its batches in the order it got them, one at a time,
//! each for as long as it really takes.
//!
//! A batch that cannot keep its window executes nevertheless, and its tasks count as late. Tasks
//! end when their batch does. The lists of tasks are recycled: no allocation per batch once the
//! deepest queues have been seen.

use std::collections::VecDeque;
use std::io::Write as _;

use baton_core::{IndexedHeap, Nanos, Request, TaskId};

use crate::distributions::Distributions;
use crate::execution::Execution;
use crate::loaders::{LoadEnd, Loaders};
use crate::scenario::Scenario;
use crate::tally::Tally;
use crate::variants::Asking;

/// The measured end of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Finished {
    pub(crate) gpu: u32,
    pub(crate) model: u32,
    pub(crate) variant: u16,
    pub(crate) batch: u32,
    pub(crate) took: Nanos,
}

/// The tasks of a batch whose slot is gone.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Lost {
    pub(crate) model: u32,
    pub(crate) requests: Vec<Request>,
}

#[derive(Debug)]
struct Batch {
    start: Nanos,
    end: Nanos,
    finished: Finished,
    requests: Vec<Request>,
}

#[derive(Debug)]
struct Slot {
    /// What it executes, and what waits behind it.
    batches: VecDeque<Batch>,
    /// When it will have executed all of it.
    free_at: Nanos,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Cluster {
    slots: Vec<Slot>,
    /// Slots that execute, by the end of their first batch.
    ends: IndexedHeap<Nanos>,
    execution: Execution,
    tally: Tally,
    /// Empty lists that batches had.
    spare: Vec<Vec<Request>>,
    /// One line for each batch and drop, if asked for.
    trace: Option<Vec<u8>>,
    distributions: Option<Distributions>,
    /// Memory and what is in it; `None`: every slot holds every model.
    loaders: Option<Loaders>,
    /// Objectives of models whose clients send a task when one has ended; others have none.
    closed: Vec<Option<Nanos>>,
    /// Of these, whose next task comes when.
    again: Vec<(u32, Nanos)>,
    /// By model: what its tasks ask for, and how many there were.
    asking: Vec<(Asking, u64)>,
}

/// What to keep of a run beside its counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Recording {
    Counts,
    Trace,
    Distributions,
}

/// A run's counts, and what it was asked to keep.
pub(crate) struct Results {
    pub(crate) tally: Tally,
    pub(crate) trace: Option<Vec<u8>>,
    pub(crate) distributions: Option<Distributions>,
    /// As the scheduler reckoned at the end.
    pub(crate) gpus_needed: Option<u32>,
    pub(crate) loaders: Option<Loaders>,
}

impl Cluster {
    pub(crate) fn new(scenario: &Scenario, seed: u64, keep: Recording) -> Self {
        let idle = || Slot { batches: VecDeque::with_capacity(4), free_at: Nanos::ZERO };
        let models = &scenario.models;
        let slos: Vec<Nanos> = models.iter().map(|model| scenario.longest_slo(model)).collect();
        Self {
            slots: (0..scenario.gpus).map(|_| idle()).collect(),
            ends: IndexedHeap::new(scenario.gpus as usize),
            execution: Execution::new(scenario, seed),
            tally: Tally::new(&slos, scenario.warmup, scenario.end())
                .with_variants(models.iter().map(|model| model.variants.len())),
            spare: Vec::new(),
            trace: (keep == Recording::Trace).then(Vec::new),
            distributions: (keep == Recording::Distributions)
                .then(|| Distributions::new(scenario.warmup)),
            loaders: Loaders::new(scenario, seed),
            closed: models.iter().map(|m| (m.clients > 0).then(|| m.slo())).collect(),
            again: Vec::new(),
            asking: models.iter().map(|model| (model.asking, 0)).collect(),
        }
    }

    /// Executes a batch on a slot with the model's cheapest variant, not before `exec_at`. `requests` is not empty.
    pub(crate) fn execute(
        &mut self,
        gpu: u32,
        model: u32,
        exec_at: Nanos,
        requests: impl ExactSizeIterator<Item = Request>,
    ) {
        self.execute_variant(gpu, (model, 0), exec_at, requests);
    }

    /// As [`Cluster::execute`], with a variant of the model.
    pub(crate) fn execute_variant(
        &mut self,
        gpu: u32,
        (model, variant): (u32, u16),
        exec_at: Nanos,
        requests: impl ExactSizeIterator<Item = Request>,
    ) {
        let batch = requests.len() as u32;
        let took = self.execution.time(gpu, (model, variant), batch);
        let mut list = self.spare.pop().unwrap_or_default();
        list.extend(requests);
        let slot = &mut self.slots[gpu as usize];
        let start = slot.free_at.max(exec_at);
        let end = start + took;
        if let Some(loaders) = &mut self.loaders {
            loaders.begin_batch(gpu, model, start);
        }
        slot.free_at = end;
        if slot.batches.is_empty() {
            self.ends.set(gpu, end);
        }
        let finished = Finished { gpu, model, variant, batch, took };
        slot.batches.push_back(Batch { start, end, finished, requests: list });
    }

    /// Stops what the slot executes; its tasks go back to the policy. The time is lost. False if
    /// the slot executes nothing.
    pub(crate) fn preempt(&mut self, now: Nanos, gpu: u32, back: impl FnMut(Request)) -> bool {
        let slot = &mut self.slots[gpu as usize];
        debug_assert!(slot.batches.len() <= 1, "policies that preempt keep no batch waiting");
        let Some(mut batch) = slot.batches.pop_front() else { return false };
        slot.free_at = now;
        self.ends.remove(gpu);
        self.tally.executed(batch.start, now);
        let model = batch.finished.model;
        batch.requests.drain(..).for_each(back);
        self.spare.push(batch.requests);
        self.note(format_args!("preempt model={model} gpu={gpu} {:?} {now:?}", batch.start));
        true
    }

    /// The slot's backend is gone: its batches come back, in the order it had them. The time that
    /// the first has been executed is lost.
    pub(crate) fn lose(&mut self, now: Nanos, gpu: u32) -> Vec<Lost> {
        let slot = &mut self.slots[gpu as usize];
        slot.free_at = now;
        self.ends.remove(gpu);
        self.loaders.iter_mut().for_each(|loaders| loaders.lose(now, gpu));
        let batches: Vec<Batch> = slot.batches.drain(..).collect();
        let lost = |Batch { start, finished: Finished { model, .. }, requests, .. }| {
            self.tally.executed(start, now);
            self.note(format_args!("lose model={model} gpu={gpu} {start:?} {now:?}"));
            Lost { model, requests }
        };
        batches.into_iter().map(lost).collect()
    }

    /// Gives a task up.
    pub(crate) fn give_up(&mut self, model: u32, task: TaskId, why: &str) {
        self.tally.dropped(model, task);
        // A client hears of it at the deadline.
        if let Some(slo) = self.closed[model as usize] {
            self.again.push((model, Nanos(task.0) + slo));
        }
        self.note(format_args!("drop model={model} arrived={}ns {why}", task.0));
    }

    /// When the next batch ends; [`Nanos::MAX`] while none executes.
    pub(crate) fn next_end(&self) -> Nanos {
        self.ends.peek().map_or(Nanos::MAX, |(at, _)| at)
    }

    /// Ends the batch that is due next, and its tasks; the slot goes on with the one behind it.
    pub(crate) fn take_ended(&mut self) -> Option<Finished> {
        let (_, gpu) = self.ends.peek()?;
        let slot = &mut self.slots[gpu as usize];
        let Batch { start, end, finished, mut requests } = slot.batches.pop_front()?;
        match slot.batches.front() {
            Some(next) => self.ends.set(gpu, next.end),
            None => drop(self.ends.remove(gpu)),
        }
        let Finished { model, variant, batch, .. } = finished;
        self.tally.executed(start, end);
        self.tally.batch((model, variant), batch, start);
        if let Some(distributions) = &mut self.distributions {
            distributions.batch(&requests, start);
        }
        let tally = &mut self.tally;
        requests.drain(..).for_each(|request| tally.completed((model, variant), request, end));
        self.spare.push(requests);
        if let Some(loaders) = &mut self.loaders {
            loaders.end_batch(gpu, model);
        }
        if self.closed[model as usize].is_some() {
            self.again.extend(std::iter::repeat_n((model, end), batch as usize));
        }
        match self.tally.has_variants(model) {
            false => self.note(format_args!(
                "batch model={model} gpu={gpu} tasks={batch} {start:?} {end:?}"
            )),
            true => self.note(format_args!(
                "batch model={model} gpu={gpu} tasks={batch} variant={variant} {start:?} {end:?}"
            )),
        }
        Some(finished)
    }

    /// A task came in.
    /// The accuracy that the model's next task asks for, 1/100,000.
    pub(crate) fn accuracy_min(&mut self, model: u32) -> u32 {
        let (asking, number) = &mut self.asking[model as usize];
        *number += 1;
        asking.of(*number - 1)
    }

    pub(crate) fn submitted(&mut self, model: u32, task: TaskId) {
        self.tally.submitted(model, task);
        if self.loaders.as_ref().is_some_and(|loaders| !loaders.is_anywhere(model)) {
            self.tally.cold(model, task);
        }
    }

    /// Models of clients whose tasks have ended, and when their next ones come.
    pub(crate) fn take_again(&mut self) -> impl Iterator<Item = (u32, Nanos)> {
        self.again.drain(..)
    }

    /// Memory and what is in it. There is a policy that manages it only if there is one.
    pub(crate) fn loaders(&mut self) -> &mut Loaders {
        self.loaders.as_mut().expect("the scenario has memory")
    }

    /// When the next LOAD is reported; [`Nanos::MAX`] while there is none.
    pub(crate) fn next_load(&self) -> Nanos {
        self.loaders.as_ref().map_or(Nanos::MAX, Loaders::next_end)
    }

    /// The LOAD that is reported next.
    pub(crate) fn take_loaded(&mut self, now: Nanos) -> Option<LoadEnd> {
        let load = self.loaders.as_mut()?.take_ended()?;
        let LoadEnd { gpu, model, outcome, .. } = load;
        self.note(format_args!("load model={model} gpu={gpu} {outcome:?} {now:?}"));
        Some(load)
    }

    /// What a slot was to do and cannot, if there was such a thing.
    pub(crate) fn broken(&mut self) -> Option<String> {
        self.loaders.as_mut().and_then(Loaders::broken)
    }

    pub(crate) fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }

    pub(crate) fn into_results(self, gpus_needed: Option<u32>) -> Results {
        let Self { tally, trace, distributions, loaders, .. } = self;
        Results { tally, trace, distributions, gpus_needed, loaders }
    }

    fn note(&mut self, line: std::fmt::Arguments<'_>) {
        if let Some(trace) = &mut self.trace {
            writeln!(trace, "{line}").expect("memory takes every line");
        }
    }
}

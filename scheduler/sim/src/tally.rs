//! What became of every task, and the proof that each ended exactly once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use baton_core::{Nanos, Request, SplitMix64, TaskId};
use hdrhistogram::Histogram;

/// Why a run has no result.
#[derive(thiserror::Error, Clone, PartialEq, Debug)]
pub enum SimError {
    /// The oracle failed: tasks were lost or ended twice. A defect of the policy or the driver.
    #[error("model {model}: submitted − ended = {open}, and the tasks are not the same")]
    Unbalanced {
        /// The model's name.
        model: String,
        /// Tasks submitted less tasks ended.
        open: i64,
    },
    /// A slot was to do what it cannot: the policy or the simulated slots have a defect.
    #[error("{what}")]
    Memory {
        /// Which slot, and what.
        what: String,
    },
    /// The policy differs from another only in what it loads, and there is nothing to load.
    #[error(
        "policy {policy} says what is loaded where: give the scenario pages and its models weights_mb"
    )]
    NoMemory {
        /// The policy.
        policy: String,
    },
    /// The policy has no rule for something in the scenario.
    #[error("policy {policy} has no rule for {key}: {why}")]
    Unsupported {
        /// The policy.
        policy: String,
        /// The key in the scenario file.
        key: &'static str,
        /// What is missing.
        why: &'static str,
    },
    /// Nothing can be offered at this rate.
    #[error("rate {rate}: give tasks per second from 0.001 to 1e9")]
    Rate {
        /// As given.
        rate: f64,
    },
    /// Knowing the arrivals would not be knowing everything.
    #[error("no clairvoyant bound for this scenario: {why}")]
    NotClairvoyant {
        /// What stands in the way.
        why: &'static str,
    },
    /// Only the production scheduler can be observed.
    #[error(
        "policy {policy} is a baseline, whose decisions are not recorded: take baton, symphony or eager, or read \
         the trace of baton sim run --trace"
    )]
    NotObserved {
        /// The policy.
        policy: String,
    },
    /// No task of the run has this id.
    #[error("no task {task} in this run: ids are arrival times in ns, as in a trace")]
    NoTask {
        /// As given.
        task: u64,
    },
    /// The run sealed fewer batches.
    #[error("no batch {batch}: the run sealed {batches}, counted from 1")]
    NoBatch {
        /// As given.
        batch: u64,
        /// How many there are.
        batches: u64,
    },
    /// The moment does not lie within the run.
    #[error("{at_ms} ms: the run is from 0 to {end_ms} ms")]
    OutsideOfRun {
        /// As given.
        at_ms: f64,
        /// When the last task may arrive.
        end_ms: f64,
    },
    /// A search changes the rate, and these tasks come at none.
    #[error(
        "model {model} has a closed loop, whose clients send when their last task has ended, and a goodput search \
         offers rates: take baton sim run, which says goodput_rps, or remove closed_loop"
    )]
    ClosedLoop {
        /// The first such model.
        model: String,
    },
    /// Nothing to average over.
    #[error("a goodput search needs at least one seed")]
    NoSeed,
}

/// One model's counts. Only tasks that arrived after the warm-up count, except in the oracle.
#[derive(Clone, Debug)]
pub(crate) struct ModelTally {
    pub(crate) submitted: u64,
    /// Executed, in time or not.
    pub(crate) completed: u64,
    /// Executed too late.
    pub(crate) late: u64,
    pub(crate) dropped: u64,
    /// With more late and dropped tasks the run is decided.
    bad_allowed: u64,
    pub(crate) batches: u64,
    /// Tasks in those batches.
    pub(crate) batched: u64,
    /// Arrival to end of execution, µs, of executed tasks.
    pub(crate) latency_us: Histogram<u32>,
    /// The sum of the same, ns.
    pub(crate) latency_ns: u64,
    /// Of a supernet, the cheapest first.
    pub(crate) variants: Vec<VariantTally>,
    /// Submitted less ended.
    open: i64,
    /// Sum over submitted tasks less sum over ended ones, of their scattered ids. Zero if they are
    /// the same tasks, whatever the order.
    balance: u64,
}

/// One variant's part of a model's counts.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct VariantTally {
    pub(crate) completed: u64,
    pub(crate) in_time: u64,
    pub(crate) batches: u64,
    pub(crate) batched: u64,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    /// First and last moment that counts.
    from: Nanos,
    until: Nanos,
    pub(crate) models: Vec<ModelTally>,
    /// Time that GPU slots executed within the span that counts.
    pub(crate) busy: Nanos,
    /// Some model has more bad tasks than it is allowed: nothing else about the run matters.
    pub(crate) decided: bool,
    /// Tasks that came when no slot had their model.
    pub(crate) cold: ColdTally,
}

/// Cold tasks, of those that count.
#[derive(Clone, Default, Debug)]
pub(crate) struct ColdTally {
    pub(crate) submitted: u64,
    pub(crate) in_time: u64,
    /// How many with this model and id have not ended.
    open: HashMap<(u32, TaskId), u32>,
}

impl ColdTally {
    fn end(&mut self, model: u32, task: TaskId, in_time: bool) {
        if self.open.is_empty() {
            return;
        }
        if let Entry::Occupied(mut open) = self.open.entry((model, task)) {
            self.in_time += u64::from(in_time);
            *open.get_mut() -= 1;
            if *open.get() == 0 {
                open.remove();
            }
        }
    }
}

/// The histogram resolves latencies to three digits, up to this multiple of the objective.
const LATENCY_MAX: u64 = 4;
const LATENCY_DIGITS: u8 = 3;

impl Tally {
    /// Counts from `from` until `until` for models with these objectives.
    pub(crate) fn new(slos: &[Nanos], from: Nanos, until: Nanos) -> Self {
        let models = slos.iter().copied().map(ModelTally::new).collect();
        Self { from, until, models, busy: Nanos::ZERO, decided: false, cold: ColdTally::default() }
    }

    /// The models have this many variants.
    pub(crate) fn with_variants(mut self, variants: impl Iterator<Item = usize>) -> Self {
        for (model, variants) in self.models.iter_mut().zip(variants) {
            model.variants = vec![VariantTally::default(); variants];
        }
        self
    }

    /// Whether the model is a supernet.
    pub(crate) fn has_variants(&self, model: u32) -> bool {
        !self.models[model as usize].variants.is_empty()
    }

    /// How many late and dropped tasks each model may have; with one more the run is decided.
    pub(crate) fn allow(&mut self, bad: &[u64]) {
        for (model, &bad) in self.models.iter_mut().zip(bad) {
            model.bad_allowed = bad;
        }
    }

    /// A task came in.
    pub(crate) fn submitted(&mut self, model: u32, task: TaskId) {
        let counts = self.counts(task);
        let model = &mut self.models[model as usize];
        model.submitted += u64::from(counts);
        model.open += 1;
        model.balance = model.balance.wrapping_add(SplitMix64::mix(task.0));
    }

    /// No slot has the model of a task that came.
    pub(crate) fn cold(&mut self, model: u32, task: TaskId) {
        if self.counts(task) {
            self.cold.submitted += 1;
            *self.cold.open.entry((model, task)).or_default() += 1;
        }
    }

    /// A task was given up.
    pub(crate) fn dropped(&mut self, model: u32, task: TaskId) {
        let counts = self.counts(task);
        self.cold.end(model, task, false);
        let model = self.end(model, task);
        model.dropped += u64::from(counts);
        let decided = model.bad() > model.bad_allowed;
        self.decided |= decided;
    }

    /// A task's execution by a variant of its model ended at `at`.
    pub(crate) fn completed(&mut self, (model, variant): (u32, u16), request: Request, at: Nanos) {
        let counts = self.counts(request.task);
        self.cold.end(model, request.task, at <= request.deadline);
        let model = self.end(model, request.task);
        if counts {
            model.completed += 1;
            model.late += u64::from(at > request.deadline);
            if let Some(variant) = model.variants.get_mut(usize::from(variant)) {
                variant.completed += 1;
                variant.in_time += u64::from(at <= request.deadline);
            }
            let latency = at.0 - request.task.0;
            model.latency_us.saturating_record(latency / 1_000);
            model.latency_ns = model.latency_ns.saturating_add(latency);
            let decided = model.bad() > model.bad_allowed;
            self.decided |= decided;
        }
    }

    /// The latencies of all models' executed tasks.
    pub(crate) fn latency_us(&self) -> Histogram<u32> {
        let most_us = self.models.iter().map(|model| model.latency_us.high()).fold(2, u64::max);
        let mut all = latencies(most_us);
        for model in &self.models {
            all.add(&model.latency_us).expect("no model's largest latency is above the largest");
        }
        all
    }

    /// A batch that started at `start` has ended.
    pub(crate) fn batch(&mut self, (model, variant): (u32, u16), size: u32, start: Nanos) {
        if (self.from..self.until).contains(&start) {
            let model = &mut self.models[model as usize];
            model.batches += 1;
            model.batched += u64::from(size);
            if let Some(variant) = model.variants.get_mut(usize::from(variant)) {
                variant.batches += 1;
                variant.batched += u64::from(size);
            }
        }
    }

    /// A slot executed from `start` to `end`.
    pub(crate) fn executed(&mut self, start: Nanos, end: Nanos) {
        self.busy = self.busy + (end.min(self.until) - start.max(self.from));
    }

    /// Tasks must have ended exactly once each. `names` is for the error.
    pub(crate) fn check(&self, names: impl Iterator<Item = String>) -> Result<(), SimError> {
        let mut models = self.models.iter().zip(names);
        match models.find(|(model, _)| model.open != 0 || model.balance != 0) {
            None => Ok(()),
            Some((tally, model)) => Err(SimError::Unbalanced { model, open: tally.open }),
        }
    }

    /// Arrived after the warm-up.
    fn counts(&self, task: TaskId) -> bool {
        task.0 >= self.from.0
    }

    fn end(&mut self, model: u32, task: TaskId) -> &mut ModelTally {
        let model = &mut self.models[model as usize];
        model.open -= 1;
        model.balance = model.balance.wrapping_sub(SplitMix64::mix(task.0));
        model
    }
}

/// For latencies up to `most_us`, which is at least 2.
fn latencies(most_us: u64) -> Histogram<u32> {
    Histogram::new_with_max(most_us, LATENCY_DIGITS)
        .expect("the largest value is at least 2 and the digits are at most 5")
}

impl ModelTally {
    /// Tasks that ended otherwise than in time.
    pub(crate) fn bad(&self) -> u64 {
        self.late + self.dropped
    }

    fn new(slo: Nanos) -> Self {
        let latency_us = latencies((slo.0 / 1_000).saturating_mul(LATENCY_MAX).max(2));
        Self {
            submitted: 0,
            completed: 0,
            late: 0,
            dropped: 0,
            bad_allowed: u64::MAX,
            batches: 0,
            batched: 0,
            latency_us,
            latency_ns: 0,
            variants: Vec::new(),
            open: 0,
            balance: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(ends: &[u64]) -> Result<(), SimError> {
        let mut tally = Tally::new(&[Nanos::from_millis(1)], Nanos::ZERO, Nanos::MAX);
        (1..=3).for_each(|task| tally.submitted(0, TaskId(task)));
        ends.iter().for_each(|&task| tally.dropped(0, TaskId(task)));
        tally.check(std::iter::once("m".to_owned()))
    }

    #[test]
    fn a_task_that_is_lost_or_ends_twice_is_found() {
        let unbalanced = |open| Err(SimError::Unbalanced { model: "m".to_owned(), open });
        assert_eq!(ended(&[3, 1, 2]), Ok(()));
        assert_eq!(ended(&[1, 2]), unbalanced(1));
        assert_eq!(ended(&[1, 2, 3, 3]), unbalanced(-1));
        assert_eq!(ended(&[1, 2, 2]), unbalanced(0), "one lost, one twice");
    }

    #[test]
    fn a_slot_is_busy_as_far_as_the_time_counts() {
        let ms = Nanos::from_millis;
        let busy = |start, end| {
            let mut tally = Tally::new(&[], ms(10), ms(20));
            tally.executed(ms(start), ms(end));
            tally.busy
        };
        assert_eq!([busy(5, 8), busy(5, 12), busy(12, 15)], [0, 2, 3].map(ms));
        assert_eq!([busy(18, 25), busy(5, 25), busy(22, 25)], [2, 10, 0].map(ms));
    }
}

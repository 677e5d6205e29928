//! The same agents and the same load, stepped by hand on one thread in virtual time. No cache line
//! travels between cores and no neighbour holds an agent up, so this is what the code itself costs:
//! two builds can be compared by it on a busy machine, and an instruction counter can follow it.

use baton_core::Nanos;
use baton_topo::Agent;
use serde::Serialize;

use super::agents::Agents;
use super::generator::{REQUESTS_PER_POLL, cost_alone};
use super::workload::{BATCH, Workload};
use super::{GUESS_RPS, SchedError, Shape};
use crate::machine::thread_time;

/// The agents, and the virtual time.
pub struct Stepper {
    agents: Agents,
    now: Nanos,
    /// In which the requests of one pass arrive.
    step: Nanos,
}

/// What the agents cost when stepped; generator and clock readings taken off.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Stepped {
    /// CPU time of the ModelThreads per request.
    pub ns_per_request: f64,
    /// CPU time of the RankThread per batch granted, everything included.
    pub rank_ns_per_batch: f64,
    /// Candidates the RankThread looked at per batch granted.
    pub candidates_per_batch: f64,
    /// Tasks in a batch.
    pub mean_batch: f64,
}

impl Stepped {
    /// Of two runs of the same load the lower cost of each thread: a neighbour only adds to it.
    #[must_use]
    pub fn less_disturbed(self, other: Self) -> Self {
        Self {
            ns_per_request: self.ns_per_request.min(other.ns_per_request),
            rank_ns_per_batch: self.rank_ns_per_batch.min(other.rank_ns_per_batch),
            ..self
        }
    }
}

impl Stepper {
    /// As many requests per second of virtual time as GPUs and profiles are made for.
    ///
    /// # Errors
    /// The shape is beyond the scheduler's bounds.
    pub fn new(shape: Shape) -> Result<Self, SchedError> {
        shape.check()?;
        let workload = workload(shape);
        let step = Nanos((workload.saturating_per_poll as f64 / GUESS_RPS * 1e9) as u64);
        let now = Nanos::from_millis(1_000);
        Ok(Self { agents: Agents::new(&workload), now, step })
    }

    /// One pass of every agent, with 64 requests for each ModelThread, or fewer for few models
    /// or GPUs.
    pub fn pass(&mut self) {
        self.now = self.now + self.step;
        self.agents.poll_model_threads(self.now);
        self.agents.path.rank.poll(self.now);
    }

    /// The same; returns the CPU time of the ModelThreads' polls and of the RankThread's.
    fn timed_pass(&mut self) -> [Nanos; 2] {
        self.now = self.now + self.step;
        let start = thread_time();
        self.agents.poll_model_threads(self.now);
        let middle = thread_time();
        self.agents.path.rank.poll(self.now);
        [middle - start, thread_time() - middle]
    }
}

/// Requests of each ModelThread before the measurement, so that queues and rates settle, and in it.
const WARM_UP: u64 = 20_000 * REQUESTS_PER_POLL as u64;
const MEASURED: u64 = 10_000 * REQUESTS_PER_POLL as u64;

/// What is stepped: the same batches, of about ten, whatever the numbers of models and GPUs. So a pass
/// brings at most two requests for each model, and is at most a quarter as long as an execution: else
/// batches of few models would grow with the pass, and few GPUs would be idle until the next pass
/// takes their reports in.
fn workload(shape: Shape) -> Workload {
    let rate = GUESS_RPS * f64::from(shape.model_threads);
    let mut workload = Workload::new(Shape { rate: None, ..shape }, rate);
    let pass = 2 * shape.gpus.min(shape.models) / shape.model_threads;
    workload.saturating_per_poll = (pass.max(1) as usize).min(REQUESTS_PER_POLL);
    workload
}

/// Measures over a fixed number of requests.
pub(super) fn measure(shape: Shape) -> Result<Stepped, SchedError> {
    let workload = workload(shape);
    let generator_ns = cost_alone(&workload, f64::from(BATCH))?;
    let passes = |requests: u64| requests / workload.saturating_per_poll as u64;
    let mut stepper = Stepper::new(shape)?;
    (0..passes(WARM_UP)).for_each(|_| stepper.pass());
    let before = stepper.counts();
    let mut spent = [Nanos::ZERO; 2];
    for _ in 0..passes(MEASURED) {
        let pass = stepper.timed_pass();
        spent = std::array::from_fn(|agent| spent[agent] + pass[agent]);
    }
    let [requests, planned, batches, candidates] =
        std::array::from_fn(|at| (stepper.counts()[at] - before[at]) as f64);
    let clock_ns = clock_reading_ns();
    let [models, rank] = spent.map(|spent| spent.0 as f64 - passes(MEASURED) as f64 * clock_ns);
    Ok(Stepped {
        ns_per_request: models / requests.max(1.0) - generator_ns,
        rank_ns_per_batch: rank / batches.max(1.0),
        candidates_per_batch: candidates / batches.max(1.0),
        mean_batch: planned / batches.max(1.0),
    })
}

impl Stepper {
    /// Tasks in the plans that have gone out.
    pub fn planned(&self) -> u64 {
        self.counts()[1]
    }

    /// Requests, tasks planned, batches, candidates.
    fn counts(&self) -> [u64; 4] {
        let threads = &self.agents.counters.model_threads;
        let rank = &self.agents.counters.rank_thread;
        [
            threads.iter().map(|thread| thread.submitted.get()).sum(),
            threads.iter().map(|thread| thread.planned_tasks.get()).sum(),
            threads.iter().map(|thread| thread.plans.get()).sum(),
            rank.candidates.get() + rank.superseded.get(),
        ]
    }
}

fn clock_reading_ns() -> f64 {
    const READINGS: u32 = 10_000;
    let start = thread_time();
    for _ in 1..READINGS {
        std::hint::black_box(thread_time());
    }
    (thread_time() - start).0 as f64 / f64::from(READINGS)
}

//! A GPU slot in simulated time: it computes checksums, takes as long as it is told, and can stall,
//! slow down, fail and die.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use baton_backend::execute::{
    BatchDone, BatchJob, EngineError, Executor, ExecutorDied, Job, JobDone, LoadOrder, Loaded,
    checksum,
};
use baton_core::{ModelId, Nanos};
use baton_topo::ModelSpec;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::clock::SkewedClock;
use crate::ledger::{Ledger, write_answer};
use crate::network::{HostId, Network};
use crate::plan::Engines;

/// What all GPU slots of a process share.
#[derive(Clone)]
pub struct Machine {
    /// The process.
    pub host: HostId,
    /// Its clock.
    pub clock: SkewedClock,
    /// True time.
    pub now: Rc<Cell<Nanos>>,
    /// Those of the cluster file, by their ids.
    pub models: Rc<[ModelSpec]>,
    /// Where executions are noted.
    pub ledger: Rc<RefCell<Ledger>>,
    /// Who knows what broke.
    pub network: Network,
    /// How executions differ from the profiles.
    pub engines: Engines,
    /// However slow, an execution takes at most this much longer than its profile says: what takes
    /// longer is a stall.
    pub overrun_max: Nanos,
}

/// Both the worker's executor and the run's view of it.
#[derive(Clone)]
pub struct SimGpu {
    machine: Machine,
    state: Rc<RefCell<State>>,
}

struct State {
    rng: StdRng,
    running: Option<Running>,
    stalled_until: Nanos,
    /// Of the usual time, in percent.
    pace: u64,
    dead: bool,
    /// Models that were added, by their local ids; loading takes no time.
    added: BTreeMap<ModelId, ModelSpec>,
    loaded: Option<Result<Loaded, EngineError>>,
    /// A change of its models, which takes no time.
    changed: Option<JobDone>,
}

struct Running {
    job: BatchJob,
    started: Nanos,
    ends: Nanos,
    fails: bool,
}

impl SimGpu {
    /// An idle one.
    pub fn new(machine: Machine, seed: u64) -> Self {
        let state = State {
            rng: StdRng::seed_from_u64(seed),
            running: None,
            stalled_until: Nanos::ZERO,
            pace: 100,
            dead: false,
            added: BTreeMap::new(),
            loaded: None,
            changed: None,
        };
        Self { machine, state: Rc::new(RefCell::new(state)) }
    }

    /// When the present execution ends, true time; at once if the executor has died.
    pub fn ends_at(&self) -> Option<Nanos> {
        let state = self.state.borrow();
        if state.changed.is_some() || state.loaded.is_some() {
            return Some(Nanos::ZERO);
        }
        state.running.as_ref().map(|running| if state.dead { Nanos::ZERO } else { running.ends })
    }

    /// Nothing gets further until then.
    pub fn stall(&self, until: Nanos) {
        let mut state = self.state.borrow_mut();
        let more = until - self.machine.now.get().max(state.stalled_until);
        state.stalled_until = state.stalled_until.max(until);
        if let Some(running) = &mut state.running {
            running.ends = running.ends + more;
        }
    }

    /// From now on executions take `percent` of their usual time.
    pub fn set_pace(&self, percent: u64) {
        self.state.borrow_mut().pace = percent;
    }

    /// The executor's thread ends.
    pub fn die(&self) {
        self.state.borrow_mut().dead = true;
    }

    fn takes(&self, state: &mut State, job: &BatchJob) -> Nanos {
        let engines = &self.machine.engines;
        let usual = self.spec(state, job.model).profile.latency(job.inputs().len()).0;
        let extra = state.rng.random_range(0..=engines.jitter_percent);
        let takes = usual * (engines.percent + extra) / 100 * state.pace / 100;
        Nanos(takes.min(usual + self.machine.overrun_max.0))
    }

    fn spec<'a>(&'a self, state: &'a State, model: ModelId) -> &'a ModelSpec {
        state.added.get(&model).unwrap_or_else(|| &self.machine.models[model.0 as usize])
    }

    fn note(&self, state: &State, job: &BatchJob) {
        let model = &self.spec(state, job.model).name;
        let Machine { host, now, ledger, network, .. } = &self.machine;
        let (inputs, mut ledger) = (job.inputs(), ledger.borrow_mut());
        for row in 0..inputs.len() {
            ledger.start(now.get(), inputs.row(row), model, *host, network);
        }
    }
}

impl Executor for SimGpu {
    fn submit(&mut self, job: Job) -> Result<(), ExecutorDied> {
        let mut state = self.state.borrow_mut();
        if state.dead {
            return Err(ExecutorDied);
        }
        let job = match job {
            Job::Infer(job) => job,
            Job::Install(_) | Job::Remove(_) => {
                if let Job::Remove(model) = job {
                    state.added.remove(&model);
                }
                let now = self.machine.clock.at(self.machine.now.get());
                let (started, finished) = (now, now);
                state.changed = Some(JobDone { batch: None, started, finished, result: Ok(()) });
                return Ok(());
            }
            Job::Load(_) | Job::Unload(_) => unreachable!("no policy loads or unloads models"),
        };
        self.note(&state, &job);
        let started = self.machine.now.get();
        let takes = self.takes(&mut state, &job);
        let ends = started.max(state.stalled_until) + takes;
        let fails = state.rng.random_range(0..1000) < self.machine.engines.failures;
        let before = state.running.replace(Running { job, started, ends, fails });
        if before.is_some() {
            self.machine.ledger.borrow_mut().fail("a GPU was given two batches at once".into());
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<JobDone>, ExecutorDied> {
        let mut state = self.state.borrow_mut();
        if state.dead {
            state.running = None;
            return Err(ExecutorDied);
        }
        if let Some(changed) = state.changed.take() {
            return Ok(Some(changed));
        }
        let now = self.machine.now.get();
        let ended = state.running.take_if(|running| running.ends <= now);
        Ok(ended.map(|Running { mut job, started, ends, fails }| {
            for row in 0..job.inputs().len() {
                let answer = checksum(job.inputs().row(row));
                write_answer(job.outputs.row_mut(row), answer);
            }
            let result = if fails { Err(failed(&job)) } else { Ok(()) };
            let clock = &self.machine.clock;
            let (started, finished) = (clock.at(started), clock.at(ends));
            let BatchJob { slot, lens, outputs, .. } = job;
            JobDone { batch: Some(BatchDone { slot, lens, outputs }), started, finished, result }
        }))
    }

    fn load_aside(&mut self, order: LoadOrder) {
        let mut state = self.state.borrow_mut();
        let loaded = order.describe().map(|spec| Loaded { spec, profile: None });
        if let Ok(Loaded { spec, .. }) = &loaded {
            state.added.insert(spec.id, spec.clone());
        }
        state.loaded = Some(loaded);
    }

    fn poll_loaded(&mut self) -> Option<Result<Loaded, EngineError>> {
        self.state.borrow_mut().loaded.take()
    }

    fn discard(&mut self) {}
}

fn failed(job: &BatchJob) -> EngineError {
    let problem = String::from("simulated");
    EngineError::Execute { model: job.model, batch: job.inputs().len(), problem }
}

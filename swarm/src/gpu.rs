//! A GPU slot in simulated time: it copies inputs near while others execute, computes checksums, takes as long as
//! [`Engines`] says, and can stall, slow down, fail and die.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use baton_backend::execute::{
    BatchBack, BatchEnd, BatchJob, BatchMemory, CallOrder, EngineError, Event, Executor,
    ExecutorDied, HostMemory, LoadOrder, Loaded, ModelJob, ModelSource, answer_of,
};
use baton_core::{ModelId, Nanos};
use baton_topo::ModelSpec;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::caches::{self, Course};
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
    order: CallOrder,
    /// Copying a batch's rows takes at most so long; zero: nothing is copied.
    copy_max: Nanos,
    /// By batch slot.
    prepared: BTreeMap<usize, Near>,
    /// Behind what executes.
    submitted: VecDeque<Near>,
    /// To come back once they are copied.
    withdrawn: Vec<Near>,
    running: Option<Running>,
    /// When the last execution ended.
    free_at: Nanos,
    /// What has come back and was not polled.
    events: VecDeque<Event>,
    stalled_until: Nanos,
    /// Of the usual time, in percent.
    pace: u64,
    dead: bool,
    /// Models that were added, by their local ids.
    added: BTreeMap<ModelId, ModelSpec>,
    /// Loading a model takes at most so long; zero: no time.
    load_max: Nanos,
    /// What is being loaded.
    loading: Option<Loading>,
    /// Of models that LOADs bring: those that it has.
    installed: BTreeSet<ModelId>,
    /// When models left it last.
    left: BTreeMap<ModelId, Nanos>,
    /// LOADs beside another model that find no memory.
    short: u32,
}

struct Loading {
    until: Nanos,
    /// Its backend was woken for it.
    has_rung: bool,
    loaded: Result<Loaded, EngineError>,
}

/// A batch that was prepared.
struct Near {
    job: BatchJob,
    /// It cannot start before: its rows are being copied, or it had not been submitted.
    from: Nanos,
}

struct Running {
    job: BatchJob,
    /// The variant that executes.
    variant: u16,
    started: Nanos,
    ends: Nanos,
    fails: bool,
}

/// The longest copy of any device.
const COPY_MAX: u64 = 100_000;
/// How long a GPU slot takes at most to load a model: half of them no time, one in eight longer than a member may be silent.
const LOADS_MAX_MS: [u64; 8] = [0, 0, 0, 0, 20, 60, 60, LOAD_MAX_MS];
pub(crate) const LOAD_MAX_MS: u64 = 600;
/// A model that comes back so soon was wanted again at once.
const AT_ONCE: Nanos = Nanos::from_millis(20);

impl SimGpu {
    /// An idle one. Half of them copy inputs to a device.
    pub fn new(machine: Machine, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let copies = rng.random_bool(0.5);
        let copy_max = if copies { Nanos(rng.random_range(1..=COPY_MAX)) } else { Nanos::ZERO };
        let load_max = Nanos::from_millis(LOADS_MAX_MS[rng.random_range(0..LOADS_MAX_MS.len())]);
        // Drawn apart, so that everything else is as it would be without.
        let short = caches::short(&mut StdRng::seed_from_u64(seed ^ 0x7368_6f72));
        let state = State {
            rng,
            order: CallOrder::default(),
            copy_max,
            prepared: BTreeMap::new(),
            submitted: VecDeque::new(),
            withdrawn: Vec::new(),
            running: None,
            free_at: Nanos::ZERO,
            events: VecDeque::new(),
            stalled_until: Nanos::ZERO,
            pace: 100,
            dead: false,
            added: BTreeMap::new(),
            load_max,
            loading: None,
            installed: BTreeSet::new(),
            left: BTreeMap::new(),
            short,
        };
        Self { machine, state: Rc::new(RefCell::new(state)) }
    }

    /// When something happens next, true time.
    pub fn ends_at(&self) -> Option<Nanos> {
        let state = self.state.borrow();
        if state.dead {
            return None;
        }
        if !state.events.is_empty() {
            return Some(Nanos::ZERO);
        }
        let execution = state.running.as_ref().map(|running| running.ends);
        let copies = state.withdrawn.iter().map(|near| near.from);
        let load = state.loading.iter().filter(|load| !load.has_rung).map(|load| load.until);
        execution.or_else(|| state.next_start()).into_iter().chain(copies).chain(load).min()
    }

    /// True once for each model that is loaded: its backend must be woken.
    pub(crate) fn rings(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let now = self.machine.now.get();
        let loading = state.loading.as_mut().filter(|load| !load.has_rung && load.until <= now);
        loading.map(|load| load.has_rung = true).is_some()
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

    /// The executor's thread ends. Its backend must be woken.
    pub fn die(&self) {
        self.state.borrow_mut().dead = true;
    }

    fn takes(&self, state: &mut State, job: &BatchJob, variant: u16) -> Nanos {
        let engines = &self.machine.engines;
        let profile = self.spec(state, job.model).profile_of(variant);
        let usual = profile.latency(job.inputs().len()).0;
        let extra = state.rng.random_range(0..=engines.jitter_percent);
        let takes = usual * (engines.percent + extra) / 100 * state.pace / 100;
        Nanos(takes.min(usual + self.machine.overrun_max.0))
    }

    fn spec<'a>(&'a self, state: &'a State, model: ModelId) -> &'a ModelSpec {
        state.added.get(&model).unwrap_or_else(|| &self.machine.models[model.0 as usize])
    }

    /// How long loading takes, and how it ends.
    fn course(
        &self,
        state: &mut State,
        loaded: Result<Loaded, EngineError>,
    ) -> (Nanos, Result<Loaded, EngineError>) {
        let weights = loaded.as_ref().ok().and_then(|loaded| loaded.spec.weights);
        let Some(weights) = weights else {
            let most = state.load_max.0;
            return (Nanos(state.rng.random_range(0..=most)), loaded);
        };
        let Course { takes, fails, hangs } = caches::course(&mut state.rng, weights.load);
        self.machine.ledger.borrow_mut().loads.hung |= hangs;
        if state.short > 0 && !state.installed.is_empty() {
            state.short -= 1;
            let (model, needs_bytes) = ("a LOAD".into(), weights.bytes);
            return (takes, Err(EngineError::Memory { model, needs_bytes, free_bytes: 0 }));
        }
        let failed = || EngineError::Table { model: "a LOAD".into(), problem: "simulated".into() };
        (takes, if fails { Err(failed()) } else { loaded })
    }

    /// True while it loads a model.
    pub(crate) fn is_loading(&self) -> bool {
        self.state.borrow().loading.is_some()
    }

    /// Marks what is rare about a LOAD.
    fn mark_load(&self, state: &State, order: &LoadOrder, spec: &ModelSpec) {
        let loads = &mut self.machine.ledger.borrow_mut().loads;
        let (left, now) = (state.left.get(&order.model), self.machine.now.get());
        loads.victim_again |= left.is_some_and(|&left| now - left < AT_ONCE);
        loads.added |= spec.weights.is_some() && matches!(order.source, ModelSource::Table { .. });
    }

    fn note(&self, state: &State, job: &BatchJob, started: Nanos) {
        let model = &self.spec(state, job.model).name;
        let Machine { host, ledger, network, .. } = &self.machine;
        let (inputs, mut ledger) = (job.inputs(), ledger.borrow_mut());
        for row in 0..inputs.len() {
            ledger.start(started, inputs.row(row), model, *host, network);
        }
    }

    /// Everything that happens by now.
    fn advance(&self, state: &mut State, now: Nanos) {
        for near in state.withdrawn.extract_if(.., |near| near.from <= now) {
            state.events.push_back(Event::Batch(near.job.end(BatchEnd::Withdrawn)));
        }
        loop {
            if let Some(running) = state.running.take_if(|running| running.ends <= now) {
                state.free_at = running.ends;
                state.events.push_back(Event::Batch(self.end(running)));
            }
            match state.next_start().filter(|&start| start <= now) {
                Some(start) if state.running.is_none() => self.start(state, start),
                _ => return,
            }
        }
    }

    /// The next batch starts, if it still may.
    fn start(&self, state: &mut State, started: Nanos) {
        let Some(Near { job, .. }) = state.submitted.pop_front() else { return };
        let Some(variant) = job.start_by.variant_at(self.machine.clock.at(started)) else {
            state.events.push_back(Event::Batch(job.end(BatchEnd::Expired)));
            return;
        };
        let needs_load = self.spec(state, job.model).weights.is_some();
        if needs_load && !state.installed.contains(&job.model) {
            self.machine
                .ledger
                .borrow_mut()
                .fail(format!("model {} executes where it is not", job.model.0));
        }
        self.note(state, &job, started);
        let ends = started + self.takes(state, &job, variant);
        let fails = state.rng.random_range(0..1000) < self.machine.engines.failures;
        state.running = Some(Running { job, variant, started, ends, fails });
    }

    fn end(&self, Running { mut job, variant, started, ends, fails }: Running) -> BatchBack {
        for row in 0..job.inputs().len() {
            let answer = answer_of(job.inputs().row(row), variant);
            write_answer(job.outputs.row_mut(row), answer);
        }
        let result = if fails { Err(failed(&job)) } else { Ok(()) };
        let clock = &self.machine.clock;
        let (started, finished) = (clock.at(started), clock.at(ends));
        job.end(BatchEnd::Executed { variant, started, finished, result })
    }
}

impl State {
    /// When the next batch starts if nothing executes.
    fn next_start(&self) -> Option<Nanos> {
        let next = self.submitted.front()?;
        Some(next.from.max(self.free_at).max(self.stalled_until))
    }

    fn alive(&mut self) -> Option<&mut Self> {
        (!self.dead).then_some(self)
    }

    /// What it had is lost.
    fn forget(&mut self) {
        self.running = None;
        self.submitted.clear();
        self.prepared.clear();
        self.withdrawn.clear();
        self.events.clear();
    }
}

impl Executor for SimGpu {
    fn prepare(&mut self, job: BatchJob) {
        let mut state = self.state.borrow_mut();
        let Some(state) = state.alive() else { return };
        state.order.prepare(job.slot);
        let takes = state.rng.random_range(0..=state.copy_max.0);
        let from = self.machine.now.get() + Nanos(takes);
        state.prepared.insert(job.slot, Near { job, from });
    }

    fn submit(&mut self, slot: usize) {
        let mut state = self.state.borrow_mut();
        let Some(state) = state.alive() else { return };
        state.order.submit(slot);
        let near = state.prepared.remove(&slot).expect("the order was checked");
        let now = self.machine.now.get();
        state.submitted.push_back(Near { from: near.from.max(now), ..near });
        self.advance(state, now);
    }

    fn withdraw(&mut self, slot: usize) {
        let mut state = self.state.borrow_mut();
        let Some(state) = state.alive() else { return };
        state.order.withdraw(slot);
        let near = state.prepared.remove(&slot).expect("the order was checked");
        state.withdrawn.push(near);
    }

    fn perform(&mut self, job: ModelJob) {
        let mut state = self.state.borrow_mut();
        let Some(state) = state.alive() else { return };
        state.order.perform();
        match job {
            ModelJob::Install(model) => drop(state.installed.insert(model)),
            ModelJob::Remove(model) => {
                state.added.remove(&model);
                state.installed.remove(&model);
                state.left.insert(model, self.machine.now.get());
            }
        }
        state.events.push_back(Event::Job);
    }

    fn poll(&mut self) -> Result<Option<Event>, ExecutorDied> {
        let mut state = self.state.borrow_mut();
        if state.dead {
            state.forget();
        }
        let state = state.alive().ok_or(ExecutorDied)?;
        self.advance(state, self.machine.now.get());
        let event = state.events.pop_front();
        event.iter().for_each(|event| state.order.event(event));
        Ok(event)
    }

    fn memory(&self) -> &dyn BatchMemory {
        &HostMemory
    }

    fn load_aside(&mut self, order: LoadOrder) {
        let mut state = self.state.borrow_mut();
        let loaded = order.describe().map(|spec| Loaded { spec, profiles: None });
        if let Ok(Loaded { spec, .. }) = &loaded {
            self.mark_load(&state, &order, spec);
            state.added.insert(spec.id, spec.clone());
        }
        let (takes, loaded) = self.course(&mut state, loaded);
        let until = self.machine.now.get() + takes;
        state.loading = Some(Loading { until, has_rung: false, loaded });
    }

    fn poll_loaded(&mut self) -> Option<Result<Loaded, EngineError>> {
        let mut state = self.state.borrow_mut();
        let now = self.machine.now.get();
        state.loading.take_if(|load| load.until <= now).map(|load| load.loaded)
    }

    fn replace_loader(&mut self) -> Result<(), ExecutorDied> {
        unreachable!("no copy of the swarm takes a minute");
    }

    fn discard(&mut self, _model: ModelId) {}
}

fn failed(job: &BatchJob) -> EngineError {
    let problem = String::from("simulated");
    EngineError::Execute { model: job.model, batch: job.inputs().len(), problem }
}

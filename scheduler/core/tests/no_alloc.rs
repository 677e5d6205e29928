//! After start-up the core never allocates: an allocator that aborts the process watches both state
//! machines through requests, grants, timers, reports, cancellations and slots that come and go.

use std::collections::VecDeque;

use assert_no_alloc::{AllocDisabler, assert_no_alloc};
use baton_core::{
    Batch, BatchShape, Candidate, Choice, Demand, FrontendId, Gpu, GpuId, GpuUpdate, Grant, Load,
    LoadDone, LoadLimits, LoadOutcome, LoadRule, LoadSink, LoadState, ModelConfig, ModelId,
    ModelSink, ModelState, Nanos, NetworkDelay, Policy, Prefer, Profile, RankLimits, RankSink,
    RankState, Readiness, Request, Slowdown, SplitMix64, SubclusterId, TaskId, Unserved, Variant,
    Variants, Weights,
};

#[global_allocator]
static ALLOCATOR: AllocDisabler = AllocDisabler;

const MODELS: u32 = 4;
const GPUS: u32 = 3;
const HERE: SubclusterId = SubclusterId(0);

#[derive(Clone, Copy)]
enum Said {
    Candidate(ModelId, Option<Candidate>, u32),
    Gpu(GpuUpdate),
    Grant(ModelId, Grant),
}

/// A batch on a slot.
#[derive(Clone, Copy)]
struct Running {
    gpu: Gpu,
    model: usize,
    tasks: u32,
    head: Request,
    ends_at: Nanos,
}

/// Room for everything, taken at start.
struct Sink {
    said: VecDeque<Said>,
    running: Vec<Running>,
    planned: u64,
    ended: u64,
}

impl Sink {
    fn say(&mut self, said: Said) {
        assert!(self.said.len() < self.said.capacity(), "the bound on messages per input holds");
        self.said.push_back(said);
    }
}

impl ModelSink for Sink {
    fn candidate(&mut self, model: ModelId, candidate: Option<Candidate>, grants: u32) {
        self.say(Said::Candidate(model, candidate, grants));
    }
    fn dispatch(&mut self, batch: &Batch<'_>) {
        let head = batch.requests().next().expect("a batch has a head");
        let (gpu, model, tasks) = (batch.grant.gpu, batch.model.0 as usize, batch.len());
        let ends_at = batch.exec_at + Nanos::from_millis(5 + u64::from(tasks));
        assert!(self.running.len() < self.running.capacity(), "two batches per slot at most");
        self.running.push(Running { gpu, model, tasks, head, ends_at });
        self.planned += u64::from(tasks);
    }
    fn gpu(&mut self, update: GpuUpdate) {
        self.say(Said::Gpu(update));
    }
    fn end_task(&mut self, _: TaskId, _: Unserved) {
        self.ended += 1;
    }
}

impl RankSink for Sink {
    fn grant(&mut self, model: ModelId, grant: Grant) {
        self.say(Said::Grant(model, grant));
    }
    fn drained(&mut self, _: Gpu) {}
}

struct Driver {
    models: Vec<ModelState>,
    rank: RankState,
    sink: Sink,
    now: Nanos,
    tasks: u32,
}

/// The last model is a supernet.
fn with_variants(id: u32, config: ModelConfig) -> ModelState {
    let line = |accuracy, alpha_ms| Variant {
        accuracy,
        profile: Profile::linear(Nanos::from_millis(alpha_ms), Nanos::from_millis(5), 16)
            .expect("a valid line"),
    };
    let variants = Variants::new(vec![line(70_000, 1), line(75_000, 2), line(80_000, 4)]);
    let state = ModelState::new(config);
    match id + 1 == MODELS {
        true => state.with_variants(&variants.expect("they rise"), Choice::QueueFit),
        false => state,
    }
}

impl Driver {
    fn new() -> Self {
        let config = |id: u32| ModelConfig {
            id: ModelId(id),
            profile: Profile::linear(Nanos::from_millis(1), Nanos::from_millis(5), 16)
                .expect("a valid line"),
            slo: Nanos::from_millis(30),
            queue_capacity: 32,
            policy: if id == 0 { Policy::Eager } else { Policy::Symphony },
            prefer: Prefer::default(),
            network: NetworkDelay::default(),
        };
        let limits = RankLimits { gpus: GPUS, subclusters: 1, copies: 0 };
        let (said, running) = (VecDeque::with_capacity(64), Vec::with_capacity(2 * GPUS as usize));
        Self {
            models: (0..MODELS).map(|id| with_variants(id, config(id))).collect(),
            rank: RankState::new(limits, &[HERE; MODELS as usize]),
            sink: Sink { said, running, planned: 0, ended: 0 },
            now: Nanos::from_millis(1),
            tasks: 0,
        }
    }

    /// One round of everything that happens while serving, 500 µs after the last.
    fn round(&mut self, round: u32) {
        self.now = self.now + Nanos::from_micros(500);
        self.request(round);
        if round.is_multiple_of(7) {
            let recent = TaskId::new(FrontendId(1), self.tasks - 1, 0);
            for model in &mut self.models {
                model.on_cancel(self.now, recent, &mut self.sink);
            }
        }
        if round.is_multiple_of(5_000) {
            self.models[1].on_frontend_lost(self.now, FrontendId(1), &mut self.sink);
        }
        self.settle();
        self.finish();
        self.fire();
        if round.is_multiple_of(3_000) {
            self.replace_slot(round / 3_000);
        }
    }

    /// Bursts now and then, so that queues fill up, heads are given up and tasks are refused.
    fn request(&mut self, round: u32) {
        let count = if round % 1_000 < 50 { 6 } else { 1 };
        for _ in 0..count {
            let model = (self.tasks % MODELS) as usize;
            let slo = Nanos::from_millis(6 + u64::from(self.tasks * 7 % 40));
            let task = TaskId::new(FrontendId(1), self.tasks, 0);
            let accuracy_min = if self.tasks.is_multiple_of(3) { 75_000 } else { 0 };
            let request = Request { accuracy_min, ..Request::new(task, self.now + slo) };
            self.models[model].on_request(self.now, request, &mut self.sink);
            self.tasks += 1;
            self.settle();
        }
    }

    fn settle(&mut self) {
        while let Some(said) = self.sink.said.pop_front() {
            match said {
                Said::Candidate(model, candidate, grants) => {
                    // The slot it comes through may show the same value twice.
                    self.rank.on_candidate(self.now, model, candidate, grants, &mut self.sink);
                    self.rank.on_candidate(self.now, model, candidate, grants, &mut self.sink);
                }
                Said::Gpu(update) => self.rank.on_gpu(self.now, update, &mut self.sink),
                Said::Grant(model, grant) => {
                    self.models[model.0 as usize].on_grant(self.now, grant, &mut self.sink);
                }
            }
        }
    }

    /// Reports what has ended; every fiftieth head comes back as if its backend had refused it.
    fn finish(&mut self) {
        while let Some(at) = self.sink.running.iter().position(|b| b.ends_at <= self.now) {
            let batch = self.sink.running.swap_remove(at);
            let model = &mut self.models[batch.model];
            let took = Nanos::from_millis(5 + u64::from(batch.tasks));
            let pace = model.on_measured(BatchShape::of(batch.tasks), took, Slowdown::NONE);
            if batch.head.task.slot().is_multiple_of(50) {
                let otherwise = Unserved::Dropped(baton_core::DropReason::Deadline);
                model.on_requeue(self.now, batch.head, otherwise, &mut self.sink);
            }
            let update =
                GpuUpdate::Finished { gpu: batch.gpu, at: batch.ends_at, pace, fetched_at: None };
            self.rank.on_gpu(self.now, update, &mut self.sink);
            self.settle();
        }
    }

    fn fire(&mut self) {
        for model in 0..MODELS as usize {
            self.models[model].on_timer(self.now, &mut self.sink);
            self.settle();
        }
        self.rank.on_timer(self.now, &mut self.sink);
        self.settle();
    }

    fn join(&mut self, id: u32, life: u32) {
        let gpu = Gpu { id: GpuId(id), life };
        self.rank.on_gpu_join(self.now, gpu, HERE, &mut self.sink);
        self.settle();
    }

    fn replace_slot(&mut self, life: u32) {
        let gpu = Gpu { id: GpuId(0), life };
        self.rank.on_gpu_drain(gpu, &mut self.sink);
        self.rank.on_gpu_leave(gpu);
        self.sink.running.retain(|batch| batch.gpu != gpu);
        self.join(0, life + 1);
    }
}

#[test]
fn serving_allocates_nothing() {
    let mut driver = Driver::new();
    assert_no_alloc(|| {
        (0..GPUS).for_each(|id| driver.join(id, 0));
        (0..20_000).for_each(|round| driver.round(round));
    });
    let (planned, ended) = (driver.sink.planned, driver.sink.ended);
    assert!(planned > 10_000 && ended > 1_000, "planned {planned}, ended {ended}");
    let rank = driver.rank.counters();
    assert!(rank.grants > 1_000 && rank.superseded > 0, "{rank:?}");
}

/// LOADs under way, in the order they were planned.
struct Loading(VecDeque<(ModelId, Gpu)>);

impl LoadSink for Loading {
    fn load(&mut self, load: &Load<'_>) {
        assert!(self.0.len() < self.0.capacity(), "two LOADs per slot at most");
        self.0.push_back((load.model, load.gpu));
    }
    fn readiness(&mut self, _model: ModelId, _readiness: Readiness) {}
}

/// Models want to be loaded, are, and leave for others; a slot comes back.
fn load_at_random(rule: LoadRule) -> u64 {
    const ALL: u32 = 60;
    let ms = Nanos::from_millis(1);
    let limits =
        LoadLimits { gpus: GPUS, copies: 2, residents: 20, rule, outstanding: ms.times(2) };
    let weights =
        [Weights { pages: 2, load: ms.times(5), is_guess: false, alone: ms }; ALL as usize];
    let mut state = LoadState::new(limits, &weights);
    let mut out = Loading(VecDeque::with_capacity(2 * GPUS as usize));
    let mut random = SplitMix64::new(5);
    assert_no_alloc(|| {
        let mut life = 0;
        for round in 0..20_000u64 {
            let (now, model) = (ms.times(round), ModelId(random.next_u64() as u32 % ALL));
            if round % 5_000 == 0 {
                for id in (0..GPUS).map(GpuId) {
                    state.on_gpu_leave(Gpu { id, life }, &mut out);
                    state.on_gpu_join(now, Gpu { id, life: life + 1 }, 30);
                }
                life += 1;
                out.0.clear();
            }
            state.on_tasks(now, model, 1);
            let demand = Demand { total: ms.times(round % 7), loadable: ms.times(round % 5) };
            state.on_demand(model, demand);
            state.on_candidate(now, model, (!round.is_multiple_of(3)).then(|| waits(now)));
            state.on_timer(now, &mut out);
            if let Some((model, gpu)) = out.0.pop_front() {
                let outcome = LoadOutcome::Loaded { took: ms.times(5) };
                state.on_load_done(now, LoadDone { model, gpu, outcome }, &mut out);
            }
        }
    });
    state.counters().loads
}

fn waits(now: Nanos) -> Candidate {
    let by = now + Nanos::from_millis(40);
    Candidate {
        batch: 3,
        exec_at: now,
        invalid_after: by,
        urgency: by,
        bad_rate: 0,
        delay: Nanos::ZERO,
        latest: by,
        latency: Nanos::from_millis(3),
        alone: Nanos::from_millis(3),
        slack: Nanos::ZERO,
        dispersion: 16,
        excess: Candidate::NOT_EARLY,
        run: 0,
    }
}

#[test]
fn loading_allocates_nothing() {
    for rule in [LoadRule::Clockwork, LoadRule::Baton] {
        let loads = load_at_random(rule);
        assert!(loads > 1_000, "{rule:?}: {loads}");
    }
}

//! A virtual-time driver for the core: real `ModelState`s, the real `RankState`, GPUs that take
//! exactly ℓ(b) unless told otherwise. Messages between the machines arrive at once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use baton_core::{
    Batch, Candidate, DropReason, FrontendId, Gpu, GpuId, GpuUpdate, Grant, ModelConfig, ModelId,
    ModelSink, ModelState, Nanos, NetworkDelay, Policy, Profile, RankLimits, RankSink, RankState,
    Request, SubclusterId, TaskId, Unserved,
};

/// Milliseconds, for readable scenarios.
pub fn ms(value: f64) -> Nanos {
    Nanos::from_millis_f64(value)
}

/// A model with ℓ(b) = α·b + β and no network delay.
pub fn linear(policy: Policy, alpha_ms: f64, beta_ms: f64, slo_ms: f64) -> ModelConfig {
    ModelConfig {
        id: ModelId(0),
        profile: Profile::linear(ms(alpha_ms), ms(beta_ms), 128).unwrap(),
        slo: ms(slo_ms),
        queue_capacity: 4096,
        policy,
        network: NetworkDelay::default(),
    }
}

/// How a task ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Completed { at: Nanos, batch: u32, gpu: u32 },
    Unserved(Unserved),
}

/// What a machine told another, in the order it was said.
enum Said {
    Candidate(ModelId, Option<Candidate>, u32),
    Gpu(GpuUpdate),
    Grant(ModelId, Grant),
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival { model: u32, task: u64, deadline: Nanos },
    Finish { gpu: u32, life: u32, model: u32, batch: u32, tasks: Vec<u64>, took: Nanos },
}

#[derive(Default)]
pub struct Outbox {
    said: VecDeque<Said>,
    plans: Vec<(Grant, Nanos, u32, Vec<Request>)>,
    pub ends: BTreeMap<u64, End>,
    pub drained: Vec<Gpu>,
}

impl ModelSink for Outbox {
    fn candidate(&mut self, model: ModelId, candidate: Option<Candidate>, grants: u32) {
        self.said.push_back(Said::Candidate(model, candidate, grants));
    }
    fn dispatch(&mut self, batch: &Batch<'_>) {
        assert!(!batch.is_empty());
        let requests: Vec<Request> = batch.requests().collect();
        assert!(requests.is_sorted_by_key(|r| r.deadline));
        self.plans.push((batch.grant, batch.exec_at, batch.model.0, requests));
    }
    fn gpu(&mut self, update: GpuUpdate) {
        self.said.push_back(Said::Gpu(update));
    }
    fn end_task(&mut self, task: TaskId, why: Unserved) {
        self.end(task.0, End::Unserved(why));
    }
}

impl RankSink for Outbox {
    fn grant(&mut self, model: ModelId, grant: Grant) {
        self.said.push_back(Said::Grant(model, grant));
    }
    fn drained(&mut self, gpu: Gpu) {
        self.drained.push(gpu);
    }
}

impl Outbox {
    fn end(&mut self, task: u64, end: End) {
        let before = self.ends.insert(task, end);
        assert!(before.is_none(), "task {task:x} ended twice: {before:?}, then {end:?}");
    }
}

pub struct World {
    pub now: Nanos,
    pub models: Vec<ModelState>,
    pub rank: RankState,
    pub out: Outbox,
    profiles: Vec<Profile>,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    sequence: u64,
    /// When each slot really becomes free.
    gpu_free_at: Vec<Nanos>,
    /// Execution time of a batch, given ℓ(b).
    pub execution: Box<dyn FnMut(Nanos) -> Nanos>,
    deadlines: BTreeMap<u64, Nanos>,
    pub batches: Vec<u32>,
    pub busy: Nanos,
}

impl World {
    /// All models in one sub-cluster of `gpus` slots.
    pub fn new(configs: Vec<ModelConfig>, gpus: u32) -> Self {
        let subclusters = vec![SubclusterId(0); configs.len()];
        let limits = RankLimits { gpus, subclusters: 1 };
        let mut world = Self {
            now: ms(1000.0),
            profiles: configs.iter().map(|c| c.profile.clone()).collect(),
            rank: RankState::new(limits, &subclusters),
            models: configs
                .into_iter()
                .enumerate()
                .map(|(i, c)| ModelState::new(ModelConfig { id: ModelId(i as u32), ..c }))
                .collect(),
            out: Outbox::default(),
            events: BinaryHeap::new(),
            sequence: 0,
            gpu_free_at: vec![Nanos::ZERO; gpus as usize],
            execution: Box::new(|latency| latency),
            deadlines: BTreeMap::new(),
            batches: Vec::new(),
            busy: Nanos::ZERO,
        };
        for id in 0..gpus {
            let gpu = Gpu { id: GpuId(id), life: 0 };
            world.rank.on_gpu_join(world.now, gpu, SubclusterId(0), &mut world.out);
        }
        world
    }

    /// Schedules a task's arrival `after_ms` from now; its deadline is `slo_ms` behind that.
    pub fn arrives(&mut self, model: u32, task: u64, after_ms: f64, slo_ms: f64) {
        let at = self.now + ms(after_ms);
        self.deadlines.insert(task, at + ms(slo_ms));
        self.push(at, Event::Arrival { model, task, deadline: at + ms(slo_ms) });
    }

    /// Runs until `span_ms` from now.
    pub fn run(&mut self, span_ms: f64) {
        let end = self.now + ms(span_ms);
        while let Some(at) = self.next_moment().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.step();
        }
        self.now = end;
    }

    /// Runs until nothing is left to do.
    pub fn run_out(&mut self) {
        while let Some(at) = self.next_moment() {
            self.now = self.now.max(at);
            self.step();
        }
        for (i, model) in self.models.iter().enumerate() {
            assert_eq!(model.waiting(), 0, "model {i} keeps tasks");
            let c = model.counters();
            assert_eq!(c.received + c.requeued, c.dispatched + c.ended);
        }
        assert_eq!(self.out.ends.len(), self.deadlines.len(), "conservation");
    }

    pub fn end_of(&self, task: u64) -> End {
        *self.out.ends.get(&task).unwrap_or_else(|| panic!("task {task} has not ended"))
    }

    /// Completed by the deadline.
    pub fn good(&self) -> usize {
        let good = |(task, end): (&u64, &End)| match end {
            End::Completed { at, .. } => *at <= self.deadlines[task],
            End::Unserved(_) => false,
        };
        self.out.ends.iter().filter(|&e| good(e)).count()
    }

    pub fn dropped(&self, why: DropReason) -> usize {
        let end = End::Unserved(Unserved::Dropped(why));
        self.out.ends.values().filter(|&&e| e == end).count()
    }

    pub fn mean_batch(&self) -> f64 {
        self.batches.iter().map(|&b| f64::from(b)).sum::<f64>() / self.batches.len() as f64
    }

    /// A backend with one slot dies now: what it executed is given back.
    pub fn kill_gpu(&mut self, id: u32, why: Unserved) {
        self.rank.on_gpu_leave(Gpu { id: GpuId(id), life: 0 });
        let mut kept = BinaryHeap::new();
        let mut lost = Vec::new();
        for Reverse((at, seq, event)) in self.events.drain() {
            match event {
                Event::Finish { gpu, model, tasks, .. } if gpu == id => lost.push((model, tasks)),
                event => kept.push(Reverse((at, seq, event))),
            }
        }
        self.events = kept;
        for (model, tasks) in lost {
            for task in tasks {
                let request = Request { task: TaskId(task), deadline: self.deadlines[&task] };
                self.models[model as usize].on_requeue(self.now, request, why, &mut self.out);
            }
        }
        self.settle();
    }

    pub fn cancel(&mut self, model: u32, task: u64) -> bool {
        let waits = self.models[model as usize].on_cancel(self.now, TaskId(task), &mut self.out);
        self.settle();
        waits
    }

    pub fn frontend_lost(&mut self, frontend: FrontendId) {
        for model in &mut self.models {
            model.on_frontend_lost(self.now, frontend, &mut self.out);
        }
        self.settle();
    }

    fn next_moment(&self) -> Option<Nanos> {
        let event = self.events.peek().map(|Reverse((at, ..))| *at);
        let timers = self.models.iter().filter_map(ModelState::next_timer);
        timers.chain(self.rank.next_timer()).chain(event).min()
    }

    fn step(&mut self) {
        while let Some(Reverse((at, _, _))) = self.events.peek() {
            if *at > self.now {
                break;
            }
            let Reverse((_, _, event)) = self.events.pop().unwrap();
            self.apply(event);
            self.settle();
        }
        for model in &mut self.models {
            model.on_timer(self.now, &mut self.out);
        }
        self.settle();
        self.rank.on_timer(self.now, &mut self.out);
        self.settle();
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Arrival { model, task, deadline } => {
                let request = Request { task: TaskId(task), deadline };
                self.models[model as usize].on_request(self.now, request, &mut self.out);
            }
            Event::Finish { gpu, life, model, batch, tasks, took } => {
                for task in tasks {
                    self.out.end(task, End::Completed { at: self.now, batch, gpu });
                }
                self.models[model as usize].on_measured(batch, took);
                let gpu = Gpu { id: GpuId(gpu), life };
                let update = GpuUpdate::Finished { gpu, at: self.now };
                self.rank.on_gpu(self.now, update, &mut self.out);
            }
        }
    }

    /// Delivers what the machines told each other until they fall silent.
    fn settle(&mut self) {
        loop {
            self.execute_plans();
            let Some(said) = self.out.said.pop_front() else { return };
            match said {
                Said::Candidate(m, c, grants) => {
                    self.rank.on_candidate(self.now, m, c, grants, &mut self.out);
                }
                Said::Gpu(update) => self.rank.on_gpu(self.now, update, &mut self.out),
                Said::Grant(m, grant) => {
                    self.models[m.0 as usize].on_grant(self.now, grant, &mut self.out);
                }
            }
        }
    }

    fn execute_plans(&mut self) {
        for (grant, exec_at, model, requests) in std::mem::take(&mut self.out.plans) {
            let batch = requests.len() as u32;
            let gpu = grant.gpu.id.0;
            let free_at = &mut self.gpu_free_at[gpu as usize];
            let start = exec_at.max(*free_at);
            let took = (self.execution)(self.profiles[model as usize].latency(batch));
            *free_at = start + took;
            self.busy = self.busy + took;
            self.batches.push(batch);
            let tasks = requests.iter().map(|r| r.task.0).collect();
            let life = grant.gpu.life;
            self.push(start + took, Event::Finish { gpu, life, model, batch, tasks, took });
        }
    }

    fn push(&mut self, at: Nanos, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }
}

/// A small seeded generator (SplitMix64), so that a printed seed replays a run anywhere.
pub struct Rng(pub u64);

impl Rng {
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Exponentially distributed with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

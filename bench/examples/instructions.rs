//! `instructions OPERATION COUNT`: does one operation of the scheduling core `COUNT` times and
//! nothing else worth counting. `bench/callgrind.sh` runs it under valgrind with two counts; the
//! difference is what the operation takes.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use baton_bench::sched::{Shape, Stepper};
use baton_core::{
    Batch, BatchShape, Candidate, DropReason, FrontendId, Gpu, GpuId, GpuUpdate, Grant,
    ModelConfig, ModelId, ModelSink, ModelState, Nanos, NetworkDelay, Pace, Policy, Prefer,
    Profile, RankLimits, RankSink, RankState, Request, SlotPart, Slowdown, SubclusterId, TaskId,
    Unserved,
};

const MODELS: u32 = 32;
const GPUS: u32 = 64;
const BATCH: u64 = 10;
const HERE: SubclusterId = SubclusterId(0);
const SLO: Nanos = Nanos::from_millis(100);
/// Between two requests of a model.
const GAP: Nanos = Nanos::from_micros(10);
const LATENCY: Nanos = Nanos::from_micros(100);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let operation = args.get(1).map(String::as_str).unwrap_or_default();
    let count = args.get(2).and_then(|count| count.parse().ok());
    let Some((run, count)) = operation_named(operation).zip(count) else {
        eprintln!(
            "usage: instructions request|burst|batch|candidate|grant|pass|pass1000|pass6 COUNT"
        );
        return ExitCode::from(2);
    };
    let mut bench = match operation {
        "pass1000" => Bench::new(1_000, 1),
        "pass6" => Bench::new(MODELS, 6),
        _ => Bench::new(MODELS, 1),
    };
    (0..count).for_each(|_| run(&mut bench));
    // The result must matter, or the compiler may leave the work out.
    std::hint::black_box(bench.sink.heard);
    ExitCode::SUCCESS
}

fn operation_named(name: &str) -> Option<fn(&mut Bench)> {
    Some(match name {
        "request" => Bench::request,
        "burst" => Bench::burst,
        "batch" => Bench::batch,
        "candidate" => Bench::candidate,
        "grant" => Bench::grant,
        "pass" | "pass1000" | "pass6" => Bench::pass,
        _ => return None,
    })
}

struct Bench {
    now: Nanos,
    made: u64,
    model: ModelState,
    rank: RankState,
    agents: Stepper,
    /// Per model, as RankState has counted them.
    grants: Vec<u32>,
    sink: Sink,
}

/// The last of everything it has heard.
#[derive(Default)]
struct Sink {
    heard: u64,
    candidate: Option<Candidate>,
    stamp: u32,
    grant: Option<(ModelId, Grant)>,
    update: Option<GpuUpdate>,
}

impl ModelSink for Sink {
    fn candidate(&mut self, _: ModelId, candidate: Option<Candidate>, grants: u32) {
        self.heard += 1;
        (self.candidate, self.stamp) = (candidate, grants);
    }
    fn dispatch(&mut self, batch: &Batch<'_>) {
        self.heard += u64::from(batch.len());
    }
    fn gpu(&mut self, update: GpuUpdate) {
        self.update = Some(update);
    }
    fn end_task(&mut self, _: TaskId, _: Unserved) {
        self.heard += 1;
    }
}

impl RankSink for Sink {
    fn grant(&mut self, model: ModelId, grant: Grant) {
        self.grant = Some((model, grant));
    }
    fn drained(&mut self, _: Gpu) {
        self.heard += 1;
    }
}

impl Bench {
    /// `models` on the stepped ModelThread, each with `variants` variants.
    fn new(models: u32, variants: u32) -> Self {
        let profile = Profile::linear(Nanos::from_micros(1), LATENCY, 32).expect("it is a line");
        let model = ModelState::new(ModelConfig {
            id: ModelId(0),
            profile,
            slo: SLO,
            queue_capacity: 1024,
            policy: Policy::default(),
            prefer: Prefer::default(),
            network: NetworkDelay::default(),
        });
        let limits = RankLimits { gpus: GPUS, subclusters: 1, copies: 0 };
        let rank = RankState::new(limits, &[HERE; MODELS as usize]);
        let grants = vec![0; MODELS as usize];
        let now = Nanos::from_millis(1_000);
        let shape = Shape {
            policy: Policy::Baton,
            model_threads: 1,
            models,
            gpus: GPUS,
            variants,
            seconds: 1.0,
            rate: None,
            seed: 1,
        };
        let agents = Stepper::new(shape).expect("the shape is within bounds");
        let mut bench = Self { now, made: 0, model, rank, agents, grants, sink: Sink::default() };
        (0..GPUS).for_each(|id| bench.rank.on_gpu_join(now, gpu(id), HERE, &mut bench.sink));
        bench
    }

    /// Per ten requests: each arrives by itself.
    fn request(&mut self) {
        for _ in 0..BATCH {
            let request = self.next_request();
            self.model.on_request(self.now, request, &mut self.sink);
        }
        self.model.drop_all(self.now, DropReason::Shutdown, &mut self.sink);
    }

    /// Per ten requests: they arrive together.
    fn burst(&mut self) {
        for _ in 0..BATCH {
            let request = self.next_request();
            self.model.enqueue(self.now, request, &mut self.sink);
        }
        self.model.reform(self.now, &mut self.sink);
        self.model.drop_all(self.now, DropReason::Shutdown, &mut self.sink);
    }

    /// Ten requests → candidate → grant → sealed batch → report.
    fn batch(&mut self) {
        for _ in 0..BATCH {
            let request = self.next_request();
            self.model.on_request(self.now, request, &mut self.sink);
        }
        let grant = Grant {
            gpu: gpu(0),
            free_at: self.now,
            port_wait: Nanos::ZERO,
            slowdown: Slowdown::NONE,
            slot_wait: Nanos::ZERO,
            longest: Nanos::MAX,
            spare: 1,
            part: SlotPart::NONE,
            is_short_of_slots: false,
            others_lose: false,
        };
        self.model.on_grant(self.now, grant, &mut self.sink);
        let _ = self.model.on_measured(BatchShape::of(BATCH as u32), LATENCY, Slowdown::NONE);
    }

    /// One candidate that replaces another and is not schedulable yet.
    fn candidate(&mut self) {
        let model = self.next_model();
        let later = self.now + Nanos::from_millis(1) + GAP.times(self.made * 7 % 64);
        self.offer(model, later);
    }

    /// One batch through RankState: candidate, grant, plan, report.
    fn grant(&mut self) {
        self.now = self.now + LATENCY;
        let model = self.next_model();
        self.offer(model, self.now);
        let (model, grant) = self.sink.grant.take().expect("a slot is idle");
        self.grants[model.0 as usize] += 1;
        let gpu = grant.gpu;
        let (start, latency, work) = (self.now, LATENCY, LATENCY);
        let planned = GpuUpdate::Planned { gpu, start, latency, work, fetched_at: None };
        self.rank.on_gpu(self.now, planned, &mut self.sink);
        self.offer(model, self.now + SLO);
        self.now = self.now + LATENCY;
        let (at, pace) = (self.now, Some(Pace::AS_PREDICTED));
        let finished = GpuUpdate::Finished { gpu, at, pace, fetched_at: None };
        self.rank.on_gpu(self.now, finished, &mut self.sink);
    }

    /// One pass of a ModelThread with 64 requests and of the RankThread, generator included.
    fn pass(&mut self) {
        self.agents.pass();
    }

    fn offer(&mut self, model: ModelId, exec_at: Nanos) {
        let (invalid_after, urgency) = (exec_at + SLO, exec_at);
        let candidate = Candidate {
            batch: BATCH as u32,
            exec_at,
            invalid_after,
            urgency,
            bad_rate: 0,
            delay: Nanos::ZERO,
            latest: exec_at,
            latency: LATENCY,
            alone: LATENCY,
            slack: SLO - LATENCY,
            dispersion: 16,
            excess: 4,
            run: 0,
        };
        let grants = self.grants[model.0 as usize];
        self.rank.on_candidate(self.now, model, Some(candidate), grants, &mut self.sink);
    }

    fn next_model(&mut self) -> ModelId {
        self.made += 1;
        ModelId((self.made * 13 % u64::from(MODELS)) as u32)
    }

    fn next_request(&mut self) -> Request {
        self.made += 1;
        self.now = self.now + GAP;
        let task = TaskId::new(FrontendId(0), self.made as u32, 0);
        Request::new(task, self.now + SLO)
    }
}

fn gpu(id: u32) -> Gpu {
    Gpu { id: GpuId(id), life: 0 }
}

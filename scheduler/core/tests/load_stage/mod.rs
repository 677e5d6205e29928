//! [`LoadState`] under the rule `baton`, step by step, and what it plans.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use baton_core::{
    Candidate, Gpu, GpuId, GpuUpdate, Load, LoadDone, LoadLimits, LoadOutcome, LoadReason,
    LoadRule, LoadSink, LoadState, ModelId, Nanos, Readiness, Weights,
};

pub const MS: Nanos = Nanos::from_millis(1);
pub const LOAD: Nanos = Nanos::from_millis(5);
/// Of 65536: a quarter of the tasks is lost.
pub const QUARTER: u32 = 1 << 14;

/// LOADs that were planned: slot, model, victims, reason.
#[derive(Default)]
pub struct Planned(pub Vec<(u32, u32, Vec<u32>, LoadReason)>);

impl LoadSink for Planned {
    fn load(&mut self, load: &Load<'_>) {
        let victims = load.victims.iter().map(|model| model.0).collect();
        self.0.push((load.gpu.id.0, load.model.0, victims, load.reason));
    }
    fn readiness(&mut self, _: ModelId, _: Readiness) {}
}

pub struct Stage {
    pub loads: LoadState,
    pub planned: Planned,
    pub now: Nanos,
}

pub fn gpu(slot: u32) -> Gpu {
    Gpu { id: GpuId(slot), life: 0 }
}

/// A batch whose execution must begin by then.
pub fn waiting(batch: u32, at: Nanos, bad_rate: u32) -> Candidate {
    Candidate {
        batch,
        exec_at: Nanos::ZERO,
        invalid_after: at,
        urgency: at,
        bad_rate,
        delay: Nanos::ZERO,
        latest: at,
        latency: MS,
        alone: MS,
        slack: Nanos::ZERO,
        dispersion: 16,
        excess: Candidate::NOT_EARLY,
        run: 0,
    }
}

impl Stage {
    /// Slots with these pages; each of eight models takes one.
    pub fn new(pages: &[u32]) -> Self {
        let (gpus, rule) = (pages.len() as u32, LoadRule::Baton);
        let limits = LoadLimits { gpus, copies: gpus, residents: 8, rule, outstanding: MS };
        let weights = [Weights { pages: 1, load: LOAD, is_guess: false, alone: MS }; 8];
        let mut loads = LoadState::new(limits, &weights);
        (0..)
            .zip(pages)
            .for_each(|(slot, &pages)| loads.on_gpu_join(Nanos::ZERO, gpu(slot), pages));
        Self { loads, planned: Planned::default(), now: MS }
    }

    pub fn place(&mut self, model: u32, slot: u32) {
        assert!(self.loads.place(self.now, ModelId(model), gpu(slot), &mut self.planned));
    }

    pub fn come(&mut self, model: u32, tasks: u32) {
        self.loads.on_tasks(self.now, ModelId(model), tasks);
    }

    /// A batch waits, and its execution must begin within the time.
    pub fn wait_for(&mut self, model: u32, batch: u32, within: Nanos, bad_rate: u32) {
        let candidate = waiting(batch, self.now + within, bad_rate);
        self.loads.on_candidate(self.now, ModelId(model), Some(candidate));
    }

    pub fn content(&mut self, model: u32) {
        self.loads.on_candidate(self.now, ModelId(model), None);
    }

    /// A batch of the model that takes so long.
    pub fn execute(&mut self, model: u32, slot: u32, latency: Nanos) {
        let (model, gpu, start) = (ModelId(model), gpu(slot), self.now);
        self.loads.on_granted(self.now, model, gpu);
        let update = GpuUpdate::Planned { gpu, start, latency, work: latency, fetched_at: None };
        self.loads.on_planned(self.now, model, update);
        self.loads.on_ended(self.now, model, gpu);
    }

    pub fn loaded(&mut self, model: u32, slot: u32) {
        self.loaded_in(LOAD, model, slot);
    }

    pub fn loaded_in(&mut self, took: Nanos, model: u32, slot: u32) {
        let outcome = LoadOutcome::Loaded { took };
        let done = LoadDone { model: ModelId(model), gpu: gpu(slot), outcome };
        assert!(self.loads.on_load_done(self.now, done, &mut self.planned));
    }

    /// What is planned now.
    pub fn plan(&mut self) -> Vec<(u32, u32, Vec<u32>, LoadReason)> {
        self.loads.on_timer(self.now, &mut self.planned);
        std::mem::take(&mut self.planned.0)
    }
}

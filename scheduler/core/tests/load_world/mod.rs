//! [`LoadState`] and the slots that it loads for, with a naive account of what each holds.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use std::collections::{BTreeMap, VecDeque};

use baton_core::{
    Candidate, Demand, Gpu, GpuId, GpuUpdate, Load, LoadCounters, LoadDone, LoadLimits,
    LoadOutcome, LoadReason, LoadRule, LoadSink, LoadState, ModelId, Nanos, Readiness, Weights,
};

pub const GPUS: u32 = 3;
pub const MODELS: u32 = 9;
pub const PAGES: u32 = 8;
pub const MS: Nanos = Nanos::from_millis(1);

#[derive(Clone, Debug)]
pub enum Step {
    /// Tasks of a model wait, and how long they can.
    Want(u32, u8),
    /// No task of a model waits.
    Content(u32),
    /// A slot that has a model is granted to it.
    Grant(u32),
    /// The first batch ends.
    End,
    /// The slot's first LOAD ends so.
    Done(u32, u8),
    Leave(u32),
    Join(u32),
    Wait(u8),
}

pub fn pages(model: u32) -> u32 {
    1 + model % 4
}

/// What one slot has, as its backend sees it.
#[derive(Default, Debug)]
pub struct Slot {
    life: u32,
    is_present: bool,
    /// Whether each model is there, or still being loaded.
    pub held: BTreeMap<u32, bool>,
    loading: VecDeque<u32>,
}

impl Slot {
    fn used(&self) -> u32 {
        self.held.keys().map(|&model| pages(model)).sum()
    }
}

#[derive(Default)]
pub struct Backends {
    pub now: Nanos,
    pub slots: Vec<Slot>,
    /// Model, slot and life of each batch.
    batches: VecDeque<(u32, Gpu)>,
    counts: LoadCounters,
    pub readiness: BTreeMap<u32, Readiness>,
}

impl LoadSink for Backends {
    fn load(&mut self, load: &Load<'_>) {
        let slot = &mut self.slots[load.gpu.id.0 as usize];
        assert!(
            slot.is_present && slot.life == load.gpu.life,
            "LOADs are for slots that are there"
        );
        assert!(load.earliest <= load.latest && load.earliest == self.now);
        for victim in load.victims {
            let is_executing =
                self.batches.iter().any(|&(model, gpu)| model == victim.0 && gpu == load.gpu);
            assert!(!is_executing, "a model with batches stays");
            assert_eq!(slot.held.remove(&victim.0), Some(true), "victims are there");
        }
        assert!(!slot.held.contains_key(&load.model.0), "nothing is loaded twice");
        let is_copy = matches!(load.reason, LoadReason::Busy | LoadReason::Losing);
        slot.held.insert(load.model.0, false);
        assert!(slot.used() <= PAGES, "the pages are enough");
        slot.loading.push_back(load.model.0);
        assert!(slot.loading.len() <= 2, "one copies, one waits");
        self.counts.loads += 1;
        self.counts.evicted += load.victims.len() as u64;
        self.counts.copied += u64::from(is_copy);
        let has_it = |slot: &&Slot| slot.held.contains_key(&load.model.0);
        let is_elsewhere = self.slots.iter().filter(has_it).count() > 1;
        assert!(is_elsewhere || !is_copy, "what is copied is elsewhere already");
    }

    fn readiness(&mut self, model: ModelId, readiness: Readiness) {
        self.readiness.insert(model.0, readiness);
    }
}

pub struct World {
    pub state: LoadState,
    pub out: Backends,
    rule: LoadRule,
}

impl World {
    pub fn new(rule: LoadRule, outstanding_ms: u64) -> Self {
        let limits = LoadLimits {
            gpus: GPUS,
            copies: 2,
            residents: PAGES,
            rule,
            outstanding: MS.times(outstanding_ms),
        };
        let of =
            |model| Weights { pages: pages(model), load: MS.times(5), is_guess: false, alone: MS };
        let weights: Vec<Weights> = (0..MODELS).map(of).collect();
        let slots = (0..GPUS).map(|_| Slot::default()).collect();
        let out = Backends { slots, now: MS, ..Backends::default() };
        Self { state: LoadState::new(limits, &weights), out, rule }
    }

    pub fn gpu(&self, slot: u32) -> Gpu {
        Gpu { id: GpuId(slot), life: self.out.slots[slot as usize].life }
    }

    pub fn step(&mut self, step: &Step) {
        match *step {
            Step::Want(model, ms) => self.want(model, Some(ms)),
            Step::Content(model) => self.want(model, None),
            Step::Grant(model) => self.grant(model),
            Step::End => self.end(),
            Step::Done(slot, how) => self.done(slot, how),
            Step::Leave(slot) => self.leave(slot),
            Step::Join(slot) => self.join(slot),
            Step::Wait(ms) => self.out.now = self.out.now + MS.times(ms.into()),
        }
        let now = self.out.now;
        self.state.on_timer(now, &mut self.out);
        self.check();
    }

    fn want(&mut self, model: u32, ms: Option<u8>) {
        let (now, id) = (self.out.now, ModelId(model));
        if ms.is_some() {
            self.state.on_tasks(now, id, 1);
        }
        match self.rule {
            LoadRule::Commanded => {
                for slot in 0..GPUS {
                    let gpu = self.gpu(slot);
                    let _is_loading = self.state.load(now, id, gpu, &mut self.out);
                }
            }
            LoadRule::Clockwork => {
                let span = ms.map_or(Nanos::ZERO, |ms| MS.times(ms.into()));
                self.state.on_demand(id, Demand { total: span, loadable: span });
            }
            LoadRule::Baton => {
                self.state.on_candidate(now, id, ms.map(|ms| candidate(now + MS.times(ms.into()))));
            }
        }
    }

    fn grant(&mut self, model: u32) {
        let Some(gpu) = self.state.resident_on(ModelId(model)).next() else { return };
        self.state.on_granted(self.out.now, ModelId(model), gpu);
        let planned = GpuUpdate::Planned {
            gpu,
            start: self.out.now,
            latency: MS,
            work: MS,
            fetched_at: None,
        };
        self.state.on_planned(self.out.now, ModelId(model), planned);
        self.out.batches.push_back((model, gpu));
    }

    fn end(&mut self) {
        if let Some((model, gpu)) = self.out.batches.pop_front() {
            self.state.on_ended(self.out.now, ModelId(model), gpu);
        }
    }

    fn done(&mut self, slot: u32, how: u8) {
        let gpu = self.gpu(slot);
        let Some(model) = self.out.slots[slot as usize].loading.pop_front() else { return };
        let outcome = match how {
            0 => LoadOutcome::Late,
            1 => LoadOutcome::Failed,
            2 => LoadOutcome::NoPages,
            how => LoadOutcome::Loaded { took: MS.times(how.into()) },
        };
        let Backends { slots, counts, .. } = &mut self.out;
        let held = &mut slots[slot as usize].held;
        if let LoadOutcome::Loaded { .. } = outcome {
            held.insert(model, true);
            counts.loaded += 1;
        } else {
            held.remove(&model);
            counts.late += u64::from(outcome == LoadOutcome::Late);
            counts.failed += u64::from(outcome != LoadOutcome::Late);
        }
        let done = LoadDone { model: ModelId(model), gpu, outcome };
        assert!(self.state.on_load_done(self.out.now, done, &mut self.out), "it was under way");
        assert!(!self.state.on_load_done(self.out.now, done, &mut self.out), "one report for each");
    }

    fn leave(&mut self, slot: u32) {
        let gpu = self.gpu(slot);
        let gone = &mut self.out.slots[slot as usize];
        if gone.is_present {
            (gone.is_present, gone.held, gone.loading) = (false, BTreeMap::new(), VecDeque::new());
            self.out.batches.retain(|&(_, other)| other != gpu);
            self.state.on_gpu_leave(gpu, &mut self.out);
            let late = LoadDone { model: ModelId(0), gpu, outcome: LoadOutcome::Failed };
            assert!(!self.state.on_load_done(self.out.now, late, &mut self.out));
        }
    }

    pub fn join(&mut self, slot: u32) {
        let joined = &mut self.out.slots[slot as usize];
        if !joined.is_present {
            (joined.is_present, joined.life) = (true, joined.life + 1);
            let gpu = self.gpu(slot);
            self.state.on_gpu_join(self.out.now, gpu, PAGES);
        }
    }

    fn check(&self) {
        for (id, slot) in (0..).map(GpuId).zip(&self.out.slots) {
            let gpu = Gpu { id, life: slot.life };
            if slot.is_present {
                assert_eq!(self.state.free_pages(id), PAGES - slot.used());
            }
            for model in 0..MODELS {
                let there = slot.held.get(&model) == Some(&true);
                assert_eq!(self.state.is_resident(ModelId(model), gpu), there);
            }
        }
        for (&model, &said) in &self.out.readiness {
            let now = self.state.readiness(ModelId(model));
            // When a LOAD ends follows the loader; whether there is one does not.
            assert_eq!(std::mem::discriminant(&said), std::mem::discriminant(&now), "{model}");
        }
        assert_eq!(self.state.counters(), self.out.counts);
    }
}

pub fn candidate(invalid_after: Nanos) -> Candidate {
    Candidate {
        batch: 2,
        exec_at: Nanos::ZERO,
        invalid_after,
        urgency: invalid_after,
        bad_rate: 0,
        delay: Nanos::ZERO,
        latest: invalid_after,
        latency: MS.times(2),
        alone: MS.times(2),
        slack: Nanos::ZERO,
        dispersion: 16,
        excess: Candidate::NOT_EARLY,
        run: 0,
    }
}

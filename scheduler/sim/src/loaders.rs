//! The simulated slots' memory and loaders: pages, what is resident, and one LOAD at a time on each slot beside its batches.
//!
//! This is what really is there, whatever the scheduler believes. It checks what must never happen ([`Loaders::broken`]).

use std::collections::{HashMap, VecDeque};

use baton_core::{IndexedHeap, Load, LoadOutcome, ModelId, Nanos};

use crate::random::{Concern, Stream};
use crate::scenario::Scenario;
use crate::weights::SlowLink;

/// The end of a LOAD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LoadEnd {
    pub(crate) gpu: u32,
    pub(crate) model: u32,
    pub(crate) outcome: LoadOutcome,
    /// How long it should have taken, and when it should have ended.
    pub(crate) planned: (Nanos, Nanos),
}

#[derive(Clone, Copy, Debug)]
struct Held {
    /// When its LOAD is done.
    from: Nanos,
    batches: u32,
}

#[derive(Debug)]
struct Slot {
    free: u32,
    held: HashMap<u32, Held>,
    /// LOADs with the moment at which they are reported.
    loading: VecDeque<(Nanos, LoadEnd)>,
    free_at: Nanos,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Loaders {
    pages: u32,
    slots: Vec<Slot>,
    /// Of each model: pages, and how long a LOAD really takes.
    models: Vec<(u32, Nanos)>,
    slow_link: Option<SlowLink>,
    /// Mean of what a LOAD takes beyond that.
    overrun: Nanos,
    overruns: Stream,
    /// On how many slots each model is.
    copies: Vec<u32>,
    ends: IndexedHeap<Nanos>,
    from: Nanos,
    until: Nanos,
    /// LOADs that ended well within the span that counts, and the time that loaders copied within it.
    pub(crate) loads: u64,
    pub(crate) busy: Nanos,
    broken: Option<String>,
}

impl Loaders {
    /// `None` if the scenario has no memory: every slot holds every model.
    pub(crate) fn new(scenario: &Scenario, seed: u64) -> Option<Self> {
        let memory = scenario.memory?;
        let slot = || Slot {
            free: memory.pages,
            held: HashMap::new(),
            loading: VecDeque::new(),
            free_at: Nanos::ZERO,
        };
        let real = |load: Nanos| Nanos((load.0 as f64 * memory.load_error) as u64);
        let of = |model| {
            let weights = memory.weights(model);
            (weights.pages, real(weights.load))
        };
        Some(Self {
            pages: memory.pages,
            slots: (0..scenario.gpus).map(|_| slot()).collect(),
            models: scenario.models.iter().map(of).collect(),
            slow_link: memory.slow_link,
            overrun: memory.load_overrun,
            overruns: Stream::new(seed, Concern::LoadOverrun),
            copies: vec![0; scenario.models.len()],
            ends: IndexedHeap::new(scenario.gpus as usize),
            from: scenario.warmup,
            until: scenario.end(),
            loads: 0,
            busy: Nanos::ZERO,
            broken: None,
        })
    }

    /// Whether some slot holds the model.
    pub(crate) fn is_anywhere(&self, model: u32) -> bool {
        self.copies[model as usize] > 0
    }

    /// The slot holds the model from the start.
    pub(crate) fn place(&mut self, gpu: u32, model: u32) {
        if self.take_pages(gpu, model, Nanos::ZERO) {
            self.copies[model as usize] += 1;
        } else {
            self.breaks(format!("slot {gpu} has no pages for model {model} at the start"));
        }
    }

    fn take_pages(&mut self, gpu: u32, model: u32, from: Nanos) -> bool {
        let (pages, _) = self.models[model as usize];
        let slot = &mut self.slots[gpu as usize];
        if slot.free < pages || slot.held.contains_key(&model) {
            return false;
        }
        slot.free -= pages;
        slot.held.insert(model, Held { from, batches: 0 });
        true
    }

    /// Begins a LOAD, or keeps it behind those before; the victims leave at once.
    pub(crate) fn begin(&mut self, now: Nanos, load: &Load<'_>) {
        let (gpu, ModelId(model)) = (load.gpu.id.0, load.model);
        load.victims.iter().for_each(|victim| self.unload(gpu, victim.0));
        let took = self.time(gpu, model);
        let start = self.slots[gpu as usize].free_at.max(now).max(load.earliest);
        let (end, outcome) = if start > load.latest {
            (start, LoadOutcome::Late)
        } else if !self.take_pages(gpu, model, start + took) {
            (start, LoadOutcome::NoPages)
        } else {
            self.busy = self.busy + ((start + took).min(self.until) - start.max(self.from));
            (start + took, LoadOutcome::Loaded { took })
        };
        let slot = &mut self.slots[gpu as usize];
        slot.free_at = end;
        if slot.loading.is_empty() {
            self.ends.set(gpu, end);
        }
        let planned = (load.latency, load.until);
        slot.loading.push_back((end, LoadEnd { gpu, model, outcome, planned }));
    }

    /// How long a LOAD of the model takes.
    fn time(&mut self, gpu: u32, model: u32) -> Nanos {
        let (_, mut time) = self.models[model as usize];
        if let Some(SlowLink { factor, .. }) = self.slow_link.filter(|link| link.gpu == gpu) {
            time = Nanos((time.0 as f64 * factor) as u64);
        }
        if self.overrun == Nanos::ZERO {
            return time;
        }
        time + Nanos((self.overrun.0 as f64 * self.overruns.exponential()) as u64)
    }

    /// When the slot has the model, if it has it or is loading it.
    pub(crate) fn ready_at(&self, gpu: u32, model: u32) -> Option<Nanos> {
        self.slots[gpu as usize].held.get(&model).map(|held| held.from)
    }

    fn unload(&mut self, gpu: u32, model: u32) {
        let (pages, _) = self.models[model as usize];
        let slot = &mut self.slots[gpu as usize];
        let is_loading = slot.loading.iter().any(|(_, load)| load.model == model);
        match slot.held.remove(&model) {
            Some(Held { batches: 0, .. }) if !is_loading => {
                slot.free += pages;
                self.copies[model as usize] -= 1;
            }
            other => self.breaks(format!("slot {gpu} unloads model {model}, which is {other:?}")),
        }
    }

    /// When the next LOAD is reported; [`Nanos::MAX`] while there is none.
    pub(crate) fn next_end(&self) -> Nanos {
        self.ends.peek().map_or(Nanos::MAX, |(at, _)| at)
    }

    /// The LOAD that is reported next.
    pub(crate) fn take_ended(&mut self) -> Option<LoadEnd> {
        let (at, gpu) = self.ends.peek()?;
        let slot = &mut self.slots[gpu as usize];
        let (_, load) = slot.loading.pop_front()?;
        match slot.loading.front() {
            Some(&(next, _)) => self.ends.set(gpu, next),
            None => drop(self.ends.remove(gpu)),
        }
        if let LoadOutcome::Loaded { .. } = load.outcome {
            self.copies[load.model as usize] += 1;
            self.loads += u64::from((self.from..self.until).contains(&at));
        }
        Some(load)
    }

    /// A batch of the model starts on the slot at `start`.
    pub(crate) fn begin_batch(&mut self, gpu: u32, model: u32, start: Nanos) {
        let held = self.slots[gpu as usize].held.get_mut(&model);
        match held.filter(|held| held.from <= start) {
            Some(held) => held.batches += 1,
            None => self.breaks(format!("slot {gpu} executes model {model}, which it lacks")),
        }
    }

    /// The batch has ended.
    pub(crate) fn end_batch(&mut self, gpu: u32, model: u32) {
        if let Some(held) = self.slots[gpu as usize].held.get_mut(&model) {
            held.batches = held.batches.saturating_sub(1);
        }
    }

    /// The slot's backend is gone, with what it held.
    pub(crate) fn lose(&mut self, now: Nanos, gpu: u32) {
        let slot = &mut self.slots[gpu as usize];
        let is_there = |model: u32| slot.loading.iter().all(|(_, load)| load.model != model);
        for &model in slot.held.keys().filter(|&&model| is_there(model)) {
            self.copies[model as usize] -= 1;
        }
        slot.held.clear();
        slot.loading.clear();
        (slot.free, slot.free_at) = (self.pages, now);
        self.ends.remove(gpu);
    }

    /// The first thing that must never happen, if it did.
    pub(crate) fn broken(&mut self) -> Option<String> {
        self.broken.take()
    }

    fn breaks(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }
}

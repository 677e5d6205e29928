//! LoadState through random walks, beside a naive account of what each slot holds. A walk that fails is shrunk, printed,
//! and kept in a file beside this one to be replayed first.

use std::collections::{BTreeMap, VecDeque};

use baton_core::{
    Candidate, Demand, Gpu, GpuId, GpuUpdate, Load, LoadDone, LoadLimits, LoadOutcome, LoadRule,
    LoadSink, LoadState, ModelId, Nanos, Readiness, Weights,
};
use proptest::prelude::*;

const GPUS: u32 = 3;
const MODELS: u32 = 9;
const PAGES: u32 = 8;
const MS: Nanos = Nanos::from_millis(1);

#[derive(Clone, Debug)]
enum Step {
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

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..MODELS, 0..60u8).prop_map(|(model, ms)| Step::Want(model, ms)),
        3 => (0..MODELS).prop_map(Step::Content),
        4 => (0..MODELS).prop_map(Step::Grant),
        4 => Just(Step::End),
        6 => (0..GPUS, 0..8u8).prop_map(|(slot, how)| Step::Done(slot, how)),
        1 => (0..GPUS).prop_map(Step::Leave),
        2 => (0..GPUS).prop_map(Step::Join),
        4 => (0..40u8).prop_map(Step::Wait),
    ]
}

fn pages(model: u32) -> u32 {
    1 + model % 4
}

/// What one slot has, as its backend sees it.
#[derive(Default, Debug)]
struct Slot {
    life: u32,
    is_present: bool,
    /// Whether each model is there, or still being loaded.
    held: BTreeMap<u32, bool>,
    loading: VecDeque<u32>,
}

impl Slot {
    fn used(&self) -> u32 {
        self.held.keys().map(|&model| pages(model)).sum()
    }
}

#[derive(Default)]
struct Backends {
    now: Nanos,
    slots: Vec<Slot>,
    /// Model, slot and life of each batch.
    batches: VecDeque<(u32, Gpu)>,
    /// LOADs, and models that left for them.
    counts: (u64, u64),
    readiness: BTreeMap<u32, Readiness>,
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
        slot.held.insert(load.model.0, false);
        assert!(slot.used() <= PAGES, "the pages are enough");
        slot.loading.push_back(load.model.0);
        assert!(slot.loading.len() <= 2, "one copies, one waits");
        self.counts = (self.counts.0 + 1, self.counts.1 + load.victims.len() as u64);
    }

    fn readiness(&mut self, model: ModelId, readiness: Readiness) {
        self.readiness.insert(model.0, readiness);
    }
}

struct World {
    state: LoadState,
    out: Backends,
    rule: LoadRule,
}

impl World {
    fn new(rule: LoadRule, outstanding_ms: u64) -> Self {
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

    fn gpu(&self, slot: u32) -> Gpu {
        Gpu { id: GpuId(slot), life: self.out.slots[slot as usize].life }
    }

    fn step(&mut self, step: &Step) {
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
                self.state.on_candidate(id, ms.map(|ms| candidate(now + MS.times(ms.into()))));
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
        let held = &mut self.out.slots[slot as usize].held;
        if let LoadOutcome::Loaded { .. } = outcome {
            held.insert(model, true);
        } else {
            held.remove(&model);
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

    fn join(&mut self, slot: u32) {
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
        let counters = self.state.counters();
        assert_eq!((counters.loads, counters.evicted), self.out.counts);
    }
}

fn candidate(invalid_after: Nanos) -> Candidate {
    Candidate {
        batch: 2,
        exec_at: Nanos::ZERO,
        invalid_after,
        urgency: invalid_after,
        bad_rate: 0,
        delay: Nanos::ZERO,
        latest: invalid_after,
        latency: MS.times(2),
        slack: Nanos::ZERO,
        dispersion: 16,
        excess: Candidate::NOT_EARLY,
        run: 0,
    }
}

fn rule() -> impl Strategy<Value = LoadRule> {
    prop_oneof![Just(LoadRule::Commanded), Just(LoadRule::Clockwork), Just(LoadRule::Baton)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn it_agrees_with_what_the_slots_hold(
        rule in rule(),
        outstanding_ms in 0..8u64,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(rule, outstanding_ms);
        (0..GPUS).for_each(|slot| world.join(slot));
        steps.iter().for_each(|step| world.step(step));
    }
}

#[test]
fn a_model_that_is_wanted_everywhere_is_loaded_and_the_least_wanted_leaves() {
    let mut world = World::new(LoadRule::Baton, 1);
    world.join(0);
    // Models 0, 4 and 8 take one page each, 3 and 7 four: the slot is full with 3 and 7.
    for model in [3, 7] {
        world.step(&Step::Want(model, 50));
        world.step(&Step::Done(0, 5));
        world.step(&Step::Content(model));
    }
    (0..9).for_each(|_| world.step(&Step::Want(3, 50)));
    world.step(&Step::Content(3));
    world.step(&Step::Want(0, 50));
    let held: Vec<u32> = world.out.slots[0].held.keys().copied().collect();
    assert_eq!(held, [0, 3], "7 had one task, 3 ten");
}

/// Its pages are free, its number is another model's, and nothing is loaded for the tasks it had.
#[test]
fn a_model_that_is_removed_leaves_nothing_to_the_next_with_its_number() {
    let mut world = World::new(LoadRule::Baton, 1);
    world.join(0);
    world.step(&Step::Want(3, 50));
    assert!(!world.state.forget(ModelId(3)), "its LOAD is under way");
    world.step(&Step::Done(0, 5));
    assert_eq!(world.state.free_pages(GpuId(0)), PAGES - pages(3));
    assert!(world.state.forget(ModelId(3)));
    world.out.slots[0].held.clear();
    // A model that is gone hears nothing.
    world.out.readiness.remove(&3);
    assert_eq!(world.state.free_pages(GpuId(0)), PAGES);
    world.step(&Step::Wait(1));
    assert!(world.out.slots[0].held.is_empty(), "nothing waits for it any more");

    let weights = Weights { pages: 1, load: MS.times(9), is_guess: false, alone: MS };
    world.state.serve(ModelId(3), weights, &mut world.out);
    assert_eq!(world.out.readiness[&3], Readiness::Cold { load: MS.times(9) });
    world.state.on_candidate(ModelId(3), Some(candidate(world.out.now + MS.times(50))));
    world.state.on_timer(world.out.now, &mut world.out);
    assert_eq!(world.state.free_pages(GpuId(0)), PAGES - 1, "as many as the new one takes");
}

#[test]
fn a_cold_model_that_is_removed_is_not_loaded() {
    let mut world = World::new(LoadRule::Baton, 1);
    world.state.on_candidate(ModelId(3), Some(candidate(world.out.now + MS.times(50))));
    world.state.on_tasks(world.out.now, ModelId(7), 5);
    assert!([3, 7].into_iter().all(|model| world.state.forget(ModelId(model))));
    world.join(0);
    world.step(&Step::Wait(1));
    assert!(world.out.slots[0].held.is_empty());
}

#[test]
fn the_only_copy_stays_while_tasks_wait_for_it() {
    let mut world = World::new(LoadRule::Baton, 1);
    world.join(0);
    for model in [3, 7] {
        world.step(&Step::Want(model, 50));
        world.step(&Step::Done(0, 5));
    }
    world.step(&Step::Want(0, 50));
    let held: Vec<u32> = world.out.slots[0].held.keys().copied().collect();
    assert_eq!(held, [3, 7]);
    world.step(&Step::Content(7));
    let held: Vec<u32> = world.out.slots[0].held.keys().copied().collect();
    assert_eq!(held, [0, 3], "the LOAD follows as soon as 7 may leave");
}

/// Five LOADs of 5 ms until 16 ms from now: three are in time, and those with tasks are chosen.
#[test]
fn no_load_is_spent_on_tasks_that_expire_meanwhile() {
    let mut world = World::new(LoadRule::Baton, 0);
    world.join(0);
    for model in [0, 4, 8, 1, 5] {
        world.state.on_candidate(
            ModelId(model),
            Some(Candidate { batch: model + 1, ..candidate(world.out.now + MS.times(16)) }),
        );
    }
    for _ in 0..5 {
        world.step(&Step::Done(0, 5));
        world.step(&Step::Wait(5));
    }
    let held: Vec<u32> = world.out.slots[0].held.keys().copied().collect();
    assert_eq!(held, [4, 5, 8], "of 0, 1, 4, 5 and 8 those with the most tasks");
}

/// Tasks that cannot wait for a LOAD are given up without a candidate: their model is loaded for the next ones, if it is worth
/// more than what leaves.
#[test]
fn a_model_whose_tasks_cannot_wait_for_a_load_is_loaded_for_the_next() {
    let mut world = World::new(LoadRule::Baton, 1);
    world.join(0);
    for model in [3, 7] {
        (0..3).for_each(|_| world.step(&Step::Want(model, 50)));
        world.step(&Step::Done(0, 5));
        world.step(&Step::Content(model));
    }
    let held = |world: &World| world.out.slots[0].held.keys().copied().collect::<Vec<u32>>();
    for tasks in 1..=4 {
        world.state.on_tasks(world.out.now, ModelId(0), 1);
        world.step(&Step::Wait(0));
        let expected: &[u32] = if tasks > 3 { &[0, 7] } else { &[3, 7] };
        assert_eq!(held(&world), expected, "{tasks} tasks, of 3 and 7 three each");
    }
}

/// In a tick of 100 ms a slot executes this much of each of its models.
fn execute(world: &mut World, slot: u32, of_models: &[(u32, u64)]) {
    let (gpu, now) = (world.gpu(slot), world.out.now);
    for &(model, ms) in of_models {
        let (model, latency) = (ModelId(model), MS.times(ms));
        world.state.on_granted(now, model, gpu);
        let planned =
            GpuUpdate::Planned { gpu, start: now, latency, work: latency, fetched_at: None };
        world.state.on_planned(now, model, planned);
        world.state.on_ended(now, model, gpu);
    }
    world.step(&Step::Wait(100));
}

/// Two slots; the first holds models 0 and 4, the second nothing.
fn uneven() -> World {
    let mut world = World::new(LoadRule::Baton, 1);
    world.join(0);
    for model in [0, 4] {
        world.step(&Step::Want(model, 50));
        world.step(&Step::Done(0, 5));
        world.step(&Step::Content(model));
    }
    world.join(1);
    world.step(&Step::Wait(0));
    world
}

fn held_by(world: &World, slot: usize) -> Vec<u32> {
    world.out.slots[slot].held.keys().copied().collect()
}

#[test]
fn a_slot_that_has_been_busy_for_a_second_shares_the_model_with_the_most_work() {
    let mut world = uneven();
    let mut ticks = 0;
    while held_by(&world, 1).is_empty() && ticks < 30 {
        (_, ticks) = (execute(&mut world, 0, &[(0, 40), (4, 60)]), ticks + 1);
    }
    assert_eq!((held_by(&world, 1), world.state.counters().copied), (vec![4], 1));
    assert!((12..=15).contains(&ticks), "a mean of 80 % over some 8 ticks: after {ticks}");
    world = uneven();
    (0..30).for_each(|_| execute(&mut world, 0, &[(0, 30), (4, 45)]));
    assert_eq!(held_by(&world, 1), [], "75 % is not busy");
}

#[test]
fn a_model_that_loses_tasks_gets_another_slot_that_has_time() {
    for (bad_rate, expected) in [(328, vec![]), (329, vec![0])] {
        let mut world = uneven();
        let losing = Candidate { bad_rate, ..candidate(world.out.now + MS.times(50)) };
        world.state.on_candidate(ModelId(0), Some(losing));
        (0..2).for_each(|_| execute(&mut world, 0, &[(4, 10)]));
        assert_eq!(held_by(&world, 1), expected, "{bad_rate} of 65536 are lost");
    }
}

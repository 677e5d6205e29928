//! When a slot's loader may get another LOAD: while those that it has take less than what may be outstanding, and it has
//! one at most.

use baton_core::{
    Demand, Gpu, GpuId, Load, LoadDone, LoadLimits, LoadOutcome, LoadRule, LoadSink, LoadState,
    ModelId, Nanos, Readiness, Weights,
};

const GPU: Gpu = Gpu { id: GpuId(0), life: 0 };
const LOAD: Nanos = Nanos::from_millis(20);
const OUTSTANDING: Nanos = Nanos::from_millis(8);
const START: Nanos = Nanos::from_millis(100);

/// When the last LOAD should have been made.
#[derive(Default)]
struct Until(Nanos);

impl LoadSink for Until {
    fn load(&mut self, load: &Load<'_>) {
        self.0 = load.until;
    }
    fn readiness(&mut self, _: ModelId, _: Readiness) {}
}

struct Stage {
    loads: LoadState,
    until: Until,
}

impl Stage {
    /// One slot, and three models that fit beside each other.
    fn new(outstanding: Nanos) -> Self {
        let rule = LoadRule::Commanded;
        let limits = LoadLimits { gpus: 1, copies: 1, residents: 3, rule, outstanding };
        let alone = Nanos::from_millis(5);
        let weights = [Weights { pages: 1, load: LOAD, is_guess: false, alone }; 3];
        let (mut loads, until) = (LoadState::new(limits, &weights), Until::default());
        loads.on_gpu_join(Nanos::ZERO, GPU, 3);
        Self { loads, until }
    }

    /// Plans a LOAD; when it should have been made, and when the loader is looked at again.
    fn load(&mut self, now: Nanos, model: u32) -> Option<(Nanos, Option<Nanos>)> {
        let is_planned = self.loads.load(now, ModelId(model), GPU, &mut self.until);
        self.loads.on_timer(now, &mut self.until);
        is_planned.then(|| (self.until.0, self.loads.next_timer()))
    }

    fn loaded(&mut self, now: Nanos, model: u32) -> Option<Nanos> {
        let outcome = LoadOutcome::Loaded { took: LOAD };
        let done = LoadDone { model: ModelId(model), gpu: GPU, outcome };
        assert!(self.loads.on_load_done(now, done, &mut self.until));
        self.loads.on_timer(now, &mut self.until);
        self.loads.next_timer()
    }
}

#[test]
fn a_loader_gets_its_next_load_when_less_than_the_bound_is_left() {
    let mut stage = Stage::new(OUTSTANDING);
    let first = START + LOAD;
    assert_eq!(stage.load(START, 0), Some((first, Some(first - OUTSTANDING + Nanos(1)))));
    let refill = first - OUTSTANDING + Nanos(1);
    let second = first + LOAD;
    assert_eq!(stage.load(refill, 1), Some((second, None)), "two at a time: a report opens it");
    assert_eq!(stage.load(refill, 2), None);
    assert_eq!(stage.loaded(first, 0), Some(second - OUTSTANDING + Nanos(1)));
}

#[test]
fn without_a_bound_a_loader_has_one_load_at_a_time() {
    let mut stage = Stage::new(Nanos::ZERO);
    assert_eq!(stage.load(START, 0), Some((START + LOAD, None)), "its report opens it");
    assert_eq!(stage.loaded(START + LOAD, 0), None);
    assert!(stage.load(START + LOAD, 1).is_some());
}

/// Models of LOADs, in order.
#[derive(Default)]
struct Models(Vec<u32>);

impl LoadSink for Models {
    fn load(&mut self, load: &Load<'_>) {
        self.0.push(load.model.0);
    }
    fn readiness(&mut self, _: ModelId, _: Readiness) {}
}

#[test]
fn by_priority_too_a_loader_gets_at_once_all_that_it_may_have() {
    let (rule, outstanding) = (LoadRule::Clockwork, LOAD.times(2));
    let limits = LoadLimits { gpus: 1, copies: 1, residents: 3, rule, outstanding };
    let weights = [Weights { pages: 1, load: LOAD, is_guess: false, alone: LOAD }; 3];
    let (mut loads, mut models) = (LoadState::new(limits, &weights), Models::default());
    loads.on_gpu_join(Nanos::ZERO, GPU, 3);
    for (model, ms) in [(0, 5), (1, 7), (2, 6)] {
        let total = Nanos::from_millis(ms);
        loads.on_demand(ModelId(model), Demand { total, loadable: total });
    }
    loads.on_timer(START, &mut models);
    assert_eq!(models.0, [1, 2]);
}

/// How long the last LOAD should take.
#[derive(Default)]
struct Latency(Nanos);

impl LoadSink for Latency {
    fn load(&mut self, load: &Load<'_>) {
        self.0 = load.latency;
    }
    fn readiness(&mut self, _: ModelId, _: Readiness) {}
}

#[test]
fn a_slow_link_is_planned_with_its_own_times_until_another_slot_has_its_number() {
    let limits = LoadLimits {
        gpus: 2,
        copies: 2,
        residents: 3,
        rule: LoadRule::Commanded,
        outstanding: Nanos::ZERO,
    };
    let alone = Nanos::from_millis(5);
    let weights = [Weights { pages: 1, load: LOAD, is_guess: false, alone }; 6];
    let (mut loads, mut planned) = (LoadState::new(limits, &weights), Latency::default());
    let fast = GPU;
    let (slow, next) = (Gpu { id: GpuId(1), life: 0 }, Gpu { id: GpuId(1), life: 1 });
    [fast, slow].into_iter().for_each(|gpu| loads.on_gpu_join(Nanos::ZERO, gpu, 3));
    let mut load = |loads: &mut LoadState, at: u64, gpu, took| {
        let (now, model) = (LOAD.times(10 * at), ModelId(at as u32 % 6));
        assert!(loads.load(now, model, gpu, &mut planned), "{at}");
        let (latency, outcome) = (planned.0, LoadOutcome::Loaded { took });
        let done = LoadDone { model, gpu, outcome };
        assert!(loads.on_load_done(now + took, done, &mut planned));
        latency
    };
    let mut last = [Nanos::ZERO; 2];
    for at in 0..100 {
        last = [load(&mut loads, at, fast, LOAD), load(&mut loads, at, slow, LOAD.times(3))];
    }
    assert!(last[0] < LOAD.times(2) && last[1] > LOAD.times(2), "{last:?}");
    loads.on_gpu_leave(slow, &mut Until::default());
    loads.on_gpu_join(LOAD.times(1_000), next, 3);
    let latencies = [fast, next].map(|gpu| load(&mut loads, 101, gpu, LOAD));
    assert!(latencies[1] < LOAD.times(2), "it is another slot: {latencies:?}");
}

#[derive(Default)]
struct Victims(Vec<u32>);

impl LoadSink for Victims {
    fn load(&mut self, load: &Load<'_>) {
        self.0.extend(load.victims.iter().map(|model| model.0));
    }
    fn readiness(&mut self, _: ModelId, _: Readiness) {}
}

/// Model 0 was loaded first, but tasks wait for it.
#[test]
fn what_tasks_wait_for_stays_longer_than_what_was_used_later() {
    for rule in [LoadRule::Commanded, LoadRule::Clockwork] {
        let limits = LoadLimits { gpus: 1, copies: 1, residents: 3, rule, outstanding: LOAD };
        let weights = [Weights { pages: 1, load: LOAD, is_guess: false, alone: LOAD }; 3];
        let (mut loads, mut out) = (LoadState::new(limits, &weights), Victims::default());
        loads.on_gpu_join(Nanos::ZERO, GPU, 2);
        for (at, total) in [(0, LOAD), (1, Nanos::ZERO)] {
            let model = ModelId(at);
            assert!(loads.place(Nanos(at.into()), model, GPU, &mut out));
            loads.on_demand(model, Demand { total, loadable: total });
        }
        assert!(loads.load(START, ModelId(2), GPU, &mut out));
        assert_eq!(out.0, [1], "{rule:?}");
    }
}

/// The copy that made it late is still to be reported.
#[test]
fn a_late_load_takes_none_of_the_time_that_was_planned_for_it() {
    let mut stage = Stage::new(OUTSTANDING);
    stage.load(START, 0).unwrap();
    let refill = START + LOAD - OUTSTANDING + Nanos(1);
    stage.load(refill, 1).unwrap();
    let late = refill + LOAD;
    let done = LoadDone { model: ModelId(1), gpu: GPU, outcome: LoadOutcome::Late };
    assert!(stage.loads.on_load_done(late, done, &mut stage.until));
    assert_eq!(stage.load(late, 2), Some((late + LOAD, None)));
}

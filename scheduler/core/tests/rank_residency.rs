//! RankState with models that may run only where they are resident, beside models that may run on every slot.
//!
//! Random candidates, answers, reports, slots that come and go, weights that are loaded and evicted; a failing case is shrunk,
//! printed, and kept in a file beside this one to be replayed first.

use baton_core::{
    Candidate, Gpu, GpuId, GpuUpdate, Grant, ModelId, Nanos, RankLimits, RankSink, RankState,
    SubclusterId,
};
use proptest::prelude::*;

const HERE: SubclusterId = SubclusterId(0);
const GPUS: usize = 4;
const MODELS: usize = 5;
const COPIES: u32 = 2;
const LONGEST: Nanos = Nanos(40);

#[derive(Clone, Debug)]
enum Op {
    Pass { span: u64 },
    Candidate { model: usize, exec_in: u64, window: u64, early: bool, delay: u64 },
    Withdraw { model: usize },
    Plan { latency: u64 },
    Return,
    Finish { gpu: usize },
    Load { model: usize, gpu: usize },
    Evict { model: usize, gpu: usize },
    Join { gpu: usize },
    Leave { gpu: usize },
    Drain { gpu: usize },
}

/// What happens whichever models are where. Batches need less than `delays` to get to a backend.
fn traffic(delays: u64) -> impl Strategy<Value = Op> {
    let candidate = (0..MODELS, 0..30u64, 0..200u64, prop::bool::weighted(0.3), 0..delays);
    prop_oneof![
        6 => (0..20u64).prop_map(|span| Op::Pass { span }),
        9 => candidate.prop_map(|(model, exec_in, window, early, delay)| {
            Op::Candidate { model, exec_in, window, early, delay }
        }),
        1 => (0..MODELS).prop_map(|model| Op::Withdraw { model }),
        7 => (1..LONGEST.0).prop_map(|latency| Op::Plan { latency }),
        1 => Just(Op::Return),
        6 => (0..GPUS).prop_map(|gpu| Op::Finish { gpu }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => traffic(1),
        3 => (0..MODELS, 0..GPUS).prop_map(|(model, gpu)| Op::Load { model, gpu }),
        1 => (0..MODELS, 0..GPUS).prop_map(|(model, gpu)| Op::Evict { model, gpu }),
        1 => (0..GPUS).prop_map(|gpu| Op::Join { gpu }),
        1 => (0..GPUS).prop_map(|gpu| Op::Leave { gpu }),
        1 => (0..GPUS).prop_map(|gpu| Op::Drain { gpu }),
    ]
}

#[derive(Default)]
struct Out {
    grants: Vec<(ModelId, Grant)>,
}

impl RankSink for Out {
    fn grant(&mut self, model: ModelId, grant: Grant) {
        self.grants.push((model, grant));
    }
    fn drained(&mut self, _: Gpu) {}
}

#[derive(Clone, Copy, Default)]
struct Slot {
    life: u32,
    is_open: bool,
    is_granted: bool,
    batches: usize,
    free_at: Nanos,
}

struct World {
    rank: RankState,
    /// The models from this one on may run only where they are resident.
    bound: usize,
    now: Nanos,
    /// Without a slot so far.
    candidates: [Option<Candidate>; MODELS],
    grants: [u32; MODELS],
    slots: [Slot; GPUS],
    /// Granted and not answered, oldest first.
    open: Vec<(ModelId, Grant)>,
    granted: u64,
    bad_rate: u32,
    /// No batch takes so long.
    longest: Nanos,
    /// Batches need so much longer to get to a backend than their candidates say.
    farther: u64,
}

impl World {
    /// Models hold weights on at most `copies` slots.
    fn new(bound: usize, copies: u32) -> Self {
        let limits = RankLimits { gpus: GPUS as u32, subclusters: 1, copies };
        let mut rank = RankState::new(limits, &[HERE; MODELS]);
        let models = (bound..MODELS).map(|model| ModelId(model as u32));
        models.for_each(|model| rank.serve_where_resident(model, HERE));
        let mut world = Self {
            rank,
            bound,
            now: Nanos(1_000),
            candidates: [None; MODELS],
            grants: [0; MODELS],
            slots: [Slot::default(); GPUS],
            open: Vec::new(),
            granted: 0,
            bad_rate: 0,
            longest: LONGEST,
            farther: 0,
        };
        (0..GPUS).for_each(|gpu| drop(world.apply(&Op::Join { gpu })));
        world
    }

    fn gpu(&self, id: usize) -> Gpu {
        Gpu { id: GpuId(id as u32), life: self.slots[id].life }
    }

    /// What was granted, by slot.
    fn apply(&mut self, op: &Op) -> Vec<(ModelId, Grant)> {
        let mut out = Out::default();
        match *op {
            Op::Pass { span } => return self.pass(self.now + Nanos(span)),
            Op::Candidate { model, exec_in, window, early, delay } => {
                let delay = delay + self.farther;
                let drawn = self.drawn(exec_in + delay, window, early);
                let candidate = Candidate { delay: Nanos(delay), ..drawn };
                self.candidate(model, Some(candidate), &mut out);
            }
            Op::Withdraw { model } => self.candidate(model, None, &mut out),
            Op::Plan { latency } => self.answer(Some(Nanos(latency)), &mut out),
            Op::Return => self.answer(None, &mut out),
            Op::Finish { gpu } => self.finish(gpu, &mut out),
            Op::Load { model, gpu } => {
                let gpu = self.gpu(gpu);
                let _ = self.rank.on_resident(self.now, ModelId(model as u32), gpu, &mut out);
            }
            Op::Evict { model, gpu } => {
                self.rank.on_evicted(ModelId(model as u32), self.gpu(gpu));
            }
            Op::Join { gpu } => {
                let life = self.slots[gpu].life + 1;
                self.slots[gpu] =
                    Slot { life, is_open: true, free_at: self.now, ..Slot::default() };
                self.rank.on_gpu_join(self.now, self.gpu(gpu), HERE, &mut out);
            }
            Op::Leave { gpu } => {
                self.slots[gpu].is_open = false;
                self.rank.on_gpu_leave(self.gpu(gpu));
            }
            Op::Drain { gpu } => {
                self.slots[gpu].is_open = false;
                self.rank.on_gpu_drain(self.gpu(gpu), &mut out);
            }
        }
        self.check(out.grants)
    }

    fn pass(&mut self, until: Nanos) -> Vec<(ModelId, Grant)> {
        let mut granted = Vec::new();
        while let Some(at) = self.rank.next_timer().filter(|&at| at <= until) {
            self.now = self.now.max(at);
            let mut out = Out::default();
            self.rank.on_timer(self.now, &mut out);
            granted.extend(self.check(out.grants));
        }
        self.now = until;
        granted
    }

    fn drawn(&self, exec_in: u64, window: u64, early: bool) -> Candidate {
        let exec_at = self.now + Nanos(exec_in);
        let (invalid_after, urgency) = (exec_at + Nanos(window), exec_at + Nanos(window / 2));
        Candidate {
            batch: 1,
            exec_at,
            invalid_after,
            urgency,
            bad_rate: self.bad_rate,
            delay: Nanos::ZERO,
            latest: exec_at,
            latency: Nanos(30),
            alone: Nanos(30),
            slack: Nanos::ZERO,
            dispersion: 16,
            excess: if early { 0 } else { Candidate::NOT_EARLY },
            run: 0,
        }
    }

    fn candidate(&mut self, model: usize, candidate: Option<Candidate>, out: &mut Out) {
        self.candidates[model] = candidate;
        let id = ModelId(model as u32);
        self.rank.on_candidate(self.now, id, candidate, self.grants[model], out);
    }

    fn answer(&mut self, latency: Option<Nanos>, out: &mut Out) {
        if self.open.is_empty() {
            return;
        }
        let (_, Grant { gpu, free_at, .. }) = self.open.remove(0);
        let start = self.now.max(free_at);
        let planned =
            |latency| GpuUpdate::Planned { gpu, start, latency, work: latency, fetched_at: None };
        let update = latency.map_or(GpuUpdate::Returned { gpu }, planned);
        let slot = &mut self.slots[gpu.id.0 as usize];
        if slot.life == gpu.life {
            slot.is_granted = false;
            slot.batches += usize::from(latency.is_some());
            slot.free_at = latency.map_or(slot.free_at, |latency| start + latency);
        }
        self.rank.on_gpu(self.now, update, out);
    }

    fn finish(&mut self, id: usize, out: &mut Out) {
        let (gpu, at) = (self.gpu(id), self.now);
        if self.slots[id].batches > 0 {
            self.slots[id].batches -= 1;
            self.rank.on_gpu(
                at,
                GpuUpdate::Finished { gpu, at, pace: None, fetched_at: None },
                out,
            );
        }
    }

    /// Whether the model's candidate waits for a slot, and could still start.
    fn is_ready(&self, model: usize) -> bool {
        self.candidates[model]
            .is_some_and(|c| c.due() <= self.now && self.now + c.delay <= c.invalid_after)
    }

    fn check(&mut self, mut granted: Vec<(ModelId, Grant)>) -> Vec<(ModelId, Grant)> {
        granted.sort_by_key(|(_, grant)| grant.gpu.id);
        let mut urgencies = Vec::new();
        for &(model, grant) in &granted {
            let (at, id) = (model.0 as usize, grant.gpu.id.0 as usize);
            assert!(self.rank.may_run(model, grant.gpu), "{model:?} on {grant:?}");
            let slot = &mut self.slots[id];
            assert!(slot.is_open && !slot.is_granted && slot.batches < 2, "{grant:?}");
            let was_idle = slot.batches == 0;
            slot.is_granted = true;
            self.grants[at] += 1;
            self.granted += 1;
            let candidate = self.candidates[at].take().expect("granted once");
            assert!(self.now + candidate.delay <= candidate.invalid_after);
            let is_early = candidate.due() > self.now;
            assert!(!is_early || was_idle, "{model:?} overtakes on a slot that is not idle");
            urgencies.extend((!is_early).then_some((at, candidate, grant.gpu)));
            self.open.push((model, grant));
        }
        self.no_model_was_passed_over(&urgencies);
        self.no_slot_idles_for_nothing();
        granted
    }

    /// No model that still waits was more urgent than one that got a slot on which it may run too, but for what a model with
    /// fewer slots waits longer: that is none that may run anywhere. One whose batches get there sooner asks for the slot later,
    /// and may find it taken.
    fn no_model_was_passed_over(&self, granted: &[(usize, Candidate, Gpu)]) {
        for model in (0..MODELS).filter(|&model| self.is_ready(model)) {
            let own = self.candidates[model].expect("it is ready");
            for &(other, Candidate { urgency, delay, .. }, gpu) in granted {
                let could = self.rank.may_run(ModelId(model as u32), gpu);
                let has_fewer = self.bound <= other || model < self.bound;
                let longer = if has_fewer { self.longest } else { Nanos::ZERO };
                let is_urgent = own.urgency + longer < urgency && own.delay >= delay;
                assert!(!(could && is_urgent), "model {model} was passed over for {gpu:?}");
            }
        }
    }

    fn no_slot_idles_for_nothing(&self) {
        for model in (0..MODELS).filter(|&model| self.is_ready(model)) {
            for id in 0..GPUS {
                let slot = self.slots[id];
                let is_idle = slot.is_open && !slot.is_granted && slot.batches == 0;
                let could = self.rank.may_run(ModelId(model as u32), self.gpu(id));
                assert!(!(is_idle && could), "slot {id} is idle, and model {model} waits for it");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Models 2 to 4 are bound.
    #[test]
    fn a_batch_runs_where_its_model_is_and_no_such_slot_idles(
        farther in 0..4_u64,
        ops in prop::collection::vec(op(), 1..200)
    ) {
        let mut world = World { farther, ..World::new(2, COPIES) };
        ops.iter().for_each(|op| drop(world.apply(op)));
        world.apply(&Op::Pass { span: 200 });
    }

    /// A model that is resident everywhere gets the same slots as one that is not bound.
    #[test]
    fn resident_on_every_slot_is_the_same_as_not_bound(
        ops in prop::collection::vec(traffic(4), 1..200)
    ) {
        let (mut free, mut bound) = (World::new(MODELS, 0), World::new(0, GPUS as u32));
        for (model, gpu) in (0..MODELS).flat_map(|model| (0..GPUS).map(move |gpu| (model, gpu))) {
            bound.apply(&Op::Load { model, gpu });
        }
        for op in ops.iter().chain([&Op::Pass { span: 200 }]) {
            prop_assert_eq!(free.apply(op), bound.apply(op));
            prop_assert_eq!(free.rank.counters(), bound.rank.counters());
        }
    }
}

#[test]
fn a_model_that_is_resident_nowhere_waits_for_its_weights() {
    let mut world = World::new(0, COPIES);
    world.apply(&Op::Candidate { model: 0, exec_in: 0, window: 30, early: false, delay: 0 });
    assert!(world.apply(&Op::Pass { span: 5 }).is_empty());
    let granted = world.apply(&Op::Load { model: 0, gpu: 2 });
    assert_eq!(granted[..].iter().map(|(_, grant)| grant.gpu.id.0).collect::<Vec<_>>(), [2]);
}

fn candidate(model: usize, exec_in: u64, window: u64) -> Op {
    Op::Candidate { model, exec_in, window, early: false, delay: 0 }
}

fn granted_after(world: &mut World, span: u64) -> Vec<(u32, u32)> {
    let granted = world.apply(&Op::Pass { span });
    granted.iter().map(|(model, grant)| (model.0, grant.gpu.id.0)).collect()
}

#[test]
fn slots_that_more_urgent_candidates_need_all_of_are_theirs() {
    let mut world = World::new(2, COPIES);
    let ops = [Op::Leave { gpu: 0 }, Op::Leave { gpu: 1 }, Op::Load { model: 3, gpu: 2 }];
    let candidates = [candidate(0, 23, 0), candidate(1, 23, 0), candidate(3, 23, 2)];
    ops.iter().chain(&candidates).for_each(|op| drop(world.apply(op)));
    assert_eq!(granted_after(&mut world, 23), [(0, 2), (1, 3)], "model 3 is the least urgent");
}

/// The more urgent one would take the slot with the lowest number, and another one is as good for it.
#[test]
fn a_slot_that_more_urgent_candidates_can_do_without_is_not_theirs() {
    let mut world = World::new(2, COPIES);
    let ops = [Op::Leave { gpu: 0 }, Op::Leave { gpu: 1 }, Op::Load { model: 3, gpu: 2 }];
    let candidates = [candidate(0, 23, 0), candidate(3, 23, 2)];
    ops.iter().chain(&candidates).for_each(|op| drop(world.apply(op)));
    assert_eq!(granted_after(&mut world, 23), [(3, 2), (0, 3)]);
}

#[test]
fn slots_that_are_free_at_the_same_moment_go_by_urgency() {
    let mut world = World::new(2, COPIES);
    let ops = [Op::Leave { gpu: 1 }, Op::Leave { gpu: 2 }, candidate(0, 0, 9), candidate(1, 0, 9)];
    ops.iter().for_each(|op| drop(world.apply(op)));
    granted_after(&mut world, 0);
    let ops = [
        Op::Plan { latency: 29 },
        Op::Plan { latency: 29 },
        Op::Load { model: 2, gpu: 0 },
        Op::Load { model: 3, gpu: 3 },
        candidate(2, 14, 22),
        candidate(3, 2, 27),
        candidate(0, 19, 10),
    ];
    ops.iter().for_each(|op| drop(world.apply(op)));
    assert_eq!(granted_after(&mut world, 29), [(0, 0), (3, 3)], "model 2 is the least urgent");
}

/// A slot is free for two models. One of them has another slot, and its batch must start `later` than the other's. Which gets the
/// slot.
fn first_of_two(bad_rate: u32, later: u64) -> u32 {
    let (length, window) = (2_000_000, 100_000_000);
    let mut world = World::new(0, COPIES);
    (world.bad_rate, world.longest) = (bad_rate, Nanos(length));
    // What the slot held in an earlier life counts for nothing.
    let gone = [Op::Load { model: 0, gpu: 3 }, Op::Leave { gpu: 3 }, Op::Join { gpu: 3 }];
    let loads = [(0, 0), (1, 0), (1, 1)].map(|(model, gpu)| Op::Load { model, gpu });
    loads.iter().chain(&gone).for_each(|op| drop(world.apply(op)));
    let batch = [candidate(1, 0, window), Op::Plan { latency: length }, Op::Pass { span: length }];
    for _ in 0..100 {
        batch.iter().for_each(|op| drop(world.apply(op)));
        (0..2).for_each(|gpu| drop(world.apply(&Op::Finish { gpu })));
    }
    let taken = [candidate(0, 0, window), candidate(1, 0, window)];
    let plans = [Op::Plan { latency: length }, Op::Plan { latency: 2 * length }];
    taken.iter().chain(&plans).for_each(|op| drop(world.apply(op)));
    world.apply(&candidate(1, 0, window));
    world.apply(&candidate(0, 0, window + 2 * later));
    granted_after(&mut world, length)[0].0
}

/// An execution takes 2 ms: one of two slots is free after 1 ms, and one of one after 2 ms.
#[test]
fn a_model_with_fewer_slots_claims_one_earlier() {
    assert_eq!(first_of_two(0, 900_000), 0);
    assert_eq!(first_of_two(0, 1_100_000), 1);
}

#[test]
fn a_model_with_fewer_slots_claims_one_no_earlier_while_tasks_are_lost() {
    let per_cent = 656;
    assert_eq!(first_of_two(per_cent / 4, 700_000), 0);
    assert_eq!(first_of_two(per_cent / 4, 800_000), 1);
    assert_eq!(first_of_two(per_cent, 10_000), 1);
}

#[test]
fn a_limited_number_of_slots_holds_a_model_and_those_that_are_gone_do_not_count() {
    let mut world = World::new(0, COPIES);
    let load = |world: &mut World, id| {
        let gpu = world.gpu(id);
        world.rank.on_resident(world.now, ModelId(0), gpu, &mut Out::default())
    };
    assert!(load(&mut world, 0) && load(&mut world, 1) && load(&mut world, 1), "one twice");
    assert!(!load(&mut world, 2), "two slots already hold it");
    world.apply(&Op::Leave { gpu: 0 });
    assert!(!load(&mut world, 0), "it is gone");
    assert!(load(&mut world, 2));
    world.apply(&Op::Join { gpu: 0 });
    assert!(!world.rank.may_run(ModelId(0), world.gpu(0)), "its next life begins without weights");
    world.rank.on_evicted(ModelId(0), world.gpu(1));
    assert!(load(&mut world, 0));
}

#[test]
fn a_model_that_is_forgotten_leaves_nothing_behind() {
    let mut world = World::new(0, COPIES);
    world.apply(&Op::Load { model: 0, gpu: 0 });
    assert_eq!(world.rank.forget(ModelId(0)), 0);
    assert!(world.rank.may_run(ModelId(0), world.gpu(1)), "the next one is not bound");
    world.rank.serve_where_resident(ModelId(0), HERE);
    assert!(!world.rank.may_run(ModelId(0), world.gpu(0)));
}

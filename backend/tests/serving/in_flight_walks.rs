//! Random walks through everything that can happen to the batches of one GPU slot, whose memory holds one of two models. The executor checks each call against its
//! protocol; at the end each action has been reported once, and each task has one outcome or is the scheduler's again.

use std::collections::BTreeMap;

use baton_types::{ModelId, Nanos, SplitMix64, TaskId};

use crate::party::Said;
use crate::world::{
    ActionSpec, ENGINE_ERROR, EXECUTED, EXPIRED, FrontendSide, MODEL, PAGES, REFUSED, SMALL, World,
};

const WALKS: u64 = 20;
const STEPS: usize = 400;

struct Walk {
    rng: SplitMix64,
    world: World,
    frontends: Vec<FrontendSide>,
    /// Tasks of actions that are not reported, and of those that are.
    batches: BTreeMap<u64, Vec<TaskId>>,
    loads: Vec<u64>,
    loaded: BTreeMap<u64, u8>,
    reports: BTreeMap<u64, (u16, u8)>,
    /// How often a frontend heard each task's end.
    told: BTreeMap<u64, u32>,
}

impl Walk {
    fn new(seed: u64) -> Self {
        let mut world = World::cached([2, 1]);
        let frontends = [1, 2].map(|id| world.connected_frontend(id)).into();
        let mut rng = SplitMix64::new(seed);
        if rng.below(2) == 0 {
            world.hands[0].copies_take_time();
        }
        let (batches, reports, told) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (loads, loaded) = (Vec::new(), BTreeMap::new());
        Self { rng, world, frontends, batches, loads, loaded, reports, told }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    fn window(&mut self) -> ActionSpec {
        let exec_in = Nanos(self.below(800_000));
        let invalid_in = exec_in + Nanos(self.below(1_500_000));
        ActionSpec { exec_in, invalid_in, ..ActionSpec::default() }
    }

    /// A batch of whatever both frontends have room for.
    fn infer(&mut self) {
        let spec = self.window();
        let wanted = 1 + self.below(4);
        let mut tasks = Vec::new();
        for _ in 0..wanted {
            let byte = self.below(256) as u8;
            let at = self.below(2) as usize;
            // A frontend has eight tasks at once.
            if let Ok(mut input) = self.frontends[at].slabs.acquire(ModelId(MODEL)) {
                input.fill(byte);
                tasks.push(input.submit());
            }
        }
        if !tasks.is_empty() {
            let batch = self.world.infer(&spec, &tasks);
            self.batches.insert(batch, tasks);
        }
    }

    /// Whatever the slot holds leaves, if it may: a sender would spare what has batches.
    fn load(&mut self) {
        // The other model comes seldom, so that this one is there for most of the time.
        let other = self.below(4) == 0;
        let (model, victim) = if other { (SMALL, MODEL) } else { (MODEL, SMALL) };
        let load = self.world.load(model, &[victim]);
        self.loads.push(load);
    }

    /// The executor gets on with what it has.
    fn execute(&mut self) {
        let (hand, now) = (self.world.hands[0].clone(), self.world.now);
        let fate = self.below(8);
        if hand.aside().is_some() && self.below(2) == 0 {
            match fate {
                0 => hand.fail_aside(),
                _ => hand.finish_aside(),
            }
        } else if hand.other().is_some() {
            hand.finish_other();
        } else if hand.batch().is_some() {
            match fate {
                0 => hand.fail(now, now),
                1 => hand.finish_without(&[0], now, now),
                _ => hand.finish(now, now),
            }
        }
    }

    fn step(&mut self) {
        match self.below(16) {
            0..3 => self.infer(),
            3 => self.load(),
            4..8 => self.execute(),
            8 => drop(self.world.hands[0].finish_copies()),
            9 => self.world.pass(Nanos(400_000)),
            // Long enough for any window to close.
            10 if self.below(4) == 0 => self.world.pass(Nanos(3_500_000)),
            _ => {}
        }
        self.settle();
    }

    fn settle(&mut self) {
        self.world.step();
        for frontend in &mut self.frontends {
            frontend.party.poll(self.world.now);
        }
        let (loads, reports): (Vec<Said>, Vec<Said>) = self
            .world
            .thread
            .take()
            .into_iter()
            .partition(|said| matches!(said, Said::Loaded { .. }));
        for said in loads {
            let Said::Loaded { load, status, pages_free, .. } = said else { unreachable!() };
            assert!(pages_free <= PAGES, "{pages_free} pages free");
            let before = self.loaded.insert(load, status);
            assert_eq!(before, None, "LOAD {load} was reported twice");
        }
        for (batch, rows, status) in reports.iter().map(done) {
            let before = self.reports.insert(batch, (rows, status));
            assert_eq!(before, None, "action {batch} was reported twice");
            self.check(batch, status);
        }
    }

    /// What a report says of its tasks is so: answers leave before it.
    fn check(&mut self, batch: u64, status: u8) {
        for frontend in &mut self.frontends {
            for said in frontend.party.take() {
                let (Said::Result { task, .. } | Said::End { task, .. }) = said else { continue };
                *self.told.entry(task).or_default() += 1;
            }
        }
        let is_told = match status {
            EXECUTED | ENGINE_ERROR => 1,
            EXPIRED | REFUSED => 0,
            other => panic!("status {other}"),
        };
        for task in self.batches.get(&batch).into_iter().flatten() {
            let told = self.told.get(&task.0).copied().unwrap_or(0);
            assert_eq!(told, is_told, "{task:?} of action {batch}, which ended with {status}");
            self.frontends[usize::from(task.frontend().0) - 1].answer(*task);
        }
    }

    /// Everything that was begun ends.
    fn end(&mut self) {
        for _ in 0..400 {
            self.execute();
            self.world.hands[0].finish_copies();
            self.world.pass(Nanos(10_000));
            self.settle();
        }
        let actions = self.batches.keys().filter(|action| !self.reports.contains_key(action));
        let loads = self.loads.iter().filter(|load| !self.loaded.contains_key(load));
        let lost: Vec<&u64> = actions.chain(loads).collect();
        assert!(lost.is_empty(), "never reported: {lost:?}");
        assert!(!self.world.hands[0].is_copying());
    }
}

fn done(said: &Said) -> (u64, u16, u8) {
    let &Said::Done { batch, rows, status, .. } = said else {
        panic!("a backend only reports to ModelThreads: {said:?}")
    };
    (batch, rows, status)
}

#[test]
fn whatever_happens_each_action_is_reported_once_and_its_tasks_end_or_are_given_back() {
    let one = std::env::var("BATON_WALK").ok().map(|seed| seed.parse().unwrap());
    let (mut behind, mut expired, mut loads, mut unloads) = (0, 0, 0, 0);
    for seed in one.map_or(0..WALKS, |seed: u64| seed..seed + 1) {
        eprintln!(
            "walk {seed}; alone: BATON_WALK={seed} cargo test -p baton-backend in_flight_walks"
        );
        let mut walk = Walk::new(seed);
        (0..STEPS).for_each(|_| walk.step());
        walk.end();
        behind += walk.world.counter("batches_behind");
        loads += walk.world.counter("loads");
        unloads += walk.world.counter("unloads");
        expired += walk.world.counter("batches_expired");
    }
    eprintln!("{behind} behind, {expired} expired, {loads} LOADs, {unloads} UNLOADs");
    assert!(one.is_some() || (loads > 50 && unloads > 50), "{loads} LOADs, {unloads} UNLOADs");
    assert!(one.is_some() || (behind > 50 && expired > 10), "{behind} behind, {expired} expired");
}

//! The pipeline over the simulated driver: random walks, an error at every call, and figures in virtual time.
//!
//! `BATON_CUDA_SEEDS=20000 cargo nextest run -p baton-cuda --test pipeline` walks longer; `BATON_CUDA_SEED` names one walk.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod sim;

use std::collections::VecDeque;

use baton_cuda::{Back, CudaError, End, HostSource, Job, Pipeline, Room};
use baton_types::{Nanos, SplitMix64};
use sim::{Place, SimDriver};

const SLOTS: usize = 4;
const ROWS_MAX: u32 = 16;
const STRIDE: u32 = 150_528;
/// What a GPU slot's I/O thread submits at most.
const SUBMITTED_MAX: usize = 2;
const STEPS: usize = 120;

#[derive(Debug)]
struct Batch {
    /// In its rows, and in the right answers.
    tag: u64,
    address: usize,
    lens: Vec<u32>,
    start_by: Nanos,
    answers: Vec<u64>,
}

impl Job for Batch {
    fn rows(&self) -> HostSource {
        HostSource::Registered(self.address)
    }
    fn stride(&self) -> u32 {
        STRIDE
    }
    fn lens(&self) -> &[u32] {
        &self.lens
    }
    fn start_by(&self) -> Nanos {
        self.start_by
    }
    fn answer(&mut self, row: u32, answer: [u8; 8]) {
        assert_eq!(self.answers.len(), row as usize);
        self.answers.push(u64::from_le_bytes(answer));
    }
}

fn room() -> Room {
    Room { row_bytes: (STRIDE * ROWS_MAX) as usize, rows: ROWS_MAX }
}

/// A pipeline as an executor's thread uses it, and what it owes.
struct Walk {
    driver: SimDriver,
    pipeline: Pipeline<SimDriver, Batch>,
    random: SplitMix64,
    /// By batch slot: the tag of a batch that was prepared and neither submitted nor withdrawn.
    prepared: [Option<u64>; SLOTS],
    submitted: VecDeque<usize>,
    withdrawn: Vec<usize>,
    tags: u64,
    executed: u32,
    failed: u32,
}

impl Walk {
    fn new(seed: u64, fail: Option<(u64, i32)>) -> Result<Self, CudaError> {
        let driver = SimDriver::default();
        driver.world().fail = fail;
        let mut pipeline = Pipeline::new(driver.clone(), SLOTS)?;
        pipeline.reserve(room())?;
        let random = SplitMix64::new(seed);
        let (prepared, submitted, withdrawn) = ([None; SLOTS], VecDeque::new(), Vec::new());
        let (tags, executed, failed) = (0, 0, 0);
        Ok(Self {
            driver,
            pipeline,
            random,
            prepared,
            submitted,
            withdrawn,
            tags,
            executed,
            failed,
        })
    }

    fn now(&self) -> Nanos {
        Nanos(self.driver.look().now)
    }

    fn free_slot(&self) -> Option<usize> {
        (0..SLOTS).find(|slot| {
            let is_out = self.submitted.contains(slot) || self.withdrawn.contains(slot);
            self.prepared[*slot].is_none() && !is_out
        })
    }

    /// Rows land, and the batch is prepared.
    fn prepare(&mut self, slot: usize, rows: u32, time: Nanos, start_by: Nanos) {
        self.tags += 1;
        let (tag, address) = (self.tags, 0x1000 * (slot + 1));
        self.driver.world().host_write(Place::Rows(address), tag.to_le_bytes().to_vec());
        let lens = vec![STRIDE; rows as usize];
        let batch = Batch { tag, address, lens, start_by, answers: Vec::new() };
        self.pipeline.prepare(slot, batch, time);
        self.prepared[slot] = Some(tag);
    }

    fn submit(&mut self, slot: usize) {
        self.prepared[slot] = None;
        self.submitted.push_back(slot);
        self.pipeline.submit(slot, self.now());
    }

    fn step(&mut self) {
        let (rows, time) = (1 + self.random.below(16) as u32, 50_000 + self.random.below(500_000));
        let start_by = self.now() + Nanos(self.random.below(1_500_000));
        let prepared = self.prepared.iter().position(Option::is_some);
        match (self.random.below(8), self.free_slot(), prepared) {
            (0..=2, Some(slot), _) => self.prepare(slot, rows, Nanos(time), start_by),
            (3..=4, _, Some(slot)) if self.submitted.len() < SUBMITTED_MAX => self.submit(slot),
            (5, _, Some(slot)) if self.random.below(3) == 0 => {
                self.prepared[slot] = None;
                self.withdrawn.push(slot);
                self.pipeline.withdraw(slot);
            }
            _ => {
                let ns = self.random.below(200_000);
                self.driver.world().advance(ns);
            }
        }
        self.poll();
    }

    fn poll(&mut self) {
        while let Some(back) = self.pipeline.poll(self.now()) {
            self.check(&back);
            // As a backend does: the next inputs land in the same rows.
            let place = Place::Rows(back.job.address);
            self.driver.world().host_write(place, vec![0; 8]);
        }
    }

    fn check(&mut self, back: &Back<Batch>) {
        if back.end == End::Withdrawn {
            let at = self.withdrawn.iter().position(|&slot| slot == back.slot);
            self.withdrawn.remove(at.expect("it was withdrawn"));
            return;
        }
        assert_eq!(self.submitted.pop_front(), Some(back.slot), "as they were submitted");
        match &back.end {
            End::Executed { started, finished, times } => {
                self.executed += 1;
                assert_eq!(
                    back.job.answers,
                    vec![back.job.tag; back.job.lens.len()],
                    "its own answers"
                );
                assert!(*started <= *finished && *finished <= self.now());
                assert!(times.execution > Nanos::ZERO && times.copy_in > Nanos::ZERO);
            }
            End::Expired => assert!(self.now() > back.job.start_by),
            End::Failed(problem) => {
                self.failed += 1;
                assert!(back.job.answers.is_empty() && !problem.is_empty());
            }
            End::Withdrawn => {}
        }
    }

    /// Everything that is under way comes back.
    fn end(&mut self) {
        for slot in 0..SLOTS {
            if self.prepared[slot].take().is_some() {
                self.withdrawn.push(slot);
                self.pipeline.withdraw(slot);
            }
        }
        for _ in 0..10_000 {
            self.poll();
            if !self.pipeline.is_busy() {
                break;
            }
            self.driver.world().advance(10_000);
        }
        assert!(
            self.submitted.is_empty() && self.withdrawn.is_empty(),
            "something never came back"
        );
    }

    fn run(&mut self) {
        for _ in 0..STEPS {
            self.step();
        }
        self.end();
        let world = self.driver.look();
        assert!(world.violations().is_empty(), "{}", world.violations().join("\n"));
    }
}

/// What repeats a failed walk.
struct Say(String);

impl Drop for Say {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("BATON_CUDA_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("BATON_CUDA_SEEDS").unwrap_or(usual),
    }
}

#[test]
fn every_access_is_ordered_and_every_batch_comes_back_once_with_its_answers() {
    let (mut executed, mut allocations) = (0, 0);
    for seed in seeds(3_000) {
        let mut walk = Walk::new(seed, None).unwrap();
        allocations += walk.driver.look().allocations;
        let _say =
            Say(format!("BATON_CUDA_SEED={seed} cargo nextest run -p baton-cuda --test pipeline"));
        walk.run();
        executed += walk.executed;
        assert_eq!(walk.failed, 0, "the driver refused nothing");
        allocations -= walk.driver.look().allocations;
    }
    assert!(executed > 0);
    assert_eq!(allocations, 0, "no memory is taken after it was reserved");
}

#[test]
fn an_error_at_any_call_fails_what_it_touches_and_loses_nothing() {
    let calls = {
        let mut walk = Walk::new(7, None).unwrap();
        walk.run();
        walk.driver.look().calls
    };
    let (mut failed, mut lost) = (0, 0);
    for code in [1, 2, 700, 719] {
        for call in 1..=calls {
            let _say = Say(format!("call {call} failed with {code}"));
            let Ok(mut walk) = Walk::new(7, Some((call, code))) else { continue };
            walk.run();
            failed += walk.failed;
            assert_eq!(
                walk.pipeline.lost().is_some(),
                code >= 700 && walk.driver.look().calls >= call
            );
            lost += u32::from(walk.pipeline.lost().is_some());
            if code < 700 {
                let (before, slot) = (walk.executed, walk.free_slot().unwrap());
                walk.prepare(slot, 1, Nanos(1_000), Nanos::MAX);
                walk.submit(slot);
                walk.end();
                assert_eq!(walk.executed, before + 1, "the device goes on");
            }
        }
    }
    assert!(failed > 100 && lost > 100, "{failed} batches failed, {lost} devices were lost");
}

#[test]
fn a_device_that_is_too_small_keeps_what_it_had() {
    let driver = SimDriver::default();
    let mut pipeline: Pipeline<_, Batch> = Pipeline::new(driver.clone(), SLOTS).unwrap();
    let (calls, held) = (driver.look().calls, driver.look().blocks_held);
    driver.world().fail = Some((calls + 3, 2));
    let refused = pipeline.reserve(room()).unwrap_err();
    assert!(refused.is_out_of_memory(), "{refused}");
    assert_eq!(driver.look().blocks_held, held, "and gives back what it had taken");
    pipeline.reserve(room()).unwrap();
}

/// Batches at full load, polled every five microseconds. Returns how long they took.
fn full_load(batches: u64, rows: u32, time: Nanos) -> (u64, Vec<(u64, u64)>) {
    let mut walk = Walk::new(1, None).unwrap();
    let mut left = batches;
    while left > 0 || walk.pipeline.is_busy() {
        while left > 0
            && let Some(slot) = walk.free_slot()
        {
            walk.prepare(slot, rows, time, Nanos::MAX);
            left -= 1;
        }
        while walk.submitted.len() < SUBMITTED_MAX
            && let Some(slot) =
                (0..SLOTS).min_by_key(|&slot| walk.prepared[slot].unwrap_or(u64::MAX))
            && walk.prepared[slot].is_some()
        {
            walk.submit(slot);
        }
        walk.driver.world().advance(5_000);
        walk.poll();
    }
    assert_eq!(u64::from(walk.executed), batches);
    let world = walk.driver.look();
    assert!(world.violations().is_empty(), "{}", world.violations().join("\n"));
    (world.now, world.executions.clone())
}

#[test]
fn copies_hide_behind_executions_and_no_gap_is_between_them() {
    // Against a bare loop, which has the kernel's own start alone between two: 1 µs.
    for (rows, ms, ratio) in [(16, 2.0, 0.98), (16, 0.5, 0.95)] {
        let time = Nanos::from_millis_f64(ms);
        let (took_ns, executions) = full_load(500, rows, time);
        let bare_ns = 500 * (time.0 + 1_000);
        assert!(bare_ns as f64 / took_ns as f64 >= ratio, "{ms} ms: {bare_ns} of {took_ns} ns");
        let gaps = executions.windows(2).map(|pair| pair[1].0 - pair[0].1);
        assert_eq!(gaps.max(), Some(0), "{ms} ms");
    }
}

#[test]
fn one_row_on_an_idle_device_adds_little() {
    let mut walk = Walk::new(1, None).unwrap();
    let time = Nanos::from_micros(500);
    walk.prepare(0, 1, time, Nanos::MAX);
    walk.submit(0);
    while walk.pipeline.is_busy() {
        walk.driver.world().advance(1_000);
        walk.poll();
    }
    assert!(walk.now() <= time + Nanos::from_micros(150), "{:?}", walk.now());
}

#[test]
fn a_batch_that_might_be_late_behind_another_waits_at_the_gate() {
    let mut walk = Walk::new(1, None).unwrap();
    let time = Nanos::from_micros(500);
    walk.prepare(0, 1, time, Nanos::MAX);
    // It cannot start in time, and the one behind it can once it is out of the way.
    walk.prepare(1, 1, time, Nanos::from_micros(400));
    walk.submit(0);
    walk.submit(1);
    let calls = walk.driver.look().calls;
    walk.poll();
    assert!(walk.driver.look().calls <= calls + 2, "one look at the first, no launch");
    walk.driver.world().advance(1_000_000);
    walk.poll();
    assert_eq!((walk.executed, walk.submitted.len()), (1, 0), "the second has expired");
}

#[test]
fn a_refused_batch_comes_back_in_its_turn_once_its_rows_are_not_read() {
    let mut walk = Walk::new(1, None).unwrap();
    walk.prepare(0, 4, Nanos(1_000), Nanos::MAX);
    walk.prepared[0] = None;
    walk.submitted.push_back(0);
    walk.pipeline.refuse(0, "not loaded".into());
    walk.poll();
    assert_eq!(walk.failed, 0, "its rows are being copied");
    walk.end();
    assert_eq!(walk.failed, 1);
}

//! A pipeline as an executor's thread uses it, and what it owes.

use std::collections::VecDeque;

use baton_cuda::{
    Back, CudaError, End, HostSource, Job, Pipeline, Program, Room, Tensor, Times, Work,
};
use baton_cuda_sim::{
    BYTES_PER_NS, COPY_FIXED_NS, DEVICE_COPY_NS, LAUNCH_NS, Place, SimDriver, SimGraph,
};
use baton_types::{Nanos, SplitMix64};

pub(crate) const SLOTS: usize = 4;
pub(crate) const ROWS_MAX: u32 = 16;
pub(crate) const STRIDE: u32 = 150_528;
/// What a GPU slot's I/O thread submits at most.
pub(crate) const SUBMITTED_MAX: usize = 2;
pub(crate) const STEPS: usize = 120;

#[derive(Debug)]
pub(crate) struct Batch {
    /// In its rows, and in the right answers.
    tag: u64,
    address: usize,
    lens: Vec<u32>,
    start_by: Nanos,
    /// How long it is to execute.
    time: Nanos,
    /// What executes it; `None`: the kernel.
    program: Option<Program<SimGraph>>,
    answers: Vec<u64>,
}

impl Batch {
    /// How long the device copies for its graph before and after.
    fn copies(&self) -> u64 {
        if self.program.is_some() { DEVICE_COPY_NS } else { 0 }
    }
}

/// All batches' graphs read and write the same memory.
fn program(takes: Nanos) -> Program<SimGraph> {
    let (input, output) = (0xa000, 0xb000);
    let tensor = |address, row_bytes| vec![Tensor { address, row_bytes, offset: 0 }];
    Program {
        graph: SimGraph { input, output, takes },
        inputs: tensor(input, STRIDE as usize),
        outputs: tensor(output, 8),
        answer_stride: 8,
    }
}

impl Job<SimGraph> for Batch {
    fn work(&self) -> Work<'_, SimGraph> {
        self.program.as_ref().map_or(Work::Checksum, Work::Graph)
    }
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
    fn take(&mut self, answers: &[u8]) {
        assert!(self.answers.is_empty(), "they come once");
        self.answers.extend(answers.as_chunks().0.iter().map(|&answer| u64::from_le_bytes(answer)));
    }
}

pub(crate) fn room() -> Room {
    Room::of_checksums(ROWS_MAX, (STRIDE * ROWS_MAX) as usize)
}

/// A pipeline as an executor's thread uses it, and what it owes.
pub(crate) struct Walk {
    pub(crate) driver: SimDriver,
    pub(crate) pipeline: Pipeline<SimDriver, Batch>,
    pub(crate) random: SplitMix64,
    /// By batch slot: the tag of a batch that was prepared and neither submitted nor withdrawn.
    pub(crate) prepared: [Option<u64>; SLOTS],
    pub(crate) submitted: VecDeque<usize>,
    withdrawn: Vec<usize>,
    tags: u64,
    pub(crate) executed: u32,
    pub(crate) expired: u32,
    pub(crate) failed: u32,
    /// When the last execution was reported to have ended.
    finished: Nanos,
    /// What the device measured last.
    pub(crate) times: Times,
    /// The next batch is a graph's.
    pub(crate) by_graph: bool,
    /// How long the device copied after the last execution.
    copied_after: u64,
}

impl Walk {
    pub(crate) fn new(seed: u64, fail: Option<(u64, i32)>) -> Result<Self, CudaError> {
        let driver = SimDriver::default();
        driver.world().fail = fail;
        let mut pipeline = Pipeline::new(driver.clone(), SLOTS)?;
        pipeline.reserve(room())?;
        let random = SplitMix64::new(seed);
        let (prepared, submitted, withdrawn) = ([None; SLOTS], VecDeque::new(), Vec::new());
        let (tags, executed, expired, failed) = (0, 0, 0, 0);
        let (finished, times) = (Nanos::ZERO, Times::default());
        Ok(Self {
            driver,
            pipeline,
            random,
            prepared,
            submitted,
            withdrawn,
            tags,
            executed,
            expired,
            failed,
            finished,
            times,
            by_graph: false,
            copied_after: 0,
        })
    }

    pub(crate) fn now(&self) -> Nanos {
        Nanos(self.driver.look().now)
    }

    pub(crate) fn free_slot(&self) -> Option<usize> {
        (0..SLOTS).find(|slot| {
            let is_out = self.submitted.contains(slot) || self.withdrawn.contains(slot);
            self.prepared[*slot].is_none() && !is_out
        })
    }

    /// Rows land, and the batch is prepared.
    pub(crate) fn prepare(&mut self, slot: usize, rows: u32, time: Nanos, start_by: Nanos) {
        self.tags += 1;
        let (tag, address) = (self.tags, 0x1000 * (slot + 1));
        self.driver.world().host_write(Place::Rows(address), tag.to_le_bytes().to_vec());
        let lens = vec![STRIDE; rows as usize];
        let program = self.by_graph.then(|| program(time));
        let batch = Batch { tag, address, lens, start_by, time, program, answers: Vec::new() };
        self.pipeline.prepare(slot, batch, time);
        self.prepared[slot] = Some(tag);
    }

    pub(crate) fn submit(&mut self, slot: usize) {
        self.prepared[slot] = None;
        self.submitted.push_back(slot);
        self.pipeline.submit(slot, self.now());
    }

    pub(crate) fn step(&mut self) {
        let (rows, time) = (1 + self.random.below(16) as u32, 50_000 + self.random.below(500_000));
        let start_by = self.now() + Nanos(self.random.below(1_500_000));
        let prepared = self.prepared.iter().position(Option::is_some);
        match (self.random.below(8), self.free_slot(), prepared) {
            (0..=2, Some(slot), _) => {
                self.by_graph = self.random.below(2) == 0;
                self.prepare(slot, rows, Nanos(time), start_by);
            }
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

    pub(crate) fn poll(&mut self) {
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
                let tags = vec![back.job.tag; back.job.lens.len()];
                assert_eq!(back.job.answers, tags, "its own answers");
                assert!(*started <= *finished && *finished <= self.now());
                assert!(*started >= self.finished, "executions do not overlap in reports");
                (self.finished, self.times) = (*finished, *times);
                // After an error some executions belong to batches that have failed.
                if self.driver.look().fail.is_none() {
                    self.check_execution(&back.job, *times);
                }
            }
            End::Expired => {
                self.expired += 1;
                assert!(self.now() > back.job.start_by);
            }
            End::Failed(problem) => {
                self.failed += 1;
                assert!(back.job.answers.is_empty() && !problem.is_empty());
            }
            End::Withdrawn => {}
        }
    }

    /// What the report says, beside what the device did.
    fn check_execution(&mut self, batch: &Batch, times: Times) {
        let world = self.driver.look();
        let (at, copies) = (self.executed as usize - 1, batch.copies());
        let execution = world.executions[at];
        assert!(execution.launched_at <= batch.start_by.0, "launched in its window");
        if world.slower_percent == 0 {
            let latest = batch.start_by.0.saturating_add(2 * LAUNCH_NS + 4 * DEVICE_COPY_NS);
            assert!(execution.start <= latest, "started in its window");
        }
        let planned_ns = batch.time.0 + batch.time.0 * world.slower_percent / 100;
        assert_eq!(times.execution.0, planned_ns + LAUNCH_NS + 2 * copies);
        let bytes = batch.lens.len() as u64 * u64::from(STRIDE);
        assert_eq!(times.copy_in.0, COPY_FIXED_NS + bytes / BYTES_PER_NS, "of the rows alone");
        let before = at.checked_sub(1).map(|before| world.executions[before].end);
        let (start, after) = (execution.start - copies, self.copied_after);
        assert_eq!(times.gap.map(|gap| gap.0), before.map(|end| start - end - after));
        drop(world);
        self.copied_after = copies;
    }

    /// Everything that is under way comes back.
    pub(crate) fn end(&mut self) {
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

    pub(crate) fn run(&mut self) {
        for _ in 0..STEPS {
            self.step();
        }
        self.end();
        let world = self.driver.look();
        assert!(world.violations().is_empty(), "{}", world.violations().join("\n"));
    }
}

//! The pipeline as a GPU slot's executor uses it at full load: four batch slots, two batches submitted, the others on their way.

use std::collections::VecDeque;

use baton_core::Nanos;
use baton_cuda::{Driver, End, HostBlock, HostSource, Job, Pipeline, Program, Times, Work};

use super::subject::{Plan, Subject};
use super::{GpuBenchError, Rig};
use crate::machine::thread_time;

/// Batch slots of a GPU slot.
pub(super) const SLOTS: usize = 4;
/// Batches that it submits at most.
const SUBMITTED_MAX: usize = 2;

/// What a turn came to.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Loaded {
    pub(super) batches: u32,
    pub(super) rows: u64,
    /// On the host's clock, for all.
    pub(super) took: Nanos,
    /// On the host's clock, each: from the copy's beginning to the answer.
    pub(super) latencies: Vec<Nanos>,
    /// By the device's clock, each, with its rows.
    pub(super) times: Vec<(u32, Times)>,
    /// CPU time of the calls that did something.
    pub(super) cpu: Nanos,
    /// Blocks of memory that were taken after loading.
    pub(super) allocations: u64,
    /// By how much the device's free memory has fallen since loading, bytes.
    pub(super) memory_taken: u64,
}

struct Batch<'a, G> {
    program: Option<&'a Program<G>>,
    rows: HostBlock,
    stride: u32,
    lens: Vec<u32>,
    given_at: Nanos,
    answers: Vec<u8>,
}

impl<G> Job<G> for Batch<'_, G> {
    fn work(&self) -> Work<'_, G> {
        self.program.map_or(Work::Checksum, Work::Graph)
    }
    fn rows(&self) -> HostSource {
        HostSource::Block(self.rows)
    }
    fn stride(&self) -> u32 {
        self.stride
    }
    fn lens(&self) -> &[u32] {
        &self.lens
    }
    fn start_by(&self) -> Nanos {
        Nanos::MAX
    }
    fn take(&mut self, answers: &[u8]) {
        self.answers.extend_from_slice(answers);
    }
}

/// Of a rig's device.
type GraphOf<R> = <<R as Rig>::Driver as Driver>::Graph;

/// Executes batches of this number of rows, each as long as planned, as fast as they go through `slots` batch slots.
pub(super) fn run<R: Rig>(
    rig: &mut R,
    slots: usize,
    plan: impl Iterator<Item = Plan>,
    subject: &mut Subject<'_, GraphOf<R>>,
) -> Result<Loaded, GpuBenchError> {
    let mut pipeline: Pipeline<R::Driver, Batch<'_, GraphOf<R>>> =
        Pipeline::new(rig.driver()?, slots)?;
    pipeline.reserve(subject.room())?;
    let mut free = Vec::new();
    for slot in 0..slots {
        let rows = pipeline.driver_mut().allocate_host(subject.room().row_bytes)?;
        pipeline.driver_mut().write(rows, &[0; 16]);
        free.push((slot, rows));
    }
    let memory = pipeline.driver_mut().free_bytes()?;
    let allocations = pipeline.driver().allocations();
    let (prepared, submitted) = (VecDeque::new(), 0);
    let mut turn = Turn { rig, pipeline, free, prepared, submitted, subject };
    let (started, mut plan) = (turn.rig.now(), plan.peekable());
    let mut loaded = Loaded {
        batches: 0,
        rows: 0,
        took: Nanos::ZERO,
        latencies: Vec::with_capacity(plan.size_hint().0),
        times: Vec::with_capacity(plan.size_hint().0),
        cpu: Nanos::ZERO,
        allocations: 0,
        memory_taken: 0,
    };
    while plan.peek().is_some() || turn.free.len() < slots {
        let before = thread_time();
        turn.give(&mut plan);
        let came_back = turn.take_back(&mut loaded)?;
        // The thread's other time is spinning.
        match came_back {
            true => loaded.cpu = loaded.cpu + (thread_time() - before),
            false => turn.rig.spin(),
        }
    }
    loaded.took = turn.rig.now() - started;
    loaded.allocations = turn.pipeline.driver().allocations() - allocations;
    loaded.memory_taken = memory.saturating_sub(turn.pipeline.driver_mut().free_bytes()?);
    Ok(loaded)
}

struct Turn<'a, 'p, R: Rig> {
    rig: &'a mut R,
    pipeline: Pipeline<R::Driver, Batch<'p, GraphOf<R>>>,
    free: Vec<(usize, HostBlock)>,
    prepared: VecDeque<usize>,
    submitted: usize,
    subject: &'a mut Subject<'p, GraphOf<R>>,
}

impl<R: Rig> Turn<'_, '_, R> {
    /// Whatever may be prepared and submitted.
    fn give(&mut self, plan: &mut impl Iterator<Item = Plan>) {
        while let Some(&(slot, rows)) = self.free.last()
            && let Some((size, time)) = plan.next()
        {
            self.free.pop();
            let (stride, program) = (self.subject.row_bytes, self.subject.program(size));
            let answers = Vec::with_capacity(size as usize * self.subject.answer_bytes);
            let (lens, given_at) = (vec![stride; size as usize], self.rig.now());
            let batch = Batch { program, rows, stride, lens, given_at, answers };
            self.pipeline.prepare(slot, batch, time);
            self.prepared.push_back(slot);
        }
        while self.submitted < SUBMITTED_MAX
            && let Some(slot) = self.prepared.pop_front()
        {
            self.submitted += 1;
            self.pipeline.submit(slot, self.rig.now());
        }
    }

    fn take_back(&mut self, loaded: &mut Loaded) -> Result<bool, GpuBenchError> {
        let Some(back) = self.pipeline.poll(self.rig.now()) else {
            return match self.pipeline.lost() {
                Some(error) => Err(error.clone().into()),
                None => Ok(false),
            };
        };
        let rows = back.job.lens.len() as u32;
        let End::Executed { times, .. } = back.end else {
            return Err(GpuBenchError::Batch { rows, problem: format!("{:?}", back.end) });
        };
        let answers = &back.job.answers;
        if !self.subject.is_right(rows, answers) {
            let right = self.subject.right.as_deref().unwrap_or_default();
            let problem = format!("its answers are {answers:02x?}, and {right:02x?} each is right");
            return Err(GpuBenchError::Batch { rows, problem });
        }
        loaded.batches += 1;
        loaded.rows += u64::from(rows);
        loaded.latencies.push(self.rig.now() - back.job.given_at);
        loaded.times.push((rows, times));
        self.submitted -= 1;
        self.free.push((back.slot, back.job.rows));
        Ok(true)
    }
}

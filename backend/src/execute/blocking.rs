//! An engine made of one that blocks.

use std::collections::VecDeque;

use baton_topo::{Clock, ModelSpec};
use baton_types::ModelId;

use super::{
    BatchBack, BatchEnd, BatchJob, BlockingEngine, Engine, EngineError, Inputs, LooseModel,
};
use crate::config::BATCH_SLOTS;

/// Executes the submitted batches one after the other, each in one poll, which takes as long as the batch.
#[derive(Debug)]
pub struct Blocking<B> {
    engine: B,
    clock: Clock,
    /// By batch slot.
    prepared: [Option<BatchJob>; BATCH_SLOTS],
    submitted: VecDeque<BatchJob>,
    withdrawn: VecDeque<BatchJob>,
}

impl<B: BlockingEngine> Blocking<B> {
    /// `clock` measures.
    pub fn new(engine: B, clock: Clock) -> Self {
        let queue = || VecDeque::with_capacity(BATCH_SLOTS);
        let prepared = std::array::from_fn(|_| None);
        Self { engine, clock, prepared, submitted: queue(), withdrawn: queue() }
    }

    fn take_prepared(&mut self, slot: usize) -> BatchJob {
        self.prepared[slot].take().expect("only what is prepared is submitted or withdrawn")
    }

    fn execute(&mut self, mut job: BatchJob) -> BatchBack {
        let started = self.clock.now();
        let Some(variant) = job.start_by.variant_at(started) else {
            return job.end(BatchEnd::Expired);
        };
        let inputs = Inputs::new(&job.rows, job.stride, &job.lens);
        let result = self.engine.execute(job.model, variant, inputs, &mut job.outputs);
        let finished = self.clock.now();
        job.end(BatchEnd::Executed { variant, started, finished, result })
    }
}

impl<B: BlockingEngine> Engine for Blocking<B> {
    fn model_bytes(&mut self, model: &ModelSpec) -> u64 {
        self.engine.model_bytes(model)
    }

    fn load(&mut self, model: &ModelSpec) -> Result<(), EngineError> {
        self.engine.load(model)
    }

    fn unload(&mut self, model: ModelId) {
        self.engine.unload(model);
    }

    fn take(&mut self, model: ModelId) -> Option<LooseModel> {
        self.engine.take(model)
    }

    fn put(&mut self, id: ModelId, model: LooseModel) {
        self.engine.put(id, model);
    }

    fn prepare(&mut self, batch: BatchJob) {
        let slot = batch.slot;
        self.prepared[slot] = Some(batch);
    }

    fn submit(&mut self, slot: usize) {
        let job = self.take_prepared(slot);
        self.submitted.push_back(job);
    }

    fn withdraw(&mut self, slot: usize) {
        let job = self.take_prepared(slot);
        self.withdrawn.push_back(job);
    }

    fn poll(&mut self) -> Option<BatchBack> {
        if let Some(job) = self.withdrawn.pop_front() {
            return Some(job.end(BatchEnd::Withdrawn));
        }
        let job = self.submitted.pop_front()?;
        Some(self.execute(job))
    }

    fn is_busy(&self) -> bool {
        !self.submitted.is_empty() || !self.withdrawn.is_empty()
    }

    fn copies_ahead(&self) -> bool {
        false
    }
}

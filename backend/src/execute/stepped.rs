//! A device for tests: its copies and executions end when the test says so.

use std::collections::VecDeque;

use baton_topo::{Clock, ModelSpec};
use baton_types::{ModelId, Nanos};
use crossbeam_channel::Receiver;

use crate::execute::{
    BatchBack, BatchEnd, BatchJob, BlockingEngine, Emulated, Engine, EngineError, LooseModel,
};

/// What a model takes on the device.
pub(super) const MODEL_BYTES: u64 = 100;

/// What happens on a device.
#[derive(PartialEq, Eq)]
pub(super) enum Step {
    /// Every copy that was begun has ended.
    Copied,
    /// The batch that executes has been executed.
    Executed,
    /// It can do nothing any more.
    Lost,
}

/// A device whose copies and executions end when the test says so.
pub(super) struct Device {
    steps: Receiver<Step>,
    /// Has happened, of what is not known here yet.
    step: Option<Step>,
    prepared: Vec<BatchJob>,
    submitted: VecDeque<BatchJob>,
    withdrawn: Vec<BatchJob>,
    copied: VecDeque<BatchJob>,
    models: Emulated,
}

impl Device {
    pub(super) fn new(steps: Receiver<Step>) -> Self {
        let models = Emulated::new(Clock::start(), 1);
        let (prepared, withdrawn) = (Vec::new(), Vec::new());
        let (submitted, copied) = (VecDeque::new(), VecDeque::new());
        Self { steps, step: None, prepared, submitted, withdrawn, copied, models }
    }

    fn take_prepared(&mut self, slot: usize) -> BatchJob {
        let at = self.prepared.iter().position(|job| job.slot == slot).unwrap();
        self.prepared.remove(at)
    }
}

impl Engine for Device {
    fn model_bytes(&mut self, _: &ModelSpec) -> u64 {
        MODEL_BYTES
    }

    fn load(&mut self, model: &ModelSpec) -> Result<(), EngineError> {
        assert!(self.submitted.is_empty(), "alone");
        self.models.load(model)
    }

    fn unload(&mut self, model: ModelId) {
        self.models.unload(model);
    }

    fn take(&mut self, model: ModelId) -> Option<LooseModel> {
        self.models.take(model)
    }

    fn put(&mut self, id: ModelId, model: LooseModel) {
        self.models.put(id, model);
    }

    fn prepare(&mut self, batch: BatchJob) {
        self.prepared.push(batch);
    }

    fn submit(&mut self, slot: usize) {
        let job = self.take_prepared(slot);
        self.submitted.push_back(job);
    }

    fn withdraw(&mut self, slot: usize) {
        let job = self.take_prepared(slot);
        self.withdrawn.push(job);
    }

    fn poll(&mut self) -> Option<BatchBack> {
        if let Some(job) = self.copied.pop_front() {
            return Some(job.end(BatchEnd::Withdrawn));
        }
        // The test may say so before the order it means has been seen.
        self.step = self.step.take().or_else(|| self.steps.try_recv().ok());
        if self.step.take_if(|step| *step == Step::Copied && !self.withdrawn.is_empty()).is_some() {
            self.copied.extend(self.withdrawn.drain(..));
        }
        let job = self
            .submitted
            .pop_front_if(|_| self.step.take_if(|step| *step == Step::Executed).is_some())?;
        let (started, finished) = (Nanos(1), Nanos(2));
        Some(job.end(BatchEnd::Executed { variant: 0, started, finished, result: Ok(()) }))
    }

    fn lost(&self) -> Option<String> {
        (self.step == Some(Step::Lost)).then(|| "it is lost".into())
    }

    fn is_busy(&self) -> bool {
        !(self.submitted.is_empty() && self.withdrawn.is_empty() && self.copied.is_empty())
    }
}

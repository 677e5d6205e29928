//! An executor that the test finishes.

use std::cell::RefCell;
use std::rc::Rc;

use baton_backend::execute::{
    BatchDone, BatchJob, EngineError, Executor, ExecutorDied, Job, JobDone, LoadOrder, Loaded,
    checksum,
};
use baton_core::{FailReason, Nanos, Profile};

#[derive(Default)]
struct Inner {
    job: Option<BatchJob>,
    /// What the executor has that is no batch.
    other: Option<Job>,
    done: Option<JobDone>,
    /// What is to be loaded aside.
    order: Option<LoadOrder>,
    loaded: Option<Result<Loaded, EngineError>>,
    /// A model that was loaded aside and is neither installed nor discarded.
    has_loose: bool,
    is_dead: bool,
}

/// Both the worker's executor and the test's handle on it.
#[derive(Clone, Default)]
pub(crate) struct Hand(Rc<RefCell<Inner>>);

impl Hand {
    /// Rows of the batch being executed; `None` while idle.
    pub(crate) fn batch(&self) -> Option<u32> {
        self.0.borrow().job.as_ref().map(|job| job.inputs().len())
    }

    /// The batch has been executed in this span: answers with the rows' checksums.
    pub(crate) fn finish(&self, started: Nanos, finished: Nanos) {
        self.finish_without(&[], started, finished);
    }

    /// The same, but these rows are no inputs of the model.
    pub(crate) fn finish_without(&self, rows: &[u32], started: Nanos, finished: Nanos) {
        let mut inner = self.0.borrow_mut();
        let mut job = inner.job.take().expect("a batch is executing");
        for row in 0..job.inputs().len() {
            let answer = checksum(job.inputs().row(row));
            job.outputs.row_mut(row).copy_from_slice(&answer);
        }
        rows.iter().for_each(|&row| job.outputs.set(row, Err(FailReason::WrongSize)));
        inner.done = Some(done(job, started, finished, Ok(())));
    }

    /// The engine reports an error.
    pub(crate) fn fail(&self, started: Nanos, finished: Nanos) {
        let mut inner = self.0.borrow_mut();
        let job = inner.job.take().expect("a batch is executing");
        let (model, batch) = (job.model, job.inputs().len());
        let error = EngineError::Execute { model, batch, problem: "out of memory".into() };
        inner.done = Some(done(job, started, finished, Err(error)));
    }

    /// The job being executed that is no batch, and this process's id of its model.
    pub(crate) fn other(&self) -> Option<(&'static str, u32)> {
        match self.0.borrow().other.as_ref()? {
            Job::Load(model) => Some(("load", model.0)),
            Job::Unload(model) => Some(("unload", model.0)),
            Job::Install(model) => Some(("install", model.0)),
            Job::Remove(model) => Some(("remove", model.0)),
            Job::Infer(_) => unreachable!("batches are kept apart"),
        }
    }

    /// The LOAD or UNLOAD has been executed at this moment, or has failed.
    pub(crate) fn finish_other(&self, at: Nanos, succeeded: bool) {
        let mut inner = self.0.borrow_mut();
        inner.other.take().expect("a LOAD or UNLOAD is executing");
        let result = succeeded.then_some(()).ok_or_else(no_memory);
        inner.done = Some(JobDone { batch: None, started: at, finished: at, result });
    }

    /// The number of the model that is being loaded aside.
    pub(crate) fn aside(&self) -> Option<u32> {
        self.0.borrow().order.as_ref().map(|order| order.model.0)
    }

    /// It has been loaded, and measured if that was asked for.
    pub(crate) fn finish_aside(&self) {
        let mut inner = self.0.borrow_mut();
        let order = inner.order.take().expect("a model is being loaded");
        let measured = Profile::from_table(&[Nanos(9); 2]).unwrap();
        let loaded = order
            .describe()
            .map(|spec| Loaded { profile: order.measure.then_some(measured), spec });
        inner.has_loose = loaded.is_ok();
        inner.loaded = Some(loaded);
    }

    /// It cannot be loaded.
    pub(crate) fn fail_aside(&self) {
        let mut inner = self.0.borrow_mut();
        inner.order.take().expect("a model is being loaded");
        inner.loaded = Some(Err(no_memory()));
    }

    /// Whether a loaded model waits to be installed.
    pub(crate) fn has_loose(&self) -> bool {
        self.0.borrow().has_loose
    }

    /// The executor's thread dies.
    pub(crate) fn die(&self) {
        self.0.borrow_mut().is_dead = true;
    }
}

fn no_memory() -> EngineError {
    EngineError::Load {
        model: "resnet50".into(),
        file: "resnet50.onnx".into(),
        problem: "no memory".into(),
        fix: "use a smaller one".into(),
    }
}

fn done(
    job: BatchJob,
    started: Nanos,
    finished: Nanos,
    result: Result<(), EngineError>,
) -> JobDone {
    let BatchJob { slot, lens, outputs, .. } = job;
    JobDone { batch: Some(BatchDone { slot, lens, outputs }), started, finished, result }
}

impl Executor for Hand {
    fn submit(&mut self, job: Job) -> Result<(), ExecutorDied> {
        let mut inner = self.0.borrow_mut();
        let is_idle = inner.job.is_none() && inner.other.is_none() && inner.done.is_none();
        assert!(is_idle, "one job at a time");
        match job {
            Job::Infer(batch) => {
                assert!(!batch.inputs().is_empty());
                inner.job = Some(batch);
            }
            other => {
                if matches!(other, Job::Install(_)) {
                    assert!(std::mem::take(&mut inner.has_loose), "nothing to install");
                }
                inner.other = Some(other);
            }
        }
        Ok(())
    }

    fn load_aside(&mut self, order: LoadOrder) {
        let before = self.0.borrow_mut().order.replace(order);
        assert!(before.is_none(), "one model at a time");
    }

    fn poll_loaded(&mut self) -> Option<Result<Loaded, EngineError>> {
        self.0.borrow_mut().loaded.take()
    }

    fn discard(&mut self) {
        self.0.borrow_mut().has_loose = false;
    }

    fn poll(&mut self) -> Result<Option<JobDone>, ExecutorDied> {
        let mut inner = self.0.borrow_mut();
        if inner.is_dead { Err(ExecutorDied) } else { Ok(inner.done.take()) }
    }
}

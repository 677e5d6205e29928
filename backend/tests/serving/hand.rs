//! An executor that the test finishes.

use std::cell::RefCell;
use std::rc::Rc;

use baton_backend::execute::{EngineError, Executor, ExecutorDied, Job, JobDone, checksum};
use baton_core::Nanos;

#[derive(Default)]
struct Inner {
    job: Option<Job>,
    done: Option<JobDone>,
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
        let mut inner = self.0.borrow_mut();
        let mut job = inner.job.take().expect("a batch is executing");
        for row in 0..job.inputs().len() {
            let answer = checksum(job.inputs().row(row));
            job.outputs.row_mut(row).copy_from_slice(&answer);
        }
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

    /// The executor's thread dies.
    pub(crate) fn die(&self) {
        self.0.borrow_mut().is_dead = true;
    }
}

fn done(job: Job, started: Nanos, finished: Nanos, result: Result<(), EngineError>) -> JobDone {
    let Job { slot, lens, outputs, .. } = job;
    JobDone { slot, lens, outputs, started, finished, result }
}

impl Executor for Hand {
    fn submit(&mut self, job: Job) -> Result<(), ExecutorDied> {
        let mut inner = self.0.borrow_mut();
        assert!(inner.job.is_none() && inner.done.is_none(), "one batch at a time");
        assert!(!job.inputs().is_empty());
        inner.job = Some(job);
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<JobDone>, ExecutorDied> {
        let mut inner = self.0.borrow_mut();
        if inner.is_dead { Err(ExecutorDied) } else { Ok(inner.done.take()) }
    }
}

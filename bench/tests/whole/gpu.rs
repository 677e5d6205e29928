//! A GPU slot whose executions take exactly ℓ(b) of the test's time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use baton_backend::execute::{Executor, ExecutorDied, Job, JobDone, checksum};
use baton_core::{Nanos, Profile};
use baton_topo::Cluster;

/// Both the worker's executor and the test's view of it.
#[derive(Clone)]
pub struct HandGpu {
    now: Rc<Cell<Nanos>>,
    profiles: Rc<[Profile]>,
    running: Rc<RefCell<Option<Running>>>,
}

struct Running {
    job: Job,
    started: Nanos,
    ends: Nanos,
}

impl HandGpu {
    pub fn new(cluster: &Cluster, now: Rc<Cell<Nanos>>) -> Self {
        let profiles = cluster.models.iter().map(|model| model.profile.clone()).collect();
        Self { now, profiles, running: Rc::default() }
    }

    /// When the present execution ends.
    pub fn ends_at(&self) -> Option<Nanos> {
        self.running.borrow().as_ref().map(|running| running.ends)
    }
}

impl Executor for HandGpu {
    fn submit(&mut self, job: Job) -> Result<(), ExecutorDied> {
        let started = self.now.get();
        let ends = started + self.profiles[job.model.0 as usize].latency(job.batch);
        let before = self.running.replace(Some(Running { job, started, ends }));
        assert!(before.is_none(), "one batch at a time");
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<JobDone>, ExecutorDied> {
        let now = self.now.get();
        let ended = self.running.borrow_mut().take_if(|running| running.ends <= now);
        Ok(ended.map(|Running { mut job, started, ends }| {
            let input_bytes = job.rows.len() / job.batch as usize;
            let rows = job.rows.chunks_exact(input_bytes);
            for (row, output) in rows.zip(job.outputs.chunks_exact_mut(8)) {
                output.copy_from_slice(&checksum(row));
            }
            let Job { slot, outputs, .. } = job;
            JobDone { slot, outputs, started, finished: ends, result: Ok(()) }
        }))
    }
}

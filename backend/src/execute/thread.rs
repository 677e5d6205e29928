//! A GPU slot's executor thread: makes its engines, then executes one job after the other.
//!
//! In: jobs over a bounded channel. Out: finished jobs over another, and a wake-up of the I/O
//! thread. Models that are added later come with a job, loaded by a thread of their own (`aside.rs`). The thread ends when
//! its [`ThreadExecutor`] is dropped.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

use baton_core::{ModelId, Nanos, Profile};
use baton_topo::{Agent, Clock, ModelSpec, Placement, Waker, park_thread, run};
use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};

use super::aside::{Aside, Errand, Prepared, drop_aside, load_measured};
use super::{
    BatchDone, BatchJob, Engine, EngineError, Engines, Executor, ExecutorDied, Inputs, Job,
    JobDone, LoadOrder, Loaded,
};

/// Where an executor's thread runs, and what it needs to know about the process.
#[derive(Clone, Debug)]
pub struct Placing {
    /// Name, core and idling of the thread.
    pub placement: Placement,
    /// The process's clock.
    pub clock: Clock,
    /// Decides the emulated engine's jitter.
    pub seed: u64,
    /// Whether to measure ℓ(b) of the models whose cluster file can only guess it. One GPU slot of
    /// a backend does so for all.
    pub measure: bool,
}

/// The measured profiles, by the ids of this process's cluster file.
pub type Measured = Vec<(ModelId, Profile)>;

/// The I/O thread's handle on an executor thread.
#[derive(Debug)]
pub struct ThreadExecutor {
    /// `None` only while dropping: closing the channel ends the thread.
    jobs: Option<Sender<Work>>,
    done: Receiver<JobDone>,
    thread: Option<JoinHandle<()>>,
    /// Wakes the executor thread.
    waker: Waker,
    /// A job is with the thread.
    is_busy: bool,
    aside: Aside,
}

/// A job as the executor's thread gets it.
enum Work {
    Job(Job),
    /// The model that was loaded aside.
    Install(Box<Prepared>),
}

impl ThreadExecutor {
    /// Starts a thread that loads `models`, then executes, and wakes `owner` whenever a job has
    /// finished. Blocks until the models are loaded, and measured if `placing` asks for it.
    ///
    /// # Errors
    /// A model cannot be loaded, or the thread cannot be started.
    pub fn start(
        placing: Placing,
        models: Vec<ModelSpec>,
        owner: Waker,
    ) -> Result<(Self, Measured), EngineError> {
        let (jobs, jobs_in) = bounded(1);
        let (done_out, done) = bounded(1);
        let (started_out, started) = bounded(1);
        let name = format!("{}-load", placing.placement.name);
        let (aside, errands) = Aside::start(name, placing.clock, placing.seed, owner.clone())
            .map_err(|error| cannot_start(error.to_string()))?;
        let thread = std::thread::Builder::new()
            .name(placing.placement.name.clone())
            .spawn(move || {
                let mut agent = ExecutorAgent {
                    engines: Engines::new(placing.clock, placing.seed),
                    clock: placing.clock,
                    loading: Some(Loading { measure: placing.measure, report: started_out }),
                    models,
                    jobs: jobs_in,
                    done: done_out,
                    errands,
                    waker: Waker::for_current_thread(),
                    owner,
                    closed: false,
                };
                run(
                    &mut agent,
                    placing.clock,
                    &placing.placement,
                    &Arc::new(AtomicBool::new(false)),
                );
            })
            .map_err(|error| cannot_start(error.to_string()))?;
        let (waker, measured) =
            started.recv().map_err(|_| cannot_start("its thread died while loading".into()))??;
        let (jobs, thread) = (Some(jobs), Some(thread));
        Ok((Self { jobs, done, thread, waker, is_busy: false, aside }, measured))
    }
}

fn cannot_start(problem: String) -> EngineError {
    let fix = "see the log above, and the limits on threads (ulimit -u)";
    EngineError::Library { engine: "executor", problem, fix }
}

impl Executor for ThreadExecutor {
    fn submit(&mut self, job: Job) -> Result<(), ExecutorDied> {
        let work = match job {
            Job::Install(_) => {
                let prepared = self.aside.take().expect("installed only after it was loaded");
                Work::Install(Box::new(prepared))
            }
            other => Work::Job(other),
        };
        let jobs = self.jobs.as_ref().ok_or(ExecutorDied)?;
        jobs.try_send(work).map_err(|_| ExecutorDied)?;
        self.is_busy = true;
        self.waker.wake();
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<JobDone>, ExecutorDied> {
        match self.done.try_recv() {
            Ok(done) => {
                self.is_busy = false;
                Ok(Some(done))
            }
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(ExecutorDied),
        }
    }

    fn load_aside(&mut self, order: LoadOrder) {
        self.aside.load(order);
    }

    fn poll_loaded(&mut self) -> Option<Result<Loaded, EngineError>> {
        self.aside.poll()
    }

    fn discard(&mut self) {
        self.aside.discard();
    }
}

impl Drop for ThreadExecutor {
    fn drop(&mut self) {
        drop(self.jobs.take());
        self.waker.wake();
        // An engine that hangs must not keep the process from ending.
        if !self.is_busy
            && let Some(thread) = self.thread.take()
        {
            if thread.join().is_err() {
                tracing::error!("an executor thread panicked");
            }
            self.aside.end();
        }
    }
}

/// What the thread does first.
struct Loading {
    measure: bool,
    report: Sender<Result<(Waker, Measured), EngineError>>,
}

/// What runs on the executor's thread.
struct ExecutorAgent {
    engines: Engines,
    clock: Clock,
    loading: Option<Loading>,
    /// What it loads at its start, and when it is asked to.
    models: Vec<ModelSpec>,
    jobs: Receiver<Work>,
    done: Sender<JobDone>,
    /// To the thread that loads, which drops what is removed here.
    errands: Sender<Errand>,
    /// This thread's.
    waker: Waker,
    /// The I/O thread's.
    owner: Waker,
    closed: bool,
}

impl ExecutorAgent {
    /// Loads on the thread that will execute, after it has been pinned, so that what is measured
    /// is what will be.
    fn load(&mut self, loading: &Loading) -> Result<Measured, EngineError> {
        let mut measured = Vec::new();
        for spec in &self.models {
            let profile = load_measured(&mut self.engines, spec, loading.measure, self.clock)?;
            measured.extend(profile.map(|profile| (spec.id, profile)));
        }
        Ok(measured)
    }

    fn execute(&mut self, work: Work) {
        let started = self.clock.now();
        let (batch, result) = match work {
            Work::Job(Job::Infer(batch)) => self.infer(batch),
            Work::Job(Job::Load(model)) => (None, self.load_one(model)),
            Work::Job(Job::Unload(model)) => {
                self.engines.unload(model);
                (None, Ok(()))
            }
            Work::Job(Job::Remove(model)) => {
                self.remove(model);
                (None, Ok(()))
            }
            Work::Install(prepared) => {
                self.install(*prepared);
                (None, Ok(()))
            }
            Work::Job(Job::Install(_)) => unreachable!("comes with its model"),
        };
        let finished = self.clock.now();
        self.closed |= self.done.send(JobDone { batch, started, finished, result }).is_err();
        self.owner.wake();
    }

    fn infer(&mut self, job: BatchJob) -> (Option<BatchDone>, Result<(), EngineError>) {
        let BatchJob { slot, model, rows, stride, lens, mut outputs } = job;
        let result = self.engines.execute(model, Inputs::new(&rows, stride, &lens), &mut outputs);
        (Some(BatchDone { slot, lens, outputs }), result)
    }

    fn install(&mut self, Prepared { spec, model }: Prepared) {
        self.engines.put(spec.id, model);
        self.models.push(spec);
    }

    fn remove(&mut self, model: ModelId) {
        self.models.retain(|spec| spec.id != model);
        if let Some(model) = self.engines.take(model) {
            drop_aside(&self.errands, model);
        }
    }

    fn load_one(&mut self, model: ModelId) -> Result<(), EngineError> {
        let spec = self.models.iter().find(|spec| spec.id == model);
        self.engines.load(spec.expect("the worker admits actions on these models only"))
    }
}

impl Agent for ExecutorAgent {
    fn poll(&mut self, _now: Nanos) -> usize {
        if let Some(loading) = self.loading.take() {
            let measured = self.load(&loading);
            self.closed |= measured.is_err();
            let report = measured.map(|measured| (self.waker.clone(), measured));
            self.closed |= loading.report.send(report).is_err();
            return 1;
        }
        match self.jobs.try_recv() {
            Ok(work) => self.execute(work),
            Err(TryRecvError::Empty) => return 0,
            Err(TryRecvError::Disconnected) => self.closed = true,
        }
        1
    }

    fn next_timer(&self) -> Option<Nanos> {
        None
    }

    fn wait(&mut self, timeout: Option<Nanos>) {
        park_thread(timeout);
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn finished(&self) -> bool {
        self.closed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use baton_rdma::BatchBuffer;
    use baton_topo::Idle;

    use super::*;
    use crate::execute::{ModelSource, Outputs, checksum};
    use crate::test_models::emulated;

    fn placing() -> Placing {
        let placement = Placement { name: "test-gpu".into(), core: None, idle: Idle::Park };
        Placing { placement, clock: Clock::start(), seed: 1, measure: true }
    }

    #[test]
    fn a_job_goes_to_the_thread_and_comes_back_measured_and_the_owner_is_woken() {
        let (woken_out, woken) = bounded(1);
        let owner = Waker::new(move || woken_out.send(()).unwrap());
        owner.prepare_sleep();
        let spec = emulated("toy", 0, 4, 2);
        let (mut executor, measured) =
            ThreadExecutor::start(placing(), vec![spec.clone()], owner).unwrap();
        assert!(measured.is_empty(), "an emulated profile is known");
        let inputs = BatchBuffer::new(8).unwrap();
        for row in 0..2 {
            inputs.lend(row, 4).unwrap().fill(row as u8);
        }
        let rows = inputs.rows(2, 4).unwrap();
        let mut outputs = Outputs::default();
        outputs.reset(2, 8);
        let lens = vec![4; 2];
        let job = BatchJob { slot: 3, model: ModelId(0), rows, stride: 4, lens, outputs };
        executor.submit(Job::Infer(job)).unwrap();
        woken.recv_timeout(Duration::from_secs(10)).expect("the owner is woken");
        let done = executor.poll().unwrap().expect("finished before the wake-up");
        let batch = done.batch.expect("it was one");
        assert_eq!((batch.slot, done.result), (3, Ok(())));
        assert!(done.finished - done.started >= spec.profile.latency(2));
        let answers = [0, 1].map(|row| batch.outputs.row(row));
        assert_eq!(answers, [Ok(&checksum(&[0; 4])[..]), Ok(&checksum(&[1; 4])[..])]);
        assert!(inputs.lend(0, 4).is_some(), "the rows are free again");
    }

    /// A batch of one row of zeros.
    fn batch_of(model: u32) -> Job {
        let rows = BatchBuffer::new(4).unwrap().rows(1, 4).unwrap();
        let mut outputs = Outputs::default();
        outputs.reset(1, 8);
        let (model, lens) = (ModelId(model), vec![4]);
        Job::Infer(BatchJob { slot: 0, model, rows, stride: 4, lens, outputs })
    }

    #[test]
    fn a_model_that_was_loaded_aside_is_taken_in_between_two_jobs_and_given_up_again() {
        let (woken_out, woken) = bounded(16);
        let owner = Waker::new(move || woken_out.send(()).unwrap());
        let first = emulated("toy", 0, 4, 2);
        let (mut executor, _) =
            ThreadExecutor::start(placing(), vec![first.clone()], owner.clone()).unwrap();
        let source = ModelSource::Spec(Box::new(emulated("added", 0, 4, 2)));
        owner.prepare_sleep();
        executor.load_aside(LoadOrder { model: ModelId(7), source, measure: true });
        woken.recv_timeout(Duration::from_secs(10)).expect("the owner is woken");
        let loaded = executor.poll_loaded().expect("it has ended").unwrap();
        assert_eq!((loaded.spec.id, loaded.spec.name.as_str()), (ModelId(7), "added"));
        assert!(loaded.profile.is_none(), "an emulated profile is known");
        let mut execute = |job| {
            owner.prepare_sleep();
            executor.submit(job).unwrap();
            woken.recv_timeout(Duration::from_secs(10)).expect("the owner is woken");
            executor.poll().unwrap().expect("finished before the wake-up").result
        };
        assert!(execute(batch_of(7)).is_err(), "not before it is taken in");
        assert_eq!(execute(Job::Install(ModelId(7))), Ok(()));
        assert_eq!(execute(batch_of(7)), Ok(()));
        assert_eq!(execute(Job::Unload(ModelId(7))), Ok(()));
        assert_eq!(execute(Job::Load(ModelId(7))), Ok(()), "from its description");
        assert_eq!(execute(Job::Remove(ModelId(7))), Ok(()));
        assert!(execute(batch_of(7)).is_err());
        assert_eq!(execute(batch_of(0)), Ok(()), "the other one is as it was");
    }

    #[test]
    fn a_model_that_does_not_load_is_reported_from_the_thread() {
        let mut spec = emulated("toy", 0, 4, 2);
        spec.output_bytes = 40;
        let owner = Waker::for_current_thread();
        let error = ThreadExecutor::start(placing(), vec![spec], owner).unwrap_err().to_string();
        assert!(error.contains("`toy`") && error.contains("output_bytes"), "{error}");
    }
}

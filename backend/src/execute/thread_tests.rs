//! An executor on its own thread, with engines that block and one that does not.

use std::time::Duration;

use baton_rdma::BatchBuffer;
use baton_topo::Idle;

use super::stepped::{Device, MODEL_BYTES, Step};
use super::*;
use crate::execute::{BlockingEngine, Inputs, LooseModel, ModelSource, Outputs, checksum};
use crate::test_models::emulated;

const PATIENCE: Duration = Duration::from_secs(10);
const TOY: ModelId = ModelId(0);

fn placing() -> Placing {
    let placement = Placement { name: "test-gpu".into(), core: None, idle: Idle::Park };
    let (clock, model_memory) = (Clock::start(), None);
    let (store, trials) = (HostStore::default(), vec![]);
    Placing { placement, clock, slot: 0, seed: 1, model_memory, store, trials, measure: true }
}

/// An executor, and the thread that it wakes.
struct Rig {
    executor: ThreadExecutor,
    owner: Waker,
    woken: Receiver<()>,
}

/// What its owner is woken by.
fn bell() -> (Waker, Receiver<()>) {
    let (woken_out, woken) = bounded(64);
    (Waker::new(move || woken_out.send(()).unwrap()), woken)
}

impl Rig {
    fn new() -> Self {
        let (owner, woken) = bell();
        let models = vec![emulated("toy", 0, 4, 2)];
        let (executor, measured) = ThreadExecutor::start(placing(), models, owner.clone()).unwrap();
        assert!(measured.is_empty(), "an emulated profile is known");
        Self { executor, owner, woken }
    }

    fn with<E: Engine + 'static>(make: impl Fn() -> E + Clone + Send + 'static) -> Self {
        let (owner, woken) = bell();
        let models = vec![emulated("toy", 0, 4, 2)];
        let (executor, _) =
            ThreadExecutor::start_with(placing(), models, owner.clone(), make).unwrap();
        Self { executor, owner, woken }
    }

    /// What comes back next.
    fn next(&mut self) -> Result<Event, ExecutorDied> {
        loop {
            self.owner.prepare_sleep();
            if let Some(event) = self.executor.poll()? {
                return Ok(event);
            }
            self.woken.recv_timeout(PATIENCE).expect("the owner is woken, also by a thread's end");
        }
    }

    fn next_batch(&mut self) -> BatchBack {
        match self.next() {
            Ok(Event::Batch(back)) => back,
            other => panic!("{other:?}"),
        }
    }

    /// A batch executes alone.
    fn execute(&mut self, model: u32) -> Result<(), EngineError> {
        self.executor.prepare(BatchJob { model: ModelId(model), ..batch(0) });
        self.executor.submit(0);
        match self.next_batch().end {
            BatchEnd::Executed { result, .. } => result,
            other => panic!("{other:?}"),
        }
    }

    fn begin_to_load(&mut self, model: u32) {
        let source = ModelSource::Spec(Box::new(emulated("added", 0, 4, 2)));
        let order = LoadOrder { model: ModelId(model), source, measure: true, keeps_files: false };
        self.executor.load_aside(order);
    }

    fn load_aside(&mut self, model: u32) -> Result<Loaded, EngineError> {
        self.begin_to_load(model);
        loop {
            self.owner.prepare_sleep();
            if let Some(outcome) = self.executor.poll_loaded() {
                return outcome;
            }
            // It may be what came back before that rings.
            self.woken.recv_timeout(PATIENCE).expect("the owner is woken");
        }
    }

    fn perform(&mut self, job: ModelJob) -> Result<(), EngineError> {
        self.executor.perform(job);
        match self.next() {
            Ok(Event::Job) => Ok(()),
            other => panic!("{other:?}"),
        }
    }
}

/// A batch of one row of zeros.
fn batch(slot: usize) -> BatchJob {
    batch_in(&BatchBuffer::new(4).unwrap(), slot)
}

fn batch_in(inputs: &Arc<BatchBuffer>, slot: usize) -> BatchJob {
    let rows = inputs.rows(1, 4).unwrap();
    let outputs = outputs(1);
    BatchJob {
        slot,
        model: TOY,
        rows,
        stride: 4,
        lens: vec![4],
        outputs,
        start_by: Nanos::MAX.into(),
    }
}

fn outputs(rows: u32) -> Outputs {
    let mut outputs = Outputs::default();
    outputs.reset(rows, 8);
    outputs
}

fn span(back: &BatchBack) -> (Nanos, Nanos) {
    match back.end {
        BatchEnd::Executed { started, finished, result: Ok(()), .. } => (started, finished),
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn a_batch_goes_to_the_thread_and_comes_back_measured_with_its_rows_free() {
    let mut rig = Rig::new();
    let inputs = rig.executor.memory().inputs(8).unwrap();
    for row in 0..2 {
        inputs.lend(row, 4).unwrap().fill(row as u8);
    }
    let rows = inputs.rows(2, 4).unwrap();
    let job = BatchJob { rows, lens: vec![4; 2], outputs: outputs(2), ..batch(3) };
    rig.executor.prepare(job);
    rig.executor.submit(3);
    let back = rig.next_batch();
    let (started, finished) = span(&back);
    assert!(finished - started >= emulated("toy", 0, 4, 2).profile.latency(2));
    let answers = [0, 1].map(|row| back.outputs.row(row));
    assert_eq!(answers, [Ok(&checksum(&[0; 4])[..]), Ok(&checksum(&[1; 4])[..])]);
    assert!(inputs.lend(0, 4).is_some(), "the rows are free again");
}

#[test]
fn the_second_batch_follows_the_first_without_the_owner() {
    let mut rig = Rig::new();
    for slot in [2, 0] {
        rig.executor.prepare(batch(slot));
        rig.executor.submit(slot);
    }
    // The owner does not poll until the second is back.
    while rig.executor.events.len() < 2 {
        rig.owner.prepare_sleep();
        if rig.executor.events.len() < 2 {
            rig.woken.recv_timeout(PATIENCE).unwrap();
        }
    }
    let (first, second) = (rig.next_batch(), rig.next_batch());
    assert_eq!((first.slot, second.slot), (2, 0), "as they were submitted");
    assert!(span(&first).1 <= span(&second).0, "one at a time");
}

#[test]
fn a_batch_that_comes_too_late_behind_another_comes_back_expired() {
    let mut rig = Rig::new();
    let inputs = BatchBuffer::new(4).unwrap();
    rig.executor.prepare(batch(0));
    rig.executor.prepare(BatchJob { start_by: Nanos(1).into(), ..batch_in(&inputs, 1) });
    rig.executor.submit(0);
    rig.executor.submit(1);
    span(&rig.next_batch());
    let late = rig.next_batch();
    assert_eq!((late.slot, late.end), (1, BatchEnd::Expired));
    assert!(inputs.lend(0, 4).is_some(), "the rows are free again");
    assert_eq!(rig.execute(0), Ok(()), "the executor goes on");
}

/// An engine that blocks in each batch: what makes it, that it has begun one, and whether it survives that.
fn gated() -> (impl Fn() -> Blocking<Gated> + Clone + Send + 'static, Receiver<()>, Sender<bool>) {
    let ((begun, has_begun), (go, gate)) = (bounded(2), bounded(2));
    let gated = move || Gated { begun: begun.clone(), gate: gate.clone() };
    (move || Blocking::new(gated(), Clock::start()), has_begun, go)
}

#[test]
fn what_is_withdrawn_from_an_engine_that_blocks_is_back_while_it_does() {
    let (make, has_begun, go) = gated();
    let mut rig = Rig::with(make);
    rig.executor.prepare(batch(0));
    rig.executor.submit(0);
    has_begun.recv_timeout(PATIENCE).unwrap();
    rig.executor.prepare(batch(1));
    rig.executor.withdraw(1);
    let back = rig.executor.poll().unwrap();
    let Some(Event::Batch(BatchBack { slot: 1, end: BatchEnd::Withdrawn, .. })) = back else {
        panic!("{back:?}");
    };
    go.send(true).unwrap();
    assert_eq!(rig.next_batch().slot, 0);
}

#[test]
fn an_idle_executor_that_is_dropped_waits_for_its_thread() {
    let (make, has_begun, _go) = gated();
    drop(Rig::with(make));
    assert_eq!(has_begun.try_recv(), Err(TryRecvError::Disconnected));
}

#[test]
fn a_thread_that_dies_in_its_second_batch_has_given_the_first_back() {
    let (make, _has_begun, go) = gated();
    let mut rig = Rig::with(make);
    for slot in [0, 1, 2] {
        rig.executor.prepare(batch(slot));
    }
    rig.executor.submit(0);
    rig.executor.submit(1);
    [true, false].into_iter().for_each(|survives| go.send(survives).unwrap());
    assert_eq!(rig.next_batch().slot, 0);
    assert!(matches!(rig.next(), Err(ExecutorDied)));
    rig.executor.thread.take().unwrap().join().unwrap_err();
    rig.executor.withdraw(2);
    assert_eq!(rig.next_batch().end, BatchEnd::Withdrawn, "it never had that");
}

#[test]
fn a_model_that_was_loaded_aside_is_taken_in_between_two_batches_and_given_up_again() {
    let mut rig = Rig::new();
    let loaded = rig.load_aside(7).unwrap();
    assert_eq!((loaded.spec.id, loaded.spec.name.as_str()), (ModelId(7), "added"));
    assert!(loaded.profiles.is_none(), "an emulated profile is known");
    assert!(rig.execute(7).is_err(), "not before it is taken in");
    assert_eq!(rig.perform(ModelJob::Install(ModelId(7))), Ok(()));
    assert_eq!(rig.execute(7), Ok(()));
    assert_eq!(rig.perform(ModelJob::Remove(ModelId(7))), Ok(()));
    assert!(rig.execute(7).is_err());
    assert_eq!(rig.execute(0), Ok(()), "the other one is as it was");
}

#[test]
fn another_thread_loads_when_one_is_given_up() {
    let mut rig = Rig::new();
    rig.begin_to_load(7);
    rig.executor.replace_loader().unwrap();
    assert_eq!(rig.load_aside(8).unwrap().spec.id, ModelId(8));
}

#[test]
fn a_model_that_does_not_load_is_reported_from_the_thread() {
    let mut spec = emulated("toy", 0, 4, 2);
    spec.output_bytes = 40;
    let owner = Waker::for_current_thread();
    let error = ThreadExecutor::start(placing(), vec![spec], owner).unwrap_err().to_string();
    assert!(error.contains("`toy`") && error.contains("output_bytes"), "{error}");
}

#[test]
fn a_device_has_what_is_prepared_and_gives_it_back_when_nothing_reads_it() {
    let (step, steps) = bounded(8);
    let mut rig = Rig::with(move || Device::new(steps.clone()));
    let inputs = [(); 3].map(|()| BatchBuffer::new(4).unwrap());
    for (slot, inputs) in inputs.iter().enumerate() {
        rig.executor.prepare(batch_in(inputs, slot));
    }
    rig.executor.withdraw(1);
    rig.executor.submit(2);
    rig.executor.submit(0);
    step.send(Step::Executed).unwrap();
    assert_eq!(rig.next_batch().slot, 2, "what executed is back");
    assert!(inputs[1].lend(0, 4).is_none(), "and what is being copied is not");
    step.send(Step::Copied).unwrap();
    let back = rig.next_batch();
    assert_eq!((back.slot, back.end), (1, BatchEnd::Withdrawn));
    assert!(inputs[1].lend(0, 4).is_some(), "the rows are free again");
    step.send(Step::Executed).unwrap();
    assert_eq!(rig.next_batch().slot, 0);
    assert_eq!(rig.perform(ModelJob::Remove(TOY)), Ok(()), "now that nothing executes");
}

#[test]
fn what_a_thread_gave_back_before_it_ended_comes_before_word_of_that() {
    let (step, steps) = bounded(8);
    let mut rig = Rig::with(move || Device::new(steps.clone()));
    [Step::Executed, Step::Lost].into_iter().for_each(|next| step.send(next).unwrap());
    rig.executor.prepare(batch(0));
    rig.executor.submit(0);
    rig.executor.thread.take().unwrap().join().unwrap();
    // The owner does not know yet.
    rig.executor.prepare(batch(1));
    assert_eq!(rig.next_batch().slot, 0);
    assert!(matches!(rig.next(), Err(ExecutorDied)));
}

#[test]
fn models_are_loaded_as_far_as_there_is_memory_for_them() {
    let (owner, woken) = bell();
    let models = |count| (0..count).map(|id| emulated("toy", id, 4, 2)).collect::<Vec<_>>();
    let (_step, steps) = bounded(1);
    let make = move || Device::new(steps.clone());
    let start = |count| {
        let placing = Placing { model_memory: Some(2 * MODEL_BYTES), ..placing() };
        ThreadExecutor::start_with(placing, models(count), owner.clone(), make.clone())
    };
    let refused =
        EngineError::Memory { model: "toy".into(), needs_bytes: MODEL_BYTES, free_bytes: 0 };
    assert_eq!(start(3).unwrap_err(), refused, "the third does not fit");
    let mut rig = Rig { executor: start(2).unwrap().0, owner: owner.clone(), woken };
    let added =
        EngineError::Memory { model: "added".into(), needs_bytes: MODEL_BYTES, free_bytes: 0 };
    assert_eq!(rig.load_aside(7).unwrap_err(), added);
    assert_eq!(rig.perform(ModelJob::Remove(TOY)), Ok(()));
    rig.load_aside(7).unwrap();
    assert_eq!(rig.perform(ModelJob::Install(ModelId(7))), Ok(()));
    assert_eq!(rig.load_aside(8).unwrap_err(), added, "it has the place");
    assert_eq!(rig.perform(ModelJob::Remove(ModelId(7))), Ok(()));
    rig.load_aside(8).unwrap();
}

/// Executes when its gate opens, or dies.
struct Gated {
    begun: Sender<()>,
    gate: Receiver<bool>,
}

impl BlockingEngine for Gated {
    fn model_bytes(&mut self, _: &ModelSpec) -> u64 {
        0
    }

    fn load(&mut self, _: &ModelSpec) -> Result<(), EngineError> {
        Ok(())
    }

    fn take(&mut self, _: ModelId) -> Option<LooseModel> {
        None
    }

    fn put(&mut self, _: ModelId, _: LooseModel) {}

    fn execute(
        &mut self,
        _: ModelId,
        _: u16,
        _: Inputs<'_>,
        _: &mut Outputs,
    ) -> Result<(), EngineError> {
        self.begun.send(()).unwrap();
        let survives = self.gate.recv_timeout(PATIENCE).unwrap();
        assert!(survives, "a planted death");
        Ok(())
    }
}

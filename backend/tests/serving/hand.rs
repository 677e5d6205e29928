//! An executor that the test finishes.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use baton_backend::execute::{
    BatchEnd, BatchJob, BatchMemory, CallOrder, EngineError, Event, Executor, ExecutorDied,
    HostMemory, LoadOrder, Loaded, ModelJob, checksum,
};
use baton_types::{FailReason, ModelId, Nanos, Profile};

#[derive(Default)]
struct Inner {
    order: CallOrder,
    /// By batch slot.
    prepared: BTreeMap<usize, BatchJob>,
    /// The first one executes.
    submitted: VecDeque<BatchJob>,
    /// Withdrawn, and still being copied.
    copying: Vec<BatchJob>,
    copies_take_time: bool,
    now: Nanos,
    /// What the executor has that is no batch.
    other: Option<ModelJob>,
    events: VecDeque<Event>,
    /// What is to be loaded aside.
    to_load: Option<LoadOrder>,
    loaded: Option<Result<Loaded, EngineError>>,
    /// Models that were loaded aside and are neither installed nor discarded.
    loose: Vec<ModelId>,
    /// Models whose files need not be in memory any more.
    without_files: Vec<ModelId>,
    is_dead: bool,
}

impl Inner {
    fn end(&mut self, job: BatchJob, end: BatchEnd) {
        self.events.push_back(Event::Batch(job.end(end)));
    }
}

/// Both the worker's executor and the test's handle on it.
#[derive(Clone, Default)]
pub(crate) struct Hand(Rc<RefCell<Inner>>);

impl Hand {
    /// Rows of the batch being executed; `None` while idle.
    pub(crate) fn batch(&self) -> Option<u32> {
        self.0.borrow().submitted.front().map(|job| job.inputs().len())
    }

    /// Rows of the batch behind it.
    pub(crate) fn behind(&self) -> Option<u32> {
        self.0.borrow().submitted.get(1).map(|job| job.inputs().len())
    }

    /// What the clock shows.
    pub(crate) fn set_now(&self, now: Nanos) {
        self.0.borrow_mut().now = now;
    }

    /// How many batches wait for their turn.
    pub(crate) fn prepared(&self) -> usize {
        self.0.borrow().prepared.len()
    }

    /// From now on what is withdrawn is being copied until [`Hand::finish_copies`].
    pub(crate) fn copies_take_time(&self) {
        self.0.borrow_mut().copies_take_time = true;
    }

    /// Whether rows are being copied that are not needed any more.
    pub(crate) fn is_copying(&self) -> bool {
        !self.0.borrow().copying.is_empty()
    }

    /// The rows that were being copied are free. Returns how many batches they belonged to.
    pub(crate) fn finish_copies(&self) -> usize {
        let mut inner = self.0.borrow_mut();
        let copied = std::mem::take(&mut inner.copying);
        let count = copied.len();
        copied.into_iter().for_each(|job| inner.end(job, BatchEnd::Withdrawn));
        count
    }

    /// The batch has been executed in this span: answers with the rows' checksums.
    pub(crate) fn finish(&self, started: Nanos, finished: Nanos) {
        self.finish_without(&[], started, finished);
    }

    /// The same, but these rows are no inputs of the model.
    pub(crate) fn finish_without(&self, rows: &[u32], started: Nanos, finished: Nanos) {
        self.end_batch(started, finished, |job| {
            for row in 0..job.inputs().len() {
                let answer = checksum(job.inputs().row(row));
                job.outputs.row_mut(row).copy_from_slice(&answer);
            }
            rows.iter().for_each(|&row| job.outputs.set(row, Err(FailReason::WrongSize)));
            Ok(())
        });
    }

    /// The engine reports an error.
    pub(crate) fn fail(&self, started: Nanos, finished: Nanos) {
        self.end_batch(started, finished, |job| {
            let (model, batch) = (job.model, job.inputs().len());
            Err(EngineError::Execute { model, batch, problem: "out of memory".into() })
        });
    }

    /// The batch ends, and the one behind it begins, if it still may.
    fn end_batch(
        &self,
        started: Nanos,
        finished: Nanos,
        execute: impl FnOnce(&mut BatchJob) -> Result<(), EngineError>,
    ) {
        let mut inner = self.0.borrow_mut();
        let mut job = inner.submitted.pop_front().expect("a batch is executing");
        let result = execute(&mut job);
        // What starts too late is not executed: then no variant would have been in time.
        let variant = job.start_by.variant_at(started).unwrap_or_else(|| job.start_by.planned());
        inner.end(job, BatchEnd::Executed { variant, started, finished, result });
        let is_late = |next: &mut BatchJob| finished > next.start_by.last();
        if let Some(late) = inner.submitted.pop_front_if(is_late) {
            inner.end(late, BatchEnd::Expired);
        }
    }

    /// The job being executed that is no batch, and this process's id of its model.
    pub(crate) fn other(&self) -> Option<(&'static str, u32)> {
        match self.0.borrow().other.as_ref()? {
            ModelJob::Install(model) => Some(("install", model.0)),
            ModelJob::Remove(model) => Some(("remove", model.0)),
        }
    }

    /// That job is done.
    pub(crate) fn finish_other(&self) {
        let mut inner = self.0.borrow_mut();
        inner.other.take().expect("a model comes or goes");
        inner.events.push_back(Event::Job);
    }

    /// The number of the model that is being loaded aside.
    pub(crate) fn aside(&self) -> Option<u32> {
        self.0.borrow().to_load.as_ref().map(|order| order.model.0)
    }

    /// It has been loaded, and measured if that was asked for.
    pub(crate) fn finish_aside(&self) {
        let mut inner = self.0.borrow_mut();
        let order = inner.to_load.take().expect("a model is being loaded");
        let measured = Profile::from_table(&[Nanos(9); 2]).unwrap();
        let loaded = order
            .describe()
            .map(|spec| Loaded { profiles: order.measure.then_some(vec![measured]), spec });
        inner.loose.extend(loaded.is_ok().then_some(order.model));
        inner.loaded = Some(loaded);
    }

    /// It cannot be loaded.
    pub(crate) fn fail_aside(&self) {
        self.fail_aside_with(no_memory());
    }

    /// The same, for this reason.
    pub(crate) fn fail_aside_with(&self, error: EngineError) {
        let mut inner = self.0.borrow_mut();
        inner.to_load.take().expect("a model is being loaded");
        inner.loaded = Some(Err(error));
    }

    /// Whether the files of what is being loaded stay in memory.
    pub(crate) fn keeps_files(&self) -> bool {
        self.0.borrow().to_load.as_ref().expect("a model is being loaded").keeps_files
    }

    /// This process's ids of models whose files need not be in memory any more.
    pub(crate) fn without_files(&self) -> Vec<u32> {
        self.0.borrow().without_files.iter().map(|model| model.0).collect()
    }

    /// Whether a loaded model waits to be installed.
    pub(crate) fn has_loose(&self) -> bool {
        !self.0.borrow().loose.is_empty()
    }

    /// The executor's thread dies.
    pub(crate) fn die(&self) {
        self.0.borrow_mut().is_dead = true;
    }
}

fn no_memory() -> EngineError {
    let (needs_bytes, free_bytes) = (5 << 20, 1 << 20);
    EngineError::Memory { model: "resnet50".into(), needs_bytes, free_bytes }
}

impl Executor for Hand {
    fn prepare(&mut self, batch: BatchJob) {
        let mut inner = self.0.borrow_mut();
        inner.order.prepare(batch.slot);
        assert!(!batch.inputs().is_empty());
        inner.prepared.insert(batch.slot, batch);
    }

    fn submit(&mut self, slot: usize) {
        let mut inner = self.0.borrow_mut();
        inner.order.submit(slot);
        let batch = inner.prepared.remove(&slot).unwrap();
        assert!(
            inner.now <= batch.start_by.last(),
            "a batch is submitted that cannot start in time"
        );
        inner.submitted.push_back(batch);
    }

    fn withdraw(&mut self, slot: usize) {
        let mut inner = self.0.borrow_mut();
        inner.order.withdraw(slot);
        let batch = inner.prepared.remove(&slot).unwrap();
        match inner.copies_take_time {
            true => inner.copying.push(batch),
            false => inner.end(batch, BatchEnd::Withdrawn),
        }
    }

    fn perform(&mut self, job: ModelJob) {
        let mut inner = self.0.borrow_mut();
        inner.order.perform();
        if let ModelJob::Install(model) = job {
            let at = inner.loose.iter().position(|&loose| loose == model);
            inner.loose.remove(at.expect("nothing to install"));
        }
        inner.other = Some(job);
    }

    fn poll(&mut self) -> Result<Option<Event>, ExecutorDied> {
        let mut inner = self.0.borrow_mut();
        let Some(event) = inner.events.pop_front() else {
            return if inner.is_dead { Err(ExecutorDied) } else { Ok(None) };
        };
        inner.order.event(&event);
        Ok(Some(event))
    }

    fn memory(&self) -> &dyn BatchMemory {
        &HostMemory
    }

    fn load_aside(&mut self, order: LoadOrder) {
        let before = self.0.borrow_mut().to_load.replace(order);
        assert!(before.is_none(), "one model at a time");
    }

    fn poll_loaded(&mut self) -> Option<Result<Loaded, EngineError>> {
        self.0.borrow_mut().loaded.take()
    }

    fn replace_loader(&mut self) -> Result<(), ExecutorDied> {
        self.0.borrow_mut().to_load.take().expect("a model is being loaded");
        Ok(())
    }

    fn discard(&mut self, model: ModelId) {
        self.0.borrow_mut().loose.retain(|&loaded| loaded != model);
    }

    fn drop_files(&mut self, model: ModelId) {
        self.0.borrow_mut().without_files.push(model);
    }
}

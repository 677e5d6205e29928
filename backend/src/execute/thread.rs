//! A GPU slot's executor thread: makes its engine, then passes calls on to it.
//!
//! In: orders over a bounded channel. Out: what comes back over another, and a wake-up of the I/O
//! thread. Models that are added later come with an order, loaded by a thread of their own (`aside.rs`). The thread ends when
//! its [`ThreadExecutor`] is dropped.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;

use baton_topo::{Agent, Clock, ModelSpec, Placement, SLEEP_MAX, Waker, park_thread, run};
use baton_types::{ModelId, Nanos};
use crossbeam_channel::{Receiver, Sender, TryRecvError, TrySendError, bounded};

use super::aside::{Aside, Errand, Installable, Resident, drop_aside, load_measured};
use super::budget::{Budget, Share};
use super::trials::measure_each;
use super::{
    BatchBack, BatchEnd, BatchJob, BatchMemory, Blocking, CallOrder, Engine, EngineError, Engines,
    Event, Executor, ExecutorDied, HostStore, LoadOrder, Loaded, Measured, ModelJob,
};
use crate::config::BATCH_SLOTS;

/// Orders and events under way: each batch slot's batch has at most two of the former, and there is one job.
const UNDER_WAY_MAX: usize = 2 * BATCH_SLOTS + 1;

/// Where an executor's thread runs, and what it needs to know about the process.
#[derive(Clone, Debug)]
pub struct Placing {
    /// Name, core and idling of the thread.
    pub placement: Placement,
    /// The process's clock.
    pub clock: Clock,
    /// The number of the GPU slot: its device is that many behind the one that a model names.
    pub slot: u32,
    /// Decides the emulated engine's jitter.
    pub seed: u64,
    /// Bytes that its models may take; `None`: no bound.
    pub model_memory: Option<u64>,
    /// Model files in memory.
    pub store: HostStore,
    /// Models that it measures at its start and does not keep: LOADs bring them.
    pub trials: Vec<ModelSpec>,
    /// Whether to measure ℓ(b) of the models whose cluster file can only guess it. One GPU slot of
    /// a backend does so for all.
    pub measure: bool,
}

/// The I/O thread's handle on an executor thread.
#[derive(Debug)]
pub struct ThreadExecutor {
    /// `None` only while dropping: closing the channel ends the thread.
    orders: Option<Sender<Order>>,
    events: Receiver<Event>,
    thread: Option<JoinHandle<()>>,
    /// Wakes the executor thread.
    waker: Waker,
    memory: Box<dyn BatchMemory>,
    /// By batch slot: what is prepared, if the engine does not copy ahead. It need not be asked to give that back, and could
    /// not answer while it executes.
    kept: Option<[Option<BatchJob>; BATCH_SLOTS]>,
    /// Of that, what was withdrawn and has not been polled.
    withdrawn: VecDeque<BatchBack>,
    order: CallOrder,
    aside: Aside,
    kept_files: HostStore,
}

/// What the executor's thread is to do.
#[derive(Debug)]
enum Order {
    Prepare(BatchJob),
    Submit(usize),
    Withdraw(usize),
    /// Prepare it and submit it.
    Execute(BatchJob),
    /// The model that was loaded aside is taken in.
    Install(Box<Installable>),
    /// The model is given up.
    Remove(ModelId),
}

/// What the thread says once its models are loaded.
struct Started {
    waker: Waker,
    measured: Measured,
    memory: Box<dyn BatchMemory>,
    copies_ahead: bool,
}

impl ThreadExecutor {
    /// Starts a thread that loads `models`, then executes, and wakes `owner` whenever something has
    /// come back. Blocks until the models are loaded, and measured if `placing` asks for it.
    ///
    /// # Errors
    /// A model cannot be loaded, or the thread cannot be started.
    pub fn start(
        placing: Placing,
        models: Vec<ModelSpec>,
        owner: Waker,
    ) -> Result<(Self, Measured), EngineError> {
        let Placing { clock, slot, seed, .. } = placing;
        let store = placing.store.clone();
        let make = move || Blocking::new(Engines::new(clock, slot, seed, store.clone()), clock);
        Self::start_with(placing, models, owner, make)
    }

    /// As [`ThreadExecutor::start`], with any engine. `make` is called on the threads that it executes and loads on.
    ///
    /// # Errors
    /// See there.
    pub fn start_with<E: Engine + 'static>(
        placing: Placing,
        models: Vec<ModelSpec>,
        owner: Waker,
        make: impl Fn() -> E + Clone + Send + 'static,
    ) -> Result<(Self, Measured), EngineError> {
        let (orders, orders_in) = bounded(UNDER_WAY_MAX);
        let (events_out, events) = bounded(UNDER_WAY_MAX);
        let (started_out, started) = bounded(1);
        let name = placing.placement.name.clone();
        let (budget, loader) = (Budget::new(placing.model_memory), format!("{name}-load"));
        let Placing { placement, clock, measure, store, trials, .. } = placing;
        let (kept_files, memory) = (store.clone(), (budget.clone(), store.clone()));
        let (aside, errands) = Aside::start(loader, make.clone(), memory, owner.clone())
            .map_err(|error| cannot_start(error.to_string()))?;
        let loading = Loading { models, measure, store, trials, report: started_out };
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            // Dropped after the agent, also where that panics: the owner then finds the channel closed.
            let _end = WakeAtEnd(owner.clone());
            let mut agent = ExecutorAgent {
                engine: make(),
                budget,
                shares: BTreeMap::new(),
                loading: Some(loading),
                orders: orders_in,
                events: events_out,
                errands,
                waker: Waker::for_current_thread(),
                owner,
                closed: false,
            };
            run(&mut agent, clock, &placement, &Arc::default());
        });
        let thread = Some(thread.map_err(|error| cannot_start(error.to_string()))?);
        let died = |_| cannot_start("its thread died while loading".into());
        let Started { waker, measured, memory, copies_ahead } = started.recv().map_err(died)??;
        let executor = Self {
            orders: Some(orders),
            events,
            thread,
            waker,
            memory,
            kept: (!copies_ahead).then(|| std::array::from_fn(|_| None)),
            withdrawn: VecDeque::new(),
            order: CallOrder::default(),
            aside,
            kept_files,
        };
        Ok((executor, measured))
    }

    fn send(&self, order: Order) {
        let orders = self.orders.as_ref().expect("it has its orders until it is dropped");
        let sent = orders.try_send(order);
        assert!(
            !matches!(sent, Err(TrySendError::Full(_))),
            "there is room for all that may be ordered"
        );
        self.waker.wake();
    }
}

fn cannot_start(problem: String) -> EngineError {
    let fix = "see the log above, and the limits on threads (ulimit -u)";
    EngineError::Library { engine: "executor", problem, fix }
}

impl Executor for ThreadExecutor {
    fn prepare(&mut self, batch: BatchJob) {
        self.order.prepare(batch.slot);
        let Some(kept) = &mut self.kept else { return self.send(Order::Prepare(batch)) };
        let slot = batch.slot;
        kept[slot] = Some(batch);
    }

    fn submit(&mut self, slot: usize) {
        self.order.submit(slot);
        let kept = self.kept.as_mut().and_then(|kept| kept[slot].take());
        self.send(kept.map_or(Order::Submit(slot), Order::Execute));
    }

    fn withdraw(&mut self, slot: usize) {
        self.order.withdraw(slot);
        match self.kept.as_mut().and_then(|kept| kept[slot].take()) {
            Some(job) => self.withdrawn.push_back(job.end(BatchEnd::Withdrawn)),
            None => self.send(Order::Withdraw(slot)),
        }
    }

    fn perform(&mut self, job: ModelJob) {
        self.order.perform();
        let order = match job {
            ModelJob::Install(model) => {
                let loaded = self.aside.take(model).expect("installed only after it was loaded");
                Order::Install(Box::new(loaded))
            }
            ModelJob::Remove(model) => Order::Remove(model),
        };
        self.send(order);
    }

    fn poll(&mut self) -> Result<Option<Event>, ExecutorDied> {
        let event = match self.withdrawn.pop_front() {
            Some(back) => Event::Batch(back),
            None => match self.events.try_recv() {
                Ok(event) => event,
                Err(TryRecvError::Empty) => return Ok(None),
                Err(TryRecvError::Disconnected) => return Err(ExecutorDied),
            },
        };
        self.order.event(&event);
        Ok(Some(event))
    }

    fn memory(&self) -> &dyn BatchMemory {
        &*self.memory
    }

    fn load_aside(&mut self, order: LoadOrder) {
        self.aside.load(order);
    }

    fn poll_loaded(&mut self) -> Option<Result<Loaded, EngineError>> {
        self.aside.poll()
    }

    fn replace_loader(&mut self) -> Result<(), ExecutorDied> {
        self.aside.replace().map_err(|error| {
            tracing::error!(%error, "there is no thread to load on; see the limits on threads (ulimit -u)");
            ExecutorDied
        })
    }

    fn discard(&mut self, model: ModelId) {
        self.aside.discard(model);
    }

    fn drop_files(&mut self, model: ModelId) {
        self.aside.drop_files(self.kept_files.remove(model));
    }
}

impl Drop for ThreadExecutor {
    fn drop(&mut self) {
        drop(self.orders.take());
        self.waker.wake();
        // An engine that hangs must not keep the process from ending.
        if !self.order.is_committed()
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
    models: Vec<ModelSpec>,
    measure: bool,
    store: HostStore,
    trials: Vec<ModelSpec>,
    report: Sender<Result<Started, EngineError>>,
}

/// What runs on the executor's thread.
struct ExecutorAgent<E> {
    engine: E,
    /// What models may take, and what each of those loaded has of it.
    budget: Budget,
    shares: BTreeMap<ModelId, Share>,
    loading: Option<Loading>,
    orders: Receiver<Order>,
    events: Sender<Event>,
    /// To the thread that loads, which drops what is removed here.
    errands: Sender<Errand>,
    /// This thread's.
    waker: Waker,
    /// The I/O thread's.
    owner: Waker,
    closed: bool,
}

/// The owner learns of the thread's end at once, not when it looks up next.
struct WakeAtEnd(Waker);

impl Drop for WakeAtEnd {
    fn drop(&mut self) {
        self.0.wake();
    }
}

impl<E: Engine> ExecutorAgent<E> {
    /// Loads on the thread that will execute, after it has been pinned, so that what is measured
    /// is what will be.
    fn load(&mut self, loading: &Loading) -> Result<Started, EngineError> {
        let known = (&self.budget, &loading.store);
        let mut measured = measure_each(&mut self.engine, known, &loading.trials)?;
        for spec in &loading.models {
            let (engine, budget) = (&mut self.engine, &self.budget);
            let (share, profiles) = load_measured(engine, budget, spec, loading.measure)?;
            self.shares.insert(spec.id, share);
            measured.extend(profiles.map(|profiles| (spec.id, profiles)));
        }
        tracing::debug!(bytes = self.budget.taken(), "the models are loaded");
        let (memory, copies_ahead) = (self.engine.memory(), self.engine.copies_ahead());
        Ok(Started { waker: self.waker.clone(), measured, memory, copies_ahead })
    }

    fn begin(&mut self, loading: &Loading) {
        let started = self.load(loading);
        self.closed |= started.is_err();
        self.closed |= loading.report.send(started).is_err();
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Prepare(batch) => self.engine.prepare(batch),
            Order::Submit(slot) => self.engine.submit(slot),
            Order::Withdraw(slot) => self.engine.withdraw(slot),
            Order::Execute(batch) => {
                let slot = batch.slot;
                self.engine.prepare(batch);
                self.engine.submit(slot);
            }
            Order::Install(loaded) => self.install(*loaded),
            Order::Remove(model) => self.remove(model),
        }
    }

    fn tell(&mut self, event: Event) {
        self.closed |= self.events.send(event).is_err();
        self.owner.wake();
    }

    fn install(&mut self, Installable { spec, resident }: Installable) {
        self.engine.put(spec.id, resident.model);
        self.shares.insert(spec.id, resident.share);
        self.tell(Event::Job);
    }

    fn remove(&mut self, model: ModelId) {
        if let (Some(model), Some(share)) = (self.engine.take(model), self.shares.remove(&model)) {
            drop_aside(&self.errands, Errand::Drop(Resident { model, share }));
        }
        self.tell(Event::Job);
    }

    /// Ends the thread if its engine can do nothing more; nothing that it still owes will ever come back then.
    fn end_if_lost(&mut self) -> bool {
        let Some(problem) = self.engine.lost() else { return false };
        tracing::error!("{problem}; restart this backend");
        self.closed = true;
        true
    }

    /// Carries out the orders that came meanwhile. Returns their number.
    fn obey_all(&mut self) -> usize {
        let mut obeyed = 0;
        while !self.closed {
            match self.orders.try_recv() {
                Ok(order) => self.obey(order),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => self.closed = true,
            }
            obeyed += 1;
        }
        obeyed
    }
}

impl<E: Engine> Agent for ExecutorAgent<E> {
    fn poll(&mut self, _now: Nanos) -> usize {
        if let Some(loading) = self.loading.take() {
            self.begin(&loading);
            return 1;
        }
        let obeyed = self.obey_all();
        if self.closed {
            return obeyed;
        }
        let Some(back) = self.engine.poll() else {
            return obeyed + usize::from(self.end_if_lost() || self.engine.is_busy());
        };
        self.tell(Event::Batch(back));
        obeyed + 1
    }

    fn next_timer(&self) -> Option<Nanos> {
        None
    }

    fn wait(&mut self, timeout: Option<Nanos>) {
        park_thread(timeout);
    }

    fn sleep_max(&self) -> Nanos {
        SLEEP_MAX
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn finished(&self) -> bool {
        self.closed
    }
}

#[cfg(test)]
#[path = "agent_tests.rs"]
mod agent_tests;
#[cfg(test)]
#[path = "stepped.rs"]
mod stepped;
#[cfg(test)]
#[path = "thread_tests.rs"]
mod tests;

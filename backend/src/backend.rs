//! A backend process's threads: one for I/O, one executor per GPU slot, and the handle on them.
//!
//! A backend that loses its scheduler answers the batches that execute, and retries without a limit until
//! it has joined a scheduler again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use baton_cuda::Library;
use baton_membership::Stage;
use baton_metrics::Metric;
use baton_rdma::wire::Role;
use baton_rdma::{Credentials, Identity, MixedTransport, TcpConfig, Transport};
use baton_topo::{Agent, Clock, FabricSpec, Idle, ModelSpec, Placement, Waker, run};
use baton_types::Nanos;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::config::BackendConfig;
use crate::counters::Counters;
use crate::error::BackendError;
use crate::execute::{Cuda, HostStore, Measured, Placing, ThreadExecutor};
use crate::first_device::first_device;
use crate::pull::ModelPulls;
use crate::worker::Worker;

/// How old [`BackendHandle::counters`] may be.
const COUNTERS_EVERY: Nanos = Nanos::from_millis(100);
/// Grace on top of a bound that the I/O thread keeps itself.
const MARGIN: Nanos = Nanos::from_millis(5_000);

type Outcome = Result<(), BackendError>;

/// Starts backends.
#[derive(Debug)]
pub struct Backend;

impl Backend {
    /// Loads the models of the backend's sub-cluster on every GPU slot, joins the scheduler and
    /// returns once actions may arrive.
    ///
    /// # Errors
    /// A model cannot be loaded, or the scheduler cannot be reached or does not let us in within
    /// `config.join_timeout`. Nothing is left running then.
    pub fn start(mut config: BackendConfig, clock: Clock) -> Result<BackendHandle, BackendError> {
        let mut pulls = ModelPulls::new(config.model_folder.clone(), &config.name);
        pulls.pull_at_start(&mut config.models).map_err(BackendError::ModelFile)?;
        drop(pulls);
        let identity = Identity { role: Role::Backend, member: 0 };
        let tcp = TcpConfig { credit_bytes: config.credit_bytes.into(), ..TcpConfig::default() };
        let FabricSpec { transport: choice, verbs, tls } = &config.fabric;
        let failed = |problem| BackendError::Start { what: "the transport", problem };
        let credentials = tls.as_ref().map(Credentials::load_and_warn).transpose();
        let credentials = credentials.map_err(|error| failed(error.to_string()))?;
        let credentials = credentials.as_ref();
        let transport =
            MixedTransport::bind(None, identity, tcp, *choice, verbs, credentials, clock)
                .map_err(|error| failed(error.to_string()))?;
        let waker = transport.waker();
        let (executors, measured) = start_executors(&config, clock, &waker)?;
        let patience = config.join_timeout + MARGIN;
        let leave_timeout = config.leave_timeout;
        let place = placement(&config, String::from("baton-backend"), 0);

        let shared = Arc::new(Shared::default());
        let (ready_out, ready) = bounded(1);
        let (ended_out, ended) = bounded(1);
        let agent = IoAgent {
            worker: Worker::new(config, measured, transport, executors)?,
            shared: Arc::clone(&shared),
            ready: Some(ready_out),
            is_leaving: false,
            counted_at: Nanos::ZERO,
        };
        let thread = std::thread::Builder::new()
            .name(place.name.clone())
            .spawn(move || agent.run(clock, &place, &ended_out))
            .map_err(|error| BackendError::Start {
                what: "a thread",
                problem: error.to_string(),
            })?;
        let handle = BackendHandle {
            shared,
            waker,
            ended,
            outcome: OnceLock::new(),
            thread: Some(thread),
            leave_timeout,
        };
        handle.wait_until_ready(&ready, patience)?;
        Ok(handle)
    }
}

/// A running backend. Dropping it stops the backend without leaving: the scheduler sees it die.
#[derive(Debug)]
pub struct BackendHandle {
    shared: Arc<Shared>,
    waker: Waker,
    ended: Receiver<Outcome>,
    outcome: OnceLock<Outcome>,
    thread: Option<JoinHandle<()>>,
    leave_timeout: Nanos,
}

impl BackendHandle {
    /// Drains: no new grants, outstanding batches are answered, then the backend ends. Returns its
    /// last counters.
    ///
    /// # Errors
    /// That took longer than the configuration's `leave_timeout`, or the backend had ended already.
    pub fn leave(self) -> Result<Counters, BackendError> {
        self.shared.leave.store(true, Ordering::Release);
        self.waker.wake();
        let outcome = self.wait_for(Duration::from_nanos(self.leave_timeout.0));
        outcome.unwrap_or(Err(BackendError::LeaveTimeout))?;
        Ok(self.counters())
    }

    /// Blocks until the backend has ended by itself.
    ///
    /// # Errors
    /// Why it did; a backend that was not asked to leave always ends with one.
    pub fn wait(&self) -> Result<(), BackendError> {
        loop {
            if let Some(outcome) = self.wait_for(Duration::from_secs(3600)) {
                return outcome;
            }
        }
    }

    /// As [`BackendHandle::wait`], but only for `timeout`: `None` while the backend runs.
    pub fn wait_for(&self, timeout: Duration) -> Option<Result<(), BackendError>> {
        if let Some(outcome) = self.outcome.get() {
            return Some(outcome.clone());
        }
        let outcome = match self.ended.recv_timeout(timeout) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => Err(BackendError::WorkerDied),
        };
        Some(self.outcome.get_or_init(|| outcome).clone())
    }

    /// Reads what this backend shows to Prometheus, as old as [`BackendHandle::counters`]. It keeps nothing running.
    pub fn metrics(&self) -> impl Fn() -> Vec<Metric> + Send + use<> {
        let shared = Arc::clone(&self.shared);
        move || shared.counters.lock().unwrap_or_else(PoisonError::into_inner).metrics()
    }

    /// What has been counted; up to 100 ms old while the backend runs, exact once it has ended.
    pub fn counters(&self) -> Counters {
        *self.shared.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A backend that has joined may still load a model that is added meanwhile, for as long as that takes.
    fn wait_until_ready(&self, ready: &Receiver<()>, patience: Nanos) -> Outcome {
        match ready.recv_timeout(Duration::from_nanos(patience.0)) {
            Ok(()) => Ok(()),
            Err(RecvTimeoutError::Timeout) if self.shared.has_joined.load(Ordering::Acquire) => {
                self.wait_until_ready(ready, patience)
            }
            Err(RecvTimeoutError::Timeout) => {
                let problem = String::from("it has neither joined nor failed in time");
                Err(BackendError::Start { what: "the I/O thread", problem })
            }
            // It ended before it was ready.
            Err(RecvTimeoutError::Disconnected) => self.wait(),
        }
    }
}

impl Drop for BackendHandle {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the backend's I/O thread panicked");
        }
    }
}

/// Between the handle and the I/O thread.
#[derive(Debug, Default)]
struct Shared {
    stop: Arc<AtomicBool>,
    leave: AtomicBool,
    /// The scheduler has let this backend in, at least once.
    has_joined: AtomicBool,
    counters: Mutex<Counters>,
}

/// The worker with its ties to the process.
struct IoAgent {
    worker: Worker<MixedTransport, ThreadExecutor>,
    shared: Arc<Shared>,
    /// Gets one message when actions may arrive; dropped unused if the backend ends before.
    ready: Option<Sender<()>>,
    is_leaving: bool,
    counted_at: Nanos,
}

impl IoAgent {
    fn run(mut self, clock: Clock, placement: &Placement, ended: &Sender<Outcome>) {
        let stop = Arc::clone(&self.shared.stop);
        run(&mut self, clock, placement, &stop);
        self.publish();
        let outcome = self.worker.result().cloned().unwrap_or(Err(BackendError::Stopped));
        // The receiver may be gone: the handle was dropped.
        let _ = ended.try_send(outcome);
    }

    /// Tells the handle how far the start has come.
    fn tell_start(&mut self) {
        if self.worker.stage() == Stage::Ready {
            self.shared.has_joined.store(true, Ordering::Release);
        }
        if self.worker.serves()
            && let Some(ready) = self.ready.take()
        {
            let _ = ready.try_send(());
        }
    }

    fn publish(&self) {
        let counters = self.worker.counters();
        *self.shared.counters.lock().unwrap_or_else(PoisonError::into_inner) = counters;
    }
}

impl Agent for IoAgent {
    fn poll(&mut self, now: Nanos) -> usize {
        if !self.is_leaving && self.shared.leave.load(Ordering::Acquire) {
            self.is_leaving = true;
            self.worker.leave(now);
        }
        let work = self.worker.poll(now);
        if self.ready.is_some() {
            self.tell_start();
        }
        if now >= self.counted_at + COUNTERS_EVERY {
            self.counted_at = now;
            self.publish();
        }
        work
    }

    fn next_timer(&self) -> Option<Nanos> {
        self.worker.next_timer()
    }

    fn wait(&mut self, timeout: Option<Nanos>) {
        self.worker.wait(timeout);
    }

    fn sleep_max(&self) -> Nanos {
        self.worker.sleep_max()
    }

    fn waker(&self) -> Waker {
        self.worker.waker()
    }

    fn finished(&self) -> bool {
        self.worker.finished()
    }
}

/// One executor per GPU slot, one after the other, so that the first one measures undisturbed.
fn start_executors(
    config: &BackendConfig,
    clock: Clock,
    owner: &Waker,
) -> Result<(Vec<ThreadExecutor>, Measured), BackendError> {
    let mut executors = Vec::new();
    let mut measured = Measured::new();
    let store = HostStore::fill(config.loaded_later(), config.host_weights);
    for gpu in 0..config.gpus {
        let placing = placing(config, gpu, clock, &store);
        let models: Vec<_> = config.loaded_at_start().cloned().collect();
        let owner = owner.clone();
        let (executor, profiles) = match first_device(&config.models) {
            None => {
                tell_of_calls(&models);
                ThreadExecutor::start(placing, models, owner)?
            }
            Some(first) => {
                let (spins, store) = (config.idle == Idle::Spin, store.clone());
                let make = move || {
                    let slot = (gpu, first + gpu);
                    Cuda::new(Library::open, clock, slot, store.clone()).spinning(spins)
                };
                ThreadExecutor::start_with(placing, models, owner, make)?
            }
        };
        executors.push(executor);
        measured.extend(profiles);
    }
    Ok((executors, measured))
}

/// Without graphs a batch's rows are not copied while the one before executes.
fn tell_of_calls(models: &[ModelSpec]) {
    for model in models.iter().filter(|model| model.engine.is_on_gpu()) {
        tracing::info!(
            model = model.name,
            can_be_captured = model.is_captured(),
            "its batches execute by calls and not as CUDA graphs: see docs/gpu.md, ONNX models"
        );
    }
}

/// The first GPU slot measures for all.
fn placing(config: &BackendConfig, gpu: u32, clock: Clock, store: &HostStore) -> Placing {
    let measure = gpu == 0;
    let is_tried = |model: &&ModelSpec| measure && model.engine.is_measured();
    Placing {
        placement: placement(config, format!("baton-gpu{gpu}"), gpu as usize + 1),
        clock,
        slot: gpu,
        seed: u64::from(gpu) + 1,
        model_memory: config.model_memory,
        store: store.clone(),
        trials: config.loaded_later().filter(is_tried).cloned().collect(),
        measure,
    }
}

fn placement(config: &BackendConfig, name: String, core: usize) -> Placement {
    Placement { name, core: config.cores.get(core).copied(), idle: config.idle }
}

#[cfg(test)]
mod tests {
    use baton_topo::WeightsCacheSpec;

    use super::*;
    use crate::config::tests::{SCHEDULER, cluster};
    use crate::test_models::{captured, emulated};

    #[test]
    fn the_first_slot_measures_for_all_what_can_be_measured() {
        let mut config = BackendConfig::from_cluster(&cluster(), "one", SCHEDULER).unwrap();
        config.models = vec![captured(0), emulated("toy", 1, 4, 2)];
        config.weights_cache = Some(WeightsCacheSpec { pages: 4, page_bytes: 1 << 20 });
        let [first, second] =
            [0, 1].map(|gpu| placing(&config, gpu, Clock::start(), &HostStore::default()));
        let names: Vec<_> = first.trials.iter().map(|model| model.name.as_str()).collect();
        assert_eq!((first.slot, first.measure, names), (0, true, vec!["graphs"]));
        assert_eq!((second.slot, second.measure, second.trials.len()), (1, false, 0));
    }
}

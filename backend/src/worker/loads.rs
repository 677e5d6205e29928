//! LOADs: weights come to a GPU slot beside its batches, and victims leave.
//!
//! A copy that has ended is reported at once. The executor takes the model in before its next batch, and a batch that is
//! here earlier waits for that.

use baton_rdma::Transport;
use baton_rdma::wire::{Load, LoadDone, LoadFault, LoadStatus};
use baton_types::{ModelId, Nanos};
use zerocopy::little_endian::U32;

use super::Worker;
use crate::error::BackendError;
use crate::execute::{EngineError, Executor, LoadOrder, Loaded, ModelSource};
use crate::loader::{LoadAction, NotLoaded};

/// What a report says, on this process's clock.
struct Report {
    id: u64,
    thread: u32,
    status: LoadStatus,
    fault: LoadFault,
    started: Nanos,
    finished: Nanos,
}

impl Report {
    /// Of a LOAD that has copied nothing.
    fn at_once((id, thread): (u64, u32), status: LoadStatus, now: Nanos) -> Self {
        Self { id, thread, status, fault: LoadFault::Other, started: now, finished: now }
    }
}

impl<T: Transport, E: Executor> Worker<T, E> {
    /// The scheduler sends a LOAD. Its victims leave whatever becomes of it.
    pub(super) fn on_load(&mut self, thread: u32, wire: &Load, victims: &[U32], now: Nanos) {
        let gpu = wire.gpu.get().wrapping_sub(self.join.first_gpu()) as usize;
        let report = |status| Report::at_once((wire.load.get(), thread), status, now);
        if self.gpus.get(gpu).is_none_or(|gpu| gpu.loader.is_none()) {
            tracing::warn!(
                gpu = wire.gpu.get(),
                "refused a LOAD for a slot that has no weights cache here"
            );
            self.counters.plans_unknown += 1;
            return self.report_load(gpu, &report(LoadStatus::Failed), now);
        }
        for victim in victims {
            if let Some(model) = self.join.served.model(victim.get()) {
                self.evict(gpu, model.local);
            }
        }
        if let Err(status) = self.admit_load(gpu, thread, wire) {
            self.report_load(gpu, &report(status), now);
        }
    }

    fn evict(&mut self, gpu: usize, model: ModelId) {
        let gpu = &mut self.gpus[gpu];
        if gpu.loader.as_mut().is_some_and(|loader| loader.evict(model)) {
            gpu.residency.evict(model);
            self.counters.unloads += 1;
        }
    }

    /// A model was removed: every slot gives its pages back, and a LOAD of it that has not begun comes to nothing.
    pub(super) fn remove_weights(&mut self, model: ModelId, now: Nanos) {
        self.gpus[0].executor.drop_files(model);
        for gpu in 0..self.gpus.len() {
            self.evict(gpu, model);
            let loader = self.gpus[gpu].loader.as_mut();
            if let Some(LoadAction { id, thread, .. }) = loader.and_then(|l| l.cancel(model)) {
                let report = Report::at_once((id, thread), LoadStatus::Failed, now);
                self.report_load(gpu, &report, now);
            }
        }
    }

    fn admit_load(&mut self, gpu: usize, thread: u32, wire: &Load) -> Result<(), LoadStatus> {
        let rules = self.join.rules().ok_or(LoadStatus::Failed)?;
        let latest = rules.sync.to_local(Nanos(wire.latest_ns.get())).ok_or(LoadStatus::Failed)?;
        let model = rules.served.model(wire.model.get()).ok_or(LoadStatus::Failed)?.local;
        let spec = self.models.spec(model).ok_or(LoadStatus::Failed)?;
        let cache = self.config.weights_cache.ok_or(LoadStatus::Failed)?;
        let weights = spec.weights.ok_or(LoadStatus::Failed)?;
        let (id, pages, expected) = (wire.load.get(), cache.pages_of(weights), weights.load);
        let load = LoadAction { id, thread, model, latest, expected };
        let loader = self.gpus[gpu].loader.as_mut().ok_or(LoadStatus::Failed)?;
        loader.admit(load, pages).map_err(|why| match why {
            NotLoaded::NoPages => LoadStatus::NoPages,
            NotLoaded::Unexpected => LoadStatus::Failed,
        })
    }

    /// Takes in what was copied, gives up what is late, and begins what is next. Returns how much there was to do.
    pub(super) fn tend_loads(&mut self, now: Nanos) -> usize {
        let mut done = 0;
        for gpu in 0..self.gpus.len() {
            done += self.follow_copy(gpu, now);
            done += self.give_up_late(gpu, now);
            done += self.begin_copy(gpu, now);
        }
        done
    }

    fn follow_copy(&mut self, gpu: usize, now: Nanos) -> usize {
        let slot = &mut self.gpus[gpu];
        let Some(loader) = slot.loader.as_mut().filter(|loader| loader.is_copying()) else {
            return 0;
        };
        let outcome = match slot.executor.poll_loaded() {
            Some(outcome) => outcome,
            None if !loader.hangs(now) => return 0,
            None if slot.executor.replace_loader().is_ok() => Err(EngineError::Hung),
            None => {
                self.finish(Err(BackendError::ExecutorDied(gpu)), now);
                return 1;
            }
        };
        let Some((model, wanted)) = loader.finish(outcome.is_ok()) else { return 1 };
        if outcome.is_ok() {
            slot.install(model);
        }
        match wanted {
            Some((load, started)) => self.report_copy(gpu, load, (started, now), outcome),
            // No scheduler knows of it.
            None if outcome.is_ok() => slot.residency.evict(model),
            None => {}
        }
        1
    }

    fn report_copy(
        &mut self,
        gpu: usize,
        load: LoadAction,
        (started, finished): (Nanos, Nanos),
        outcome: Result<Loaded, EngineError>,
    ) {
        let LoadAction { id, thread, .. } = load;
        let (status, fault) = match outcome {
            Ok(_) => (LoadStatus::Loaded, LoadFault::Other),
            Err(error) => {
                tracing::error!(gpu, %error, "a LOAD failed");
                self.counters.engine_failed(&error);
                (LoadStatus::Failed, fault_of(&error))
            }
        };
        let report = Report { id, thread, status, fault, started, finished };
        self.report_load(gpu, &report, finished);
    }

    fn give_up_late(&mut self, gpu: usize, now: Nanos) -> usize {
        let mut late = 0;
        while let Some(load) = self.gpus[gpu].loader.as_mut().and_then(|l| l.pop_late(now)) {
            let LoadAction { id, thread, .. } = load;
            self.report_load(gpu, &Report::at_once((id, thread), LoadStatus::Late, now), now);
            late += 1;
        }
        late
    }

    fn begin_copy(&mut self, gpu: usize, now: Nanos) -> usize {
        if gpu == 0 && self.models.need_loading_thread() {
            return 0;
        }
        let slot = &mut self.gpus[gpu];
        let Some(model) = slot.loader.as_mut().and_then(|loader| loader.begin(now)) else {
            return 0;
        };
        slot.executor.load_aside(order(&self.models, model));
        1
    }

    /// A report must not be lost: see [`Worker::report`].
    fn report_load(&mut self, gpu: usize, report: &Report, now: Nanos) {
        let counters = &mut self.counters;
        *match report.status {
            LoadStatus::Loaded => &mut counters.loads,
            LoadStatus::Late => &mut counters.loads_expired,
            LoadStatus::NoPages | LoadStatus::Failed => &mut counters.load_errors,
        } += 1;
        let loader = self.gpus.get(gpu).and_then(|gpu| gpu.loader.as_ref());
        let done = LoadDone {
            load: report.id.into(),
            started_ns: self.join.to_scheduler(report.started).0.into(),
            finished_ns: self.join.to_scheduler(report.finished).0.into(),
            gpu: self.join.first_gpu().wrapping_add(gpu as u32).into(),
            pages_free: loader.map_or(0, |loader| loader.free_pages()).into(),
            status: report.status as u8,
            fault: report.fault as u8,
            reserved: [0; 2],
        };
        self.send_report(report.thread, &done, &[], now);
    }
}

/// What the scheduler hears of it.
fn fault_of(error: &EngineError) -> LoadFault {
    match error {
        EngineError::Unreadable { .. } => LoadFault::Unreadable,
        EngineError::Different { .. } => LoadFault::Different,
        EngineError::Hung => LoadFault::Hung,
        _ => LoadFault::Other,
    }
}

/// What the executor is to load beside its batches.
fn order(models: &crate::models::Models, model: ModelId) -> LoadOrder {
    let spec = models.spec(model).expect("checked when the LOAD was admitted").clone();
    let source = ModelSource::Spec(Box::new(spec));
    LoadOrder { model, source, measure: false, keeps_files: false }
}

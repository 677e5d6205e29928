//! Models on a GPU, by CUDA: rows are copied there while another batch executes.
//!
//! What orders copies and executions is in `baton_cuda`; here batches of the backend become jobs of its pipeline (`job.rs`).
//! A model's batches execute as the kernel that answers with checksums, or as CUDA graphs of an ONNX model. One device for
//! each GPU slot, in the driver's order.

mod job;

use std::sync::Arc;

use baton_cuda::{Back, CudaError, End, Gpu, Library, OpenError, Pinning, Pipeline};
use baton_rdma::{BatchBuffer, NoMemory};
use baton_topo::{Clock, Device, EngineSpec, ModelSpec, OnnxPlace, park_thread};
use baton_types::{ModelId, Nanos};
use job::DeviceJob;
pub(super) use job::Model;

use super::engines::Loose;
use super::onnx::{Graphs, files_bytes};
use super::{
    BatchBack, BatchEnd, BatchJob, BatchMemory, Engine, EngineError, HostStore, LooseModel,
    Outputs, checksum,
};
use crate::config::BATCH_SLOTS;

/// Between two looks at a batch that executes, where the thread has no core of its own.
const NAP: Nanos = Nanos::from_micros(20);

/// Where the driver comes from.
pub type OpenLibrary = fn() -> Result<Arc<Library>, OpenError>;

/// Executes models on one device.
pub struct Cuda {
    open: OpenLibrary,
    clock: Clock,
    /// The number of the GPU slot.
    slot: u32,
    /// What need not be read from files.
    store: HostStore,
    /// The device's number.
    device: u32,
    /// Burns the core while a batch is out, and does not nap.
    spins: bool,
    /// Made with the first model.
    pipeline: Option<Pipeline<Gpu, DeviceJob>>,
    /// By [`ModelId`]; `None` where the model is not loaded.
    models: Vec<Option<Model>>,
}

impl Cuda {
    /// An engine for a GPU slot, on the device with this number. `open` is called with its first model; usually it is
    /// [`Library::open`]. Files that `store` has are not looked for.
    pub fn new(
        open: OpenLibrary,
        clock: Clock,
        (slot, device): (u32, u32),
        store: HostStore,
    ) -> Self {
        let (pipeline, models, spins) = (None, Vec::new(), false);
        Self { open, clock, slot, store, device, spins, pipeline, models }
    }

    /// Whether it burns its core while a batch is out.
    #[must_use]
    pub fn spinning(mut self, spins: bool) -> Self {
        self.spins = spins;
        self
    }

    fn open(&self) -> Result<Pipeline<Gpu, DeviceJob>, EngineError> {
        let fix = "`baton doctor` says what is there";
        let failed = |problem: String| EngineError::Library { engine: "cuda", problem, fix };
        let library = (self.open)().map_err(|error| failed(error.to_string()))?;
        if library.is_fake() {
            tracing::warn!("FAKE GPU: this driver is Baton's own, without a device");
        }
        let gpu = Gpu::open(library, self.device).map_err(|error| failed(error.to_string()))?;
        let refused = |error: CudaError| failed(error.to_string());
        let mut pipeline = Pipeline::new(gpu, BATCH_SLOTS).map_err(refused)?;
        let (row, answer) = pipeline.try_out().map_err(refused)?;
        if answer != checksum(&row) {
            return Err(failed("the device computes a wrong checksum".into()));
        }
        Ok(pipeline)
    }

    fn pipeline(&mut self) -> &mut Pipeline<Gpu, DeviceJob> {
        self.pipeline.as_mut().expect("a model is loaded before anything else")
    }

    fn add(&mut self, spec: &ModelSpec) -> Result<(), EngineError> {
        let refused = |problem: String, fix: &str| EngineError::Load {
            model: spec.name.clone(),
            file: format!("engine = \"{}\"", spec.engine.name()),
            problem,
            fix: fix.into(),
        };
        let graphs = match spec.engine {
            EngineSpec::Cuda => None,
            _ if spec.is_captured() => {
                self.check_device(spec).map_err(|problem| {
                    refused(problem, "name the same device in all models of the sub-cluster")
                })?;
                Some(self.capture(spec)?)
            }
            _ => {
                let problem = "this GPU slot executes kernels and CUDA graphs alone".into();
                return Err(refused(problem, "put it into a sub-cluster of its own"));
            }
        };
        let model = Model::new(spec, graphs);
        self.pipeline().reserve(model.room).map_err(|error| {
            let mib = (model.room.row_bytes * BATCH_SLOTS).div_ceil(1 << 20);
            let problem = format!("its batches take {mib} MiB of the device: {error}");
            refused(problem, "lower its batch_max, or serve it on a larger device")
        })?;
        self.insert(spec.id, model);
        Ok(())
    }

    /// Its graphs are to execute on this GPU slot's device.
    fn check_device(&self, spec: &ModelSpec) -> Result<(), String> {
        let EngineSpec::Onnx { place: OnnxPlace { device: Device::Cuda(first), .. }, .. } =
            spec.engine
        else {
            unreachable!("only a model on a GPU is captured");
        };
        let (named, own) = (first + self.slot, self.device);
        match named == own {
            true => Ok(()),
            false => {
                Err(format!("it names device {named} for this GPU slot, which has device {own}"))
            }
        }
    }

    fn capture(&mut self, spec: &ModelSpec) -> Result<Graphs, EngineError> {
        let (slot, store) = (self.slot, self.store.clone());
        let graphs = Graphs::load(self.pipeline().driver_mut(), spec, (slot, &store))?;
        let mib = graphs.device_bytes() >> 20;
        tracing::info!(model = spec.name, device_mib = mib, "the model is on the device");
        Ok(graphs)
    }

    fn insert(&mut self, id: ModelId, model: Model) {
        let index = id.0 as usize;
        self.models.resize_with(self.models.len().max(index + 1), || None);
        self.models[index] = Some(model);
    }

    /// How long a batch took.
    fn learn(&mut self, back: &Back<DeviceJob>) {
        let BatchJob { model, lens, start_by, .. } = &back.job.batch;
        let model = self.models.get_mut(model.0 as usize).and_then(Option::as_mut);
        if let (Some(model), End::Executed { times, .. }) = (model, &back.end) {
            model.durations.saw(start_by.planned(), lens.len() as u32, times.execution);
        }
    }

    fn model(&self, id: ModelId) -> Option<&Model> {
        self.models.get(id.0 as usize)?.as_ref()
    }
}

/// A batch as it goes back to the I/O thread.
fn returned(Back { job, end, .. }: Back<DeviceJob>, now: Nanos) -> BatchBack {
    let DeviceJob { batch: job, .. } = job;
    let variant = job.start_by.planned();
    let end = match end {
        End::Executed { started, finished, times } => {
            tracing::trace!(slot = job.slot, ?times, "executed");
            BatchEnd::Executed { variant, started, finished, result: Ok(()) }
        }
        End::Expired => BatchEnd::Expired,
        End::Withdrawn => BatchEnd::Withdrawn,
        End::Failed(problem) => {
            let batch = job.lens.len() as u32;
            let result = Err(EngineError::Execute { model: job.model, batch, problem });
            BatchEnd::Executed { variant, started: now, finished: now, result }
        }
    };
    job.end(end)
}

impl Engine for Cuda {
    /// The size of its files, which is mostly weights. The kernel has none, and the memory of batches is all models'
    /// together.
    fn model_bytes(&mut self, spec: &ModelSpec) -> u64 {
        files_bytes(spec)
    }

    fn load(&mut self, model: &ModelSpec) -> Result<(), EngineError> {
        if self.pipeline.is_none() {
            self.pipeline = Some(self.open()?);
        }
        self.add(model)
    }

    fn taken_bytes(&self, model: ModelId) -> Option<u64> {
        Some(self.model(model)?.graphs.as_ref()?.device_bytes())
    }

    fn unload(&mut self, model: ModelId) {
        self.take(model);
    }

    fn take(&mut self, model: ModelId) -> Option<LooseModel> {
        let model = self.models.get_mut(model.0 as usize)?.take()?;
        Some(LooseModel(Loose::Cuda(model)))
    }

    fn put(&mut self, id: ModelId, LooseModel(model): LooseModel) {
        let Loose::Cuda(model) = model else {
            unreachable!("each engine gets its own kind of model");
        };
        if let Err(error) = self.pipeline().reserve(model.room) {
            tracing::error!("batches of an added model may fail: {error}; lower its batch_max");
        }
        self.insert(id, model);
    }

    fn prepare(&mut self, batch: BatchJob) {
        // The kernel's duration is fixed with the copy of the rows: the planned variant executes or none does.
        let (variant, rows) = (batch.start_by.planned(), batch.lens.len() as u32);
        let model = self.model(batch.model);
        let time = model.map_or(Nanos::ZERO, |model| model.durations.of(variant, rows));
        let (slot, graphs) = (batch.slot, model.and_then(|model| model.graphs.clone()));
        self.pipeline().prepare(slot, DeviceJob { batch, graphs }, time);
    }

    fn submit(&mut self, slot: usize) {
        let now = self.clock.now();
        let known = self.pipeline().job(slot).map(|job| job.batch.model);
        let is_loaded = known.is_some_and(|model| self.model(model).is_some());
        match is_loaded {
            true => self.pipeline().submit(slot, now),
            false => self.pipeline().refuse(slot, "not loaded".into()),
        }
    }

    fn withdraw(&mut self, slot: usize) {
        self.pipeline().withdraw(slot);
    }

    fn poll(&mut self) -> Option<BatchBack> {
        let (now, pipeline) = (self.clock.now(), self.pipeline.as_mut()?);
        let back = pipeline.poll(now);
        if back.is_none() && !self.spins && pipeline.is_busy() {
            park_thread(Some(NAP));
        }
        let back = back?;
        self.learn(&back);
        Some(returned(back, now))
    }

    fn is_busy(&self) -> bool {
        self.pipeline.as_ref().is_some_and(Pipeline::is_busy)
    }

    fn lost(&self) -> Option<String> {
        let error = self.pipeline.as_ref()?.lost()?;
        Some(format!("device {} is lost to this process: {error}", self.device))
    }

    fn memory(&self) -> Box<dyn BatchMemory> {
        let pipeline = self.pipeline.as_ref().expect("a model is loaded before anything else");
        Box::new(PinnedMemory(pipeline.driver().pinning()))
    }
}

/// Memory that the device copies from by itself.
#[derive(Debug)]
struct PinnedMemory(Pinning);

impl BatchMemory for PinnedMemory {
    fn inputs(&self, bytes: usize) -> Result<Arc<BatchBuffer>, NoMemory> {
        BatchBuffer::pinned(bytes, &self.0)
    }

    fn outputs(&self, rows: u32, bytes: usize) -> Result<Outputs, NoMemory> {
        Outputs::with_room(rows, bytes).ok_or(NoMemory { bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_models::captured;

    #[test]
    fn a_model_that_names_another_device_is_refused_before_anything_is_done_on_this_one() {
        let open: OpenLibrary = || panic!("no device is needed for that");
        let slot = |device| Cuda::new(open, Clock::start(), (1, device), HostStore::default());
        let refused = slot(1).add(&captured(2)).unwrap_err().to_string();
        assert!(
            refused.contains("names device 3 for this GPU slot, which has device 1"),
            "{refused}"
        );
        assert_eq!(slot(3).check_device(&captured(2)), Ok(()));
    }
}

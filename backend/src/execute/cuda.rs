//! Models on a GPU, by CUDA: rows are copied there while another batch executes.
//!
//! What orders copies and executions is in `baton_cuda`; here batches of the backend become jobs of its pipeline. One device
//! for each GPU slot, in the driver's order.

use std::sync::Arc;

use baton_cuda::{
    Back, CudaError, End, Gpu, HostSource, Job, Library, OpenError, Pinning, Pipeline, Room,
};
use baton_rdma::{BatchBuffer, NoMemory};
use baton_topo::{Clock, EngineSpec, ModelSpec, park_thread};
use baton_types::{ModelId, Nanos};

use super::engines::Loose;
use super::measure::{Profiles, profiles_of};
use super::{
    BatchBack, BatchEnd, BatchJob, BatchMemory, Engine, EngineError, LooseModel, Outputs, checksum,
};
use crate::config::BATCH_SLOTS;

/// Between two looks at a batch that executes, where the thread has no core of its own.
const NAP: Nanos = Nanos::from_micros(20);

/// Where the driver comes from.
pub type OpenLibrary = fn() -> Result<Arc<Library>, OpenError>;

/// Executes models whose answers are checksums, on one device.
pub struct Cuda {
    open: OpenLibrary,
    clock: Clock,
    /// The device's number.
    device: u32,
    /// Burns the core while a batch is out, and does not nap.
    spins: bool,
    /// Made with the first model.
    pipeline: Option<Pipeline<Gpu, DeviceJob>>,
    /// By [`ModelId`]; `None` where the model is not loaded.
    models: Vec<Option<Model>>,
}

/// A model that is loaded.
#[derive(Clone, Debug)]
pub(super) struct Model {
    /// Of each variant.
    profiles: Profiles,
    room: Room,
}

struct DeviceJob(BatchJob);

impl Job for DeviceJob {
    fn rows(&self) -> HostSource {
        HostSource::Registered(self.0.rows.as_ptr().addr())
    }

    fn stride(&self) -> u32 {
        self.0.stride
    }

    fn lens(&self) -> &[u32] {
        &self.0.lens
    }

    fn start_by(&self) -> Nanos {
        self.0.start_by.last()
    }

    fn answer(&mut self, row: u32, answer: [u8; 8]) {
        let variant = u64::from(self.0.start_by.planned());
        let answer = u64::from_le_bytes(answer) | variant << 32;
        self.0.outputs.row_mut(row).copy_from_slice(&answer.to_le_bytes());
    }
}

impl Cuda {
    /// An engine on the device with this number. `open` is called with its first model; usually it is [`Library::open`].
    pub fn new(open: OpenLibrary, clock: Clock, device: u32, spins: bool) -> Self {
        Self { open, clock, device, spins, pipeline: None, models: Vec::new() }
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
            file: "engine = \"cuda\"".into(),
            problem,
            fix: fix.into(),
        };
        if spec.engine != EngineSpec::Cuda {
            let problem = "this GPU slot executes models of engine = \"cuda\" alone".into();
            return Err(refused(problem, "put it into a sub-cluster of its own"));
        }
        let rows = spec.profile.batch_max();
        let room = Room { row_bytes: rows as usize * spec.input_bytes as usize, rows };
        self.pipeline().reserve(room).map_err(|error| {
            let mib = (room.row_bytes * BATCH_SLOTS).div_ceil(1 << 20);
            let problem = format!("its batches take {mib} MiB of the device: {error}");
            refused(problem, "lower its batch_max, or serve it on a larger device")
        })?;
        self.insert(spec.id, Model { profiles: profiles_of(spec), room });
        Ok(())
    }

    fn insert(&mut self, id: ModelId, model: Model) {
        let index = id.0 as usize;
        self.models.resize(self.models.len().max(index + 1), None);
        self.models[index] = Some(model);
    }

    fn model(&self, id: ModelId) -> Option<&Model> {
        self.models.get(id.0 as usize)?.as_ref()
    }
}

/// A batch as it goes back to the I/O thread.
fn returned(Back { job: DeviceJob(job), end, .. }: Back<DeviceJob>, now: Nanos) -> BatchBack {
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
    /// Nothing: these models have no weights, and the memory of batches is all models' together.
    fn model_bytes(&mut self, _: &ModelSpec) -> u64 {
        0
    }

    fn load(&mut self, model: &ModelSpec) -> Result<(), EngineError> {
        if self.pipeline.is_none() {
            self.pipeline = Some(self.open()?);
        }
        self.add(model)
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
        let variant = usize::from(batch.start_by.planned());
        let profile = self.model(batch.model).and_then(|model| model.profiles.get(variant));
        let time = profile.map_or(Nanos::ZERO, |profile| profile.latency(batch.lens.len() as u32));
        let slot = batch.slot;
        self.pipeline().prepare(slot, DeviceJob(batch), time);
    }

    fn submit(&mut self, slot: usize) {
        let now = self.clock.now();
        let known = self.pipeline().job(slot).map(|job| job.0.model);
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
        let back = pipeline.poll(now).map(|back| returned(back, now));
        if back.is_none() && !self.spins && pipeline.is_busy() {
            park_thread(Some(NAP));
        }
        back
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

//! The cluster as the operator describes it, resolved and validated. `file.rs` reads it from TOML;
//! everything below may rely on what the fields promise.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use baton_types::{ModelId, Nanos, Policy, Prefer, Profile, QuotaLimits, SubclusterId, Variants};

use crate::cluster_file::device::Device;
use crate::cluster_file::fabric::FabricSpec;
use crate::cluster_file::gateway::GatewaySpec;
use crate::cluster_file::model_folder::{ModelFolderSpec, pulled_file};
use crate::cluster_file::onnx::{BatchLayout, is_url};
use crate::cluster_file::sha256::Sha256;
use crate::cluster_file::variants::{VariantSpec, checked_variants};
use crate::cluster_file::weights::{WeightsCacheSpec, WeightsSpec};
use crate::runtime::Idle;
use crate::signature::{Row, Signature};

/// GPU slots one backend process may have: their executor threads share one I/O thread. The
/// scheduler refuses a backend with more.
pub const GPUS_PER_BACKEND_MAX: u32 = 256;

/// ModelThreads of one scheduler.
pub const MODEL_THREADS_MAX: u32 = 64;

/// Batches that a GPU slot of a backend has memory for: one each fetching, executing and replying, and one to spare, so
/// that the next batch's inputs are on their way while an answer is slow to leave.
pub const BATCH_SLOTS: usize = 4;

/// Most memory a backend sets aside for inputs and outputs, bytes.
pub const BATCH_MEMORY_MAX: usize = 64 << 30;

/// Models of one scheduler.
pub const MODELS_MAX: u32 = 16_384;

/// One cluster file.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The scheduler process.
    pub scheduler: SchedulerSpec,
    /// Delays the scheduler plans with.
    pub network: NetworkSpec,
    /// What carries inputs.
    pub fabric: FabricSpec,
    /// Names of the sub-clusters; a [`SubclusterId`] indexes this. Never empty.
    pub subclusters: Vec<String>,
    /// The models; a [`ModelId`] indexes this. Names are unique. Never empty.
    pub models: Vec<ModelSpec>,
    /// The backends this file describes; others may join too. Names are unique.
    pub backends: Vec<BackendSpec>,
    /// How frontends and the load generator size their memory.
    pub frontend: FrontendSpec,
    /// How the gateway meets its clients.
    pub gateway: GatewaySpec,
    /// How members look for a scheduler.
    pub reconnect: ReconnectSpec,
}

/// Models that may be added to those of the file unless it says otherwise.
const MODELS_SPARE: u32 = 256;

impl Cluster {
    /// Models that may be served at a time: `models_max`, or 256 more than the file has.
    pub fn models_max(&self) -> u32 {
        let models = self.models.len() as u32;
        self.scheduler
            .models_max
            .unwrap_or(models + MODELS_SPARE)
            .clamp(models, MODELS_MAX.max(models))
    }

    /// The smallest cache for weights among the backends of the sub-cluster; `None`: they hold every model.
    pub fn smallest_weights_cache(&self, subcluster: SubclusterId) -> Option<WeightsCacheSpec> {
        self.weights_caches(subcluster).min_by_key(|cache| cache.pages)
    }

    /// The largest cache for weights among the backends of the sub-cluster; `None`: they hold every model.
    pub fn weights_cache(&self, subcluster: SubclusterId) -> Option<WeightsCacheSpec> {
        self.weights_caches(subcluster).max_by_key(|cache| cache.pages)
    }

    fn weights_caches(&self, subcluster: SubclusterId) -> impl Iterator<Item = WeightsCacheSpec> {
        let of_it = self.backends.iter().filter(move |backend| backend.subcluster == subcluster);
        of_it.filter_map(|backend| backend.weights_cache)
    }
}

/// `[scheduler]`
#[derive(Clone, Debug)]
pub struct SchedulerSpec {
    /// The ControlThread's address. ModelThreads listen on ephemeral ports of the same IP.
    pub listen: SocketAddr,
    /// ModelThreads; models are spread over them by their expected rates, or dealt in turn. At least 1.
    pub model_threads: u32,
    /// Models that may be served at a time: memory is set aside for them. `None`: [`Cluster::models_max`].
    pub models_max: Option<u32>,
    /// Where the scheduler writes changes of its catalogue down, for the next one. `None`: nowhere.
    pub journal: Option<PathBuf>,
    /// What its threads do without work.
    pub idle: Idle,
    /// Cores to pin to: RankThread first, then the ModelThreads, then the ControlThread. Empty: no
    /// pinning.
    pub cores: Vec<usize>,
    /// The batching policy.
    pub policy: Policy,
    /// What `baton` does with GPUs that are idle.
    pub prefer: Prefer,
    /// A member that has not been heard of for this long is taken for dead.
    pub member_timeout: Nanos,
    /// Where Prometheus may scrape it; `None`: nowhere.
    pub metrics: Option<SocketAddr>,
    /// Where several schedulers agree on which of them leads; `None`: there is one, at `listen`.
    pub etcd: Option<EtcdSpec>,
}

/// `etcd` in `[scheduler]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdSpec {
    /// `http://HOST:PORT` each, or `https://HOST:PORT` each if there is `tls`: the members of one etcd
    /// cluster. Never empty.
    pub endpoints: Vec<String>,
    /// Under which keys; a cluster's own.
    pub prefix: String,
    /// How long a silent leader keeps the others from leading, seconds.
    pub lease_ttl_s: u32,
    /// The connections to etcd are encrypted; `None`: they are not.
    pub tls: Option<EtcdTlsSpec>,
}

/// `etcd_ca`, `etcd_cert` and `etcd_key` in `[scheduler]`. Files are named here and read by `baton-leader`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdTlsSpec {
    /// PEM: the certificates of the authorities whose etcd counts.
    pub ca: PathBuf,
    /// What this process shows to etcd; `None`: nothing.
    pub identity: Option<EtcdIdentity>,
}

/// A certificate for an etcd that asks for one (`--client-cert-auth`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdIdentity {
    /// PEM: the certificate, followed by those between it and the authority's.
    pub cert: PathBuf,
    /// PEM: the private key of `cert`.
    pub key: PathBuf,
}

/// `[network]`: what is taken off deadlines and put before executions.
#[derive(Clone, Copy, Debug)]
pub struct NetworkSpec {
    /// Plan delivery (Symphony App. C, `d_ctrl`).
    pub ctrl: Nanos,
    /// Fetching one input (`d_data`).
    pub data_per_task: Nanos,
    /// From the end of the execution to the answer at the application.
    pub response: Nanos,
    /// How late timers and threads run: deferred batches are due this much earlier.
    pub jitter: Nanos,
}

/// `[[model]]`
#[derive(Clone, Debug)]
pub struct ModelSpec {
    /// Its id.
    pub id: ModelId,
    /// Its name.
    pub name: String,
    /// The sub-cluster that serves it.
    pub subcluster: SubclusterId,
    /// ℓ(b); its length is the largest batch.
    pub profile: Profile,
    /// Latency objective: the default deadline, and the budget batches are sized for.
    pub slo: Nanos,
    /// Bytes of one input row, at most [`INPUT_BYTES_MAX`](crate::signature::INPUT_BYTES_MAX).
    pub input_bytes: u32,
    /// Bytes of one output row, at most [`OUTPUT_BYTES_MAX`](crate::signature::OUTPUT_BYTES_MAX).
    pub output_bytes: u32,
    /// Tasks that may wait at once; one more is dropped (`queue_full`).
    pub queue_capacity: u32,
    /// What may be asked for; more is dropped (`quota`).
    pub quota: QuotaLimits,
    /// Requests per second that are expected, if that is known: the scheduler spreads models over
    /// its ModelThreads by it.
    pub expected_rps: Option<f64>,
    /// What executes it.
    pub engine: EngineSpec,
    /// Of a supernet: its variants, the cheapest first, whose ℓ(b) is [`ModelSpec::profile`]. Empty otherwise.
    pub variants: Vec<VariantSpec>,
    /// Its weights, for backends that have not room for every model's. `None`: the file does not say.
    pub weights: Option<WeightsSpec>,
}

/// `engine = …` of a model.
#[derive(Clone, PartialEq, Debug)]
pub enum EngineSpec {
    /// An emulated GPU: ℓ(b) by delay, answers with a checksum of the input.
    Emulated {
        /// Standard deviation of the delay as a fraction of ℓ(b), 0 ..= 1; 0: exact.
        jitter: f64,
    },
    /// A GPU by CUDA: ℓ(b) by a kernel that lasts so long, and answers with a checksum of the input.
    Cuda,
    /// ONNX Runtime on this file.
    Onnx {
        /// The `.onnx` file; relative paths are resolved against the cluster file's folder.
        file: PathBuf,
        /// What its content must have, if the file says so.
        sha256: Option<Sha256>,
        /// What it takes and gives.
        signature: Signature,
        /// How the rows of a batch lie in its tensors.
        layout: BatchLayout,
        /// The cluster file gives no ℓ(b): that of [`ModelSpec::profile`] counts until a backend has measured it.
        is_measured: bool,
        /// What ONNX Runtime executes it on.
        place: OnnxPlace,
    },
}

/// How TensorRT executes a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TensorRt {
    /// Its kernels may compute in half precision.
    pub fp16: bool,
}

/// Where and how ONNX Runtime executes a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OnnxPlace {
    /// The device of a backend's first GPU slot. The slots behind it have the devices with the numbers behind it.
    pub device: Device,
    /// On a GPU: operators that the CUDA provider lacks execute on the CPU, and the model is not refused.
    pub cpu_operators: bool,
    /// On a GPU: matrix products and convolutions of f32 may round their inputs to TensorFloat-32.
    pub tf32: bool,
    /// A row whose answer has a number that is not finite has none: it fails.
    pub check_finite: bool,
    /// On a GPU: TensorRT executes what it can, and the CUDA provider the rest.
    pub tensorrt: Option<TensorRt>,
    /// On a GPU: batches are CUDA graphs, if the model can be captured ([`ModelSpec::is_captured`]).
    pub cuda_graphs: bool,
}

impl OnnxPlace {
    /// The cores.
    pub const CPU: Self = Self {
        device: Device::Cpu,
        cpu_operators: false,
        tf32: false,
        check_finite: false,
        tensorrt: None,
        cuda_graphs: true,
    };
}

impl EngineSpec {
    pub(crate) fn fixed_batch(&self) -> Option<u32> {
        match self {
            Self::Emulated { .. } | Self::Cuda => None,
            Self::Onnx { layout, .. } => layout.fixed_batch,
        }
    }

    /// Its name in cluster files.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Emulated { .. } => "emulated",
            Self::Cuda => "cuda",
            Self::Onnx { .. } => "onnx",
        }
    }

    /// Whether it executes on a GPU.
    pub fn is_on_gpu(&self) -> bool {
        match self {
            Self::Emulated { .. } => false,
            Self::Cuda => true,
            Self::Onnx { place, .. } => place.device != Device::Cpu,
        }
    }

    /// Whether backends measure ℓ(b) and the cluster file does not say it.
    pub fn is_measured(&self) -> bool {
        matches!(self, Self::Onnx { is_measured: true, .. })
    }
}

impl ModelSpec {
    /// The variants as the scheduler has them; `None` without any.
    pub fn checked_variants(&self) -> Option<Variants> {
        let named = self.variants.iter().map(|v| (v.name.as_str(), v.accuracy, &v.profile));
        let variants = (!self.variants.is_empty()).then(|| checked_variants(named))?;
        Some(variants.expect("they were checked when the file was read"))
    }

    /// How many networks may execute a batch: 1 without variants.
    pub fn variant_count(&self) -> u16 {
        self.variants.len().max(1) as u16
    }

    /// ℓ(b) of a variant; of the model, if it has none.
    pub fn profile_of(&self, variant: u16) -> &Profile {
        self.variants.get(usize::from(variant)).map_or(&self.profile, |variant| &variant.profile)
    }

    /// Whether its file takes the variant as an input: neither has each variant a file of its own, nor is there one.
    pub fn is_controlled(&self) -> bool {
        self.variants.iter().any(|variant| variant.file.is_none())
    }

    /// The files that it is loaded from: one for each variant, or one.
    pub fn files(&self) -> Vec<&Path> {
        self.checked_files().into_iter().map(|(file, _)| file).collect()
    }

    /// As [`ModelSpec::files`], each with what its content must have.
    pub fn checked_files(&self) -> Vec<(&Path, Option<Sha256>)> {
        let own = self.variants.iter().filter_map(|v| Some((v.file.as_deref()?, v.sha256)));
        let own: Vec<_> = own.collect();
        match &self.engine {
            EngineSpec::Onnx { file, sha256, .. } if own.is_empty() => vec![(file, *sha256)],
            _ => own,
        }
    }

    /// The files that lie on a server: URL and SHA-256 of each.
    pub fn remote_files(&self) -> Vec<(String, Sha256)> {
        let remote = |(file, sha256): (&Path, Option<Sha256>)| {
            let url = file.to_str().filter(|file| is_url(file))?;
            Some((url.to_owned(), sha256?))
        };
        self.checked_files().into_iter().filter_map(remote).collect()
    }

    /// The model with its remote files where they lie once they were pulled.
    #[must_use]
    pub fn pulled_into(mut self, folder: &Path) -> Self {
        let found = |file: &mut PathBuf, sha256: Option<Sha256>| {
            if let (true, Some(sha256)) = (file.to_str().is_some_and(is_url), sha256) {
                *file = pulled_file(folder, sha256);
            }
        };
        if let EngineSpec::Onnx { file, sha256, .. } = &mut self.engine {
            found(file, *sha256);
        }
        for VariantSpec { file, sha256, .. } in &mut self.variants {
            file.iter_mut().for_each(|file| found(file, *sha256));
        }
        self
    }

    /// How the rows of a batch lie in the tensors of its file; `None` without one.
    pub fn layout(&self) -> Option<&BatchLayout> {
        match &self.engine {
            EngineSpec::Onnx { layout, .. } => Some(layout),
            EngineSpec::Emulated { .. } | EngineSpec::Cuda => None,
        }
    }

    /// What it takes and gives. A model without a file takes bytes and gives their checksum.
    pub fn signature(&self) -> Signature {
        match &self.engine {
            EngineSpec::Onnx { signature, .. } => signature.clone(),
            EngineSpec::Emulated { .. } | EngineSpec::Cuda => Signature {
                input: Row::opaque("input", self.input_bytes),
                output: Row::opaque("output", self.output_bytes),
            },
        }
    }
}

/// `[[backend]]`
#[derive(Clone, Debug)]
pub struct BackendSpec {
    /// Its name.
    pub name: String,
    /// The sub-cluster its GPU slots belong to.
    pub subcluster: SubclusterId,
    /// GPU slots.
    pub gpus: u32,
    /// Cores to pin to: I/O thread first, then one per GPU slot. Empty: no pinning.
    pub cores: Vec<usize>,
    /// What its threads do without work.
    pub idle: Idle,
    /// Bytes of inputs that may be on their way to this backend at once; 0: no limit.
    pub credit_bytes: u32,
    /// Where Prometheus may scrape it; `None`: nowhere.
    pub metrics: Option<SocketAddr>,
    /// Bytes of loaded models that each of its GPU slots may hold; `None`: no bound.
    pub model_memory: Option<u64>,
    /// The memory for weights of each of its GPU slots, which is smaller than all models; `None`: they hold every model.
    pub weights_cache: Option<WeightsCacheSpec>,
    /// Bytes of model files that it keeps in memory, to load from; the others it reads for each LOAD.
    pub host_weights: u64,
    /// Where it keeps the model files that it pulls.
    pub model_folder: ModelFolderSpec,
    /// The GPUs of its slots.
    pub cards: CardsSpec,
}

/// `devices` and `lock_clocks` in `[[backend]]`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CardsSpec {
    /// By UUID, one for each GPU slot: `GPU-…`, or one `MIG-…`. Empty: in the driver's order.
    pub devices: Vec<String>,
    /// Their clocks are held at the highest while the backend runs.
    pub lock_clocks: bool,
}

/// `[frontend]`
#[derive(Clone, Copy, Debug)]
pub struct FrontendSpec {
    /// Input slots per model: tasks of one model that a frontend can have outstanding.
    pub slots_per_model: u32,
    /// How long past its deadline a task may stay without outcome before the frontend ends it
    /// itself (`lease_expired`).
    pub lease_grace: Nanos,
}

/// `[reconnect]`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReconnectSpec {
    /// The pause before the second attempt; each later one is twice as long.
    pub first: Nanos,
    /// The longest pause between two attempts: how long a scheduler that is back waits for its members at most.
    pub longest: Nanos,
    /// How long backends and load generators look for a scheduler when they start. With etcd the lease comes on top.
    pub start: Nanos,
    /// How long after a scheduler's orderly stop submits wait for the next one.
    pub hold: Nanos,
}

impl Default for ReconnectSpec {
    fn default() -> Self {
        Self {
            first: Nanos::from_millis(50),
            longest: Nanos::from_millis(500),
            start: Nanos::from_millis(15_000),
            hold: Nanos::from_millis(10_000),
        }
    }
}

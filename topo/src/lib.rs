//! Where things run: the clock, agents and their threads, the cluster file, and the host.
#![forbid(unsafe_code)]

mod cluster_file;
pub mod doctor;
pub mod machine;
mod runtime;
pub mod signature;
pub mod triton;
pub mod zoo;

pub use cluster_file::{
    BATCH_MEMORY_MAX, BATCH_SLOTS, BackendSpec, CardsSpec, Checked, Cluster, Device, EngineSpec,
    EtcdIdentity, EtcdSpec, EtcdTlsSpec, FabricSpec, FrontendSpec, GPUS_PER_BACKEND_MAX,
    GatewaySpec, GatewayTlsSpec, ImageSpec, MODEL_THREADS_MAX, MODELS_MAX, MeasuredSize,
    ModelChange, ModelSpec, ModelTable, NetworkSpec, OnnxPlace, Problem, ProfileFile,
    ReconnectSpec, SchedulerSpec, TensorRt, TlsSpec, TokenSpec, TransportChoice, VerbsConfig,
    check_cluster, check_cluster_on, check_text, load_cluster, model_file_problem,
    name_of_replaced, nearest_word, pulled_file, read_change, read_measured_model, read_model,
    replacement,
};
pub use cluster_file::{
    BESIDE_VARIANTS, VariantSpec, VariantsProblem, accuracy_of, checked_variants, per_cent,
};
pub use cluster_file::{
    BatchLayout, Constant, ModelFolderSpec, OpenDim, describe_pulled, is_url, open_dims,
};
pub use cluster_file::{Journal, JournalError, JournalKind, Replayed};
pub use cluster_file::{NoSha256, Sha256, with_checksums};
pub use cluster_file::{WeightsCacheSpec, WeightsSpec, is_whole_model};
pub use runtime::{
    Agent, AwakeTime, Clock, Fenced, Idle, LeaseDeadline, PARK_MAX, Placement, SLEEP_MAX,
    SharedThread, Waker, is_gone, park_thread, prepare_thread, run, wait_readable,
};

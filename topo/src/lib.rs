//! Where things run: the clock, agents and their threads, the cluster file, and the host.
#![forbid(unsafe_code)]

mod agent;
mod awake;
mod check;
mod clock;
mod cluster;
pub mod doctor;
mod fabric;
mod file;
mod file_etcd;
mod file_model;
mod file_problem;
mod file_section;
mod file_summary;
mod file_tables;
mod lease_deadline;
pub mod machine;
mod tls;
mod waker;
pub mod zoo;

pub use agent::{Agent, Idle, Placement, park_thread, prepare_thread, run};
pub use awake::{AwakeTime, PARK_MAX, is_gone};
pub use clock::Clock;
pub use cluster::{
    BackendSpec, Cluster, EngineSpec, EtcdIdentity, EtcdSpec, EtcdTlsSpec, FrontendSpec,
    GPUS_PER_BACKEND_MAX, ModelSpec, NetworkSpec, SchedulerSpec,
};
pub use fabric::{FabricSpec, TransportChoice, VerbsConfig};
pub use file::{Checked, check_cluster, check_text, load_cluster};
pub use file_problem::Problem;
pub use lease_deadline::{Fenced, LeaseDeadline};
pub use tls::TlsSpec;
pub use waker::Waker;

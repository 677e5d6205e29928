//! What a backend needs to know before it starts, taken out of the cluster file and checked.

use std::net::SocketAddr;

use baton_core::Nanos;
use baton_topo::{Cluster, Idle, ModelSpec};

/// GPU slots one backend process may have: their executor threads share one I/O thread.
pub const GPUS_MAX: u32 = 256;
/// Batch slots per GPU slot: one each fetching, executing and replying, and one to spare, so that
/// the next batch's inputs are on their way while an answer is slow to leave.
pub const BATCH_SLOTS: usize = 4;
/// Most memory a backend sets aside for inputs and outputs, bytes.
pub const BATCH_MEMORY_MAX: usize = 64 << 30;

/// One backend process.
#[derive(Clone, Debug)]
pub struct BackendConfig {
    /// Its name, as operators know it.
    pub name: String,
    /// The scheduler's ControlThread.
    pub scheduler: SocketAddr,
    /// The sub-cluster its GPU slots belong to, by name: ids are the scheduler's.
    pub subcluster: String,
    /// GPU slots, 1 ..= [`GPUS_MAX`].
    pub gpus: u32,
    /// Cores to pin to: I/O thread first, then one per GPU slot. Empty: no pinning.
    pub cores: Vec<usize>,
    /// What its threads do without work.
    pub idle: Idle,
    /// Bytes of inputs that may be on their way at once; 0: no limit.
    pub credit_bytes: u32,
    /// The models of its sub-cluster, all of which it serves. Never empty.
    pub models: Vec<ModelSpec>,
    /// Silence of the scheduler that means it is lost.
    pub member_timeout: Nanos,
    /// How long the scheduler may take to appear and to let this backend in.
    pub join_timeout: Nanos,
    /// How long [`crate::BackendHandle::leave`] waits for outstanding batches.
    pub leave_timeout: Nanos,
}

/// Why a cluster file does not describe a backend that can start.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// No `[[backend]]` has this name.
    #[error("no [[backend]] is named `{name}`; the cluster file has: {known}")]
    UnknownBackend {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The sub-cluster has no model.
    #[error(
        "backend `{backend}`: no [[model]] has subcluster = \"{subcluster}\"; \
         add one or put the backend into another sub-cluster"
    )]
    NoModels {
        /// The backend.
        backend: String,
        /// Its sub-cluster.
        subcluster: String,
    },
    /// The number of GPU slots is out of range.
    #[error("backend `{backend}`: gpus = {gpus}; give 1 to {GPUS_MAX}")]
    Gpus {
        /// The backend.
        backend: String,
        /// What the file says.
        gpus: u32,
    },
    /// The batch buffers would not fit.
    #[error(
        "backend `{backend}`: its batch buffers would take {gib} GiB, because of model `{model}`; \
         lower that model's batch_max or the backend's gpus"
    )]
    Memory {
        /// The backend.
        backend: String,
        /// The model with the largest batch.
        model: String,
        /// What they would take.
        gib: usize,
    },
}

impl BackendConfig {
    /// The backend called `name` in `cluster`, joining the scheduler at `scheduler`.
    ///
    /// # Errors
    /// The name is unknown, its sub-cluster has no model, or its numbers are out of range.
    pub fn from_cluster(
        cluster: &Cluster,
        name: &str,
        scheduler: SocketAddr,
    ) -> Result<Self, ConfigError> {
        let Some(spec) = cluster.backends.iter().find(|spec| spec.name == name) else {
            let known: Vec<&str> = cluster.backends.iter().map(|spec| spec.name.as_str()).collect();
            return Err(ConfigError::UnknownBackend { name: name.into(), known: known.join(", ") });
        };
        let config = Self {
            name: spec.name.clone(),
            scheduler,
            subcluster: cluster.subclusters[spec.subcluster.0 as usize].clone(),
            gpus: spec.gpus,
            cores: spec.cores.clone(),
            idle: spec.idle,
            credit_bytes: spec.credit_bytes,
            models: cluster
                .models
                .iter()
                .filter(|model| model.subcluster == spec.subcluster)
                .cloned()
                .collect(),
            member_timeout: cluster.scheduler.member_timeout,
            join_timeout: Nanos::from_millis(15_000),
            leave_timeout: Nanos::from_millis(10_000),
        };
        config.check()?;
        Ok(config)
    }

    /// Bytes of one batch slot's inputs: the largest batch of any model.
    pub fn input_bytes(&self) -> usize {
        self.models.iter().map(|model| batch_bytes(model, model.input_bytes)).max().unwrap_or(0)
    }

    /// Bytes of one batch slot's outputs.
    pub fn output_bytes(&self) -> usize {
        self.models.iter().map(|model| batch_bytes(model, model.output_bytes)).max().unwrap_or(0)
    }

    /// Rows of the largest batch of any model.
    pub fn batch_max(&self) -> u32 {
        self.models.iter().map(|model| model.profile.batch_max()).max().unwrap_or(0)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let backend = self.name.clone();
        if !(1..=GPUS_MAX).contains(&self.gpus) {
            return Err(ConfigError::Gpus { backend, gpus: self.gpus });
        }
        let Some(largest) =
            self.models.iter().max_by_key(|model| batch_bytes(model, model.input_bytes))
        else {
            return Err(ConfigError::NoModels { backend, subcluster: self.subcluster.clone() });
        };
        let slots = self.gpus as usize * BATCH_SLOTS;
        let bytes = (self.input_bytes() + self.output_bytes()).saturating_mul(slots);
        if bytes > BATCH_MEMORY_MAX {
            let model = largest.name.clone();
            return Err(ConfigError::Memory { backend, model, gib: bytes >> 30 });
        }
        Ok(())
    }
}

fn batch_bytes(model: &ModelSpec, row_bytes: u32) -> usize {
    row_bytes as usize * model.profile.batch_max() as usize
}

//! What a backend needs to know before it starts, taken out of the cluster file and checked.

use baton_leader::SchedulerLocator;
use baton_topo::{
    Cluster, FabricSpec, GPUS_PER_BACKEND_MAX, Idle, ModelFolderSpec, ModelSpec, ReconnectSpec,
    WeightsCacheSpec,
};
use baton_types::Nanos;

pub use baton_topo::{BATCH_MEMORY_MAX, BATCH_SLOTS};

/// One backend process.
#[derive(Clone, Debug)]
pub struct BackendConfig {
    /// Its name, as operators know it.
    pub name: String,
    /// Where the scheduler's ControlThread is.
    pub scheduler: SchedulerLocator,
    /// The sub-cluster its GPU slots belong to, by name: ids are the scheduler's.
    pub subcluster: String,
    /// GPU slots, 1 ..= [`GPUS_PER_BACKEND_MAX`].
    pub gpus: u32,
    /// Cores to pin to: I/O thread first, then one per GPU slot. Empty: no pinning.
    pub cores: Vec<usize>,
    /// What its threads do without work.
    pub idle: Idle,
    /// Bytes of inputs that may be on their way at once; 0: no limit.
    pub credit_bytes: u32,
    /// Bytes of loaded models that each GPU slot may hold; `None`: no bound.
    pub model_memory: Option<u64>,
    /// The memory for weights of each GPU slot; `None`: they hold every model.
    pub weights_cache: Option<WeightsCacheSpec>,
    /// Bytes of model files that are kept in memory, to load from.
    pub host_weights: u64,
    /// Where model files go that are pulled from servers.
    pub model_folder: ModelFolderSpec,
    /// What inputs are pulled over.
    pub fabric: FabricSpec,
    /// The models of its sub-cluster, all of which it serves. Never empty.
    pub models: Vec<ModelSpec>,
    /// Silence of the scheduler that means it is lost.
    pub member_timeout: Nanos,
    /// How long the scheduler may take to appear and to let this backend in. From a cluster file: 15 s, and
    /// with etcd the leader's lease on top.
    pub join_timeout: Nanos,
    /// The pauses between attempts to reach a scheduler.
    pub reconnect: ReconnectSpec,
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
    #[error("backend `{backend}`: gpus = {gpus}; give 1 to {GPUS_PER_BACKEND_MAX}")]
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
    /// The backend called `name` in `cluster`, joining the scheduler at `scheduler`: an address, or
    /// wherever the leader is.
    ///
    /// # Errors
    /// The name is unknown, its sub-cluster has no model, or its numbers are out of range.
    pub fn from_cluster(
        cluster: &Cluster,
        name: &str,
        scheduler: impl Into<SchedulerLocator>,
    ) -> Result<Self, ConfigError> {
        let Some(spec) = cluster.backends.iter().find(|spec| spec.name == name) else {
            let known: Vec<&str> = cluster.backends.iter().map(|spec| spec.name.as_str()).collect();
            return Err(ConfigError::UnknownBackend { name: name.into(), known: known.join(", ") });
        };
        let scheduler = scheduler.into();
        let config = Self {
            name: spec.name.clone(),
            join_timeout: cluster.reconnect.start + scheduler.succession(),
            reconnect: cluster.reconnect,
            scheduler,
            subcluster: cluster.subclusters[spec.subcluster.0 as usize].clone(),
            gpus: spec.gpus,
            cores: spec.cores.clone(),
            idle: spec.idle,
            credit_bytes: spec.credit_bytes,
            model_memory: spec.model_memory,
            weights_cache: spec.weights_cache,
            host_weights: spec.host_weights,
            model_folder: spec.model_folder.clone(),
            fabric: cluster.fabric.clone(),
            models: cluster
                .models
                .iter()
                .filter(|model| model.subcluster == spec.subcluster)
                .map(|model| ModelSpec {
                    weights: model.weights.filter(|_| spec.weights_cache.is_some()),
                    ..model.clone()
                })
                .collect(),
            member_timeout: cluster.scheduler.member_timeout,
            leave_timeout: Nanos::from_millis(10_000),
        };
        config.check()?;
        Ok(config)
    }

    /// The models that every executor loads before the backend joins: all of them, unless LOADs bring them.
    pub fn loaded_at_start(&self) -> impl Iterator<Item = &ModelSpec> {
        self.models.iter().filter(|_| self.weights_cache.is_none())
    }

    /// The models that LOADs bring.
    pub fn loaded_later(&self) -> impl Iterator<Item = &ModelSpec> {
        self.models.iter().filter(|_| self.weights_cache.is_some())
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
        if !(1..=GPUS_PER_BACKEND_MAX).contains(&self.gpus) {
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

/// Bytes of the rows of a model's largest batch.
pub(crate) fn batch_bytes(model: &ModelSpec, row_bytes: u32) -> usize {
    row_bytes as usize * model.profile.batch_max() as usize
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::path::Path;

    use baton_types::Profile;

    use super::*;

    pub(crate) const SCHEDULER: SocketAddr =
        SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7700);

    pub(crate) fn cluster() -> Cluster {
        let text = r#"
            [scheduler]
            listen = "127.0.0.1:7700"
            member_timeout_ms = 700

            [[model]]
            name = "resnet50"
            alpha_ms = 1.0
            beta_ms = 5.0
            slo_ms = 25.0
            batch_max = 8
            input_bytes = 1000
            subcluster = "a"

            [[model]]
            name = "bert"
            alpha_ms = 1.0
            beta_ms = 5.0
            slo_ms = 50.0
            batch_max = 4
            input_bytes = 3000
            subcluster = "b"

            [[backend]]
            name = "one"
            subcluster = "b"
            gpus = 2
            cores = [3]
            credit_bytes = 4096
            model_memory_mib = 3
        "#;
        baton_topo::check_text(Path::new("cluster.toml"), text).cluster.expect("a sound file")
    }

    #[test]
    fn a_backend_takes_the_models_of_its_sub_cluster_and_no_others() {
        let config = BackendConfig::from_cluster(&cluster(), "one", SCHEDULER).unwrap();
        let names: Vec<&str> = config.models.iter().map(|model| model.name.as_str()).collect();
        assert_eq!(names, ["bert"]);
        assert_eq!((config.subcluster.as_str(), config.gpus, config.credit_bytes), ("b", 2, 4096));
        assert_eq!(config.member_timeout, Nanos::from_millis(700));
        assert_eq!(config.model_memory, Some(3 << 20));
        assert_eq!(
            (config.input_bytes(), config.output_bytes(), config.batch_max()),
            (12_000, 32, 4)
        );
    }

    #[test]
    fn where_weights_have_a_cache_loads_bring_the_models_and_otherwise_the_start_does() {
        let mut config = BackendConfig::from_cluster(&cluster(), "one", SCHEDULER).unwrap();
        let loaded = |config: &BackendConfig| {
            (config.loaded_at_start().count(), config.loaded_later().count())
        };
        assert_eq!(loaded(&config), (1, 0));
        config.weights_cache = Some(WeightsCacheSpec { pages: 4, page_bytes: 1 << 20 });
        assert_eq!(loaded(&config), (0, 1));
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = BackendConfig::from_cluster(&cluster(), "two", SCHEDULER).unwrap_err();
        assert_eq!(error.to_string(), "no [[backend]] is named `two`; the cluster file has: one");
    }

    #[test]
    fn a_sub_cluster_without_models_and_numbers_out_of_range_are_refused() {
        let mut cluster = cluster();
        cluster.backends[0].gpus = GPUS_PER_BACKEND_MAX + 1;
        let error = BackendConfig::from_cluster(&cluster, "one", SCHEDULER).unwrap_err();
        assert_eq!(error, ConfigError::Gpus { backend: "one".into(), gpus: 257 });
        cluster.backends[0].gpus = 256;
        cluster.models[1].input_bytes = 64 << 20;
        let error = BackendConfig::from_cluster(&cluster, "one", SCHEDULER).unwrap_err();
        assert!(matches!(error, ConfigError::Memory { model, gib: 256, .. } if model == "bert"));
        cluster.models.remove(1);
        let error = BackendConfig::from_cluster(&cluster, "one", SCHEDULER).unwrap_err();
        assert!(matches!(error, ConfigError::NoModels { subcluster, .. } if subcluster == "b"));
    }

    #[test]
    fn batches_may_fill_the_memory_for_them_to_the_last_byte() {
        let sound = BackendConfig::from_cluster(&cluster(), "one", SCHEDULER).unwrap();
        let with = |input_bytes: usize| {
            let mut config = BackendConfig { gpus: 1, ..sound.clone() };
            config.models[0].profile = Profile::linear(Nanos(1), Nanos(1), 64).unwrap();
            config.models[0].input_bytes = input_bytes as u32;
            config
        };
        let fits = BATCH_MEMORY_MAX / BATCH_SLOTS / 64 - with(1).output_bytes() / 64;
        assert_eq!(with(fits).check().map_err(|error| error.to_string()), Ok(()));
        assert!(matches!(with(fits + 1).check(), Err(ConfigError::Memory { .. })));
    }
}

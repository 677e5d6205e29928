//! What a model's ModelThread needs to know of it, from the cluster file or from the table of a model that is added.

use baton_core::{ModelConfig, NetworkDelay, Policy, Prefer};
use baton_topo::{Cluster, ModelSpec, NetworkSpec, SchedulerSpec};

use crate::model_thread::Resident;

/// What every model's configuration has in common.
#[derive(Clone, Debug)]
pub struct CommonConfig {
    policy: Policy,
    prefer: Prefer,
    network: NetworkSpec,
}

impl CommonConfig {
    /// As the cluster file says.
    pub fn of(cluster: &Cluster) -> Self {
        let SchedulerSpec { policy, prefer, .. } = cluster.scheduler;
        Self { policy, prefer, network: cluster.network }
    }

    /// How batches are formed and deferred.
    pub(crate) fn policy(&self) -> Policy {
        self.policy
    }

    /// Whether batches begin early where slots are to spare.
    pub(crate) fn prefer(&self) -> Prefer {
        self.prefer
    }

    /// The delays that objectives must leave room for.
    pub(crate) fn network(&self) -> &NetworkSpec {
        &self.network
    }

    /// A model on a ModelThread, without tasks.
    pub(crate) fn resident(&self, model: &ModelSpec) -> Resident {
        let NetworkSpec { ctrl, data_per_task, response, jitter } = self.network;
        Resident {
            config: ModelConfig {
                id: model.id,
                profile: model.profile.clone(),
                slo: model.slo,
                queue_capacity: model.queue_capacity,
                policy: self.policy,
                prefer: self.prefer,
                network: NetworkDelay { ctrl, data_per_task, response, jitter },
            },
            subcluster: model.subcluster,
            quota: model.quota,
            variants: model.checked_variants(),
        }
    }
}

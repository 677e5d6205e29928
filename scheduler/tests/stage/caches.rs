//! Backends that have not room for every model.

use baton_core::SubclusterId;
use baton_topo::{BackendSpec, CardsSpec, Idle, ModelFolderSpec, WeightsCacheSpec};

/// A backend of the first sub-cluster, with one slot.
pub fn with_cache(cache: WeightsCacheSpec) -> BackendSpec {
    BackendSpec {
        name: "b".into(),
        subcluster: SubclusterId(0),
        gpus: 1,
        cores: Vec::new(),
        idle: Idle::Park,
        credit_bytes: 0,
        metrics: None,
        model_memory: None,
        host_weights: 0,
        model_folder: ModelFolderSpec::default(),
        weights_cache: Some(cache),
        cards: CardsSpec::default(),
    }
}

//! The scenario that a cluster file describes: its models on its GPU slots.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use baton_core::{Nanos, NetworkDelay, Profile, SubclusterId};
use baton_topo::{
    Cluster, ModelSpec, VariantSpec, WeightsCacheSpec, WeightsSpec, check_cluster, per_cent, zoo,
};

use crate::invocations::Minutes;
use crate::replay::{Replay, ReplayOptions};
use crate::scenario::{Arrival, Scenario, SimModel};
use crate::scenario_file::{ScenarioError, with_replayed_shares};
use crate::subclusters::Subclusters;
use crate::variants::{Asking, SimVariant};
use crate::weights::{GpuMemory, LOAD_GB_PER_S, MIB, SimWeights};

/// What a cluster file does not say of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct ClusterRun {
    /// Measured span.
    pub duration: Nanos,
    /// Span before it; its tasks are offered and not counted.
    pub warmup: Nanos,
    /// Names of models to leave out. A sub-cluster that serves no other model is left out with its GPU slots.
    pub without: Vec<String>,
    /// A file of arrivals instead of Poisson's.
    pub replay: Option<ReplayFile>,
}

/// A file of arrivals, and which part of it is replayed.
#[derive(Clone, PartialEq, Debug)]
pub struct ReplayFile {
    /// The file.
    pub path: PathBuf,
    /// Of counts per minute; `None`: all of them.
    pub minutes: Option<Minutes>,
}

impl ReplayFile {
    /// Reads it for these models; functions go to them in turn.
    ///
    /// # Errors
    /// See [`Replay::load`].
    pub fn load(&self, names: &[&str]) -> Result<Replay, crate::replay::ReplayError> {
        Replay::load(&self.path, &ReplayOptions::new(names).of_minutes(self.minutes))
    }
}

impl Scenario {
    /// The models and GPU slots of a cluster file, under Poisson arrivals. The shares of the models follow from
    /// `expected_rps` if each has one, and are equal otherwise.
    ///
    /// # Errors
    /// The file is no cluster file, a model that is not left out has no ℓ(b) in it, a sub-cluster has such models and
    /// no GPU slot, a model to leave out is not in the file, or no model remains.
    pub fn load_cluster(path: &Path, run: &ClusterRun) -> Result<Self, ScenarioError> {
        let mut cluster = check_cluster(path).cluster.map_err(ScenarioError::Cluster)?;
        leave_out(path, &mut cluster, &run.without)?;
        of_cluster(path, &cluster, run)
    }
}

fn leave_out(path: &Path, cluster: &mut Cluster, without: &[String]) -> Result<(), ScenarioError> {
    let refused = |what, fix| ScenarioError::NotSimulated { file: path.to_owned(), what, fix };
    let known = |name: &str| cluster.models.iter().any(|model| model.name == name);
    if let Some(name) = without.iter().find(|name| !known(name)) {
        let what = format!("no model is called {name}");
        return Err(refused(what, "leave out models of the file only"));
    }
    cluster.models.retain(|model| !without.contains(&model.name));
    if cluster.models.is_empty() {
        return Err(refused("no model remains".to_owned(), "leave fewer models out"));
    }
    Ok(())
}

fn of_cluster(path: &Path, cluster: &Cluster, run: &ClusterRun) -> Result<Scenario, ScenarioError> {
    // A sub-cluster of the file has models, unless they were left out.
    let serves = |id: usize| cluster.models.iter().any(|model| model.subcluster.0 as usize == id);
    let gpus_of = |id: usize| {
        let own = |subcluster: SubclusterId| subcluster.0 as usize == id && serves(id);
        let backends = cluster.backends.iter().filter(|backend| own(backend.subcluster));
        backends.map(|backend| backend.gpus).sum::<u32>()
    };
    let gpus: Vec<u32> = (0..cluster.subclusters.len()).map(gpus_of).collect();
    check_models(path, cluster, &gpus)?;
    let network = &cluster.network;
    let memory = memory(path, cluster)?;
    let models = models(&cluster.models);
    memory.iter().try_for_each(|memory| memory.check(gpus.iter().sum(), &models))?;
    let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
    let replay = run.replay.as_ref().map(|file| file.load(&names)).transpose()?;
    let models = with_replayed_shares(models, replay.as_ref());
    Ok(Scenario {
        gpus: gpus.iter().sum(),
        duration: run.duration,
        warmup: run.warmup,
        seed: 1,
        arrival: Arrival::Poisson,
        replay: replay.map(Arc::new),
        load: None,
        network: NetworkDelay {
            ctrl: network.ctrl,
            data_per_task: network.data_per_task,
            response: network.response,
            jitter: network.jitter,
        },
        port: None,
        message_lag: Nanos::ZERO,
        prefer: cluster.scheduler.prefer,
        overrun: Nanos::ZERO,
        stragglers: None,
        profile_spread: 0.0,
        subclusters: Subclusters::of_sizes(&gpus),
        memory,
        gpu_events: Vec::new(),
        models,
    })
}

/// `gpus`: of each sub-cluster.
fn check_models(path: &Path, cluster: &Cluster, gpus: &[u32]) -> Result<(), ScenarioError> {
    let refused = |what, fix| ScenarioError::NotSimulated { file: path.to_owned(), what, fix };
    for model in &cluster.models {
        let SubclusterId(id) = model.subcluster;
        if gpus[id as usize] == 0 {
            let subcluster = &cluster.subclusters[id as usize];
            let what = format!("model {}: sub-cluster {subcluster} has no GPU slot", model.name);
            return Err(refused(what, "add a [[backend]] to it"));
        }
        if model.engine.is_measured() {
            let what =
                format!("model {}: its backends measure ℓ(b), the file lacks it", model.name);
            return Err(refused(what, PROFILE_FIX));
        }
    }
    Ok(())
}

/// The memory for weights of each slot. The simulator gives all of them the same.
fn memory(path: &Path, cluster: &Cluster) -> Result<Option<GpuMemory>, ScenarioError> {
    let mut caches = cluster.backends.iter().map(|backend| backend.weights_cache);
    let first = caches.next().flatten();
    if caches.any(|cache| cache != first) {
        return Err(ScenarioError::NotSimulated {
            file: path.to_owned(),
            what: "its backends have weights caches that differ".to_owned(),
            fix: "give all backends the same weights_cache_mib, or none",
        });
    }
    let of_cache = |WeightsCacheSpec { pages, page_bytes }| GpuMemory {
        pages,
        page_mib: page_bytes as f64 / MIB,
        load_gb_per_s: LOAD_GB_PER_S,
        load_error: 1.0,
        load_overrun: Nanos::ZERO,
        slow_link: None,
    };
    Ok(first.map(of_cache))
}

fn weights(spec: WeightsSpec) -> SimWeights {
    let load_ms = Some(spec.load.as_millis_f64());
    SimWeights { weights_mb: spec.bytes as f64 / 1e6, load_ms }
}

const PROFILE_FIX: &str = "give it latency_ms = [ℓ(1), ℓ(2), …], or alpha_ms and beta_ms, as measured on its GPU, or leave it out: --without MODEL";

fn models(specs: &[ModelSpec]) -> Vec<SimModel> {
    let expected: Option<Vec<f64>> = specs.iter().map(|model| model.expected_rps).collect();
    let weights = expected.filter(|rates| rates.iter().all(|&rate| rate > 0.0));
    let weights = weights.unwrap_or_else(|| vec![1.0; specs.len()]);
    let sum: f64 = weights.iter().sum();
    specs.iter().zip(weights).map(|(spec, weight)| model(spec, weight / sum)).collect()
}

fn model(spec: &ModelSpec, share: f64) -> SimModel {
    let (alpha_ms, beta_ms) = line(&spec.profile);
    SimModel {
        name: spec.name.clone(),
        alpha_ms,
        beta_ms,
        slo_ms: spec.slo.as_millis_f64(),
        share,
        profile: spec.profile.clone(),
        load: None,
        profile_error: 1.0,
        subcluster: spec.subcluster,
        copy: 1,
        weights: spec.weights.map(weights),
        clients: 0,
        variants: spec.variants.iter().map(variant).collect(),
        asking: Asking::default(),
    }
}

fn variant(spec: &VariantSpec) -> SimVariant {
    let (alpha_ms, beta_ms) = line(&spec.profile);
    let (name, accuracy) = (spec.name.clone(), per_cent(spec.accuracy));
    SimVariant { name, accuracy, alpha_ms, beta_ms, profile: spec.profile.clone() }
}

/// α and β of the line nearest to a profile, which the analytic bound reckons with.
fn line(profile: &Profile) -> (f64, f64) {
    let ms = |batch: u32| profile.latency(batch).as_millis_f64();
    if profile.batch_max() == 1 {
        return (ms(1), 0.0);
    }
    let points: Vec<(f64, f64)> =
        (1..=profile.batch_max()).map(|batch| (f64::from(batch), ms(batch))).collect();
    zoo::line(&points)
}

/// Where a scenario comes from.
#[derive(Clone, PartialEq, Debug)]
pub enum ScenarioSource {
    /// A scenario file.
    Scenario(PathBuf),
    /// A cluster file.
    Cluster(PathBuf, ClusterRun),
}

impl ScenarioSource {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// See [`Scenario::load`] and [`Scenario::load_cluster`].
    pub fn load(&self) -> Result<Scenario, ScenarioError> {
        match self {
            Self::Scenario(path) => Scenario::load(path),
            Self::Cluster(path, run) => Scenario::load_cluster(path, run),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        match self {
            Self::Scenario(path) | Self::Cluster(path, _) => path,
        }
    }
}

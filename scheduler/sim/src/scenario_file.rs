//! The scenario file (TOML) as it is written; `docs/simulator.md` lists its keys.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use baton_core::{BATCH_MAX, Nanos, NetworkDelay, Prefer, Profile, ProfileError, SubclusterId};
use baton_topo::Problem;
use baton_topo::zoo::{self, ZooModel};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::faults::{self, GpuEventKey, Misprofile, Stragglers, check_factor};
use crate::load::Load;
use crate::ports::PortKey;
use crate::replay::{Replay, ReplayError};
use crate::scenario::{Arrival, Scenario, SimModel};
use crate::subclusters::{self, SubclusterKey, Subclusters};

/// Why a file is no scenario.
#[derive(thiserror::Error, Debug)]
pub enum ScenarioError {
    /// The file could not be read.
    #[error("{}: {error}", path.display())]
    Unreadable {
        /// As given.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A mistake, with its place in the file.
    #[error("{0}")]
    InFile(Problem),
    /// The cluster file that is to be simulated is none.
    #[error("the cluster file cannot be used:\n{}", Problem::lines(.0))]
    Cluster(Vec<Problem>),
    /// A cluster file leaves open what a run needs.
    #[error("{}: {what}; fix: {fix}", file.display())]
    NotSimulated {
        /// The cluster file.
        file: PathBuf,
        /// What is missing.
        what: String,
        /// What to do.
        fix: &'static str,
    },
    /// Not TOML, an unknown key, or a value of the wrong kind.
    #[error("the scenario file cannot be read: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A number outside of what can be simulated.
    #[error("{key} = {value}: give a number from {min} to {max}")]
    Range {
        /// The key in the file.
        key: String,
        /// Its value.
        value: f64,
        /// Smallest permitted value.
        min: f64,
        /// Largest permitted value.
        max: f64,
    },
    /// Neither `zoo` nor a `[[model]]`, or none passes `zoo_filter`.
    #[error("no model: name a zoo (\"1080ti\", \"a100\" or \"clockwork\") or add a [[model]]")]
    NoModel,
    /// `zoo_filter` filters nothing.
    #[error("zoo_filter has no effect without zoo: remove it or name a zoo")]
    FilterWithoutZoo,
    /// A shape whose factors are zero throughout.
    #[error("{key}: nothing arrives in the measured span; give a factor above 0 there")]
    Silence {
        /// The key in the file.
        key: String,
    },
    /// The file of a replay.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// A slot that is lost while it is absent, or joins while it is there.
    #[error("gpu_event at {at_s} s: slot {gpu} is in that state already")]
    GpuEvent {
        /// The event's time, seconds.
        at_s: f64,
        /// The slot.
        gpu: u32,
    },
    /// A key that means nothing beside a replay.
    #[error("{key} has no effect on a replay that says it all: remove it")]
    ReplaySays {
        /// The key in the file.
        key: String,
    },
    /// The sub-clusters do not share out the scenario's slots.
    #[error("the [[subcluster]] have {sum} GPUs together, and gpus = {gpus}: make them the same")]
    SubclusterGpus {
        /// Theirs.
        sum: u64,
        /// The scenario's.
        gpus: u32,
    },
    /// Two sub-clusters go by one name.
    #[error("there are two [[subcluster]] named \"{name}\": rename one")]
    SubclusterTwice {
        /// The name.
        name: String,
    },
    /// A model's sub-cluster is none.
    #[error("model {model}: there is no [[subcluster]] named \"{name}\"; add it")]
    Subcluster {
        /// The model.
        model: String,
        /// What it names.
        name: String,
    },
    /// α and β are no latency profile.
    #[error("model {name}: {error}")]
    Profile {
        /// The model.
        name: String,
        /// What is wrong.
        error: ProfileError,
    },
}

/// Models a scenario may have, copies counted.
const MODELS_MAX: usize = 10_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    gpus: u32,
    duration_s: f64,
    #[serde(default)]
    warmup_s: f64,
    #[serde(default = "one")]
    seed: u64,
    #[serde(default)]
    arrival: ArrivalKey,
    load: Option<Load>,
    popularity: Option<Popularity>,
    #[serde(default)]
    network: Network,
    port: Option<PortKey>,
    #[serde(default)]
    message_lag_us: f64,
    #[serde(default, deserialize_with = "prefer")]
    prefer: Prefer,
    #[serde(default)]
    overrun_ms: f64,
    stragglers: Option<Stragglers>,
    #[serde(default)]
    profile_error: Misprofile,
    #[serde(default)]
    gpu_event: Vec<GpuEventKey>,
    zoo: Option<Zoo>,
    zoo_filter: Option<Filter>,
    #[serde(default)]
    subcluster: Vec<SubclusterKey>,
    #[serde(default)]
    model: Vec<Model>,
}

fn prefer<'de, D: Deserializer<'de>>(file: D) -> Result<Prefer, D::Error> {
    let name = String::deserialize(file)?;
    let [first, second] = Prefer::ALL.map(Prefer::name);
    let fix = || D::Error::custom(format!("prefer is \"{name}\"; write `{first}` or `{second}`"));
    name.parse().map_err(|_unknown| fix())
}

#[derive(Deserialize, Default)]
#[serde(tag = "process", rename_all = "lowercase", deny_unknown_fields)]
enum ArrivalKey {
    Constant,
    #[default]
    Poisson,
    Gamma {
        shape: f64,
    },
    Replay {
        file: PathBuf,
    },
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
enum Popularity {
    #[default]
    Equal,
    Zipf {
        s: f64,
    },
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Network {
    ctrl_us: f64,
    data_us_per_task: f64,
}

#[derive(Deserialize, Clone, Copy)]
enum Zoo {
    #[serde(rename = "1080ti")]
    Gtx1080Ti,
    #[serde(rename = "a100")]
    A100,
    #[serde(rename = "clockwork")]
    Clockwork,
}

#[derive(Deserialize, Clone, Copy, Default)]
#[serde(rename_all = "lowercase")]
enum Filter {
    #[default]
    All,
    /// β/α above 2: batching gains much.
    Gt2,
    /// β/α below 2.
    Lt2,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    name: String,
    alpha_ms: f64,
    beta_ms: f64,
    slo_ms: f64,
    #[serde(default = "one")]
    copies: u32,
    load: Option<Load>,
    profile_error: Option<f64>,
    subcluster: Option<String>,
}

fn one<T: From<u8>>() -> T {
    T::from(1)
}

/// `folder` is where the files lie that the text names.
pub(crate) fn parse(text: &str, folder: &Path) -> Result<Scenario, ScenarioError> {
    let file: File = toml::from_str(text)?;
    check("gpus", f64::from(file.gpus), 1.0, 100_000.0)?;
    check("duration_s", file.duration_s, 0.001, 1e6)?;
    check("warmup_s", file.warmup_s, 0.0, 1e6)?;
    check("network.ctrl_us", file.network.ctrl_us, 0.0, 1e6)?;
    check("network.data_us_per_task", file.network.data_us_per_task, 0.0, 1e6)?;
    check("message_lag_us", file.message_lag_us, 0.0, 1e6)?;
    check("overrun_ms", file.overrun_ms, 0.0, 1e3)?;
    file.port.iter().try_for_each(PortKey::check)?;
    file.profile_error.check()?;
    file.stragglers.iter().try_for_each(|stragglers| stragglers.check(file.gpus))?;
    let (warmup, duration) = (seconds(file.warmup_s), seconds(file.duration_s));
    for (key, load) in loads(&file) {
        load.check(&key, warmup, warmup + duration)?;
    }
    let subclusters = Subclusters::of_keys(&file.subcluster, file.gpus)?;
    let models = with_shares(models(&file)?, file.popularity.unwrap_or_default())?;
    let replay = replay(&file, folder, &models)?;
    let models = with_replayed_shares(models, replay.as_ref());
    Ok(Scenario {
        gpus: file.gpus,
        duration,
        warmup,
        seed: file.seed,
        arrival: file.arrival.checked()?,
        load: file.load,
        replay: replay.map(Arc::new),
        network: file.network.delay(),
        port: file.port,
        message_lag: Nanos::from_millis_f64(file.message_lag_us / 1e3),
        prefer: file.prefer,
        overrun: Nanos::from_millis_f64(file.overrun_ms),
        stragglers: file.stragglers,
        profile_spread: file.profile_error.spread,
        subclusters,
        gpu_events: faults::gpu_events(&file.gpu_event, file.gpus, warmup + duration)?,
        models,
    })
}

/// The file that `arrival` names, if it does; it replaces what it says.
fn replay(
    file: &File,
    folder: &Path,
    models: &[SimModel],
) -> Result<Option<Replay>, ScenarioError> {
    let ArrivalKey::Replay { file: name } = &file.arrival else { return Ok(None) };
    let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
    let replay = Replay::load(&folder.join(name), &names)?;
    if let Some((key, _)) = loads(file).next() {
        return Err(ScenarioError::ReplaySays { key });
    }
    if file.popularity.is_some() && replay.shares(models.len()).is_some() {
        return Err(ScenarioError::ReplaySays { key: "popularity".to_owned() });
    }
    Ok(Some(replay))
}

fn with_replayed_shares(mut models: Vec<SimModel>, replay: Option<&Replay>) -> Vec<SimModel> {
    if let Some(shares) = replay.and_then(|replay| replay.shares(models.len())) {
        models.iter_mut().zip(shares).for_each(|(model, share)| model.share = share);
    }
    models
}

/// Every shape in the file, with its key.
fn loads(file: &File) -> impl Iterator<Item = (String, &Load)> {
    let common = file.load.iter().map(|load| ("load".to_owned(), load));
    let own = |model| {
        let Model { name, load, .. }: &Model = model;
        load.iter().map(move |load| (format!("{name}.load"), load))
    };
    common.chain(file.model.iter().flat_map(own))
}

fn seconds(seconds: f64) -> Nanos {
    Nanos::from_millis_f64(seconds * 1e3)
}

pub(crate) fn check(key: &str, value: f64, min: f64, max: f64) -> Result<(), ScenarioError> {
    let within = (min..=max).contains(&value);
    within.then_some(()).ok_or_else(|| ScenarioError::Range {
        key: key.to_owned(),
        value,
        min,
        max,
    })
}

impl ArrivalKey {
    fn checked(&self) -> Result<Arrival, ScenarioError> {
        Ok(match *self {
            Self::Constant => Arrival::Constant,
            Self::Poisson | Self::Replay { .. } => Arrival::Poisson,
            Self::Gamma { shape } => {
                check("arrival.shape", shape, 0.01, 1e3)?;
                Arrival::Gamma { shape }
            }
        })
    }
}

impl Network {
    fn delay(&self) -> NetworkDelay {
        let micros = |us: f64| Nanos::from_millis_f64(us / 1e3);
        let (ctrl, data_per_task) = (micros(self.ctrl_us), micros(self.data_us_per_task));
        NetworkDelay { ctrl, data_per_task, ..NetworkDelay::default() }
    }
}

/// The zoo's models, then the file's own, every copy on its own.
fn models(file: &File) -> Result<Vec<SimModel>, ScenarioError> {
    let mut models = Vec::new();
    let profile_error = file.profile_error.factor;
    for model in zoo_models(file)? {
        let sim_model = sim_model(model.name, model.alpha_ms, model.beta_ms, model.slo_ms)?;
        models.push(SimModel { profile_error, ..sim_model });
    }
    for model in &file.model {
        check("model.copies", f64::from(model.copies), 1.0, MODELS_MAX as f64)?;
        let profile_error = model.profile_error.unwrap_or(profile_error);
        check_factor(&format!("{}.profile_error", model.name), profile_error)?;
        let subcluster =
            subclusters::named(&file.subcluster, &model.name, model.subcluster.as_ref())?;
        for copy in 1..=model.copies {
            let alone = model.copies == 1;
            let name = if alone { model.name.clone() } else { format!("{}-{copy}", model.name) };
            let sim_model = sim_model(name, model.alpha_ms, model.beta_ms, model.slo_ms)?;
            let load = model.load.clone();
            models.push(SimModel { load, profile_error, subcluster, ..sim_model });
        }
    }
    if models.is_empty() {
        return Err(ScenarioError::NoModel);
    }
    check("number of models", models.len() as f64, 1.0, MODELS_MAX as f64)?;
    Ok(models)
}

fn zoo_models(file: &File) -> Result<Vec<ZooModel>, ScenarioError> {
    let mut models = match (file.zoo, file.zoo_filter) {
        (None, Some(_)) => return Err(ScenarioError::FilterWithoutZoo),
        (None, None) => Vec::new(),
        (Some(Zoo::Gtx1080Ti), _) => zoo::gtx_1080ti(),
        (Some(Zoo::A100), _) => zoo::a100(),
        (Some(Zoo::Clockwork), _) => zoo::clockwork(),
    };
    let filter = file.zoo_filter.unwrap_or_default();
    models.retain(|model| match filter {
        Filter::All => true,
        Filter::Gt2 => model.batching() > 2.0,
        Filter::Lt2 => model.batching() < 2.0,
    });
    Ok(models)
}

fn sim_model(
    name: String,
    alpha_ms: f64,
    beta_ms: f64,
    slo_ms: f64,
) -> Result<SimModel, ScenarioError> {
    check(&format!("{name}.alpha_ms"), alpha_ms, 0.0, 1e6)?;
    check(&format!("{name}.beta_ms"), beta_ms, 0.0, 1e6)?;
    check(&format!("{name}.slo_ms"), slo_ms, 0.001, 1e6)?;
    let useful = ((slo_ms - beta_ms) / alpha_ms).clamp(1.0, f64::from(BATCH_MAX - 1)) as u32;
    let (alpha, beta) = (Nanos::from_millis_f64(alpha_ms), Nanos::from_millis_f64(beta_ms));
    match Profile::linear(alpha, beta, useful + 1) {
        Ok(profile) => {
            let (load, profile_error) = (None, 1.0);
            Ok(SimModel {
                name,
                alpha_ms,
                beta_ms,
                slo_ms,
                share: 1.0,
                profile,
                load,
                profile_error,
                subcluster: SubclusterId::default(),
            })
        }
        Err(error) => Err(ScenarioError::Profile { name, error }),
    }
}

fn with_shares(
    mut models: Vec<SimModel>,
    popularity: Popularity,
) -> Result<Vec<SimModel>, ScenarioError> {
    if let Popularity::Zipf { s } = popularity {
        check("popularity.s", s, 0.0, 10.0)?;
        for (rank, model) in models.iter_mut().enumerate() {
            model.share = (rank as f64 + 1.0).powf(-s);
        }
    }
    let sum: f64 = models.iter().map(|model| model.share).sum();
    models.iter_mut().for_each(|model| model.share /= sum);
    Ok(models)
}

//! The scenario file (TOML) as it is written; `docs/simulator.md` lists its keys.

use std::collections::BTreeMap;
use std::iter::repeat_n;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use baton_core::{Nanos, NetworkDelay, Prefer};
use baton_topo::zoo::{self, ZooModel};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::azure;
use crate::faults::{self, GpuEventKey, Misprofile, Stragglers};
use crate::invocations::Minutes;
use crate::load::Load;
use crate::model_key::{LatencyKeys, ModelKey, sim_model};
use crate::popularity::Popularity;
use crate::ports::PortKey;
use crate::replay::{Replay, ReplayOptions};
use crate::scenario::{Arrival, Scenario, SimModel};
pub(crate) use crate::scenario_error::ScenarioError;
use crate::subclusters::{SubclusterKey, Subclusters};
use crate::weights::{GpuMemory, LOAD_GB_PER_S, PAGE_MIB, SimWeights, SlowLink};

/// Models a scenario may have, copies counted.
pub(crate) const MODELS_MAX: usize = 10_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
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
    pages: Option<u32>,
    page_mib: Option<f64>,
    load_gb_per_s: Option<f64>,
    load_error: Option<f64>,
    load_overrun_ms: Option<f64>,
    slow_link: Option<SlowLink>,
    #[serde(default)]
    pub(crate) profile_error: Misprofile,
    #[serde(default)]
    gpu_event: Vec<GpuEventKey>,
    zoo: Option<Zoo>,
    zoo_filter: Option<Filter>,
    #[serde(default)]
    pub(crate) subcluster: Vec<SubclusterKey>,
    #[serde(default)]
    model: Vec<ModelKey>,
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
    Bursty {
        base_rps: f64,
        shape: f64,
    },
    Replay {
        file: PathBuf,
        minutes: Option<Minutes>,
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

pub(crate) fn one<T: From<u8>>() -> T {
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
    let popularity = file.popularity.unwrap_or_default();
    let span = (file.warmup_s, file.warmup_s + file.duration_s);
    let models = popularity.share_out(models(&file)?, span, file.seed)?;
    let memory = file.memory()?;
    memory.iter().try_for_each(|memory| memory.check(file.gpus, &models))?;
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
        memory,
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
    let ArrivalKey::Replay { file: name, minutes } = &file.arrival else { return Ok(None) };
    let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
    let options = ReplayOptions::new(&names).in_turn(azure::in_turn(models)).of_minutes(*minutes);
    let replay = Replay::load(&folder.join(name), &options)?;
    if let Some((key, _)) = loads(file).next() {
        return Err(ScenarioError::ReplaySays { key });
    }
    if file.popularity.is_some() && replay.shares(models.len()).is_some() {
        return Err(ScenarioError::ReplaySays { key: "popularity".to_owned() });
    }
    Ok(Some(replay))
}

pub(crate) fn with_replayed_shares(
    mut models: Vec<SimModel>,
    replay: Option<&Replay>,
) -> Vec<SimModel> {
    if let Some(shares) = replay.and_then(|replay| replay.shares(models.len())) {
        models.iter_mut().zip(shares).for_each(|(model, share)| model.share = share);
    }
    models
}

/// Every shape in the file, with its key.
fn loads(file: &File) -> impl Iterator<Item = (String, &Load)> {
    let common = file.load.iter().map(|load| ("load".to_owned(), load));
    let own = |model| {
        let ModelKey { name, load, .. }: &ModelKey = model;
        load.iter().map(move |load| (format!("{name}.load"), load))
    };
    common.chain(file.model.iter().flat_map(own))
}

impl File {
    /// The memory that the file gives each slot, if it does.
    fn memory(&self) -> Result<Option<GpuMemory>, ScenarioError> {
        let Some(pages) = self.pages else {
            let keys = [
                ("page_mib", self.page_mib),
                ("load_gb_per_s", self.load_gb_per_s),
                ("load_error", self.load_error),
                ("load_overrun_ms", self.load_overrun_ms),
                ("slow_link", self.slow_link.map(|link| link.factor)),
            ];
            return match keys.into_iter().find(|(_, value)| value.is_some()) {
                None => Ok(None),
                Some((key, _)) => {
                    Err(ScenarioError::NoEffect { key: key.to_owned(), why: "without pages" })
                }
            };
        };
        let load_overrun_ms = self.load_overrun_ms.unwrap_or_default();
        check("load_overrun_ms", load_overrun_ms, 0.0, 1e3)?;
        Ok(Some(GpuMemory {
            pages,
            page_mib: self.page_mib.unwrap_or(PAGE_MIB),
            load_gb_per_s: self.load_gb_per_s.unwrap_or(LOAD_GB_PER_S),
            load_error: self.load_error.unwrap_or(1.0),
            load_overrun: Nanos::from_millis_f64(load_overrun_ms),
            slow_link: self.slow_link,
        }))
    }
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
            Self::Bursty { base_rps, shape } => {
                check("arrival.base_rps", base_rps, 0.0, 1e9)?;
                check("arrival.shape", shape, 0.01, 1e3)?;
                Arrival::Bursty { base_rps, shape }
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
        let weights =
            model.weights_mb.map(|weights_mb| SimWeights { weights_mb, load_ms: model.load_ms });
        let (alpha_ms, beta_ms) = (Some(model.alpha_ms), Some(model.beta_ms));
        let keys = LatencyKeys { alpha_ms, beta_ms, latency_ms: None, batch_max: None };
        let latency = keys.read(&model.name, model.slo_ms)?;
        let sim_model = sim_model(model.name, model.slo_ms, latency);
        models.push(SimModel { profile_error, weights, ..sim_model });
    }
    for model in &file.model {
        models.extend(model.copies(file)?);
    }
    if models.is_empty() {
        return Err(ScenarioError::NoModel);
    }
    check("number of models", models.len() as f64, 1.0, MODELS_MAX as f64)?;
    check_names(&models, &file.model)?;
    Ok(models)
}

/// Replays, `--model` and reports go by the names. The zoo's models come before those of the tables.
fn check_names(models: &[SimModel], tables: &[ModelKey]) -> Result<(), ScenarioError> {
    let of = |(at, table): (usize, &ModelKey)| repeat_n(Some(at), table.copies as usize);
    let of_tables: Vec<Option<usize>> = tables.iter().enumerate().flat_map(of).collect();
    let of_zoo = repeat_n(None, models.len() - of_tables.len());
    let mut first_of = BTreeMap::new();
    for (model, table) in models.iter().zip(of_zoo.chain(of_tables)) {
        let first = first_of.insert(model.name.as_str(), table);
        if let (Some(first), Some(second)) = (first, table) {
            return Err(ScenarioError::ModelTwice { name: model.name.clone(), first, second });
        }
    }
    Ok(())
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

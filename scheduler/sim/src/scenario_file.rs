//! The scenario file (TOML) as it is written; `docs/simulator.md` lists its keys.

use std::path::PathBuf;

use baton_core::{BATCH_MAX, Nanos, NetworkDelay, Profile, ProfileError};
use baton_topo::zoo::{self, ZooModel};
use serde::Deserialize;

use crate::scenario::{Arrival, Scenario, SimModel};

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
    #[error("no model: name a zoo (\"1080ti\" or \"a100\") or add a [[model]]")]
    NoModel,
    /// `zoo_filter` filters nothing.
    #[error("zoo_filter has no effect without zoo: remove it or name a zoo")]
    FilterWithoutZoo,
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
    #[serde(default)]
    popularity: Popularity,
    #[serde(default)]
    network: Network,
    #[serde(default)]
    message_lag_us: f64,
    #[serde(default)]
    overrun_ms: f64,
    zoo: Option<Zoo>,
    zoo_filter: Option<Filter>,
    #[serde(default)]
    model: Vec<Model>,
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
}

#[derive(Deserialize, Default)]
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
}

fn one<T: From<u8>>() -> T {
    T::from(1)
}

pub(crate) fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    let file: File = toml::from_str(text)?;
    check("gpus", f64::from(file.gpus), 1.0, 100_000.0)?;
    check("duration_s", file.duration_s, 0.001, 1e6)?;
    check("warmup_s", file.warmup_s, 0.0, 1e6)?;
    check("network.ctrl_us", file.network.ctrl_us, 0.0, 1e6)?;
    check("network.data_us_per_task", file.network.data_us_per_task, 0.0, 1e6)?;
    check("message_lag_us", file.message_lag_us, 0.0, 1e6)?;
    check("overrun_ms", file.overrun_ms, 0.0, 1e3)?;
    Ok(Scenario {
        gpus: file.gpus,
        duration: seconds(file.duration_s),
        warmup: seconds(file.warmup_s),
        seed: file.seed,
        arrival: file.arrival.checked()?,
        network: file.network.delay(),
        message_lag: Nanos::from_millis_f64(file.message_lag_us / 1e3),
        overrun: Nanos::from_millis_f64(file.overrun_ms),
        models: with_shares(models(&file)?, &file.popularity)?,
    })
}

fn seconds(seconds: f64) -> Nanos {
    Nanos::from_millis_f64(seconds * 1e3)
}

fn check(key: &str, value: f64, min: f64, max: f64) -> Result<(), ScenarioError> {
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
            Self::Poisson => Arrival::Poisson,
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
    for model in zoo_models(file)? {
        models.push(sim_model(model.name, model.alpha_ms, model.beta_ms, model.slo_ms)?);
    }
    for model in &file.model {
        check("model.copies", f64::from(model.copies), 1.0, MODELS_MAX as f64)?;
        for copy in 1..=model.copies {
            let alone = model.copies == 1;
            let name = if alone { model.name.clone() } else { format!("{}-{copy}", model.name) };
            models.push(sim_model(name, model.alpha_ms, model.beta_ms, model.slo_ms)?);
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
        Ok(profile) => Ok(SimModel { name, alpha_ms, beta_ms, slo_ms, share: 1.0, profile }),
        Err(error) => Err(ScenarioError::Profile { name, error }),
    }
}

fn with_shares(
    mut models: Vec<SimModel>,
    popularity: &Popularity,
) -> Result<Vec<SimModel>, ScenarioError> {
    if let Popularity::Zipf { s } = *popularity {
        check("popularity.s", s, 0.0, 10.0)?;
        for (rank, model) in models.iter_mut().enumerate() {
            model.share = (rank as f64 + 1.0).powf(-s);
        }
    }
    let sum: f64 = models.iter().map(|model| model.share).sum();
    models.iter_mut().for_each(|model| model.share /= sum);
    Ok(models)
}

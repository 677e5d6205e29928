//! A `[[model]]` of the scenario file as it is written, and the models that it stands for.

use baton_core::{BATCH_MAX, Nanos, Profile, SubclusterId};
use baton_topo::zoo;
use serde::Deserialize;

use crate::faults::check_factor;
use crate::load::Load;
use crate::scenario::SimModel;
use crate::scenario_error::ScenarioError;
use crate::scenario_file::{File, MODELS_MAX, check, one};
use crate::subclusters;
use crate::variants::{self, Asking, VariantKey};
use crate::weights::SimWeights;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelKey {
    pub(crate) name: String,
    alpha_ms: Option<f64>,
    beta_ms: Option<f64>,
    /// ℓ(1), ℓ(2), … instead of α and β.
    latency_ms: Option<Vec<f64>>,
    batch_max: Option<u32>,
    slo_ms: f64,
    #[serde(default = "one")]
    pub(crate) copies: u32,
    /// Of the load beside other models, all copies together.
    weight: Option<f64>,
    weights_mb: Option<f64>,
    load_ms: Option<f64>,
    closed_loop: Option<ClosedLoopKey>,
    pub(crate) load: Option<Load>,
    profile_error: Option<f64>,
    subcluster: Option<String>,
    #[serde(default)]
    variant: Vec<VariantKey>,
    /// What tasks ask for, per cent, and which part of them does: all, unless it is said.
    accuracy_min: Option<f64>,
    accuracy_min_share: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClosedLoopKey {
    clients: u32,
}

/// ℓ(b) as it is written, and the largest batch.
#[derive(Clone, Copy)]
pub(crate) struct LatencyKeys<'a> {
    pub(crate) alpha_ms: Option<f64>,
    pub(crate) beta_ms: Option<f64>,
    pub(crate) latency_ms: Option<&'a [f64]>,
    pub(crate) batch_max: Option<u32>,
}

/// ℓ(b), and α and β of the line nearest to it.
pub(crate) struct LatencyProfile {
    pub(crate) alpha_ms: f64,
    pub(crate) beta_ms: f64,
    pub(crate) profile: Profile,
}

impl ModelKey {
    fn latency(&self) -> LatencyKeys<'_> {
        LatencyKeys {
            alpha_ms: self.alpha_ms,
            beta_ms: self.beta_ms,
            latency_ms: self.latency_ms.as_deref(),
            batch_max: self.batch_max,
        }
    }

    fn named(&self, copy: u32) -> String {
        match self.copies {
            1 => self.name.clone(),
            _ => format!("{}-{copy}", self.name),
        }
    }

    /// The models, every copy on its own.
    pub(crate) fn copies(&self, file: &File) -> Result<Vec<SimModel>, ScenarioError> {
        check("model.copies", f64::from(self.copies), 1.0, MODELS_MAX as f64)?;
        let profile_error = self.profile_error.unwrap_or(file.profile_error.factor);
        check_factor(&format!("{}.profile_error", self.name), profile_error)?;
        let subcluster =
            subclusters::named(&file.subcluster, &self.name, self.subcluster.as_ref())?;
        let weight = self.weight.unwrap_or_else(|| f64::from(self.copies));
        check(&format!("{}.weight", self.name), weight, 0.0, 1e9)?;
        let first = self.named(1);
        check(&format!("{first}.slo_ms"), self.slo_ms, 0.001, 1e6)?;
        let variants = variants::read(&self.name, self.slo_ms, self.latency(), &self.variant)?;
        let asked = (self.accuracy_min, self.accuracy_min_share);
        let asking = variants::asking(&self.name, asked, &variants)?;
        let latency = match variants.first() {
            Some(cheapest) => cheapest.latency(),
            None => self.latency().read(&first, self.slo_ms)?,
        };
        let weights =
            self.weights_mb.map(|mb| SimWeights { weights_mb: mb, load_ms: self.load_ms });
        let clients = self.closed_loop.as_ref().map_or(0, |closed_loop| closed_loop.clients);
        check(&format!("{}.closed_loop.clients", self.name), clients.into(), 0.0, 1e5)?;
        let share = weight / f64::from(self.copies);
        let first = SimModel {
            load: self.load.clone(),
            profile_error,
            subcluster,
            share,
            weights,
            clients,
            variants,
            asking,
            ..sim_model(first, self.slo_ms, latency)
        };
        let of = |copy| SimModel { name: self.named(copy), copy, ..first.clone() };
        Ok((1..=self.copies).map(of).collect())
    }
}

impl LatencyKeys<'_> {
    /// Of the model, or of one of its variants, by the name in errors.
    pub(crate) fn read(self, name: &str, slo_ms: f64) -> Result<LatencyProfile, ScenarioError> {
        let is_table = self.latency_ms.is_some();
        let refused = |error| ScenarioError::Profile { name: name.to_owned(), error, is_table };
        match (self.alpha_ms, self.beta_ms, self.latency_ms) {
            (Some(alpha_ms), Some(beta_ms), None) => {
                check(&format!("{name}.alpha_ms"), alpha_ms, 0.0, 1e6)?;
                check(&format!("{name}.beta_ms"), beta_ms, 0.0, 1e6)?;
                let batch_max = match self.batch_max {
                    Some(batch_max) => checked_batch_max(name, batch_max, BATCH_MAX)?,
                    None => useful(alpha_ms, beta_ms, slo_ms),
                };
                let ns = Nanos::from_millis_f64;
                let profile = Profile::linear(ns(alpha_ms), ns(beta_ms), batch_max);
                Ok(LatencyProfile { alpha_ms, beta_ms, profile: profile.map_err(refused)? })
            }
            (None, None, Some(table)) if !table.is_empty() => {
                let most = table.len() as u32;
                let batch_max = checked_batch_max(name, self.batch_max.unwrap_or(most), most)?;
                let table = &table[..batch_max as usize];
                let (alpha_ms, beta_ms) = line(table);
                let ns: Vec<Nanos> = table.iter().copied().map(Nanos::from_millis_f64).collect();
                let profile = Profile::from_table(&ns).map_err(refused)?;
                Ok(LatencyProfile { alpha_ms, beta_ms, profile })
            }
            _ => Err(ScenarioError::Latency { model: name.to_owned() }),
        }
    }
}

fn checked_batch_max(name: &str, batch_max: u32, most: u32) -> Result<u32, ScenarioError> {
    check(&format!("{name}.batch_max"), batch_max.into(), 1.0, most.into())?;
    Ok(batch_max)
}

/// One more than could ever meet the objective.
fn useful(alpha_ms: f64, beta_ms: f64, slo_ms: f64) -> u32 {
    let useful = (slo_ms - beta_ms) / alpha_ms;
    useful.clamp(1.0, f64::from(BATCH_MAX - 1)) as u32 + 1
}

/// α and β of the line nearest to a table, which the analytic bound reckons with.
fn line(table: &[f64]) -> (f64, f64) {
    let points: Vec<(f64, f64)> = (1..).map(f64::from).zip(table.iter().copied()).collect();
    if points.len() == 1 { (points[0].1, 0.0) } else { zoo::line(&points) }
}

/// A model of which nothing more is said.
pub(crate) fn sim_model(name: String, slo_ms: f64, latency: LatencyProfile) -> SimModel {
    let LatencyProfile { alpha_ms, beta_ms, profile } = latency;
    SimModel {
        name,
        alpha_ms,
        beta_ms,
        slo_ms,
        share: 1.0,
        profile,
        load: None,
        profile_error: 1.0,
        subcluster: SubclusterId::default(),
        copy: 1,
        weights: None,
        clients: 0,
        variants: Vec::new(),
        asking: Asking::default(),
    }
}

//! Supernets: models with variants, each with an accuracy and an ℓ(b) of its own (`docs/supernets.md`).

use baton_core::{Profile, Variants};
use baton_topo::{BESIDE_VARIANTS, VariantsProblem, accuracy_of, checked_variants};
use serde::Deserialize;

use crate::model_key::{LatencyKeys, LatencyProfile};
use crate::scenario::SimModel;
use crate::scenario_error::ScenarioError;
use crate::scenario_file::check;

/// A variant of a scenario's model.
#[derive(Clone, PartialEq, Debug)]
pub struct SimVariant {
    /// As in reports.
    pub name: String,
    /// Per cent of its answers that are right.
    pub accuracy: f64,
    /// α of ℓ(b) = α·b + β, ms; of the nearest line if ℓ is a table.
    pub alpha_ms: f64,
    /// β, ms.
    pub beta_ms: f64,
    /// ℓ(b).
    pub profile: Profile,
}

/// Which tasks of a model ask for an accuracy: a part of them, evenly spread.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Asking {
    /// 1/100,000; 0: none asks.
    pub accuracy_min: u32,
    /// The part of the tasks that do, 0 to 1.
    pub share: f64,
}

impl Asking {
    /// What the model's task with this number, from 0, asks for.
    pub fn of(&self, number: u64) -> u32 {
        let asked = |number: u64| (number as f64 * self.share).floor() as u64;
        if asked(number + 1) > asked(number) { self.accuracy_min } else { 0 }
    }
}

/// What the keys of a model say of that.
pub(crate) fn asking(
    name: &str,
    (accuracy_min, share): (Option<f64>, Option<f64>),
    variants: &[SimVariant],
) -> Result<Asking, ScenarioError> {
    let has_effect = |key: &str, why| ScenarioError::NoEffect { key: format!("{name}.{key}"), why };
    let Some(per_cent) = accuracy_min else {
        return match share {
            Some(_) => Err(has_effect("accuracy_min_share", "without accuracy_min")),
            None => Ok(Asking::default()),
        };
    };
    if variants.is_empty() {
        return Err(has_effect("accuracy_min", "without a [[model.variant]]"));
    }
    check(&format!("{name}.accuracy_min"), per_cent, 0.0, 100.0)?;
    let share = share.unwrap_or(1.0);
    check(&format!("{name}.accuracy_min_share"), share, 0.0, 1.0)?;
    Ok(Asking { accuracy_min: accuracy_of(per_cent), share })
}

/// A `[[model.variant]]` as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VariantKey {
    name: String,
    accuracy: f64,
    alpha_ms: Option<f64>,
    beta_ms: Option<f64>,
    latency_ms: Option<Vec<f64>>,
}

impl SimVariant {
    pub(crate) fn latency(&self) -> LatencyProfile {
        let Self { alpha_ms, beta_ms, ref profile, .. } = *self;
        LatencyProfile { alpha_ms, beta_ms, profile: profile.clone() }
    }
}

impl SimModel {
    /// The variants as the scheduler has them; `None` without any.
    pub(crate) fn checked_variants(&self) -> Option<Variants> {
        let variants = (!self.variants.is_empty()).then(|| of_scheduler(&self.variants))?;
        Some(variants.expect("they were checked when the scenario was read"))
    }
}

/// A model's variants, checked; `model` is what the file says of its own ℓ(b): nothing, if it has variants.
pub(crate) fn read(
    name: &str,
    slo_ms: f64,
    model: LatencyKeys<'_>,
    keys: &[VariantKey],
) -> Result<Vec<SimVariant>, ScenarioError> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let own = [
        ("alpha_ms", model.alpha_ms.is_some()),
        ("beta_ms", model.beta_ms.is_some()),
        ("latency_ms", model.latency_ms.is_some()),
    ];
    if let Some((key, _)) = own.into_iter().find(|(_, is_there)| *is_there) {
        let why = BESIDE_VARIANTS;
        return Err(ScenarioError::NoEffect { key: format!("{name}.{key}"), why });
    }
    let mut variants: Vec<SimVariant> = Vec::new();
    for key in keys {
        let batch_max = variants.first().map(|first| first.profile.batch_max());
        let variant = read_one(name, slo_ms, model.batch_max.or(batch_max), key)?;
        variants.push(variant);
    }
    of_scheduler(&variants)
        .map_err(|problem| ScenarioError::Variants { model: name.to_owned(), problem })?;
    Ok(variants)
}

fn read_one(
    model: &str,
    slo_ms: f64,
    batch_max: Option<u32>,
    key: &VariantKey,
) -> Result<SimVariant, ScenarioError> {
    let name = format!("{model}.variant.{}", key.name);
    check(&format!("{name}.accuracy"), key.accuracy, 0.0, 100.0)?;
    let latency_ms = key.latency_ms.as_deref();
    let batch_max = batch_max.filter(|_| latency_ms.is_none());
    let keys = LatencyKeys { alpha_ms: key.alpha_ms, beta_ms: key.beta_ms, latency_ms, batch_max };
    let LatencyProfile { alpha_ms, beta_ms, profile } = keys.read(&name, slo_ms)?;
    Ok(SimVariant { name: key.name.clone(), accuracy: key.accuracy, alpha_ms, beta_ms, profile })
}

fn of_scheduler(variants: &[SimVariant]) -> Result<Variants, VariantsProblem> {
    checked_variants(variants.iter().map(|v| (&*v.name, accuracy_of(v.accuracy), &v.profile)))
}

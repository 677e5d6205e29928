//! Latencies and bad rates at loads that every policy should carry with ease.

use baton_core::Policy;
use serde::Serialize;

use crate::policy::PolicyName;
use crate::report::{ModelReport, Report};
use crate::run::{Run, run};
use crate::scenario::Scenario;
use crate::tally::SimError;

/// Loads at which latencies are compared, as parts of the highest goodput.
const LOADS: [f64; 3] = [0.1, 0.3, 0.5];
/// The load at which bad rates are.
const LOW: f64 = 0.1;

/// Latencies, ms, at a part of the goodput.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct AtLoad {
    /// Offered load over the highest goodput.
    pub load: f64,
    /// Mean over all tasks that were executed, of the policy that is compared.
    pub mean_ms: f64,
    /// Each model's 99th percentile, the mean over the models weighted by their tasks.
    pub p99_ms: f64,
    /// The same of `eager`.
    pub eager_mean_ms: f64,
    /// The same of `eager`.
    pub eager_p99_ms: f64,
    /// Late and dropped over submitted tasks, of the policy that is compared.
    pub bad_rate: f64,
    /// The same of `eager`.
    pub eager_bad_rate: f64,
}

/// Bad rates at a tenth of the highest goodput, over all tasks of all seeds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LowLoad {
    /// Late and dropped over submitted tasks, of the policy that is compared.
    pub bad_rate: f64,
    /// The policy with the lowest.
    pub best: String,
    /// Its bad rate.
    pub best_bad_rate: f64,
}

pub(super) fn latencies(
    scenario: &Scenario,
    policy: PolicyName,
    goodput_rps: f64,
    seeds: &[u64],
) -> Result<Vec<AtLoad>, SimError> {
    let at = |&load: &f64| {
        let measure = |policy| {
            let models = models(scenario, policy, load * goodput_rps, seeds)?;
            let mean_of = |of| ModelReport::mean_of(&models, of).unwrap_or(0.0);
            let (mean_ms, p99_ms) = (mean_of(|model| model.mean_ms), mean_of(|model| model.p99_ms));
            Ok::<_, SimError>((mean_ms, p99_ms, bad_rate(&models)))
        };
        let (mean_ms, p99_ms, bad_rate) = measure(policy)?;
        let (eager_mean_ms, eager_p99_ms, eager_bad_rate) =
            measure(PolicyName::Production(Policy::Eager))?;
        Ok(AtLoad { load, mean_ms, p99_ms, eager_mean_ms, eager_p99_ms, bad_rate, eager_bad_rate })
    };
    LOADS.iter().map(at).collect()
}

/// The first policy beside the best of all.
pub(super) fn low_load(
    scenario: &Scenario,
    policies: &[PolicyName],
    goodput_rps: f64,
    seeds: &[u64],
) -> Result<LowLoad, SimError> {
    let rate = |&policy: &PolicyName| {
        Ok::<_, SimError>(bad_rate(&models(scenario, policy, LOW * goodput_rps, seeds)?))
    };
    let rates = policies.iter().map(rate).collect::<Result<Vec<f64>, _>>()?;
    let mut named = rates.iter().copied().zip(policies);
    let first = named.next().ok_or(SimError::NoSeed)?;
    let best = named.fold(first, |best, other| if other.0 < best.0 { other } else { best });
    Ok(LowLoad { bad_rate: first.0, best: best.1.to_string(), best_bad_rate: best.0 })
}

/// Late and dropped over submitted tasks, of all models together.
fn bad_rate(models: &[ModelReport]) -> f64 {
    let bad: u64 = models.iter().map(|model| model.late + model.dropped).sum();
    let submitted: u64 = models.iter().map(|model| model.submitted).sum();
    bad as f64 / submitted.max(1) as f64
}

/// Every model of every seed.
fn models(
    scenario: &Scenario,
    policy: PolicyName,
    rate_rps: f64,
    seeds: &[u64],
) -> Result<Vec<ModelReport>, SimError> {
    let run = |&seed: &u64| run(scenario, Run { policy, rate_rps, seed });
    let reports = seeds.iter().map(run).collect::<Result<Vec<Report>, _>>()?;
    Ok(reports.into_iter().flat_map(|report| report.models).collect())
}

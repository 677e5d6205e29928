//! Goodput: the highest offered rate at which every model's bad rate is at most 1 %.

use serde::Serialize;

use crate::bound::analytic_bound_rps;
use crate::policy::PolicyName;
use crate::report::Report;
use crate::run::{Run, run};
use crate::scenario::Scenario;
use crate::tally::SimError;

/// Largest bad rate of any model that is still good.
pub(crate) const BAD_MAX: f64 = 0.01;
/// The search ends when it knows the rate to this fraction of the bound.
pub(crate) const RESOLUTION: f64 = 0.001;
/// And looks no higher than this multiple of it: the bound is, in practice, the ceiling.
pub(crate) const HIGHEST: f64 = 1.28;

/// The result of a search, as `baton sim goodput --json` prints it: means over the seeds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Goodput {
    /// The policy, as on the command line.
    pub policy: String,
    /// Highest good rate, tasks/s.
    pub goodput_rps: f64,
    /// See [`analytic_bound_rps`].
    pub analytic_bound_rps: f64,
    /// One over the other.
    pub ratio: f64,
    /// Tasks per batch at that rate.
    pub mean_batch: f64,
    /// GPU use at that rate.
    pub gpu_utilization: f64,
    /// The searches it is the mean of.
    pub seeds: Vec<SeedGoodput>,
}

/// One seed's search.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SeedGoodput {
    /// The seed.
    pub seed: u64,
    /// Highest good rate, tasks/s; 0 if none was.
    pub goodput_rps: f64,
    /// Tasks per batch at that rate.
    pub mean_batch: f64,
    /// GPU use at that rate.
    pub gpu_utilization: f64,
}

/// Searches by bisection, for each of `seeds` seeds from the scenario's own on.
///
/// # Errors
/// No seed, a model has a closed loop, or a run failed.
pub fn goodput(scenario: &Scenario, policy: PolicyName, seeds: u32) -> Result<Goodput, SimError> {
    if seeds == 0 {
        return Err(SimError::NoSeed);
    }
    if let Some(model) = scenario.models.iter().find(|model| model.clients > 0) {
        return Err(SimError::ClosedLoop { model: model.name.clone() });
    }
    let bound = analytic_bound_rps(scenario);
    let seeds: Result<Vec<SeedGoodput>, SimError> = (0..u64::from(seeds))
        .map(|i| search(scenario, policy, scenario.seed.wrapping_add(i), bound))
        .collect();
    let seeds = seeds?;
    let mean = |of: fn(&SeedGoodput) -> f64| seeds.iter().map(of).sum::<f64>() / seeds.len() as f64;
    let goodput_rps = mean(|s| s.goodput_rps);
    Ok(Goodput {
        policy: policy.to_string(),
        goodput_rps,
        analytic_bound_rps: bound,
        ratio: if bound > 0.0 { goodput_rps / bound } else { 0.0 },
        mean_batch: mean(|s| s.mean_batch),
        gpu_utilization: mean(|s| s.gpu_utilization),
        seeds,
    })
}

fn search(
    scenario: &Scenario,
    policy: PolicyName,
    seed: u64,
    bound: f64,
) -> Result<SeedGoodput, SimError> {
    let none = SeedGoodput { seed, goodput_rps: 0.0, mean_batch: 0.0, gpu_utilization: 0.0 };
    if bound <= 0.0 {
        return Ok(none);
    }
    let at = |rate_rps: f64| run(scenario, Run { policy, rate_rps, seed });
    let is_good = |report: &Report| report.worst_model_bad_rate <= BAD_MAX;
    let (mut low, mut high, mut best) = (0.0, HIGHEST * bound, none);
    while high - low > RESOLUTION * bound {
        let rate = (low + high) / 2.0;
        let report = at(rate)?;
        if is_good(&report) {
            low = rate;
            let Report { mean_batch, gpu_utilization, .. } = report;
            best = SeedGoodput { seed, goodput_rps: rate, mean_batch, gpu_utilization };
        } else {
            high = rate;
        }
    }
    Ok(best)
}

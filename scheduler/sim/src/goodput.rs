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

/// A search looks for another good rate at these multiples of the highest good one it knows.
pub(crate) const PROBES: [f64; 4] = [1.03, 1.08, 1.15, 1.3];

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

/// Searches by bisection, for each of `seeds` seeds from the scenario's own on. Under bursts a good
/// rate may lie above a bad one, so the search goes on from each of [`PROBES`] that is good.
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
    let good = |rate_rps: f64| -> Result<Option<SeedGoodput>, SimError> {
        let report = run(scenario, Run { policy, rate_rps, seed })?;
        let Report { mean_batch, gpu_utilization, worst_model_bad_rate, .. } = report;
        let found = SeedGoodput { seed, goodput_rps: rate_rps, mean_batch, gpu_utilization };
        Ok((worst_model_bad_rate <= BAD_MAX).then_some(found))
    };
    let ceiling = HIGHEST * bound;
    let mut best = bisect(none, ceiling, RESOLUTION * bound, good)?;
    while let Some(above) = probe(best.goodput_rps, ceiling, good)? {
        best = bisect(above, ceiling, RESOLUTION * bound, good)?;
    }
    Ok(best)
}

/// From a good rate, or none, to one above which a rate within `resolution` is bad.
fn bisect(
    mut best: SeedGoodput,
    mut bad_rps: f64,
    resolution: f64,
    good: impl Fn(f64) -> Result<Option<SeedGoodput>, SimError>,
) -> Result<SeedGoodput, SimError> {
    while bad_rps - best.goodput_rps > resolution {
        let rate_rps = f64::midpoint(best.goodput_rps, bad_rps);
        match good(rate_rps)? {
            Some(found) => best = found,
            None => bad_rps = rate_rps,
        }
    }
    Ok(best)
}

/// The first good probe above a rate.
fn probe(
    rate_rps: f64,
    ceiling_rps: f64,
    good: impl Fn(f64) -> Result<Option<SeedGoodput>, SimError>,
) -> Result<Option<SeedGoodput>, SimError> {
    let rates = PROBES.iter().map(|factor| factor * rate_rps);
    for probe_rps in rates.filter(|&rate| 0.0 < rate && rate < ceiling_rps) {
        if let Some(found) = good(probe_rps)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

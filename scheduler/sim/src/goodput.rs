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

/// A rate that a search has tried.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TriedRate {
    /// Whose arrivals.
    pub seed: u64,
    /// Tasks per second offered.
    pub rate_rps: f64,
    /// Whether that can be carried; of an upper bound, whether it cannot be excluded.
    pub is_good: bool,
}

impl std::fmt::Display for TriedRate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed, rate_rps, is_good } = self;
        let good = if *is_good { "good" } else { "bad" };
        write!(f, "seed {seed}: {rate_rps:.0} tasks/s are {good}")
    }
}

/// Searches by bisection, for each of `seeds` seeds from the scenario's own on. Under bursts a good
/// rate may lie above a bad one, so the search goes on from each of [`PROBES`] that is good.
///
/// # Errors
/// No seed, a model has a closed loop, or a run failed.
pub fn goodput(scenario: &Scenario, policy: PolicyName, seeds: u32) -> Result<Goodput, SimError> {
    goodput_told(scenario, policy, seeds, |_| ())
}

/// [`goodput`], which tells of each rate once it is tried: a search may take minutes.
///
/// # Errors
/// Those of [`goodput`].
pub fn goodput_told(
    scenario: &Scenario,
    policy: PolicyName,
    seeds: u32,
    tell: impl Fn(TriedRate),
) -> Result<Goodput, SimError> {
    if seeds == 0 {
        return Err(SimError::NoSeed);
    }
    if let Some(model) = scenario.models.iter().find(|model| model.clients > 0) {
        return Err(SimError::ClosedLoop { model: model.name.clone() });
    }
    let bound = analytic_bound_rps(scenario);
    let seeds: Result<Vec<SeedGoodput>, SimError> = (0..u64::from(seeds))
        .map(|i| search(scenario, policy, scenario.seed.wrapping_add(i), bound, &tell))
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
    tell: impl Fn(TriedRate),
) -> Result<SeedGoodput, SimError> {
    let none = SeedGoodput { seed, goodput_rps: 0.0, mean_batch: 0.0, gpu_utilization: 0.0 };
    if bound <= 0.0 {
        return Ok(none);
    }
    let mut best = none;
    let good = |rate_rps: f64| {
        let report = run(scenario, Run { policy, rate_rps, seed })?;
        let Report { mean_batch, gpu_utilization, worst_model_bad_rate, .. } = report;
        let is_good = worst_model_bad_rate <= BAD_MAX;
        if is_good {
            best = SeedGoodput { seed, goodput_rps: rate_rps, mean_batch, gpu_utilization };
        }
        tell(TriedRate { seed, rate_rps, is_good });
        Ok(is_good)
    };
    highest(HIGHEST * bound, RESOLUTION * bound, good)?;
    Ok(best)
}

/// The highest good rate that is found, 0 if none is: a rate within `resolution` above it is bad, and so are the probes. It is the last that
/// was judged good.
fn highest(
    ceiling: f64,
    resolution: f64,
    mut good: impl FnMut(f64) -> Result<bool, SimError>,
) -> Result<f64, SimError> {
    let mut from = 0.0;
    'higher: loop {
        let (low, _) = edge(from, ceiling, resolution, &mut good)?;
        let probes = PROBES.map(|factor| factor * low);
        for probe in probes.into_iter().filter(|&probe| 0.0 < probe && probe < ceiling) {
            if good(probe)? {
                from = probe;
                continue 'higher;
            }
        }
        return Ok(low);
    }
}

/// The last rate found that is good and the first that is not, at most `resolution` apart; `low` and `high` if none was tried.
pub(crate) fn edge(
    mut low: f64,
    mut high: f64,
    resolution: f64,
    mut good: impl FnMut(f64) -> Result<bool, SimError>,
) -> Result<(f64, f64), SimError> {
    while high - low > resolution && high > 0.0 {
        let rate = f64::midpoint(low, high);
        if good(rate)? { low = rate } else { high = rate }
    }
    Ok((low, high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_rate_above_a_bad_one_is_found_and_is_the_last_that_was() {
        for (good, expected) in [
            (&[(0.0, 50.0)][..], 50.0),
            (&[(0.0, 50.0), (53.0, 55.0)], 55.0),
            (&[(0.0, 50.0), (53.0, 55.0), (60.0, 63.5)], 63.5),
            (&[(0.0, 200.0)], 128.0),
            (&[], 0.0),
        ] {
            let mut last = 0.0;
            let judge = |rate: f64| {
                let is_good = good.iter().any(|&(from, to)| (from..=to).contains(&rate));
                if is_good {
                    last = rate;
                }
                Ok(is_good)
            };
            let found = highest(128.0, 0.1, judge).unwrap();
            assert!((found - expected).abs() <= 0.1, "{good:?}: {found}");
            assert!((found - last).abs() < f64::EPSILON, "{good:?}: {last}");
        }
    }
}

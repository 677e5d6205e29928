//! One scenario at its rate: what each policy serves in time.

use serde::Serialize;

use crate::policy::PolicyName;
use crate::report::Report;
use crate::run::{Run, run};
use crate::scenario::Scenario;
use crate::tally::SimError;

/// What to compare.
#[derive(Clone, PartialEq, Debug)]
pub struct ServedContest {
    /// Is compared with the best of the others.
    pub policy: PolicyName,
    /// Those that have no rule for something in a scenario are left out of it.
    pub others: Vec<PolicyName>,
    /// How many seeds, from the scenario's own on.
    pub seeds: u32,
}

/// How a policy did, in the mean over the seeds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PolicyServed {
    /// As on the command line; `cheapest` is the first policy where supernets have their cheapest
    /// variants alone.
    pub policy: String,
    /// Tasks in time per second.
    pub goodput_rps: f64,
    /// The same, a supernet's task counted by the accuracy of its answer: one of 75 % as 0.75.
    pub score_rps: f64,
    /// Tasks in time over tasks offered.
    pub satisfied: f64,
    /// See [`Report::mean_accuracy`].
    pub mean_accuracy: Option<f64>,
    /// See [`Report::cold_satisfied`].
    pub cold_satisfied: Option<f64>,
}

/// What a scenario came to.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ServedRow {
    /// Of the draws of a seed.
    pub index: u32,
    /// One line about the scenario.
    pub description: String,
    /// Offered, without clients in closed loops.
    pub rate_rps: f64,
    /// Of the policy that is compared; see [`PolicyServed::score_rps`].
    pub score_rps: f64,
    /// The best of the others.
    pub best: Option<String>,
    /// Its score.
    pub best_rps: f64,
    /// One over the other; `None` if no other served anything.
    pub ratio: Option<f64>,
    /// Goodput over that of the cheapest variants alone; `None` without supernets.
    pub over_cheapest: Option<f64>,
    /// Every policy, the one that is compared first.
    pub policies: Vec<PolicyServed>,
}

impl ServedContest {
    /// Runs every policy at a rate. `index` and `description` are for the row.
    ///
    /// # Errors
    /// No seed, or a run failed.
    pub fn row(
        &self,
        scenario: &Scenario,
        rate_rps: f64,
        index: u32,
        description: &str,
    ) -> Result<ServedRow, SimError> {
        let ours = self.served(scenario, self.policy, rate_rps)?;
        let mut others = Vec::new();
        for &policy in &self.others {
            match self.served(scenario, policy, rate_rps) {
                Ok(served) => others.push(served),
                Err(SimError::Unsupported { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let cheapest = self.cheapest(scenario, rate_rps)?;
        let over_cheapest = cheapest.as_ref().map(|of| ours.goodput_rps / of.goodput_rps);
        others.extend(cheapest);
        let best = others.iter().max_by(|a, b| a.score_rps.total_cmp(&b.score_rps));
        let best_rps = best.map_or(0.0, |best| best.score_rps);
        Ok(ServedRow {
            index,
            description: description.to_owned(),
            rate_rps,
            score_rps: ours.score_rps,
            best: best.map(|best| best.policy.clone()),
            best_rps,
            ratio: (best_rps > 0.0).then(|| ours.score_rps / best_rps),
            over_cheapest: over_cheapest.filter(|ratio| ratio.is_finite()),
            policies: std::iter::once(ours).chain(others).collect(),
        })
    }

    /// The first policy where every supernet has its cheapest variant alone; `None` without supernets.
    fn cheapest(
        &self,
        scenario: &Scenario,
        rate_rps: f64,
    ) -> Result<Option<PolicyServed>, SimError> {
        if scenario.models.iter().all(|model| model.variants.is_empty()) {
            return Ok(None);
        }
        let mut scenario = scenario.clone();
        scenario.models.iter_mut().for_each(|model| model.variants.truncate(1));
        let served = self.served(&scenario, self.policy, rate_rps)?;
        Ok(Some(PolicyServed { policy: "cheapest".to_owned(), ..served }))
    }

    fn served(
        &self,
        scenario: &Scenario,
        policy: PolicyName,
        rate_rps: f64,
    ) -> Result<PolicyServed, SimError> {
        let seeds = (0..u64::from(self.seeds)).map(|i| scenario.seed.wrapping_add(i));
        let reports = seeds
            .map(|seed| run(scenario, Run { policy, rate_rps, seed }))
            .collect::<Result<Vec<Report>, SimError>>()?;
        if reports.is_empty() {
            return Err(SimError::NoSeed);
        }
        let mean = |of: &dyn Fn(&Report) -> f64| {
            reports.iter().map(of).sum::<f64>() / reports.len() as f64
        };
        let mean_known = |of: fn(&Report) -> Option<f64>| {
            let known: Vec<f64> = reports.iter().filter_map(of).collect();
            (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
        };
        Ok(PolicyServed {
            policy: policy.to_string(),
            goodput_rps: mean(&|report| report.goodput_rps),
            score_rps: mean(&|report| score_rps(scenario, report)),
            satisfied: mean(&|report| report.satisfied),
            mean_accuracy: mean_known(|report| report.mean_accuracy),
            cold_satisfied: mean_known(|report| report.cold_satisfied),
        })
    }
}

/// See [`PolicyServed::score_rps`].
fn score_rps(scenario: &Scenario, report: &Report) -> f64 {
    let Some(accuracy) = report.mean_accuracy else { return report.goodput_rps };
    let of_supernets = scenario.models.iter().zip(&report.models);
    let in_time: u64 = of_supernets
        .filter(|(model, _)| !model.variants.is_empty())
        .map(|(_, model)| model.completed - model.late)
        .sum();
    let in_time_rps = in_time as f64 / (scenario.duration.as_millis_f64() / 1e3);
    report.goodput_rps - in_time_rps * (1.0 - accuracy / 100.0)
}

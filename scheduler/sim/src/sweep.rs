//! Many runs or searches over policies, offered rates and values of one scenario key.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use crate::bound::analytic_bound_rps;
use crate::goodput::goodput;
use crate::of_cluster::ScenarioSource;
use crate::policy::PolicyName;
use crate::rates::Rates;
use crate::report::Report;
use crate::run::{Run, run};
use crate::scenario::Scenario;
use crate::scenario_file::{self, ScenarioError};
use crate::scenario_problem::located;
use crate::tally::SimError;
use crate::vary::{Vary, VaryError};

/// What to sweep over.
#[derive(Clone, PartialEq, Debug)]
pub struct Sweep {
    /// Where the scenario comes from.
    pub scenario: ScenarioSource,
    /// In this order within a point.
    pub policies: Vec<PolicyName>,
    /// Offered rates; `None` searches the goodput instead.
    pub rates: Option<Rates>,
    /// A key of the scenario.
    pub vary: Option<Vary>,
    /// How many seeds a mean is over, from the scenario's own on.
    pub seeds: u32,
}

/// Why a sweep has no result.
#[derive(thiserror::Error, Debug)]
pub enum SweepError {
    /// The scenario file, or a value in it.
    #[error("{0}")]
    Scenario(Box<ScenarioError>),
    /// With one of the key's values.
    #[error("{key} = {value}: {error}")]
    Value {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What is wrong with it.
        error: Box<ScenarioError>,
    },
    /// A cluster file has other keys than those that vary.
    #[error("only keys of a scenario file vary: give --scenario, or leave --vary out")]
    ClusterVaries,
    /// The key cannot be set.
    #[error("{0}")]
    Vary(#[from] VaryError),
    /// A run failed.
    #[error("{0}")]
    Run(#[from] SimError),
}

impl From<ScenarioError> for SweepError {
    fn from(error: ScenarioError) -> Self {
        Self::Scenario(Box::new(error))
    }
}

/// One line of a sweep that is still to be run.
#[derive(Clone, Debug)]
pub struct SweepJob {
    value: Option<String>,
    scenario: Arc<Scenario>,
    policy: PolicyName,
    rate_rps: Option<f64>,
    seeds: u32,
}

/// One line of a sweep: means over the seeds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SweepPoint {
    /// Of the key that varies.
    pub value: Option<String>,
    /// The policy, as on the command line.
    pub policy: String,
    /// Tasks per second that were offered; of a search, that could be.
    pub offered_rps: f64,
    /// Tasks per second in time; of a search, the highest offered rate with every model's bad rate
    /// at most 1 %.
    pub goodput_rps: f64,
    /// Late and dropped over submitted tasks; `None` of a search.
    pub bad_rate: Option<f64>,
    /// The same of the model for which it is largest.
    pub worst_model_bad_rate: Option<f64>,
    /// See [`Report`]; left out without a supernet, and of a search.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_accuracy: Option<f64>,
    /// Part of the GPUs' time.
    pub gpu_utilization: f64,
    /// Tasks per batch.
    pub mean_batch: f64,
    /// Mean latency of executed tasks, ms, see [`Report`]; like the percentiles the mean over the
    /// seeds, and `None` of a search or if no task was executed.
    pub mean_ms: Option<f64>,
    /// Median.
    pub p50_ms: Option<f64>,
    /// 99th percentile.
    pub p99_ms: Option<f64>,
    /// See [`analytic_bound_rps`].
    pub analytic_bound_rps: f64,
}

impl Sweep {
    /// Everything there is to run, in the order of the table: by value, rate and policy.
    ///
    /// # Errors
    /// The scenario file cannot be read, or not with one of the values.
    pub fn jobs(&self) -> Result<Vec<SweepJob>, SweepError> {
        let mut jobs = Vec::new();
        for (value, scenario) in self.scenarios()? {
            let scenario = Arc::new(scenario);
            let bound = analytic_bound_rps(&scenario);
            let rates: Vec<Option<f64>> = match &self.rates {
                Some(rates) => rates.rps(bound).map(Some).collect(),
                None => vec![None],
            };
            for rate_rps in rates {
                jobs.extend(self.policies.iter().map(|&policy| SweepJob {
                    value: value.clone(),
                    scenario: Arc::clone(&scenario),
                    policy,
                    rate_rps,
                    seeds: self.seeds,
                }));
            }
        }
        Ok(jobs)
    }

    fn scenarios(&self) -> Result<Vec<(Option<String>, Scenario)>, SweepError> {
        let Some(vary) = &self.vary else { return Ok(vec![(None, self.scenario.load()?)]) };
        let ScenarioSource::Scenario(path) = &self.scenario else {
            return Err(SweepError::ClusterVaries);
        };
        let text = std::fs::read_to_string(path)
            .map_err(|error| ScenarioError::Unreadable { path: path.clone(), error })?;
        let folder = path.parent().unwrap_or_else(|| Path::new(""));
        let scenario = |value: &String| {
            let varied = vary.set(&text, value)?;
            let scenario = scenario_file::parse(&varied, folder);
            let wrong = |error| {
                let (key, value) = (vary.key().to_owned(), value.clone());
                // No file has this text, so no line is named.
                let error = Box::new(located(Path::new(""), &varied, error));
                SweepError::Value { key, value, error }
            };
            Ok((Some(value.clone()), scenario.map_err(wrong)?))
        };
        vary.values().iter().map(scenario).collect()
    }
}

impl SweepJob {
    /// Runs or searches.
    ///
    /// # Errors
    /// No seed, the rate cannot be simulated, or a run failed.
    pub fn run(&self) -> Result<SweepPoint, SimError> {
        match self.rate_rps {
            Some(rate_rps) => self.at(rate_rps),
            None => self.search(),
        }
    }

    fn at(&self, rate_rps: f64) -> Result<SweepPoint, SimError> {
        let Self { ref scenario, policy, seeds, .. } = *self;
        let run = |i| run(scenario, Run { policy, rate_rps, seed: scenario.seed.wrapping_add(i) });
        let reports: Vec<Report> = (0..u64::from(seeds)).map(run).collect::<Result<_, _>>()?;
        if reports.is_empty() {
            return Err(SimError::NoSeed);
        }
        let mean =
            |of: fn(&Report) -> f64| reports.iter().map(of).sum::<f64>() / reports.len() as f64;
        let mean_some = |of: fn(&Report) -> Option<f64>| {
            let values: Vec<f64> = reports.iter().filter_map(of).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        Ok(SweepPoint {
            value: self.value.clone(),
            policy: policy.to_string(),
            offered_rps: mean(|report| report.offered_rps),
            goodput_rps: mean(|report| report.goodput_rps),
            bad_rate: Some(mean(|report| report.bad_rate)),
            worst_model_bad_rate: Some(mean(|report| report.worst_model_bad_rate)),
            mean_accuracy: mean_some(|report| report.mean_accuracy),
            gpu_utilization: mean(|report| report.gpu_utilization),
            mean_batch: mean(|report| report.mean_batch),
            mean_ms: mean_some(|report| report.mean_ms),
            p50_ms: mean_some(|report| report.p50_ms),
            p99_ms: mean_some(|report| report.p99_ms),
            analytic_bound_rps: analytic_bound_rps(scenario),
        })
    }

    fn search(&self) -> Result<SweepPoint, SimError> {
        let found = goodput(&self.scenario, self.policy, self.seeds)?;
        Ok(SweepPoint {
            value: self.value.clone(),
            policy: found.policy,
            offered_rps: found.goodput_rps,
            goodput_rps: found.goodput_rps,
            bad_rate: None,
            worst_model_bad_rate: None,
            mean_accuracy: None,
            gpu_utilization: found.gpu_utilization,
            mean_batch: found.mean_batch,
            mean_ms: None,
            p50_ms: None,
            p99_ms: None,
            analytic_bound_rps: found.analytic_bound_rps,
        })
    }
}

//! Every policy's runs in one scenario, by load.

use baton_sim::Report;

use super::ReproduceError;
use super::policies::{Policy, those};
use super::runner::{RunAt, Runner};
use crate::plot::Line;

/// The runs of a policy, by load.
pub(crate) struct Curve {
    pub(crate) policy: &'static Policy,
    pub(crate) runs: Vec<(f64, Report)>,
}

/// Runs every policy at each of `loads`, which are parts of `unit_rps`.
pub(crate) fn curves(
    runner: &Runner,
    scenario: &str,
    loads: &[f64],
    unit_rps: f64,
) -> Result<Vec<Curve>, ReproduceError> {
    let policies = those(|_| true);
    let job = |policy, load: f64| RunAt {
        scenario: scenario.to_owned(),
        policy,
        rate_rps: load * unit_rps,
    };
    let each = |&policy: &&'static Policy| loads.iter().map(move |&load| job(policy, load));
    let jobs: Vec<RunAt> = policies.iter().flat_map(each).collect();
    let mut reports = runner.runs(&jobs)?.into_iter().map(|(report, _)| report);
    let curve = |&policy: &&'static Policy| {
        let runs = loads.iter().copied().zip(reports.by_ref().take(loads.len()));
        Curve { policy, runs: runs.collect() }
    };
    Ok(policies.iter().map(curve).collect())
}

impl Curve {
    /// The run at this load.
    pub(crate) fn at(&self, load: f64) -> Option<&Report> {
        let run = self.runs.iter().find(|(at, _)| (at - load).abs() < 1e-9);
        run.map(|(_, report)| report)
    }

    /// A value of each run that has one, as the policy's line.
    pub(crate) fn line(&self, y: impl Fn(f64, &Report) -> Option<f64>) -> Line {
        let point = |(load, report): &(f64, Report)| Some((*load, y(*load, report)?));
        let points = self.runs.iter().filter_map(point).collect();
        Line { style: self.policy.style(), points, mark_every: 1 }
    }
}

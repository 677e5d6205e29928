//! Table 4's scenarios once more, each policy at its own goodput: how tasks were batched and how
//! long they waited. What Fig. 8 and Fig. 9 show.

use baton_sim::{Distributions, Report};
use serde_json::{Value, json};

use super::ReproduceError;
use super::grid::rounded;
use super::policies::{Policy, those};
use super::runner::{RunAt, Runner};
use super::table4::{MODELS, Model};
use crate::plot::{Axis, Content, Figure, Key, Line, Look, Panel, Reference, Row};

/// One policy on one model at its goodput.
pub(crate) struct Distribution {
    pub(crate) model: &'static Model,
    pub(crate) policy: &'static Policy,
    pub(crate) report: Report,
    pub(crate) seen: Distributions,
}

static TABLE_4: [Model; 2] = MODELS;

/// Model by model, in the order of the policies. Policies without any goodput are left out.
pub(crate) fn measure(runner: &mut Runner) -> Result<Vec<Distribution>, ReproduceError> {
    let policies = those(|_| true);
    let scenarios: Vec<String> =
        TABLE_4.iter().map(|model| model.workload().scenario(runner.precision)).collect();
    let goodputs = runner.goodputs(&scenarios, &policies)?;
    let (mut who, mut jobs) = (Vec::new(), Vec::new());
    for ((model, scenario), results) in TABLE_4.iter().zip(&scenarios).zip(&goodputs) {
        for (&policy, goodput) in policies.iter().zip(results) {
            if goodput.goodput_rps > 0.0 {
                let (scenario, rate_rps) = (scenario.clone(), goodput.goodput_rps);
                jobs.push(RunAt { scenario, policy, rate_rps });
                who.push((model, policy));
            }
        }
    }
    let done = runner.runs(&jobs)?;
    let distribution =
        |((model, policy), (report, seen))| Distribution { model, policy, report, seen };
    Ok(who.into_iter().zip(done).map(distribution).collect())
}

impl Distribution {
    /// Part of the tasks that ran in batches of at most b, for b from 0.
    pub(crate) fn batches(&self) -> Vec<(f64, f64)> {
        let tasks = self.seen.tasks_by_batch();
        let all = tasks.iter().sum::<u64>().max(1) as f64;
        let mut sum = 0;
        let part = |(b, &tasks): (usize, &u64)| {
            sum += tasks;
            (b as f64, sum as f64 / all)
        };
        tasks.iter().enumerate().map(part).collect()
    }

    /// Part of the tasks in batches larger than b.
    pub(crate) fn above(&self, b: f64) -> f64 {
        let batches = self.batches();
        let within = batches.iter().rev().find(|(batch, _)| *batch <= b);
        1.0 - within.map_or(0.0, |(_, part)| *part)
    }

    /// Queueing delay, ms, against the part of the tasks that waited no longer.
    pub(crate) fn delays(&self) -> Vec<(f64, f64)> {
        let parts = (0..50).map(|i| f64::from(i) / 50.0).chain([0.99, 0.995, 0.999, 1.0]);
        parts.filter_map(|part| self.seen.queueing_ms(part).map(|ms| (ms, part))).collect()
    }

    pub(crate) fn delay_ms(&self, part: f64) -> f64 {
        self.seen.queueing_ms(part).unwrap_or(0.0)
    }
}

/// A policy's run on a model, if it was measured.
pub(crate) fn find<'a>(
    distributions: &'a [Distribution],
    model: usize,
    policy: &str,
) -> Option<&'a Distribution> {
    let name = TABLE_4[model].name;
    distributions.iter().find(|s| s.model.name == name && s.policy.name == policy)
}

/// The points for the JSON file, with what `keys` adds.
pub(crate) fn json(
    distributions: &[Distribution],
    keys: impl Fn(&Distribution) -> Vec<(&'static str, Value)>,
) -> Value {
    let one = |distribution: &Distribution| {
        let mut point = json!({
            "model": distribution.model.name,
            "slo_ms": distribution.model.slo_ms,
            "policy": distribution.policy.name,
            "offered_rps": rounded(distribution.report.offered_rps, 1),
            "goodput_rps": rounded(distribution.report.goodput_rps, 1),
            "mean_batch": rounded(distribution.report.mean_batch, 2),
        });
        for (key, value) in keys(distribution) {
            point[key] = value;
        }
        point
    };
    distributions.iter().map(one).collect()
}

/// One panel for each model: cumulative lines, with references.
pub(crate) fn figure(
    title: &str,
    label: &str,
    distributions: &[Distribution],
    points: impl Fn(&Distribution) -> Vec<(f64, f64)>,
    references: impl Fn(&Model) -> Vec<Reference>,
) -> Figure {
    let panel = |model: &'static Model| {
        let of_model =
            distributions.iter().filter(|distribution| distribution.model.name == model.name);
        let lines: Vec<Line> = of_model
            .map(|distribution| {
                let points = points(distribution);
                Line {
                    style: distribution.policy.style(),
                    mark_every: points.len().div_ceil(6),
                    points,
                }
            })
            .collect();
        let most = lines.iter().flat_map(|line| &line.points).map(|p| p.0).fold(0.0, f64::max);
        Panel {
            title: model.title(),
            x: Axis::up_to(label, most),
            y: Axis::linear("part of the tasks", 0.0, 1.0, 0.25, 2),
            content: Content::Lines { lines, references: references(model) },
        }
    };
    let mut policies: Vec<&'static Policy> =
        distributions.iter().map(|distribution| distribution.policy).collect();
    policies.truncate(policies.iter().skip(1).take_while(|p| **p != policies[0]).count() + 1);
    let reference = Key { label: "analytic".to_owned(), look: Look::Reference };
    Figure {
        title: title.to_owned(),
        caption: String::new(),
        legend: policies.iter().map(|policy| policy.key()).chain([reference]).collect(),
        rows: vec![Row { height: 640, panels: TABLE_4.iter().map(panel).collect() }],
    }
}

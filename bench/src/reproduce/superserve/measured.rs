//! Runs of the cells, and what they come to.

use baton_sim::{Report, Scenario, analytic_bound_rps};
use serde_json::{Value, json};

use super::super::ReproduceError;
use super::super::grid::rounded;
use super::super::policies::{Policy, policy};
use super::super::precision::Precision;
use super::super::runner::{RunAt, Runner};
use super::bound;
use super::cells::{self, Cell, Column};
use crate::plot::{BLACK, BLUE, GREEN, GREY, Mark, ORANGE, VERMILLION};

static OURS: Policy = policy("baton", BLACK, Mark::Circle);
static SLACKFIT: Policy = policy("slackfit", VERMILLION, Mark::Wedge);
static MAXBATCH: Policy = policy("maxbatch", BLUE, Mark::Square);
static MAXACC: Policy = policy("maxacc", ORANGE, Mark::Diamond);
/// One variant: with nothing to choose, the largest batch that its head allows.
static CHEAPEST: Policy = policy("maxbatch", GREEN, Mark::Triangle);
static ALONE: Policy = policy("maxbatch", GREY, Mark::Triangle);

impl Column {
    pub(super) fn policy(self) -> &'static Policy {
        match self {
            Self::Ours => &OURS,
            Self::SlackFit => &SLACKFIT,
            Self::MaxBatch => &MAXBATCH,
            Self::MaxAccuracy => &MAXACC,
            Self::Alone(0) => &CHEAPEST,
            Self::Alone(_) => &ALONE,
        }
    }
}

/// Means over the seeds.
pub(super) struct Outcome {
    pub(super) column: Column,
    pub(super) r1: f64,
    /// In per cent.
    pub(super) r2: f64,
    pub(super) mean_batch: f64,
    /// Of the tasks, by variant.
    pub(super) shares: Vec<f64>,
}

/// A cell with the outcomes of its columns.
pub(super) struct Measured {
    pub(super) cell: Cell,
    pub(super) outcomes: Vec<Outcome>,
}

impl Measured {
    pub(super) fn of(&self, column: Column) -> Option<&Outcome> {
        self.outcomes.iter().find(|outcome| outcome.column == column)
    }
}

/// The cells of a run: all, every third, or two of each kind.
fn cells(precision: Precision) -> Vec<Cell> {
    let step = match precision {
        Precision::Full | Precision::Brief => 1,
        Precision::Quick => 3,
        Precision::Smoke => 8,
    };
    cells::cells().into_iter().step_by(step).collect()
}

/// Every cell, by every column, from every seed.
pub(super) fn measure(runner: &Runner) -> Result<Vec<Measured>, ReproduceError> {
    let cells = cells(runner.precision);
    let job = |cell: &Cell, column: Column, seed| RunAt {
        scenario: cell.setup.scenario(runner.precision, column.alone(), seed),
        policy: column.policy(),
        rate_rps: cell.setup.rate_rps(),
    };
    let jobs_of = |cell: &Cell| {
        let of = move |column| (1..=runner.seeds).map(move |seed| job(cell, column, seed));
        cell.columns().into_iter().flat_map(of).collect::<Vec<_>>()
    };
    let jobs: Vec<RunAt> = cells.iter().flat_map(jobs_of).collect();
    let mut reports = runner.runs(&jobs)?.into_iter().map(|(report, _)| report);
    let measured = cells.into_iter().map(|cell| {
        let mut of = |column| {
            let runs: Vec<Report> = reports.by_ref().take(runner.seeds as usize).collect();
            outcome(column, &runs)
        };
        let outcomes = cell.columns().into_iter().map(&mut of).collect();
        Measured { cell, outcomes }
    });
    Ok(measured.collect())
}

fn outcome(column: Column, runs: &[Report]) -> Outcome {
    let mean = |of: &dyn Fn(&Report) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
    let share = |report: &Report, at: usize| {
        let variants = &report.models[0].variants;
        let all: u64 = variants.iter().map(|variant| variant.tasks).sum();
        variants[at].tasks as f64 / all.max(1) as f64
    };
    let variants = runs[0].models[0].variants.len();
    Outcome {
        column,
        r1: mean(&|report| report.slo_attainment.unwrap_or(0.0)),
        r2: mean(&|report| report.mean_accuracy.unwrap_or(0.0)),
        mean_batch: mean(&|report| report.mean_batch),
        shares: (0..variants).map(|at| mean(&|report| share(report, at))).collect(),
    }
}

pub(super) fn json_of(measured: &Measured, precision: Precision) -> Result<Value, ReproduceError> {
    let Measured { cell, outcomes } = measured;
    let scenario = cell.setup.scenario(precision, None, 1);
    let outcome = |outcome: &Outcome| {
        let [r1, r2] = cell.wanted(outcome.column);
        json!({
            "column": outcome.column.label(),
            "policy": outcome.column.policy().name,
            "r1": rounded(outcome.r1, 5),
            "r2": rounded(outcome.r2, 3),
            "mean_batch": rounded(outcome.mean_batch, 2),
            "shares": outcome.shares.iter().map(|&share| rounded(share, 4)).collect::<Vec<_>>(),
            "r1_wanted": r1.map(|wanted| wanted.text(4)),
            "r2_wanted": r2.map(|wanted| wanted.text(2)),
        })
    };
    Ok(json!({
        "figure": cell.figure,
        "at": cell.at,
        "rate_rps": rounded(cell.setup.rate_rps(), 1),
        "analytic_bound_rps": rounded(analytic_bound_rps(&Scenario::parse(&scenario)?), 1),
        "r2_at_best": rounded(bound::accuracy(&cell.setup), 3),
        "columns": outcomes.iter().map(outcome).collect::<Vec<_>>(),
        "scenario": scenario,
    }))
}

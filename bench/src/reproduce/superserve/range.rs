//! How much a cluster carries: Fig. 5c, by variant, and Fig. 11b, by GPUs.

use super::super::ReproduceError;
use super::super::markdown::{rate, table};
use super::super::runner::{RunAt, Runner};
use super::cells::Column;
use super::scenario::{BATCH_MAX, P0, Setup};

/// What counts as carried.
const ATTAINED: f64 = 0.999;
/// Of the capacity in full batches, in hundredths.
const TRIED: [u32; 12] = [50, 60, 70, 75, 80, 85, 88, 91, 94, 96, 98, 100];
/// Images in each task of Fig. 11b.
const IMAGES: f64 = 8.0;

/// A row of a table: what, and the highest rate.
pub(super) struct Carried {
    pub(super) what: String,
    pub(super) rate_rps: f64,
    capacity_rps: f64,
}

/// Rate by variant on 8 GPUs, with evenly spaced tasks (Fig. 5c): P0, and with all its times doubled.
pub(super) fn by_variant(runner: &Runner) -> Result<Vec<Carried>, ReproduceError> {
    let mut all = Vec::new();
    for slower in [1.0, 2.0] {
        for at in [0, 2, 5] {
            let (accuracy, alpha_ms, beta_ms) = P0[at];
            let full_ms = slower * (alpha_ms * f64::from(BATCH_MAX) + beta_ms);
            // A longer batch than the objective is cut to what fits.
            let batch = if full_ms < 36.0 { BATCH_MAX } else { BATCH_MAX / 2 };
            let batch_ms = slower * (alpha_ms * f64::from(batch) + beta_ms);
            let capacity_rps = 8e3 * f64::from(batch) / batch_ms;
            let scenario = |rate_rps| {
                let setup = Setup::steady(rate_rps, 0.0).slower(slower);
                setup.scenario(runner.precision, Some(at), 1)
            };
            let rate_rps = carried(runner, capacity_rps, scenario)?;
            let times = if slower == 1.0 { "P0" } else { "2·P0" };
            all.push(Carried { what: format!("{accuracy:.2} ({times})"), rate_rps, capacity_rps });
        }
    }
    Ok(all)
}

/// Rate by GPUs, of tasks that are batches of eight already (Fig. 11b).
pub(super) fn by_gpus(runner: &Runner) -> Result<Vec<Carried>, ReproduceError> {
    let gpus = runner.precision.points(&[1, 2, 4, 8, 16, 32], &[1, 8, 32]);
    let of = |&gpus: &u32| {
        let (_, alpha_ms, beta_ms) = P0[0];
        let batch_ms = alpha_ms * IMAGES + beta_ms;
        let capacity_rps = f64::from(gpus) * 1e3 / batch_ms;
        let scenario = |_| {
            let scale = runner.precision;
            let (warmup_s, duration_s) = scale.spans_s();
            format!(
                "gpus = {gpus}\nwarmup_s = {warmup_s}\nduration_s = {duration_s}\n\
                 arrival = {{ process = \"constant\" }}\n[[model]]\nname = \"batches\"\nslo_ms = 36\n\
                 batch_max = 1\n[[model.variant]]\nname = \"only\"\naccuracy = 70\nlatency_ms = [{batch_ms}]\n"
            )
        };
        let rate_rps = carried(runner, capacity_rps, scenario)? * IMAGES;
        let capacity_rps = capacity_rps * IMAGES;
        Ok(Carried { what: gpus.to_string(), rate_rps, capacity_rps })
    };
    gpus.iter().map(of).collect()
}

/// The highest of the rates that are tried at which 99.9 % of the tasks are in time.
fn carried(
    runner: &Runner,
    capacity_rps: f64,
    scenario: impl Fn(f64) -> String,
) -> Result<f64, ReproduceError> {
    let rates: Vec<f64> =
        TRIED.iter().map(|&part| capacity_rps * f64::from(part) / 100.0).collect();
    let policy = Column::Alone(0).policy();
    let job = |&rate_rps: &f64| RunAt { scenario: scenario(rate_rps), policy, rate_rps };
    let jobs: Vec<RunAt> = rates.iter().map(job).collect();
    let reports = runner.runs(&jobs)?;
    let attained = |rate: &(f64, f64)| rate.1 >= ATTAINED;
    let with = rates
        .into_iter()
        .zip(reports)
        .map(|(rate_rps, (report, _))| (rate_rps, report.slo_attainment.unwrap_or(0.0)));
    Ok(with.filter(attained).map(|(rate_rps, _)| rate_rps).fold(0.0, f64::max))
}

pub(super) fn text(title: &str, heading: &str, rows: &[Carried]) -> String {
    let headings = [heading, "tasks/s in time", "of full batches"].map(str::to_owned);
    let row = |row: &Carried| {
        let part = row.rate_rps / row.capacity_rps;
        vec![row.what.clone(), rate(row.rate_rps), format!("{part:.2}")]
    };
    let rows: Vec<_> = rows.iter().map(row).collect();
    format!("**{title}**\n\n{}", table(&headings, &rows))
}

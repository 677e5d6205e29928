//! Many rows in a few numbers.

use serde::Serialize;

use super::contest::Row;
use super::latency::AtLoad;

/// Rows named as the worst.
const WORST: usize = 12;
/// A few tasks decide where the highest goodput is below this part of the bound, because hardly any
/// task may wait for another, or where some model has fewer tasks: three of them are 1 %.
const LIGHT: f64 = 0.05;
const RAREST_MIN: u64 = 300;
/// Bad rates that differ by less than this are alike.
const ALIKE: f64 = 0.0005;

/// Of some value over the scenarios that have it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Quantiles {
    /// Scenarios that have it.
    pub count: usize,
    /// Smallest; as all of these 0 if no scenario has it.
    pub min: f64,
    /// The value that this part of the scenarios does not exceed.
    pub p1: f64,
    /// 5 %.
    pub p5: f64,
    /// 25 %.
    pub p25: f64,
    /// Half of them.
    pub p50: f64,
    /// 75 %.
    pub p75: f64,
    /// 95 %.
    pub p95: f64,
    /// 99 %.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

/// A scenario that stands out.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Worst {
    /// Of the draws of the seed.
    pub index: u32,
    /// By what.
    pub value: f64,
    /// The policy it lost against, for a ratio of goodputs with its standard error if known.
    pub against: String,
    /// The scenario.
    pub description: String,
    /// Measures it again.
    pub replay: String,
}

/// Latency over that of `eager` at a load.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LatencySummary {
    /// Offered load over the highest goodput.
    pub load: f64,
    /// Mean over mean.
    pub mean: Quantiles,
    /// p99 over p99.
    pub p99: Quantiles,
    /// The same of the scenarios in which `eager` has hardly more bad tasks: elsewhere its latencies
    /// are those of what it did not lose.
    pub p99_alike: Quantiles,
}

/// See the module documentation.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Summary {
    /// Scenarios that were measured.
    pub scenarios: usize,
    /// Those in which no policy had a good rate.
    pub without_goodput: usize,
    /// Those in which the policy had a good rate above a bad one.
    pub good_above_bad: usize,
    /// Goodput over that of the best of the others, with the seeds of [`Again`](super::Again) where
    /// these were measured. Of the scenarios in which the best policy's goodput is at least a
    /// twentieth of the analytic bound and every model has at least 300 tasks there.
    pub ratio: Quantiles,
    /// The smallest of these ratios, below 1.
    pub worst: Vec<Worst>,
    /// The ratio in the other scenarios, where a few tasks decide.
    pub ratio_light: Quantiles,
    /// The smallest of these, below 1.
    pub worst_light: Vec<Worst>,
    /// By load; like what follows of the scenarios that `ratio` is of.
    pub latency: Vec<LatencySummary>,
    /// The largest ratios of mean latencies at the lowest load.
    pub slowest: Vec<Worst>,
    /// At a tenth of the goodput: the bad rate less that of the best policy there.
    pub low_load: Quantiles,
    /// The largest of these differences.
    pub worst_low_load: Vec<Worst>,
}

impl Summary {
    /// `replay` gives the command that measures a scenario again, by its index.
    pub fn new(rows: &[Row], replay: impl Fn(u32) -> String) -> Self {
        let (light, heavy): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| is_light(row));
        let lowest = |rows: &[&Row], value: &dyn Fn(&Row) -> Option<f64>, against| {
            worst(rows, value, against, &replay)
        };
        let highest = |value: &dyn Fn(&Row) -> Option<f64>, against| {
            let mut worst = lowest(&heavy, &|row| value(row).map(|value| -value), against);
            worst.iter_mut().for_each(|worst| worst.value = -worst.value);
            worst
        };
        let behind = |row: &Row| row.best_estimate().filter(|&ratio| ratio < 1.0);
        let slower = |row: &Row| Some(mean(row.latency.first()?)).filter(|&ratio| ratio > 1.0);
        let above = |row: &Row| row.policies.first().is_some_and(|first| first.good_above_bad);
        Self {
            scenarios: rows.len(),
            without_goodput: rows.iter().filter(|row| row.ratio.is_none()).count(),
            good_above_bad: rows.iter().filter(|row| above(row)).count(),
            ratio: quantiles(heavy.iter().filter_map(|row| row.best_estimate())),
            worst: lowest(&heavy, &behind, rival),
            ratio_light: quantiles(light.iter().filter_map(|row| row.best_estimate())),
            worst_light: lowest(&light, &behind, rival),
            latency: latency(&heavy),
            slowest: highest(&slower, |_| "eager".to_owned()),
            low_load: quantiles(heavy.iter().filter_map(|row| more_bad(row))),
            worst_low_load: highest(&|row| more_bad(row).filter(|&more| more > 0.0), best_at_low),
        }
    }
}

/// The rows with the lowest values, of those that have one.
fn worst(
    rows: &[&Row],
    value: &dyn Fn(&Row) -> Option<f64>,
    against: fn(&Row) -> String,
    replay: impl Fn(u32) -> String,
) -> Vec<Worst> {
    let valued = rows.iter().filter_map(|&row| Some((value(row)?, row)));
    lowest(valued, |row| (row.index, row.description.clone(), against(row)), replay)
}

/// The rows with the lowest values; `named` gives a row's index, description, and what it lost against.
pub(super) fn lowest<'a, R: 'a>(
    valued: impl Iterator<Item = (f64, &'a R)>,
    named: impl Fn(&R) -> (u32, String, String),
    replay: impl Fn(u32) -> String,
) -> Vec<Worst> {
    let mut valued: Vec<(f64, &R)> = valued.collect();
    valued.sort_by(|a, b| a.0.total_cmp(&b.0));
    let worst = |(value, row): (f64, &R)| {
        let (index, description, against) = named(row);
        Worst { index, value, against, description, replay: replay(index) }
    };
    valued.into_iter().take(WORST).map(worst).collect()
}

/// A few tasks decide.
fn is_light(row: &Row) -> bool {
    let most = row.goodput_rps.max(row.best_rps) / row.analytic_bound_rps;
    most < LIGHT || row.rarest_tasks < RAREST_MIN
}

fn rival(row: &Row) -> String {
    let best = row.best.clone().unwrap_or_default();
    row.ratio_error.map_or_else(|| best.clone(), |error| format!("{best} ± {error:.3}"))
}

fn best_at_low(row: &Row) -> String {
    row.low_load.as_ref().map_or_else(String::new, |low| low.best.clone())
}

/// How much higher the bad rate is than the best policy's.
fn more_bad(row: &Row) -> Option<f64> {
    row.low_load.as_ref().map(|low| low.bad_rate - low.best_bad_rate)
}

fn mean(at: &AtLoad) -> f64 {
    at.mean_ms / at.eager_mean_ms
}

fn p99(at: &AtLoad) -> f64 {
    at.p99_ms / at.eager_p99_ms
}

/// `eager` loses hardly more.
fn alike(at: &AtLoad) -> bool {
    at.eager_bad_rate - at.bad_rate < ALIKE
}

fn latency(rows: &[&Row]) -> Vec<LatencySummary> {
    let loads = rows.iter().map(|row| row.latency.len()).max().unwrap_or(0);
    let at = |i: usize| {
        let at = || rows.iter().filter_map(move |row| row.latency.get(i));
        LatencySummary {
            load: at().next().map_or(0.0, |at| at.load),
            mean: quantiles(at().map(mean)),
            p99: quantiles(at().map(p99)),
            p99_alike: quantiles(at().filter(|at| alike(at)).map(p99)),
        }
    };
    (0..loads).map(at).collect()
}

/// Of those that are numbers.
pub(super) fn quantiles(values: impl Iterator<Item = f64>) -> Quantiles {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let index = (part * values.len() as f64).ceil() as usize;
        values.get(index.max(1) - 1).copied().unwrap_or(0.0)
    };
    Quantiles {
        count: values.len(),
        min: at(0.0),
        p1: at(0.01),
        p5: at(0.05),
        p25: at(0.25),
        p50: at(0.5),
        p75: at(0.75),
        p95: at(0.95),
        p99: at(0.99),
        max: at(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::again::Again;
    use super::*;

    fn row(goodput_rps: f64, best_rps: f64, rarest_tasks: u64) -> Row {
        Row {
            index: 0,
            description: String::new(),
            analytic_bound_rps: 1_000.0,
            goodput_rps,
            best: None,
            best_rps,
            ratio: Some(goodput_rps / best_rps),
            ratio_error: None,
            again: None,
            rarest_tasks,
            policies: Vec::new(),
            latency: Vec::new(),
            low_load: None,
        }
    }

    /// Whichever of the policies has the goodput: where the rival has a load, there is something to lose.
    #[test]
    fn a_scenario_is_light_if_no_policy_has_a_load_or_a_model_has_few_tasks() {
        assert!(!is_light(&row(50.0, 0.0, RAREST_MIN)));
        assert!(!is_light(&row(0.0, 50.0, RAREST_MIN)));
        assert!(is_light(&row(49.0, 49.0, RAREST_MIN)));
        assert!(is_light(&row(900.0, 900.0, RAREST_MIN - 1)));
    }

    #[test]
    fn a_ratio_that_was_measured_again_counts_as_it_was_then() {
        let again = |ratio| Some(Again { ratio, error: None, seeds: 9, rarest_tasks: 5_000 });
        let unlucky = Row { again: again(1.1), ..row(600.0, 900.0, 500) };
        let lucky = Row { index: 1, again: again(0.9), ..row(900.0, 600.0, 500) };
        let even = Row { index: 2, ..row(900.0, 900.0, 500) };
        let summary = Summary::new(&[unlucky, lucky, even], |index| index.to_string());
        assert_eq!((summary.ratio.min, summary.ratio.p50, summary.ratio.max), (0.9, 1.0, 1.1));
        assert_eq!(summary.worst.iter().map(|worst| worst.index).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn a_quantile_is_one_of_the_values() {
        let all = quantiles((1..=200).map(f64::from));
        assert_eq!((all.count, all.min, all.p1, all.p5), (200, 1.0, 2.0, 10.0));
        assert_eq!((all.p50, all.p99, all.max), (100.0, 198.0, 200.0));
        let few = quantiles([3.0, 1.0, f64::NAN].into_iter());
        assert_eq!((few.count, few.p1, few.p50, few.max), (2, 1.0, 1.0, 3.0));
        assert_eq!(quantiles(std::iter::empty()).count, 0);
    }
}

//! Many rows in a few numbers.

use serde::Serialize;

use super::contest::Row;
use super::latency::AtLoad;

/// Rows named as the worst.
const WORST: usize = 12;
/// Of the bound.
const LIGHT: f64 = 0.05;

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
    /// Goodput over that of the best of the others, where the best policy's is at least a twentieth
    /// of the analytic bound.
    pub ratio: Quantiles,
    /// The smallest of these ratios, below 1.
    pub worst: Vec<Worst>,
    /// The ratio in the other scenarios, where hardly any task may wait for another: few
    /// collisions decide, and few tasks are offered.
    pub ratio_light: Quantiles,
    /// The smallest of these, below 1.
    pub worst_light: Vec<Worst>,
    /// By load.
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
        let worst = |value: &dyn Fn(&Row) -> Option<f64>, against: &dyn Fn(&Row) -> String| {
            let mut named: Vec<(f64, &Row)> =
                rows.iter().filter_map(|row| Some((value(row)?, row))).collect();
            named.sort_by(|a, b| a.0.total_cmp(&b.0));
            let worst = |&(value, row): &(f64, &Row)| Worst {
                index: row.index,
                value,
                against: against(row),
                description: row.description.clone(),
                replay: replay(row.index),
            };
            named.iter().take(WORST).map(worst).collect::<Vec<_>>()
        };
        let negative = |mut worst: Vec<Worst>| {
            worst.iter_mut().for_each(|worst| worst.value = -worst.value);
            worst
        };
        let slower = |row: &Row| Some(mean(row.latency.first()?)).filter(|&ratio| ratio > 1.0);
        let slowest = worst(&|row| slower(row).map(|ratio| -ratio), &|_| "eager".to_owned());
        let more = |row: &Row| low(row).filter(|&more| more > 0.0);
        let low_load = worst(&|row| more(row).map(|more| -more), &|row| {
            row.low_load.as_ref().map_or_else(String::new, |low| low.best.clone())
        });
        let behind = |light| worst(&|row| ratio(row, light).filter(|&ratio| ratio < 1.0), &against);
        Self {
            scenarios: rows.len(),
            without_goodput: rows.iter().filter(|row| row.ratio.is_none()).count(),
            good_above_bad: rows
                .iter()
                .filter(|row| row.policies.first().is_some_and(|first| first.good_above_bad))
                .count(),
            ratio: quantiles(rows.iter().filter_map(|row| ratio(row, false))),
            worst: behind(false),
            ratio_light: quantiles(rows.iter().filter_map(|row| ratio(row, true))),
            worst_light: behind(true),
            latency: latency(rows),
            slowest: negative(slowest),
            low_load: quantiles(rows.iter().filter_map(low)),
            worst_low_load: negative(low_load),
        }
    }
}

/// Goodput over the best of the others', if the best of all is below this part of the bound, or not.
fn ratio(row: &Row, light: bool) -> Option<f64> {
    let most = row.goodput_rps.max(row.best_rps) / row.analytic_bound_rps;
    row.ratio.filter(|_| (most < LIGHT) == light)
}

fn against(row: &Row) -> String {
    let best = row.best.clone().unwrap_or_default();
    row.ratio_error.map_or_else(|| best.clone(), |error| format!("{best} ± {error:.3}"))
}

/// How much higher the bad rate is than the best policy's.
fn low(row: &Row) -> Option<f64> {
    row.low_load.as_ref().map(|low| low.bad_rate - low.best_bad_rate)
}

fn mean(at: &AtLoad) -> f64 {
    at.mean_ms / at.eager_mean_ms
}

fn latency(rows: &[Row]) -> Vec<LatencySummary> {
    let loads = rows.iter().map(|row| row.latency.len()).max().unwrap_or(0);
    let at = |i: usize| {
        let at = || rows.iter().filter_map(move |row| row.latency.get(i));
        LatencySummary {
            load: at().next().map_or(0.0, |at| at.load),
            mean: quantiles(at().map(mean)),
            p99: quantiles(at().map(|at| at.p99_ms / at.eager_p99_ms)),
        }
    };
    (0..loads).map(at).collect()
}

/// Of those that are numbers.
fn quantiles(values: impl Iterator<Item = f64>) -> Quantiles {
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
    use super::*;

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

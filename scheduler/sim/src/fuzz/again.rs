//! A ratio of goodputs once more, by seeds that chose neither the rival nor its goodput.
//!
//! The best of eight policies is partly the luckiest of eight, and one bad task in a hundred of a few
//! hundred is a matter of three tasks: so where the first ratio is not about 1, both policies are
//! searched again, with other seeds and more of them.

use serde::Serialize;

use super::judge::Judge;
use super::search::{Search, steps};
use crate::policy::PolicyName;
use crate::tally::SimError;

/// A ratio this far from 1 is measured again.
const APART: f64 = 1.01;
/// Tasks of the model with the fewest, all seeds together: at the goodput fifty of them are bad.
const RAREST: u64 = 5_000;
/// At most this many seeds: where a model has a handful of tasks in each, a few of them decide anyway.
const SEEDS: u64 = 64;
/// The standard error is that of the mean of so many groups of the seeds.
const GROUPS: usize = 4;

/// See the module documentation.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Again {
    /// Goodput over the rival's.
    pub ratio: f64,
    /// Its standard error, from searches with a quarter of the seeds each; `None` unless the ratio
    /// is below 0.99.
    pub error: Option<f64>,
    /// How many seeds, from the first one that was not used before.
    pub seeds: u32,
    /// Tasks of the model with the fewest, of all of these seeds.
    pub rarest_tasks: u64,
}

/// A policy and the index of its goodput.
type Found = (PolicyName, i32);

impl Again {
    /// `None` if the first ratio is about 1, or one of both has no good rate this time.
    pub(super) fn measure(
        judge: &mut Judge<'_>,
        ours: Found,
        rival: Found,
        first: &[u64],
        most_tasks: u64,
    ) -> Result<Option<Self>, SimError> {
        if (ours.1 - rival.1).abs() < steps(APART) {
            return Ok(None);
        }
        let highest = ours.1.max(rival.1);
        let seeds = others_than(first, &judge.submitted(highest, first), most_tasks);
        let Some(ratio) = ratio(judge, ours, rival, &seeds)? else { return Ok(None) };
        let error =
            if ratio < APART.recip() { standard_error(judge, ours, rival, &seeds)? } else { None };
        let rarest_tasks = judge.submitted(highest, &seeds).into_iter().min().unwrap_or(0);
        Ok(Some(Self { ratio, error, seeds: seeds.len() as u32, rarest_tasks }))
    }
}

/// As many seeds as [`RAREST`] asks and `most_tasks` permits, at least as many as the `first`, of which
/// the models were `submitted` these tasks.
fn others_than(first: &[u64], submitted: &[u64], most_tasks: u64) -> Vec<u64> {
    let count = first.len() as u64;
    let each = |tasks: u64| (tasks / count).max(1);
    let needed = RAREST.div_ceil(each(submitted.iter().copied().min().unwrap_or(0)));
    let affordable = most_tasks / each(submitted.iter().sum());
    let next = first.last().map_or(0, |last| last.wrapping_add(1));
    (0..needed.min(affordable).min(SEEDS).max(count)).map(|i| next.wrapping_add(i)).collect()
}

/// Of the goodputs that these seeds have together; `None` if one has none.
fn ratio(
    judge: &mut Judge<'_>,
    ours: Found,
    rival: Found,
    seeds: &[u64],
) -> Result<Option<f64>, SimError> {
    let mut rps = |(policy, start): Found| {
        let edge = Search::new(|index| judge.good(policy, index, seeds)).edge(start)?;
        Ok::<_, SimError>(edge.highest.map(|index| judge.grid.rps(index)))
    };
    let (ours, rival) = (rps(ours)?, rps(rival)?);
    Ok(ours.zip(rival).map(|(ours, rival)| ours / rival))
}

/// `None` if a group has no ratio, or there is only one.
fn standard_error(
    judge: &mut Judge<'_>,
    ours: Found,
    rival: Found,
    seeds: &[u64],
) -> Result<Option<f64>, SimError> {
    let mut ratios = Vec::with_capacity(GROUPS);
    for group in seeds.chunks(seeds.len().div_ceil(GROUPS)) {
        let Some(ratio) = ratio(judge, ours, rival, group)? else { return Ok(None) };
        ratios.push(ratio);
    }
    let count = ratios.len() as f64;
    let mean = ratios.iter().sum::<f64>() / count;
    let squares: f64 = ratios.iter().map(|ratio| (ratio - mean) * (ratio - mean)).sum();
    Ok((count > 1.0).then(|| (squares / (count - 1.0) / count).sqrt()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_are_new_ones_and_as_many_as_the_least_popular_model_needs() {
        // A hundred tasks of the rarest a seed: fifty seeds.
        let seeds = others_than(&[7, 8], &[200, 4_000], 2_000_000);
        assert_eq!(seeds, (9..59).collect::<Vec<u64>>());
        // 100,000 tasks a seed: no more than twenty.
        assert_eq!(others_than(&[7, 8], &[200, 200_000], 2_000_000).len(), 19);
        assert_eq!(others_than(&[7], &[1, 40], 2_000_000).len(), 64);
        // Never fewer than the first.
        assert_eq!(others_than(&[1, 2, 3], &[9_000_000], 0), [4, 5, 6]);
        assert_eq!(others_than(&[1, 2], &[0, 9_000_000], 0), [3, 4]);
    }
}

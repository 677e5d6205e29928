//! One scenario: how much of it each policy carries.

use serde::Serialize;

use super::again::Again;
use super::judge::Judge;
use super::latency::{AtLoad, LowLoad, latencies, low_load};
use super::search::{Edge, Grid, Search, steps};
use crate::bound::analytic_bound_rps;
use crate::policy::PolicyName;
use crate::scenario::Scenario;
use crate::tally::SimError;

/// What to compare.
#[derive(Clone, PartialEq, Debug)]
pub struct Contest {
    /// Is compared with the best of the others.
    pub policy: PolicyName,
    /// Those that have no rule for something in a scenario are left out of it.
    pub others: Vec<PolicyName>,
    /// How many seeds, from the scenario's own on, have their bad tasks counted together.
    pub seeds: u32,
    /// Where a ratio is measured [`Again`]: most tasks at a rate, if the seeds above have fewer.
    pub again_tasks: u64,
    /// Search for the goodput of every policy, even of those that are not the best of the others.
    pub all: bool,
}

/// How a policy did.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PolicyGoodput {
    /// As on the command line.
    pub policy: String,
    /// Highest rate found good, tasks/s; 0 if none was, `None` if it was not searched for because
    /// another policy's is higher.
    pub goodput_rps: Option<f64>,
    /// Some lower rate was bad.
    pub good_above_bad: bool,
}

/// What a scenario came to.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// Of the draws of a seed.
    pub index: u32,
    /// One line about the scenario.
    pub description: String,
    /// See [`analytic_bound_rps`].
    pub analytic_bound_rps: f64,
    /// Goodput of the policy that is compared, tasks/s.
    pub goodput_rps: f64,
    /// The best of the others, and its goodput; `None` if none can be simulated.
    pub best: Option<String>,
    /// Tasks/s.
    pub best_rps: f64,
    /// One over the other; `None` if no policy had a good rate.
    pub ratio: Option<f64>,
    /// That of [`Again`].
    pub ratio_error: Option<f64>,
    /// `None` unless the ratio is more than a hundredth from 1.
    pub again: Option<Again>,
    /// Tasks of the model with the fewest, of all seeds, at the higher of the two goodputs.
    pub rarest_tasks: u64,
    /// Every policy, the one that is compared first.
    pub policies: Vec<PolicyGoodput>,
    /// At parts of the higher of the two goodputs.
    pub latency: Vec<AtLoad>,
    /// At a tenth of it; `None` without a good rate.
    pub low_load: Option<LowLoad>,
}

impl Row {
    /// The ratio by seeds that did not choose the rival, where these were measured.
    pub fn best_estimate(&self) -> Option<f64> {
        self.again.as_ref().map(|again| again.ratio).or(self.ratio)
    }
}

/// Where the first search begins, of the bound.
const FIRST_GUESS: f64 = 0.7;

/// A policy and what was found.
type Found = (PolicyName, Option<Edge>);

/// What all searches of a scenario found.
struct Edges {
    ours: Edge,
    /// The best of the others.
    rival: Option<(PolicyName, i32)>,
    /// Ours first.
    found: Vec<Found>,
}

impl Contest {
    /// Runs and searches. `index` and `description` are for the row.
    ///
    /// # Errors
    /// No seed, or a run failed.
    pub fn row(&self, scenario: &Scenario, index: u32, description: &str) -> Result<Row, SimError> {
        let seeds = self.seeds_of(scenario)?;
        let grid = Grid { unit_rps: analytic_bound_rps(scenario) };
        let mut judge = Judge::new(scenario, grid);
        let Edges { ours, rival, found } = self.edges(&mut judge, &seeds)?;
        let again = self.again(&mut judge, ours, rival, &seeds)?;
        let rival_index = rival.map(|(_, index)| index);
        let [goodput_rps, best_rps] = [ours.highest, rival_index].map(|index| rps(grid, index));
        let highest = ours.highest.max(rival_index);
        let submitted = highest.map(|index| judge.submitted(index, &seeds));
        let (latency, low_load) =
            self.at_low_loads(scenario, &found, rps(grid, highest), &seeds)?;
        Ok(Row {
            index,
            description: description.to_owned(),
            analytic_bound_rps: grid.unit_rps,
            goodput_rps,
            best: rival.map(|(policy, _)| policy.to_string()),
            best_rps,
            ratio: (best_rps > 0.0).then(|| goodput_rps / best_rps),
            ratio_error: again.as_ref().and_then(|again| again.error),
            again,
            rarest_tasks: submitted.and_then(|tasks| tasks.into_iter().min()).unwrap_or(0),
            policies: found.iter().map(|found| policy_goodput(found, grid)).collect(),
            latency,
            low_load,
        })
    }

    /// `None` where one of both has no goodput.
    fn again(
        &self,
        judge: &mut Judge<'_>,
        ours: Edge,
        rival: Option<(PolicyName, i32)>,
        seeds: &[u64],
    ) -> Result<Option<Again>, SimError> {
        let (Some(highest), Some(rival)) = (ours.highest, rival) else { return Ok(None) };
        Again::measure(judge, (self.policy, highest), rival, seeds, self.again_tasks)
    }

    /// What else a row has; nothing without a good rate.
    fn at_low_loads(
        &self,
        scenario: &Scenario,
        found: &[Found],
        goodput_rps: f64,
        seeds: &[u64],
    ) -> Result<(Vec<AtLoad>, Option<LowLoad>), SimError> {
        if goodput_rps <= 0.0 {
            return Ok((Vec::new(), None));
        }
        let policies: Vec<PolicyName> = found.iter().map(|&(policy, _)| policy).collect();
        let latency = latencies(scenario, self.policy, goodput_rps, seeds)?;
        Ok((latency, Some(low_load(scenario, &policies, goodput_rps, seeds)?)))
    }

    /// The others' first: where the best of them ends, the search for ours begins.
    fn edges(&self, judge: &mut Judge<'_>, seeds: &[u64]) -> Result<Edges, SimError> {
        let others = self.others(judge, seeds)?;
        let rival = best(&others);
        let start = rival.map_or_else(|| steps(FIRST_GUESS), |(_, index)| index);
        let ours = Search::new(|index| judge.good(self.policy, index, seeds)).edge(start)?;
        let found = std::iter::once((self.policy, Some(ours))).chain(others).collect();
        Ok(Edges { ours, rival, found })
    }

    fn seeds_of(&self, scenario: &Scenario) -> Result<Vec<u64>, SimError> {
        if self.seeds == 0 {
            return Err(SimError::NoSeed);
        }
        Ok((0..u64::from(self.seeds)).map(|i| scenario.seed.wrapping_add(i)).collect())
    }

    /// The goodput of each other policy that can be simulated.
    fn others(&self, judge: &mut Judge<'_>, seeds: &[u64]) -> Result<Vec<Found>, SimError> {
        let mut found: Vec<Found> = Vec::new();
        for &policy in &self.others {
            let best = best(&found).map(|(_, index)| index);
            match self.other(judge, policy, best, seeds) {
                Ok(edge) => found.push((policy, edge)),
                Err(SimError::Unsupported { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// `None` if it does not reach the best so far and `all` is not set.
    fn other(
        &self,
        judge: &mut Judge<'_>,
        policy: PolicyName,
        best: Option<i32>,
        seeds: &[u64],
    ) -> Result<Option<Edge>, SimError> {
        let mut search = Search::new(|index| judge.good(policy, index, seeds));
        if let Some(best) = best
            && !self.all
            && !search.reaches(best)?
        {
            return Ok(None);
        }
        search.edge(best.unwrap_or_else(|| steps(FIRST_GUESS))).map(Some)
    }
}

/// 0 without a good rate.
fn rps(grid: Grid, index: Option<i32>) -> f64 {
    index.map_or(0.0, |index| grid.rps(index))
}

fn policy_goodput(&(policy, edge): &Found, grid: Grid) -> PolicyGoodput {
    PolicyGoodput {
        policy: policy.to_string(),
        goodput_rps: edge.map(|edge| rps(grid, edge.highest)),
        good_above_bad: edge.is_some_and(|edge| edge.good_above_bad),
    }
}

/// Who has the highest edge, and where that is; the first of several.
fn best(found: &[Found]) -> Option<(PolicyName, i32)> {
    let edges = found.iter().filter_map(|&(policy, edge)| Some((policy, edge?.highest?)));
    edges.rev().max_by_key(|&(_, index)| index)
}

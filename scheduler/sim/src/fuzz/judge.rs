//! Whether a rate is good: no model has more than 1 % bad tasks, those of all seeds counted
//! together.

use std::collections::HashMap;

use super::search::Grid;
use crate::arrivals::Arrivals;
use crate::policy::PolicyName;
use crate::run::{Run, run_within};
use crate::scenario::Scenario;
use crate::tally::SimError;

/// A rate is good with at most one bad task in this number of each model's.
const BAD_ONE_IN: u64 = 100;

/// Judges every policy by the same arrivals.
#[derive(Debug)]
pub(crate) struct Judge<'a> {
    scenario: &'a Scenario,
    pub(crate) grid: Grid,
    /// What each model is submitted, by index of the rate and seed: the same for every policy.
    submitted: HashMap<(i32, u64), Vec<u64>>,
}

impl<'a> Judge<'a> {
    pub(crate) fn new(scenario: &'a Scenario, grid: Grid) -> Self {
        Self { scenario, grid, submitted: HashMap::new() }
    }

    /// Exact: a run is left as soon as some model has had more bad tasks than it may have in the
    /// runs of all seeds, whose tasks have been counted before.
    pub(crate) fn good(
        &mut self,
        policy: PolicyName,
        index: i32,
        seeds: &[u64],
    ) -> Result<bool, SimError> {
        let submitted = self.submitted(index, seeds);
        let mut left: Vec<u64> = submitted.iter().map(|tasks| tasks / BAD_ONE_IN).collect();
        for &seed in seeds {
            let run = Run { policy, rate_rps: self.grid.rps(index), seed };
            let Some(bad) = run_within(self.scenario, run, &left)? else { return Ok(false) };
            left.iter_mut().zip(bad).for_each(|(left, bad)| *left -= bad);
        }
        Ok(true)
    }

    /// Tasks of each model at this rate, of all these seeds.
    pub(crate) fn submitted(&mut self, index: i32, seeds: &[u64]) -> Vec<u64> {
        let Self { scenario, grid, .. } = *self;
        let mut sum = vec![0; scenario.models.len()];
        for &seed in seeds {
            let counts = self
                .submitted
                .entry((index, seed))
                .or_insert_with(|| Arrivals::counts(scenario, grid.rps(index), seed));
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += *count);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound::analytic_bound_rps;
    use crate::run::run;
    use baton_core::Policy;

    #[test]
    fn a_verdict_is_that_of_whole_runs() {
        let text = "gpus = 3\nduration_s = 2\nwarmup_s = 0.5\nzoo = '1080ti'\nzoo_filter = 'lt2'";
        let scenario = Scenario::parse(text).unwrap();
        let grid = Grid { unit_rps: analytic_bound_rps(&scenario) };
        let mut judge = Judge::new(&scenario, grid);
        let (policy, seeds) = (PolicyName::Production(Policy::Eager), [4, 5]);
        let mut verdicts = Vec::new();
        for index in (-600..0).step_by(40) {
            let at = |&seed| {
                run(&scenario, Run { policy, rate_rps: grid.rps(index), seed }).unwrap().models
            };
            let [first, second] = [at(&seeds[0]), at(&seeds[1])];
            let pooled = first.iter().zip(&second).map(|(a, b)| {
                let bad = a.late + a.dropped + b.late + b.dropped;
                (bad, a.submitted + b.submitted)
            });
            let (bad, submitted): (Vec<u64>, Vec<u64>) = pooled.unzip();
            assert_eq!(judge.submitted(index, &seeds), submitted);
            let good = bad.iter().zip(&submitted).all(|(bad, tasks)| bad * 100 <= *tasks);
            assert_eq!(judge.good(policy, index, &seeds).unwrap(), good, "{index}");
            verdicts.push(good);
        }
        assert!(verdicts.contains(&true) && verdicts.contains(&false), "{verdicts:?}");
    }

    /// Eight runs that are the same have eight times the losses and the tasks of one.
    #[test]
    fn further_seeds_allow_no_more_of_the_tasks_to_be_bad() {
        let text = "gpus = 3\nduration_s = 2\nwarmup_s = 0.5\n[[model]]\nname = 'm'\nalpha_ms = 1\nbeta_ms = 5\nslo_ms = 25";
        let scenario = Scenario::parse(text).unwrap();
        let mut judge = Judge::new(&scenario, Grid { unit_rps: analytic_bound_rps(&scenario) });
        let policy = PolicyName::Production(Policy::Eager);
        let (mut good, mut bad) = (-600, 0);
        while good + 1 < bad {
            let middle = i32::midpoint(good, bad);
            if judge.good(policy, middle, &[4]).unwrap() { good = middle } else { bad = middle }
        }
        assert!(judge.good(policy, good, &[4; 8]).unwrap());
        assert!(!judge.good(policy, bad, &[4; 8]).unwrap(), "{bad}");
    }
}

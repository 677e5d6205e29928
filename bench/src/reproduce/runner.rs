//! Runs searches and runs on a few threads. What comes out depends on neither their number nor
//! their order.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use baton_sim::{Distributions, Goodput, Report, Run, Scenario, analytic_bound_rps};

use super::ReproduceError;
use super::policies::Policy;
use super::precision::Precision;
use crate::machine::in_parallel;

/// See the module documentation. Remembers searches: some experiments share them.
pub(crate) struct Runner {
    pub(crate) precision: Precision,
    /// Of every search until it is changed.
    pub(crate) seeds: u32,
    /// Warm-up and measured span of the runs of an experiment, s.
    pub(crate) spans_s: (f64, f64),
    known: HashMap<(String, &'static str, u32), Goodput>,
}

/// One run at a rate.
pub(crate) struct RunAt {
    pub(crate) scenario: String,
    pub(crate) policy: &'static Policy,
    pub(crate) rate_rps: f64,
}

impl Runner {
    pub(crate) fn new(precision: Precision) -> Self {
        let (seeds, spans_s) = (precision.seeds(), precision.spans_s());
        Self { precision, seeds, spans_s, known: HashMap::new() }
    }

    /// The goodput of every policy in every scenario: `[scenario][policy]`.
    pub(crate) fn goodputs(
        &mut self,
        scenarios: &[String],
        policies: &[&'static Policy],
    ) -> Result<Vec<Vec<Goodput>>, ReproduceError> {
        let mut jobs = Vec::new();
        for scenario in scenarios {
            let parsed = Scenario::parse(scenario)?;
            let rate = analytic_bound_rps(&parsed);
            let missing = policies.iter().filter(|p| !self.knows(scenario, p));
            jobs.extend(missing.map(|&policy| (rate, scenario, parsed.clone(), policy)));
        }
        // The longest first: no thread idles for long behind the last one.
        jobs.sort_by(|a, b| b.0.total_cmp(&a.0));
        let found = measured(&jobs, |(_, _, parsed, policy)| {
            baton_sim::goodput(parsed, policy.parsed(), self.seeds)
        });
        for ((_, scenario, _, policy), goodput) in jobs.iter().zip(found) {
            self.known.insert(self.key(scenario, policy), goodput?);
        }
        let row = |scenario: &String| policies.iter().map(|p| self.recall(scenario, p)).collect();
        Ok(scenarios.iter().map(row).collect())
    }

    /// Single runs with the scenario's own seed, in the order given.
    pub(crate) fn runs(
        &self,
        jobs: &[RunAt],
    ) -> Result<Vec<(Report, Distributions)>, ReproduceError> {
        let done = measured(jobs, |job| {
            let scenario = Scenario::parse(&job.scenario)?;
            let (policy, seed) = (job.policy.parsed(), scenario.seed);
            let run = Run { policy, rate_rps: job.rate_rps, seed };
            Ok(baton_sim::run_distributions(&scenario, run)?)
        });
        done.into_iter().collect()
    }

    fn key(&self, scenario: &str, policy: &Policy) -> (String, &'static str, u32) {
        (scenario.to_owned(), policy.name, self.seeds)
    }

    fn knows(&self, scenario: &str, policy: &Policy) -> bool {
        self.known.contains_key(&self.key(scenario, policy))
    }

    fn recall(&self, scenario: &str, policy: &Policy) -> Goodput {
        self.known[&self.key(scenario, policy)].clone()
    }
}

/// Does the jobs, and says in the log how far it is: some take minutes.
fn measured<J: Sync, R: Send>(jobs: &[J], measure: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let done = AtomicUsize::new(0);
    in_parallel(jobs, |job| {
        let result = measure(job);
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if is_worth_a_line(done, jobs.len()) {
            tracing::info!("measured {done} of {}", jobs.len());
        }
        result
    })
}

/// About ten lines, however many jobs there are, and the last is one of them.
fn is_worth_a_line(done: usize, of: usize) -> bool {
    done * 10 / of > (done - 1) * 10 / of
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_ten_lines_say_how_far_it_is() {
        let lines =
            |of: usize| (1..=of).filter(|&done| is_worth_a_line(done, of)).collect::<Vec<_>>();
        assert_eq!(lines(3), [1, 2, 3]);
        assert_eq!(lines(57).len(), 10);
        assert_eq!(lines(1_000).last(), Some(&1_000));
    }
}

//! One run: a scenario, a policy, a rate and a seed.

use baton_core::{Nanos, NetworkDelay, PIPELINE_DEPTH, Policy};

use crate::arrivals::Arrivals;
use crate::baseline::{Clockwork, ClockworkCached, Deferred, Nexus, Rule, Shepherd};
use crate::cache::Caching;
use crate::cluster::{Cluster, Recording, Results};
use crate::distributions::Distributions;
use crate::drive::{Scheduler, drive};
use crate::policy::PolicyName;
use crate::production::Production;
use crate::report::Report;
use crate::scenario::Scenario;
use crate::tally::{ModelTally, SimError, Tally};

/// What to run beside the scenario.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Run {
    /// Who decides.
    pub policy: PolicyName,
    /// Tasks per second in total.
    pub rate_rps: f64,
    /// Same seed, same trace.
    pub seed: u64,
}

impl Run {
    pub(crate) fn check(&self) -> Result<(), SimError> {
        let possible = (0.001..=1e9).contains(&self.rate_rps);
        possible.then_some(()).ok_or(SimError::Rate { rate: self.rate_rps })
    }
}

/// Simulates one run.
///
/// # Errors
/// The rate or the scenario is beyond what the policy is simulated for, or the policy lost a task.
pub fn run(scenario: &Scenario, run: Run) -> Result<Report, SimError> {
    let results = simulate(scenario, run, Recording::Counts, &[])?;
    Ok(report(scenario, run, &results))
}

fn report(scenario: &Scenario, run: Run, results: &Results) -> Report {
    let report = Report::new(scenario, run.policy.to_string(), &results.tally);
    let report = Report { gpus_needed: results.gpus_needed, ..report };
    match &results.loaders {
        None => report,
        Some(loaders) => report.with_loads(scenario, &results.tally, loaders),
    }
}

/// As [`run`], but only until some model has more late and dropped tasks than `allowed`; then
/// `None`, else how many each has.
pub(crate) fn run_within(
    scenario: &Scenario,
    run: Run,
    allowed: &[u64],
) -> Result<Option<Vec<u64>>, SimError> {
    let Tally { decided, models, .. } = simulate(scenario, run, Recording::Counts, allowed)?.tally;
    Ok((!decided).then(|| models.iter().map(ModelTally::bad).collect()))
}

/// As [`run`], with one line for each batch (start, end) and each dropped task.
///
/// # Errors
/// As [`run`].
pub fn run_traced(scenario: &Scenario, run: Run) -> Result<(Report, Vec<u8>), SimError> {
    let results = simulate(scenario, run, Recording::Trace, &[])?;
    Ok((report(scenario, run, &results), results.trace.unwrap_or_default()))
}

/// As [`run`], with the distributions of batch sizes and queueing delays.
///
/// # Errors
/// As [`run`].
pub fn run_distributions(
    scenario: &Scenario,
    run: Run,
) -> Result<(Report, Distributions), SimError> {
    let results = simulate(scenario, run, Recording::Distributions, &[])?;
    let none = || Distributions::new(scenario.warmup);
    Ok((report(scenario, run, &results), results.distributions.unwrap_or_else(none)))
}

fn simulate(
    scenario: &Scenario,
    run: Run,
    keep: Recording,
    allowed: &[u64],
) -> Result<Results, SimError> {
    let Run { policy, rate_rps, seed } = run;
    run.check()?;
    if let Some((key, why)) = unsupported(scenario, policy) {
        return Err(SimError::Unsupported { policy: policy.to_string(), key, why });
    }
    let is_of_caches = matches!(policy, PolicyName::Naive | PolicyName::Pinned);
    if is_of_caches && scenario.memory.is_none() {
        return Err(SimError::NoMemory { policy: policy.to_string() });
    }
    let stage = Stage { scenario, run, keep, allowed };
    let production = |policy, caching| {
        let choice = run.policy.choice().unwrap_or_default();
        Production::new(scenario, (policy, choice, caching), rate_rps, ())
    };
    let usual = Caching::of(scenario);
    let deferred = |rule| Deferred::new(scenario, rule, rate_rps);
    match policy {
        PolicyName::Production(policy) => stage.under(production(policy, usual)),
        PolicyName::SlackFit { .. } | PolicyName::MaxAccuracy | PolicyName::MaxBatch => {
            stage.under(production(Policy::Eager, usual))
        }
        PolicyName::Naive => stage.under(production(Policy::Baton, Caching::OnMiss)),
        PolicyName::Pinned => stage.under(production(Policy::Baton, Caching::Pinned)),
        PolicyName::SymphonyText => stage.under(deferred(Rule::Text)),
        PolicyName::Frontrun => stage.under(deferred(Rule::Frontrun)),
        PolicyName::Timeout { fraction } => stage.under(deferred(Rule::Timeout(fraction))),
        PolicyName::Clockwork { outstanding_ms } => {
            let outstanding = Nanos::from_millis_f64(outstanding_ms);
            match scenario.memory {
                None => stage.under(Clockwork::new(scenario, outstanding)),
                Some(memory) => stage.under(ClockworkCached::new(scenario, memory, outstanding)),
            }
        }
        PolicyName::Nexus { frontends } => {
            stage.under(Nexus::new(scenario, frontends, rate_rps, seed))
        }
        PolicyName::Shepherd { lambda } => stage.under(Shepherd::new(scenario, lambda)),
    }
}

/// The key of the scenario that the policy has no rule for, and what is missing.
fn unsupported(scenario: &Scenario, policy: PolicyName) -> Option<(&'static str, &'static str)> {
    let delayed = scenario.network != NetworkDelay::default();
    let changes = !scenario.gpu_events.is_empty();
    let is_divided = scenario.subclusters.count() > 1;
    let has_memory = scenario.memory.is_some();
    match policy {
        PolicyName::Naive if has_memory && !holds_batches(scenario) => {
            Some(("pages", "a slot needs pages for all its batches, and one more; give more"))
        }
        PolicyName::Production(_) | PolicyName::Naive | PolicyName::Pinned => None,
        _ if policy.choice().is_some() => None,
        _ if is_divided => Some(("subcluster", "any of its GPUs may execute any model")),
        _ if scenario.port.is_some() => Some(("port", "inputs come as fast as it plans")),
        PolicyName::Clockwork { .. } => None,
        _ if has_memory => Some(("pages", "each of its GPUs holds every model")),
        PolicyName::Nexus { .. } if delayed => Some((
            "network",
            "its frontends send inputs along with the tasks; no plan is delivered",
        )),
        PolicyName::Nexus { .. } if changes => Some(("gpu_event", "it plans once, for every GPU")),
        PolicyName::Shepherd { .. } if delayed => Some((
            "network",
            "it preempts at once; no rule says what executes until inputs are there",
        )),
        _ => None,
    }
}

/// Whether the largest models fit into a slot at a time of which it has batches, and the next.
fn holds_batches(scenario: &Scenario) -> bool {
    let Some(memory) = scenario.memory else { return false };
    let pages = scenario.models.iter().map(|model| memory.weights(model).pages);
    pages.max().unwrap_or(0) * (u32::from(PIPELINE_DEPTH) + 1) <= memory.pages
}

/// Everything about a run but who schedules.
struct Stage<'a> {
    scenario: &'a Scenario,
    run: Run,
    keep: Recording,
    /// See [`run_within`]; empty: it runs to its end.
    allowed: &'a [u64],
}

impl Stage<'_> {
    fn under(&self, mut scheduler: impl Scheduler) -> Result<Results, SimError> {
        let Self { scenario, run, keep, allowed } = *self;
        let mut arrivals = Arrivals::new(scenario, run.rate_rps, run.seed);
        let mut cluster = Cluster::new(scenario, run.seed, keep);
        cluster.tally().allow(allowed);
        drive(&mut scheduler, &mut arrivals, &scenario.gpu_events, &mut cluster);
        if let Some(what) = cluster.broken() {
            return Err(SimError::Memory { what });
        }
        let results = cluster.into_results(scheduler.gpus_needed(scenario.end()));
        if !results.tally.decided {
            results.tally.check(scenario.models.iter().map(|model| model.name.clone()))?;
        }
        Ok(results)
    }
}

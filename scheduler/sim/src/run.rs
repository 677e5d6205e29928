//! One run: a scenario, a policy, a rate and a seed.

use baton_core::{Nanos, NetworkDelay, Policy};

use crate::arrivals::Arrivals;
use crate::baseline::{Clockwork, Deferred, Nexus, Rule, Shepherd};
use crate::cluster::{Cluster, Keep, Results};
use crate::distributions::Distributions;
use crate::drive::{Scheduler, drive};
use crate::policy::PolicyName;
use crate::production::Production;
use crate::report::Report;
use crate::scenario::Scenario;
use crate::tally::SimError;

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
    let (report, _) = simulate(scenario, run, Keep::Counts, &[])?;
    Ok(report)
}

/// As [`run`], but only until some model has more late and dropped tasks than `allowed`; then
/// `None`.
pub(crate) fn run_within(
    scenario: &Scenario,
    run: Run,
    allowed: &[u64],
) -> Result<Option<Report>, SimError> {
    let (report, results) = simulate(scenario, run, Keep::Counts, allowed)?;
    Ok((!results.tally.decided).then_some(report))
}

/// As [`run`], with one line for each batch (start, end) and each dropped task.
///
/// # Errors
/// As [`run`].
pub fn run_traced(scenario: &Scenario, run: Run) -> Result<(Report, Vec<u8>), SimError> {
    let (report, results) = simulate(scenario, run, Keep::Trace, &[])?;
    Ok((report, results.trace.unwrap_or_default()))
}

/// As [`run`], with the distributions of batch sizes and queueing delays.
///
/// # Errors
/// As [`run`].
pub fn run_distributions(
    scenario: &Scenario,
    run: Run,
) -> Result<(Report, Distributions), SimError> {
    let (report, results) = simulate(scenario, run, Keep::Distributions, &[])?;
    let none = || Distributions::new(scenario.warmup);
    Ok((report, results.distributions.unwrap_or_else(none)))
}

fn simulate(
    scenario: &Scenario,
    run: Run,
    keep: Keep,
    allowed: &[u64],
) -> Result<(Report, Results), SimError> {
    let Run { policy, rate_rps, .. } = run;
    run.check()?;
    if let Some((key, why)) = unsupported(scenario, policy) {
        return Err(SimError::Unsupported { policy: policy.to_string(), key, why });
    }
    match policy {
        PolicyName::Baton => under(
            Production::new(scenario, Policy::Baton, rate_rps, ()),
            scenario,
            run,
            (keep, allowed),
        ),
        PolicyName::Symphony => under(
            Production::new(scenario, Policy::Symphony, rate_rps, ()),
            scenario,
            run,
            (keep, allowed),
        ),
        PolicyName::Eager => under(
            Production::new(scenario, Policy::Eager, rate_rps, ()),
            scenario,
            run,
            (keep, allowed),
        ),
        PolicyName::SymphonyText => {
            under(Deferred::new(scenario, Rule::Text, rate_rps), scenario, run, (keep, allowed))
        }
        PolicyName::Frontrun => {
            under(Deferred::new(scenario, Rule::Frontrun, rate_rps), scenario, run, (keep, allowed))
        }
        PolicyName::Timeout { fraction } => under(
            Deferred::new(scenario, Rule::Timeout(fraction), rate_rps),
            scenario,
            run,
            (keep, allowed),
        ),
        PolicyName::Clockwork { outstanding_ms } => {
            let outstanding = Nanos::from_millis_f64(outstanding_ms);
            under(Clockwork::new(scenario, outstanding), scenario, run, (keep, allowed))
        }
        PolicyName::Nexus { frontends } => under(
            Nexus::new(scenario, frontends, rate_rps, run.seed),
            scenario,
            run,
            (keep, allowed),
        ),
        PolicyName::Shepherd { lambda } => {
            under(Shepherd::new(scenario, lambda), scenario, run, (keep, allowed))
        }
    }
}

/// The key of the scenario that the policy has no rule for, and what is missing.
fn unsupported(scenario: &Scenario, policy: PolicyName) -> Option<(&'static str, &'static str)> {
    let delayed = scenario.network != NetworkDelay::default();
    let changes = !scenario.gpu_events.is_empty();
    match policy {
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

fn under(
    mut scheduler: impl Scheduler,
    scenario: &Scenario,
    run: Run,
    (keep, allowed): (Keep, &[u64]),
) -> Result<(Report, Results), SimError> {
    let mut arrivals = Arrivals::new(scenario, run.rate_rps, run.seed);
    let mut cluster = Cluster::new(scenario, run.seed, keep);
    cluster.tally().allow(allowed);
    drive(&mut scheduler, &mut arrivals, &scenario.gpu_events, &mut cluster);
    let results = cluster.into_results();
    if !results.tally.decided {
        results.tally.check(scenario.models.iter().map(|model| model.name.clone()))?;
    }
    Ok((Report::new(scenario, run.policy.to_string(), &results.tally), results))
}

//! One run: a scenario, a policy, a rate and a seed.

use baton_core::{Nanos, NetworkDelay, Policy};

use crate::arrivals::Arrivals;
use crate::baseline::{Clockwork, Deferred, Nexus, Rule, Shepherd};
use crate::cluster::Cluster;
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

/// Simulates one run.
///
/// # Errors
/// The rate or the scenario is beyond what the policy is simulated for, or the policy lost a task.
pub fn run(scenario: &Scenario, run: Run) -> Result<Report, SimError> {
    let (report, _) = simulate(scenario, run, false)?;
    Ok(report)
}

/// As [`run`], with one line for each batch (start, end) and each dropped task.
///
/// # Errors
/// As [`run`].
pub fn run_traced(scenario: &Scenario, run: Run) -> Result<(Report, Vec<u8>), SimError> {
    let (report, trace) = simulate(scenario, run, true)?;
    Ok((report, trace.unwrap_or_default()))
}

type Traced = (Report, Option<Vec<u8>>);

fn simulate(scenario: &Scenario, run: Run, traced: bool) -> Result<Traced, SimError> {
    let Run { policy, rate_rps, .. } = run;
    if !(0.001..=1e9).contains(&rate_rps) {
        return Err(SimError::Rate { rate: rate_rps });
    }
    match policy {
        PolicyName::Symphony => {
            under(Production::new(scenario, Policy::Symphony, rate_rps), scenario, run, traced)
        }
        PolicyName::Eager => {
            under(Production::new(scenario, Policy::Eager, rate_rps), scenario, run, traced)
        }
        _ if scenario.network != NetworkDelay::default() => {
            Err(SimError::Network { policy: policy.to_string() })
        }
        PolicyName::Frontrun => {
            under(Deferred::new(scenario, Rule::Frontrun, rate_rps), scenario, run, traced)
        }
        PolicyName::Timeout { fraction } => {
            under(Deferred::new(scenario, Rule::Timeout(fraction), rate_rps), scenario, run, traced)
        }
        PolicyName::Clockwork { outstanding_ms } => {
            let outstanding = Nanos::from_millis_f64(outstanding_ms);
            under(Clockwork::new(scenario, outstanding), scenario, run, traced)
        }
        PolicyName::Nexus { frontends } => {
            under(Nexus::new(scenario, frontends, rate_rps, run.seed), scenario, run, traced)
        }
        PolicyName::Shepherd { lambda } => {
            under(Shepherd::new(scenario, lambda), scenario, run, traced)
        }
    }
}

fn under(
    mut scheduler: impl Scheduler,
    scenario: &Scenario,
    run: Run,
    traced: bool,
) -> Result<Traced, SimError> {
    let mut arrivals = Arrivals::new(scenario, run.rate_rps, run.seed);
    let mut cluster = Cluster::new(scenario, run.seed, traced);
    let slos: Vec<Nanos> = scenario.models.iter().map(crate::SimModel::slo).collect();
    drive(&mut scheduler, &mut arrivals, &slos, &mut cluster);
    let (tally, trace) = cluster.into_results();
    tally.check(scenario.models.iter().map(|model| model.name.clone()))?;
    Ok((Report::new(scenario, run.policy.to_string(), &tally), trace))
}

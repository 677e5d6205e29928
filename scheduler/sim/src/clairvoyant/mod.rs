//! How far any scheduler could get on one model's tasks if it knew them all beforehand.

mod nesting;
mod plan;
mod prices;
mod tasks;
#[cfg(test)]
mod tests;
mod upper;

use serde::Serialize;

use self::tasks::Tasks;
use crate::bound::analytic_bound_rps;
use crate::goodput::{BAD_MAX, HIGHEST, RESOLUTION, TriedRate, edge};
use crate::scenario::Scenario;
use crate::tally::SimError;

/// The bounds of one seed's load.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Clairvoyant {
    /// The seed.
    pub seed: u64,
    /// The highest rate for which a plan was found that keeps the bad rate at 1 %.
    pub feasible_rps: f64,
    /// The lowest rate at which it is certain that none can; `None` if even 1.28 of the analytic
    /// bound cannot be excluded.
    pub upper_rps: Option<f64>,
}

/// Searches both rates by bisection, and tells of each rate once it is tried. The warm-up's tasks are left out,
/// which only helps.
///
/// # Errors
/// The scenario has several models, or something in it that is not known beforehand.
pub fn clairvoyant(
    scenario: &Scenario,
    seed: u64,
    tell: impl Fn(TriedRate),
) -> Result<Clairvoyant, SimError> {
    let told = |rate_rps: f64, is_good: bool| {
        tell(TriedRate { seed, rate_rps, is_good });
        is_good
    };
    let bound = analytic_bound_rps(scenario);
    let at = |rate_rps: f64| {
        let tasks = Tasks::new(scenario, rate_rps.max(0.001), seed)?;
        let goal = (1.0 - BAD_MAX) * tasks.len() as f64;
        Ok((tasks, goal))
    };
    let feasible = |rate_rps: f64| {
        let (tasks, goal) = at(rate_rps)?;
        Ok(told(rate_rps, plan::plan(&tasks, goal).is_some()))
    };
    let (feasible_rps, _) = edge(0.0, HIGHEST * bound, RESOLUTION * bound, feasible)?;
    let in_reach = |rate_rps: f64| {
        let (tasks, goal) = at(rate_rps)?;
        Ok(told(rate_rps, !upper::is_out_of_reach(&tasks, goal)))
    };
    let highest = HIGHEST * bound;
    let (_, upper) = edge(feasible_rps, highest, RESOLUTION * bound, in_reach)?;
    Ok(Clairvoyant { seed, feasible_rps, upper_rps: (upper < highest).then_some(upper) })
}

//! Why a task or a batch was scheduled, delayed or dropped: what the production state machines said
//! at each moment.
//!
//! A run is driven twice, which the same seed makes the same run: the first time a [`Locator`] looks
//! for what was asked for, the second time a [`Narrator`] writes down everything that happens to it.
//! No rule is repeated here. What a candidate consists of is found by granting a slot to a copy of
//! the model.

mod ask;
mod batch;
mod locator;
mod narrator;
mod slots;
mod story;
mod text;

use self::locator::Locator;
use self::narrator::Narrator;
pub use self::story::{
    BatchStory, BusyGpu, CandidateView, Cause, Decision, Explanation, ModelMoment, Moment, Outcome,
    Place, Step, TaskStory, What,
};
use crate::observer::observe;
use crate::run::Run;
use crate::scenario::Scenario;
use crate::tally::SimError;

/// What to explain.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Subject {
    /// The task with this id: its arrival in nanoseconds.
    Task(u64),
    /// The batch that was sealed as the n-th of the run, from 1.
    Batch(u64),
    /// How things stood at this moment, and the batch that was sealed next.
    At {
        /// From the beginning of the run.
        at_ms: f64,
    },
    /// The first n tasks that were dropped, of those that arrived after the warm-up.
    Dropped(usize),
    /// The first n tasks that ended too late, of those that arrived after the warm-up.
    Late(usize),
}

/// Runs the scenario and explains what was asked for.
///
/// # Errors
/// The policy is a baseline, the rate cannot be simulated, or the run has no such task or batch.
pub fn explain(scenario: &Scenario, run: Run, subject: Subject) -> Result<Explanation, SimError> {
    let locator = Locator::new(subject, scenario);
    let found = observe(scenario, run, locator)?.found(scenario)?;
    let narrator = Narrator::new(scenario, &found);
    let (batches, tasks) = observe(scenario, run, narrator)?.stories();
    Ok(Explanation {
        policy: run.policy.to_string(),
        rate_rps: run.rate_rps,
        seed: run.seed,
        moment: found.moment,
        batches,
        tasks,
    })
}

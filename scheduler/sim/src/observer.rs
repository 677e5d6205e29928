//! What an observer of the production scheduler hears in a simulated run.

use baton_core::{
    Batch, Choice, GpuUpdate, Grant, ModelState, Nanos, Readiness, Request, TaskId, Unserved,
};

use crate::arrivals::Arrivals;
use crate::cache::Caching;
use crate::cluster::{Cluster, Finished, Recording};
use crate::drive::drive;
use crate::loaders::LoadEnd;
use crate::policy::PolicyName;
use crate::production::Production;
use crate::run::Run;
use crate::scenario::Scenario;
use crate::tally::SimError;

/// Everything that goes into a model or comes out of it, and the ends of batches.
pub(crate) enum Event<'a> {
    /// A task is about to reach its model.
    Arrived { model: u32, request: Request },
    /// A slot was granted; the model is about to answer.
    Granted { model: u32, grant: Grant },
    /// The model answered with this batch.
    Sealed(&'a Batch<'a>),
    /// What became of a granted slot.
    Slot(GpuUpdate),
    /// A task ended without being executed.
    Ended { model: u32, task: TaskId, why: Unserved },
    /// A task's slot is gone; the task is about to reach its model again.
    Requeued { model: u32, request: Request },
    /// A model is about to hear where its weights are; never without memory in the scenario.
    Readiness { model: u32, readiness: Readiness },
    /// The model has dealt with a task, a grant or its timer; this is how it stands now.
    Looked { model: u32, state: &'a ModelState },
    /// A LOAD is over.
    Loaded(LoadEnd),
    /// A batch has been executed.
    Finished(Finished),
}

/// An observer. `()` is none, and costs nothing.
pub(crate) trait Observer {
    fn event(&mut self, now: Nanos, event: Event<'_>);
}

impl Observer for () {
    #[inline]
    fn event(&mut self, _now: Nanos, _event: Event<'_>) {}
}

/// Runs one of the production scheduler's policies. Returns the observer, with what it has heard.
pub(crate) fn observe<W: Observer>(scenario: &Scenario, run: Run, watch: W) -> Result<W, SimError> {
    run.check()?;
    let PolicyName::Production(policy) = run.policy else {
        return Err(SimError::NotObserved { policy: run.policy.to_string() });
    };
    let rules = (policy, Choice::default(), Caching::of(scenario));
    let mut scheduler = Production::new(scenario, rules, run.rate_rps, watch);
    let mut arrivals = Arrivals::new(scenario, run.rate_rps, run.seed);
    let mut cluster = Cluster::new(scenario, run.seed, Recording::Counts);
    drive(&mut scheduler, &mut arrivals, &scenario.gpu_events, &mut cluster);
    match cluster.broken() {
        Some(what) => Err(SimError::Memory { what }),
        None => Ok(scheduler.into_watch()),
    }
}

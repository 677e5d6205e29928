//! The tasks of one model, all known beforehand.

use baton_core::Nanos;

use crate::arrivals::{Arrivals, Arrived};
use crate::scenario::Scenario;
use crate::tally::SimError;

/// What is to be served, in nanoseconds: the tasks of the measured span, on slots that are free
/// when it begins.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Tasks {
    /// Arrivals in order.
    pub(crate) arrivals: Vec<u64>,
    /// From arrival to deadline, the same for all.
    pub(crate) slo: u64,
    /// `latency[b − 1]` = ℓ(b), for every b that can meet the objective; monotone.
    pub(crate) latency: Vec<u64>,
    /// Identical slots.
    pub(crate) gpus: usize,
}

/// More take too long.
const TASKS_MAX: usize = 5_000_000;

impl Tasks {
    /// The tasks of a run.
    pub(crate) fn new(scenario: &Scenario, rate_rps: f64, seed: u64) -> Result<Self, SimError> {
        let refused = |why| Err(SimError::NotClairvoyant { why });
        let [model] = scenario.models.as_slice() else { return refused("it has several models") };
        if let Some(why) = unforeseen(scenario) {
            return refused(why);
        }
        let slo = model.slo();
        let mut load = Arrivals::new(scenario, rate_rps, seed);
        let mut arrivals = Vec::new();
        while let Some(Arrived { at, deadline, .. }) = load.take() {
            if deadline != at + slo {
                return refused("its tasks have several objectives");
            }
            if at >= scenario.warmup {
                arrivals.push((at - scenario.warmup).0);
            }
            if arrivals.len() > TASKS_MAX {
                return refused("it has more than 5 million tasks: shorten duration_s");
            }
        }
        let latency = model.profile.table().iter().take_while(|&&took| took <= slo);
        let latency = latency.map(|took| took.0).collect();
        Ok(Self { arrivals, slo: slo.0, latency, gpus: scenario.gpus as usize })
    }

    pub(crate) fn len(&self) -> usize {
        self.arrivals.len()
    }

    /// The largest batch that can meet the objective.
    pub(crate) fn batch_max(&self) -> usize {
        self.latency.len()
    }

    /// ℓ(b).
    pub(crate) fn took(&self, batch: usize) -> u64 {
        self.latency[batch - 1]
    }

    /// The latest start of a batch of this size whose first task is this one.
    pub(crate) fn latest(&self, first: usize, batch: usize) -> u64 {
        self.arrivals[first] + self.slo - self.took(batch)
    }

    /// When the last deadline is.
    pub(crate) fn end(&self) -> u64 {
        self.arrivals.last().map_or(0, |last| last + self.slo)
    }
}

/// What makes foresight of the arrivals not enough.
fn unforeseen(scenario: &Scenario) -> Option<&'static str> {
    let exact = |model: &crate::SimModel| (model.profile_error - 1.0).abs() < f64::EPSILON;
    if scenario.network != baton_core::NetworkDelay::default() {
        Some("it has network delays")
    } else if scenario.overrun != Nanos::ZERO || scenario.stragglers.is_some() {
        Some("executions overrun")
    } else if scenario.profile_spread != 0.0 || !scenario.models.iter().all(exact) {
        Some("its profiles are wrong")
    } else if !scenario.gpu_events.is_empty() {
        Some("slots leave or come")
    } else if scenario.memory.is_some() {
        Some("weights are loaded")
    } else if scenario.models.iter().any(|model| model.clients > 0) {
        Some("what clients in a closed loop send depends on what is served")
    } else {
        None
    }
}

//! Ports through which the simulated backends fetch inputs, one batch after the other: a network that may carry less than
//! the GPUs could execute.

use std::collections::VecDeque;

use baton_core::{GpuId, Nanos};
use serde::Deserialize;

use crate::scenario::Scenario;
use crate::scenario_file::{ScenarioError, check};

/// The `port` of a scenario file.
#[derive(Deserialize, Clone, Copy, PartialEq, Debug)]
#[serde(deny_unknown_fields)]
pub struct PortKey {
    /// Slots of one backend, which share its port: 0 to `slots` − 1, and so on.
    slots: u32,
    /// What an input takes of it, µs.
    us_per_task: f64,
}

impl PortKey {
    pub(crate) fn check(&self) -> Result<(), ScenarioError> {
        check("port.slots", f64::from(self.slots), 1.0, 100_000.0)?;
        check("port.us_per_task", self.us_per_task, 0.001, 1e6)
    }
}

/// How the inputs of a batch came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fetched {
    /// What they took of the port.
    pub(crate) took: Nanos,
    /// When they were there.
    pub(crate) at: Nanos,
    /// How much later than planned.
    pub(crate) late: Nanos,
}

/// Those of a run. Without any, inputs are there when their batch was planned to start.
#[derive(Debug)]
pub(crate) struct Ports {
    key: Option<PortKey>,
    /// From the plan to the first READ.
    ctrl: Nanos,
    /// By the first slot behind it: when it has fetched everything.
    free_at: Vec<Nanos>,
    /// By slot: the batches that have not ended, oldest first.
    fetched: Vec<VecDeque<Fetched>>,
}

impl Ports {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let (key, ctrl) = (scenario.port, scenario.network.ctrl);
        let gpus = key.map_or(0, |_| scenario.gpus as usize);
        Self { key, ctrl, free_at: vec![Nanos::ZERO; gpus], fetched: vec![VecDeque::new(); gpus] }
    }

    /// The port of a slot, by the first slot behind it.
    pub(crate) fn of_slot(&self, gpu: u32) -> Option<GpuId> {
        self.key.map(|key| GpuId(gpu / key.slots * key.slots))
    }

    /// The inputs of a batch that is planned now are fetched once the plan is delivered and those before are there.
    /// Returns when they are.
    pub(crate) fn fetch(
        &mut self,
        now: Nanos,
        gpu: u32,
        batch: u32,
        planned: Option<Nanos>,
    ) -> Nanos {
        let (Some(key), Some(port)) = (self.key, self.of_slot(gpu)) else { return Nanos::ZERO };
        let took = Nanos::from_millis_f64(key.us_per_task / 1e3).times(batch.into());
        let free_at = &mut self.free_at[port.0 as usize];
        let at = (now + self.ctrl).max(*free_at) + took;
        *free_at = at;
        let late = planned.map_or(Nanos::ZERO, |planned| at - planned);
        self.fetched[gpu as usize].push_back(Fetched { took, at, late });
        at
    }

    /// The slot's oldest batch has ended.
    pub(crate) fn report(&mut self, gpu: u32) -> Option<Fetched> {
        self.fetched.get_mut(gpu as usize)?.pop_front()
    }

    /// The slot has lost its batches.
    pub(crate) fn clear(&mut self, gpu: u32) {
        self.fetched.get_mut(gpu as usize).into_iter().for_each(VecDeque::clear);
    }
}

//! A scenario: what is offered to how many GPUs, for how long. Checked when it is read.

use std::path::Path;

use baton_core::{Nanos, NetworkDelay, Profile};

use crate::scenario_file::{self, ScenarioError};

/// How the gaps between the tasks of a model are distributed; the mean follows from the rate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Arrival {
    /// Evenly spaced; each model starts at a random phase.
    Constant,
    /// Exponential gaps.
    Poisson,
    /// Gamma distributed gaps: the smaller the shape, the burstier. Shape 1 is Poisson.
    Gamma {
        /// Its shape parameter, above zero.
        shape: f64,
    },
}

/// One model of a scenario.
#[derive(Clone, PartialEq, Debug)]
pub struct SimModel {
    /// The name in reports; copies are numbered.
    pub name: String,
    /// α of ℓ(b) = α·b + β, ms.
    pub alpha_ms: f64,
    /// β, ms.
    pub beta_ms: f64,
    /// Latency objective, ms: the deadline of a task is its arrival plus this.
    pub slo_ms: f64,
    /// Part of all tasks that are for this model; the shares of a scenario add up to 1.
    pub share: f64,
    /// ℓ(b), up to one more than could ever meet the objective.
    pub profile: Profile,
}

impl SimModel {
    /// The objective in nanoseconds.
    pub fn slo(&self) -> Nanos {
        Nanos::from_millis_f64(self.slo_ms)
    }
}

/// See the module documentation.
#[derive(Clone, PartialEq, Debug)]
pub struct Scenario {
    /// GPU slots, at least one.
    pub gpus: u32,
    /// Measured span.
    pub duration: Nanos,
    /// Span before it; its tasks are offered and not counted.
    pub warmup: Nanos,
    /// Seed of a single run; a goodput search takes this one and those after it.
    pub seed: u64,
    /// Gaps between tasks.
    pub arrival: Arrival,
    /// Delays the policy plans with and the cluster has.
    pub network: NetworkDelay,
    /// How long a message between the scheduler's threads takes.
    pub message_lag: Nanos,
    /// Mean of the exponentially distributed time by which an execution overruns its profile.
    pub overrun: Nanos,
    /// At least one.
    pub models: Vec<SimModel>,
}

impl Scenario {
    /// Reads and checks a scenario file.
    ///
    /// # Errors
    /// The file cannot be read, is no scenario, or something in it cannot be simulated.
    pub fn load(path: &Path) -> Result<Self, ScenarioError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ScenarioError::Unreadable { path: path.to_owned(), error })?;
        Self::parse(&text)
    }

    /// As [`Scenario::load`], of the file's text.
    ///
    /// # Errors
    /// The text is no scenario, or something in it cannot be simulated.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        scenario_file::parse(text)
    }

    /// When the last task may arrive.
    pub fn end(&self) -> Nanos {
        self.warmup + self.duration
    }
}

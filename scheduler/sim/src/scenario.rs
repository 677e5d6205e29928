//! A scenario: what is offered to how many GPUs, for how long. Checked when it is read.

use std::path::Path;
use std::sync::Arc;

use baton_core::{Nanos, NetworkDelay, Prefer, Profile, SubclusterId};

use crate::faults::{self, GpuEvent, Stragglers};
use crate::load::Load;
use crate::ports::PortKey;
use crate::replay::Replay;
use crate::scenario_file::{self, ScenarioError};
use crate::scenario_problem::located;
use crate::subclusters::Subclusters;
use crate::variants::{Asking, SimVariant};
use crate::weights::{GpuMemory, SimWeights};

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
    /// Evenly spaced tasks at a constant rate, and gamma distributed gaps for the rest of the rate (SuperServe §6.1).
    Bursty {
        /// The constant rate, tasks per second, all models together; at most what is offered.
        base_rps: f64,
        /// Of the rest; 1/CV².
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
    /// The course of this model's arrival rate; `None`: the scenario's.
    pub load: Option<Load>,
    /// Real over planned ℓ(b), before the scenario's spread.
    pub profile_error: f64,
    /// The sub-cluster that serves it.
    pub subcluster: SubclusterId,
    /// Which of the models with its name in the file it is, from 1.
    pub copy: u32,
    /// What its weights take; `None` only where there is no memory to take.
    pub weights: Option<SimWeights>,
    /// Clients that have one task each under way; 0: its tasks come at its share of the rate.
    pub clients: u32,
    /// Of a supernet, the cheapest first, whose ℓ(b) is the model's; else empty.
    pub variants: Vec<SimVariant>,
    /// Which of its tasks ask for an accuracy.
    pub asking: Asking,
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
    /// Gaps between tasks; not looked at with a `replay`.
    pub arrival: Arrival,
    /// A file that says when tasks arrive, and may say for which model and with what objective.
    pub replay: Option<Arc<Replay>>,
    /// The course of the arrival rates; `None`: level.
    pub load: Option<Load>,
    /// Delays the policy plans with and the cluster has.
    pub network: NetworkDelay,
    /// Through what backends fetch inputs; `None`: as fast as planned, however many come at a time.
    pub port: Option<PortKey>,
    /// How long a message between the scheduler's threads takes.
    pub message_lag: Nanos,
    /// What `baton` does with slots that are idle.
    pub prefer: Prefer,
    /// Mean of the exponentially distributed time by which an execution overruns its profile.
    pub overrun: Nanos,
    /// Executions that take longer still.
    pub stragglers: Option<Stragglers>,
    /// Every model's real ℓ(b) is off by up to this part more, up or down.
    pub profile_spread: f64,
    /// Which sub-cluster each slot is in.
    pub subclusters: Subclusters,
    /// Memory of each slot; `None`: every slot holds every model.
    pub memory: Option<GpuMemory>,
    /// Slots that leave and come, by time.
    pub gpu_events: Vec<GpuEvent>,
    /// At least one.
    pub models: Vec<SimModel>,
}

impl Scenario {
    /// Reads and checks a scenario file.
    ///
    /// # Errors
    /// The file cannot be read, is no scenario, or something in it cannot be simulated.
    pub fn load(path: &Path) -> Result<Self, ScenarioError> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            located(path, "", ScenarioError::Unreadable { path: path.to_owned(), error })
        })?;
        let scenario = scenario_file::parse(&text, path.parent().unwrap_or_else(|| Path::new("")));
        scenario.map_err(|error| located(path, &text, error))
    }

    /// As [`Scenario::load`], of the file's text. Names of files in it are relative to the
    /// current folder.
    ///
    /// # Errors
    /// The text is no scenario, or something in it cannot be simulated.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        scenario_file::parse(text, Path::new(""))
    }

    /// The longest objective a task of the model may have.
    pub(crate) fn longest_slo(&self, model: &SimModel) -> Nanos {
        self.replay.as_ref().map_or(Nanos::ZERO, |replay| replay.longest_slo).max(model.slo())
    }

    /// The course of the model's arrival rate.
    pub(crate) fn load_of<'a>(&'a self, model: &'a SimModel) -> Option<&'a Load> {
        model.load.as_ref().or(self.load.as_ref())
    }

    /// For each slot, whether it is there when the run begins.
    pub(crate) fn present_at_first(&self) -> Vec<bool> {
        faults::present_at_first(&self.gpu_events, self.gpus)
    }

    /// When the last task may arrive.
    pub fn end(&self) -> Nanos {
        self.warmup + self.duration
    }
}

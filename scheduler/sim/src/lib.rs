//! The scheduler in virtual time: the production state machines, unchanged, under a discrete-event
//! driver, with the papers' other policies beside them.
//!
//! ```text
//!  Scenario ─▶ Arrivals ──task──▶ policy ──batch──▶ Cluster ──▶ Tally ─▶ Report
//!                                   ▲                  │
//!                                   └───── finished ───┘
//! ```
//!
//! Integer nanoseconds; the same scenario, policy, rate and seed give the same trace byte for
//! byte. Every run checks that every task ended exactly once ([`SimError::Unbalanced`]).
#![forbid(unsafe_code)]

mod arrivals;
mod azure;
mod baseline;
mod bound;
mod cache;
mod clairvoyant;
mod closed_loop;
mod cluster;
mod distributions;
mod doubts;
mod drive;
mod execution;
mod explain;
mod faults;
pub mod fuzz;
mod generated;
mod goodput;
mod invocations;
mod load;
mod loaders;
mod mail;
mod model_key;
mod observer;
mod of_cluster;
#[cfg(test)]
mod optimum;
mod policy;
mod popularity;
mod ports;
mod predictions;
mod production;
mod random;
mod rates;
mod replay;
mod replayed;
mod report;
mod run;
mod scenario;
mod scenario_error;
mod scenario_file;
mod scenario_problem;
mod subclusters;
mod sweep;
mod tally;
mod trying;
mod variants;
mod vary;
mod weights;

pub use arrivals::{Arrivals, Arrived};
pub use azure::{Functions, write_functions};
pub use bound::analytic_bound_rps;
pub use clairvoyant::{Clairvoyant, clairvoyant};
pub use distributions::Distributions;
pub use explain::{
    BatchStory, BusyGpu, CandidateView, Cause, Decision, Explanation, ModelMoment, Moment, Outcome,
    Place, Step, Subject, TaskStory, What, explain,
};
pub use faults::{GpuChange, GpuEvent, Stragglers};
pub use goodput::{Goodput, SeedGoodput, TriedRate, goodput, goodput_told};
pub use invocations::Minutes;
pub use load::Load;
pub use of_cluster::{ClusterRun, ReplayFile, ScenarioSource};
pub use policy::PolicyName;
pub use ports::PortKey;
pub use predictions::{Errors, Predictions, run_predictions};
pub use rates::Rates;
pub use replay::{Line, Replay, ReplayError, ReplayOptions};
pub use report::{ModelReport, Report, VariantReport};
pub use run::{Run, run, run_distributions, run_traced};
pub use scenario::{Arrival, Scenario, SimModel};
pub use scenario_error::ScenarioError;
pub use subclusters::Subclusters;
pub use sweep::{Sweep, SweepError, SweepJob, SweepPoint};
pub use tally::SimError;
pub use variants::{Asking, SimVariant};
pub use vary::{Vary, VaryError};
pub use weights::{GpuMemory, SimWeights, SlowLink};

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
mod baseline;
mod bound;
mod cluster;
mod drive;
mod goodput;
#[cfg(test)]
mod optimum;
mod policy;
mod production;
mod random;
mod report;
mod run;
mod scenario;
mod scenario_file;
mod tally;

pub use bound::analytic_bound_rps;
pub use goodput::{Goodput, SeedGoodput, goodput};
pub use policy::PolicyName;
pub use report::{ModelReport, Report};
pub use run::{Run, run, run_traced};
pub use scenario::{Arrival, Scenario, SimModel};
pub use scenario_file::ScenarioError;
pub use tally::SimError;

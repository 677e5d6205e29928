//! Load and judgement: the open-loop load generator, its reports, and the demo that runs a whole
//! cluster on one machine. Holds no product logic; everything goes through the public crates.
#![forbid(unsafe_code)]

mod arrivals;
pub mod chaos;
pub mod dataplane;
pub mod demo;
mod demo_cluster;
mod demo_processes;
mod heldout;
mod inputs;
mod latency;
pub mod load;
pub mod outcomes;
pub mod overload;
mod parallel;
mod process;
pub mod report;
pub mod reproduce;
pub mod sched;
pub mod soak;
pub mod steal;
mod table;
pub mod tally;

pub use parallel::in_parallel;

//! Whole clusters under faults, in virtual time: the real agents over the real transport on a
//! simulated network, thousands of seeds in a row.
//!
//! A seed decides everything ([`Plan::of`]): the cluster, its settings, the load, what goes wrong and
//! when. [`run`] carries it out and asks the oracles; [`swarm`] does so for many seeds. The same seed
//! gives the same run, to the last byte, so a seed is a complete report of a bug.
#![forbid(unsafe_code)]

mod accounts;
mod ambush;
mod applications;
mod breaking;
mod caches;
mod changes;
mod clock;
mod companions;
mod fairness;
mod faults;
mod freezing;
mod gpu;
mod hostile;
mod ledger;
mod marks;
mod moments;
mod network;
mod oracles;
mod passes;
mod plan;
mod process;
mod proving;
mod report;
mod run;
mod scale;
mod starting;
mod supervisor;
mod swarm;
mod trace;
mod twin;
mod variants;
mod world;

pub use ambush::Ambush;
pub use applications::{Applications, Tally};
pub use changes::{Change, Changes};
pub use clock::SkewedClock;
pub use faults::{Fault, Holds, Who};
pub use gpu::SimGpu;
pub use hostile::{Attack, Attacker, AttackerKind, Hostility, Targets};
pub use ledger::{Ledger, Task};
pub use marks::{EXCUSED, Mark, Marks};
pub use network::{HostId, Link, Network, Port, Sent, SimStream, Watch};
pub use plan::{Engines, Load, Plan, Transport};
pub use process::{BackendProcess, FrontendProcess, Line, SchedulerProcess};
pub use report::{FailedSeed, Failure, MARKS_FROM, Report, Summary, replay};
pub use scale::Scale;
pub use swarm::{Kind, run_seed, run_traced, swarm};
pub use trace::Trace;
pub use world::{Conditions, SimTransport, Speaks, Submitted, World};

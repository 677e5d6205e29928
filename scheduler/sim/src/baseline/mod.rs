//! Policies of the field, for comparison only. Sources and liberties: `docs/simulator.md`.

mod clockwork;
mod deferred;
mod nexus;
mod nexus_plan;
mod queue;
mod shepherd;
mod slots;

pub(crate) use clockwork::{Cached as ClockworkCached, Clockwork};
pub(crate) use deferred::{Deferred, Rule};
pub(crate) use nexus::Nexus;
pub(crate) use shepherd::Shepherd;

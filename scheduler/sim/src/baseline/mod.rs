//! Policies of the field, for comparison only. Sources and liberties: `docs/simulator.md`.

mod clockwork;
mod deferred;

pub(crate) use clockwork::Clockwork;
pub(crate) use deferred::{Deferred, Rule};

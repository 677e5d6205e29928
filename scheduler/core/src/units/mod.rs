//! What is counted: times, ids, and the generator that jitter and simulations draw from.

pub(crate) mod ids;
pub(crate) mod random;
pub(crate) mod time;

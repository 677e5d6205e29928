//! How long things take: ℓ(b) as measured, on usual and on slow slots, delivery, and fetching as measured.

pub(crate) mod fetching;
pub(crate) mod latency;
pub(crate) mod network;
pub(crate) mod prediction;
pub(crate) mod scarcity;
pub(crate) mod slowdown;

//! A model's configuration, and what it counts.

use crate::execution::network::NetworkDelay;
use baton_types::{ModelId, Nanos, Policy, Prefer, Profile};

/// What a model needs to know about itself.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// Its id, copied into every batch.
    pub id: ModelId,
    /// ℓ(b).
    pub profile: Profile,
    /// Latency objective: the budget batches are sized for. Deadlines come with the requests.
    pub slo: Nanos,
    /// Tasks that may wait at once.
    pub queue_capacity: u32,
    /// Batch formation and deferral.
    pub policy: Policy,
    /// Whether batches start early where slots are idle.
    pub prefer: Prefer,
    /// Delays to plan with.
    pub network: NetworkDelay,
}

/// What a model counted since start. `received + requeued = dispatched + ended + waiting`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ModelCounters {
    /// Requests received.
    pub received: u64,
    /// Tasks that a quota did not let in; no other number has them.
    pub refused: u64,
    /// Tasks that came back from a backend that could not run them.
    pub requeued: u64,
    /// Tasks in dispatched batches.
    pub dispatched: u64,
    /// Batches dispatched.
    pub batches: u64,
    /// Tasks ended here, for whatever reason.
    pub ended: u64,
    /// Of these, those given up although they had been in time: no GPU came soon enough.
    pub given_up: u64,
    /// Of these, those that found the queue full.
    pub queue_full: u64,
    /// Of these, those that were not let in, or had to leave, for their frontend's share.
    pub over_share: u64,
    /// Grants given back.
    pub returned: u64,
}

impl ModelCounters {
    /// Whether each task that came waits, of which there are `waiting`, or has gone one way.
    pub(crate) fn agree(&self, waiting: usize) -> bool {
        self.received + self.requeued == self.dispatched + self.ended + waiting as u64
    }
}

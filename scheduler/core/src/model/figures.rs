//! What a model tells of itself: its figures as they are now.

use alloc::vec::Vec;
use core::ops::RangeInclusive;

use super::{ModelConfig, ModelCounters, ModelState};
use crate::candidate::Candidate;
use crate::execution::latency::Latency;
use crate::model::rate::Rate;
use crate::policy::Rules;
use crate::trial::Replica;
use baton_types::{ModelId, Nanos, Policy, Profile};

impl ModelState {
    /// Which model.
    pub fn id(&self) -> ModelId {
        self.id
    }

    /// Tasks waiting.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// The candidate as last published.
    pub fn candidate(&self) -> Option<Candidate> {
        self.candidate
    }

    /// The batch size at which arrival and execution balance within the SLO.
    pub fn target(&self) -> u32 {
        self.sizing.target
    }

    /// The batch size that heads are given up for.
    pub fn floor(&self) -> u32 {
        self.sizing.floor
    }

    /// [`Grant::longest`] as of the last one.
    pub fn longest(&self) -> Nanos {
        self.sizing.longest
    }

    /// λ as currently estimated; `None` until the first 100 ms of traffic are over.
    pub fn rate(&self) -> Option<Rate> {
        self.sizing.rate.rate()
    }

    /// How many slots the model's demand of the last five seconds keeps busy, in 1/65536, if heads
    /// wait as long as they can: λ·ℓ(b)/b, with the tasks that were given up or not let in. Zero until the
    /// first 100 ms of traffic are over, and once nothing has come for five seconds. See
    /// [`gpus_needed`](crate::gpus_needed).
    pub fn load(&self, now: Nanos) -> u64 {
        if self.sizing.rate.is_silent(now) { 0 } else { self.sizing.load() }
    }

    /// ℓ(b) as currently planned with.
    pub fn latency(&self) -> &Latency {
        self.sizing.latency()
    }

    /// What a model needs to know of itself to decide as this one does now: with ℓ(b) and delays as they are measured. The
    /// policy is `baton`, which alone has other rules to try.
    pub fn replica(&self) -> Replica {
        let margins = self.sizes().map(|batch| self.latency().margin_of(batch)).collect();
        let patience = self.sizing.patience().clone();
        let has_variants = !self.accuracies.is_empty();
        Replica { config: self.config(), patience, margins, has_variants }
    }

    fn sizes(&self) -> RangeInclusive<u32> {
        1..=self.latency().batch_max()
    }

    fn config(&self) -> ModelConfig {
        let table: Vec<Nanos> = self.sizes().map(|batch| self.latency().of(batch)).collect();
        ModelConfig {
            id: self.id,
            profile: Profile::from_table(&table).expect("ℓ is monotone and has a batch of one"),
            slo: self.sizing.slo,
            queue_capacity: self.queue.capacity() as u32,
            policy: Policy::Baton,
            prefer: self.sizing.prefer,
            network: self.network,
        }
    }

    /// What its batches follow: the policy's rules, or those of [`ModelState::set_rules`].
    pub fn rules(&self) -> Rules {
        self.sizing.rules()
    }

    /// Counted since start.
    pub fn counters(&self) -> ModelCounters {
        self.counters
    }
}

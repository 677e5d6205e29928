//! Which batch sizes suit a model's traffic: what it aims for, what it gives heads up for, and how
//! long it waits for more. Follows ℓ with every measurement and the traffic whenever a bucket of
//! [`RateMeter`] closes.

use crate::formation;
use crate::latency::Latency;
use crate::model::ModelConfig;
use crate::network::NetworkDelay;
use crate::policy::{Deferral, Floor, Policy, WORTH_DROPPING};
use crate::profile::Profile;
use crate::rate::{Rate, RateMeter};
use crate::time::Nanos;

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Sizing {
    slo: Nanos,
    policy: Policy,
    network: NetworkDelay,
    pub(crate) latency: Latency,
    pub(crate) rate: RateMeter,
    /// The batch size at which arrival and execution balance within the SLO.
    pub(crate) target: u32,
    /// The batch size that heads are given up for.
    pub(crate) floor: u32,
    /// Mean time to the next arrival once arrivals pause.
    pause: Nanos,
}

impl Sizing {
    pub(crate) fn new(config: ModelConfig) -> Self {
        let mut sizing = Self {
            slo: config.slo,
            policy: config.policy,
            network: config.network,
            latency: Latency::new(config.profile, config.slo),
            rate: RateMeter::new(),
            target: 1,
            floor: 1,
            pause: Nanos::MAX,
        };
        sizing.resize();
        sizing
    }

    /// A task arrived.
    pub(crate) fn on_arrival(&mut self, now: Nanos) {
        if self.rate.roll(now) {
            self.latency.relax();
            self.resize();
        }
        self.rate.on_arrival(now);
    }

    pub(crate) fn set_profile(&mut self, profile: Profile) {
        self.latency.replace(profile, self.slo);
        self.resize();
    }

    /// Until when a batch of this size waits for more tasks.
    pub(crate) fn deferred(&self, batch: u32, frontrun: Nanos) -> Nanos {
        if batch >= self.latency.batch_max() {
            return Nanos::ZERO;
        }
        let latest = frontrun - self.network.jitter;
        match self.policy.deferral() {
            Deferral::Expectation => latest - self.patience(batch),
            Deferral::Fill if self.waits_for_fill(batch) => latest,
            Deferral::Fill | Deferral::None => Nanos::ZERO,
        }
    }

    /// Waiting no longer than this adds too few tasks to be worth it. Without an estimate of the
    /// traffic the deadline alone decides.
    fn patience(&self, batch: u32) -> Nanos {
        match self.rate.rate() {
            Some(_) => self.pause.times(u64::from(self.latency.patience(batch))),
            None => Nanos::ZERO,
        }
    }

    /// Condition (a) of Symphony §4.3, negated: fewer than βλ tasks wait, so one more is worth its
    /// wait. Without an estimate of λ the deadline alone decides.
    fn waits_for_fill(&self, batch: u32) -> bool {
        let in_beta = |rate: Rate| rate.arrivals_in(self.latency.beta());
        let enough = self.rate.rate().map_or(u64::MAX, in_beta);
        u64::from(batch) <= enough
    }

    fn resize(&mut self) {
        self.target = self.balanced();
        self.floor = match self.policy.floor() {
            Floor::Efficient => self.efficient(),
            Floor::Target => self.target,
            Floor::One => 1,
        };
        self.pause = self.rate.pause();
    }

    /// The largest b with b/λ + ℓ(b) ≤ SLO (Symphony Eq. 2 with N = λ·ℓ(b)/b). Without an estimate
    /// of λ, what fits half of the SLO.
    fn balanced(&self) -> u32 {
        let budget = self.slo - self.network.response - self.network.ctrl;
        let rate = self.rate.rate();
        let fits = |b: u32| {
            let run = self.latency.of(b) + self.network.data_per_task.times(u64::from(b));
            match rate {
                Some(rate) => run + rate.time_for(u64::from(b)) <= budget,
                None => run <= Nanos(budget.0 / 2),
            }
        };
        formation::largest(1, self.latency.batch_max(), fits)
    }

    /// The smallest batch that costs at most 1/16 more GPU time per task than the target.
    fn efficient(&self) -> u32 {
        let per_target = self.latency.of(self.target).0 / u64::from(self.target);
        let enough = per_target + per_target / WORTH_DROPPING;
        let efficient = |&b: &u32| self.latency.of(b).0 / u64::from(b) <= enough;
        (1..self.target).find(efficient).unwrap_or(self.target)
    }
}

//! Models and arrivals to drive a world with.

use baton_core::{ModelConfig, ModelId, Nanos, NetworkDelay, Policy, Prefer, Profile, SplitMix64};

use super::World;

/// Task numbers of [`World::warm_up`] start here, away from those a story uses.
const WARM_UP: u64 = 1 << 40;

/// Milliseconds, for readable scenarios.
pub(crate) fn ms(value: f64) -> Nanos {
    Nanos::from_millis_f64(value)
}

/// A model with ℓ(b) = α·b + β up to b = 128 and no network delay.
pub(crate) fn linear(policy: Policy, alpha_ms: f64, beta_ms: f64, slo_ms: f64) -> ModelConfig {
    ModelConfig {
        id: ModelId(0),
        profile: profile(alpha_ms, beta_ms, 128),
        slo: ms(slo_ms),
        queue_capacity: 4096,
        policy,
        prefer: Prefer::default(),
        network: NetworkDelay::default(),
    }
}

/// ℓ(b) = α·b + β.
pub(crate) fn profile(alpha_ms: f64, beta_ms: f64, batch_max: u32) -> Profile {
    Profile::linear(ms(alpha_ms), ms(beta_ms), batch_max).expect("tests use valid profiles")
}

impl World {
    /// Teaches a model its arrival rate: one second of evenly spaced tasks. Afterwards nothing waits
    /// or executes, and [`World::at`] counts from then.
    pub(crate) fn warm_up(&mut self, model: u32, per_second: u32, slo_ms: f64) {
        let gap_ms = 1e3 / f64::from(per_second);
        for i in 0..per_second {
            let task = WARM_UP * u64::from(model + 1) + u64::from(i);
            self.arrives(model, task, f64::from(i) * gap_ms, slo_ms);
        }
        while !self.is_quiet() {
            self.run(1.0);
        }
        self.batches.clear();
        self.mark();
    }

    /// Poisson arrivals at `per_second` from now for `seconds`, numbered from `first`; returns the
    /// number behind the last.
    pub(crate) fn poisson(&mut self, rng: &mut Rng, load: Load) -> u64 {
        let (mut after_ms, mut task) = (0.0, load.first);
        loop {
            after_ms += rng.exponential(1e3 / load.per_second);
            if after_ms >= load.seconds * 1e3 {
                return task;
            }
            self.arrives(load.model, task, after_ms, load.slo_ms);
            task += 1;
        }
    }
}

/// What [`World::poisson`] offers a model.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) model: u32,
    pub(crate) first: u64,
    pub(crate) per_second: f64,
    pub(crate) seconds: f64,
    pub(crate) slo_ms: f64,
}

/// A seeded generator, so that a printed seed replays a run anywhere.
pub(crate) struct Rng(SplitMix64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// Uniform in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        self.0.unit()
    }

    /// Uniform in `0..bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// Normally distributed with mean 0 and deviation 1 (Box-Muller).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Exponentially distributed with this mean.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

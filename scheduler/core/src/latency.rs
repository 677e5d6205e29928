//! ℓ(b) as it is now: the profile, corrected by what backends measure.
//!
//! Two numbers close the loop. The *ratio* of measured to profiled time follows drift (a clock
//! throttled, a neighbour on the PCIe switch); the *margin* is the 99th percentile of what remains,
//! because planning with exact times makes every batch that overruns by a hair miss its deadline.

use crate::profile::Profile;
use crate::time::Nanos;

/// A ratio of 1 in the fixed-point form used here.
const ONE: u64 = 1 << 16;
/// Weight of one measurement in the ratio: 1/16.
const WEIGHT: u64 = 16;
/// The ratio stays within a factor of 8 of the profile; beyond that the profile is wrong.
const RATIO_MAX: u64 = 8 * ONE;
/// A measurement counts as at most a quarter above or below the ratio, so that one stall does not
/// pass for drift.
const CLIP: u64 = 4;
/// The margin moves by 99 steps up or one step down: it settles where 1 % of batches exceed it.
const UP: u64 = 99;

/// The profile with its corrections.
#[derive(Clone, Debug)]
pub struct Latency {
    profile: Profile,
    /// EWMA of measured / profiled, in units of 1/[`ONE`].
    ratio: u64,
    /// p99 of measured − ratio · profiled.
    margin: Nanos,
    /// The margin's step and upper bound.
    step: Nanos,
    margin_max: Nanos,
}

impl Latency {
    /// Trusts the profile until told otherwise. The margin never exceeds an eighth of the SLO.
    pub fn new(profile: Profile, slo: Nanos) -> Self {
        let step = Nanos((profile.latency(1).0 >> 14).max(1));
        Self { profile, ratio: ONE, margin: Nanos::ZERO, step, margin_max: Nanos(slo.0 / 8) }
    }

    /// ℓ(b) to plan with, in nanoseconds; monotone in b.
    pub fn of(&self, batch: u32) -> Nanos {
        self.scaled(self.profile.latency(batch)) + self.margin
    }

    /// β to plan with: see [`Profile::beta`].
    pub fn beta(&self) -> Nanos {
        self.scaled(self.profile.beta())
    }

    /// Largest batch.
    pub fn batch_max(&self) -> u32 {
        self.profile.batch_max()
    }

    /// Measured over profiled time, 1.0 without drift.
    pub fn drift(&self) -> f64 {
        self.ratio as f64 / ONE as f64
    }

    /// The allowance for jitter.
    pub fn margin(&self) -> Nanos {
        self.margin
    }

    /// A backend executed `batch` rows in `measured`.
    pub fn observe(&mut self, batch: u32, measured: Nanos) {
        let profiled = self.profile.latency(batch);
        let clip = self.ratio / CLIP;
        let sample = u128::from(measured.0) * u128::from(ONE) / u128::from(profiled.0);
        let sample = sample.clamp(u128::from(self.ratio - clip), u128::from(self.ratio + clip));
        let sample = sample as u64;
        let moved = self.ratio - self.ratio / WEIGHT + sample / WEIGHT;
        // Rounding each term loses up to a unit; without drift the ratio must stay put.
        self.ratio = if sample == self.ratio { sample } else { moved };
        self.ratio = self.ratio.clamp(ONE / 8, RATIO_MAX);

        let overrun = measured - self.scaled(profiled);
        self.margin = if overrun > self.margin {
            (self.margin + self.step.times(UP)).min(overrun).min(self.margin_max)
        } else {
            self.margin - self.step
        };
    }

    /// Replaces the profile (a backend measured its own) and forgets the corrections.
    pub fn replace(&mut self, profile: Profile, slo: Nanos) {
        *self = Self::new(profile, slo);
    }

    fn scaled(&self, latency: Nanos) -> Nanos {
        Nanos((u128::from(latency.0) * u128::from(self.ratio) / u128::from(ONE)) as u64)
    }
}

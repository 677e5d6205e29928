//! ℓ(b) as it is now: the profile, corrected by what backends measure.
//!
//! Two numbers close the loop. The *ratio* of measured to profiled time follows drift (a clock
//! throttled, a neighbour on the PCIe switch); the *margin* is the 99th percentile of what remains,
//! because planning with exact times makes every batch that overruns by a hair miss its deadline.
//!
//! A batch that waits risks nothing by starting a margin earlier. For one that starts now or never, the b-th task is
//! worth taking in while the chance that all b end late is below 1/b, if slots are to spare. So it is planned with a
//! [`share`] of the margin, which leaves 1/(b + 1): a lone task starts if it is more likely in time than not.

use baton_types::{Nanos, Profile};

/// A ratio of 1 in the fixed-point form used here.
const ONE: u64 = 1 << 16;
/// Weight of one measurement in the ratio: 1/16.
const WEIGHT: u64 = 16;
/// The ratio stays within a factor of 8 of the profile; beyond that the profile is wrong.
const RATIO_MAX: u64 = 8;
/// A measurement counts as at most a quarter above or below the ratio, so that one stall does not
/// pass for drift.
const CLIP: u64 = 4;
/// The margin moves by 99 steps up or one step down: it settles where 1 % of batches exceed it.
const UP: u64 = 99;
/// What takes longer by more than this many times the largest margin is late with any: it moves the margin no further up.
const BEYOND: u64 = 2;
/// A whole, in the units of [`share`].
const ALL: u64 = 256;
/// log₂ 100, in 1/256.
const LOG_OF_100: u32 = 1_701;

/// The profile with its corrections.
#[derive(Clone, Debug)]
pub struct Latency {
    profile: Profile,
    /// The margin's step and upper bound.
    step: Nanos,
    margin_max: Nanos,
    /// EWMA of measured / profiled, in units of 1/[`ONE`].
    ratio: u64,
    /// p99 of measured − ratio · profiled.
    margin: Nanos,
    /// ℓ(1) to plan with: what every arrival asks for.
    alone: Nanos,
    /// See [`Latency::set_scarcity`].
    scarcity: u16,
    /// A measurement has arrived since [`Latency::relax`] was last called.
    fresh: bool,
}

impl Latency {
    /// Trusts the profile until told otherwise. The margin never exceeds an eighth of the SLO.
    pub fn new(profile: Profile, slo: Nanos) -> Self {
        let (step, margin_max) = Self::bounds(slo);
        let (margin, alone) = (Nanos::ZERO, profile.latency(1));
        Self { profile, step, margin_max, ratio: ONE, margin, alone, scarcity: 0, fresh: false }
    }

    /// The margin's step and upper bound.
    fn bounds(slo: Nanos) -> (Nanos, Nanos) {
        (Nanos((slo.0 >> 16).max(1)), Nanos(slo.0 / 8))
    }

    /// Another objective: what was measured stays, within its bounds.
    pub fn set_objective(&mut self, slo: Nanos) {
        (self.step, self.margin_max) = Self::bounds(slo);
        self.margin = self.margin.min(self.margin_max);
        self.alone = self.of(1);
    }

    /// ℓ(b) to plan with, in nanoseconds; monotone in b.
    #[inline]
    pub fn of(&self, batch: u32) -> Nanos {
        self.scaled(self.profile.latency(batch)) + self.margin_of(batch)
    }

    /// What one batch in a hundred exceeds.
    #[inline]
    pub fn p99(&self, batch: u32) -> Nanos {
        self.scaled(self.profile.latency(batch)) + self.margin
    }

    /// What [`Latency::of`] has of the margin.
    #[inline]
    pub fn margin_of(&self, batch: u32) -> Nanos {
        if self.margin == Nanos::ZERO {
            return Nanos::ZERO;
        }
        let share = u64::from(share(batch));
        let share = share + (ALL - share) * u64::from(self.scarcity) / ALL;
        Nanos(self.margin.0.saturating_mul(share) / ALL)
    }

    /// How much of the time of the slots other tasks would use, in 1/256: what ends late takes it from them. At 256 every
    /// batch is planned with the whole margin.
    pub(crate) fn set_scarcity(&mut self, scarcity: u16) {
        debug_assert!(u64::from(scarcity) <= ALL, "a part");
        self.scarcity = scarcity;
        self.alone = self.of(1);
    }

    /// ℓ(1) to plan with, without a look at the table.
    pub fn alone(&self) -> Nanos {
        self.alone
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

    /// A backend executed `batch` rows in `measured`. Returns ℓ(b) as it was predicted without the margin.
    pub fn observe(&mut self, batch: u32, measured: Nanos) -> Nanos {
        self.fresh = true;
        let profiled = self.profile.latency(batch);
        // Against the prediction as it was: one that has seen the sample looks better than it is.
        let predicted = self.scaled(profiled);
        self.follow_overrun(measured - predicted);
        self.follow_ratio(measured, profiled);
        self.alone = self.of(1);
        debug_assert!(self.margin <= self.margin_max, "no more is allowed for jitter");
        predicted
    }

    /// Called now and then while tasks arrive. Without a measurement since the last call the
    /// corrections fade: they may be what keeps every task from being tried, and then no
    /// measurement would ever take them back.
    pub fn relax(&mut self) {
        if !self.fresh {
            self.margin = Nanos(self.margin.0 / 2);
            self.ratio -= self.ratio.saturating_sub(ONE).div_ceil(WEIGHT);
            self.alone = self.of(1);
        }
        self.fresh = false;
    }

    /// Replaces the profile (a backend measured its own) and forgets the corrections.
    pub fn replace(&mut self, profile: Profile, slo: Nanos) {
        *self = Self { scarcity: self.scarcity, ..Self::new(profile, slo) };
    }

    fn follow_overrun(&mut self, overrun: Nanos) {
        let is_beyond = overrun > self.margin_max.times(BEYOND);
        self.margin = if overrun > self.margin && !is_beyond {
            (self.margin + self.step.times(UP)).min(self.margin_max)
        } else {
            self.margin - self.step
        };
    }

    fn follow_ratio(&mut self, measured: Nanos, profiled: Nanos) {
        let clip = self.ratio / CLIP;
        let sample = u128::from(measured.0) * u128::from(ONE) / u128::from(profiled.0);
        let sample = sample.clamp(u128::from(self.ratio - clip), u128::from(self.ratio + clip));
        let moved = self.ratio - self.ratio / WEIGHT + sample as u64 / WEIGHT;
        self.ratio = moved.clamp(ONE / RATIO_MAX, ONE * RATIO_MAX);
    }

    fn scaled(&self, latency: Nanos) -> Nanos {
        Nanos((u128::from(latency.0) * u128::from(self.ratio) / u128::from(ONE)) as u64)
    }
}

/// The part of the 99th percentile that a batch of b tasks exceeds with a chance of 1/(b + 1), in 1/256, if what
/// executions take longer is distributed exponentially: log₁₀₀(b + 1), with the logarithm's chords between powers of two.
fn share(batch: u32) -> u32 {
    let tasks = u64::from(batch) + 1;
    let log = tasks.ilog2();
    let fraction = (tasks << 8 >> log) as u32 - 256;
    ((log << 8) + fraction).min(LOG_OF_100) * 256 / LOG_OF_100
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const SLO: Nanos = Nanos::from_millis(40);
    const BATCHES: u32 = 12;

    /// A step function, as engines with bucketed shapes have it.
    fn profile() -> impl Strategy<Value = Profile> {
        prop::collection::vec(0..3_000_000u64, BATCHES as usize).prop_map(|steps| {
            let mut sum = Nanos(1);
            let rise = |step: u64| {
                sum = sum + Nanos(step);
                sum
            };
            Profile::from_table(&steps.into_iter().map(rise).collect::<Vec<_>>()).unwrap()
        })
    }

    fn measured() -> impl Strategy<Value = Nanos> {
        prop_oneof![
            8 => (0..60_000_000u64).prop_map(Nanos),
            1 => Just(Nanos::ZERO),
            1 => Just(Nanos::MAX),
        ]
    }

    proptest! {
        #[test]
        fn without_drift_the_profile_stands(
            profile in profile(),
            batches in prop::collection::vec(1..=BATCHES, 0..200),
        ) {
            let mut latency = Latency::new(profile.clone(), SLO);
            for batch in batches {
                latency.observe(batch, profile.latency(batch));
                prop_assert_eq!(latency.ratio, ONE);
                prop_assert!((1..=BATCHES).all(|b| latency.of(b) == profile.latency(b)));
            }
        }

        #[test]
        fn it_stays_monotone_and_bounded_whatever_is_measured(
            profile in profile(),
            reports in prop::collection::vec((0..=BATCHES + 1, measured()), 0..200),
        ) {
            let mut latency = Latency::new(profile, SLO);
            for (batch, measured) in reports {
                latency.observe(batch, measured);
                prop_assert!((1..BATCHES).all(|b| latency.of(b) <= latency.of(b + 1)));
                prop_assert_eq!(latency.alone(), latency.of(1));
                prop_assert!((0.125..=8.0).contains(&latency.drift()));
                prop_assert!(latency.margin() <= Nanos(SLO.0 / 8));
            }
        }
    }

    fn linear() -> Profile {
        Profile::linear(Nanos::from_millis(1), Nanos::from_millis(5), BATCHES).unwrap()
    }

    #[test]
    fn lasting_drift_is_followed_both_ways() {
        let (profile, mut latency) = (linear(), Latency::new(linear(), SLO));
        for (percent, drift) in [(130, 1.3), (80, 0.8), (100, 1.0)] {
            for batch in (1..=BATCHES).cycle().take(200) {
                latency.observe(batch, Nanos(profile.latency(batch).0 * percent / 100));
            }
            assert!((latency.drift() - drift).abs() < 0.001, "{} for {drift}", latency.drift());
        }
    }

    #[test]
    fn drift_is_followed_up_to_eight_times_and_down_to_an_eighth() {
        for (measured, drift) in [(Nanos::ZERO, 0.125), (Nanos::MAX, 8.0)] {
            let mut latency = Latency::new(linear(), SLO);
            (0..400).for_each(|_| _ = latency.observe(1, measured));
            assert_eq!(latency.drift(), drift);
        }
    }

    #[test]
    fn about_one_execution_in_a_hundred_exceeds_the_margin() {
        let (profile, mut latency) = (linear(), Latency::new(linear(), SLO));
        let (mut noise, mut exceeded) = (1u64, 0);
        for round in 0..40_000 {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let measured = profile.latency(4) + Nanos((noise >> 33) % 1_000_000);
            exceeded += u32::from(round >= 20_000 && measured > latency.p99(4));
            latency.observe(4, measured);
        }
        assert!((100..400).contains(&exceeded), "{exceeded} of 20000");
    }

    #[test]
    fn a_batch_of_b_tasks_is_planned_with_a_chance_of_1_in_b_plus_1_to_be_late() {
        for batch in 1..300 {
            let exact = 256.0 * f64::from(batch + 1).ln() / 100_f64.ln();
            let found = f64::from(share(batch));
            assert!((found - exact.min(256.0)).abs() < 5.0, "{batch}: {found}, not {exact}");
        }
        assert_eq!(share(u32::MAX), 256);
    }

    #[test]
    fn where_slots_are_scarce_every_batch_has_the_whole_margin() {
        let mut latency = Latency::new(linear(), SLO);
        let predicted = latency.profile.latency(4);
        (0..200).for_each(|_| _ = latency.observe(4, predicted));
        (0..3).for_each(|_| _ = latency.observe(4, predicted + Nanos(400_000)));
        let (alone, margin) = (latency.alone(), latency.margin());
        assert!(margin > Nanos(100_000), "{margin:?}");
        assert_eq!(latency.margin_of(1).0, margin.0 * 38 / 256);
        assert!(latency.margin_of(1) < latency.margin_of(2));
        assert_eq!(latency.margin_of(127), margin);
        latency.set_scarcity(128);
        assert_eq!(latency.margin_of(1).0, margin.0 * (38 + 109) / 256);
        latency.set_scarcity(256);
        for batch in [1, 2, 5, 12] {
            assert_eq!(latency.of(batch), latency.p99(batch));
        }
        assert_eq!(latency.alone(), alone + (margin - Nanos(margin.0 * 38 / 256)));
    }

    #[test]
    fn what_no_margin_would_cover_raises_none() {
        let margin_max = Nanos(SLO.0 / 8);
        for (overrun, margin) in [(2, margin_max), (3, Nanos::ZERO)] {
            let mut latency = Latency::new(linear(), SLO);
            for round in 0..20_000 {
                let late = if round % 50 == 0 { margin_max.times(overrun) } else { Nanos::ZERO };
                let predicted = latency.scaled(latency.profile.latency(4));
                latency.observe(4, predicted + late);
            }
            let settled = latency.margin().0.abs_diff(margin.0) < margin_max.0 / 10;
            assert!(settled, "{:?} where one in fifty is {overrun} bounds late", latency.margin());
        }
    }

    #[test]
    fn pessimism_fades_when_nothing_is_measured_any_more() {
        let mut latency = Latency::new(linear(), SLO);
        (0..200).for_each(|_| _ = latency.observe(1, Nanos::from_millis(45)));
        assert!(latency.of(1) > SLO, "no task with this SLO would be tried");
        (0..100).for_each(|_| {
            latency.observe(1, Nanos::from_millis(45));
            latency.relax();
        });
        assert!(latency.of(1) > SLO, "measurements confirm it");
        (0..200).for_each(|_| {
            latency.relax();
            assert_eq!(latency.alone(), latency.of(1));
        });
        assert_eq!((latency.of(1), latency.drift()), (Nanos::from_millis(6), 1.0));
    }

    #[test]
    fn another_objective_bounds_what_is_planned_for_one_task_too() {
        let mut latency = Latency::new(linear(), SLO);
        (0..200).for_each(|_| _ = latency.observe(1, Nanos::from_millis(45)));
        latency.set_objective(Nanos(SLO.0 / 4));
        assert_eq!(latency.margin(), Nanos(SLO.0 / 32));
        assert_eq!(latency.alone(), latency.of(1));
    }

    #[test]
    fn a_new_profile_is_trusted_as_the_first_one_was() {
        let mut latency = Latency::new(linear(), SLO);
        (0..100).for_each(|_| _ = latency.observe(1, Nanos::from_millis(60)));
        latency.replace(linear(), SLO);
        assert_eq!((latency.of(1), latency.margin()), (Nanos::from_millis(6), Nanos::ZERO));
    }

    /// A batch that was not executed at all, say, is no reason to plan with much less.
    #[test]
    fn a_time_that_is_far_too_short_counts_as_a_quarter_too_short() {
        let profile = Profile::linear(Nanos(0), Nanos::from_millis(8), BATCHES).unwrap();
        let drift = |measured_ms| {
            let mut latency = Latency::new(profile.clone(), SLO);
            latency.observe(1, Nanos::from_millis(measured_ms));
            latency.drift()
        };
        assert!((drift(0) - drift(6)).abs() < 1e-9 && drift(0) < drift(7));
    }

    #[test]
    fn without_a_measurement_a_margin_halves() {
        let mut latency = Latency::new(linear(), SLO);
        (0..40).for_each(|_| _ = latency.observe(1, Nanos::from_millis(7)));
        let before = latency.margin();
        latency.relax();
        assert_eq!(latency.margin(), before, "there was one");
        latency.relax();
        assert!(before > Nanos(1) && latency.margin() == Nanos(before.0 / 2));
    }
}

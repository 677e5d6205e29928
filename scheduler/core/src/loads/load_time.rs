//! How long LOADs take, as measured. A model is loaded rarely, so models learn from each other.
//!
//! A LOAD should take what the cluster file says, times a drift that all models of about its length have in common, which is that of
//! the link, times a factor of the model's own. On top comes a margin that one LOAD in a hundred exceeds, in effect the rolling 99th
//! percentile of Clockwork (§5.3). The margin too is that of all models of about its length. Slots whose links are slow are left
//! out of all that (`links.rs`).

use baton_types::{GpuId, Nanos};

use super::links::Links;

/// Lengths of LOADs by powers of two of nanoseconds.
const CLASSES: usize = 64;
/// What is taken of a new measurement: one part in n, where n grows with each from the first of these to the second.
const OF_MODEL: (u32, u32) = (3, 16);
const OF_CLASS: (u32, u32) = (16, 256);
const OF_DEVIATION: (u32, u32) = (8, 64);
/// Before a class has this many measurements, they say nothing of a single model, which would take the link's drift for its own.
const YOUNG: u32 = 64;
/// Steps in a mean deviation: the margin moves by one for each measurement within it.
const STEPS: u64 = 1024;
/// And by this many for each beyond it: it settles where one in a hundred is.
const RARE: u64 = 99;
/// Mean deviations in a margin: at first, which is between what is right for normally and for exponentially distributed times, and
/// at most.
const MARGIN: u64 = 4;
const MARGIN_MAX: u64 = 16;

/// A factor, in parts of [`Factor::ONE`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Factor(u64);

impl Factor {
    pub(super) const ONE: Self = Self(1 << 32);
    /// What makes a minute of a millisecond, and the other way round.
    const RANGE: (Self, Self) = (Self((1 << 32) / 60_000), Self(60_000 << 32));

    fn of(self, span: Nanos) -> Nanos {
        let product = (u128::from(span.0) * u128::from(self.0)) >> 32;
        Nanos(u64::try_from(product).unwrap_or(u64::MAX))
    }

    pub(super) fn between(measured: Nanos, planned: Nanos) -> Self {
        let ratio = (u128::from(measured.0) << 32) / u128::from(planned.0.max(1));
        let ratio = u64::try_from(ratio).unwrap_or(u64::MAX);
        Self(ratio.clamp(Self::RANGE.0.0, Self::RANGE.1.0))
    }

    /// A part of the way from here to there.
    pub(super) fn towards(self, there: Self, parts: u32) -> Self {
        Self(moved(self.0, there.0, parts))
    }

    pub(super) fn times(self, n: u64) -> Self {
        Self(self.0 * n)
    }

    pub(super) fn over(self, n: u64) -> Self {
        Self(self.0 / n)
    }

    /// This over the other, in 1/256.
    pub(super) fn in_256ths_of(self, other: Self) -> u64 {
        let ratio = (u128::from(self.0) << 8) / u128::from(other.0.max(1));
        u64::try_from(ratio).unwrap_or(u64::MAX)
    }
}

/// A part of the way.
fn moved(from: u64, to: u64, parts: u32) -> u64 {
    let step = from.abs_diff(to).div_ceil(u64::from(parts));
    if to > from { from + step } else { from - step }
}

/// That n, once there were `seen` measurements.
fn parts(seen: u32, (first, last): (u32, u32)) -> u32 {
    seen.saturating_add(first).min(last)
}

/// What is known of one model's LOADs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LoadTime {
    expected: Nanos,
    own: Factor,
    seen: u32,
    is_guess: bool,
}

impl LoadTime {
    /// `is_guess`: the first measurement counts alone.
    pub(super) fn new(expected: Nanos, is_guess: bool) -> Self {
        Self { expected, own: Factor::ONE, seen: 0, is_guess }
    }
}

/// Models of about one length.
#[derive(Clone, Copy, Debug)]
struct Class {
    drift: Factor,
    seen: u32,
    /// Mean distance of a LOAD from what it should have taken.
    deviation: Nanos,
    /// In mean deviations, in steps.
    margin: u64,
}

/// What the LOADs of all models have in common.
#[derive(Clone, Debug)]
pub(super) struct LoadTimes {
    classes: [Class; CLASSES],
    links: Links,
}

impl LoadTimes {
    pub(super) fn new(gpus: usize) -> Self {
        let (drift, deviation, margin) = (Factor::ONE, Nanos::ZERO, MARGIN * STEPS);
        let class = Class { drift, seen: 0, deviation, margin };
        Self { classes: [class; CLASSES], links: Links::new(gpus) }
    }

    /// A slot has come, which may be another one than that which had its number.
    pub(super) fn join(&mut self, slot: GpuId) {
        self.links.join(slot);
    }

    /// What to plan with on a usual slot.
    pub(super) fn predicted(&self, time: &LoadTime) -> Nanos {
        let class = &self.classes[class_of(time)];
        let mean = class.mean(time);
        mean + class.margin().min(mean.times(2))
    }

    /// What to plan with on this slot.
    pub(super) fn predicted_on(&self, slot: GpuId, time: &LoadTime) -> Nanos {
        self.links.of(slot).applied(self.predicted(time))
    }

    /// A LOAD of the model took this long on this slot.
    pub(super) fn observe(&mut self, slot: GpuId, time: &mut LoadTime, measured: Nanos) {
        let class = &mut self.classes[class_of(time)];
        let is_guess = core::mem::take(&mut time.is_guess);
        if is_guess {
            let usual = self.links.of(slot).removed(measured);
            time.own = Factor::between(usual, class.drift.of(time.expected));
            return;
        }
        if !self.links.observe(slot, measured, class.mean(time)) {
            return;
        }
        class.learn(measured, class.mean(time));
        let common = Factor::between(measured, time.own.of(time.expected));
        class.drift = class.drift.towards(common, parts(class.seen, OF_CLASS));
        if class.seen < YOUNG {
            return;
        }
        let own = Factor::between(measured, class.drift.of(time.expected));
        time.own = time.own.towards(own, parts(time.seen, OF_MODEL));
        time.seen = time.seen.saturating_add(1);
    }
}

fn class_of(time: &LoadTime) -> usize {
    time.expected.0.max(1).ilog2() as usize
}

impl Class {
    fn mean(&self, time: &LoadTime) -> Nanos {
        time.own.of(self.drift.of(time.expected))
    }

    fn margin(&self) -> Nanos {
        Nanos(self.deviation.0.saturating_mul(self.margin) / STEPS)
    }

    fn learn(&mut self, measured: Nanos, mean: Nanos) {
        self.margin = match measured > mean + self.margin() {
            true => (self.margin + RARE).min(MARGIN_MAX * STEPS),
            false => self.margin.saturating_sub(1),
        };
        let distance = measured.0.abs_diff(mean.0);
        self.deviation = Nanos(moved(self.deviation.0, distance, parts(self.seen, OF_DEVIATION)));
        self.seen = self.seen.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;
    use baton_types::SplitMix64;

    const MS: Nanos = Nanos::from_millis(1);

    /// Models of one class whose LOADs are measured.
    struct Bed(LoadTimes, Vec<LoadTime>);

    const SLOT: GpuId = GpuId(0);

    impl Bed {
        fn new(models: usize) -> Self {
            Self(LoadTimes::new(16), vec![LoadTime::new(MS.times(8), false); models])
        }

        fn observe(&mut self, model: usize, measured: Nanos) {
            self.observe_on(SLOT, model, measured);
        }

        fn observe_on(&mut self, slot: GpuId, model: usize, measured: Nanos) {
            self.0.observe(slot, &mut self.1[model], measured);
        }

        fn predicted(&self, model: usize) -> Nanos {
            self.0.predicted(&self.1[model])
        }
    }

    #[test]
    fn loads_of_another_length_say_nothing() {
        let (mut times, long) = (LoadTimes::new(16), LoadTime::new(MS.times(64), false));
        let mut short = LoadTime::new(MS.times(8), false);
        let before = times.predicted(&long);
        (0..100).for_each(|_| times.observe(SLOT, &mut short, MS.times(16)));
        assert_eq!(times.predicted(&long), before);
        assert!(times.predicted(&short) >= MS.times(12), "those of its own do");
    }

    #[test]
    fn no_load_is_planned_with_more_than_three_times_its_mean() {
        let mut bed = Bed::new(1);
        (0..100).for_each(|_| bed.observe(0, MS.times(8)));
        bed.0.classes.iter_mut().for_each(|class| class.deviation = MS.times(1_000));
        assert_eq!(bed.predicted(0), MS.times(24));
    }

    #[test]
    fn exact_times_need_no_margin() {
        let mut bed = Bed::new(1);
        (0..100).for_each(|_| bed.observe(0, MS.times(8)));
        assert_eq!(bed.predicted(0), MS.times(8));
    }

    #[test]
    fn a_link_that_is_slower_than_the_file_says_is_learnt_also_for_models_that_were_never_loaded() {
        let mut bed = Bed::new(101);
        (0..400).for_each(|at| bed.observe(at % 100, MS.times(12)));
        for model in [0, 100] {
            let off = bed.predicted(model).0.abs_diff(MS.times(12).0);
            assert!(off < MS.0 / 2, "{model}: {:?}", bed.predicted(model));
        }
    }

    #[test]
    fn a_model_of_which_the_file_is_wrong_is_learnt_and_is_not_taken_for_the_link() {
        let mut bed = Bed::new(20);
        for at in 0..2_000 {
            let (model, takes) = (at % 20, if at % 20 == 0 { 24 } else { 8 });
            bed.observe(model, MS.times(takes));
        }
        for (model, takes) in [(0, 24), (1, 8)] {
            let off = bed.predicted(model).0.abs_diff(MS.times(takes).0);
            assert!(off < MS.0 / 2, "{model}: {:?}", bed.predicted(model));
        }
    }

    #[test]
    fn a_guess_lasts_until_the_first_measurement() {
        let (mut times, mut time) = (LoadTimes::new(1), LoadTime::new(MS.times(50), true));
        assert_eq!(times.predicted(&time), MS.times(50));
        times.observe(SLOT, &mut time, MS.times(4));
        assert!(times.predicted(&time).0.abs_diff(MS.times(4).0) < 100, "{time:?}");
        times.observe(SLOT, &mut time, MS.times(20));
        let then = times.predicted(&time);
        assert!(then > MS.times(4) && then < MS.times(18), "{then:?}");
    }

    /// One LOAD in four is on a slot that takes `factor` as long; the others take the file's time.
    fn one_link_in_four(factor: u64) -> Bed {
        let mut bed = Bed::new(100);
        for at in 0..400 {
            let slot = GpuId(at % 4);
            let takes = if slot == GpuId(3) { MS.times(8 * factor) } else { MS.times(8) };
            bed.observe_on(slot, at as usize % 99, takes);
        }
        bed
    }

    #[test]
    fn a_slow_link_is_its_slots_alone() {
        let bed = one_link_in_four(3);
        // The last model was never loaded.
        for model in [0, 99] {
            let on = |slot| bed.0.predicted_on(GpuId(slot), &bed.1[model]);
            assert!(on(0).0.abs_diff(MS.times(8).0) < MS.0, "{model}: {:?}", on(0));
            assert_eq!((on(0), on(1)), (bed.predicted(model), on(2)));
            assert!(on(3).0.abs_diff(MS.times(24).0) < MS.times(3).0, "{model}: {:?}", on(3));
        }
    }

    #[test]
    fn what_replaces_a_guess_is_measured_as_on_a_usual_link() {
        let mut bed = one_link_in_four(3);
        let mut guessed = LoadTime::new(MS.times(8), true);
        bed.0.observe(GpuId(3), &mut guessed, MS.times(60));
        let predicted = bed.0.predicted(&guessed);
        assert!(predicted.0.abs_diff(MS.times(20).0) < MS.times(3).0, "{predicted:?}");
    }

    #[test]
    fn another_slot_with_the_number_of_a_slow_one_is_a_usual_one() {
        let mut bed = one_link_in_four(3);
        bed.0.join(GpuId(3));
        assert_eq!(bed.0.predicted_on(GpuId(3), &bed.1[0]), bed.predicted(0));
    }

    #[test]
    fn links_that_are_all_slow_are_no_slow_links() {
        let mut bed = Bed::new(100);
        for at in 0..1_600 {
            let (slot, model) = (GpuId(at % 16), at as usize % 100);
            bed.observe_on(slot, model, MS.times(24));
            let on = |slot| bed.0.predicted_on(GpuId(slot), &bed.1[model]);
            let usual = bed.predicted(model);
            assert!((0..16).all(|slot| on(slot) == usual), "{at}");
        }
    }

    /// Of LOADs that vary, each model loaded ten times: how many take longer, and by how much the others are overpredicted at most
    /// for 99 of 100.
    fn spread(seed: u64, models: usize) -> (usize, Nanos) {
        let (mut bed, mut random) = (Bed::new(models), SplitMix64::new(seed));
        let (mut over, mut exceeded) = (Vec::new(), 0);
        for round in 0..10 * models {
            let took = MS.times(8) + Nanos(random.next_u64() % MS.0);
            let model = round % models;
            if round >= models {
                exceeded += usize::from(took > bed.predicted(model));
                over.push(bed.predicted(model) - took);
            }
            bed.observe(model, took);
        }
        over.sort_unstable();
        (exceeded * 1000 / over.len(), over[over.len() * 99 / 100])
    }

    #[test]
    fn about_one_in_a_hundred_takes_longer_although_each_model_is_loaded_rarely() {
        let (exceeded, over) = spread(3, 2_000);
        assert!((3..30).contains(&exceeded), "{exceeded} of 1,000");
        // It varies by 1 ms.
        assert!(over < Nanos::from_micros(1_300), "{over:?}");
    }

    #[test]
    fn a_factor_is_within_a_minute_of_a_millisecond() {
        let minute = Nanos::from_millis(60_000);
        let shortest = Factor::between(Nanos(1), minute).of(minute);
        assert!((990_000..=1_000_000).contains(&shortest.0), "{shortest:?}");
        let longest = Factor::between(minute.times(60), Nanos(1)).of(Nanos::from_millis(1));
        assert_eq!(longest, minute);
    }
}

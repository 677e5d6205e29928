//! How long a batch takes, by what it is: the execution model that everything which plans asks.
//!
//! A batch is a [`BatchShape`]: a size, the variant of the model that executes, and the class of its tasks. An
//! [`ExecutionModel`] predicts its ℓ and learns from what backends measure. Formation looks for sizes of one variant and
//! class at a time, and bisects: it needs an ℓ that does not fall with the size, which is what a [`Latency`] is.

use alloc::boxed::Box;

use crate::execution::latency::Latency;
use crate::execution::scarcity::Scarcity;
use baton_types::{Nanos, Profile, Variants};

/// A batch as far as its execution time depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BatchShape {
    /// Tasks.
    pub size: u32,
    /// Which variant of the model executes (SuperServe §4.1): 0 is the cheapest, and the only one of most models.
    pub variant: u16,
    /// The class of its tasks: those of one class take about as long (ORLOJ §3). 0 where nothing is said of them.
    pub class: u16,
}

impl BatchShape {
    /// Tasks of which nothing is said, by the cheapest variant.
    pub const fn of(size: u32) -> Self {
        Self { size, variant: 0, class: 0 }
    }
}

/// Why profiles are no execution model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExecutionModelError {
    /// There is no profile, no class, or one profile too few or too many.
    Missing,
    /// A variant is faster than the one before it, at this size.
    NotCheapestFirst {
        /// The faster variant.
        variant: u16,
        /// Tasks.
        size: u32,
    },
    /// Another largest batch than the first profile's.
    BatchMax {
        /// The profile's place in the list.
        at: usize,
    },
}

impl core::fmt::Display for ExecutionModelError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Missing => write!(f, "give one profile for each class of each variant"),
            Self::NotCheapestFirst { variant, size } => write!(
                f,
                "variant {variant} takes less time for {size} tasks than the one before; list the cheapest first"
            ),
            Self::BatchMax { at } => {
                write!(f, "profile {at} ends at another batch size than the first one")
            }
        }
    }
}

impl core::error::Error for ExecutionModelError {}

/// ℓ of every shape of one model's batches: a table for each variant and class, corrected by what backends measure.
#[derive(Clone, Debug)]
pub struct ExecutionModel {
    /// Of the first class under the cheapest variant: what every other part of the plan looks at.
    first: Latency,
    /// The others: the classes of each variant one after the other.
    others: Box<[Latency]>,
    classes: u16,
    scarcity: Scarcity,
}

impl ExecutionModel {
    /// One variant, one class.
    pub fn new(profile: Profile, slo: Nanos) -> Self {
        Self::of(Latency::new(profile, slo), Box::new([]), 1)
    }

    /// Several: `profiles` has the classes of the cheapest variant, then those of the next one.
    ///
    /// # Errors
    /// See [`ExecutionModelError`].
    pub fn with_kinds(
        profiles: &[Profile],
        classes: u16,
        slo: Nanos,
    ) -> Result<Self, ExecutionModelError> {
        check_kinds(profiles, classes)?;
        let mut all = profiles.iter().map(|profile| Latency::new(profile.clone(), slo));
        let first = all.next().ok_or(ExecutionModelError::Missing)?;
        Ok(Self::of(first, all.collect(), classes))
    }

    /// One class of each of these variants.
    pub fn of_variants(variants: &Variants, slo: Nanos) -> Self {
        let mut all =
            variants.all().iter().map(|variant| Latency::new(variant.profile.clone(), slo));
        let first = all.next().expect("variants are not empty");
        Self::of(first, all.collect(), 1)
    }

    fn of(first: Latency, others: Box<[Latency]>, classes: u16) -> Self {
        Self { first, others, classes, scarcity: Scarcity::default() }
    }

    /// ℓ of a batch. Of a variant or a class that there is not: of the nearest below it.
    pub fn predict(&self, shape: BatchShape) -> Nanos {
        self.of_kind(shape).of(shape.size)
    }

    /// ℓ(b) of all batches that differ from this one in size alone: it does not fall with b.
    pub fn of_kind(&self, shape: BatchShape) -> &Latency {
        self.index(shape).map_or(&self.first, |at| &self.others[at])
    }

    /// ℓ(b) of the first class under the cheapest variant.
    #[inline]
    pub fn cheapest(&self) -> &Latency {
        &self.first
    }

    /// ℓ(1) of the variant after the cheapest, or else of the cheapest.
    #[inline]
    pub(crate) fn dearer_alone(&self) -> Nanos {
        self.of_kind(BatchShape { variant: 1, ..BatchShape::of(1) }).alone()
    }

    /// Variants of the model.
    pub fn variants(&self) -> u16 {
        (self.kinds() / usize::from(self.classes)) as u16
    }

    /// Classes of tasks.
    pub fn classes(&self) -> u16 {
        self.classes
    }

    /// A backend executed such a batch in `measured`. Returns ℓ as it was predicted without the margin.
    pub fn observe(&mut self, shape: BatchShape, measured: Nanos) -> Nanos {
        let of_kind = self.index(shape).map_or(&mut self.first, |at| &mut self.others[at]);
        of_kind.observe(shape.size, measured)
    }

    /// A batch has a slot that was busy until just now, or not. See [`Latency::of`].
    pub(crate) fn note_slot(&mut self, was_busy: bool) {
        let before = self.scarcity.value();
        self.scarcity.note(was_busy);
        let scarcity = self.scarcity.value();
        if scarcity != before {
            self.each(|latency| latency.set_scarcity(scarcity));
        }
    }

    /// See [`Latency::relax`].
    pub fn relax(&mut self) {
        self.each(Latency::relax);
    }

    /// See [`Latency::set_objective`].
    pub fn set_objective(&mut self, slo: Nanos) {
        self.each(|latency| latency.set_objective(slo));
    }

    /// Replaces the profiles of the first class, of the cheapest variant and of those that follow, and forgets what was
    /// measured of them.
    pub fn replace(&mut self, profiles: &[Profile], slo: Nanos) {
        debug_assert!(profiles.len() <= usize::from(self.variants()), "one for each variant");
        for (variant, profile) in (0..).zip(profiles) {
            let at = self.index(BatchShape { variant, ..BatchShape::of(1) });
            let latency = at.map_or(&mut self.first, |at| &mut self.others[at]);
            latency.replace(profile.clone(), slo);
        }
    }

    fn each(&mut self, change: impl Fn(&mut Latency)) {
        change(&mut self.first);
        self.others.iter_mut().for_each(change);
    }

    fn kinds(&self) -> usize {
        self.others.len() + 1
    }

    /// Where among the others it is; `None`: it is the first.
    fn index(&self, shape: BatchShape) -> Option<usize> {
        let variant = shape.variant.min(self.variants() - 1);
        let class = shape.class.min(self.classes - 1);
        let at = usize::from(variant) * usize::from(self.classes) + usize::from(class);
        at.checked_sub(1)
    }
}

fn check_kinds(profiles: &[Profile], classes: u16) -> Result<(), ExecutionModelError> {
    let per_variant = usize::from(classes);
    let is_whole = profiles.len().is_multiple_of(per_variant);
    let has_numbers = || u16::try_from(profiles.len() / per_variant).is_ok();
    if profiles.is_empty() || !is_whole || !has_numbers() {
        return Err(ExecutionModelError::Missing);
    }
    let most = profiles[0].batch_max();
    if let Some(at) = profiles.iter().position(|profile| profile.batch_max() != most) {
        return Err(ExecutionModelError::BatchMax { at });
    }
    let pairs = profiles.iter().zip(&profiles[per_variant..]).enumerate();
    for (at, (cheaper, dearer)) in pairs {
        let is_faster = |&size: &u32| dearer.latency(size) < cheaper.latency(size);
        if let Some(size) = (1..=most).find(is_faster) {
            let variant = (at / per_variant + 1) as u16;
            return Err(ExecutionModelError::NotCheapestFirst { variant, size });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use std::string::ToString;

    const SLO: Nanos = Nanos::from_millis(100);

    fn linear(alpha_ms: u64, beta_ms: u64, most: u32) -> Profile {
        Profile::linear(Nanos::from_millis(alpha_ms), Nanos::from_millis(beta_ms), most).unwrap()
    }

    /// Two variants of two classes each.
    fn profiles() -> [Profile; 4] {
        [(1, 4), (2, 4), (2, 5), (3, 5)].map(|(alpha, beta)| linear(alpha, beta, 8))
    }

    fn shape(size: u32, variant: u16, class: u16) -> BatchShape {
        BatchShape { size, variant, class }
    }

    #[test]
    fn each_variant_and_class_has_a_table_of_its_own() {
        let execution = ExecutionModel::with_kinds(&profiles(), 2, SLO).unwrap();
        assert_eq!((execution.variants(), execution.classes()), (2, 2));
        let ms = |variant, class| execution.predict(shape(3, variant, class)).0 / 1_000_000;
        assert_eq!([ms(0, 0), ms(0, 1), ms(1, 0), ms(1, 1)], [7, 10, 11, 14]);
        assert_eq!(ms(9, 9), 14, "the nearest below");
        assert_eq!(execution.cheapest().of(3), execution.predict(BatchShape::of(3)));
    }

    #[test]
    fn where_slots_are_scarce_every_kind_has_its_whole_margin() {
        let mut execution = ExecutionModel::with_kinds(&profiles(), 2, SLO).unwrap();
        let kinds = [(0, 0), (0, 1), (1, 0), (1, 1)];
        for round in 0..40 {
            for (variant, class) in kinds {
                let of = shape(1, variant, class);
                let late = Nanos::from_millis(round % 2 * 3);
                execution.observe(of, execution.of_kind(of).p99(1) + late);
            }
        }
        let share_of = |execution: &ExecutionModel| {
            kinds.map(|(variant, class)| {
                let latency = execution.of_kind(shape(1, variant, class));
                latency.margin_of(1).0 * 100 / latency.margin().0
            })
        };
        assert_eq!(share_of(&execution), [14; 4]);
        (0..500).for_each(|_| execution.note_slot(true));
        assert!(share_of(&execution).iter().all(|share| (90..=100).contains(share)));
        (0..500).for_each(|_| execution.note_slot(false));
        assert_eq!(share_of(&execution), [14; 4]);
    }

    #[test]
    fn a_measurement_corrects_its_own_table_only() {
        let mut execution = ExecutionModel::with_kinds(&profiles(), 2, SLO).unwrap();
        for _ in 0..200 {
            execution.observe(shape(3, 1, 0), Nanos::from_millis(22));
        }
        assert!((execution.of_kind(shape(1, 1, 0)).drift() - 2.0).abs() < 0.01);
        for (variant, class) in [(0, 0), (0, 1), (1, 1)] {
            let drift = execution.of_kind(shape(1, variant, class)).drift();
            assert!((drift - 1.0).abs() < 1e-9, "variant {variant}, class {class}: {drift}");
        }
        (0..400).for_each(|_| execution.relax());
        assert_eq!(execution.predict(shape(3, 1, 0)), Nanos::from_millis(11), "all fade");
    }

    #[test]
    fn another_objective_bounds_every_margin() {
        let mut execution = ExecutionModel::with_kinds(&profiles(), 2, SLO).unwrap();
        for class in [0, 1] {
            (0..500)
                .for_each(|_| _ = execution.observe(shape(1, 1, class), Nanos::from_millis(60)));
        }
        execution.set_objective(Nanos::from_millis(8));
        let margin = |class| execution.of_kind(shape(1, 1, class)).margin();
        assert!(margin(0) <= Nanos::from_millis(1) && margin(1) <= Nanos::from_millis(1));
    }

    #[test]
    fn profiles_that_do_not_belong_together_are_refused() {
        let refused = |profiles: &[Profile], classes| {
            ExecutionModel::with_kinds(profiles, classes, SLO).unwrap_err()
        };
        assert_eq!(refused(&[], 1), ExecutionModelError::Missing);
        assert_eq!(refused(&profiles()[..3], 2), ExecutionModelError::Missing);
        assert_eq!(refused(&profiles(), 0), ExecutionModelError::Missing);
        let many = vec![linear(1, 4, 1); 1 << 16];
        assert_eq!(refused(&many, 1), ExecutionModelError::Missing, "a variant has 16 bits");
        assert!(ExecutionModel::with_kinds(&many, 2, SLO).is_ok());
        let short = [linear(1, 4, 8), linear(2, 4, 7)];
        assert_eq!(refused(&short, 1), ExecutionModelError::BatchMax { at: 1 });
        let falls = [linear(2, 1, 8), linear(1, 3, 8)];
        let error = refused(&falls, 1);
        assert_eq!(error, ExecutionModelError::NotCheapestFirst { variant: 1, size: 3 });
        assert!(error.to_string().contains("list the cheapest first"), "{error}");
        let third_falls = [1, 1, 3, 2, 2, 2].map(|alpha| linear(alpha, 4, 8));
        let error = refused(&third_falls, 2);
        assert_eq!(error, ExecutionModelError::NotCheapestFirst { variant: 2, size: 1 });
        assert!(ExecutionModel::with_kinds(&falls, 2, SLO).is_ok(), "classes have no order");
    }

    #[test]
    fn a_backend_brings_a_profile_of_each_variant() {
        let mut execution = ExecutionModel::with_kinds(&profiles(), 2, SLO).unwrap();
        execution.replace(&[linear(1, 1, 8), linear(5, 1, 8)], SLO);
        let ms = |variant, class| execution.predict(shape(3, variant, class)).0 / 1_000_000;
        assert_eq!([ms(0, 0), ms(0, 1), ms(1, 0), ms(1, 1)], [4, 10, 16, 14]);
    }
}

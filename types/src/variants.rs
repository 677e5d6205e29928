//! The variants of a supernet: networks that share weights, each with an accuracy and an ℓ(b) of its own (SuperServe §3).

use alloc::vec::Vec;
use core::fmt;

use crate::profile::Profile;

/// Variants that a model may have.
pub const VARIANTS_MAX: usize = 16;

/// An accuracy of 100 %.
pub const ACCURACY_MAX: u32 = 100_000;

/// One of a model's variants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variant {
    /// How often its answers are right, in 1/100,000.
    pub accuracy: u32,
    /// ℓ(b).
    pub profile: Profile,
}

/// All variants of a model, the cheapest first: each one is more accurate than the one before, and takes at least as long.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variants(Vec<Variant>);

/// Why variants do not make a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VariantsError {
    /// There is none.
    Empty,
    /// More than [`VARIANTS_MAX`].
    TooMany,
    /// The variant is not more accurate than the one before.
    NotMoreAccurate {
        /// Its place in the list, from 0.
        variant: usize,
    },
    /// The variant is faster than the one before, which it should then replace.
    Faster {
        /// Its place in the list, from 0.
        variant: usize,
        /// The smallest batch for which it is.
        batch: u32,
    },
    /// The largest batch is another than that of the first variant.
    BatchMax {
        /// Its place in the list, from 0.
        variant: usize,
        /// Its largest batch.
        batch_max: u32,
        /// That of the first.
        first: u32,
    },
}

impl fmt::Display for VariantsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "there is no variant"),
            Self::TooMany => write!(f, "there are more than {VARIANTS_MAX} variants"),
            Self::NotMoreAccurate { .. } => {
                write!(f, "is not more accurate than the variant before")
            }
            Self::Faster { batch, .. } => {
                write!(f, "takes less time for {batch} tasks than the variant before")
            }
            Self::BatchMax { batch_max, first, .. } => write!(
                f,
                "has batches of up to {batch_max} tasks, and the first variant has up to {first}"
            ),
        }
    }
}

impl core::error::Error for VariantsError {}

impl VariantsError {
    /// Which variant is wrong, from 0; `None` if it is no one in particular.
    pub fn variant(&self) -> Option<usize> {
        match *self {
            Self::Empty | Self::TooMany => None,
            Self::NotMoreAccurate { variant }
            | Self::Faster { variant, .. }
            | Self::BatchMax { variant, .. } => Some(variant),
        }
    }
}

impl Variants {
    /// Variants in this order, the cheapest first.
    ///
    /// # Errors
    /// See [`VariantsError`].
    pub fn new(variants: Vec<Variant>) -> Result<Self, VariantsError> {
        let first = variants.first().ok_or(VariantsError::Empty)?.profile.batch_max();
        if variants.len() > VARIANTS_MAX {
            return Err(VariantsError::TooMany);
        }
        for (variant, Variant { profile, .. }) in variants.iter().enumerate() {
            let batch_max = profile.batch_max();
            if batch_max != first {
                return Err(VariantsError::BatchMax { variant, batch_max, first });
            }
        }
        for (variant, pair) in (1..).zip(variants.windows(2)) {
            let [before, after] = [&pair[0], &pair[1]];
            if after.accuracy <= before.accuracy {
                return Err(VariantsError::NotMoreAccurate { variant });
            }
            let is_faster =
                |&batch: &u32| after.profile.latency(batch) < before.profile.latency(batch);
            if let Some(batch) = (1..=first).find(is_faster) {
                return Err(VariantsError::Faster { variant, batch });
            }
        }
        Ok(Self(variants))
    }

    /// All of them, the cheapest first.
    pub fn all(&self) -> &[Variant] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Nanos;
    use std::string::ToString;
    use std::vec;

    fn variant(accuracy: u32, alpha_ms: u64, beta_ms: u64, batch_max: u32) -> Variant {
        let ms = Nanos::from_millis;
        Variant {
            accuracy,
            profile: Profile::linear(ms(alpha_ms), ms(beta_ms), batch_max).unwrap(),
        }
    }

    #[test]
    fn variants_rise_in_accuracy_and_time() {
        let rising =
            vec![variant(73_820, 1, 1, 8), variant(76_690, 1, 1, 8), variant(80_160, 2, 1, 8)];
        assert_eq!(Variants::new(rising.clone()).unwrap().all(), rising);
        assert!(Variants::new(vec![variant(0, 1, 1, 1)]).is_ok(), "one is enough");
    }

    #[test]
    fn inconsistent_variants_are_refused_with_the_reason() {
        let refused = |variants| Variants::new(variants).unwrap_err();
        assert_eq!((refused(vec![]), refused(vec![]).variant()), (VariantsError::Empty, None));
        let many = (0..17).map(|accuracy| variant(accuracy, 1, 1, 2)).collect();
        assert_eq!(refused(many), VariantsError::TooMany);
        let equal = vec![variant(5, 1, 1, 8), variant(5, 2, 1, 8)];
        assert_eq!(refused(equal), VariantsError::NotMoreAccurate { variant: 1 });
        let crossing = vec![variant(5, 1, 1, 8), variant(6, 2, 1, 8), variant(7, 1, 4, 8)];
        let error = refused(crossing);
        assert_eq!(error, VariantsError::Faster { variant: 2, batch: 4 });
        assert_eq!(error.variant(), Some(2));
        assert_eq!(error.to_string(), "takes less time for 4 tasks than the variant before");
        let sizes = vec![variant(5, 1, 1, 8), variant(6, 2, 1, 9)];
        let error = refused(sizes);
        assert_eq!(error, VariantsError::BatchMax { variant: 1, batch_max: 9, first: 8 });
        assert!(error.to_string().contains("up to 9 tasks"), "{error}");
    }
}

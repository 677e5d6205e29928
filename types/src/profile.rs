//! The latency profile ℓ(b): how long a GPU slot needs for a batch of b tasks.
//!
//! A table, not a line: CUDA-graph buckets and padded shapes make ℓ a step function, and α, β are
//! only a fit of it (Symphony §3.1). The table is monotone; the constructors see to it.

use alloc::vec::Vec;

use crate::time::Nanos;

/// Largest batch any profile may describe; bounds every per-batch array in the system.
pub const BATCH_MAX: u32 = 1024;

/// Largest ℓ a profile may give. Longer ones come from no GPU, and sums of them would not fit.
const LATENCY_MAX: Nanos = Nanos::from_millis(3_600_000);

/// ℓ(b) for b = 1..=`batch_max`, monotone in b.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    /// `table[b - 1]` = ℓ(b).
    table: Vec<Nanos>,
}

/// Why a table is no latency profile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProfileError {
    /// No batch size at all.
    Empty,
    /// More than [`BATCH_MAX`] batch sizes.
    TooLarge,
    /// ℓ(1) is zero: an execution that takes no time admits unbounded load.
    ZeroLatency,
    /// ℓ(b) is below ℓ(b − 1) at this b.
    NotMonotone {
        /// The batch size at which the latency falls.
        batch: u32,
    },
    /// The largest latency is above an hour.
    TooLong,
}

impl core::fmt::Display for ProfileError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Empty => write!(f, "the latency table is empty; give ℓ(1) at least"),
            Self::TooLarge => write!(f, "the latency table has more than {BATCH_MAX} batch sizes"),
            Self::ZeroLatency => write!(f, "ℓ(1) is zero; every execution takes some time"),
            Self::NotMonotone { batch } => {
                write!(f, "ℓ({batch}) is below ℓ({}); latencies must not fall", batch - 1)
            }
            Self::TooLong => write!(f, "ℓ is above an hour; latencies are in milliseconds"),
        }
    }
}

impl core::error::Error for ProfileError {}

impl Profile {
    /// A measured table: `table[b - 1]` = ℓ(b).
    ///
    /// # Errors
    /// The table is empty, too long, starts at zero, falls somewhere or rises above an hour.
    pub fn from_table(table: &[Nanos]) -> Result<Self, ProfileError> {
        if table.len() > BATCH_MAX as usize {
            return Err(ProfileError::TooLarge);
        }
        match table.first() {
            None => return Err(ProfileError::Empty),
            Some(&Nanos::ZERO) => return Err(ProfileError::ZeroLatency),
            Some(_) => {}
        }
        if let Some(i) = table.windows(2).position(|pair| pair[1] < pair[0]) {
            return Err(ProfileError::NotMonotone { batch: i as u32 + 2 });
        }
        if table.last().is_some_and(|&longest| longest > LATENCY_MAX) {
            return Err(ProfileError::TooLong);
        }
        Ok(Self { table: table.to_vec() })
    }

    /// ℓ(b) = α·b + β (Symphony §3.1) for b = 1..=`batch_max`.
    ///
    /// # Errors
    /// `batch_max` is 0 or above [`BATCH_MAX`], α = β = 0, or ℓ(`batch_max`) is above an hour.
    pub fn linear(alpha: Nanos, beta: Nanos, batch_max: u32) -> Result<Self, ProfileError> {
        if batch_max > BATCH_MAX {
            return Err(ProfileError::TooLarge);
        }
        let table: Vec<Nanos> = (1..=u64::from(batch_max)).map(|b| alpha.times(b) + beta).collect();
        Self::from_table(&table)
    }

    /// The largest batch the table describes.
    pub fn batch_max(&self) -> u32 {
        self.table.len() as u32
    }

    /// ℓ(b). `batch` below 1 reads as 1, above the maximum as the maximum.
    pub fn latency(&self, batch: u32) -> Nanos {
        let last = self.table.len() - 1;
        self.table[(batch.max(1) as usize - 1).min(last)]
    }

    /// ℓ(1), ℓ(2), … as a slice.
    pub fn table(&self) -> &[Nanos] {
        &self.table
    }

    /// The intercept β of the straight line through ℓ(1) and ℓ(`batch_max`), not below zero: the
    /// cost of invoking a batch at all, as the βλ condition wants it.
    pub fn beta(&self) -> Nanos {
        self.latency(1) - self.alpha()
    }

    /// The slope α of the same line: the cost of one more task.
    pub fn alpha(&self) -> Nanos {
        let steps = u64::from(self.batch_max().max(2)) - 1;
        Nanos((self.latency(self.batch_max()) - self.latency(1)).0 / steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Nanos = Nanos::from_millis(1);

    #[test]
    fn what_is_no_profile_is_refused() {
        assert_eq!(Profile::from_table(&[]), Err(ProfileError::Empty));
        let long = [MS; BATCH_MAX as usize + 1];
        assert_eq!(Profile::from_table(&long), Err(ProfileError::TooLarge));
        assert_eq!(Profile::from_table(&[Nanos::ZERO, MS]), Err(ProfileError::ZeroLatency));
        let falls = [MS, MS.times(2), MS];
        assert_eq!(Profile::from_table(&falls), Err(ProfileError::NotMonotone { batch: 3 }));
    }

    #[test]
    fn a_line_needs_a_size_and_a_cost() {
        assert_eq!(Profile::linear(MS, MS, 0), Err(ProfileError::Empty));
        assert_eq!(Profile::linear(MS, MS, BATCH_MAX + 1), Err(ProfileError::TooLarge));
        assert_eq!(Profile::linear(MS, MS, u32::MAX), Err(ProfileError::TooLarge));
        let free = Profile::linear(Nanos::ZERO, Nanos::ZERO, 4);
        assert_eq!(free, Err(ProfileError::ZeroLatency));
    }

    #[test]
    fn sizes_outside_the_table_read_as_its_ends() {
        let profile = Profile::from_table(&[MS, MS.times(3)]).unwrap();
        assert_eq!(profile.latency(0), MS);
        assert_eq!(profile.latency(u32::MAX), MS.times(3));
    }

    #[test]
    fn a_single_batch_size_is_all_invocation_cost() {
        let profile = Profile::from_table(&[MS]).unwrap();
        assert_eq!((profile.alpha(), profile.beta()), (Nanos::ZERO, MS));
    }

    #[test]
    fn latencies_above_an_hour_are_refused() {
        assert!(Profile::from_table(&[LATENCY_MAX]).is_ok());
        assert_eq!(Profile::from_table(&[MS, Nanos::MAX]), Err(ProfileError::TooLong));
    }

    proptest! {
        #[test]
        fn a_line_gives_its_alpha_and_beta_back(
            alpha in 0..1_000_000_000u64,
            beta in 1..1_000_000_000u64,
            batch_max in 2..=BATCH_MAX,
        ) {
            let profile = Profile::linear(Nanos(alpha), Nanos(beta), batch_max).unwrap();
            prop_assert_eq!((profile.alpha(), profile.beta()), (Nanos(alpha), Nanos(beta)));
            prop_assert!(profile.table().is_sorted());
            prop_assert_eq!(profile.batch_max(), batch_max);
        }
    }
}

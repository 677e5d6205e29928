//! The latency profile ℓ(b): how long a GPU slot needs for a batch of b tasks.
//!
//! A table, not a line: CUDA-graph buckets and padded shapes make ℓ a step function, and α, β are
//! only a fit of it (Symphony §3.1). The table is monotone; the constructors see to it.

use alloc::vec::Vec;

use crate::time::Nanos;

/// Largest batch any profile may describe; bounds every per-batch array in the system.
pub const BATCH_MAX: u32 = 1024;

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
        }
    }
}

impl core::error::Error for ProfileError {}

impl Profile {
    /// A measured table: `table[b - 1]` = ℓ(b).
    ///
    /// # Errors
    /// The table is empty, too long, starts at zero or falls somewhere.
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
        Ok(Self { table: table.to_vec() })
    }

    /// ℓ(b) = α·b + β (Symphony §3.1) for b = 1..=`batch_max`.
    ///
    /// # Errors
    /// `batch_max` is 0 or above [`BATCH_MAX`], or α = β = 0.
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

//! Cold tasks: no GPU slot held the weights of their model when they came, so they waited for a LOAD.
//!
//! Only for peers of [`COLD_SINCE`](super::COLD_SINCE): the bit has a place where older ones read a length, or a variant.

use super::{ActionTask, TaskResult};

/// Above every length that an input may have.
const OF_LENGTH: u32 = 1 << 31;
/// Above the number of every variant.
const OF_VARIANT: u16 = 1 << 15;
const _: () = assert!(baton_topo::signature::INPUT_BYTES_MAX < OF_LENGTH);

impl ActionTask {
    /// The same, of a task that was cold.
    pub fn cold(self) -> Self {
        Self { input_bytes: (self.input_bytes.get() | OF_LENGTH).into(), ..self }
    }

    /// It waited for a LOAD.
    pub fn is_cold(&self) -> bool {
        self.input_bytes.get() & OF_LENGTH != 0
    }

    /// Bytes of its input.
    pub fn input_len(&self) -> u32 {
        self.input_bytes.get() & !OF_LENGTH
    }
}

impl TaskResult {
    /// The same, of a task that was cold.
    pub fn cold(self) -> Self {
        Self { variant: (self.variant.get() | OF_VARIANT).into(), ..self }
    }

    /// The task waited for a LOAD.
    pub fn is_cold(&self) -> bool {
        self.variant.get() & OF_VARIANT != 0
    }

    /// The number of the variant that answered.
    pub fn variant_index(&self) -> u16 {
        self.variant.get() & !OF_VARIANT
    }
}

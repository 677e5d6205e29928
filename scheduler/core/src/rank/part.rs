//! Less than a slot to spare: models that share few slots take turns on them.

use super::reserve::{class_of, length_of};
use baton_types::Nanos;

/// The part of a slot that the other models leave a model for longer than its tasks need, and how long a batch may take
/// without making them late.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SlotPart {
    in_32nds: u8,
    /// Of lengths.
    class: u8,
}

/// Of a slot.
pub(crate) const PARTS_OF_SLOT: u32 = 32;
const PART_BITS: u32 = 5;

impl SlotPart {
    /// Nothing.
    pub const NONE: Self = Self { in_32nds: 0, class: 0 };
    /// What [`SlotPart::to_bits`] takes.
    pub const BITS: u32 = PART_BITS + 7;

    /// Less than a slot, in 1/32; more counts as all but one. Batches may take as long as this, to a fifth less.
    pub fn new(in_32nds: u32, longest: Nanos) -> Self {
        let in_32nds = in_32nds.min(PARTS_OF_SLOT - 1) as u8;
        Self { in_32nds, class: class_of(longest) as u8 }
    }

    /// The part in 1/32.
    pub fn in_32nds(self) -> u32 {
        self.in_32nds.into()
    }

    /// No batch that lasts longer leaves the other models' tasks time.
    pub fn longest(self) -> Nanos {
        length_of(self.class.into())
    }

    /// As one number.
    pub fn to_bits(self) -> u32 {
        u32::from(self.class) << PART_BITS | u32::from(self.in_32nds)
    }

    /// Of [`SlotPart::to_bits`].
    pub fn from_bits(bits: u32) -> Self {
        let in_32nds = (bits & ((1 << PART_BITS) - 1)) as u8;
        Self { in_32nds, class: (bits >> PART_BITS & 0x7f) as u8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_what_its_bits_say() {
        for in_32nds in 0..PARTS_OF_SLOT {
            for longest in (0..40).map(|log2| Nanos(5 << log2)) {
                let part = SlotPart::new(in_32nds, longest);
                assert!(part.to_bits() < 1 << SlotPart::BITS);
                assert_eq!(SlotPart::from_bits(part.to_bits()), part);
                assert_eq!(part.in_32nds(), in_32nds);
            }
        }
        assert_eq!(SlotPart::from_bits(0), SlotPart::NONE);
    }

    #[test]
    fn a_batch_may_take_no_longer_than_was_said() {
        for micros in [10, 100, 1_234, 50_000] {
            let said = Nanos::from_micros(micros);
            let longest = SlotPart::new(8, said).longest();
            assert!(longest <= said && longest.0 * 5 >= said.0 * 4, "{longest:?} of {said:?}");
        }
    }
}

//! How scarce slots are, as a model sees it: how many of its batches have one that was busy until just now.

/// The part is a moving mean: each batch counts 1/32.
const WEIGHT_LOG2: u32 = 5;
/// All batches.
const ALL: u32 = 1 << 16;
/// Scarcity moves in 1/16, so that it mostly stays.
const STEP: u32 = 16;

/// See the module documentation.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Scarcity {
    /// In 1/[`ALL`].
    busy: u32,
}

impl Scarcity {
    /// A batch has a slot that was busy until just now, or not.
    pub(crate) fn note(&mut self, was_busy: bool) {
        let sample = if was_busy { ALL >> WEIGHT_LOG2 } else { 0 };
        self.busy = self.busy - (self.busy >> WEIGHT_LOG2) + sample;
        debug_assert!(self.busy <= ALL, "a part");
    }

    /// In 1/256: none where half of the batches find an idle slot.
    pub(crate) fn value(self) -> u16 {
        let beyond_half = (2 * self.busy).saturating_sub(ALL) >> 8;
        (beyond_half / STEP * STEP) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(batches: u32, was_busy: impl Fn(u32) -> bool) -> u16 {
        let mut scarcity = Scarcity::default();
        (0..batches).for_each(|nth| scarcity.note(was_busy(nth)));
        scarcity.value()
    }

    #[test]
    fn slots_are_scarce_where_most_were_busy_until_just_now() {
        assert_eq!(after(500, |_| false), 0);
        assert_eq!(after(500, |nth| nth % 2 == 0), 0);
        assert!((96..=160).contains(&after(500, |nth| nth % 4 > 0)));
        assert!(after(500, |_| true) >= 240);
        // A few say little.
        assert_eq!(after(1, |_| true), 0);
        assert_eq!(after(16, |_| true), 0);
        assert!(after(32, |_| true) > 0);
    }

    #[test]
    fn scarcity_ends_once_slots_are_idle() {
        assert_eq!(after(1_000, |nth| nth < 960), 0);
    }
}

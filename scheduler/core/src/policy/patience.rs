//! How long batches are worth their wait: what `baton` makes of ℓ(b).
//!
//! A batch waits for further tasks while without them each of its own would cost 1/16 more GPU time
//! ([`WORTH_WAITING`]). Computed once for each profile, where there is time: it costs O(b²).

use alloc::vec::Vec;

use super::WORTH_WAITING;
use baton_types::{Nanos, Profile};

/// Patience is counted in sixteenths of a task.
pub(crate) const PARTS: u32 = 16;

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Patience {
    /// `of[b - 1]`: see [`Patience::of`].
    of: Vec<u32>,
    /// See [`Patience::content`].
    content: u32,
    /// `longest[b - 1]`: see [`Patience::longest`].
    longest: Vec<u32>,
}

impl Patience {
    /// For batches that take so long.
    pub fn new(profile: &Profile) -> Self {
        let table = profile.table();
        let of: Vec<u32> = (1..=table.len()).map(|batch| patience(table, batch)).collect();
        let grow = of.iter().position(|&tasks| tasks == u32::MAX);
        let grow = grow.expect("nothing makes the largest batch cheaper");
        let longest = |longest: &mut u32, &tasks: &u32| {
            *longest = tasks.max(*longest);
            Some(*longest)
        };
        let longest = of[..grow].iter().scan(0, longest).collect();
        Self { of, content: grow as u32 + 1, longest }
    }

    /// How many further tasks, in [`PARTS`] of a task, it takes until a batch of this size is
    /// dearer by 1/16 than the larger one; ℓ is a line between whole tasks. [`u32::MAX`] if no number of them is
    /// enough.
    pub(crate) fn of(&self, batch: u32) -> u32 {
        let last = self.of.len() - 1;
        self.of[(batch.max(1) as usize - 1).min(last)]
    }

    /// The smallest batch that no larger one makes look dear.
    pub(crate) fn content(&self) -> u32 {
        self.content
    }

    /// The patience of the most patient batch of at most this size and smaller than
    /// [`Patience::content`]; 0 if there is none.
    pub(crate) fn longest(&self, batch: u32) -> u32 {
        let at = (batch as usize).min(self.longest.len());
        at.checked_sub(1).map_or(0, |last| self.longest[last])
    }
}

/// See [`Patience::of`].
fn patience(table: &[Nanos], batch: usize) -> u32 {
    let cost = |b: usize| i128::from(table[b - 1].0);
    let worth = i128::from(WORTH_WAITING);
    // By how much ℓ(b')/b' · 17/16 exceeds ℓ(b)/b, without division; linear where ℓ is
    let excess = |larger: usize| {
        cost(larger) * batch as i128 * (worth + 1) - cost(batch) * larger as i128 * worth
    };
    let Some(enough) = (batch..=table.len()).find(|&larger| excess(larger) < 0) else {
        return u32::MAX;
    };
    let (before, after) = (excess(enough - 1), excess(enough));
    let parts = i128::from(PARTS);
    (parts * (enough - 1 - batch) as i128 + parts * before / (before - after)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = Nanos::from_millis(1);

    #[test]
    fn patience_grows_as_batches_become_efficient() {
        let patience = Patience::new(&Profile::linear(MS, MS.times(8), 64).unwrap());
        let of = |batch| f64::from(patience.of(batch)) / f64::from(PARTS);
        // ms for each task: 9 at 1, 16/17 of it at 1.07; 1.5 at 16, 1.41 at 19.4; 1.25 at 32,
        // 1.18 at 45.3.
        assert_eq!([1, 16, 32].map(of), [0.0625, 3.375, 13.3125]);
        assert_eq!(patience.of(63), u32::MAX, "even the largest batch saves less");
        assert_eq!(patience.of(64), u32::MAX);
        assert_eq!(
            patience.of(65),
            u32::MAX,
            "no batch is larger, but one more task may be asked about"
        );
    }

    #[test]
    fn a_step_is_waited_for_from_far_below() {
        let table = [2, 2, 4, 4, 4, 4].map(|ms| MS.times(ms));
        let patience = Patience::new(&Profile::from_table(&table).unwrap());
        // Two tasks cost 1 ms each, three 1.33, four 1, and 4.25 would cost 16/17.
        let of: Vec<u32> = (1..=6).map(|batch| patience.of(batch)).collect();
        assert_eq!(of, [1, 36, 3, 4, 5, u32::MAX]);
        assert_eq!((patience.content(), patience.longest(6)), (6, 36));
        assert_eq!([0, 1, 2, 5].map(|batch| patience.longest(batch)), [0, 1, 36, 36]);
        let even = Patience::new(&Profile::from_table(&[MS.times(17), MS.times(32)]).unwrap());
        assert_eq!((even.content(), even.of(1)), (1, u32::MAX), "16 for each, not less");
        let alone = Patience::new(&Profile::from_table(&[MS]).unwrap());
        assert_eq!((alone.content(), alone.longest(1)), (1, 0));
    }
}

//! The free slots of a slab, for any number of threads, without a lock.
//!
//! Last in, first out: the slot that is taken next is the one whose memory was used last, and caches may still hold it. So a
//! slab costs the memory traffic of the tasks that are outstanding, however many slots it has.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A stack of slot numbers. Each slot is in it at most once. Threads write to it all the time; what they read beside it lies in
/// other cache lines, also for a processor that fetches two at once.
#[repr(align(128))]
pub(super) struct FreeList {
    top: AtomicU64,
    /// Of each slot in the list: the one below it, or [`NONE`]. Of the others: what it was.
    below: Box<[AtomicU32]>,
    /// Slots that are not in the list. Fewer for a moment, while one comes or goes.
    taken: AtomicU32,
}

/// The slot on top, in the lower half, and how often the top has changed, above it. The count tells a top that was
/// taken and has come back from one that stayed: what lies below it may be another slot.
#[derive(Clone, Copy)]
struct Top(u64);

/// Below the last slot.
const NONE: u32 = u32::MAX;

impl FreeList {
    /// Of the slots from 0 to `slots`, all free; 0 is taken first.
    pub(super) fn all(slots: u32) -> Self {
        assert!(slots > 0 && slots < NONE);
        let below = (1..slots).chain([NONE]).map(AtomicU32::new).collect();
        Self { top: AtomicU64::new(Top::new(0, 0).0), below, taken: AtomicU32::new(0) }
    }

    /// Takes a slot; `None` if none is free.
    pub(super) fn take(&self) -> Option<u32> {
        loop {
            let seen = self.top();
            let slot = seen.slot()?;
            if self.replace(seen, self.below[slot as usize].load(Ordering::Relaxed)) {
                self.taken.fetch_add(1, Ordering::Relaxed);
                return Some(slot);
            }
        }
    }

    /// Gives back a slot that was taken.
    pub(super) fn give(&self, slot: u32) {
        let taken = self.taken.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(taken > 0, "slot {slot} is free already");
        loop {
            let seen = self.top();
            self.below[slot as usize].store(seen.0 as u32, Ordering::Relaxed);
            if self.replace(seen, slot) {
                return;
            }
        }
    }

    /// Slots that are not free.
    pub(super) fn taken(&self) -> u32 {
        self.taken.load(Ordering::Relaxed)
    }

    fn top(&self) -> Top {
        Top(self.top.load(Ordering::Acquire))
    }

    /// Puts `slot` on top unless the top has changed since it was `seen`. Releases what lies below it.
    fn replace(&self, seen: Top, slot: u32) -> bool {
        let (old, new) = (seen.0, seen.next(slot).0);
        self.top.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

impl Top {
    const fn new(changes: u32, slot: u32) -> Self {
        Self((changes as u64) << 32 | slot as u64)
    }

    fn next(self, slot: u32) -> Self {
        Self::new(((self.0 >> 32) as u32).wrapping_add(1), slot)
    }

    fn slot(self) -> Option<u32> {
        let slot = self.0 as u32;
        (slot != NONE).then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn the_slot_that_was_given_back_last_is_taken_first() {
        let list = FreeList::all(3);
        let all = [list.take(), list.take(), list.take(), list.take()];
        assert_eq!(all, [Some(0), Some(1), Some(2), None]);
        assert_eq!(list.taken(), 3);
        list.give(1);
        list.give(2);
        assert_eq!(
            (list.taken(), list.take(), list.take(), list.take()),
            (1, Some(2), Some(1), None)
        );
    }

    #[test]
    fn a_top_that_went_and_came_back_is_another() {
        let list = FreeList::all(3);
        let seen = list.top();
        let below = list.below[0].load(Ordering::Relaxed);
        assert_eq!([list.take(), list.take()], [Some(0), Some(1)]);
        list.give(0);
        assert_eq!(
            (list.top().slot(), below),
            (seen.slot(), 1),
            "it looks the same, and 1 is taken"
        );
        assert!(!list.replace(seen, below));
        assert_eq!([list.take(), list.take(), list.take()], [Some(0), Some(2), None]);
    }

    #[test]
    fn no_slot_is_in_two_hands_and_none_is_lost() {
        const SLOTS: usize = 3;
        let list = FreeList::all(SLOTS as u32);
        let held: [AtomicBool; SLOTS] = std::array::from_fn(|_| AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let Some(slot) = list.take() else { continue };
                        assert!(!held[slot as usize].swap(true, Ordering::Relaxed), "{slot} twice");
                        held[slot as usize].store(false, Ordering::Relaxed);
                        list.give(slot);
                    }
                });
            }
        });
        assert_eq!(list.taken(), 0);
        let mut rest: Vec<_> = std::iter::from_fn(|| list.take()).collect();
        rest.sort_unstable();
        assert_eq!(rest, [0, 1, 2]);
    }
}

//! When each outstanding task's lease on its input runs out: an indexed binary heap.
//!
//! In: slot and moment. Out: the earliest. A slot is found in O(1) and removed in O(log n), and
//! nothing is allocated but by [`Leases::new`] and [`Leases::grow`]. Invariant: `position[heap[i].slot] == i`.

use baton_types::Nanos;

/// Not in the heap.
const ABSENT: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Leases {
    heap: Vec<Lease>,
    /// By slot.
    position: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    expires: Nanos,
    slot: u32,
}

impl Leases {
    pub(super) fn new(slots: usize) -> Self {
        Self { heap: Vec::with_capacity(slots), position: vec![ABSENT; slots] }
    }

    /// Makes room for `slots` slots: at least as many as there are.
    pub(super) fn grow(&mut self, slots: usize) {
        self.position.resize(slots, ABSENT);
        self.heap.reserve(slots - self.heap.len());
    }

    /// The earliest expiry and its slot.
    pub(super) fn first(&self) -> Option<(Nanos, u32)> {
        self.heap.first().map(|lease| (lease.expires, lease.slot))
    }

    /// The slot must not have a lease.
    pub(super) fn insert(&mut self, slot: u32, expires: Nanos) {
        debug_assert_eq!(self.position[slot as usize], ABSENT);
        let at = self.heap.len();
        self.heap.push(Lease { expires, slot });
        self.rise(at);
    }

    /// Does nothing if the slot has no lease.
    pub(super) fn remove(&mut self, slot: u32) {
        let at = std::mem::replace(&mut self.position[slot as usize], ABSENT) as usize;
        if at >= self.heap.len() {
            return;
        }
        self.heap.swap_remove(at);
        if at < self.heap.len() {
            let at = self.rise(at);
            self.sink(at);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Moves an entry up to its place and notes where it ends up.
    fn rise(&mut self, mut at: usize) -> usize {
        while at > 0 && self.heap[at].expires < self.heap[(at - 1) / 2].expires {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
        self.position[self.heap[at].slot as usize] = at as u32;
        at
    }

    fn sink(&mut self, mut at: usize) {
        loop {
            let children = (2 * at + 1)..(2 * at + 3).min(self.heap.len());
            let Some(child) = children.min_by_key(|&child| self.heap[child].expires) else { break };
            if self.heap[at].expires <= self.heap[child].expires {
                break;
            }
            self.swap(at, child);
            at = child;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.position[self.heap[a].slot as usize] = a as u32;
        self.position[self.heap[b].slot as usize] = b as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Against an ordered set, for any sequence of inserts and removals.
        #[test]
        fn agrees_with_an_ordered_set(
            steps in prop::collection::vec((0u32..24, prop::option::of(0u64..50)), 0..200)
        ) {
            let mut leases = Leases::new(24);
            let mut model = BTreeSet::new();
            for (slot, expires) in steps {
                leases.remove(slot);
                model.retain(|&(_, other)| other != slot);
                if let Some(expires) = expires {
                    leases.insert(slot, Nanos(expires));
                    model.insert((Nanos(expires), slot));
                }
                prop_assert_eq!(leases.len(), model.len());
                let first = leases.first().map(|(expires, _)| expires);
                prop_assert_eq!(first, model.first().map(|&(expires, _)| expires));
            }
            while let Some((expires, slot)) = leases.first() {
                prop_assert!(model.remove(&(expires, slot)));
                leases.remove(slot);
                prop_assert_eq!(
                    leases.first().map(|lease| lease.0),
                    model.first().map(|lease| lease.0)
                );
            }
        }
    }
}

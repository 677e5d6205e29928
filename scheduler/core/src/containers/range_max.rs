//! The largest of small numbers in any range of a fixed row of places: a tree of maxima.
//!
//! Setting a place costs O(log n) at most, and nothing if it keeps its number; the largest of a range costs O(log n).

use alloc::boxed::Box;
use alloc::vec;

/// See the module documentation. Places begin with 0.
#[derive(Clone, Debug)]
pub(crate) struct RangeMax {
    /// Node 1 is the root, node n's children are 2n and 2n + 1; the second half are the places.
    nodes: Box<[u8]>,
}

impl RangeMax {
    /// For `places` places, a power of two, or for none.
    pub(crate) fn new(places: usize) -> Self {
        debug_assert!(places == 0 || places.is_power_of_two());
        Self { nodes: vec![0; 2 * places].into_boxed_slice() }
    }

    /// Whether it has places.
    #[inline]
    pub(crate) fn has_places(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// Gives a place a number.
    pub(crate) fn set(&mut self, place: usize, value: u8) {
        let mut node = self.nodes.len() / 2 + place;
        if self.nodes[node] == value {
            return;
        }
        self.nodes[node] = value;
        while node > 1 {
            node /= 2;
            let largest = self.nodes[2 * node].max(self.nodes[2 * node + 1]);
            if self.nodes[node] == largest {
                return;
            }
            self.nodes[node] = largest;
        }
    }

    /// The number of a place.
    pub(crate) fn get(&self, place: usize) -> u8 {
        self.nodes[self.nodes.len() / 2 + place]
    }

    /// The largest number of the places `from .. to`; 0 of none.
    pub(crate) fn of(&self, from: usize, to: usize) -> u8 {
        let places = self.nodes.len() / 2;
        let (mut low, mut high) = (places + from, places + to);
        let mut largest = 0;
        while low < high {
            if low % 2 == 1 {
                largest = largest.max(self.nodes[low]);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                largest = largest.max(self.nodes[high]);
            }
            (low, high) = (low / 2, high / 2);
        }
        largest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_agrees_with_looking_at_every_place(
            log2 in 0..7u32,
            sets in prop::collection::vec((any::<usize>(), 0..16u8), 0..200),
            ranges in prop::collection::vec((any::<usize>(), any::<usize>()), 1..20),
        ) {
            let places = 1 << log2;
            let (mut tree, mut naive) = (RangeMax::new(places), vec![0; places]);
            for (place, value) in sets {
                tree.set(place % places, value);
                naive[place % places] = value;
            }
            for (from, len) in ranges {
                let from = from % (places + 1);
                let to = from + len % (places + 1 - from);
                let largest = naive[from..to].iter().copied().max().unwrap_or(0);
                prop_assert_eq!(tree.of(from, to), largest);
            }
        }
    }
}

//! An indexed min-heap: dense ids ordered by a key that can be changed in place.
//!
//! Timers, ready candidates and GPUs are all "the smallest key, and rekey any of them": O(log n),
//! no hashing, no allocation after construction. Four children per node keep the path short and
//! its siblings in one cache line.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Ordering;

const CHILDREN: usize = 4;
const ABSENT: u32 = u32::MAX;

/// Ids below `capacity`, each present at most once, ordered by key and then by id.
#[derive(Clone, Debug)]
pub struct IndexedHeap<K> {
    nodes: Vec<(K, u32)>,
    /// `place[id]` = index of the id's node, or [`ABSENT`].
    place: Box<[u32]>,
}

impl<K: Copy + Ord> IndexedHeap<K> {
    /// An empty heap for the ids `0..capacity`.
    pub fn new(capacity: usize) -> Self {
        Self {
            nodes: Vec::with_capacity(capacity),
            place: vec![ABSENT; capacity].into_boxed_slice(),
        }
    }

    /// The smallest key and its id.
    pub fn peek(&self) -> Option<(K, u32)> {
        self.nodes.first().copied()
    }

    /// The id's key, if it is present.
    pub fn key(&self, id: u32) -> Option<K> {
        self.nodes.get(self.place[id as usize] as usize).map(|node| node.0)
    }

    /// How many ids are present.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Up to `count` ids with their keys: the smallest, and after it some of the small ones.
    pub fn smallest_about(&self, count: usize) -> impl Iterator<Item = (K, u32)> + '_ {
        self.nodes.iter().take(count).copied()
    }

    /// How many ids have a smaller key, counted up to `limit`: it looks at no more than four others for each.
    pub fn count_below(&self, key: K, limit: usize) -> usize {
        self.count_under(0, key, limit)
    }

    /// The same, of the node `at` and those under it.
    fn count_under(&self, at: usize, key: K, limit: usize) -> usize {
        if limit == 0 || self.nodes.get(at).is_none_or(|node| node.0 >= key) {
            return 0;
        }
        let first = at * CHILDREN + 1;
        (first..first + CHILDREN)
            .fold(1, |count, child| count + self.count_under(child, key, limit - count))
    }

    /// True without any id.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Inserts the id, or changes its key.
    pub fn set(&mut self, id: u32, key: K) {
        let at = self.place[id as usize] as usize;
        match self.nodes.get_mut(at) {
            None => {
                self.nodes.push((key, id));
                self.sift_up(self.nodes.len() - 1);
            }
            Some(node) => {
                let before = core::mem::replace(&mut node.0, key);
                match key.cmp(&before) {
                    Ordering::Less => self.sift_up(at),
                    Ordering::Equal => {}
                    Ordering::Greater => self.sift_down(at),
                }
            }
        }
    }

    /// Takes the id out; false if it was not there.
    pub fn remove(&mut self, id: u32) -> bool {
        let at = self.place[id as usize] as usize;
        if at >= self.nodes.len() {
            return false;
        }
        self.place[id as usize] = ABSENT;
        let removed = self.nodes.swap_remove(at);
        match self.nodes.get(at) {
            Some(moved) if *moved < removed => self.sift_up(at),
            Some(_) => self.sift_down(at),
            None => {}
        }
        true
    }

    /// Takes the smallest out if its key is at most `bound`.
    #[inline]
    pub fn pop_up_to(&mut self, bound: K) -> Option<(K, u32)> {
        let (key, id) = self.peek()?;
        (key <= bound).then(|| {
            self.remove(id);
            (key, id)
        })
    }

    /// Moves the node at `at` towards the root; writes its final place.
    fn sift_up(&mut self, mut at: usize) {
        let node = self.nodes[at];
        while at > 0 {
            let parent = (at - 1) / CHILDREN;
            if self.nodes[parent] <= node {
                break;
            }
            self.put(at, self.nodes[parent]);
            at = parent;
        }
        self.put(at, node);
    }

    /// Moves the node at `at` towards the leaves; writes its final place.
    fn sift_down(&mut self, mut at: usize) {
        let node = self.nodes[at];
        while let Some((child, smallest)) = self.smallest_child(at) {
            if node <= smallest {
                break;
            }
            self.put(at, smallest);
            at = child;
        }
        self.put(at, node);
    }

    fn smallest_child(&self, at: usize) -> Option<(usize, (K, u32))> {
        let first = at * CHILDREN + 1;
        let last = (first + CHILDREN).min(self.nodes.len());
        let children = self.nodes.get(first..last)?.iter().copied();
        (first..).zip(children).min_by_key(|&(_, node)| node)
    }

    fn put(&mut self, at: usize, node: (K, u32)) {
        self.nodes[at] = node;
        self.place[node.1 as usize] = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const IDS: u32 = 40;

    #[derive(Clone, Debug)]
    enum Op {
        Set(u32, u8),
        Remove(u32),
        PopUpTo(u8),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0..IDS, any::<u8>()).prop_map(|(id, key)| Op::Set(id, key)),
            1 => (0..IDS).prop_map(Op::Remove),
            2 => any::<u8>().prop_map(Op::PopUpTo),
        ]
    }

    fn smallest(naive: &BTreeMap<u32, u8>) -> Option<(u8, u32)> {
        naive.iter().map(|(&id, &key)| (key, id)).min()
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_map_that_is_searched(ops in prop::collection::vec(op(), 0..300)) {
            let (mut heap, mut naive) = (IndexedHeap::new(IDS as usize), BTreeMap::new());
            for op in ops {
                match op {
                    Op::Set(id, key) => {
                        heap.set(id, key);
                        naive.insert(id, key);
                    }
                    Op::Remove(id) => {
                        prop_assert_eq!(heap.remove(id), naive.remove(&id).is_some());
                    }
                    Op::PopUpTo(bound) => {
                        let due = smallest(&naive).filter(|&(key, _)| key <= bound);
                        due.map(|(_, id)| naive.remove(&id));
                        prop_assert_eq!(heap.pop_up_to(bound), due);
                    }
                }
                prop_assert_eq!(heap.peek(), smallest(&naive));
                prop_assert_eq!((heap.len(), heap.is_empty()), (naive.len(), naive.is_empty()));
                prop_assert!((0..IDS).all(|id| heap.key(id) == naive.get(&id).copied()));
                let below = naive.values().filter(|&&key| key < 100).count();
                prop_assert!((0..12).all(|most| heap.count_below(100, most) == below.min(most)));
            }
        }
    }
}

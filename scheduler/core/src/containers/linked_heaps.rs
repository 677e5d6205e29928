//! Many min-heaps over one set of nodes: each node is in at most one of them.
//!
//! For sets that are many, mostly small and of unknown size each: memory is that of the nodes, not of heaps × nodes. The heaps
//! are pairing heaps, linked through the nodes: a node goes in with O(1) and out with O(log n) amortised, and the
//! smallest is at hand. No allocation after construction.

use alloc::boxed::Box;
use alloc::vec;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node<K> {
    key: K,
    /// The heap that it is in, or [`NONE`].
    heap: u32,
    /// The first child, the next sibling, and the previous one, or the parent of a first child.
    child: u32,
    next: u32,
    previous: u32,
}

/// See the module documentation. Nodes are ordered by key and then by number.
#[derive(Clone, Debug)]
pub(crate) struct LinkedHeaps<K> {
    roots: Box<[u32]>,
    nodes: Box<[Node<K>]>,
}

impl<K: Copy + Ord + Default> LinkedHeaps<K> {
    /// `heaps` empty heaps for the nodes `0..nodes`.
    pub(crate) fn new(heaps: usize, nodes: usize) -> Self {
        let free = Node { key: K::default(), heap: NONE, child: NONE, next: NONE, previous: NONE };
        Self {
            roots: vec![NONE; heaps].into_boxed_slice(),
            nodes: vec![free; nodes].into_boxed_slice(),
        }
    }

    /// The heap's smallest node and its key.
    pub(crate) fn peek(&self, heap: u32) -> Option<(K, u32)> {
        let root = self.roots[heap as usize];
        (root != NONE).then(|| (self.nodes[root as usize].key, root))
    }

    /// Puts the node there, wherever it was before.
    pub(crate) fn set(&mut self, heap: u32, node: u32, key: K) {
        self.remove(node);
        self.nodes[node as usize] = Node { key, heap, child: NONE, next: NONE, previous: NONE };
        self.roots[heap as usize] = self.link(self.roots[heap as usize], node);
    }

    /// Takes the node out; false if it was in no heap.
    pub(crate) fn remove(&mut self, node: u32) -> bool {
        let Node { heap, child, .. } = self.nodes[node as usize];
        if heap == NONE {
            return false;
        }
        let root = self.roots[heap as usize];
        let below = self.merge_siblings(child);
        self.roots[heap as usize] = if root == node {
            below
        } else {
            self.cut(node);
            self.link(root, below)
        };
        self.nodes[node as usize].heap = NONE;
        true
    }

    fn precedes(&self, a: u32, b: u32) -> bool {
        (self.nodes[a as usize].key, a) < (self.nodes[b as usize].key, b)
    }

    /// Makes one heap of two roots; returns its root. What a root has as its siblings means nothing.
    fn link(&mut self, a: u32, b: u32) -> u32 {
        if a == NONE || b == NONE {
            return if a == NONE { b } else { a };
        }
        let (parent, child) = if self.precedes(a, b) { (a, b) } else { (b, a) };
        let former = self.nodes[parent as usize].child;
        if former != NONE {
            self.nodes[former as usize].previous = child;
        }
        self.nodes[child as usize].next = former;
        self.nodes[child as usize].previous = parent;
        self.nodes[parent as usize].child = child;
        parent
    }

    /// Takes a node that is no root away from its parent and siblings.
    fn cut(&mut self, node: u32) {
        let Node { next, previous, .. } = self.nodes[node as usize];
        let before = &mut self.nodes[previous as usize];
        if before.child == node {
            before.child = next;
        } else {
            before.next = next;
        }
        if next != NONE {
            self.nodes[next as usize].previous = previous;
        }
    }

    /// Takes siblings in pairs from the first on, and then the pairs from the last on; returns the root of them all.
    fn merge_siblings(&mut self, first: u32) -> u32 {
        let (mut rest, mut pairs) = (first, NONE);
        while rest != NONE {
            let second = self.nodes[rest as usize].next;
            let after = if second == NONE { NONE } else { self.nodes[second as usize].next };
            let pair = self.link(rest, second);
            self.nodes[pair as usize].next = pairs;
            (rest, pairs) = (after, pair);
        }
        let mut root = NONE;
        while pairs != NONE {
            let next = self.nodes[pairs as usize].next;
            root = self.link(root, pairs);
            pairs = next;
        }
        root
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    #[derive(Clone, Debug)]
    enum Op {
        Set(u32, u32, u8),
        Remove(u32),
        Pop(u32),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0..3u32, 0..20u32, 0..16u8).prop_map(|(heap, node, key)| Op::Set(heap, node, key)),
            2 => (0..20u32).prop_map(Op::Remove),
            2 => (0..3u32).prop_map(Op::Pop),
        ]
    }

    proptest! {
        #[test]
        fn it_is_several_ordered_sets(ops in prop::collection::vec(op(), 0..200)) {
            let mut heaps = LinkedHeaps::new(3, 20);
            let mut sets: Vec<BTreeSet<(u8, u32)>> = vec![BTreeSet::new(); 3];
            for op in ops {
                match op {
                    Op::Set(heap, node, key) => {
                        sets.iter_mut().for_each(|set| set.retain(|&(_, other)| other != node));
                        sets[heap as usize].insert((key, node));
                        heaps.set(heap, node, key);
                    }
                    Op::Remove(node) => {
                        let before: usize = sets.iter().map(BTreeSet::len).sum();
                        sets.iter_mut().for_each(|set| set.retain(|&(_, other)| other != node));
                        let after: usize = sets.iter().map(BTreeSet::len).sum();
                        prop_assert_eq!(heaps.remove(node), after < before);
                    }
                    Op::Pop(heap) => {
                        let first = sets[heap as usize].pop_first();
                        prop_assert_eq!(heaps.peek(heap), first);
                        first.into_iter().for_each(|(_, node)| assert!(heaps.remove(node)));
                    }
                }
                for (heap, set) in (0..).zip(&sets) {
                    prop_assert_eq!(heaps.peek(heap), set.first().copied());
                }
            }
        }
    }
}

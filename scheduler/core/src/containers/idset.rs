//! A set of dense ids whose smallest member is found at once, however many there are.

use alloc::boxed::Box;
use alloc::vec;
use core::iter;

/// Bits of a word.
const WORD: usize = 64;

/// Ids below `capacity`: one bit each, and one bit for each word of them that is not empty.
#[derive(Clone, Debug)]
pub(crate) struct IdSet {
    members: Box<[u64]>,
    occupied: Box<[u64]>,
    len: u32,
}

impl IdSet {
    /// An empty set for the ids `0..capacity`.
    pub(crate) fn new(capacity: usize) -> Self {
        let words = capacity.div_ceil(WORD);
        Self {
            members: vec![0; words].into_boxed_slice(),
            occupied: vec![0; words.div_ceil(WORD)].into_boxed_slice(),
            len: 0,
        }
    }

    /// Puts the id in.
    pub(crate) fn insert(&mut self, id: u32) {
        let (word, bit) = place(id as usize);
        self.len += u32::from(self.members[word] & bit == 0);
        self.members[word] |= bit;
        let (summary, bit) = place(word);
        self.occupied[summary] |= bit;
    }

    /// Takes the id out, if it is there.
    pub(crate) fn remove(&mut self, id: u32) {
        let (word, bit) = place(id as usize);
        self.len -= u32::from(self.members[word] & bit != 0);
        self.members[word] &= !bit;
        if self.members[word] == 0 {
            let (summary, bit) = place(word);
            self.occupied[summary] &= !bit;
        }
    }

    /// Whether the id is in.
    pub(crate) fn contains(&self, id: u32) -> bool {
        let (word, bit) = place(id as usize);
        self.members[word] & bit != 0
    }

    /// How many members it has.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// The smallest member.
    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        let summary = self.occupied.iter().position(|&bits| bits != 0)?;
        let word = summary * WORD + self.occupied[summary].trailing_zeros() as usize;
        Some((word * WORD) as u32 + self.members[word].trailing_zeros())
    }

    /// The smallest member above the id.
    pub(crate) fn above(&self, id: u32) -> Option<u32> {
        let word = next_bit(&self.members[..], id as usize, id as usize / WORD + 1);
        let beyond = || next_bit(&self.occupied, id as usize / WORD, usize::MAX);
        let first_of = |word: usize| word * WORD + self.members[word].trailing_zeros() as usize;
        word.or_else(|| beyond().map(first_of)).map(|id| id as u32)
    }

    /// The members, the smallest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        iter::successors(self.first(), |&id| self.above(id))
    }
}

/// The first bit that is set after the `at`-th, in the words below `end`.
fn next_bit(words: &[u64], at: usize, end: usize) -> Option<usize> {
    let from = at + 1;
    let below = |word: usize| if word == from / WORD { (1 << (from % WORD)) - 1 } else { 0 };
    let mut words =
        (from / WORD..words.len().min(end)).map(|word| (word, words[word] & !below(word)));
    let (word, bits) = words.find(|&(_, bits)| bits != 0)?;
    Some(word * WORD + bits.trailing_zeros() as usize)
}

/// Word and bit of the `at`-th bit.
fn place(at: usize) -> (usize, u64) {
    (at / WORD, 1 << (at % WORD))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// More than a word of words.
    const IDS: u32 = 5_000;

    proptest! {
        #[test]
        fn it_agrees_with_a_tree(ops in prop::collection::vec((any::<bool>(), 0..IDS), 0..200)) {
            let (mut set, mut naive) = (IdSet::new(IDS as usize), BTreeSet::new());
            for (insert, id) in ops {
                if insert {
                    set.insert(id);
                    naive.insert(id);
                } else {
                    // Mostly ids that are there, else the set would only grow.
                    let id = naive.range(id..).next().copied().unwrap_or(id);
                    set.remove(id);
                    naive.remove(&id);
                }
                prop_assert_eq!(set.first(), naive.first().copied());
                for near in [id, id.saturating_sub(id % 70 + 1), 0, IDS - 1] {
                    prop_assert_eq!(set.above(near), naive.range(near + 1..).next().copied());
                }
            }
        }
    }
}

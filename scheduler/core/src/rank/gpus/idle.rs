//! The idle slots of a sub-cluster, in the order in which batches get them.

use crate::containers::idset::IdSet;

/// Why an idle slot comes before or after others. Those that come first come first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rank {
    /// How fast it is has yet to be seen: where every batch finds the same slot idle, nothing shows that this one is slow.
    Untried,
    Usual,
    Slow,
    /// Its last batch should have ended: it has something to execute.
    Overdue,
}

/// Ranks that a slot may have.
const RANKS: usize = 4;

/// See the module documentation.
#[derive(Clone, Debug)]
pub(super) struct IdleSlots {
    by_rank: [IdSet; RANKS],
}

impl IdleSlots {
    pub(super) fn new(gpus: usize) -> Self {
        Self { by_rank: core::array::from_fn(|_| IdSet::new(gpus)) }
    }

    pub(super) fn insert(&mut self, rank: Rank, id: u32) {
        self.by_rank[rank as usize].insert(id);
    }

    /// Takes the slot out, if it is there.
    #[inline]
    pub(super) fn remove(&mut self, id: u32) {
        let occupied = self.by_rank.iter_mut().filter(|set| set.len() > 0);
        occupied.for_each(|set| set.remove(id));
    }

    /// The first of all: of those of the same rank, the lowest-numbered.
    #[inline]
    pub(super) fn first(&self) -> Option<u32> {
        self.by_rank.iter().find(|set| set.len() > 0)?.first()
    }

    /// The first of those that are overdue.
    pub(super) fn first_overdue(&self) -> Option<u32> {
        self.by_rank[Rank::Overdue as usize].first()
    }

    /// The first of those that are slow.
    pub(super) fn first_slow(&self) -> Option<u32> {
        self.by_rank[Rank::Slow as usize].first()
    }

    /// In order, without those that are slow or overdue.
    pub(super) fn that_keep_pace(&self) -> impl Iterator<Item = u32> {
        let [untried, usual, ..] = &self.by_rank;
        untried.iter().chain(usual.iter())
    }

    /// Slots with nothing to execute.
    pub(super) fn idle(&self) -> u32 {
        self.all() - self.by_rank[Rank::Overdue as usize].len()
    }

    /// All slots that are free by now.
    pub(super) fn all(&self) -> u32 {
        self.by_rank.iter().map(IdSet::len).sum()
    }
}

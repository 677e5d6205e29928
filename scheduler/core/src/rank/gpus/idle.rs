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
    /// Ranks of which there are any: bit r for rank r.
    occupied: u8,
}

impl IdleSlots {
    pub(super) fn new(gpus: usize) -> Self {
        Self { by_rank: core::array::from_fn(|_| IdSet::new(gpus)), occupied: 0 }
    }

    pub(super) fn insert(&mut self, rank: Rank, id: u32) {
        self.by_rank[rank as usize].insert(id);
        self.occupied |= 1 << rank as u8;
    }

    /// Takes the slot out, if it is there.
    #[inline]
    pub(super) fn remove(&mut self, id: u32) {
        let mut occupied = self.occupied;
        while occupied > 0 {
            let rank = occupied.trailing_zeros();
            let set = &mut self.by_rank[rank as usize];
            set.remove(id);
            self.occupied &= !(u8::from(set.len() == 0) << rank);
            occupied &= occupied - 1;
        }
    }

    /// The first of all: of those of the same rank, the lowest-numbered.
    #[inline]
    pub(super) fn first(&self) -> Option<u32> {
        self.by_rank.get(self.occupied.trailing_zeros() as usize)?.first()
    }

    /// The first of those that are overdue.
    pub(super) fn first_overdue(&self) -> Option<u32> {
        self.by_rank[Rank::Overdue as usize].first()
    }

    /// The first of those that are slow.
    #[inline]
    pub(super) fn first_slow(&self) -> Option<u32> {
        let is_any = self.occupied & 1 << Rank::Slow as u8 > 0;
        if is_any { self.by_rank[Rank::Slow as usize].first() } else { None }
    }

    /// In order, without those that are slow or overdue.
    pub(super) fn that_keep_pace(&self) -> impl Iterator<Item = u32> {
        let [untried, usual, ..] = &self.by_rank;
        untried.iter().chain(usual.iter())
    }

    /// Slots with nothing to execute.
    pub(super) fn idle(&self) -> u32 {
        let [untried, usual, slow, _] = &self.by_rank;
        untried.len() + usual.len() + slow.len()
    }

    /// All slots that are free by now.
    pub(super) fn all(&self) -> u32 {
        self.by_rank.iter().map(IdSet::len).sum()
    }
}

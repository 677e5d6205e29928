//! The idle slots of a sub-cluster, in the order in which batches get them.

use crate::containers::idset::IdSet;

/// Why an idle slot comes before or after others. Those that come first come first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Preference {
    /// How fast it is has yet to be seen: where every batch finds the same slot idle, nothing shows that this one is slow.
    Untried,
    Usual,
    Slow,
    /// Its last batch should have ended: it has something to execute.
    Overdue,
}

/// How many there are.
const PREFERENCES: usize = 4;

/// See the module documentation.
#[derive(Clone, Debug)]
pub(super) struct IdleSlots {
    by_preference: [IdSet; PREFERENCES],
}

impl IdleSlots {
    pub(super) fn new(gpus: usize) -> Self {
        Self { by_preference: core::array::from_fn(|_| IdSet::new(gpus)) }
    }

    pub(super) fn insert(&mut self, preference: Preference, id: u32) {
        self.by_preference[preference as usize].insert(id);
    }

    /// Takes the slot out, if it is there.
    #[inline]
    pub(super) fn remove(&mut self, id: u32) {
        let occupied = self.by_preference.iter_mut().filter(|set| set.len() > 0);
        occupied.for_each(|set| set.remove(id));
    }

    pub(super) fn contains(&self, id: u32) -> bool {
        self.by_preference.iter().any(|set| set.contains(id))
    }

    /// The first of all: of those of the same preference, the lowest-numbered.
    #[inline]
    pub(super) fn first(&self) -> Option<u32> {
        self.by_preference.iter().find(|set| set.len() > 0)?.first()
    }

    /// The first of those that are overdue.
    pub(super) fn first_overdue(&self) -> Option<u32> {
        self.by_preference[Preference::Overdue as usize].first()
    }

    /// The first of those that are slow.
    #[inline]
    pub(super) fn first_slow(&self) -> Option<u32> {
        let slow = &self.by_preference[Preference::Slow as usize];
        if slow.len() > 0 { slow.first() } else { None }
    }

    /// In order, without those that are slow or overdue.
    pub(super) fn that_keep_pace(&self) -> impl Iterator<Item = u32> {
        let [untried, usual, ..] = &self.by_preference;
        untried.iter().chain(usual.iter())
    }

    /// Slots with nothing to execute.
    pub(super) fn idle(&self) -> u32 {
        let [untried, usual, slow, _] = &self.by_preference;
        untried.len() + usual.len() + slow.len()
    }

    /// All slots that are free by now.
    pub(super) fn all(&self) -> u32 {
        self.by_preference.iter().map(IdSet::len).sum()
    }
}

//! The sets of slabs that peers may read and answer into, found by the numbers of their slots.

use std::io;
use std::sync::Arc;

use baton_types::TaskId;

use super::{OutputMut, ReadLease, ReadRefusal, SlabSet};

/// Sets whose slots are numbered apart.
#[derive(Default, Debug)]
pub(crate) struct Exposed {
    /// With their first slots, ascending.
    sets: Vec<(u32, Arc<SlabSet>)>,
    /// There is, or was, a set: this side is a frontend.
    is_frontend: bool,
}

impl Exposed {
    /// Adds a set.
    ///
    /// # Errors
    /// One of its slots is another set's.
    pub(crate) fn add(&mut self, set: &Arc<SlabSet>) -> io::Result<()> {
        let slots = set.slots();
        let at = self.sets.partition_point(|(first, _)| *first < slots.start);
        let before = at.checked_sub(1).map_or(0, |before| self.sets[before].1.slots().end);
        let after = self.sets.get(at).map_or(u32::MAX, |(first, _)| *first);
        if slots.start < before || after < slots.end {
            let problem = format!("slots {slots:?} are exposed already; withdraw them first");
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, problem));
        }
        self.is_frontend = true;
        self.sets.insert(at, (slots.start, Arc::clone(set)));
        Ok(())
    }

    /// Takes this very set out. False if it is not here.
    pub(crate) fn remove(&mut self, set: &Arc<SlabSet>) -> bool {
        let at = self.sets.iter().position(|(_, other)| Arc::ptr_eq(other, set));
        at.map(|at| self.sets.remove(at)).is_some()
    }

    /// There is, or was, something to read.
    pub(crate) fn is_frontend(&self) -> bool {
        self.is_frontend
    }

    /// Every set.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<SlabSet>> {
        self.sets.iter().map(|(_, set)| set)
    }

    /// The set that may have this slot: it has the last first slot up to there.
    pub(crate) fn of(&self, slot: u32) -> Option<&Arc<SlabSet>> {
        let at = self.sets.partition_point(|(first, _)| *first <= slot).checked_sub(1)?;
        Some(&self.sets[at].1)
    }

    /// As [`SlabSet::read`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn read(&self, task: TaskId, len: u32) -> Result<ReadLease, ReadRefusal> {
        self.of(task.slot()).ok_or(ReadRefusal::NoSuchSlot)?.read(task, len)
    }

    /// As [`SlabSet::landing`].
    pub(crate) fn landing(&self, task: TaskId) -> Option<OutputMut> {
        self.of(task.slot())?.landing(task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backing, SlabSpec};
    use baton_types::ModelId;

    fn set(first_slot: u32, slots: u32) -> Arc<SlabSet> {
        let spec = SlabSpec { model: ModelId(0), slots, input_bytes: 8, output_bytes: 8 };
        SlabSet::new_at(first_slot, &[spec], 0, Backing::Private).unwrap()
    }

    #[test]
    fn a_slot_leads_to_its_set_in_whatever_order_they_came() {
        let mut exposed = Exposed::default();
        assert!(exposed.of(0).is_none() && !exposed.is_frontend());
        let [low, high, middle] = [set(2, 4), set(20, 4), set(6, 4)];
        for set in [&low, &high, &middle] {
            exposed.add(set).unwrap();
        }
        let of = |exposed: &Exposed, slot| exposed.of(slot).map(|set| set.slots().start);
        assert_eq!(
            [1, 2, 5, 6, 9, 23].map(|slot| of(&exposed, slot)),
            [None, Some(2), Some(2), Some(6), Some(6), Some(20)]
        );
        let task = middle.acquire(ModelId(0)).unwrap().submit();
        assert!(exposed.read(task, 8).is_ok() && exposed.landing(task).is_some());
        let beyond = TaskId::new(task.frontend(), 11, 0);
        assert_eq!(exposed.read(beyond, 8).unwrap_err(), ReadRefusal::NoSuchSlot);
        assert!(exposed.remove(&middle) && !exposed.remove(&middle));
        assert_eq!(exposed.read(task, 8).unwrap_err(), ReadRefusal::NoSuchSlot);
        assert!(exposed.landing(task).is_none());
        assert_eq!(exposed.iter().count(), 2);
    }

    #[test]
    fn no_slot_is_in_two_sets() {
        let mut exposed = Exposed::default();
        let first = set(4, 4);
        exposed.add(&first).unwrap();
        for (first_slot, slots) in [(0, 5), (4, 4), (5, 1), (7, 3), (0, 20)] {
            assert!(exposed.add(&set(first_slot, slots)).is_err(), "{first_slot}, {slots}");
        }
        exposed.add(&set(0, 4)).unwrap();
        exposed.add(&set(8, 4)).unwrap();
        assert!(exposed.remove(&first));
        exposed.add(&set(4, 4)).unwrap();
    }
}

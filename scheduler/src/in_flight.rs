//! The batches of one ModelThread that backends have and have not reported yet.
//!
//! Until a batch is reported done, the thread may have to take its tasks back; so it remembers
//! them. Bounded by the GPU slots' pipelines; the tasks' buffers are reused.

use baton_core::{BackendId, BatchShape, Gpu, ModelId, Nanos, Request, Slowdown};

/// What a batch was planned for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Planned {
    /// The model, which may have moved to another thread meanwhile.
    pub model: ModelId,
    /// As it was sealed.
    pub shape: BatchShape,
    /// The slot that runs it.
    pub gpu: Gpu,
    /// Of the slot, as the batch was planned.
    pub slowdown: Slowdown,
    /// When its inputs should be there, if that was known.
    pub fetched_at: Option<Nanos>,
}

impl Planned {
    /// By how much its inputs, which were there at `at`, were later than planned.
    pub(crate) fn fetched_late(&self, at: Nanos) -> Nanos {
        self.fetched_at.map_or(Nanos::ZERO, |planned| at - planned)
    }
}

/// A batch that was sent to a backend.
#[derive(Debug)]
pub(crate) struct SentBatch {
    /// What it was planned for.
    pub planned: Planned,
    /// The backend that has the slot.
    pub backend: BackendId,
    /// Its tasks, with the deadlines the scheduler plans by.
    pub requests: Vec<Request>,
}

#[derive(Debug)]
struct Entry {
    /// How often the entry was used; part of the batch id, so that an old report is recognised.
    uses: u32,
    live: bool,
    batch: SentBatch,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct InFlight {
    entries: Vec<Entry>,
    free: Vec<u32>,
    limit: usize,
    /// Tasks an entry has room for from the start.
    batch_max: usize,
}

impl InFlight {
    /// For at most `limit` batches at once, of `batch_max` tasks at most.
    pub(crate) fn new(limit: usize, batch_max: usize) -> Self {
        Self { entries: Vec::new(), free: Vec::with_capacity(limit), limit, batch_max }
    }

    /// Makes room for this number of batches in all, so that remembering them allocates nothing.
    pub(crate) fn reserve(&mut self, batches: usize) {
        while self.entries.len() < batches {
            let Some(at) = self.grow() else { return };
            self.free.push(at);
        }
    }

    /// Batches may have up to `batch_max` tasks from now on.
    pub(crate) fn reserve_batches(&mut self, batch_max: usize) {
        self.batch_max = self.batch_max.max(batch_max);
        for Entry { batch, .. } in &mut self.entries {
            let room = self.batch_max.saturating_sub(batch.requests.len());
            batch.requests.reserve(room);
        }
    }

    /// Remembers a batch and names it; `None` if the limit is reached.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        planned: Planned,
        backend: BackendId,
        requests: impl Iterator<Item = Request>,
    ) -> Option<u64> {
        let at = self.free.pop().or_else(|| self.grow())?;
        let entry = &mut self.entries[at as usize];
        debug_assert!(!entry.live, "a free entry has no batch");
        entry.live = true;
        entry.batch.planned = planned;
        entry.batch.backend = backend;
        entry.batch.requests.clear();
        entry.batch.requests.extend(requests);
        Some(id(at, entry.uses))
    }

    /// The batch with this name, if it is outstanding.
    pub(crate) fn get(&self, batch: u64) -> Option<&SentBatch> {
        let entry = self.entries.get((batch >> 32) as usize)?;
        (entry.live && entry.uses == batch as u32).then_some(&entry.batch)
    }

    /// Forgets the batch and copies its tasks to `requests`; returns what it was planned for.
    #[inline]
    pub(crate) fn remove(&mut self, batch: u64, requests: &mut Vec<Request>) -> Option<Planned> {
        self.get(batch)?;
        let at = (batch >> 32) as u32;
        let entry = &mut self.entries[at as usize];
        entry.live = false;
        entry.uses = entry.uses.wrapping_add(1);
        self.free.push(at);
        requests.clear();
        requests.extend_from_slice(&entry.batch.requests);
        Some(entry.batch.planned)
    }

    /// A batch this backend has, if there is any.
    pub(crate) fn any_of(&self, backend: BackendId) -> Option<u64> {
        let of_backend = |entry: &Entry| entry.live && entry.batch.backend == backend;
        let at = self.entries.iter().position(of_backend)?;
        Some(id(at as u32, self.entries[at].uses))
    }

    /// Outstanding batches.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    fn grow(&mut self) -> Option<u32> {
        (self.entries.len() < self.limit).then(|| {
            let batch = SentBatch::unused(self.batch_max);
            self.entries.push(Entry { uses: 0, live: false, batch });
            self.entries.len() as u32 - 1
        })
    }
}

impl SentBatch {
    fn unused(batch_max: usize) -> Self {
        let gpu = Gpu { id: baton_core::GpuId(0), life: 0 };
        let (model, shape) = (ModelId(0), BatchShape::of(1));
        let slowdown = Slowdown::NONE;
        let planned = Planned { model, shape, gpu, slowdown, fetched_at: None };
        Self { planned, backend: BackendId(0), requests: Vec::with_capacity(batch_max) }
    }
}

fn id(at: u32, uses: u32) -> u64 {
    (u64::from(at) << 32) | u64::from(uses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_core::{GpuId, TaskId};

    const BACKEND: BackendId = BackendId(7);
    const GPU: Gpu = Gpu { id: GpuId(3), life: 1 };
    const PLANNED: Planned = Planned {
        model: ModelId(4),
        shape: BatchShape::of(2),
        gpu: GPU,
        slowdown: Slowdown::NONE,
        fetched_at: None,
    };

    fn one(task: u64) -> impl Iterator<Item = Request> {
        std::iter::once(Request::new(TaskId(task), Nanos(task)))
    }

    #[test]
    fn there_is_room_for_the_largest_batch_wherever_it_is_remembered() {
        let mut sent = InFlight::new(2, 1);
        sent.reserve(1);
        sent.reserve_batches(9);
        sent.reserve_batches(3);
        sent.reserve(2);
        let room = sent.entries.iter().map(|entry| entry.batch.requests.capacity());
        assert!(room.clone().count() == 2 && room.min() >= Some(9));
    }

    #[test]
    fn inputs_are_late_by_what_they_come_behind_the_plan() {
        let planned = Planned { fetched_at: Some(Nanos(5)), ..PLANNED };
        assert_eq!([3, 5, 7].map(|at| planned.fetched_late(Nanos(at)).0), [0, 0, 2]);
        assert_eq!(PLANNED.fetched_late(Nanos(7)), Nanos::ZERO, "it was not planned");
    }

    #[test]
    fn a_name_is_good_for_one_report() {
        let (mut sent, mut tasks) = (InFlight::new(2, 1), Vec::new());
        let first = sent.insert(PLANNED, BACKEND, one(1)).unwrap();
        assert_eq!(sent.remove(first, &mut tasks), Some(PLANNED));
        assert_eq!(tasks[0].task, TaskId(1));
        let second = sent.insert(PLANNED, BACKEND, one(2)).unwrap();
        assert_ne!(first, second, "the entry is reused, its name is not");
        assert!(sent.remove(first, &mut tasks).is_none(), "an old report is recognised");
        assert_eq!(sent.remove(second, &mut tasks), Some(PLANNED));
    }

    #[test]
    fn room_is_made_for_as_many_batches_as_asked_for_up_to_the_limit() {
        let mut sent = InFlight::new(3, 1);
        for (asked, made) in [(2, 2), (1, 2), (9, 3)] {
            sent.reserve(asked);
            assert_eq!((sent.entries.len(), sent.len()), (made, 0));
        }
    }

    #[test]
    fn the_limit_holds_and_a_backends_batches_are_found() {
        let (mut sent, mut tasks) = (InFlight::new(2, 1), Vec::new());
        let first = sent.insert(PLANNED, BACKEND, one(1)).unwrap();
        sent.insert(PLANNED, BackendId(8), one(2)).unwrap();
        assert_eq!(sent.insert(PLANNED, BACKEND, one(3)), None);
        assert_eq!((sent.any_of(BACKEND), sent.len()), (Some(first), 2));
        sent.remove(first, &mut tasks);
        assert_eq!((sent.any_of(BACKEND), sent.len()), (None, 1));
    }

    proptest::proptest! {
        /// Against a map of what is outstanding. A backend that is confused may report any name.
        #[test]
        fn only_names_of_outstanding_batches_are_known(
            steps in proptest::collection::vec((0..4_u8, 0..5_u64, 0..4_u64), 1..60),
        ) {
            let (mut sent, mut tasks) = (InFlight::new(4, 1), Vec::new());
            let mut outstanding = std::collections::BTreeMap::new();
            for (task, (what, at, uses)) in (0..).zip(steps) {
                let name = at << 32 | uses;
                match what {
                    0 => sent.reserve(at as usize),
                    1 => {
                        let expected = outstanding.remove(&name);
                        let found = sent.remove(name, &mut tasks).map(|_| tasks[0].task.0);
                        proptest::prop_assert_eq!(found, expected);
                    }
                    _ => match sent.insert(PLANNED, BACKEND, one(task)) {
                        Some(name) => proptest::prop_assert!(outstanding.insert(name, task).is_none()),
                        None => proptest::prop_assert_eq!(outstanding.len(), 4),
                    },
                }
                proptest::prop_assert_eq!(sent.len(), outstanding.len());
                for name in (0..5).flat_map(|at| (0..5).map(move |uses| at << 32 | uses)) {
                    let found = sent.get(name).map(|batch| batch.requests[0].task.0);
                    proptest::prop_assert_eq!(found, outstanding.get(&name).copied());
                }
            }
        }
    }

    #[test]
    fn arbitrary_names_are_harmless() {
        let mut sent = InFlight::new(1, 1);
        sent.insert(PLANNED, BACKEND, one(1)).unwrap();
        for name in [u64::MAX, 1 << 32, 1, (1 << 32) | 5] {
            assert!(sent.get(name).is_none());
        }
    }
}

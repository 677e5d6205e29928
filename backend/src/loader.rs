//! The LOADs of one GPU slot, and the pages of its memory for weights (Clockwork §5.2). Pure.
//!
//! In: LOADs with their victims, and how copies went. Out: what to copy next, and the reports that are due. A victim gives
//! its pages back when the LOAD arrives, and the model takes its own: UNLOAD and LOAD are one step. One model is copied at a
//! time, beside the batches.

use std::collections::{BTreeMap, VecDeque};

use baton_topo::WeightsCacheSpec;
use baton_types::{ModelId, Nanos};

/// LOADs that may wait while another copies. The scheduler sends one ahead.
pub(crate) const LOADS_MAX: usize = 4;

/// A copy hangs if it takes so much longer than ten times what it should: making a session of the largest ONNX file is a matter
/// of seconds.
const HANGS_AFTER: Nanos = Nanos::from_millis(60_000);

/// A LOAD that the scheduler waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LoadAction {
    /// Names it in the report.
    pub(crate) id: u64,
    /// The ModelThread that sent it.
    pub(crate) thread: u32,
    /// This process's number of the model.
    pub(crate) model: ModelId,
    /// It does not begin after. On this process's clock.
    pub(crate) latest: Nanos,
    /// How long the copy should take.
    pub(crate) expected: Nanos,
}

/// Why a LOAD comes to nothing at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotLoaded {
    /// There are too few free pages.
    NoPages,
    /// The slot has the model already, or too many LOADs wait.
    Unexpected,
}

#[derive(Clone, Copy, Debug)]
struct Copying {
    load: LoadAction,
    started: Nanos,
    /// The scheduler that sent it is lost.
    is_orphan: bool,
}

impl Copying {
    fn hangs_at(&self) -> Nanos {
        self.started + HANGS_AFTER + self.load.expected.times(10)
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Loader {
    page_bytes: u64,
    free: u32,
    /// Pages of each model that the slot has or is to get.
    taken: BTreeMap<ModelId, u32>,
    waiting: VecDeque<LoadAction>,
    copying: Option<Copying>,
}

impl Loader {
    /// All pages are free.
    pub(crate) fn new(cache: WeightsCacheSpec) -> Self {
        Self {
            page_bytes: cache.page_bytes,
            free: cache.pages,
            taken: BTreeMap::new(),
            waiting: VecDeque::with_capacity(LOADS_MAX),
            copying: None,
        }
    }

    /// Bytes of a page.
    pub(crate) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Pages that no model takes.
    pub(crate) fn free_pages(&self) -> u32 {
        self.free
    }

    /// Pages of a copy that no scheduler waits for: they are free once it is over.
    pub(crate) fn returning_pages(&self) -> u32 {
        let orphan = self.copying.filter(|copying| copying.is_orphan);
        orphan.and_then(|orphan| self.taken.get(&orphan.load.model)).copied().unwrap_or(0)
    }

    /// Models that the slot has, with their pages: what was copied, and what will be copied for no scheduler any more is not
    /// among them.
    pub(crate) fn residents(&self) -> impl Iterator<Item = (ModelId, u32)> {
        let copying = self.copying.map(|copying| copying.load.model);
        let waits = |model| self.waiting.iter().any(|load| load.model == model);
        let taken = self.taken.iter().map(|(&model, &pages)| (model, pages));
        taken.filter(move |&(model, _)| Some(model) != copying && !waits(model))
    }

    /// A victim leaves: its pages are free. False if the slot does not have it, or its LOAD is not over.
    pub(crate) fn evict(&mut self, model: ModelId) -> bool {
        let is_there = self.residents().any(|(resident, _)| resident == model);
        is_there && self.give_back(model)
    }

    fn give_back(&mut self, model: ModelId) -> bool {
        let Some(pages) = self.taken.remove(&model) else { return false };
        self.free += pages;
        true
    }

    /// A LOAD takes `pages` pages and waits for its turn.
    ///
    /// # Errors
    /// It will never be loaded.
    pub(crate) fn admit(&mut self, load: LoadAction, pages: u32) -> Result<(), NotLoaded> {
        if self.waiting.len() >= LOADS_MAX || self.taken.contains_key(&load.model) {
            return Err(NotLoaded::Unexpected);
        }
        self.free = self.free.checked_sub(pages).ok_or(NotLoaded::NoPages)?;
        self.taken.insert(load.model, pages);
        self.waiting.push_back(load);
        Ok(())
    }

    /// A LOAD that did not begin in time. Its pages are free.
    pub(crate) fn pop_late(&mut self, now: Nanos) -> Option<LoadAction> {
        let at = self.waiting.iter().position(|load| now > load.latest)?;
        let load = self.waiting.remove(at)?;
        self.give_back(load.model);
        Some(load)
    }

    /// The next model to copy, if none is being copied. It is being copied from now on.
    pub(crate) fn begin(&mut self, now: Nanos) -> Option<ModelId> {
        if self.copying.is_some() {
            return None;
        }
        let load = self.waiting.pop_front()?;
        self.copying = Some(Copying { load, started: now, is_orphan: false });
        Some(load.model)
    }

    /// True while a model is being copied.
    pub(crate) fn is_copying(&self) -> bool {
        self.copying.is_some()
    }

    /// True if the copy will not end.
    pub(crate) fn hangs(&self, now: Nanos) -> bool {
        self.copying.is_some_and(|copying| now >= copying.hangs_at())
    }

    /// The copy is over: of which model, and with when it began the LOAD that is to be reported. Unless it `succeeded` and is
    /// still wanted, the pages are free.
    pub(crate) fn finish(
        &mut self,
        succeeded: bool,
    ) -> Option<(ModelId, Option<(LoadAction, Nanos)>)> {
        let Copying { load, started, is_orphan } = self.copying.take()?;
        if !succeeded || is_orphan {
            self.give_back(load.model);
        }
        Some((load.model, (!is_orphan).then_some((load, started))))
    }

    /// When the first LOAD that waits is late, or the copy hangs.
    pub(crate) fn next_timer(&self) -> Option<Nanos> {
        let late = self.waiting.iter().map(|load| load.latest + Nanos(1));
        late.chain(self.copying.map(|copying| copying.hangs_at())).min()
    }

    /// The scheduler is lost: no LOAD is wanted any more. One that is being copied keeps its pages until it is over.
    pub(crate) fn abandon(&mut self) {
        while let Some(load) = self.waiting.pop_front() {
            self.give_back(load.model);
        }
        self.copying.iter_mut().for_each(|copying| copying.is_orphan = true);
    }

    /// True while the slot copies the model.
    pub(crate) fn copies(&self, model: ModelId) -> bool {
        self.copying.is_some_and(|copying| copying.load.model == model)
    }

    /// The model was removed: nothing of it is wanted any more. Returns a LOAD that waited for its turn; one that is being copied
    /// keeps its pages until it is over, and is then given up.
    pub(crate) fn cancel(&mut self, model: ModelId) -> Option<LoadAction> {
        let copying = self.copying.iter_mut().find(|copying| copying.load.model == model);
        copying.into_iter().for_each(|copying| copying.is_orphan = true);
        let at = self.waiting.iter().position(|load| load.model == model)?;
        let load = self.waiting.remove(at)?;
        self.give_back(load.model);
        Some(load)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(id: u64, latest: u64) -> LoadAction {
        let (model, expected) = (ModelId(id as u32), Nanos(7));
        LoadAction { id, thread: 0, model, latest: Nanos(latest), expected }
    }

    fn loader(pages: u32) -> Loader {
        Loader::new(WeightsCacheSpec { pages, page_bytes: 1 << 20 })
    }

    fn residents(loader: &Loader) -> Vec<u32> {
        loader.residents().map(|(model, _)| model.0).collect()
    }

    #[test]
    fn one_model_is_copied_at_a_time_and_its_pages_are_taken_when_its_load_arrives() {
        let mut loader = loader(10);
        loader.admit(load(1, 100), 4).unwrap();
        loader.admit(load(2, 100), 5).unwrap();
        assert_eq!(loader.free_pages(), 1);
        assert_eq!(loader.begin(Nanos(10)), Some(ModelId(1)));
        assert_eq!(loader.begin(Nanos(11)), None, "one at a time");
        assert!(residents(&loader).is_empty(), "not before it is there");
        let (model, report) = loader.finish(true).unwrap();
        assert_eq!((model, report), (ModelId(1), Some((load(1, 100), Nanos(10)))));
        assert_eq!(loader.begin(Nanos(20)), Some(ModelId(2)));
        loader.finish(false).unwrap();
        assert_eq!((residents(&loader), loader.free_pages()), (vec![1], 6));
    }

    #[test]
    fn too_few_pages_the_same_model_and_a_full_queue_are_refused_and_take_nothing() {
        let mut loader = loader(10);
        loader.admit(load(1, 100), 8).unwrap();
        assert_eq!(loader.admit(load(2, 100), 3), Err(NotLoaded::NoPages));
        assert_eq!(loader.admit(load(1, 100), 1), Err(NotLoaded::Unexpected));
        assert_eq!(loader.free_pages(), 2);
        let mut full = Loader::new(WeightsCacheSpec { pages: 10, page_bytes: 1 });
        (0..LOADS_MAX as u64).for_each(|id| full.admit(load(id, 9), 1).unwrap());
        assert_eq!(full.admit(load(9, 9), 1), Err(NotLoaded::Unexpected));
        assert_eq!(full.free_pages(), 10 - LOADS_MAX as u32);
    }

    #[test]
    fn a_victim_gives_its_pages_back_at_once_and_what_is_being_loaded_is_none() {
        let mut loader = loader(10);
        loader.admit(load(1, 100), 8).unwrap();
        assert!(!loader.evict(ModelId(1)), "it waits");
        loader.begin(Nanos(0)).unwrap();
        assert!(!loader.evict(ModelId(1)), "it is being copied");
        loader.finish(true).unwrap();
        assert!(loader.evict(ModelId(1)));
        assert!(!loader.evict(ModelId(1)), "once");
        assert_eq!(loader.free_pages(), 10);
    }

    #[test]
    fn a_load_that_cannot_begin_in_its_window_is_late_and_its_pages_are_free() {
        let mut loader = loader(10);
        loader.admit(load(1, 500), 4).unwrap();
        loader.begin(Nanos(0)).unwrap();
        loader.admit(load(2, 100), 4).unwrap();
        assert_eq!(loader.pop_late(Nanos(100)), None, "it may begin at its latest");
        assert_eq!(loader.next_timer(), Some(Nanos(101)));
        assert_eq!(loader.pop_late(Nanos(101)), Some(load(2, 100)));
        assert_eq!(loader.free_pages(), 6);
    }

    #[test]
    fn a_model_that_is_removed_leaves_at_once_unless_it_is_being_copied() {
        let mut loader = loader(10);
        (1..=2).for_each(|id| loader.admit(load(id, 500), 3).unwrap());
        loader.begin(Nanos(0)).unwrap();
        assert_eq!(loader.cancel(ModelId(2)), Some(load(2, 500)), "it is owed a report");
        assert_eq!((loader.free_pages(), loader.cancel(ModelId(2))), (7, None));
        assert_eq!(loader.cancel(ModelId(1)), None);
        assert!(loader.copies(ModelId(1)) && !loader.copies(ModelId(2)));
        assert_eq!(loader.finish(true), Some((ModelId(1), None)));
        assert_eq!(loader.free_pages(), 10);
    }

    #[test]
    fn a_copy_hangs_after_a_minute_and_ten_times_what_it_should_take() {
        let mut loader = loader(10);
        loader.admit(load(1, 100), 4).unwrap();
        assert!(!loader.hangs(Nanos::MAX), "it has not begun");
        loader.begin(Nanos(5)).unwrap();
        let hangs_at = HANGS_AFTER + Nanos(75);
        assert_eq!(loader.next_timer(), Some(hangs_at));
        assert!(!loader.hangs(hangs_at - Nanos(1)) && loader.hangs(hangs_at));
        loader.finish(false).unwrap();
        assert!(!loader.hangs(hangs_at) && loader.next_timer().is_none());
    }

    #[test]
    fn what_a_lost_scheduler_wanted_is_not_reported_and_takes_no_pages_once_it_is_over() {
        let mut loader = loader(10);
        loader.admit(load(1, 500), 4).unwrap();
        loader.admit(load(2, 500), 4).unwrap();
        loader.begin(Nanos(0)).unwrap();
        assert_eq!(loader.returning_pages(), 0, "it is wanted");
        loader.abandon();
        assert_eq!((loader.free_pages(), loader.returning_pages()), (6, 4), "the copy goes on");
        assert_eq!(loader.finish(true), Some((ModelId(1), None)));
        assert_eq!((loader.free_pages(), loader.returning_pages()), (10, 0));
        assert!(residents(&loader).is_empty());
    }
}

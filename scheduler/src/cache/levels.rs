//! How caches fare, for those who ask: written by RankThread and ModelThreads as it happens, read by the ControlThread.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use baton_core::{GpuId, ModelId};
use crossbeam_channel::{Receiver, Sender, bounded};

use super::news::{Failure, LoadNews, NEWS_MAX};

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct CacheLevels {
    models: Box<[PerModel]>,
    /// By slot number: pages that no model takes.
    pages_free: Box<[AtomicU32]>,
    /// What happens to LOADs: from the RankThread to the ControlThread.
    news: (Sender<LoadNews>, Receiver<LoadNews>),
    /// News that found no room.
    news_lost: AtomicU64,
    /// LOADs that failed, by [`Failure`].
    failures: [AtomicU64; Failure::ALL.len()],
}

#[derive(Default, Debug)]
struct PerModel {
    copies: AtomicU32,
    cold: AtomicU64,
    cold_in_time: AtomicU64,
    failed: AtomicU64,
    /// One more than the number of the last [`Failure`].
    failure: AtomicU8,
}

/// What is known of a model.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct ModelLevels {
    /// Slots that hold it.
    pub(crate) copies: u32,
    /// Tasks that came while no slot held it.
    pub(crate) cold: u64,
    /// Of these, those whose batch ended in time.
    pub(crate) cold_in_time: u64,
    /// LOADs of it that failed.
    pub(crate) failed: u64,
    /// Why the last of these did.
    pub(crate) failure: Option<Failure>,
}

impl CacheLevels {
    pub(super) fn new(models: usize, slots: usize) -> Self {
        Self {
            models: (0..models).map(|_| PerModel::default()).collect(),
            pages_free: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            news: bounded(NEWS_MAX),
            news_lost: AtomicU64::new(0),
            failures: [const { AtomicU64::new(0) }; Failure::ALL.len()],
        }
    }

    pub(super) fn set_copies(&self, model: ModelId, copies: u32) {
        self.models[model.0 as usize].copies.store(copies, Ordering::Relaxed);
    }

    pub(super) fn set_pages_free(&self, slot: GpuId, pages: u32) {
        self.pages_free[slot.0 as usize].store(pages, Ordering::Relaxed);
    }

    /// A task came while no slot held its model.
    pub(crate) fn cold(&self, model: ModelId) {
        self.models[model.0 as usize].cold.fetch_add(1, Ordering::Relaxed);
    }

    /// Such tasks were executed in time.
    pub(crate) fn cold_in_time(&self, model: ModelId, tasks: u64) {
        self.models[model.0 as usize].cold_in_time.fetch_add(tasks, Ordering::Relaxed);
    }

    /// Something happened to a LOAD.
    pub(super) fn tell(&self, news: LoadNews) {
        if self.news.0.try_send(news).is_err() {
            self.news_lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The next that the ControlThread has not heard.
    pub(crate) fn next_news(&self) -> Option<LoadNews> {
        self.news.1.try_recv().ok()
    }

    /// News that the ControlThread will not hear.
    pub(crate) fn news_lost(&self) -> u64 {
        self.news_lost.load(Ordering::Relaxed)
    }

    /// A LOAD of the model failed.
    pub(super) fn failed(&self, model: ModelId, failure: Failure) {
        let of = &self.models[model.0 as usize];
        of.failed.fetch_add(1, Ordering::Relaxed);
        of.failure.store(failure as u8 + 1, Ordering::Relaxed);
        self.failures[failure as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// LOADs that failed for this reason.
    pub(crate) fn failures(&self, failure: Failure) -> u64 {
        self.failures[failure as usize].load(Ordering::Relaxed)
    }

    /// Another model has the number.
    pub(super) fn forget(&self, model: ModelId) {
        let of = &self.models[model.0 as usize];
        of.copies.store(0, Ordering::Relaxed);
        of.cold.store(0, Ordering::Relaxed);
        of.cold_in_time.store(0, Ordering::Relaxed);
        of.failed.store(0, Ordering::Relaxed);
        of.failure.store(0, Ordering::Relaxed);
    }

    /// Of one model.
    pub(crate) fn model(&self, model: ModelId) -> ModelLevels {
        let PerModel { copies, cold, cold_in_time, failed, failure } =
            &self.models[model.0 as usize];
        ModelLevels {
            copies: copies.load(Ordering::Relaxed),
            cold: cold.load(Ordering::Relaxed),
            cold_in_time: cold_in_time.load(Ordering::Relaxed),
            failed: failed.load(Ordering::Relaxed),
            failure: failure.load(Ordering::Relaxed).checked_sub(1).and_then(Failure::from_number),
        }
    }

    /// Pages of the slot that no model takes, as LoadState counts them.
    pub(crate) fn pages_free(&self, slot: GpuId) -> Option<u32> {
        Some(self.pages_free.get(slot.0 as usize)?.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_model_with_the_number_has_no_copies_no_failures_and_no_cold_tasks() {
        let (levels, [gone, other]) = (CacheLevels::new(2, 1), [ModelId(0), ModelId(1)]);
        for model in [gone, other] {
            levels.set_copies(model, 2);
            levels.failed(model, Failure::Hung);
            levels.cold(model);
            levels.cold_in_time(model, 1);
        }
        let before = levels.model(other);
        assert_eq!((before.cold, before.cold_in_time), (1, 1));
        assert_eq!((before.copies, before.failed, before.failure), (2, 1, Some(Failure::Hung)));
        levels.forget(gone);
        assert_eq!((levels.model(gone), levels.model(other)), (ModelLevels::default(), before));
        assert_eq!(levels.failures(Failure::Hung), 2, "the cluster has had them");
    }
}

//! How caches fare, for those who ask: written by RankThread and ModelThreads as it happens, read by the ControlThread.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use baton_core::{GpuId, ModelId};

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct CacheLevels {
    models: Box<[PerModel]>,
    /// By slot number: pages that no model takes.
    pages_free: Box<[AtomicU32]>,
}

#[derive(Default, Debug)]
struct PerModel {
    copies: AtomicU32,
    cold: AtomicU64,
    cold_in_time: AtomicU64,
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
}

impl CacheLevels {
    pub(super) fn new(models: usize, slots: usize) -> Self {
        Self {
            models: (0..models).map(|_| PerModel::default()).collect(),
            pages_free: (0..slots).map(|_| AtomicU32::new(0)).collect(),
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

    /// Of one model.
    pub(crate) fn model(&self, model: ModelId) -> ModelLevels {
        let PerModel { copies, cold, cold_in_time } = &self.models[model.0 as usize];
        ModelLevels {
            copies: copies.load(Ordering::Relaxed),
            cold: cold.load(Ordering::Relaxed),
            cold_in_time: cold_in_time.load(Ordering::Relaxed),
        }
    }

    /// Pages of the slot that no model takes, as LoadState counts them.
    pub(crate) fn pages_free(&self, slot: GpuId) -> Option<u32> {
        Some(self.pages_free.get(slot.0 as usize)?.load(Ordering::Relaxed))
    }
}

//! What the RankThread and a ModelThread tell each other of weights: off the path of tasks, and only where there are caches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::levels::CacheLevels;
use super::news::LoadEnd;
use baton_core::{Gpu, GpuId, ModelId, Nanos, Readiness};
use crossbeam_channel::{Receiver, Sender, bounded};

/// A LOAD for a backend.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LoadOrder {
    /// Names it in the report.
    pub(crate) name: u64,
    /// What to load.
    pub(crate) model: ModelId,
    /// Where.
    pub(crate) gpu: Gpu,
    /// It does not begin after.
    pub(crate) latest: Nanos,
    /// What leaves for it.
    pub(crate) victims: Box<[ModelId]>,
}

/// To a ModelThread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CacheOrder {
    /// Where the weights of a model are.
    Readiness(ModelId, Readiness),
    /// To be sent to the slot's backend.
    Load(LoadOrder),
}

/// To the RankThread: the one report of a LOAD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LoadReport {
    /// From the order.
    pub(crate) name: u64,
    /// Whose backend reports.
    pub(crate) slot: GpuId,
    /// How it went.
    pub(crate) end: LoadEnd,
}

/// How many tasks have come for each model. Counted by ModelThreads, read by the RankThread.
pub(crate) type Arrivals = Arc<[AtomicU32]>;

/// A ModelThread's end.
#[derive(Clone, Debug)]
pub(crate) struct CacheLink {
    orders: Receiver<CacheOrder>,
    reports: Sender<LoadReport>,
    arrivals: Arrivals,
    levels: Arc<CacheLevels>,
}

/// The RankThread's ends.
#[derive(Debug)]
pub(crate) struct CacheEnds {
    /// By ModelThread.
    pub(crate) threads: Vec<Sender<CacheOrder>>,
    pub(crate) reports: Receiver<LoadReport>,
    pub(crate) arrivals: Arrivals,
    pub(crate) levels: Arc<CacheLevels>,
}

/// Connects the RankThread with `threads` ModelThreads. Each channel has room for what `slots` slots and `models` models can
/// have to say; what finds none waits, or fails.
pub(crate) fn cache_links(
    threads: usize,
    models: usize,
    slots: usize,
) -> (CacheEnds, Vec<CacheLink>) {
    let arrivals: Arrivals = (0..models).map(|_| AtomicU32::new(0)).collect();
    let (reports, reports_in) = bounded(4 * slots);
    let levels = Arc::new(CacheLevels::new(models, slots));
    let mut ends = CacheEnds { threads: Vec::new(), reports: reports_in, arrivals, levels };
    let links = (0..threads).map(|_| {
        let (orders, orders_in) = bounded(models + 4 * slots);
        ends.threads.push(orders);
        let (arrivals, levels) = (Arc::clone(&ends.arrivals), Arc::clone(&ends.levels));
        CacheLink { orders: orders_in, reports: reports.clone(), arrivals, levels }
    });
    let links = links.collect();
    (ends, links)
}

impl CacheLink {
    /// The next order.
    pub(crate) fn order(&self) -> Option<CacheOrder> {
        self.orders.try_recv().ok()
    }

    /// What is counted for those who ask.
    pub(crate) fn levels(&self) -> &CacheLevels {
        &self.levels
    }

    /// Reports a LOAD. False if there is no room: more was reported than can have been ordered.
    pub(crate) fn report(&self, report: LoadReport) -> bool {
        self.reports.try_send(report).is_ok()
    }

    /// A task has come; `is_cold`: no slot holds its model.
    pub(crate) fn arrived(&self, model: ModelId, is_cold: bool) {
        if is_cold {
            self.levels.cold(model);
        }
        // It says nothing about other memory.
        self.arrivals[model.0 as usize].fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_have_room_for_what_slots_and_models_have_to_say_and_no_more() {
        let (ends, links) = cache_links(2, 3, 5);
        let room: Vec<_> = ends.threads.iter().map(Sender::capacity).collect();
        assert_eq!((room, ends.reports.capacity()), (vec![Some(23); 2], Some(20)));
        assert_eq!((links.len(), ends.arrivals.len()), (2, 3));
    }
}

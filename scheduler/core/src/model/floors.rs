//! Tasks that ask for an accuracy: a batch executes no variant below the highest floor of its tasks.
//!
//! A floor is the cheapest variant that is accurate enough. It shortens the batch that is formed, as dearer variants take
//! longer, and decides with the deadline until when a task can be served. Nothing here is asked of models without variants.
//! O(log b · log n) for a batch of b of n waiting tasks.

use super::ModelState;
use crate::candidate::Grant;
use crate::execution::latency::Latency;
use crate::execution::prediction::BatchShape;
use crate::model::formation::{self, Horizon, Window};
use baton_types::{Nanos, Request};

impl ModelState {
    /// The cheapest variant that is accurate enough for the task: as many as there are, if none is.
    #[inline]
    pub(super) fn floor_of(&self, request: &Request) -> u16 {
        if request.accuracy_min == 0 || self.accuracies.is_empty() {
            return 0;
        }
        self.accuracies.partition_point(|&accuracy| accuracy < request.accuracy_min) as u16
    }

    /// Whether a lone task with this floor would end in time. It would with the cheapest variant.
    #[inline]
    pub(super) fn floor_fits(
        &self,
        now: Nanos,
        grant: Option<&Grant>,
        floor: u16,
        deadline: Nanos,
    ) -> bool {
        if floor == 0 {
            return true;
        }
        let start = || self.horizon(now, grant).start(1);
        usize::from(floor) < self.accuracies.len()
            && start() + self.latency_of(floor).alone() <= deadline
    }

    /// As many of the window's first tasks as end in time with the cheapest variant that suits all of them; `None` if not even
    /// the first one does.
    pub(super) fn within_floors(&self, horizon: &Horizon<'_>, window: Window) -> Option<Window> {
        if window.batch == 0 {
            return Some(window);
        }
        let deadline = self.queue.deadline(window.head);
        let fits = |batch: u32| {
            let latency = self.latency_for(Window { batch, ..window });
            horizon.start(batch) + latency.of(batch) <= deadline
        };
        let batch = formation::largest(1, window.batch, fits);
        fits(1).then_some(Window { batch, ..window })
    }

    /// ℓ(b) of the cheapest variant that suits the window's tasks.
    #[inline]
    pub(super) fn latency_for(&self, window: Window) -> &Latency {
        self.latency_of(self.queue.floor(window.head, window.batch as usize))
    }

    /// ℓ(b) of a variant.
    #[inline]
    fn latency_of(&self, variant: u16) -> &Latency {
        match variant {
            0 => self.sizing.latency(),
            _ => self.sizing.execution.of_kind(BatchShape { variant, ..BatchShape::of(1) }),
        }
    }
}

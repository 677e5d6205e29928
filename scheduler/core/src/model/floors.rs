//! Tasks that ask for an accuracy: a batch executes no variant below the highest floor of its tasks.
//!
//! A floor is the cheapest variant that is accurate enough. It shortens the batch that is formed, as dearer variants take
//! longer, and decides with the deadline until when a task can be served. Nothing here is asked of models without variants.
//! O(log b · log n) for a batch of b of n waiting tasks.
//!
//! One task that asks makes a batch dear for all. So while tasks that ask for nothing are being lost, or other models lose tasks
//! for want of a slot, those that ask are given up where the others of the window would be served clearly faster without them.

use core::ops::Range;

use super::ModelState;
use crate::candidate::Grant;
use crate::execution::latency::Latency;
use crate::execution::prediction::BatchShape;
use crate::model::formation::{self, Horizon, Window};
use crate::model::sink::ModelSink;
use baton_types::{DropReason, Nanos, Request};

/// Tasks that ask are given up where without them this many are served …
const SERVED_WITHOUT: u128 = 3;
/// … in the time of this many.
const SERVED_WITH: u128 = 2;

/// Of a window's tasks.
fn ranks(window: Window) -> Range<usize> {
    window.head..window.head + window.batch as usize
}

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

    /// A task with this floor is given up.
    #[inline]
    pub(super) fn note_lost(&mut self, now: Nanos, floor: u16) {
        if floor == 0 {
            self.lost_plain_at = Some(now);
        }
    }

    /// Whether tasks of the window that ask for accuracy cost others their deadlines: some were lost within the last objective,
    /// or other models lose tasks for want of a slot, and without those that ask this one would serve half as many tasks again in
    /// the same time. `within` is what it can serve with them. O(b).
    pub(super) fn costs_others(
        &self,
        now: Nanos,
        grant: Option<&Grant>,
        window: Window,
        within: Window,
    ) -> bool {
        let Some(grant) = grant.filter(|_| within.batch > 0) else { return false };
        let was_lost = self.lost_plain_at.is_some_and(|at| now - at <= self.sizing.slo);
        if !was_lost && !grant.others_lose {
            return false;
        }
        let plain = ranks(window).filter(|&rank| !self.asks(rank)).count() as u32;
        if plain == 0 || plain == window.batch {
            return false;
        }
        let served = |tasks: u32, other: Nanos| u128::from(tasks) * u128::from(other.0);
        let (with, without) =
            (self.latency_for(within).of(within.batch), self.latency_of(0).of(plain));
        served(plain, with) * SERVED_WITH > served(within.batch, without) * SERVED_WITHOUT
    }

    /// Gives up those of the window's tasks that ask for accuracy. They count in no bad rate: otherwise their model would be
    /// more urgent than those that they made room for, and would spend nothing on accuracy.
    pub(super) fn give_up_asking(&mut self, window: Window, out: &mut impl ModelSink) {
        for rank in ranks(window).rev() {
            if self.asks(rank) {
                let gone = self.queue.get(rank).task;
                self.queue.remove_at(rank);
                self.counters.given_up += 1;
                self.end(gone, DropReason::Window, out);
            }
        }
    }

    fn asks(&self, rank: usize) -> bool {
        self.queue.floor(rank, 1) > 0
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

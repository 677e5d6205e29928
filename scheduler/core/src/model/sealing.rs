//! Sealing: a granted slot gets its batch.

use crate::candidate::{GpuUpdate, Grant};
use crate::execution::prediction::BatchShape;
use crate::model::ModelState;
use crate::model::batch::Batch;
use crate::model::formation::{self, Window};
use crate::model::sink::ModelSink;
use baton_types::{DropReason, Nanos};

impl ModelState {
    /// Removes the sealed tasks, and gives up the heads the batch was chosen over, unless they are only passed over.
    pub(super) fn seal(
        &mut self,
        grant: Grant,
        now: Nanos,
        window: Window,
        out: &mut impl ModelSink,
    ) {
        debug_assert!(window.head + window.batch as usize <= self.queue.len(), "the batch waits");
        let (window, variant) = self.choose(now, &grant, window);
        let exec_at = self.horizon(now, Some(&grant)).start(window.batch);
        let fetched_at = self.sizing.fetching.fetched_at(now, window.batch, grant.port_wait);
        let shape = BatchShape { variant, ..BatchShape::of(window.batch) };
        let latency = grant.slowdown.applied(self.sizing.execution.predict(shape));
        let deadline = self.queue.deadline(window.head);
        let invalid_after = deadline - latency;
        let slot_since = grant.free_at - self.network.before(window.batch);
        let floor = self.queue.floor(window.head, window.batch as usize);
        debug_assert!(variant >= floor, "accurate enough for each of its tasks");
        debug_assert!(grant.slowdown.is_slow() || exec_at <= invalid_after, "it can be in time");
        debug_assert!(invalid_after + latency <= deadline.max(latency), "nor ends late");
        let given_up = if self.rules().passes_over { 0 } else { window.head };
        let batch = Batch {
            model: self.id,
            floor,
            grant,
            shape,
            exec_at,
            fetched_at,
            invalid_after,
            schedulable_at: self.schedulable_at.min(now).max(slot_since),
            given_up,
            queue: &self.queue,
            window,
        };
        let idle = now - grant.free_at;
        let least = grant.slowdown.applied(self.sizing.latency().of(window.batch));
        self.fair_share.on_dispatch(least, idle.max(deadline - least - exec_at));
        let work = self.sizing.work(window.batch, latency);
        let gpu = grant.gpu;
        out.gpu(GpuUpdate::Planned { gpu, start: exec_at, latency, work, fetched_at });
        out.dispatch(&batch);
        self.queue.remove_range(window.head, window.batch as usize);
        self.counters.batches += 1;
        self.counters.dispatched += u64::from(window.batch);
        for _ in 0..given_up {
            let given_up = self.queue.pop().expect("the window's head counts the tasks before it");
            self.note_lost(now, self.floor_of(&given_up));
            self.give_up(given_up.task, DropReason::Window, out);
        }
    }

    /// Of the window's tasks, as many as a slow slot finishes in time with the same head; one if it finishes none:
    /// another slot may come too late for that as well.
    pub(super) fn fitting(&self, now: Nanos, grant: &Grant, window: Window) -> u32 {
        if window.batch == 0 {
            return 0;
        }
        let horizon = self.horizon(now, Some(grant));
        let deadline = self.queue.deadline(window.head);
        formation::largest(1, window.batch, |batch| {
            let latency = self.latency_for(Window { batch, ..window }).of(batch);
            horizon.start(batch) + grant.slowdown.applied(latency) <= deadline
        })
    }
}

//! Where a model's decisions go.

use crate::candidate::{Candidate, GpuUpdate};
use crate::model::batch::Batch;
use baton_types::{DropReason, ModelId, Nanos, TaskId, Unserved};

/// Receives what a [`ModelState`](crate::ModelState) decides. Called at most a bounded number of times per input.
pub trait ModelSink {
    /// The candidate changed. `grants` tells RankState which grants it takes into account.
    fn candidate(&mut self, model: ModelId, candidate: Option<Candidate>, grants: u32);
    /// A batch was sealed for a granted slot: send the plan.
    fn dispatch(&mut self, batch: &Batch<'_>);
    /// A granted slot's new state.
    fn gpu(&mut self, update: GpuUpdate);
    /// A task ends here: tell its frontend.
    fn end_task(&mut self, task: TaskId, why: Unserved);
    /// A task found the queue full and ends here. `retry_after` is until the head is given up at the
    /// latest, and no longer than the objective: by then a queue that is served has moved.
    fn queue_full(&mut self, task: TaskId, retry_after: Nanos) {
        let _ = retry_after;
        self.end_task(task, Unserved::Dropped(DropReason::QueueFull));
    }
    /// A task ends here because its frontend asks for more than its share of a model that cannot serve
    /// everybody. `retry_after` is as for [`ModelSink::queue_full`].
    fn over_share(&mut self, task: TaskId, retry_after: Nanos) {
        self.queue_full(task, retry_after);
    }
}

//! A sealed batch, as a sink sees it.

use crate::candidate::Grant;
use crate::execution::prediction::BatchShape;
use crate::model::formation::Window;
use crate::model::queue::DeadlineQueue;
use baton_types::{ModelId, Nanos, Request};

/// A sealed batch, head first. Its requests are still in the queue while the sink looks at it.
#[derive(Debug)]
pub struct Batch<'a> {
    /// The model.
    pub model: ModelId,
    /// The slot that will run it, and when it is expected to be free.
    pub grant: Grant,
    /// What its execution time depends on.
    pub shape: BatchShape,
    /// The cheapest variant that is accurate enough for each of its tasks.
    pub floor: u16,
    /// Planned start.
    pub exec_at: Nanos,
    /// When its inputs should be there; `None` while nothing is known of how long they take.
    pub fetched_at: Option<Nanos>,
    /// Latest start.
    pub invalid_after: Nanos,
    /// Since when the model had a schedulable batch and the slot could have been granted to it:
    /// the dispatch delay counts from here.
    pub schedulable_at: Nanos,
    /// How many heads are given up for it.
    pub given_up: usize,
    pub(crate) queue: &'a DeadlineQueue,
    pub(crate) window: Window,
}

impl Batch<'_> {
    /// Number of tasks.
    pub fn len(&self) -> u32 {
        self.window.batch
    }

    /// Never: a grant without a batch is given back instead.
    pub fn is_empty(&self) -> bool {
        self.window.batch == 0
    }

    /// The tasks, most urgent first.
    pub fn requests(&self) -> impl ExactSizeIterator<Item = Request> + '_ {
        let head = self.window.head;
        (head..head + self.window.batch as usize).map(|rank| self.queue.get(rank))
    }
}

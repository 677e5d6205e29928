//! The order in which every baseline keeps a model's tasks.

use std::collections::VecDeque;

use baton_core::Request;

/// Inserts behind every task with the same or an earlier deadline.
pub(crate) fn enqueue(queue: &mut VecDeque<Request>, request: Request) {
    // One objective for all keeps tasks in order as they arrive; a replay or a loss does not.
    if queue.back().is_none_or(|last| last.deadline <= request.deadline) {
        return queue.push_back(request);
    }
    let at = queue.partition_point(|other| other.deadline <= request.deadline);
    queue.insert(at, request);
}

//! What tasks say of themselves, and what actions say of them.

use baton_rdma::wire::ActionTask;

/// What a task's submit says of its input and its cost.
pub fn input_bytes(task: u64) -> u32 {
    task as u32 % 1_000 + 1
}

pub fn cost(task: u64) -> u32 {
    (task as u32).wrapping_mul(31)
}

/// A task of an action, which says of it what its submit has said.
pub fn as_submitted(listed: &ActionTask) -> u64 {
    let task = listed.task.get();
    let said = (listed.input_len(), listed.cost.get());
    assert_eq!(said, (input_bytes(task), cost(task)), "task {task}");
    task
}

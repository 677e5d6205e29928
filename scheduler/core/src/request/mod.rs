//! A task from its arrival to its end: the queue it waits in, and why it ended without an answer.

pub(crate) mod outcome;
pub(crate) mod queue;
pub(crate) mod task;

//! The batch that an explanation was asked for.

use baton_core::{Nanos, Request};

use super::slots::Sealed;
use super::story::{BatchStory, TaskStory, ms};

/// What is known of it.
pub(super) struct TheBatch {
    at: Nanos,
    sealed: Sealed,
    given_up: Vec<u64>,
    left_behind: u32,
    end: Option<Nanos>,
}

impl TheBatch {
    /// Sealed now. `queue` is what waits besides; its first `given_up` tasks are given up.
    pub(super) fn new(at: Nanos, sealed: Sealed, queue: &[Request], given_up: usize) -> Self {
        let left_behind = (queue.len() - given_up) as u32;
        let given_up = queue[..given_up].iter().map(|request| request.task.0).collect();
        Self { at, sealed, given_up, left_behind, end: None }
    }

    /// A batch has ended, perhaps this one.
    pub(super) fn finished(&mut self, now: Nanos, sealed: &Sealed) {
        if sealed.number == self.sealed.number {
            self.end = Some(now);
        }
    }

    pub(super) fn story(self, head: TaskStory) -> BatchStory {
        let Self { at, sealed, given_up, left_behind, end } = self;
        let end_or_never = end.unwrap_or(Nanos::ZERO);
        let late = sealed.requests.iter().filter(|request| end_or_never > request.deadline);
        BatchStory {
            batch: sealed.number,
            model: head.model.clone(),
            gpu: sealed.gpu,
            sealed_ms: ms(at),
            exec_at_ms: ms(sealed.exec_at),
            invalid_after_ms: ms(sealed.invalid_after),
            end_ms: end.map(ms),
            late: late.count() as u32,
            tasks: sealed.requests.iter().map(|request| request.task.0).collect(),
            given_up,
            left_behind,
            head,
        }
    }
}

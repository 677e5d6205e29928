//! The end of a backend, wanted or not: executing batches are answered, then the connections are
//! closed, then it is over. Batches that do not execute yet are the scheduler's to re-queue, which
//! it does when our connections close.

use baton_core::Nanos;
use baton_rdma::Transport;

use super::Worker;
use crate::error::BackendError;
use crate::execute::Executor;
use crate::gpu::Gpu;

/// How long the last executions, and then the last bytes, may take.
const LINGER: Nanos = Nanos::from_millis(2_000);

/// How far the end has come.
#[derive(Debug)]
pub(super) struct End {
    result: Result<(), BackendError>,
    /// The present step is given up then.
    until: Nanos,
    step: Step,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Batches execute or are being answered.
    Answering,
    /// This many connections are closing; their last bytes are leaving.
    Closing(usize),
    Over,
}

impl End {
    /// The outcome, once it is over.
    pub(super) fn result(&self) -> Option<&Result<(), BackendError>> {
        (self.step == Step::Over).then_some(&self.result)
    }

    /// When the present step is given up.
    pub(super) fn until(&self) -> Nanos {
        self.until
    }

    /// A connection is gone.
    pub(super) fn on_closed(&mut self) {
        if let Step::Closing(open) = &mut self.step {
            *open = open.saturating_sub(1);
        }
    }
}

impl<T: Transport, E: Executor> Worker<T, E> {
    /// Begins the end; the first reason counts.
    #[cold]
    pub(super) fn finish(&mut self, result: Result<(), BackendError>, now: Nanos) {
        if self.end.is_none() {
            self.end = Some(End { result, until: now + LINGER, step: Step::Answering });
        }
    }

    /// Takes the next step of the end, if it is time. Returns how much there was to do.
    pub(super) fn end_step(&mut self, now: Nanos) -> usize {
        let committed = self.gpus.iter().any(Gpu::is_committed);
        let Some(end) = &mut self.end else { return 0 };
        let in_time = now <= end.until;
        match end.step {
            Step::Answering if !committed || !in_time => {
                let open = self.peers.close_all(&mut self.transport, "this backend ends")
                    + self.join.close_all(&mut self.transport, "this backend ends");
                end.step = Step::Closing(open);
                end.until = now + LINGER;
                1
            }
            Step::Closing(open) if open == 0 || !in_time => {
                end.step = Step::Over;
                1
            }
            _ => 0,
        }
    }
}

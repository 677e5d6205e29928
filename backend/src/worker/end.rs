//! The end of a backend, wanted or not, or of its time with one life of the scheduler. The backend
//! answers executing batches, lets the answers leave, and closes the connections. Then it ends, or
//! begins to join anew. The scheduler queues the batches that do not execute yet again when our
//! connections close; if the scheduler has died, the frontends submit them again.
//!
//! Nothing of one life reaches the next. Frontends have other numbers in the next life, so every
//! batch is answered or back from its executor, and every READ has returned, before the backend joins again. A LOAD that is
//! being copied goes on, and is reported to no scheduler.

use baton_membership::{MembershipError, Stage};
use baton_rdma::Transport;
use baton_types::Nanos;

use super::Worker;
use crate::error::BackendError;
use crate::execute::Executor;
use crate::gpu::Gpu;
use crate::peers::Peers;
use crate::reply::{REPLY_BOUND, RETRY_AFTER};

/// How long the last executions, and then the last bytes, may take.
const LINGER: Nanos = Nanos::from_millis(2_000);

/// How far the end has come.
#[derive(Debug)]
pub(super) struct End {
    result: Result<(), BackendError>,
    /// Not the backend's end: it joins again.
    rejoins: bool,
    /// When the present step times out.
    until: Nanos,
    step: Step,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Batches execute or are being answered.
    Answering,
    /// Answers and reports are still to leave: what is queued is lost with its connection. Checked again
    /// at `look_at`.
    Sending {
        look_at: Nanos,
    },
    /// This many connections are closing; their last bytes are leaving.
    Closing(usize),
    Over,
}

/// What the end asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Due {
    Nothing,
    NextStep,
    HangUp,
    /// The connections are closed, or have had the time for it.
    Close,
}

impl End {
    /// Goes on if it is time. `committed`: batches execute or are being answered.
    fn advance(&mut self, now: Nanos, committed: bool, has_unsent: impl FnOnce() -> bool) -> Due {
        let in_time = now <= self.until;
        match self.step {
            Step::Answering if !committed || !in_time => {
                self.step = Step::Sending { look_at: now };
                self.until = now + REPLY_BOUND;
                Due::NextStep
            }
            Step::Sending { .. } if in_time && has_unsent() => {
                self.step = Step::Sending { look_at: now + RETRY_AFTER };
                Due::Nothing
            }
            Step::Sending { .. } => Due::HangUp,
            Step::Closing(open) if open == 0 || !in_time => Due::Close,
            _ => Due::Nothing,
        }
    }

    /// The outcome, once it is over.
    pub(super) fn result(&self) -> Option<&Result<(), BackendError>> {
        (self.step == Step::Over).then_some(&self.result)
    }

    /// When the present step times out; `None` if it does not.
    pub(super) fn until(&self) -> Option<Nanos> {
        match self.step {
            Step::Sending { look_at } => Some(look_at),
            _ => (self.until < Nanos::MAX).then_some(self.until),
        }
    }

    /// A connection is gone.
    pub(super) fn on_closed(&mut self) {
        if let Step::Closing(open) = &mut self.step {
            *open = open.saturating_sub(1);
        }
    }
}

impl<T: Transport, E: Executor> Worker<T, E> {
    /// The backend can no longer serve, or an attempt to join has failed. It joins again if that can help.
    #[cold]
    pub(super) fn fail(&mut self, error: BackendError, now: Nanos) {
        if self.end.is_some() {
            return;
        }
        let (membership, stage) = (&self.join.membership, self.stage());
        let error = match error {
            BackendError::Membership(error) => error,
            // Perhaps two lives of the scheduler, mixed up.
            BackendError::Protocol(problem) if stage.is_joining() && membership.life() > 0 => {
                membership.unfit(problem)
            }
            other => return self.finish(Err(other), now),
        };
        if !membership.may_pass(&error) {
            return self.finish(Err(error.into()), now);
        }
        if stage < Stage::Linking {
            return self.try_again(error, now);
        }
        self.counters.schedulers_lost += u64::from(stage == Stage::Ready);
        tracing::warn!(%error, "executing batches are answered; then this backend joins again");
        // An execution takes as long as it takes, and no answer may be left over.
        let (result, until) = (Err(error.into()), Nanos::MAX);
        self.end = Some(End { result, rejoins: true, until, step: Step::Answering });
    }

    /// Lets the scheduler go, and joins anew after a pause.
    fn try_again(&mut self, error: MembershipError, now: Nanos) {
        let why = error.to_string();
        if let Err(error) = self.join.membership.fail(now, error) {
            return self.finish(Err(error.into()), now);
        }
        self.join.let_go(&why, &mut self.transport);
        self.models.lose_scheduler();
    }

    /// Begins the end; the first reason counts.
    #[cold]
    pub(super) fn finish(&mut self, result: Result<(), BackendError>, now: Nanos) {
        match &mut self.end {
            Some(end) if !end.rejoins => {}
            Some(end) => {
                (end.result, end.rejoins, end.until) = (result, false, now + LINGER);
            }
            None => {
                let (rejoins, until) = (false, now + LINGER);
                self.end = Some(End { result, rejoins, until, step: Step::Answering });
                // Whatever came now would wait here for nothing until the last execution has ended. A
                // scheduler that cannot be reached is lost, and knows it.
                let _ = self.join.membership.leave(Nanos::MAX, &mut self.transport);
            }
        }
    }

    /// Takes the next step of the end, if it is time. Returns how much there was to do.
    pub(super) fn end_step(&mut self, now: Nanos) -> usize {
        let committed = self.gpus.iter().any(Gpu::is_committed);
        let Some(end) = &mut self.end else { return 0 };
        match end.advance(now, committed, || self.transport.has_unsent()) {
            Due::Nothing => 0,
            Due::NextStep => 1,
            Due::HangUp => {
                self.hang_up(now);
                1
            }
            Due::Close => self.on_closed_all(now),
        }
    }

    fn hang_up(&mut self, now: Nanos) {
        let why = match &self.end {
            Some(end) if end.rejoins => "this backend looks for the next scheduler",
            _ => "this backend ends",
        };
        let open = self.peers.close_all(&mut self.transport, why)
            + self.join.membership.close_all(why, &mut self.transport);
        if let Some(end) = &mut self.end {
            (end.step, end.until) = (Step::Closing(open), now + LINGER);
        }
    }

    /// It is over, or the next life begins, as soon as no READ is out and the executors have given everything back.
    fn on_closed_all(&mut self, now: Nanos) -> usize {
        let Some(end) = &mut self.end else { return 0 };
        if !end.rejoins {
            end.step = Step::Over;
        } else if self.gpus.iter().any(Gpu::is_lent) {
            end.until = now + LINGER;
            return 0;
        } else {
            self.counters.batches_abandoned += self.gpus.iter_mut().map(Gpu::abandon).sum::<u64>();
            self.begin_again(now);
        }
        1
    }

    /// A new life: no peer is known, no task is outstanding.
    fn begin_again(&mut self, now: Nanos) {
        self.peers = Peers::default();
        if let Some(End { result: Err(BackendError::Membership(error)), .. }) = self.end.take() {
            self.try_again(error, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Nanos = Nanos::from_millis(1_000);

    fn end(step: Step) -> End {
        End { result: Ok(()), rejoins: false, until: START + LINGER, step }
    }

    #[test]
    fn executions_have_their_time_and_last_bytes_have_little() {
        let mut end = end(Step::Answering);
        assert_eq!(end.advance(START + LINGER, true, || true), Due::Nothing);
        assert_eq!(end.until(), Some(START + LINGER));
        let given_up = START + LINGER + Nanos(1);
        assert_eq!(end.advance(given_up, true, || true), Due::NextStep);
        assert_eq!(end.until(), Some(given_up), "whether bytes are left is asked at once");
        assert_eq!(end.advance(given_up, true, || true), Due::Nothing);
        assert_eq!(end.until(), Some(given_up + RETRY_AFTER), "and again soon");
        assert_eq!(end.advance(given_up + REPLY_BOUND, true, || true), Due::Nothing);
        assert_eq!(end.advance(given_up + REPLY_BOUND + Nanos(1), true, || true), Due::HangUp);
    }

    #[test]
    fn what_has_been_answered_and_sent_keeps_no_connection_open() {
        let mut end = end(Step::Answering);
        assert_eq!(end.advance(START, false, || true), Due::NextStep);
        assert_eq!(end.advance(START, false, || true), Due::Nothing);
        assert_eq!(end.advance(START, false, || false), Due::HangUp);
    }

    #[test]
    fn connections_have_their_time_to_close() {
        let mut end = end(Step::Closing(2));
        assert_eq!(end.advance(START, false, || true), Due::Nothing);
        end.on_closed();
        assert_eq!(end.advance(START + LINGER, false, || true), Due::Nothing);
        assert_eq!(end.advance(START + LINGER + Nanos(1), false, || true), Due::Close);
        end.on_closed();
        assert_eq!(end.advance(START, false, || true), Due::Close);
        assert_eq!(end.result(), None, "it is not over before READs are back");
    }
}

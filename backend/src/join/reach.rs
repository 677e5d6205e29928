//! Reaching the scheduler: one attempt after the other, until one succeeds or the time is over.

use baton_core::Nanos;
use baton_leader::Unknown;
use baton_rdma::wire::{Hello, RefuseCode, Role};
use baton_rdma::{CloseReason, Transport};

use super::Join;
use crate::error::BackendError;
use crate::stage::Stage;

/// How long an attempt to reach the scheduler may take: a host that has lost power answers nothing.
const REACH: Nanos = Nanos::from_millis(1_000);

impl Join {
    pub(super) fn connect<T: Transport>(&mut self, now: Nanos, transport: &mut T) {
        if let Some(slow) = self.control.take() {
            transport.close(slow, RefuseCode::Shutdown, "no answer in time");
            return self.retry(now, String::from("nothing answers"));
        }
        let scheduler = match self.locator.addr() {
            Ok(scheduler) => scheduler,
            Err(Unknown::NotYet) => return self.pause(now),
            Err(unknown) => return self.retry(now, unknown.to_string()),
        };
        self.scheduler = scheduler;
        match transport.connect(scheduler, Hello::new(Role::Backend, 0, 0)) {
            Ok(conn) => {
                self.control = Some(conn);
                self.retry_at = now + REACH;
            }
            Err(error) => self.retry(now, error.to_string()),
        }
    }

    /// This attempt failed; the next one may succeed.
    fn retry(&mut self, now: Nanos, problem: String) {
        if !std::mem::replace(&mut self.told, true) {
            tracing::info!(scheduler = %self.scheduler, problem, "no scheduler yet; retrying");
        }
        self.problem = problem;
        self.pause(now);
    }

    /// Tries again after a pause; by then the locator knows the leader.
    pub(super) fn pause(&mut self, now: Nanos) {
        let pause = self.backoff.pause();
        self.locator.ask(pause);
        self.retry_at = now + pause;
    }

    /// Retries while no scheduler answers; fails if another program does.
    pub(super) fn try_again(
        &mut self,
        reason: &CloseReason,
        now: Nanos,
    ) -> Result<(), BackendError> {
        match reason {
            CloseReason::Reset(_) | CloseReason::Eof | CloseReason::HandshakeTimeout => {
                self.retry(now, reason.to_string());
                Ok(())
            }
            other => {
                self.problem = other.to_string();
                Err(self.too_late(now))
            }
        }
    }

    pub(super) fn too_late(&self, now: Nanos) -> BackendError {
        let tried_ms = (now - self.began.unwrap_or(now)).0 / 1_000_000;
        match self.stage {
            Stage::Connecting => match self.locator.addr() {
                Ok(scheduler) => {
                    let problem = self.problem.clone();
                    BackendError::Unreachable { scheduler, tried_ms, problem }
                }
                Err(problem) => BackendError::NoScheduler { tried_ms, problem },
            },
            stage => BackendError::JoinTimeout(stage.waits_for()),
        }
    }
}

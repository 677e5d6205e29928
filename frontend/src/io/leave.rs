//! The end of a client: it leaves, or its scheduler is lost for good.
//!
//! Either way the client accepts no new tasks and waits for outstanding ones; only then does this
//! side end. Backends stay connected meanwhile, because they may still have answers.

use baton_core::{DropReason, Nanos, Unserved};
use baton_rdma::wire::{Leave, RefuseCode};
use baton_rdma::{CloseReason, Transport};

use crate::error::{LeaveError, Loss};
use crate::io::{ClientIo, Stage};

impl<T: Transport> ClientIo<T> {
    /// A connection to the scheduler closed, of an open or leaving client.
    pub(super) fn on_scheduler_closed(&mut self, now: Nanos, what: String, reason: &CloseReason) {
        match self.stage {
            Stage::Open => {
                let stops = Some(RefuseCode::Shutdown);
                let refused = matches!(reason, CloseReason::Refused { code, .. } if *code == stops);
                self.lose(now, Loss::Closed { what, reason: reason.to_string() }, refused);
            }
            // Without the control connection no confirmation can come.
            Stage::Leaving if self.control.is_none() => self.end(Err(LeaveError::Unconfirmed)),
            _ => {}
        }
    }

    pub(super) fn on_silence(&mut self, now: Nanos) {
        let timeout_ms = self.config.member_timeout.0 / 1_000_000;
        match self.stage {
            Stage::Open => self.lose(now, Loss::Silent { timeout_ms }, false),
            Stage::Leaving => self.end(Err(LeaveError::Unconfirmed)),
            // A join has its own bound.
            _ => {}
        }
    }

    pub(super) fn on_leave_ack(&mut self) {
        self.end(Ok(()));
    }

    /// Once nothing more can be submitted: leaves as soon as nothing is outstanding, or when the
    /// patience with what is has run out.
    pub(super) fn wind_down(&mut self, now: Nanos) {
        let Some(serving) = &mut self.serving else { return };
        let has_ended = matches!(self.stage, Stage::Leaving | Stage::Ended);
        let wants_end = serving.session.leaving() || serving.session.given_up();
        if self.life == 0 || has_ended || !wants_end {
            return;
        }
        if serving.session.leaving() {
            let leave_by = *serving.leave_by.get_or_insert(now + self.config.leave_timeout);
            if now >= leave_by {
                self.give_up(now);
            }
        }
        self.leave_when_idle(now);
    }

    fn leave_when_idle(&mut self, now: Nanos) {
        let Some(serving) = &mut self.serving else { return };
        if serving.tasks.outstanding() > 0 || !serving.commands.is_empty() {
            return;
        }
        serving.leave_by = None;
        let leave = Leave { reserved: 0.into() };
        let control = self.control.filter(|_| self.stage == Stage::Open);
        let sent = control.map(|control| self.transport.send(control, &leave, &[]));
        if let Some(Ok(())) = sent {
            self.stage = Stage::Leaving;
            self.stage_ends = now + self.config.member_timeout;
        } else {
            self.end(Err(LeaveError::Unconfirmed));
        }
    }

    /// Ends the tasks that are still outstanding, and cancels them at the scheduler.
    fn give_up(&mut self, now: Nanos) {
        while let Some(task) = self.serving.as_mut().and_then(|s| s.tasks.first()) {
            self.ask_for_cancel(task);
            self.end_task(now, task, Unserved::Dropped(DropReason::Cancelled));
            let Some(serving) = &mut self.serving else { return };
            serving.given_up += 1;
        }
    }

    /// This side has nothing left to do. What went wrong first is what the application hears of.
    pub(super) fn end(&mut self, leave: Result<(), LeaveError>) {
        self.stage = Stage::Ended;
        self.stage_ends = Nanos::MAX;
        self.heartbeat.stop();
        let Some(serving) = &self.serving else { return };
        let farewell = match (serving.session.loss(), serving.given_up) {
            (Some(loss), _) => Err(LeaveError::SchedulerLost(loss)),
            (None, 0) => leave,
            (None, tasks) => Err(LeaveError::GivenUp { tasks }),
        };
        serving.session.bid_farewell(farewell);
    }
}

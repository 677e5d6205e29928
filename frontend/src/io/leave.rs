//! The end of a client: it leaves, or its scheduler is lost for good.
//!
//! Either way the client accepts no new tasks and waits for outstanding ones; only then does this
//! side end. Backends stay connected meanwhile, because they may still have answers.

use baton_membership::{MembershipError, Stage};
use baton_rdma::Transport;
use baton_types::{DropReason, Nanos, Unserved};

use crate::error::LeaveError;
use crate::io::ClientIo;

impl<T: Transport> ClientIo<T> {
    /// An open or leaving client has lost its scheduler.
    pub(super) fn on_loss(&mut self, now: Nanos, error: MembershipError) {
        match self.membership.stage() {
            Stage::Ready => self.lose(now, error),
            // No confirmation can come any more.
            Stage::Leaving => self.end(Err(LeaveError::Unconfirmed)),
            _ => {}
        }
    }

    /// Once nothing more can be submitted: leaves as soon as nothing is outstanding, or when the
    /// patience with what is has run out.
    pub(super) fn wind_down(&mut self, now: Nanos) {
        let Some(serving) = &mut self.serving else { return };
        let has_ended = self.membership.stage() >= Stage::Leaving;
        let wants_end = serving.session.leaving() || serving.session.given_up();
        if has_ended || !wants_end {
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
        let bound = now + self.config.member_timeout;
        if !matches!(self.membership.leave(bound, &mut self.transport), Ok(true)) {
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
        self.membership.end();
        let Some(serving) = &self.serving else { return };
        let farewell = match (serving.session.loss(), serving.given_up) {
            (Some(loss), _) => Err(LeaveError::SchedulerLost(loss)),
            (None, 0) => leave,
            (None, tasks) => Err(LeaveError::GivenUp { tasks }),
        };
        serving.session.bid_farewell(farewell);
    }
}

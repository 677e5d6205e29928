//! Reconnecting: the scheduler is lost, and the client retries until one is back or the client leaves.
//!
//! In: the loss of an open client. Out: the same client, open again in a new life: with another
//! number, another token, another clock, and the same tickets, and slabs as far as the models are the same
//! (`changes`). Outstanding tasks whose deadline allows it are submitted again, each under the next generation
//! of its slot.
//!
//! An answer of the life before counts until then, because it answers the same input. From then on
//! its generation refuses it, and the client closes the connections to the backends of that life: they
//! have nothing left to read.

use baton_membership::{ClockSync, MembershipError};
use baton_rdma::wire::{RefuseCode, Role};
use baton_rdma::{Identity, Transport};
use baton_types::{DropReason, FailReason, Nanos, TaskId, Unserved};

use crate::error::Loss;
use crate::io::ClientIo;
use crate::io::models::Phase;
use crate::session::{GIVEN_BACK, Task};

/// Tasks submitted again per pass: bounds how long arrivals wait behind them.
const TASKS_PER_PASS: usize = 256;
/// How long after its return the client gives the backends time to come back too, and how often it
/// submits again meanwhile.
const GATHERING: Nanos = Nanos::from_millis(2_000);
const ASK_AGAIN: Nanos = Nanos::from_millis(20);
/// When to retry a task whose input is being read at the moment.
const BUSY_AGAIN: Nanos = Nanos::from_micros(500);

impl<T: Transport> ClientIo<T> {
    /// An open client has lost its scheduler. Until the next attempt begins it still reads what the ModelThreads have
    /// sent, because that may contain outcomes.
    pub(super) fn lose(&mut self, now: Nanos, error: MembershipError) {
        let is_announced = error.code() == Some(RefuseCode::Shutdown);
        self.orderly = std::mem::take(&mut self.stopping) || is_announced;
        self.holds_until = now + self.config.reconnect.hold;
        self.former_clock = (self.membership.life(), self.membership.sync().clone());
        if let Some(serving) = &mut self.serving {
            serving.session.lose(Loss::Scheduler(error.clone()), self.orderly);
            serving.pending.clear();
            serving.pending_at = None;
        }
        if let Err(error) = self.membership.fail(now, error) {
            self.give_up_on_scheduler(now, error.to_string());
        }
    }

    /// The clock of the scheduler of that life; `None` of the lives before the last.
    pub(super) fn clock_of(&self, life: u32) -> Option<&ClockSync> {
        let (former, clock) = &self.former_clock;
        let is_present = self.membership.is_ready() && life == self.membership.life();
        let present = is_present.then(|| self.membership.sync());
        present.or_else(|| (life == *former).then_some(clock))
    }

    /// Forgets the scheduler of an attempt or of the life before.
    pub(super) fn let_go(&mut self, now: Nanos, why: &str) {
        self.membership.let_go(why, &mut self.transport);
        self.forget_scheduler(now);
    }

    /// Nothing that the former scheduler has given this client holds any longer.
    pub(super) fn forget_scheduler(&mut self, now: Nanos) {
        if self.membership.life() > 0
            && now >= self.holds_until
            && let Some(serving) = &self.serving
        {
            serving.session.refuse_submits();
        }
        // Backends may hear of the next number sooner than this: until then it goes by none.
        self.transport.identify(Identity { role: Role::Frontend, member: 0 });
        self.backends.await_token();
        self.show_backends();
    }

    /// No scheduler will do any more. The client ends when its tasks have.
    pub(super) fn give_up_on_scheduler(&mut self, now: Nanos, detail: String) {
        self.membership.stay_away(&detail, &mut self.transport);
        self.forget_scheduler(now);
        self.orderly = false;
        if let Some(serving) = &self.serving {
            serving.session.give_up(Loss::Changed { detail });
        }
    }

    /// The client is open again.
    pub(super) fn on_return(&mut self, now: Nanos) {
        self.gathering_until = now + GATHERING;
        self.stopping = false;
        self.counters.reconnects.add(1);
        let Some(serving) = &mut self.serving else { return };
        serving.pending.extend(serving.tasks.ids());
        serving.pending_at = Some(now);
        serving.session.regain();
        let outstanding = serving.pending.len();
        tracing::info!(frontend = self.number.0, outstanding, "joined again");
    }

    /// The scheduler gave a task back. If it stops, the client keeps the task for the next scheduler. If
    /// no backend serves the model and this client has just come back, the backends may come back too: the
    /// client submits the task again soon; if there is no time for that, it ends by its deadline. A task that
    /// was cancelled ends now. False if the scheduler's word is the task's end.
    pub(super) fn keep(&mut self, now: Nanos, id: TaskId, reason: DropReason) -> bool {
        let gathering = now < self.gathering_until;
        let Some(serving) = &mut self.serving else { return false };
        match reason {
            DropReason::Shutdown => self.stopping = true,
            DropReason::NoBackend if gathering => {
                serving.pending.push_back(id);
                serving.pending_at.get_or_insert(now + ASK_AGAIN);
            }
            _ => return false,
        }
        if serving.tasks.get(id).is_some_and(|task| task.is_cancelled) {
            self.end_task(now, id, Unserved::Dropped(DropReason::Cancelled));
            return true;
        }
        serving.tasks.hold(id)
    }

    /// Submits the tasks of earlier lives again. Returns the number of tasks for which that is settled now.
    pub(super) fn resubmit(&mut self, now: Nanos) -> usize {
        if !self.membership.is_ready() {
            return 0;
        }
        for conn in self.backends.part() {
            let detail = "the scheduler that introduced you is gone; be introduced by the next";
            self.transport.close(conn, RefuseCode::Unauthorised, detail);
        }
        let Some(serving) = &mut self.serving else { return 0 };
        let pending = serving.pending.len();
        if serving.pending_at.take_if(|at| *at <= now).is_none() {
            return 0;
        }
        let settled = (0..pending.min(TASKS_PER_PASS)).filter(|_| self.resubmit_next(now)).count();
        if let Some(serving) = &mut self.serving
            && !serving.pending.is_empty()
        {
            serving.pending_at = Some(if settled > 0 { now } else { now + BUSY_AGAIN });
        }
        settled
    }

    /// False if its input is being read, or its answer has arrived and is not processed yet: retry later.
    fn resubmit_next(&mut self, now: Nanos) -> bool {
        let number = self.number;
        let Some(serving) = &mut self.serving else { return true };
        let Some(id) = serving.pending.pop_front() else { return true };
        // It may have got its outcome in the meantime.
        let Some(&task) = serving.tasks.get(id) else { return true };
        if task.is_cancelled {
            self.end_task(now, id, Unserved::Dropped(DropReason::Cancelled));
            return true;
        }
        if now >= task.deadline {
            let why = out_of_time(&task, self.orderly);
            self.end_task(now, id, why);
            return true;
        }
        let Some(served) = serving.models.get(task.model) else { return true };
        if let Phase::Removed(why) = served.phase {
            self.end_task(now, id, why);
            return true;
        }
        let was_never_sent = task.life == 0 && id.frontend() == number;
        let renewed = if was_never_sent { Some(id) } else { served.model.slabs.renew(id) };
        let Some(renewed) = renewed else {
            serving.pending.push_back(id);
            return false;
        };
        serving.tasks.remove(id);
        let again = u32::from(task.sent_in > 0);
        self.counters.resubmitted.add(again.into());
        // Only an input that is written has another id.
        let (ahead, resubmitted) = (task.ahead && was_never_sent, task.resubmitted + again);
        self.send(now, &Task { id: renewed, resubmitted, ahead, ..task });
        true
    }
}

/// The end of a task that no scheduler can serve in time any more: dropped after an orderly stop or if
/// it was given back, because nothing broke; failed otherwise.
pub(super) fn out_of_time(task: &Task, orderly: bool) -> Unserved {
    match orderly || task.life == GIVEN_BACK {
        true => Unserved::Dropped(DropReason::Deadline),
        false => Unserved::Failed(FailReason::SchedulerLost),
    }
}

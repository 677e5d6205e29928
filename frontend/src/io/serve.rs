//! While the client is open: tasks out, outcomes in, leases kept.

use baton_membership::{ClockSync, Stage};
use baton_rdma::wire::{Cancel, Submit, TaskEnd, TaskResult};
use baton_rdma::{ConnId, SendError, Transport};
use baton_types::{DropReason, FailReason, GpuId, Nanos, TaskId, Unserved};

use crate::end::End;
use crate::io::models::{Phase, Served};
use crate::io::rejoin::out_of_time;
use crate::io::{ClientIo, Serving};
use crate::outcome::{EndRecord, EndedBy, Timing};
use crate::session::{Command, GIVEN_BACK, Task};

/// Commands taken per pass: bounds how long arrivals wait behind submits.
pub(super) const COMMANDS_PER_PASS: usize = 256;

/// [`TaskEnd::kind`].
const DROPPED: u8 = 1;
const FAILED: u8 = 2;

impl<T: Transport> ClientIo<T> {
    /// Before the client is open for the first time, and once it leaves, nothing is taken; what is
    /// left when this side ends is ended by `Session::close`.
    pub(super) fn take_commands(&mut self, now: Nanos) -> usize {
        if self.membership.life() == 0 || self.membership.stage() >= Stage::Leaving {
            return 0;
        }
        for taken in 0..COMMANDS_PER_PASS {
            let command =
                self.serving.as_ref().and_then(|serving| serving.commands.try_recv().ok());
            match command {
                Some(Command::Submit(task)) => self.submit(now, &task),
                Some(Command::Cancel(task)) => self.cancel(now, task),
                Some(Command::Written(task)) => self.on_written(task),
                None => return taken,
            }
        }
        COMMANDS_PER_PASS
    }

    /// A task of the application's. Without a scheduler it waits for one with the others.
    fn submit(&mut self, now: Nanos, task: &Task) {
        let number = self.number;
        let Some(serving) = &mut self.serving else { return };
        if task.ahead && serving.must_wait_for_input(task) {
            return serving.tasks.insert(Task { life: GIVEN_BACK, ..*task }, task.deadline);
        }
        if self.membership.is_ready() && task.id.frontend() == number {
            return self.send(now, task);
        }
        // No scheduler has it; after an orderly stop it has until its deadline to reach one.
        let grace = if self.orderly { Nanos::ZERO } else { self.config.lease_grace };
        serving.tasks.insert(*task, task.deadline + grace);
        if self.membership.is_ready() {
            serving.pending.push_back(task.id);
            serving.pending_at = Some(Nanos::ZERO);
        }
    }

    /// Hands a task that is not among the outstanding to its ModelThread.
    pub(super) fn send(&mut self, now: Nanos, task: &Task) {
        let Some(serving) = &mut self.serving else { return };
        let Some(served) = serving.models.get(task.model) else { return };
        let own = || EndRecord::new(now, EndedBy::Client, task.resubmitted);
        if let Phase::Removed(why) = served.phase {
            return serving.decide(task, without_answer(why, own()));
        }
        let submit = Submit {
            task: task.id.0.into(),
            deadline_ns: scheduler_deadline(task.deadline, self.membership.sync()).0.into(),
            model: served.id.0.into(),
            input_bytes: task.input_bytes.into(),
            cost: task.asked.cost.bits().into(),
            accuracy_min: task.asked.accuracy_min.into(),
        };
        let conn = self.membership.thread(served.thread);
        let sent =
            conn.map_or(Err(SendError::Closed), |conn| self.transport.send(conn, &submit, &[]));
        let expires = task.deadline + self.config.lease_grace;
        match sent {
            Ok(()) => {
                let (life, sent_in) = (self.membership.life(), self.membership.life());
                serving.tasks.insert(Task { life, sent_in, ..*task }, expires);
            }
            // Backpressure of the same kind as a full queue at the scheduler.
            Err(SendError::Full) => {
                serving.decide(task, End::Dropped(DropReason::QueueFull, own()));
            }
            // The news that the scheduler is lost is on its way.
            Err(SendError::Closed) => serving.tasks.insert(*task, expires),
            Err(SendError::TooLong) => {
                serving.decide(task, End::Failed(FailReason::SchedulerLost, own()));
            }
        }
    }

    /// Asks the process that has the task to end it; the outcome comes from there. A task that waits
    /// for a scheduler ends here and now, and one that comes back from a scheduler ends then.
    fn cancel(&mut self, now: Nanos, ticket: TaskId) {
        let Some(serving) = &mut self.serving else { return };
        let Some(task) = serving.tasks.of_ticket(ticket) else { return };
        task.is_cancelled = true;
        let task = *task;
        if self.membership.is_ready() && task.life == self.membership.life() {
            return self.ask_for_cancel(task.id);
        }
        self.end_task(now, task.id, Unserved::Dropped(DropReason::Cancelled));
    }

    /// Ends an outstanding task by this client's own decision.
    pub(super) fn end_task(&mut self, now: Nanos, id: TaskId, why: Unserved) {
        let Some(serving) = &mut self.serving else { return };
        if let Some(task) = serving.tasks.remove(id) {
            let record = EndRecord::new(now, EndedBy::Client, task.resubmitted);
            serving.decide(&task, without_answer(why, record));
        }
    }

    pub(super) fn ask_for_cancel(&mut self, id: TaskId) {
        let Some(serving) = &self.serving else { return };
        let Some(task) = serving.tasks.get(id).filter(|task| task.life == self.membership.life())
        else {
            return;
        };
        let Some(served) = serving.models.get(task.model) else { return };
        let cancel = Cancel { task: id.0.into(), model: served.id.0.into() };
        if let Some(conn) = self.membership.thread(served.thread) {
            // Not sent, the task merely runs for nothing.
            let _ = self.transport.send(conn, &cancel, &[]);
        }
    }

    pub(super) fn on_task_end(&mut self, now: Nanos, end: &TaskEnd, by: EndedBy) {
        let Some(why) = unserved(end) else {
            // Not understood; the lease bounds how long the task stays without outcome.
            self.counters.unexpected.add(1);
            return;
        };
        let id = TaskId(end.task.get());
        let Some(why) = self.end_without_input(id, why) else { return };
        if let Unserved::Dropped(reason) = why
            && self.keep(now, id, reason)
        {
            return;
        }
        let Some(serving) = &mut self.serving else { return };
        match serving.tasks.remove(id) {
            Some(task) => {
                let retry_after = Nanos::from_millis(end.retry_ms.get().into());
                if retry_after > Nanos::ZERO
                    && let Some(served) = serving.models.get(task.model)
                {
                    served.model.close_until(now + retry_after);
                    self.counters.hinted.add(1);
                }
                let record = EndRecord { retry_after, ..EndRecord::new(now, by, task.resubmitted) };
                serving.decide(&task, without_answer(why, record));
            }
            None => self.counters.duplicates.add(1),
        }
    }

    pub(super) fn on_result(&mut self, now: Nanos, conn: ConnId, result: &TaskResult, len: u32) {
        if !self.backends.authorised(conn) {
            return self.counters.unexpected.add(1);
        }
        let id = TaskId(result.task.get());
        let Some(task) = self.serving.as_mut().and_then(|serving| serving.tasks.remove(id)) else {
            return self.counters.duplicates.add(1);
        };
        let timing = timing(&task, result, now, self.clock_of(task.sent_in));
        if let Some(serving) = &mut self.serving {
            serving.complete(&task, timing, len);
        }
    }

    /// Ends tasks without an outcome `lease_grace` after their deadline, and tasks that wait for a
    /// scheduler at their deadline; but not before the client has read what has arrived.
    pub(super) fn expire_leases(&mut self, now: Nanos) -> usize {
        let first = self.serving.as_ref().and_then(|serving| serving.tasks.next_expiry());
        if first.is_none_or(|expires| expires > now) || self.is_behind() {
            return 0;
        }
        let Some(serving) = &mut self.serving else { return 0 };
        let mut expired = 0;
        while let Some(task) = serving.tasks.pop_expired(now) {
            let with_scheduler = self.membership.is_ready() && task.life == self.membership.life();
            let why = match with_scheduler {
                true => Unserved::Failed(FailReason::LeaseExpired),
                false => out_of_time(&task, self.orderly),
            };
            let record = EndRecord::new(now, EndedBy::Client, task.resubmitted);
            serving.decide(&task, without_answer(why, record));
            expired += 1;
        }
        expired
    }
}

impl<T: Transport> ClientIo<T> {
    /// True while leases that are over wait for what has arrived.
    fn is_behind(&mut self) -> bool {
        let Self { transport, membership, backends, .. } = &*self;
        let threads = membership.thread_conns();
        let has_unread = threads.chain(backends.conns()).any(|conn| transport.has_unread(conn));
        self.behind.holds_leases(has_unread, self.awake.total())
    }
}

impl Serving {
    /// Decides a task that is not, or no longer, among the outstanding.
    pub(super) fn decide(&mut self, task: &Task, end: End) {
        let Some(Served { model, .. }) = self.models.get(task.model) else { return };
        // Outstanding tasks are undecided, so this is the first and only decision.
        let first = model.slabs.complete(task.id);
        debug_assert!(first);
        self.listeners.extend(self.session.deliver(model, task.id, end));
    }

    fn complete(&mut self, task: &Task, timing: Timing, len: u32) {
        let Some(Served { model, .. }) = self.models.get(task.model) else { return };
        if !model.signature.output.allows(len as usize) {
            self.session.counters.wrong_answer_size.add(1);
            let record = EndRecord::new(timing.landed, EndedBy::Client, task.resubmitted);
            return self.decide(task, End::Failed(FailReason::Engine, record));
        }
        if !model.has_variant(timing.variant) {
            self.session.counters.wrong_variant.add(1);
            let record = EndRecord::new(timing.landed, EndedBy::Client, task.resubmitted);
            return self.decide(task, End::Failed(FailReason::Engine, record));
        }
        self.decide(task, End::Completed(timing));
    }
}

/// The deadline on the scheduler's clock, early by what that clock may be wrong.
fn scheduler_deadline(deadline: Nanos, sync: &ClockSync) -> Nanos {
    let there = sync.to_scheduler(deadline).expect("a client opens only after the first pongs");
    there - sync.error()
}

/// `None` for a kind or reason this build does not know.
fn unserved(end: &TaskEnd) -> Option<Unserved> {
    match end.kind {
        DROPPED => DropReason::from_code(end.reason).map(Unserved::Dropped),
        FAILED => FailReason::from_code(end.reason).map(Unserved::Failed),
        _ => None,
    }
}

fn without_answer(why: Unserved, record: EndRecord) -> End {
    match why {
        Unserved::Dropped(reason) => End::Dropped(reason, record),
        Unserved::Failed(reason) => End::Failed(reason, record),
    }
}

/// Without a clock nothing is known of the execution but that it has ended.
fn timing(task: &Task, result: &TaskResult, landed: Nanos, sync: Option<&ClockSync>) -> Timing {
    let local = |there: u64| sync.and_then(|sync| sync.to_local(Nanos(there))).unwrap_or(landed);
    Timing {
        submitted: task.submitted,
        started: local(result.started_ns.get()),
        finished: local(result.finished_ns.get()),
        landed,
        deadline: task.deadline,
        clock_error: sync.map_or(Nanos::MAX, ClockSync::error),
        batch_size: result.batch_size.get().into(),
        gpu: GpuId(result.gpu.get()),
        variant: result.variant_index(),
        cold: result.is_cold(),
    }
}

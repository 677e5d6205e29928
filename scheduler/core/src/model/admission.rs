//! Fair admission: who may wait while the frontends of one model ask for more than it can serve.
//!
//! The queue then holds no more than the next batches take. It admits a frontend that asks for
//! less than its share; if there is no room, the newest task of one that asks for more leaves. So the
//! first waits behind one batch at most, as if it were alone. The others share equally what is left.

use super::{ModelCounters, ModelState};
use crate::admission::fair_share::TaskCounts;
use crate::model::quiet_period::QuietPeriod;
use crate::model::sink::ModelSink;
use baton_types::{FrontendId, Nanos, Request, TaskId};

/// Tasks that leave for one that arrives: a long queue is cut in several steps.
const LEAVE_MAX: usize = 32;
/// A task that has to leave is among this many of the newest ones. Those with the latest deadlines
/// pass for the newest, as they nearly always are.
const NEWEST: usize = 64;

impl ModelState {
    /// Whether a task that arrives may wait; if not, it has ended. Others may have had to leave.
    pub(super) fn admit(&mut self, now: Nanos, request: Request, out: &mut impl ModelSink) -> bool {
        if self.fair_share.is_due(now) {
            let ModelCounters { dispatched, given_up, .. } = self.counters;
            self.fair_share.close_ticks(now, TaskCounts { dispatched, given_up });
            let room = |turns| self.sizing.room(turns);
            self.fair_share.set_room(self.fair_share.turns().map_or(self.sizing.target, room));
        }
        self.fair_share.on_task(request.task.frontend());
        match self.queue_limit() {
            None => true,
            Some(queue_limit) => self.admit_to(queue_limit, now, request, out),
        }
    }

    /// How many tasks may wait, if there is a limit besides the queue's capacity.
    #[inline]
    pub(super) fn queue_limit(&self) -> Option<usize> {
        let queue_limit = self.fair_share.queue_limit()?;
        Some(queue_limit.min(self.queue.capacity()))
    }

    #[cold]
    fn admit_to(
        &mut self,
        queue_limit: usize,
        now: Nanos,
        Request { task, deadline, .. }: Request,
        out: &mut impl ModelSink,
    ) -> bool {
        if !self.horizon(now, None).fits_alone(deadline) {
            // It ends for that reason, and no other task leaves for it.
            return true;
        }
        self.quiet_period = QuietPeriod::OVER;
        for _ in 0..LEAVE_MAX {
            if self.queue.len() < queue_limit {
                return true;
            }
            let Some(rank) = self.who_leaves(task.frontend()) else { break };
            self.leave(now, rank, out);
        }
        let full = self.queue.len() >= queue_limit && self.fair_share.is_over(task.frontend());
        if full {
            self.sizing.rate.on_refused();
            self.end_over_share(now, task, out);
        }
        !full
    }

    /// The rank of the newest task of another frontend that asks for more than its share; if
    /// `frontend` does so itself, only of one that has more waiting.
    fn who_leaves(&self, frontend: FrontendId) -> Option<usize> {
        let newest = self.queue.len().saturating_sub(NEWEST)..self.queue.len();
        let of = |rank: usize| self.queue.get(rank).task.frontend();
        let other = |&rank: &usize| of(rank) != frontend && self.fair_share.is_over(of(rank));
        let rank = newest.clone().rev().find(other)?;
        let waiting = |whose| newest.clone().filter(|&rank| of(rank) == whose).count();
        let within = !self.fair_share.is_over(frontend);
        (within || waiting(of(rank)) > waiting(frontend) + 1).then_some(rank)
    }

    fn leave(&mut self, now: Nanos, rank: usize, out: &mut impl ModelSink) {
        let task = self.queue.get(rank).task;
        self.sizing.rate.on_bad(self.is_ready());
        self.end_over_share(now, task, out);
        self.queue.remove_at(rank);
    }

    /// Something waits: the queue is full.
    fn end_over_share(&mut self, now: Nanos, task: TaskId, out: &mut impl ModelSink) {
        self.counters.ended += 1;
        self.counters.over_share += 1;
        self.fair_share.on_refused();
        out.over_share(task, self.retry_after(now));
    }
}

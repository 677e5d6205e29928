//! The candidate: what would run now, from when on and until when, and when to look again.

use super::ModelState;
use crate::candidate::Candidate;
use crate::model::formation::Window;
use crate::model::quiet_period::QuietPeriod;
use crate::model::sink::ModelSink;
use crate::policy::Order;
use baton_types::Nanos;

impl ModelState {
    /// As `reform`, but publishes in any case: RankState waits for word after a grant.
    pub(super) fn publish(&mut self, now: Nanos, out: &mut impl ModelSink) {
        self.derive(now, out);
        out.candidate(self.id, self.candidate, self.grants);
    }

    pub(super) fn derive(&mut self, now: Nanos, out: &mut impl ModelSink) {
        let window = self.form(now, None, out);
        if self.queue.is_empty() {
            self.soft_deadline = Nanos::MAX;
            self.sizing.rate.on_empty(now);
        }
        self.candidate = (window.batch > 0).then(|| self.candidate_of(window, now));
        let due = self.candidate.map_or(Nanos::MAX, |c| c.exec_at - c.delay);
        // One more task leaves a schedulable batch as schedulable as it was.
        if due > now || self.schedulable_at > now {
            self.schedulable_at = due;
        }
        self.timer = self.timer_of(window).min(self.run_over());
        self.quiet_period =
            if now < due { self.quiet_period_of(window, now) } else { QuietPeriod::OVER };
        self.is_stale = false;
        debug_assert_eq!(self.timer == Nanos::MAX, self.queue.is_empty(), "who waits has a timer");
        debug_assert!(self.counters.agree(self.queue.len()), "each task waits or has gone one way");
    }

    /// The next tasks make the batch larger, or give up its head for a later one. Neither makes it
    /// due before the largest batch with this head would be.
    fn quiet_period_of(&self, window: Window, now: Nanos) -> QuietPeriod {
        if window.batch == 0 {
            return QuietPeriod::OVER;
        }
        let head = self.queue.deadline(window.head).min(self.soft_deadline);
        let (size, until) = self.sizing.undue(window.batch, head);
        if until <= now {
            return QuietPeriod::OVER;
        }
        QuietPeriod { until, waiting: window.head + size as usize, head }
    }

    /// Symphony App. C, `update_candidate`. The pseudocode's second assignment to `exec_at`
    /// discards the choice of the first; meant is the choice, not before `earliest`.
    fn candidate_of(&self, window: Window, now: Nanos) -> Candidate {
        let batch = window.batch;
        let deadline = self.queue.deadline(window.head);
        let delay = self.network.before(batch);
        let of_batch = self.latency_for(window);
        let latency = of_batch.of(batch);
        let frontrun =
            deadline.min(self.soft_deadline) - of_batch.p99(batch + 1) - self.network.data_per_task;
        let invalid_after = deadline - latency;
        let (urgency, bad_rate) = match self.rules().order {
            Order::LatestStart => (invalid_after, self.bad_rate()),
            Order::Frontrun => (frontrun, 0),
        };
        // Where no other task is let in, there is none to wait for.
        let limit = self.queue_limit();
        let full = limit.is_some_and(|limit| self.queue.len() >= limit);
        // What asks for accuracy takes longer than what others wait for.
        let waits = !full && !self.queue.has_floors();
        let deferred =
            if waits { self.sizing.deferred(batch, deadline, frontrun) } else { Nanos::ZERO };
        let exec_at = (now + delay).max(self.ready(now)).max(deferred);
        let latest = frontrun - self.network.jitter - self.sizing.slot_wait;
        // Where frontends are kept to their shares, tasks are being lost: no slot is to spare.
        let (excess, run) = match limit {
            None => self.early(now, batch, latency, latest),
            Some(_) => (Candidate::NOT_EARLY, 0),
        };
        let slack = if self.rules().yields { self.sizing.slack } else { Nanos::ZERO };
        Candidate {
            batch,
            exec_at,
            invalid_after,
            urgency,
            bad_rate,
            delay,
            latest,
            latency,
            alone: self.sizing.latency().alone(),
            slack,
            dispersion: self.sizing.dispersion,
            excess,
            run,
        }
    }

    /// [`Candidate::excess`] and [`Candidate::run`].
    fn early(&self, now: Nanos, batch: u32, latency: Nanos, latest: Nanos) -> (u16, u16) {
        if self.rules().yields && self.sizing.spending.has_spare() {
            (Candidate::WITHIN_SPARE, 0)
        } else if self.sizing.may_start_early() {
            (self.sizing.excess(batch, latency), self.sizing.run(now, batch, latest))
        } else {
            (Candidate::NOT_EARLY, 0)
        }
    }

    /// When a run is over.
    #[inline]
    fn run_over(&self) -> Nanos {
        match self.candidate {
            Some(c) if c.run > 0 => self.sizing.awaited(c.batch, c.latest),
            _ => Nanos::MAX,
        }
    }

    /// The moment at which the window as formed stops fitting, or its head becomes hopeless.
    fn timer_of(&self, window: Window) -> Nanos {
        match (self.queue.is_empty(), window.batch) {
            (true, _) => Nanos::MAX,
            (false, 0) => self.hopeless_at(),
            (false, batch) => {
                let latency = self.latency_for(window).of(batch);
                self.hopeless_at().min(self.expiry(window.head, batch, latency))
            }
        }
    }

    /// The moment just after the last at which a batch with this head could be planned.
    fn expiry(&self, rank: usize, batch: u32, latency: Nanos) -> Nanos {
        let just_after = Nanos(1);
        let before = self.network.before(batch).max(self.load);
        self.queue.deadline(rank) - latency - before + just_after
    }

    /// When the head is given up if it is in no batch by then. There must be one.
    pub(super) fn hopeless_at(&self) -> Nanos {
        self.expiry(0, 1, self.latency_for(Window { head: 0, batch: 1 }).alone())
    }
}

#[cfg(test)]
#[path = "forming_tests.rs"]
mod tests;

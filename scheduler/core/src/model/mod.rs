//! One model's half of the scheduler: queue → candidate → (grant) → batch.
//!
//! Inputs are requests, cancellations, grants and time; effects go into a [`ModelSink`]. The
//! candidate is kept current incrementally: every input re-forms it by bisection over the
//! deadline-ordered queue, O(log n), and publishes it only if it changed.

mod admission;
pub(crate) mod batch;
mod config;
mod figures;
mod floors;
pub(crate) mod formation;
mod forming;
mod gaps;
mod older;
pub(crate) mod queue;
mod quiet_period;
pub(crate) mod rate;
mod readiness;
mod sealing;
pub(crate) mod sink;
pub(crate) mod sizing;
mod spending;
pub(crate) mod variant;

use alloc::boxed::Box;
use core::mem;

use crate::admission::fair_share::FairShare;
use crate::candidate::{Candidate, GpuUpdate, Grant};
use crate::execution::network::NetworkDelay;
use crate::execution::prediction::BatchShape;
use crate::execution::slowdown::{Pace, Slowdown};
use crate::model::formation::{Horizon, Window};
use crate::model::queue::DeadlineQueue;
use crate::model::quiet_period::QuietPeriod;
use crate::model::sink::ModelSink;
use crate::model::sizing::Sizing;
use crate::model::variant::Choice;
use crate::policy::Rules;
use crate::policy::patience::Patience;
use baton_types::{DropReason, FrontendId, ModelId, Nanos, Profile, Request, TaskId, Unserved};

pub use config::{ModelConfig, ModelCounters};

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct ModelState {
    id: ModelId,
    /// The deadline that the batch is deferred by if one of its tasks left more time than the
    /// objective; [`Nanos::MAX`] while none that waits did.
    soft_deadline: Nanos,
    candidate: Option<Candidate>,
    /// Since when the candidate is schedulable, or from when on it will be.
    schedulable_at: Nanos,
    /// Grants consumed, modulo 2³²: stamps candidates.
    grants: u32,
    /// When the candidate must be re-formed although nothing arrives.
    timer: Nanos,
    /// No slot has the weights before; in the past if one has.
    ready_at: Nanos,
    /// How long a LOAD would take, if no slot has the weights and none is loading them. Else zero.
    load: Nanos,
    sizing: Sizing,
    /// Which of its variants a batch gets.
    choice: Choice,
    /// Of its variants, in 1/100,000; empty without any.
    accuracies: Box<[u32]>,
    // What every arrival touches, together.
    network: NetworkDelay,
    queue: DeadlineQueue,
    quiet_period: QuietPeriod,
    /// Tasks were enqueued since the candidate was formed.
    is_stale: bool,
    counters: ModelCounters,
    fair_share: FairShare,
    /// When a task that asks for no accuracy was given up last.
    lost_plain_at: Option<Nanos>,
}

impl ModelState {
    /// A model without tasks, all of which will be one frontend's. Allocates everything it will ever use.
    pub fn new(config: ModelConfig) -> Self {
        Self::shared(config, 0)
    }

    /// A model without tasks, for frontends `0..frontends`, which share it fairly while they ask for
    /// more than can be served.
    pub fn shared(config: ModelConfig, frontends: u32) -> Self {
        Self {
            fair_share: FairShare::new(config.slo, frontends),
            id: config.id,
            soft_deadline: Nanos::MAX,
            network: config.network,
            queue: DeadlineQueue::new(config.queue_capacity),
            sizing: Sizing::new(config),
            choice: Choice::default(),
            accuracies: Box::default(),
            candidate: None,
            schedulable_at: Nanos::MAX,
            lost_plain_at: None,
            grants: 0,
            timer: Nanos::MAX,
            ready_at: Nanos::ZERO,
            load: Nanos::ZERO,
            quiet_period: QuietPeriod::OVER,
            is_stale: false,
            counters: ModelCounters::default(),
        }
    }

    /// The same model, under a number to whose former models RankState made `grants` grants.
    pub fn after(mut self, grants: u32) -> Self {
        debug_assert!(self.candidate.is_none(), "nothing is published yet");
        self.grants = grants;
        self
    }

    /// A task arrived. `deadline` is the application's, on the clock of `now`.
    pub fn on_request(&mut self, now: Nanos, request: Request, out: &mut impl ModelSink) {
        self.enqueue(now, request, out);
        self.reform(now, out);
    }

    /// A quota did not let one of its tasks in.
    pub fn count_refused(&mut self) {
        self.counters.refused += 1;
    }

    /// The first half of [`ModelState::on_request`]: the task waits or has ended, and the candidate
    /// is not current any more. If this is true, [`ModelState::catch_up`] must be called at the same
    /// `now`; once is enough for several tasks that arrive at a time.
    pub fn enqueue(&mut self, now: Nanos, request: Request, out: &mut impl ModelSink) -> bool {
        self.counters.received += 1;
        let request = Request { deadline: request.deadline - self.network.response, ..request };
        if !self.admit(now, request, out) {
            return true;
        }
        let resized = self.sizing.on_arrival(now);
        if resized {
            self.network = self.sizing.network;
        }
        let floor = self.floor_of(&request);
        if !self.horizon(now, None).fits_alone(request.deadline) {
            self.end(request.task, DropReason::DeadlinePassed, out);
        } else if !self.floor_fits(now, None, floor, request.deadline) {
            self.end(request.task, DropReason::Accuracy, out);
        } else if self.queue.push(request, floor).is_err() {
            self.counters.ended += 1;
            self.counters.queue_full += 1;
            out.queue_full(request.task, self.retry_after(now));
        } else {
            self.bound_deferral(now, request.deadline);
        }
        let over = resized
            || floor > 0
            || !self.quiet_period.lasts(now, self.queue.len(), request.deadline);
        if over {
            self.quiet_period = QuietPeriod::OVER;
        }
        !mem::replace(&mut self.is_stale, true) || over
    }

    /// No task is deferred for longer than the objective, however late its deadline.
    fn bound_deferral(&mut self, now: Nanos, deadline: Nanos) {
        let objective = now + self.sizing.slo - self.network.response;
        if deadline > objective && self.soft_deadline == Nanos::MAX {
            self.soft_deadline = objective;
            self.quiet_period = QuietPeriod::OVER;
        }
    }

    /// The second half: brings candidate and timer up to date, unless RankState could do nothing
    /// with the candidate yet.
    pub fn catch_up(&mut self, now: Nanos, out: &mut impl ModelSink) {
        if now >= self.quiet_period.until {
            self.reform(now, out);
        }
    }

    /// Brings candidate and timer up to date, and publishes the candidate if it changed.
    pub fn reform(&mut self, now: Nanos, out: &mut impl ModelSink) {
        let before = self.candidate;
        self.derive(now, out);
        if self.candidate != before {
            out.candidate(self.id, self.candidate, self.grants);
        }
    }

    /// A task came back: its backend died or could not run it in time. It ends as `otherwise` if
    /// its deadline leaves no room for another attempt. `request` is as the batch had it.
    pub fn on_requeue(
        &mut self,
        now: Nanos,
        request: Request,
        otherwise: Unserved,
        out: &mut impl ModelSink,
    ) {
        self.counters.requeued += 1;
        let floor = self.floor_of(&request);
        let fits = self.horizon(now, None).fits_alone(request.deadline);
        if fits && !self.floor_fits(now, None, floor, request.deadline) {
            return self.end(request.task, DropReason::Accuracy, out);
        }
        if !fits || self.queue.push(request, floor).is_err() {
            self.counters.ended += 1;
            return out.end_task(request.task, otherwise);
        }
        self.bound_deferral(now, request.deadline);
        self.reform(now, out);
    }

    /// The application cancelled a task. False if it does not wait here (any more).
    pub fn on_cancel(&mut self, now: Nanos, task: TaskId, out: &mut impl ModelSink) -> bool {
        let waits = self.queue.remove(task).is_some();
        if waits {
            self.end(task, DropReason::Cancelled, out);
            self.reform(now, out);
        }
        waits
    }

    /// A frontend is gone: its tasks go with it.
    pub fn on_frontend_lost(&mut self, now: Nanos, frontend: FrontendId, out: &mut impl ModelSink) {
        self.fair_share.forget(frontend);
        let counters = &mut self.counters;
        self.queue.remove_frontend(frontend, |request| {
            counters.ended += 1;
            out.end_task(request.task, Unserved::Dropped(DropReason::FrontendLost));
        });
        self.reform(now, out);
    }

    /// Ends every waiting task for the same reason: no backend can serve the model, or shutdown.
    pub fn drop_all(&mut self, now: Nanos, why: DropReason, out: &mut impl ModelSink) {
        while let Some(request) = self.queue.pop() {
            self.end(request.task, why, out);
        }
        self.reform(now, out);
    }

    /// RankState gives the model a slot: seal the batch that suits it, or give it back.
    pub fn on_grant(&mut self, now: Nanos, grant: Grant, out: &mut impl ModelSink) {
        self.grants = self.grants.wrapping_add(1);
        self.candidate = None;
        self.sizing.note_grant(now, &grant);
        let mut window = self.form(now, Some(&grant), out);
        if grant.slowdown.is_slow() {
            window.batch = self.fitting(now, &grant, window);
        }
        if window.batch == 0 {
            self.counters.returned += 1;
            out.gpu(GpuUpdate::Returned { gpu: grant.gpu });
        } else {
            self.seal(grant, now, window, out);
        }
        self.schedulable_at = Nanos::MAX;
        self.publish(now, out);
    }

    /// The timer fired: time alone made the candidate invalid or a task hopeless.
    pub fn on_timer(&mut self, now: Nanos, out: &mut impl ModelSink) {
        if self.next_timer().is_some_and(|at| at <= now) {
            self.reform(now, out);
        }
    }

    /// When [`ModelState::on_timer`] must be called; `None` while nothing waits.
    #[must_use]
    #[inline]
    pub fn next_timer(&self) -> Option<Nanos> {
        let quiet_period = if self.is_stale { self.quiet_period.until } else { Nanos::MAX };
        let at = self.timer.min(quiet_period);
        (at != Nanos::MAX).then_some(at)
    }

    /// A backend measured a batch of this model: the rows that it executed took `measured` on a slot granted with this
    /// slowdown. Returns what that says of the slot; nothing without rows.
    pub fn on_measured(
        &mut self,
        shape: BatchShape,
        measured: Nanos,
        slowdown: Slowdown,
    ) -> Option<Pace> {
        if shape.size == 0 {
            return None;
        }
        let predicted = self.sizing.execution.observe(shape, slowdown.removed(measured));
        self.quiet_period = QuietPeriod::OVER;
        Some(Pace::of(measured, predicted))
    }

    /// A backend measured how long the inputs of a batch of `batch` tasks took to come: what that added to the time in
    /// which it fetched any, and how much later than planned they were there.
    pub fn on_fetched(&mut self, batch: u32, time: Nanos, late: Nanos) {
        self.sizing.on_fetched(batch, time, late);
        self.network = self.sizing.network;
        self.quiet_period = QuietPeriod::OVER;
    }

    /// A backend brought its own measured profile. Larger batches than before are not used.
    /// Of a model with variants: one of each, the cheapest first, of which `patience` is.
    pub fn set_profiles(&mut self, profiles: &[Profile], patience: Patience) {
        self.sizing.set_profiles(profiles, patience);
        self.quiet_period = QuietPeriod::OVER;
    }

    /// Another latency objective: batches are sized for it from now on. Tasks that wait keep their deadlines.
    pub fn set_objective(&mut self, slo: Nanos) {
        self.sizing.set_objective(slo);
        self.fair_share.set_objective(slo);
        self.quiet_period = QuietPeriod::OVER;
    }

    /// As if nothing had been lost lately. The estimates follow when the traffic is next estimated anew.
    pub(crate) fn forget_losses(&mut self) {
        self.sizing.rate.forget_losses();
    }

    /// Other rules than the policy's own from now on: what [`Trial`](crate::Trial) has found.
    /// [`ModelState::reform`] must be called at the same moment.
    pub fn set_rules(&mut self, rules: Rules) {
        self.sizing.set_rules(rules);
        self.quiet_period = QuietPeriod::OVER;
    }

    /// When a task that finds no place may come again. Something waits; by then its head has gone.
    fn retry_after(&self, now: Nanos) -> Nanos {
        (self.hopeless_at() - now).min(self.sizing.slo)
    }

    /// Ends the heads that could not even run alone, then forms the best batch of the rest, of tasks that a variant in time for
    /// the batch is accurate enough for.
    #[inline]
    fn form(&mut self, now: Nanos, grant: Option<&Grant>, out: &mut impl ModelSink) -> Window {
        loop {
            while let Some((head, why)) = self.hopeless_head(now, grant) {
                self.note_lost(now, self.queue.floor(0, 1));
                self.queue.remove_range(0, 1);
                self.give_up(head, why, out);
            }
            let horizon = self.horizon(now, grant);
            let most = self.sizing.most;
            let window = formation::form(&self.queue, &horizon, self.sizing.floor, most);
            if !self.queue.has_floors() {
                return if self.rules().passes_over {
                    formation::first_to_start(&self.queue, &horizon, window, most)
                } else {
                    window
                };
            }
            match self.within_floors(&horizon, window) {
                Some(within) if self.costs_others(now, grant, window, within) => {
                    self.give_up_asking(window, out);
                }
                Some(within) => return within,
                // Its head is not the queue's, and cannot have the variant that it asks for.
                None => {
                    let gone = self.queue.get(window.head).task;
                    self.queue.remove_at(window.head);
                    self.give_up(gone, DropReason::Accuracy, out);
                }
            }
        }
    }

    /// The queue's head, if it cannot be served any more, and why.
    #[inline]
    fn hopeless_head(&self, now: Nanos, grant: Option<&Grant>) -> Option<(TaskId, DropReason)> {
        let head = (!self.queue.is_empty()).then(|| self.queue.get(0))?;
        if !self.horizon(now, grant).fits_alone(head.deadline) {
            return Some((head.task, DropReason::Deadline));
        }
        let floor = self.queue.floor(0, 1);
        let fits = self.floor_fits(now, grant, floor, head.deadline);
        (!fits).then_some((head.task, DropReason::Accuracy))
    }

    fn give_up(&mut self, task: TaskId, why: DropReason, out: &mut impl ModelSink) {
        self.sizing.rate.on_bad(self.is_ready());
        self.counters.given_up += 1;
        self.end(task, why, out);
    }

    fn end(&mut self, task: TaskId, why: DropReason, out: &mut impl ModelSink) {
        self.counters.ended += 1;
        out.end_task(task, Unserved::Dropped(why));
    }

    /// On the slot that is granted; without a grant as if one were idle.
    #[inline]
    fn horizon(&self, now: Nanos, grant: Option<&Grant>) -> Horizon<'_> {
        let (free_at, network) = match grant {
            Some(grant) => (grant.free_at, self.sizing.fetching.behind(grant.port_wait)),
            None => (self.ready(now), self.network),
        };
        Horizon { now, free_at, latency: self.sizing.latency(), network }
    }
}

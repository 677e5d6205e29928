//! What happens to tasks and batches: submitted, cancelled, reported, taken back.

use std::mem;

use baton_core::{
    BackendId, BatchShape, CostHint, DropReason, FailReason, FrontendId, GpuUpdate, ModelId, Nanos,
    Request, TaskId, Unserved,
};
use baton_rdma::wire::{ActionDone, ActionStatus, Cancel, Submit};
use baton_rdma::{ConnId, Transport};
use zerocopy::little_endian::U16;

use super::ModelThread;
use super::catalogue::Service;
use crate::dispatch::Place;
use crate::in_flight::Planned;

impl<T: Transport> ModelThread<T> {
    pub(super) fn on_submit(
        &mut self,
        now: Nanos,
        conn: ConnId,
        frontend: FrontendId,
        submit: &Submit,
    ) {
        let task = TaskId(submit.task.get());
        if task.frontend() != frontend {
            return self.refuse(conn, "a submitted task names another frontend");
        }
        self.out.counters.submitted.add(1);
        self.out.board.submitted(frontend);
        let request = Request {
            task,
            deadline: Nanos(submit.deadline_ns.get()),
            arrived: now,
            cost: CostHint::from_bits(submit.cost.get()),
            input_bytes: submit.input_bytes.get(),
            accuracy_min: submit.accuracy_min.get(),
        };
        match self.out.place_of(submit.model.get()) {
            Ok(Place::Here(at)) => self.enqueue(now, at as usize, request),
            Ok(Place::Moved(migration)) => self.pass_request(migration, request),
            Ok(Place::Elsewhere) => self.out.tell(task, Unserved::Failed(FailReason::UnknownModel)),
            Err(why) => self.out.tell(task, why),
        }
    }

    pub(super) fn enqueue(&mut self, now: Nanos, at: usize, request: Request) {
        let frontend = request.task.frontend();
        debug_assert!(self.out.peers.frontend(frontend).is_some(), "its frontend is here");
        if let Some(why) = self.unservable(at) {
            self.out.board.unserved(self.models[at].state.id());
            return self.out.tell(request.task, Unserved::Dropped(why));
        }
        if let Some(cache) = &self.out.link.cache {
            let state = &self.models[at].state;
            cache.arrived(state.id(), !state.is_ready());
        }
        let model = &mut self.models[at];
        if let Some(quota) = &mut model.quota
            && let Err(wait) = quota.admit(now, request.task.frontend())
        {
            model.state.count_refused();
            return self.out.refuse(request.task, DropReason::Quota, wait);
        }
        self.record(now, at, &request);
        let model = &mut self.models[at];
        let behind = model.state.enqueue(now, request, &mut self.out);
        if behind && !mem::replace(&mut model.touched, true) {
            self.touched.push(at);
        }
    }

    /// Candidates are re-formed once per pass at most, however many requests it brought.
    pub(super) fn catch_up(&mut self, now: Nanos) {
        while let Some(at) = self.touched.pop() {
            self.models[at].touched = false;
            self.models[at].state.catch_up(now, &mut self.out);
            self.retime(at);
        }
    }

    pub(super) fn on_cancel(
        &mut self,
        now: Nanos,
        conn: ConnId,
        frontend: FrontendId,
        cancel: &Cancel,
    ) {
        let task = TaskId(cancel.task.get());
        if task.frontend() != frontend {
            return self.refuse(conn, "a cancelled task names another frontend");
        }
        match self.out.place_of(cancel.model.get()) {
            Ok(Place::Here(at)) => self.withdraw(now, at as usize, task),
            Ok(Place::Moved(migration)) => self.pass_cancel(migration, task),
            Ok(Place::Elsewhere) | Err(_) => self.out.counters.cancelled_late.add(1),
        }
    }

    pub(super) fn withdraw(&mut self, now: Nanos, at: usize, task: TaskId) {
        match self.models[at].state.on_cancel(now, task, &mut self.out) {
            true => self.out.board.excused(self.models[at].state.id(), 1),
            false => self.out.counters.cancelled_late.add(1),
        }
        self.retime(at);
    }

    pub(super) fn on_action_done(
        &mut self,
        now: Nanos,
        conn: ConnId,
        from: BackendId,
        (done, stale): (&ActionDone, &[U16]),
    ) {
        let name = done.action.get();
        let Some(status) = ActionStatus::from_code(done.status) else {
            return self.refuse(conn, "a batch report has an unknown status");
        };
        if self.out.in_flight.get(name).is_none_or(|sent| sent.backend != from) {
            return self.out.counters.stale_reports.add(1);
        }
        let planned = self.out.in_flight.get(name).map_or(0, |sent| sent.planned.shape.variant);
        if u16::from(done.variant) > planned {
            return self.refuse(conn, "a batch report names a dearer variant than the one planned");
        }
        let finished = Nanos(done.finished_ns.get()).min(now);
        let fetched_at = self.note_fetch(now, name, done);
        match status {
            ActionStatus::Executed => {
                let started = Nanos(done.started_ns.get());
                let measured = Nanos(done.finished_ns.get()) - started;
                self.out.counters.batches_executed.add(1);
                let shape = BatchShape {
                    variant: done.variant.into(),
                    ..BatchShape::of(done.rows.get().into())
                };
                let span = (started.min(finished), finished);
                self.executed(name, (shape, stale), measured, span, fetched_at);
            }
            ActionStatus::EngineError => {
                self.out.counters.batches_engine_error.add(1);
                let nothing = BatchShape { variant: done.variant.into(), ..BatchShape::of(0) };
                let ended = (finished, finished);
                self.executed(name, (nothing, stale), Nanos::ZERO, ended, fetched_at);
            }
            ActionStatus::Expired => {
                self.out.counters.batches_expired.add(1);
                self.take_back(now, name, Unserved::Dropped(DropReason::Deadline), fetched_at);
            }
            ActionStatus::Refused => {
                self.out.counters.batches_refused.add(1);
                self.take_back(now, name, Unserved::Dropped(DropReason::Deadline), fetched_at);
            }
        }
    }

    /// How long the inputs of the batch took to come, if that was measured: what its model plans with next. Of a model that
    /// has moved it is lost. Returns when they were there.
    fn note_fetch(&mut self, now: Nanos, name: u64, done: &ActionDone) -> Option<Nanos> {
        let planned = self.out.in_flight.get(name)?.planned;
        let (took, at) = done.fetch.measured()?;
        let at = at.min(now);
        if let Place::Here(here) = self.out.places[planned.model.0 as usize] {
            let state = &mut self.models[here as usize].state;
            state.on_fetched(planned.shape.size, took, planned.fetched_late(at));
        }
        Some(at)
    }

    /// The backend has answered every task of the batch: `done` is what it executed, `stale` the rows whose inputs were stale, and
    /// `span` when it says that it executed, the future left out.
    fn executed(
        &mut self,
        name: u64,
        (done, stale): (BatchShape, &[U16]),
        measured: Nanos,
        span: (Nanos, Nanos),
        fetched_at: Option<Nanos>,
    ) {
        let Some(planned) = self.out.take_report(name, &mut self.returning) else { return };
        let Planned { model, shape, gpu, slowdown, .. } = planned;
        self.take_stale(model, stale);
        self.out.board.executed(model, &self.returning, done, span.1);
        self.out.board.busy(gpu, span.1 - span.0);
        let size = done.size.min(self.returning.len() as u32);
        let shape = BatchShape { size, variant: done.variant, ..shape };
        let pace = match self.out.places[model.0 as usize] {
            Place::Here(at) => {
                self.count_cold(model, span.1);
                self.models[at as usize].state.on_measured(shape, measured, slowdown)
            }
            Place::Moved(migration) => {
                self.pass_measured(migration, shape, slowdown.removed(measured));
                // The prediction that this time would be set against has moved.
                None
            }
            // It was removed after it had moved away.
            Place::Elsewhere => None,
        };
        self.out.link.update(model, GpuUpdate::Finished { gpu, at: span.1, pace, fetched_at });
    }

    /// Takes these rows out of the reported batch: their clients had not written the inputs yet, or have given them up. From
    /// the last row on, so that whatever fills a gap has been looked at.
    fn take_stale(&mut self, model: ModelId, rows: &[U16]) {
        for row in rows.iter().rev().map(|row| usize::from(row.get())) {
            if row < self.returning.len() {
                self.out.board.stale(model, &self.returning.swap_remove(row));
            }
        }
    }

    /// The batch's tasks are unanswered: back to the queue with those that can still make it.
    fn take_back(&mut self, now: Nanos, name: u64, otherwise: Unserved, fetched_at: Option<Nanos>) {
        let Some(Planned { model, gpu, .. }) = self.out.take_report(name, &mut self.returning)
        else {
            return;
        };
        let returning = mem::take(&mut self.returning);
        for &request in &returning {
            match self.out.places[model.0 as usize] {
                Place::Here(at) => self.requeue(now, at as usize, request, otherwise),
                Place::Moved(migration) => self.pass_back(migration, request, otherwise),
                Place::Elsewhere => {
                    self.out.tell(request.task, Unserved::Dropped(DropReason::ModelRemoved));
                }
            }
        }
        self.returning = returning;
        let finished = GpuUpdate::Finished { gpu, at: now, pace: None, fetched_at };
        self.out.link.update(model, finished);
    }

    pub(super) fn requeue(&mut self, now: Nanos, at: usize, request: Request, otherwise: Unserved) {
        let frontend = request.task.frontend();
        if self.out.peers.frontend(frontend).is_none() {
            self.out.tell(request.task, Unserved::Dropped(DropReason::FrontendLost));
        } else if self.shutdown {
            self.out.tell(request.task, Unserved::Dropped(DropReason::Shutdown));
        } else if self.models[at].service == Service::Closed {
            self.out.tell(request.task, Unserved::Dropped(DropReason::ModelRemoved));
        } else {
            self.models[at].state.on_requeue(now, request, otherwise, &mut self.out);
            self.retime(at);
        }
    }

    pub(super) fn on_frontend_lost(&mut self, now: Nanos, frontend: FrontendId) {
        for at in 0..self.models.len() {
            let state = &mut self.models[at].state;
            let before = state.counters().ended;
            state.on_frontend_lost(now, frontend, &mut self.out);
            self.out.board.excused(state.id(), state.counters().ended - before);
            self.retime(at);
        }
    }

    pub(super) fn on_backend_lost(&mut self, now: Nanos, backend: BackendId) {
        while let Some(name) = self.out.in_flight.any_of(backend) {
            self.out.counters.batches_backend_lost.add(1);
            self.take_back(now, name, Unserved::Failed(FailReason::BackendLost), None);
        }
    }

    /// Plans that could not be sent: their backend does not read, or went while the grant was made.
    pub(super) fn take_undelivered(&mut self, now: Nanos) {
        while let Some(name) = self.out.undelivered.pop() {
            self.take_back(now, name, Unserved::Failed(FailReason::BackendLost), None);
        }
    }
}

//! What the worker does with each event of its transport.

use baton_rdma::wire::{Action as WireAction, ActionTask, Message, RefuseCode};
use baton_rdma::{CloseReason, ConnId, Event, Peer, Transport};
use baton_types::{FrontendId, ModelId, Nanos};

use super::Worker;
use crate::action::Action;
use crate::admit::Refusal;
use crate::error::BackendError;
use crate::execute::Executor;
use crate::fetch;

impl<T: Transport, E: Executor> Worker<T, E> {
    /// An error ends the conversation with the scheduler; whatever a frontend does never is one.
    pub(super) fn on_event(&mut self, event: Event<'_>, now: Nanos) -> Result<(), BackendError> {
        match event {
            Event::Opened { conn, peer } => self.on_opened(conn, &peer, now),
            Event::Message { conn, message } => self.on_message(conn, message, now),
            Event::Read(done) => {
                let Self { gpus, fetch_time, counters, .. } = self;
                fetch::settle(now, done, gpus, fetch_time, counters);
                Ok(())
            }
            // A backend exposes no slabs, so no answer can land here.
            Event::Result { conn, .. } => self.refuse(conn),
            Event::Closed { conn, reason } => self.on_closed(conn, &reason, now),
        }
    }

    fn on_opened(&mut self, conn: ConnId, peer: &Peer, now: Nanos) -> Result<(), BackendError> {
        if !self.join.membership.on_opened(now, conn, peer)? && !self.peers.opened(conn, peer) {
            let why = "not the frontend this backend was sent to, or not invited";
            self.transport.close(conn, RefuseCode::Unauthorised, why);
        }
        Ok(())
    }

    fn on_closed(
        &mut self,
        conn: ConnId,
        reason: &CloseReason,
        now: Nanos,
    ) -> Result<(), BackendError> {
        if let Some(end) = &mut self.end {
            end.on_closed();
            self.join.membership.forget(conn);
            self.peers.closed(conn, now);
            return Ok(());
        }
        if !self.join.membership.on_closed(conn, reason)?
            && let Some(frontend) = self.peers.closed(conn, now)
        {
            self.counters.frontends_disconnected += 1;
            self.peers.log_end(frontend, reason, now);
        }
        Ok(())
    }

    fn on_message(
        &mut self,
        conn: ConnId,
        message: Message<'_>,
        now: Nanos,
    ) -> Result<(), BackendError> {
        if self.join.membership.is_control(conn) {
            return self.on_control(message, now);
        }
        match (self.join.membership.thread_of(conn), message) {
            (Some(thread), Message::Action(action, tasks)) => {
                self.on_action(thread, action, tasks, now);
                Ok(())
            }
            (Some(thread), Message::Load(load, victims)) => {
                self.on_load(thread, load, victims, now);
                Ok(())
            }
            (Some(_), _) => Err(BackendError::Protocol("a ModelThread sends only actions")),
            (None, _) => self.refuse(conn),
        }
    }

    fn on_control(&mut self, message: Message<'_>, now: Nanos) -> Result<(), BackendError> {
        let is_member = self.join.membership.stage().is_admitted();
        match message {
            Message::SlabDesc(desc) if is_member && self.peers.is_up(desc.frontend.get()) => {
                self.peers.extend(desc).map_err(BackendError::Protocol)?;
                Ok(self.join.tell_known(desc, &mut self.transport)?)
            }
            Message::SlabDesc(desc) if is_member => {
                self.peers.announce(desc).map_err(BackendError::Protocol)
            }
            Message::PeerUp(up) if is_member => {
                let seen = self.join.membership.scheduler().ip();
                self.peers.up(up, seen).map_err(BackendError::Protocol)
            }
            Message::PeerDown(down) if is_member => {
                self.on_peer_down(down.frontend.get());
                Ok(())
            }
            other => {
                if let Message::ModelDown(down) = other {
                    self.peers.forget_model(ModelId(down.model.get()));
                }
                let (gpus, models) = (&self.gpus, &mut self.models);
                let memory = || gpus.iter().filter_map(|gpu| gpu.loader.as_ref()).collect();
                self.join.on_control(
                    other,
                    now,
                    (&self.config, memory),
                    models,
                    &mut self.transport,
                )
            }
        }
    }

    fn on_peer_down(&mut self, frontend: u32) {
        let Ok(id) = u16::try_from(frontend).map(FrontendId) else { return };
        let (gpus, counters) = (&mut self.gpus, &mut self.counters);
        fetch::vanish(id, gpus, &self.peers, &mut self.transport, counters);
        if let Some(conn) = self.peers.down(id) {
            self.transport.close(conn, RefuseCode::Shutdown, "the scheduler says you are gone");
        }
    }

    /// A message that does not belong on its connection, from a peer that is not the scheduler.
    #[cold]
    fn refuse(&mut self, conn: ConnId) -> Result<(), BackendError> {
        self.counters.unexpected_messages += 1;
        let why = "a frontend only answers READs";
        self.transport.close(conn, RefuseCode::UnexpectedMessage, why);
        Ok(())
    }

    fn on_action(&mut self, thread: u32, wire: &WireAction, tasks: &[ActionTask], now: Nanos) {
        self.counters.plans += 1;
        let rules = self.join.rules().ok_or(Refusal::NotReady);
        let admitted = rules.and_then(|rules| self.admission.check(wire, tasks, &rules));
        let known = |admitted| match self.peers.know_all(tasks) {
            true => Ok(admitted),
            false => Err(Refusal::UnknownFrontend),
        };
        let admitted = match admitted.and_then(known) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                self.count_refusal(refusal, wire);
                return self.refuse_action(thread, wire, now);
            }
        };
        let queue = &mut self.gpus[admitted.gpu].actions;
        if queue.is_full() {
            self.counters.plans_queue_full += 1;
            return self.refuse_action(thread, wire, now);
        }
        let mut list = queue.task_list();
        self.counters.rows_repeated += self.admission.list(tasks, &mut list) as u64;
        let start_by = self.models.start_by(&admitted, list.len() as u32);
        queue.push(Action {
            id: wire.action.get(),
            thread,
            model: admitted.model,
            earliest: admitted.earliest,
            latest: admitted.latest,
            start_by,
            tasks: list,
            fetched: None,
        });
    }

    #[cold]
    fn count_refusal(&mut self, refusal: Refusal, action: &WireAction) {
        match refusal {
            // Comes and goes with frontends; the scheduler plans again.
            Refusal::UnknownFrontend => return self.counters.plans_early += 1,
            _ => tracing::warn!(action = action.action.get(), ?refusal, "refused an action"),
        }
        match refusal {
            Refusal::UnknownModel | Refusal::UnknownGpu => self.counters.plans_unknown += 1,
            _ => self.counters.plans_malformed += 1,
        }
    }
}

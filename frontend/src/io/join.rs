//! What a client brings to a join and takes from it: slabs for the models it wants, its number and token, and, once
//! it is Ready, the handle that the application waits for.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use baton_membership::{MembershipError, Received};
use baton_rdma::wire::{JoinAck, JoinFrontend, Message, Role, WireAddr};
use baton_rdma::{Identity, Transport};
use baton_types::{FrontendId, Nanos};

use crate::client::{Client, SessionGuard, unknown};
use crate::error::ConnectError;
use crate::io::catalogue::take_announced;
use crate::io::models::{Models, Served};
use crate::io::tasks::Tasks;
use crate::io::{ClientIo, Serving};
use crate::served::Announced;
use crate::session::Session;

impl<T: Transport> ClientIo<T> {
    /// A message of the ControlThread's.
    pub(super) fn on_control(&mut self, now: Nanos, message: Message<'_>) {
        let done = match self.membership.on_control(message, &mut self.transport) {
            Ok(Received::Handled) => Ok(()),
            Ok(Received::Complete) => self.on_catalogue_end(now),
            Ok(Received::Admitted(ack)) => self.on_join_ack(ack).map_err(ConnectError::from),
            Ok(Received::Left) => {
                self.end(Ok(()));
                Ok(())
            }
            Ok(Received::Other(message)) => {
                self.on_catalogue_change(&message);
                Ok(())
            }
            Err(error) => Err(error.into()),
        };
        if let Err(error) = done {
            self.fail(now, error);
        }
    }

    /// Reserves the slabs, unless it has them from an earlier attempt or life, and asks to join.
    fn on_catalogue_end(&mut self, now: Nanos) -> Result<(), ConnectError> {
        let threads = self.membership.threads();
        let models = take_announced(self.membership.catalogue_mut(), threads)?;
        if self.membership.life() == 0 {
            self.check_wanted(&models)?;
        }
        if self.serving.is_none() {
            self.serving = Some(self.serve_nothing_yet());
        }
        if !self.reconcile(models)? {
            self.give_up_on_scheduler(now, "it has none of this client's models".into());
            return Ok(());
        }
        Ok(self.join(now)?)
    }

    /// A first join needs the models that the application names. Without names, it takes those there are, and those to come.
    fn check_wanted(&self, models: &[Announced]) -> Result<(), ConnectError> {
        let is_missing = |name: &&String| models.iter().all(|model| *model.name != ***name);
        if let Some(name) = self.config.models.iter().find(is_missing) {
            return Err(unknown(name, models.iter().map(|model| &*model.name)).into());
        }
        Ok(())
    }

    fn serve_nothing_yet(&self) -> Serving {
        let (session, commands) = Session::new(
            self.config.slots_per_model,
            self.clock,
            Arc::clone(&self.counters),
            self.handle.clone(),
        );
        Serving {
            session,
            commands,
            tasks: Tasks::new(),
            models: Models::new(self.config.slots_per_model, self.first_generation),
            pending: VecDeque::new(),
            pending_at: None,
            leave_by: None,
            given_up: 0,
            prefaults: false,
            listeners: Vec::new(),
        }
    }

    /// Announces the slabs and asks to be admitted.
    fn join(&mut self, now: Nanos) -> Result<(), MembershipError> {
        let Self { membership, transport, serving, .. } = self;
        let Some(serving) = serving else { return Ok(()) };
        let descs: Vec<_> = serving.models.present().flat_map(Served::descs).collect();
        for desc in &descs {
            membership.send(desc, &[], transport)?;
        }
        let addr = WireAddr::new(transport.local_addr());
        let join = JoinFrontend { addr, slabs: (descs.len() as u32).into() };
        membership.ask_to_join(now, &join, &[], transport)
    }

    /// Takes up its number and token.
    fn on_join_ack(&mut self, ack: &JoinAck) -> Result<(), MembershipError> {
        let (member, token) = (ack.member.get(), ack.token.get());
        let frontend = u16::try_from(member).map_err(|_| {
            let problem = format!("frontend number {member} is above {}", u16::MAX);
            MembershipError::BadCatalogue(problem)
        })?;
        self.number = FrontendId(frontend);
        let models = self.serving.iter().flat_map(|serving| serving.models.iter());
        models.for_each(|served| served.model.slabs.set_frontend(self.number));
        self.transport.identify(Identity { role: Role::Frontend, member });
        for stranger in self.backends.set_token(token) {
            self.turn_away(stranger);
        }
        for &conn in self.backends.all_authorised() {
            self.transport.trust(conn);
        }
        self.show_backends();
        tracing::info!(member, scheduler = %self.membership.scheduler(), "admitted");
        Ok(())
    }

    /// The client can be used: its handle goes to the application, or its tasks go to the scheduler that is back.
    pub(super) fn on_ready(&mut self, now: Nanos) {
        if let Some(serving) = &mut self.serving {
            serving.models.open();
        }
        if self.membership.life() > 1 {
            return self.on_return(now);
        }
        self.hand_over();
    }

    /// The application gets the client, once that has been ready and has the pages that it takes ahead.
    pub(super) fn hand_over(&mut self) {
        let serving = self.serving.as_ref().filter(|serving| !serving.prefaults);
        let Some(serving) = serving.filter(|_| self.membership.life() > 0) else { return };
        if let Some(joined) = self.join_sender.take() {
            let guard = SessionGuard::new(Arc::clone(&serving.session), joined.ended);
            // If the receiver has gone, the client is dropped here, and with it the session ends.
            let _ = joined.result.try_send(Ok(Client { guard: Arc::new(guard) }));
        }
    }

    /// An attempt to join has failed, or the scheduler is lost.
    pub(super) fn fail(&mut self, now: Nanos, error: ConnectError) {
        if self.membership.stage().is_joining() {
            self.fail_join(now, error);
        } else if let ConnectError::Membership(error) = error {
            self.on_loss(now, error);
        }
    }

    /// The next attempt may succeed: one of a first join within its time, one of a client that has been Ready at any time.
    fn fail_join(&mut self, now: Nanos, error: ConnectError) {
        let why = error.to_string();
        let failed = match error {
            ConnectError::Membership(error) => {
                self.membership.fail(now, error).map_err(ConnectError::from)
            }
            other => Err(other),
        };
        match failed {
            Ok(()) => self.let_go(now, &why),
            Err(_) if self.membership.life() > 0 => self.give_up_on_scheduler(now, why),
            Err(error) => self.give_up_join(error),
        }
    }

    /// Reports the error to the application, notifies the scheduler, and ends.
    fn give_up_join(&mut self, error: ConnectError) {
        // No application has seen it.
        self.serving = None;
        self.membership.close_all(&error.to_string(), &mut self.transport);
        self.membership.end();
        if let Some(joined) = self.join_sender.take() {
            // The receiver may have gone.
            let _ = joined.result.try_send(Err(error));
        }
    }
}

/// Differs between runs, so that an answer to an earlier process of the same number is stale here.
pub(super) fn drawn_generation() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_runs_begin_with_the_same_generation() {
        let drawn: std::collections::BTreeSet<u32> = (0..8).map(|_| drawn_generation()).collect();
        assert!(drawn.len() > 6, "{drawn:?}");
    }
}

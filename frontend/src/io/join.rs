//! From nothing to an open client: connection, catalogue, slabs, admission, ModelThreads, clock.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;

use baton_core::{FrontendId, Nanos};
use baton_rdma::wire::{Hello, JoinAck, JoinFrontend, Message, Ready, RefuseCode, Role, WireAddr};
use baton_rdma::{CloseReason, ConnId, Identity, Peer, SendError, Transport};

use crate::client::{Client, SessionGuard, unknown};
use crate::error::ConnectError;
use crate::io::catalogue::Thread;
use crate::io::models::{Models, Served};
use crate::io::tasks::Tasks;
use crate::io::{ClientIo, Serving, Stage, ThreadLink};
use crate::served::Announced;
use crate::session::Session;

impl<T: Transport> ClientIo<T> {
    pub(super) fn connect(&mut self, now: Nanos) {
        self.began.get_or_insert(now);
        self.stage = Stage::Connecting;
        self.stage_ends = self.attempt_ends(now);
        let addr = match self.config.scheduler.addr() {
            Ok(addr) => addr,
            Err(unknown) => return self.fail_join(now, unknown.into()),
        };
        self.scheduler = addr;
        match self.transport.connect(addr, Hello::new(Role::Frontend, 0, 0)) {
            Ok(conn) => self.control = Some(conn),
            Err(source) => self.fail_join(now, ConnectError::Unreachable { addr, source }),
        }
    }

    pub(super) fn on_connected(&mut self, now: Nanos, conn: ConnId, peer: &Peer) {
        if self.control == Some(conn) && peer.role == Role::Control {
            self.stage = Stage::Catalogue;
            self.stage_ends = self.join_ends(now);
        } else if let Some(link) = self.threads.iter_mut().find(|link| link.conn == Some(conn))
            && peer.role == Role::ModelThread
        {
            link.open = true;
            self.open_when_ready(now);
        } else if let Some((what, addr)) = self.scheduler_link(conn) {
            let reason = format!("it is no scheduler but says it is {:?}", peer.role);
            self.fail_join(now, ConnectError::Unfit { what, addr, reason });
        }
    }

    pub(super) fn on_join_message(&mut self, now: Nanos, message: &Message<'_>) {
        let observed = self.scheduler.ip();
        let result = match (self.stage, message) {
            (Stage::Catalogue, Message::ThreadDesc(desc)) => {
                self.catalogue.add_thread(desc, observed)
            }
            (Stage::Catalogue, Message::TensorDesc(desc, name)) => {
                self.catalogue.add_tensor(desc, name)
            }
            (Stage::Catalogue, Message::ModelDesc(desc, name)) => {
                self.catalogue.add_model(desc, name)
            }
            // Sub-clusters are the scheduler's and the backends' business.
            (Stage::Catalogue, Message::SubclusterDesc(..)) => Ok(()),
            (Stage::Catalogue, Message::CatalogEnd(_)) => self.on_catalogue_end(now),
            (Stage::Admission, Message::JoinAck(ack)) => self.on_join_ack(now, ack),
            (Stage::Admission, message) => {
                self.on_catalogue_change(message);
                Ok(())
            }
            _ => {
                self.counters.unexpected.add(1);
                Ok(())
            }
        };
        if let Err(error) = result {
            self.fail_join(now, error);
        }
    }

    /// Reserves the slabs, unless it has them from an earlier attempt or life, and asks to join.
    fn on_catalogue_end(&mut self, now: Nanos) -> Result<(), ConnectError> {
        let (threads, models) = std::mem::take(&mut self.catalogue).complete()?;
        if self.life == 0 {
            self.check_wanted(&models)?;
        }
        if self.serving.is_none() {
            self.serving = Some(self.serve_nothing_yet());
        }
        if !self.reconcile(models)? {
            self.give_up_on_scheduler("it has none of this client's models".into());
            return Ok(());
        }
        self.threads = threads.into_iter().map(ThreadLink::new).collect();
        self.join()?;
        self.stage = Stage::Admission;
        self.heartbeat.start(now);
        Ok(())
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
            self.transport.waker(),
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
        }
    }

    /// Announces the slabs and asks to be let in.
    fn join(&mut self) -> Result<(), ConnectError> {
        let Some(serving) = &self.serving else { return Ok(()) };
        let descs: Vec<_> = serving.models.present().flat_map(Served::descs).collect();
        let addr = WireAddr::new(self.transport.local_addr());
        let join = JoinFrontend { addr, slabs: (descs.len() as u32).into() };
        for desc in &descs {
            self.send_control(desc)?;
        }
        self.send_control(&join)
    }

    pub(super) fn send_control<B: baton_rdma::wire::Body>(
        &mut self,
        body: &B,
    ) -> Result<(), ConnectError> {
        let sent = self
            .control
            .map_or(Err(SendError::Closed), |control| self.transport.send(control, body, &[]));
        sent.map_err(|error| ConnectError::Closed {
            what: "the scheduler".into(),
            addr: self.scheduler,
            reason: error.to_string(),
        })
    }

    /// Takes up its number and token, and connects to the ModelThreads.
    fn on_join_ack(&mut self, now: Nanos, ack: &JoinAck) -> Result<(), ConnectError> {
        let (member, token) = (ack.member.get(), ack.token.get());
        let frontend = u16::try_from(member).map_err(|_| {
            ConnectError::BadCatalogue(format!("frontend number {member} is above {}", u16::MAX))
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
        for link in &mut self.threads {
            let addr = link.thread.addr;
            let conn = self.transport.connect(addr, Hello::new(Role::Frontend, member, token));
            link.conn = Some(conn.map_err(|source| ConnectError::Unreachable { addr, source })?);
        }
        tracing::info!(member, scheduler = %self.scheduler, "admitted");
        self.stage = Stage::Linking;
        self.open_when_ready(now);
        Ok(())
    }

    /// The client is handed out when every ModelThread is connected and the clock is known.
    pub(super) fn open_when_ready(&mut self, now: Nanos) {
        let linked = self.threads.iter().all(|link| link.open) && self.heartbeat.is_synced();
        if self.stage != Stage::Linking || !linked {
            return;
        }
        if let Err(error) = self.send_control(&Ready { reserved: 0.into() }) {
            return self.fail_join(now, error);
        }
        self.stage = Stage::Open;
        self.stage_ends = Nanos::MAX;
        self.life += 1;
        self.backoff.reset();
        if let Some(serving) = &mut self.serving {
            serving.models.open();
        }
        if self.life > 1 {
            return self.on_return(now);
        }
        if let (Some(promise), Some(serving)) = (self.promise.take(), &self.serving) {
            let owner = SessionGuard::new(Arc::clone(&serving.session), promise.ended);
            // Nobody there to take it: the client is dropped, and with it the session ends.
            let _ = promise.result.try_send(Ok(Client { owner: Arc::new(owner) }));
        }
    }

    /// The join has failed this time. It is tried again if that can help, always if this client has
    /// been open before.
    pub(super) fn fail_join(&mut self, now: Nanos, error: ConnectError) {
        if self.life > 0 {
            self.on_rejoin_failed(now, &error);
        } else if error.may_pass(self.stage == Stage::Linking) {
            self.try_again(now, error);
        } else {
            self.give_up_join(error);
        }
    }

    /// Reports the error to the application, notifies the scheduler, and ends.
    pub(super) fn give_up_join(&mut self, error: ConnectError) {
        self.stage = Stage::Ended;
        // No application has seen it.
        self.serving = None;
        if let Some(control) = self.control.take() {
            self.transport.close(control, RefuseCode::Shutdown, &error.to_string());
        }
        if let Some(promise) = self.promise.take() {
            // The receiver may have gone; then nobody wants to know.
            let _ = promise.result.try_send(Err(error));
        }
    }
}

impl ThreadLink {
    pub(super) fn new(thread: Thread) -> Self {
        Self { thread, conn: None, open: false }
    }
}

/// How a connection that closed while joining reads to the application.
pub(super) fn closed(what: String, addr: SocketAddr, reason: &CloseReason) -> ConnectError {
    match reason {
        CloseReason::Refused { code, detail } => {
            ConnectError::Refused { addr, code: *code, detail: detail.clone() }
        }
        CloseReason::Tls(reason) | CloseReason::NotAllowed(reason) => {
            ConnectError::Untrusted { what, addr, reason: reason.clone() }
        }
        CloseReason::Eof | CloseReason::Reset(_) | CloseReason::HandshakeTimeout => {
            ConnectError::Closed { what, addr, reason: reason.to_string() }
        }
        other => ConnectError::Unfit { what, addr, reason: other.to_string() },
    }
}

/// Differs between runs, so that an answer to an earlier process of the same number is stale here.
pub(super) fn drawn_generation() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

//! The conversation with the scheduler: joining, staying, leaving.
//!
//! In: what happens on the control connection and on the ModelThreads' connections. Out: the
//! catalogue, this backend's ids, the scheduler's clock, and the connections for actions and reports.
//! One deadline bounds every stage before Ready; the heartbeat bounds every stage after the
//! catalogue. An error from here ends the conversation. It ends the backend too, unless another
//! conversation may succeed.

mod changes;
mod reach;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;

use baton_core::Nanos;
use baton_leader::SchedulerLocator;
use baton_rdma::wire::{
    Body, Hello, JoinAck, JoinBackend, Leave, Message, Ready, RefuseCode, Role,
};
use baton_rdma::{Backoff, CloseReason, ConnId, Heartbeat, Peer, Transport};

use crate::admit::ActionRules;
use crate::catalog::Catalog;
use crate::config::BackendConfig;
use crate::error::BackendError;
use crate::models::Models;
use crate::stage::Stage;

/// Stands for an address that is not known.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// This backend's side of the conversation.
#[derive(Debug)]
pub(crate) struct Join {
    stage: Stage,
    /// When the attempts to reach a scheduler began; set by the first poll.
    began: Option<Nanos>,
    /// How long the attempts may take, until this backend has joined.
    patience: Nanos,
    /// When the next attempt to connect begins, or the one under way times out.
    retry_at: Nanos,
    backoff: Backoff,
    /// Why the last attempt to connect failed.
    problem: String,
    /// The log already says that there is no scheduler yet.
    told: bool,
    control: Option<ConnId>,
    locator: SchedulerLocator,
    /// The scheduler of the last attempt, as the control connection sees it once there is one.
    scheduler: SocketAddr,
    /// By ModelThread number; filled in Threads.
    threads: Vec<Option<ConnId>>,
    threads_open: usize,
    catalog: Catalog,
    heartbeat: Option<Heartbeat>,
    member: u32,
    token: u64,
    gpus: Range<u32>,
}

impl Join {
    /// A conversation with the scheduler, not begun. `backoff` determines when to retry if there is
    /// no scheduler yet, `patience` for how long.
    pub(crate) fn new(locator: SchedulerLocator, backoff: Backoff, patience: Nanos) -> Self {
        Self {
            stage: Stage::Connecting,
            began: None,
            patience,
            retry_at: Nanos::ZERO,
            backoff,
            problem: String::from("not tried yet"),
            told: false,
            control: None,
            scheduler: locator.addr().unwrap_or(NOWHERE),
            locator,
            threads: Vec::new(),
            threads_open: 0,
            catalog: Catalog::default(),
            heartbeat: None,
            member: 0,
            token: 0,
            gpus: 0..0,
        }
    }

    /// A new conversation after a pause, with the scheduler that leads by then.
    pub(crate) fn again(&self, now: Nanos) -> Self {
        let mut next = Self::new(self.locator.clone(), self.backoff.clone(), self.patience);
        next.pause(now);
        next
    }

    /// The same, within the time that this one had; `problem` is how it ended.
    pub(crate) fn once_more(&self, now: Nanos, problem: String) -> Self {
        Self { began: self.began, problem, ..self.again(now) }
    }

    /// Where the conversation is.
    pub(crate) fn stage(&self) -> Stage {
        self.stage
    }

    /// This backend's id; 0 before it has joined.
    pub(crate) fn member(&self) -> u32 {
        self.member
    }

    /// The scheduler's number of our first GPU slot.
    pub(crate) fn first_gpu(&self) -> u32 {
        self.gpus.start
    }

    /// The scheduler's address, to resolve addresses it sends as unspecified.
    pub(crate) fn scheduler(&self) -> SocketAddr {
        self.scheduler
    }

    /// What actions are checked against; `None` before the catalogue is complete.
    pub(crate) fn rules(&self) -> Option<ActionRules<'_>> {
        let sync = self.heartbeat.as_ref()?.sync();
        Some(ActionRules { catalog: &self.catalog, sync, gpus: self.gpus.clone() })
    }

    /// The models served under this scheduler.
    pub(crate) fn catalog_mut(&mut self) -> &mut Catalog {
        &mut self.catalog
    }

    /// A moment of our clock on the scheduler's; 0 before the clocks have been compared.
    pub(crate) fn to_scheduler(&self, local: Nanos) -> Nanos {
        let sync = self.heartbeat.as_ref().map(Heartbeat::sync);
        sync.and_then(|sync| sync.to_scheduler(local)).unwrap_or(Nanos::ZERO)
    }

    /// True for the control connection.
    pub(crate) fn is_control(&self, conn: ConnId) -> bool {
        self.control == Some(conn)
    }

    /// The ModelThread at the other end of a connection.
    pub(crate) fn thread_of(&self, conn: ConnId) -> Option<u32> {
        self.threads.iter().position(|&thread| thread == Some(conn)).map(|thread| thread as u32)
    }

    /// The connection to a ModelThread.
    pub(crate) fn thread(&self, thread: u32) -> Option<ConnId> {
        self.threads.get(thread as usize).copied().flatten()
    }

    /// Does what is due: connecting, pings, bounds. Call at the start of a pass. Returns how much
    /// there was to do.
    ///
    /// # Errors
    /// The scheduler cannot be reached, does not let us in, or has fallen silent.
    pub(crate) fn poll<T: Transport>(
        &mut self,
        now: Nanos,
        transport: &mut T,
    ) -> Result<usize, BackendError> {
        let tried = now - *self.began.get_or_insert(now);
        if self.stage < Stage::Ready && tried > self.patience {
            return Err(self.too_late(now));
        }
        if self.stage == Stage::Connecting && now >= self.retry_at {
            self.connect(now, transport);
            return Ok(1);
        }
        let Some(heartbeat) = &mut self.heartbeat else { return Ok(0) };
        let ping = heartbeat.poll(now);
        let has_unread = self.control.is_some_and(|conn| transport.has_unread(conn));
        if self.stage != Stage::Left && heartbeat.is_silent(has_unread) {
            return Err(BackendError::SchedulerLost("it has fallen silent".into()));
        }
        if let Some(ping) = ping {
            self.tell(transport, &ping, &[])?;
        }
        self.advance(transport)?;
        Ok(usize::from(ping.is_some()))
    }

    /// When [`Join::poll`] has something to do.
    pub(crate) fn next_timer(&self) -> Option<Nanos> {
        match (&self.heartbeat, self.control) {
            (Some(heartbeat), _) => heartbeat.next_timer(),
            (None, _) if self.stage == Stage::Connecting => Some(self.retry_at),
            (None, _) => self.began.map(|began| began + self.patience),
        }
    }

    /// A connection is up. False if it is not one of the scheduler's.
    ///
    /// # Errors
    /// Another program answers at the scheduler's address.
    pub(crate) fn on_opened(&mut self, conn: ConnId, peer: &Peer) -> Result<bool, BackendError> {
        if self.is_control(conn) {
            if peer.role != Role::Control {
                return Err(BackendError::Protocol("its address is not a ControlThread's"));
            }
            self.scheduler = peer.addr;
            self.stage = Stage::Catalogue;
            return Ok(true);
        }
        let Some(thread) = self.thread_of(conn) else { return Ok(false) };
        if peer.role != Role::ModelThread || peer.member != thread {
            return Err(BackendError::Protocol("a ModelThread is not where the catalogue says"));
        }
        self.threads_open += 1;
        Ok(true)
    }

    /// A connection is gone. False if it was none of the scheduler's.
    ///
    /// # Errors
    /// The scheduler is lost, or refuses us. Before the catalogue, an unreachable scheduler is
    /// tried again.
    pub(crate) fn on_closed(
        &mut self,
        conn: ConnId,
        reason: &CloseReason,
        now: Nanos,
    ) -> Result<bool, BackendError> {
        if !self.forget(conn) {
            return Ok(false);
        }
        if let CloseReason::Refused { code, detail } = reason
            && self.stage < Stage::Ready
        {
            return Err(BackendError::Refused { code: *code, detail: detail.clone() });
        }
        if let CloseReason::Tls(problem) | CloseReason::NotAllowed(problem) = reason
            && self.stage < Stage::Ready
        {
            let (scheduler, problem) = (self.scheduler, problem.clone());
            return Err(BackendError::Untrusted { scheduler, problem });
        }
        match self.stage {
            Stage::Connecting => self.try_again(reason, now)?,
            Stage::Left => {}
            _ => return Err(BackendError::SchedulerLost(reason.to_string())),
        }
        Ok(true)
    }

    /// A connection has closed. False if it was not one of the scheduler's.
    pub(crate) fn forget(&mut self, conn: ConnId) -> bool {
        let thread = self.threads.iter_mut().find(|thread| **thread == Some(conn));
        let known = if self.control == Some(conn) { Some(&mut self.control) } else { thread };
        known.and_then(Option::take).is_some()
    }

    /// A message on the control connection, other than membership of frontends.
    ///
    /// # Errors
    /// It does not fit the stage, or the catalogue does not fit our cluster file.
    pub(crate) fn on_message<T: Transport>(
        &mut self,
        message: Message<'_>,
        now: Nanos,
        config: &BackendConfig,
        models: &mut Models,
        transport: &mut T,
    ) -> Result<(), BackendError> {
        match (self.stage, message) {
            (Stage::Catalogue, Message::ThreadDesc(desc)) => {
                Ok(self.catalog.add_thread(desc, self.scheduler.ip())?)
            }
            (Stage::Catalogue, Message::SubclusterDesc(desc, name)) => {
                self.catalog.add_subcluster(desc.subcluster.get(), name, &config.subcluster);
                Ok(())
            }
            // What the tensors are, this backend has read in the models' files.
            (Stage::Catalogue, Message::TensorDesc(..)) => Ok(()),
            (Stage::Catalogue, Message::ModelDesc(desc, name)) => {
                Ok(self.catalog.describe(desc, name)?)
            }
            (Stage::Catalogue, Message::ModelTable(table, text)) => {
                Ok(self.catalog.add_table(table.model.get(), text)?)
            }
            (Stage::Catalogue, Message::CatalogEnd(_)) => {
                let described = self.catalog.complete(&config.subcluster)?;
                models.meet(described, &mut self.catalog)?;
                let heartbeat = self.heartbeat.insert(Heartbeat::new(config.member_timeout));
                heartbeat.start(now);
                self.ask_to_join(config, models, transport)
            }
            (Stage::Joining, Message::JoinAck(ack)) => self.joined(ack, config.gpus, transport),
            (Stage::Leaving, Message::LeaveAck(_)) => {
                self.stage = Stage::Left;
                Ok(())
            }
            (_, Message::Pong(pong)) => match &mut self.heartbeat {
                Some(heartbeat) => {
                    heartbeat.on_pong(pong);
                    Ok(())
                }
                None => Err(BackendError::Protocol("it answers a ping that was never sent")),
            },
            (stage, message) if stage > Stage::Catalogue => self.on_change(message, models),
            _ => Err(BackendError::Protocol("a message does not fit the conversation")),
        }
    }

    /// True if membership messages may arrive now.
    pub(crate) fn is_member(&self) -> bool {
        matches!(self.stage, Stage::Threads | Stage::Ready | Stage::Leaving)
    }

    /// Asks to leave, once Ready. False if there is nothing to leave yet.
    ///
    /// # Errors
    /// The scheduler is lost.
    pub(crate) fn leave<T: Transport>(&mut self, transport: &mut T) -> Result<bool, BackendError> {
        if self.stage == Stage::Ready {
            self.tell(transport, &Leave { reserved: 0.into() }, &[])?;
            self.stage = Stage::Leaving;
        }
        Ok(self.stage >= Stage::Leaving)
    }

    /// Closes the connections, saying why. Returns how many.
    pub(crate) fn close_all<T: Transport>(&mut self, transport: &mut T, why: &str) -> usize {
        let mut closed = 0;
        for conn in self.threads.drain(..).flatten().chain(self.control.take()) {
            transport.close(conn, RefuseCode::Shutdown, why);
            closed += 1;
        }
        closed
    }

    /// Announces the models we have loaded, then ourselves.
    fn ask_to_join<T: Transport>(
        &mut self,
        config: &BackendConfig,
        models: &Models,
        transport: &mut T,
    ) -> Result<(), BackendError> {
        for model in self.catalog.models() {
            self.tell_loaded(model.id.0, models.profile(model.local), transport)?;
        }
        let join =
            JoinBackend { subcluster: self.catalog.subcluster().into(), gpus: config.gpus.into() };
        self.tell(transport, &join, config.name.as_bytes())?;
        self.stage = Stage::Joining;
        Ok(())
    }

    fn joined<T: Transport>(
        &mut self,
        ack: &JoinAck,
        gpus: u32,
        transport: &mut T,
    ) -> Result<(), BackendError> {
        let first = ack.first_gpu.get();
        let end = first.checked_add(gpus).ok_or(BackendError::Protocol("GPU ids out of range"))?;
        self.gpus = first..end;
        self.member = ack.member.get();
        self.token = ack.token.get();
        for addr in self.catalog.threads() {
            let hello = Hello::new(Role::Backend, self.member, self.token);
            let conn = transport
                .connect(addr, hello)
                .map_err(|error| BackendError::SchedulerLost(format!("{addr}: {error}")))?;
            self.threads.push(Some(conn));
        }
        self.stage = Stage::Threads;
        Ok(())
    }

    /// Sends Ready once everything is ready.
    fn advance<T: Transport>(&mut self, transport: &mut T) -> Result<(), BackendError> {
        let synced = self.heartbeat.as_ref().is_some_and(Heartbeat::is_synced);
        if self.stage == Stage::Threads && synced && self.threads_open == self.threads.len() {
            self.tell(transport, &Ready { reserved: 0.into() }, &[])?;
            self.stage = Stage::Ready;
            self.backoff.reset();
        }
        Ok(())
    }

    /// A message to the ControlThread. One that cannot be queued means that it does not read.
    fn tell<T: Transport, B: Body>(
        &self,
        transport: &mut T,
        body: &B,
        tail: &[u8],
    ) -> Result<(), BackendError> {
        let control = self.control.ok_or_else(|| BackendError::SchedulerLost("closed".into()))?;
        transport
            .send(control, body, tail)
            .map_err(|error| BackendError::SchedulerLost(error.to_string()))
    }
}

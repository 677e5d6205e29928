//! The client's one I/O thread, as an agent that can as well be stepped by hand.
//!
//! In, per pass: commands of the application's threads, then what the transport brings. Out:
//! messages to the scheduler, and one outcome per task. The conversation: `join` until the client
//! is open, `serve` while it is, `changes` when models come and go, `rejoin` when the scheduler was lost,
//! `leave` when it ends.
//!
//! Only tests and programs that drive time themselves need this module; [`crate::Client::connect`]
//! runs a [`ClientIo`] on a thread of its own.

mod backends;
mod catalogue;
mod changes;
mod join;
mod leases;
mod leave;
mod models;
mod rejoin;
mod serve;
mod stage;
mod tasks;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use baton_core::{FrontendId, Nanos, TaskId};
use baton_rdma::wire::{Message, Ping, RefuseCode};
use baton_rdma::{
    Backoff, ClockSync, CloseReason, ConnId, Event, Events, Heartbeat, Peer, Transport,
};
use baton_topo::{Agent, AwakeTime, Clock, Waker};
use crossbeam_channel::{Receiver, Sender};

use crate::client::Client;
use crate::config::ClientConfig;
use crate::counters::LiveCounters;
use crate::error::{ConfigError, ConnectError};
use crate::io::backends::Backends;
use crate::io::catalogue::{Catalogue, Thread};
use crate::io::models::Models;
use crate::io::stage::Stage;
use crate::io::tasks::Tasks;
use crate::outcome::EndedBy;
use crate::session::{Command, Session};

/// The I/O side of one client.
#[derive(Debug)]
pub struct ClientIo<T: Transport> {
    config: ClientConfig,
    first_generation: u32,
    clock: Clock,
    transport: T,
    events: Events,
    stage: Stage,
    /// When the present stage times out. Nanos::MAX while open.
    stage_ends: Nanos,
    /// When the client began its attempts to reach the first scheduler.
    began: Option<Nanos>,
    /// The log already says that there is no scheduler yet.
    told: bool,
    /// The scheduler of the last attempt.
    scheduler: SocketAddr,
    control: Option<ConnId>,
    threads: Vec<ThreadLink>,
    /// What is announced and not complete yet.
    catalogue: Catalogue,
    /// How long this side has been awake: it may have been stopped together with its peers.
    awake: AwakeTime,
    /// Since when leases are over and not ended because something is not read yet, in time awake.
    behind_since: Option<Nanos>,
    heartbeat: Heartbeat,
    /// What this client is called in its present life.
    number: FrontendId,
    /// How often this client has been open.
    life: u32,
    /// The clock of the scheduler of the life before, which stamps answers of that life.
    former_clock: ClockSync,
    /// The present scheduler has given tasks back because it stops.
    stopping: bool,
    /// The last loss was an orderly stop: another scheduler is to be expected.
    orderly: bool,
    /// Until then submits wait for it.
    holds_until: Nanos,
    /// Until then backends may be on their way to a scheduler that is back.
    gathering_until: Nanos,
    backoff: Backoff,
    backends: Backends,
    counters: Arc<LiveCounters>,
    serving: Option<Serving>,
    /// Until the join has succeeded or failed.
    promise: Option<JoinSender>,
    /// Dropped last, which shows [`Client::leave`] that this side has ended.
    _ended: Sender<Infallible>,
}

/// The connection to one ModelThread.
#[derive(Debug)]
struct ThreadLink {
    thread: Thread,
    /// `None` until this client is admitted.
    conn: Option<ConnId>,
    open: bool,
}

/// What there is from the catalogue on.
#[derive(Debug)]
struct Serving {
    session: Arc<Session>,
    commands: Receiver<Command>,
    tasks: Tasks,
    models: Models,
    /// Outstanding tasks of earlier lives that are still to be submitted in this one.
    pending: VecDeque<TaskId>,
    /// When to retry those that could not be submitted yet.
    pending_at: Option<Nanos>,
    /// When leaving stops waiting for outstanding tasks; set once the application leaves.
    leave_by: Option<Nanos>,
    given_up: u32,
}

/// Where the result of the join goes.
#[derive(Debug)]
struct JoinSender {
    result: Sender<Result<Client, ConnectError>>,
    ended: Receiver<Infallible>,
}

/// The application's end of a join under way.
#[derive(Debug)]
pub struct Joining(Receiver<Result<Client, ConnectError>>);

impl Joining {
    /// Blocks until the [`ClientIo`], polled by another thread, has joined or failed. The bound is its
    /// `connect_timeout`.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn wait(self) -> Result<Client, ConnectError> {
        self.0.recv().unwrap_or(Err(ConnectError::IoEnded))
    }

    /// The client or the error, if the join has come to either.
    pub fn poll(&self) -> Option<Result<Client, ConnectError>> {
        self.0.try_recv().ok()
    }
}

impl<T: Transport> ClientIo<T> {
    /// The I/O side of a client over `transport`, which is bound to where backends connect. It
    /// connects to the scheduler at its first poll.
    ///
    /// # Errors
    /// The settings cannot work.
    pub fn new(
        config: ClientConfig,
        transport: T,
        clock: Clock,
    ) -> Result<(Self, Joining), ConfigError> {
        config.check()?;
        let (result, joining) = crossbeam_channel::bounded(1);
        let (ended_tx, ended) = crossbeam_channel::bounded(0);
        let first_generation = config.first_generation.unwrap_or_else(join::drawn_generation);
        let io = Self {
            awake: AwakeTime::default(),
            behind_since: None,
            heartbeat: Heartbeat::new(config.member_timeout),
            number: FrontendId(0),
            life: 0,
            former_clock: ClockSync::new(),
            stopping: false,
            orderly: false,
            holds_until: Nanos::ZERO,
            gathering_until: Nanos::ZERO,
            backoff: Backoff::new(config.reconnect, first_generation.into()),
            first_generation,
            config,
            clock,
            transport,
            events: Events::new(),
            stage: Stage::Start,
            stage_ends: Nanos::MAX,
            began: None,
            told: false,
            scheduler: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            control: None,
            threads: Vec::new(),
            catalogue: Catalogue::default(),
            backends: Backends::default(),
            counters: Arc::new(LiveCounters::default()),
            serving: None,
            promise: Some(JoinSender { result, ended }),
            _ended: ended_tx,
        };
        Ok((io, Joining(joining)))
    }

    /// Counts `connect_timeout` from `began`, not from the first poll: some of it has passed.
    pub(crate) fn count_from(&mut self, began: Nanos) {
        self.began = Some(began);
    }

    fn receive(&mut self, now: Nanos) -> usize {
        let mut events = std::mem::take(&mut self.events);
        let count = self.transport.poll(now, &mut events);
        for event in events.drain() {
            match event {
                Event::Opened { conn, peer } if peer.accepted => self.on_accepted(conn, &peer),
                Event::Opened { conn, peer } => self.on_connected(now, conn, &peer),
                Event::Message { conn, message } => self.on_message(now, conn, message),
                Event::Result { conn, result, len } => self.on_result(now, conn, &result, len),
                Event::Closed { conn, reason } => self.on_closed(now, conn, &reason),
                // A frontend posts no READs.
                Event::Read(_) => self.counters.unexpected.add(1),
            }
        }
        self.events = events;
        count
    }

    fn on_accepted(&mut self, conn: ConnId, peer: &Peer) {
        if !self.backends.admit(conn, peer) {
            self.turn_away(conn);
        } else if self.backends.authorised(conn) {
            self.transport.trust(conn);
        }
    }

    fn turn_away(&mut self, conn: ConnId) {
        self.counters.strangers.add(1);
        self.transport.close(
            conn,
            RefuseCode::Unauthorised,
            "this frontend serves only backends that the scheduler introduced; rejoin to be",
        );
    }

    fn on_message(&mut self, now: Nanos, conn: ConnId, message: Message<'_>) {
        let from_thread = self.threads.iter().any(|link| link.conn == Some(conn));
        match message {
            Message::TaskEnd(end) if from_thread || self.backends.authorised(conn) => {
                let by = if from_thread { EndedBy::Scheduler } else { EndedBy::Backend };
                self.on_task_end(now, end, by);
            }
            message if self.control == Some(conn) => self.on_control(now, &message),
            _ => self.on_unexpected(conn, from_thread),
        }
    }

    fn on_control(&mut self, now: Nanos, message: &Message<'_>) {
        match message {
            Message::Pong(pong) => {
                self.heartbeat.on_pong(pong);
            }
            Message::LeaveAck(_) if self.stage == Stage::Leaving => self.on_leave_ack(),
            _ if self.stage.announcing() => self.on_join_message(now, message),
            _ if self.serving.is_some() => self.on_catalogue_change(message),
            _ => self.counters.unexpected.add(1),
        }
    }

    /// The scheduler is forgiven what this build does not understand; a backend is not.
    fn on_unexpected(&mut self, conn: ConnId, from_thread: bool) {
        self.counters.unexpected.add(1);
        if !from_thread {
            let detail = "a frontend takes only answers and task ends here";
            self.transport.close(conn, RefuseCode::UnexpectedMessage, detail);
        }
    }

    fn on_closed(&mut self, now: Nanos, conn: ConnId, reason: &CloseReason) {
        self.backends.remove(conn);
        let Some((what, addr)) = self.scheduler_link(conn) else { return };
        if self.control == Some(conn) {
            self.control = None;
        }
        if self.stage.joining() {
            self.fail_join(now, join::closed(what, addr, reason));
        } else {
            self.on_scheduler_closed(now, what, reason);
        }
    }

    /// The name and address of a connection this side opened.
    fn scheduler_link(&self, conn: ConnId) -> Option<(String, SocketAddr)> {
        if self.control == Some(conn) {
            return Some(("the scheduler".into(), self.scheduler));
        }
        let link = self.threads.iter().find(|link| link.conn == Some(conn))?;
        Some((format!("ModelThread {}", link.thread.number), link.thread.addr))
    }

    fn keep_time(&mut self, now: Nanos) {
        if let Some(ping) = self.heartbeat.poll(now) {
            self.ping(&ping);
        }
        self.open_when_ready(now);
        let has_unread = self.control.is_some_and(|conn| self.transport.has_unread(conn));
        if self.heartbeat.is_silent(has_unread) {
            self.on_silence(now);
        }
        if now >= self.stage_ends {
            self.on_stage_timeout(now);
        }
        self.withdraw_removed();
        self.wind_down(now);
    }

    fn ping(&mut self, ping: &Ping) {
        self.counters.publish_transport(self.transport.counters());
        if let Some(control) = self.control {
            // A ping that cannot be queued is one that goes unanswered: silence is noticed.
            let _ = self.transport.send(control, ping, &[]);
        }
    }

    fn on_stage_timeout(&mut self, now: Nanos) {
        if self.stage == Stage::Away {
            self.look_again(now);
        } else if self.stage == Stage::Connecting {
            let (what, addr) = ("the scheduler".into(), self.scheduler);
            let reason = "nothing answers".into();
            self.fail_join(now, ConnectError::Closed { what, addr, reason });
        } else if self.stage.joining() {
            let timeout_ms = self.config.connect_timeout.0 / 1_000_000;
            let (addr, waiting_for) = (self.scheduler, self.stage.waiting_for());
            self.fail_join(now, ConnectError::Timeout { addr, timeout_ms, waiting_for });
        } else {
            self.end(Err(crate::LeaveError::Unconfirmed));
        }
    }
}

impl<T: Transport> Agent for ClientIo<T> {
    fn poll(&mut self, now: Nanos) -> usize {
        let stood_still = self.awake.pass(now);
        if self.stage == Stage::Start {
            self.connect(now);
        }
        if self.stage == Stage::Leaving {
            self.stage_ends = self.stage_ends + stood_still;
        }
        let work = self.take_commands(now) + self.receive(now) + self.expire_leases(now);
        self.keep_time(now);
        // Behind everything that has arrived: an answer that is here ends its task.
        let work = work + self.resubmit(now);
        self.transport.flush();
        work
    }

    fn next_timer(&self) -> Option<Nanos> {
        let stage = (self.stage_ends < Nanos::MAX).then_some(self.stage_ends);
        let serving = self.serving.as_ref();
        let lease = serving.and_then(|serving| serving.tasks.next_expiry());
        let leave = serving.and_then(|serving| serving.leave_by);
        let pending = serving.and_then(|serving| serving.pending_at);
        [stage, self.heartbeat.next_timer(), lease, leave, pending].into_iter().flatten().min()
    }

    fn wait(&mut self, timeout: Option<Nanos>) {
        self.transport.wait(timeout);
    }

    fn waker(&self) -> Waker {
        self.transport.waker()
    }

    fn finished(&self) -> bool {
        self.stage == Stage::Ended
    }
}

impl<T: Transport> Drop for ClientIo<T> {
    /// Also when this thread panics: no ticket is left waiting for it.
    fn drop(&mut self) {
        self.counters.publish_transport(self.transport.counters());
        if let Some(Serving { session, commands, .. }) = self.serving.take() {
            drop(commands);
            session.close();
        }
    }
}

//! The client's one I/O thread, as an agent that can as well be stepped by hand.
//!
//! In, per pass: commands of the application's threads, then what the transport brings. Out:
//! messages to the scheduler, and one outcome per task. [`Membership`] keeps the conversation with the scheduler.
//! What a client adds to it: `join` until the client is open, `serve` while it is, `changes` when models come
//! and go, `rejoin` when the scheduler was lost, `leave` when it ends.
//!
//! Only tests and programs that drive time themselves need this module; [`crate::Client::connect`]
//! runs a [`ClientIo`] on a thread of its own.

mod ahead;
mod backends;
mod behind;
mod catalogue;
mod changes;
mod join;
mod leases;
mod leave;
mod models;
mod prefault;
mod rejoin;
mod serve;
mod tasks;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task;

use baton_membership::{ClockSync, Member, Membership, Stage, Step};
use baton_rdma::wire::{Message, RefuseCode, Role};
use baton_rdma::{CloseReason, ConnId, Event, Events, Peer, Transport};
use baton_topo::{Agent, AwakeTime, Clock, Waker};
use baton_types::{FrontendId, Nanos, TaskId};
use crossbeam_channel::{Receiver, Sender};

use crate::client::Client;
use crate::config::ClientConfig;
use crate::counters::LiveCounters;
use crate::error::{ConfigError, ConnectError};
use crate::io::backends::Backends;
use crate::io::behind::Behind;
use crate::io::models::Models;
use crate::io::serve::COMMANDS_PER_PASS;
use crate::io::tasks::Tasks;
use crate::io_thread::IoHandle;
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
    membership: Membership,
    /// How long this side has been awake: it may have been stopped together with its peers.
    awake: AwakeTime,
    behind: Behind,
    /// What this client is called in its present life.
    number: FrontendId,
    /// The life before, by its number, and the clock of its scheduler, which stamps answers of that life.
    former_clock: (u32, ClockSync),
    /// The present scheduler has given tasks back because it stops.
    stopping: bool,
    /// The last loss was an orderly stop: another scheduler is to be expected.
    orderly: bool,
    /// Until then submits wait for it.
    holds_until: Nanos,
    /// Until then backends may be on their way to a scheduler that is back.
    gathering_until: Nanos,
    backends: Backends,
    counters: Arc<LiveCounters>,
    serving: Option<Serving>,
    /// Until the join has succeeded or failed.
    join_sender: Option<JoinSender>,
    /// How the application's threads reach this side.
    handle: IoHandle,
    /// Dropped last, which shows [`Client::leave`] that this side has ended.
    _ended: Sender<Infallible>,
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
    /// Pages of inputs are still to be taken ahead.
    prefaults: bool,
    /// Who waits for an outcome that this pass has handed out: woken behind it, once each.
    listeners: Vec<task::Waker>,
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
        let handle = IoHandle::new(transport.waker());
        let io = Self {
            handle,
            awake: AwakeTime::default(),
            behind: Behind::default(),
            membership: Membership::new(member(&config, first_generation)),
            number: FrontendId(0),
            former_clock: (0, ClockSync::new()),
            stopping: false,
            orderly: false,
            holds_until: Nanos::ZERO,
            gathering_until: Nanos::ZERO,
            first_generation,
            config,
            clock,
            transport,
            events: Events::new(),
            backends: Backends::default(),
            counters: Arc::new(LiveCounters::default()),
            serving: None,
            join_sender: Some(JoinSender { result, ended }),
            _ended: ended_tx,
        };
        Ok((io, Joining(joining)))
    }

    /// One pass, but for waking those who wait for its outcomes ([`ClientIo::take_listeners`]).
    pub(crate) fn pass(&mut self, now: Nanos) -> usize {
        let stood_still = self.awake.pass(now);
        self.membership.excuse(stood_still);
        self.tend_membership(now);
        let work = self.take_commands(now) + self.receive(now) + self.expire_leases(now);
        self.withdraw_removed();
        self.wind_down(now);
        // Behind everything that has arrived: an answer that is here ends its task.
        let work = work + self.resubmit(now);
        self.transport.flush();
        // Behind everything that someone waits for.
        self.prefault();
        work
    }

    /// Exchanges those who are to be woken behind the pass, since what they wait for is there, with `none`, which is empty.
    pub(crate) fn swap_listeners(&mut self, none: &mut Vec<task::Waker>) {
        if let Some(serving) = &mut self.serving {
            std::mem::swap(&mut serving.listeners, none);
        }
    }

    /// On a thread of the application's, while the I/O thread sleeps until `timer` at most: sends what is in the queue. False
    /// if the I/O thread must make a pass before that.
    pub(crate) fn send_commands(&mut self, now: Nanos, timer: Nanos) -> bool {
        let taken = self.take_commands(now);
        self.transport.flush();
        taken < COMMANDS_PER_PASS
            && self.transport.prepare_wait(None).is_some()
            && self.next_timer().is_none_or(|due| due >= timer)
    }

    /// As [`Transport::prepare_wait`].
    pub(crate) fn prepare_wait(&mut self, timeout: Option<Nanos>) -> Option<Option<Nanos>> {
        self.transport.prepare_wait(timeout)
    }

    /// What is readable when there may be something to do; a transport over sockets has it.
    pub(crate) fn pollable(&self) -> Option<BorrowedFd<'_>> {
        self.transport.pollable()
    }

    /// From now on the application's threads reach this side so.
    pub(crate) fn reach_by(&mut self, handle: IoHandle) {
        self.handle = handle;
    }

    /// Counts `connect_timeout` from `began`, not from the first poll: some of it has passed.
    pub(crate) fn count_from(&mut self, began: Nanos) {
        self.membership.count_from(began);
    }

    fn receive(&mut self, now: Nanos) -> usize {
        let mut events = std::mem::take(&mut self.events);
        let count = self.transport.poll(now, &mut events);
        for event in events.drain() {
            match event {
                Event::Opened { conn, peer } if peer.accepted => self.on_accepted(conn, &peer),
                Event::Opened { conn, peer } => {
                    if let Err(error) = self.membership.on_opened(now, conn, &peer) {
                        self.fail(now, error.into());
                    }
                }
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
        self.show_backends();
    }

    /// How many of them the application sees.
    fn show_backends(&self) {
        let count = self.backends.all_authorised().len() as u32;
        self.counters.backends.store(count, Ordering::Relaxed);
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
        let from_thread = self.membership.thread_of(conn).is_some();
        match message {
            Message::TaskEnd(end) if from_thread || self.backends.authorised(conn) => {
                let by = if from_thread { EndedBy::Scheduler } else { EndedBy::Backend };
                self.on_task_end(now, end, by);
            }
            message if self.membership.is_control(conn) => self.on_control(now, message),
            _ => self.on_unexpected(conn, from_thread),
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
        self.show_backends();
        if let Err(error) = self.membership.on_closed(conn, reason) {
            self.fail(now, error.into());
        }
    }

    fn tend_membership(&mut self, now: Nanos) {
        let tasks = self.serving.as_ref().map(|serving| &serving.tasks);
        let has_work = tasks.is_some_and(|tasks| tasks.next_expiry().is_some());
        match self.membership.poll(now, has_work, &mut self.transport) {
            Ok(Step::Idle) => {}
            Ok(Step::Pinged) => self.counters.publish_transport(self.transport.counters()),
            Ok(Step::Connecting) => self.forget_scheduler(now),
            Ok(Step::Ready) => self.on_ready(now),
            Err(error) => self.fail(now, error.into()),
        }
    }
}

fn member(config: &ClientConfig, seed: u32) -> Member {
    Member {
        role: Role::Frontend,
        scheduler: config.scheduler.clone(),
        reconnect: config.reconnect,
        seed: seed.into(),
        join_timeout: config.connect_timeout,
        join_timeout_setting: config.timeout_setting,
        member_timeout: config.member_timeout,
    }
}

impl<T: Transport> Agent for ClientIo<T> {
    fn poll(&mut self, now: Nanos) -> usize {
        let (work, mut listeners) = (self.pass(now), Vec::new());
        self.swap_listeners(&mut listeners);
        listeners.drain(..).for_each(task::Waker::wake);
        self.swap_listeners(&mut listeners);
        work
    }

    fn next_timer(&self) -> Option<Nanos> {
        let serving = self.serving.as_ref();
        let lease = serving.and_then(|serving| serving.tasks.next_expiry());
        let leave = serving.and_then(|serving| serving.leave_by);
        let pending = serving.and_then(|serving| serving.pending_at);
        let timers = [self.membership.next_timer(), lease, leave, pending, self.prefault_timer()];
        timers.into_iter().flatten().min()
    }

    fn wait(&mut self, timeout: Option<Nanos>) {
        self.transport.wait(timeout);
    }

    fn sleep_max(&self) -> Nanos {
        self.membership.sleep_max()
    }

    fn waker(&self) -> Waker {
        self.transport.waker()
    }

    fn finished(&self) -> bool {
        self.membership.stage() == Stage::Left
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

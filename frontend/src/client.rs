//! The application's handle: connects, names models, leaves.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use atomic_waker::AtomicWaker;
use baton_membership::MembershipError;
use baton_metrics::{Metric, MetricsError, MetricsServer, build_info};
use baton_rdma::wire::Role;
use baton_rdma::{Credentials, Identity, MixedTransport};
use baton_topo::{Clock, FabricSpec, Placement};
use baton_types::Nanos;
use crossbeam_channel::{Receiver, TryRecvError};

use crate::config::{ClientConfig, listen_near};
use crate::counters::Counters;
use crate::driver::Driver;
use crate::error::{ConnectError, LeaveError, Loss, UnknownModel};
use crate::io::{ClientIo, Joining};
use crate::io_thread;
use crate::model::ModelHandle;
use crate::served::{Model, ModelOwner};
use crate::session::Session;

/// A joined frontend. Clones are the same client; any thread may use them.
///
/// The connection lives as long as any `Client`, [`ModelHandle`], [`crate::Input`] or
/// [`crate::Ticket`] of it. When the last is dropped, the I/O thread leaves in the background;
/// [`Client::leave`] leaves in order and reports the result.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) guard: Arc<SessionGuard>,
}

/// Ends the session when its last user is gone.
#[derive(Debug)]
pub(crate) struct SessionGuard {
    pub(crate) session: Arc<Session>,
    /// Disconnected when the I/O thread has ended.
    ended: Receiver<Infallible>,
}

impl Client {
    /// Joins the scheduler and reserves memory for the models. If there is no scheduler yet, or the
    /// leader has just died, the client retries, with pauses of half a second at most.
    /// Blocks for [`ClientConfig::connect_timeout`] at most.
    ///
    /// # Errors
    /// See [`ConnectError`]; no thread is left running.
    pub fn connect(config: ClientConfig) -> Result<Self, ConnectError> {
        let placement =
            Placement { name: "baton-client".into(), core: config.core, idle: config.idle };
        let Unconnected { io, joining, clock } = Unconnected::new(config)?;
        io_thread::start(io, clock, placement).map_err(ConnectError::Thread)?;
        joining.wait()
    }

    /// As [`Client::connect`], without an I/O thread: the caller makes its passes with the [`Driver`], from one loop with its own
    /// work. The settings `idle` and `core` mean nothing here.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn driven(config: ClientConfig) -> Result<(Self, Driver), ConnectError> {
        let Unconnected { io, joining, clock } = Unconnected::new(config)?;
        let mut driver = Driver::new(io, clock);
        let client = driver.drive_until(|driver| {
            let ended = || driver.has_ended().then_some(Err(ConnectError::IoEnded));
            joining.poll().or_else(ended)
        })?;
        Ok((client, driver))
    }

    /// As [`Client::connect`], without blocking the caller: a thread of its own connects, and ends with that. Any executor may
    /// poll the future. If it is dropped, the thread goes on, and a client that it has connected by then leaves.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect_async(config: ClientConfig) -> Result<Self, ConnectError> {
        let (sender, connected) = crossbeam_channel::bounded(1);
        let waker = Arc::new(AtomicWaker::new());
        let wakes = Arc::clone(&waker);
        thread::Builder::new()
            .name("baton-connect".into())
            .spawn(move || {
                // Dropped in the other order, also by a panic: the woken future finds a result, or that none will come.
                let (_wakes, sender) = (WakesAtEnd(wakes), sender);
                // The receiver may be gone.
                let _ = sender.send(Self::connect(config));
            })
            .map_err(ConnectError::Thread)?;
        poll_fn(|context| {
            waker.register(context.waker());
            match connected.try_recv() {
                Ok(result) => Poll::Ready(result),
                Err(TryRecvError::Empty) => Poll::Pending,
                Err(TryRecvError::Disconnected) => Poll::Ready(Err(ConnectError::IoEnded)),
            }
        })
        .await
    }

    /// The handle of a model. A model that is added while the client is connected can be had as soon as every
    /// backend can read its inputs; one that was removed cannot be had any more.
    ///
    /// # Errors
    /// No model has that name; the error lists the models there are.
    pub fn model(&self, name: &str) -> Result<ModelHandle, UnknownModel> {
        let session = &self.guard.session;
        let Some(model) = session.model(name) else {
            session.counters.unknown_model.add(1);
            return Err(unknown(name, session.usable().iter().map(|model| &*model.name)));
        };
        Ok(self.handle(model))
    }

    /// Every model that this client can use now, by name.
    pub fn models(&self) -> Vec<ModelHandle> {
        self.guard.session.usable().into_iter().map(|model| self.handle(model)).collect()
    }

    fn handle(&self, model: Arc<Model>) -> ModelHandle {
        ModelHandle::new(ModelOwner { guard: Arc::clone(&self.guard), model })
    }

    /// Why the scheduler is lost, while it is. The client reconnects by itself and then submits the
    /// outstanding tasks again.
    pub fn loss(&self) -> Option<Loss> {
        self.guard.session.loss()
    }

    /// Now, on the clock of every moment that this client gives ([`ClientConfig::clock`]).
    pub fn now(&self) -> Nanos {
        self.guard.session.clock.now()
    }

    /// What this client counted.
    pub fn counters(&self) -> Counters {
        self.guard.session.counters.snapshot()
    }

    /// Lets Prometheus scrape what this client counts, at `http://ADDR/metrics`, until the server is dropped. Scrapes are
    /// answered on a thread of their own. Port 0 takes a free one.
    ///
    /// # Errors
    /// The address is not free.
    pub fn serve_metrics(&self, addr: SocketAddr) -> Result<MetricsServer, MetricsError> {
        let session = Arc::clone(&self.guard.session);
        MetricsServer::start(addr, move || {
            let mut metrics = session.metrics();
            metrics.push(build_info(env!("CARGO_PKG_VERSION")));
            metrics
        })
    }

    /// What [`Client::serve_metrics`] shows of this client, for a program that shows more than that.
    pub fn metrics(&self) -> Vec<Metric> {
        self.guard.session.metrics()
    }

    /// Input slots that are not free: being filled, in flight, or held by a ticket or a reply.
    pub fn slots_in_use(&self) -> u32 {
        self.guard.session.slots_in_use()
    }

    /// Backends that are connected to this client. Each answers for the models of its sub-cluster; without any, every task is
    /// dropped or waits.
    pub fn backends(&self) -> u32 {
        self.guard.session.backends()
    }

    /// Leaves in order: refuses new submits, waits for outstanding tasks (at most
    /// [`ClientConfig::leave_timeout`]), notifies the scheduler and waits for its confirmation (at
    /// most `member_timeout`). Every ticket has its outcome afterwards; tickets and replies remain
    /// usable. Other clones see [`crate::SubmitReason::ClientClosed`].
    ///
    /// # Errors
    /// Tasks had to be abandoned, or the scheduler did not confirm. The client has ended all the same.
    pub fn leave(self) -> Result<(), LeaveError> {
        self.guard.session.begin_leaving();
        // Nothing is ever sent; the disconnection is the news.
        let _ = self.guard.ended.recv();
        self.guard.session.farewell()
    }

    /// The first half of [`Client::leave`]. The session knows how it went once the I/O side has ended.
    pub(crate) fn begin_leaving(self) -> Arc<Session> {
        self.guard.session.begin_leaving();
        Arc::clone(&self.guard.session)
    }

    /// As [`Client::leave`], without blocking the caller. Leaving begins with the first poll, and goes on if the future is
    /// dropped.
    ///
    /// # Errors
    /// As [`Client::leave`].
    pub async fn leave_async(self) -> Result<(), LeaveError> {
        let session = &self.guard.session;
        session.begin_leaving();
        poll_fn(|context| {
            session.farewell_or_listen(context.waker()).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// A client that its first pass will connect.
struct Unconnected {
    io: ClientIo<MixedTransport>,
    joining: Joining,
    clock: Clock,
}

impl Unconnected {
    /// Waits until there is a leader, at most `connect_timeout`, and listens for backends.
    fn new(config: ClientConfig) -> Result<Self, ConnectError> {
        config.check()?;
        let clock = config.clock.unwrap_or_else(Clock::start);
        let began = clock.now();
        let scheduler = config.scheduler.wait(Duration::from_nanos(config.connect_timeout.0));
        let scheduler = scheduler.map_err(|unknown| MembershipError::TimedOut {
            tried_ms: (clock.now() - began).0 / 1_000_000,
            last: Box::new(unknown.into()),
            bound: config.timeout_setting,
        })?;
        let transport = Self::bind(&config, listen_near(scheduler.ip()), clock)?;
        let (mut io, joining) = ClientIo::new(config, transport, clock)?;
        io.count_from(began);
        Ok(Self { io, joining, clock })
    }

    fn bind(
        config: &ClientConfig,
        near: SocketAddr,
        clock: Clock,
    ) -> Result<MixedTransport, ConnectError> {
        let listen = config.listen.unwrap_or(near);
        let identity = Identity { role: Role::Frontend, member: 0 };
        let FabricSpec { transport: choice, verbs, tls } = &config.fabric;
        let credentials = tls.as_ref().map(Credentials::load_and_warn).transpose()?;
        MixedTransport::bind(
            Some(listen),
            identity,
            config.tcp,
            *choice,
            verbs,
            credentials.as_ref(),
            clock,
        )
        .map_err(|error| ConnectError::transport(listen, error))
    }
}

/// Wakes when it is dropped.
struct WakesAtEnd(Arc<AtomicWaker>);

impl Drop for WakesAtEnd {
    fn drop(&mut self) {
        self.0.wake();
    }
}

impl SessionGuard {
    pub(crate) fn new(session: Arc<Session>, ended: Receiver<Infallible>) -> Self {
        Self { session, ended }
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.session.begin_leaving();
    }
}

pub(crate) fn unknown<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> UnknownModel {
    UnknownModel { name: name.to_owned(), known: known.map(str::to_owned).collect() }
}

//! The threads that serve connections, and what all of them share.

use std::convert::Infallible;
use std::future::pending;
use std::hint::black_box;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::{self, JoinHandle};

use baton_client::{Client, Clock, Driver, LeaveError, ModelHandle, Nanos, Reply};
use baton_metrics::Metric;
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tokio::task::{self, JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::accept::{Handed, Seats, serve, serve_handed};
use crate::access::{Access, Asker, Token, TokenError, may_use};
use crate::counters::Counters;
use crate::driving::Driving;
use crate::lag::Lag;
use crate::limits::Limits;
use crate::memory::Memory;
use crate::protocol::image::ImageStep;
use crate::protocol::problem::{Kind, Problem};
use crate::protocol::request::Model;
use crate::repository::{Operating, Repository};
use crate::statistics::Statistics;
use crate::tls::{TlsError, TlsFiles, acceptor};

/// Half of the memory that is kept for requests to come, for each thread.
const KEPT: usize = 8 << 20;

/// What a gateway is given.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// Where clients connect; port 0 takes a free one. Each address has both protocols.
    pub listen: Vec<SocketAddr>,
    /// Slots that the client has of each model: the most tasks of one request.
    pub slots_per_model: u32,
    /// See there.
    pub limits: Limits,
    /// Threads that serve connections: each has a runtime of its own, and all share the client. At least 1.
    pub threads: usize,
    /// What it shows its clients; `None`: no TLS.
    pub tls: Option<TlsFiles>,
    /// Who may use it; empty: anyone.
    pub tokens: Vec<Token>,
    /// Models that take images, and how.
    pub images: Vec<ImageStep>,
    /// Models that clients may load and unload; `None`: they may not.
    pub repository: Option<Repository>,
    /// Bytes of shared memory that clients may register, all regions together; `None`: they may not. Then clients must be on
    /// this host: every address of `listen` is a loopback one.
    pub shared_memory_bytes: Option<u64>,
}

/// Why there is no gateway.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The address is not free.
    #[error("cannot listen on {addr} ({source}): choose another address with --http or --grpc")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The certificate towards clients.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A token.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// There was one before.
    #[error(
        "gateway.cert: the cluster file names none any more; restart the gateway to serve without TLS"
    )]
    TlsGone,
    /// Clients of other hosts would reach this host's memory.
    #[error(
        "shared_memory_mib lets clients name memory of this host, and {0} is open to other hosts: listen on 127.0.0.1, or remove the key"
    )]
    SharedMemory(SocketAddr),
    /// A thread, or what it waits with.
    #[error("cannot start the gateway's threads: {0}")]
    Start(io::Error),
    /// A thread panicked: a bug; its message is on stderr.
    #[error("a thread of the gateway has died; its panic message is on stderr")]
    Died,
    /// The end of the client.
    #[error(transparent)]
    Leave(#[from] LeaveError),
}

/// What connections share.
pub(crate) struct App {
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    pub(crate) limits: Limits,
    pub(crate) slots_per_model: u32,
    pub(crate) counters: Counters,
    pub(crate) statistics: Statistics,
    pub(crate) lag: Lag,
    pub(crate) seats: Seats,
    access: Access,
    pub(crate) operating: Option<Operating>,
    pub(crate) images: Vec<ImageStep>,
    pub(crate) memory: Option<Memory>,
    tls: RwLock<Option<TlsAcceptor>>,
    /// True once the gateway is asked to end.
    pub(crate) drains: watch::Receiver<bool>,
}

impl App {
    /// # Errors
    /// There is no such model for this asker.
    pub(crate) fn model(&self, asker: &Asker, name: &str) -> Result<ModelHandle, Problem> {
        let found = self.client.model(name).ok().filter(|_| may_use(asker, name));
        found.ok_or_else(|| {
            let models = self.models(asker);
            let known: Vec<&str> = models.iter().map(ModelHandle::name).collect();
            let known = known.join(", ");
            let text = format!("no model is called {name:?}; this gateway has: {known}");
            Problem::new(Kind::NotFound, text)
        })
    }

    /// Those that this asker may use.
    pub(crate) fn models(&self, asker: &Asker) -> Vec<ModelHandle> {
        let mut models = self.client.models();
        models.retain(|model| may_use(asker, model.name()));
        models
    }

    /// Who asks, by the headers of a request.
    ///
    /// # Errors
    /// See [`Access::asker`].
    pub(crate) fn asker(&self, headers: &HeaderMap) -> Result<Asker, Problem> {
        let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        self.access.asker(given)
    }

    pub(crate) fn tls(&self) -> Option<TlsAcceptor> {
        self.tls.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// See [`Gateway::reload`].
    fn reload(&self, tls: Option<&TlsFiles>, tokens: &[Token]) -> Result<(), GatewayError> {
        if tls.is_none() && self.tls().is_some() {
            return Err(GatewayError::TlsGone);
        }
        let tls = tls.map(acceptor).transpose()?;
        self.access.replace(self.access.read(tokens)?);
        *self.tls.write().unwrap_or_else(PoisonError::into_inner) = tls;
        Ok(())
    }

    pub(crate) fn described<'a>(&self, model: &'a ModelHandle) -> Model<'a> {
        let (inputs, outputs) = (model.inputs(), model.outputs());
        let batch_max = self.slots_per_model as usize;
        Model { name: model.name(), inputs, outputs, batch_max }
    }

    /// A request for a model that came at `arrived` has these answers, or none.
    pub(crate) fn count_inference(
        &self,
        model: &ModelHandle,
        arrived: Nanos,
        replies: Result<&[Reply], &Problem>,
    ) {
        let now = self.clock.now();
        let took = now - arrived;
        match replies {
            Ok(replies) => {
                replies.iter().for_each(|reply| self.lag.learn(reply.timing(), now));
                self.statistics.answered(model.name(), took, replies);
            }
            Err(_) => self.statistics.failed(model.name(), took),
        }
    }

    /// Why this gateway cannot have any model inferred now. Which backend serves which model only the scheduler knows.
    pub(crate) fn unready(&self) -> Option<Problem> {
        if *self.drains.borrow() {
            return Some(Problem::unavailable("this gateway ends"));
        }
        let none = || Problem::unavailable("no backend is connected: no model can be inferred");
        let lost = self.client.loss().map(|loss| Problem::unavailable(loss.to_string()));
        lost.or_else(|| (self.client.backends() == 0).then(none))
    }
}

/// A running gateway.
#[derive(Debug)]
pub struct Gateway {
    addrs: Vec<SocketAddr>,
    app: Arc<App>,
    driving: Option<Arc<Driving>>,
    drain: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Gateway {
    /// Whether it could listen there, for those who want to know before they connect a client.
    ///
    /// # Errors
    /// See [`GatewayError`].
    pub fn try_addresses(config: &GatewayConfig) -> Result<(), GatewayError> {
        listeners(config).map(drop)
    }

    /// Serves what `client` can use, on threads of its own. With `driver`, the first of them makes the client's passes.
    ///
    /// # Errors
    /// See [`GatewayError`].
    pub fn start(
        client: Client,
        driver: Option<Driver>,
        clock: Clock,
        config: &GatewayConfig,
    ) -> Result<Self, GatewayError> {
        let listeners = listeners(config)?;
        let addrs = listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>();
        let addrs = addrs.map_err(GatewayError::Start)?;
        keep_memory();
        let (drain, drains) = watch::channel(false);
        let operating = config.repository.clone().map(Operating::start).transpose();
        let (seats, handed) = Seats::new(config.threads.max(1));
        let app = Arc::new(App {
            client,
            clock,
            limits: config.limits,
            slots_per_model: config.slots_per_model,
            counters: Counters::default(),
            statistics: Statistics::default(),
            lag: Lag::default(),
            seats,
            access: Access::load(&config.tokens)?,
            images: config.images.clone(),
            memory: config.shared_memory_bytes.map(Memory::new),
            operating: operating.map_err(GatewayError::Start)?,
            tls: RwLock::new(config.tls.as_ref().map(acceptor).transpose()?),
            drains,
        });
        let driving = driver.map(Driving::start).transpose().map_err(GatewayError::Start)?;
        let thread = |(number, handed)| {
            let driving = driving.clone().filter(|_| number == 0);
            spawn(&app, Thread { number, driving, handed }, &listeners)
        };
        let threads = handed.into_iter().enumerate().map(thread);
        let threads = threads.collect::<io::Result<_>>().map_err(GatewayError::Start)?;
        Ok(Self { addrs, app, driving, drain, threads })
    }

    /// Where clients connect, in the order of [`GatewayConfig::listen`].
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Reads what the gateway and its client library count, for a `MetricsServer`.
    pub fn metrics(&self) -> impl Fn() -> Vec<Metric> + Send + 'static {
        let app = Arc::clone(&self.app);
        move || {
            let mut metrics = app.client.metrics();
            metrics.extend(app.counters.metrics());
            metrics.push(app.lag.metric());
            metrics.extend(app.access.metrics());
            metrics.extend(Memory::metrics(&app.memory));
            metrics
        }
    }

    /// Reads its certificate and its tokens again: the next connection sees the one, the next request the others. After an
    /// error everything is as before. Neither goes away altogether: that would open the gateway by mistake.
    ///
    /// # Errors
    /// A file cannot be used, or nothing is left of what there was.
    pub fn reload(&self, tls: Option<&TlsFiles>, tokens: &[Token]) -> Result<(), GatewayError> {
        let reloaded = self.app.reload(tls, tokens);
        let counters = &self.app.counters;
        match reloaded {
            Ok(()) => counters.count_reload(),
            Err(_) => counters.count_failed_reload(),
        }
        reloaded
    }

    /// The cluster file that names them has changed and cannot be used, so they were not read.
    pub fn count_failed_reload(&self) {
        self.app.counters.count_failed_reload();
    }

    /// What the client library counted.
    pub fn client_counters(&self) -> Vec<(&'static str, u64)> {
        self.app.client.counters().pairs()
    }

    /// Whether a thread has ended without having been asked to.
    pub fn has_died(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Ends in order: accepts no more, answers what is under way for [`Limits::drain`] at most, and leaves the cluster.
    ///
    /// # Errors
    /// A thread had died, or the scheduler does not confirm.
    pub fn drain(self) -> Result<(), GatewayError> {
        // The threads have ended already if nothing listens.
        let _ = self.drain.send(true);
        let ended: Vec<_> = self.threads.into_iter().map(JoinHandle::join).collect();
        if ended.iter().any(Result::is_err) {
            return Err(GatewayError::Died);
        }
        let client = self.app.client.clone();
        let left = match &self.driving {
            Some(driving) => driving.leave(client),
            None => client.leave(),
        };
        left.map_err(GatewayError::Leave)
    }
}

/// Has the C library keep what is free. glibc gives memory at the end of a thread's heap back as soon as it is 128 KiB, so that
/// each long request would take it from the system anew, page by page. It keeps twice as much as the longest allocation of its
/// own that was ever freed; elsewhere this changes nothing.
fn keep_memory() {
    drop(black_box(Vec::<u8>::with_capacity(KEPT)));
}

/// One for each address. Where clients register memory of their own, only this machine's may connect.
fn listeners(config: &GatewayConfig) -> Result<Vec<TcpListener>, GatewayError> {
    let mut open = config.listen.iter().filter(|addr| !addr.ip().is_loopback());
    if let Some(addr) = open.next().filter(|_| config.shared_memory_bytes.is_some()) {
        return Err(GatewayError::SharedMemory(*addr));
    }
    config.listen.iter().map(listen).collect()
}

fn listen(addr: &SocketAddr) -> Result<TcpListener, GatewayError> {
    let taken = |source| GatewayError::Listen { addr: *addr, source };
    let listener = TcpListener::bind(addr).map_err(taken)?;
    listener.set_nonblocking(true).map_err(GatewayError::Start)?;
    Ok(listener)
}

/// What one of the threads is given.
struct Thread {
    number: usize,
    driving: Option<Arc<Driving>>,
    handed: UnboundedReceiver<Handed>,
}

/// A thread with a runtime of its own: a connection stays on it. All threads accept from the same sockets.
fn spawn(app: &Arc<App>, thread: Thread, listeners: &[TcpListener]) -> io::Result<JoinHandle<()>> {
    let listeners = listeners.iter().map(TcpListener::try_clone).collect::<io::Result<_>>()?;
    let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(1).build()?;
    let app = Arc::clone(app);
    let name = format!("baton-gateway-{}", thread.number);
    thread::Builder::new().name(name).spawn(move || run(&runtime, &app, thread, listeners))
}

fn run(runtime: &Runtime, app: &Arc<App>, thread: Thread, listeners: Vec<TcpListener>) {
    let Thread { number, driving, handed } = thread;
    runtime.block_on(async {
        let driven = driving.map(|driving| tokio::spawn(driving.drive()));
        let mut serving = JoinSet::new();
        serving.spawn(serve_handed(Arc::clone(app), handed));
        for listener in listeners {
            match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => drop(serving.spawn(serve(Arc::clone(app), number, listener))),
                Err(error) => tracing::error!(%error, "the gateway cannot wait for connections"),
            }
        }
        // One that ends before it is asked to takes the others with it: the process ends then.
        tokio::select! {
            _ = serving.join_next() => {}
            () = failed(driven) => return,
        }
        while *app.drains.borrow() && serving.join_next().await.is_some() {}
    });
}

/// Ends if the client's passes do, which go on for ever.
async fn failed(driven: Option<task::JoinHandle<io::Result<Infallible>>>) {
    let Some(driven) = driven else { return pending().await };
    // Otherwise it has panicked, or its runtime ends.
    if let Ok(Err(error)) = driven.await {
        tracing::error!(%error, "the gateway cannot wait for the cluster");
    }
}

//! A transport without a network: its polls make up requests and batch reports, what is sent to it
//! goes to the emulated GPUs. Or one with half a network: requests come over TCP from a
//! [`super::sender`], and only the GPUs are emulated.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use baton_core::{BackendId, FrontendId, GpuId, ModelId, Nanos, TaskId};
use baton_rdma::wire::{
    Action, ActionStatus, ActionTask, Body, Hello, Kind, RefuseCode, Role, Submit, TaskEnd,
    TaskResult,
};
use baton_rdma::{
    BatchBuffer, ConnId, Events, Identity, Peer, Read, SendError, SlabSet, TcpConfig, TcpTransport,
    Transport, TransportCounters,
};
use baton_topo::Waker;
use zerocopy::{FromBytes, IntoBytes};

use super::SchedError;
use super::arrivals::Arrivals;
use super::gpus::Gpus;
use super::ledger::Ledger;
use super::traffic::Traffic;
use super::workload::{BACKLOG, Workload};
use crate::machine::thread_time;

/// GPU slots per emulated backend: reports come from many connections, as in a cluster.
pub(super) const GPUS_PER_BACKEND: u32 = 16;
/// The one frontend, and the token every member presents.
pub(super) const FRONTEND: FrontendId = FrontendId(0);
pub(super) const TOKEN: u64 = 1;
const FRONTEND_CONN: ConnId = ConnId(0);
/// Added to a backend's number; no connection of a network has such a number.
const BACKEND_CONNS: u64 = 1 << 63;

/// Requests a saturating generator adds per poll, if nothing else is said: what one system call
/// brings over TCP at load.
pub(super) const REQUESTS_PER_POLL: usize = 64;
/// Requests a paced generator adds per poll at most, after a pause.
pub(super) const CATCH_UP_MAX: usize = 1024;

/// See the module documentation.
pub(super) struct Generator {
    arrivals: Arrivals,
    gpus: Gpus,
    slo: Nanos,
    /// Requests that have arrived and were not read yet, oldest first: what the connections hold.
    /// With as many in it as it can take, the next one is refused, as a frontend's send queue does.
    ingress: VecDeque<(u32, Nanos)>,
    ingress_max: usize,
    per_poll: usize,
    saturating_per_poll: usize,
    /// Connections not reported as open yet.
    unopened: Vec<(ConnId, Peer)>,
    /// Requests made so far; names tasks.
    made: u64,
    /// Requests neither planned nor ended, and how many of them a saturating generator allows.
    waiting: u64,
    waiting_max: u64,
    /// As of the last poll.
    now: Nanos,
    /// Set: no more requests.
    quiet: Arc<AtomicBool>,
    traffic: Arc<Traffic>,
    ledger: Option<Ledger>,
    /// Where requests come from and ends go to, instead of the arrivals above.
    tcp: Option<Box<TcpTransport>>,
}

impl Generator {
    /// The generator of ModelThread `thread`.
    pub(super) fn new(
        workload: &Workload,
        thread: u32,
        quiet: Arc<AtomicBool>,
        traffic: Arc<Traffic>,
    ) -> Self {
        let shape = &workload.shape;
        let models = workload.models_of(thread);
        let share = models.len() as f64 / f64::from(shape.models);
        let rate = shape.rate.map(|rate| rate * share);
        Self {
            arrivals: Arrivals::new(&models, rate, shape.seed.wrapping_add(thread.into())),
            gpus: Gpus::new(workload.profiles(), shape.gpus),
            slo: workload.slo,
            ingress: VecDeque::with_capacity(workload.ingress_max),
            ingress_max: workload.ingress_max,
            per_poll: workload.per_poll,
            saturating_per_poll: workload.saturating_per_poll,
            unopened: peers(shape.gpus),
            made: 0,
            waiting: 0,
            waiting_max: u64::from(BACKLOG) * models.len() as u64,
            now: Nanos::ZERO,
            quiet,
            traffic,
            ledger: workload.watched.then(Ledger::new),
            tcp: None,
        }
    }

    /// One whose requests come over TCP.
    ///
    /// # Errors
    /// The system has no more sockets.
    pub(super) fn over_tcp(
        workload: &Workload,
        thread: u32,
        traffic: Arc<Traffic>,
    ) -> io::Result<Self> {
        let identity = Identity { role: Role::ModelThread, member: thread };
        let listen = ([127, 0, 0, 1], 0).into();
        let tcp = TcpTransport::bind(Some(listen), identity, TcpConfig::default())?;
        let mut generator = Self::new(workload, thread, Arc::default(), traffic);
        generator.unopened.retain(|(_, peer)| peer.role == Role::Backend);
        generator.tcp = Some(Box::new(tcp));
        Ok(generator)
    }

    fn take_in(&mut self, events: &mut Events) {
        let Some(tcp) = &mut self.tcp else { return self.make_requests(events) };
        tcp.poll(self.now, events);
        let taken = tcp.counters().messages_in;
        self.waiting += taken - self.made;
        self.made = taken;
        self.traffic.taken.set(taken);
    }

    fn report_finished(&mut self, events: &mut Events) {
        while let Some((done, rows)) = self.gpus.finished(self.now) {
            if done.status == ActionStatus::Expired as u8 {
                self.waiting += u64::from(rows);
                self.traffic.given_back.add(rows.into());
            }
            let from = backend_conn(backend_of(done.gpu.get()));
            events.message(from, Kind::ActionDone, done.as_bytes());
        }
    }

    fn make_requests(&mut self, events: &mut Events) {
        if self.quiet.load(Ordering::Relaxed) {
            return;
        }
        if self.arrivals.is_paced() {
            self.let_in();
            for _ in 0..self.per_poll {
                let Some((model, arrived)) = self.ingress.pop_front() else { return };
                self.submit(model, arrived, events);
            }
        } else {
            let room = self.waiting_max - self.waiting.min(self.waiting_max);
            let most = self.saturating_per_poll.min(room as usize);
            self.traffic.offered.add(most as u64);
            for _ in 0..most {
                let (model, now) = self.arrivals.take(self.now).expect("it is not paced");
                self.submit(model, now, events);
            }
        }
    }

    /// Everything that has arrived by now waits to be read, or is refused.
    fn let_in(&mut self) {
        let (mut offered, mut refused) = (0, 0);
        while let Some(request) = self.arrivals.take(self.now) {
            offered += 1;
            if self.ingress.len() < self.ingress_max {
                self.ingress.push_back(request);
            } else {
                refused += 1;
            }
        }
        self.traffic.offered.add(offered);
        self.traffic.refused.add(refused);
    }

    fn submit(&mut self, model: u32, arrived: Nanos, events: &mut Events) {
        let task = self.next_task();
        if let Some(ledger) = &mut self.ledger {
            ledger.open(task, &self.traffic.violations);
        }
        let submit = Submit {
            task: task.0.into(),
            deadline_ns: (arrived + self.slo).0.into(),
            model: model.into(),
            input_bytes: 1.into(),
            cost: 0.into(),
            accuracy_min: 0.into(),
        };
        events.message(FRONTEND_CONN, Kind::Submit, submit.as_bytes());
    }

    fn on_action(&mut self, action: &Action, tasks: &[u8]) {
        let rows = (tasks.len() / size_of::<ActionTask>()) as u16;
        self.waiting -= u64::from(rows);
        if !self.gpus.start(self.now, action, rows) {
            return;
        }
        self.traffic.good.add(rows.into());
        if let Some(ledger) = &mut self.ledger {
            let tasks = <[ActionTask]>::ref_from_bytes(tasks).expect("they are whole");
            let ids = tasks.iter().map(|task| TaskId(task.task.get()));
            ids.for_each(|id| ledger.close(id, &self.traffic.violations));
        }
    }

    fn on_end(&mut self, end: &TaskEnd) {
        self.waiting -= 1;
        if let Some(ledger) = &mut self.ledger {
            ledger.close(TaskId(end.task.get()), &self.traffic.violations);
        }
    }

    fn next_task(&mut self) -> TaskId {
        let (slots, made) = (u64::from(TaskId::SLOTS_MAX), self.made);
        self.made += 1;
        self.waiting += 1;
        TaskId::new(FRONTEND, (made % slots) as u32, (made / slots) as u32)
    }
}

/// The backend that has a slot.
pub(super) fn backend_of(gpu: u32) -> BackendId {
    BackendId(gpu / GPUS_PER_BACKEND)
}

fn backend_conn(backend: BackendId) -> ConnId {
    ConnId(BACKEND_CONNS + u64::from(backend.0))
}

fn peers(gpus: u32) -> Vec<(ConnId, Peer)> {
    let addr = SocketAddr::from(([127, 0, 0, 1], 1));
    let version = baton_rdma::wire::VERSION_MAX;
    let peer = |role, member| Peer { role, member, token: TOKEN, addr, accepted: true, version };
    let backend = |id: u32| (backend_conn(BackendId(id)), peer(Role::Backend, id));
    let frontend = (FRONTEND_CONN, peer(Role::Frontend, FRONTEND.0.into()));
    let backends = (0..gpus.div_ceil(GPUS_PER_BACKEND)).map(backend);
    std::iter::once(frontend).chain(backends).collect()
}

impl Transport for Generator {
    fn poll(&mut self, now: Nanos, events: &mut Events) -> usize {
        let before = events.len();
        self.now = now;
        if self.unopened.is_empty() {
            self.report_finished(events);
            self.take_in(events);
        } else {
            self.unopened.drain(..).for_each(|(conn, peer)| events.opened(conn, peer));
        }
        events.len() - before
    }

    fn send<B: Body>(&mut self, conn: ConnId, body: &B, tail: &[u8]) -> Result<(), SendError> {
        match B::KIND {
            Kind::Action => {
                self.on_action(
                    Action::ref_from_bytes(body.as_bytes()).expect("the kind says so"),
                    tail,
                );
            }
            Kind::TaskEnd => {
                self.on_end(TaskEnd::ref_from_bytes(body.as_bytes()).expect("the kind says so"));
                if let Some(tcp) = &mut self.tcp {
                    return tcp.send(conn, body, tail);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn local_addr(&self) -> SocketAddr {
        self.tcp.as_ref().map_or_else(|| ([127, 0, 0, 1], 1).into(), |tcp| tcp.local_addr())
    }

    fn connect(&mut self, _: SocketAddr, _: Hello) -> io::Result<ConnId> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn waker(&self) -> Waker {
        Waker::new(|| ())
    }

    /// Its thread spins or yields.
    fn wait(&mut self, _: Option<Nanos>) {}

    /// The end of a pass.
    fn flush(&mut self) {
        let open = self.ledger.as_ref().map_or(self.waiting, Ledger::count_open);
        self.traffic.open.set(open);
        self.tcp.iter_mut().for_each(|tcp| tcp.flush());
    }

    // Nothing below is called by a ModelThread that serves, or there is nothing to do for it.
    fn identify(&mut self, _: Identity) {}
    fn close(&mut self, conn: ConnId, code: RefuseCode, detail: &str) {
        self.tcp.iter_mut().for_each(|tcp| tcp.close(conn, code, detail));
    }
    fn post_reads(&mut self, _: &mut Vec<Read>) {}
    fn abort_read(&mut self, _: ConnId, _: u64) {}
    fn reply(&mut self, _: ConnId, _: &TaskResult, _: &[u8]) -> Result<(), SendError> {
        Err(SendError::Closed)
    }
    fn expose(&mut self, _: Arc<SlabSet>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn withdraw(&mut self, _: &Arc<SlabSet>) {}
    fn land_in(&mut self, _: &Arc<BatchBuffer>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn release(&mut self, _: &Arc<BatchBuffer>) {}
    fn counters(&self) -> TransportCounters {
        self.tcp.as_ref().map_or_else(TransportCounters::default, |tcp| tcp.counters())
    }
}

/// CPU ns per request of the generator by itself: the polls and sends of a run with batches of
/// `batch`, and no scheduler between them.
pub(super) fn cost_alone(workload: &Workload, batch: f64) -> Result<f64, SchedError> {
    const REQUESTS: u64 = 2_000_000;
    let mut workload = workload.clone();
    (workload.shape.rate, workload.shape.model_threads) = (None, 1);
    let body = move || {
        let mut generator = Generator::new(&workload, 0, Arc::default(), Arc::default());
        let mut events = Events::new();
        generator.poll(Nanos::ZERO, &mut events);
        let before = thread_time();
        while generator.made < REQUESTS {
            step(&mut generator, &mut events, batch.max(1.0) as u64, workload.shape.gpus);
        }
        (thread_time() - before).0 as f64 / REQUESTS as f64
    };
    let thread = std::thread::Builder::new().spawn(body).map_err(SchedError::Spawn)?;
    thread.join().map_err(|_| SchedError::Panicked)
}

fn step(generator: &mut Generator, events: &mut Events, batch: u64, gpus: u32) {
    const TASK_BYTES: usize = size_of::<ActionTask>();
    let tasks = [0u8; TASK_BYTES * 64];
    let tail = &tasks[..(TASK_BYTES * batch as usize).min(tasks.len())];
    events.clear();
    // As many batches run at a time as there are GPUs.
    let step = generator.gpus.latency(batch as u32).0 * generator.saturating_per_poll as u64;
    let now = generator.now + Nanos(step / (batch * u64::from(gpus)));
    generator.poll(now, events);
    while generator.waiting >= batch {
        let gpu = (generator.made / batch) as u32 % gpus;
        let window = [now, Nanos(u64::MAX)];
        let action = Action::infer(generator.made, window, ModelId(0), GpuId(gpu));
        generator.send(FRONTEND_CONN, &action, tail).expect("it takes everything");
    }
}

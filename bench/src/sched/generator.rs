//! A transport without a network: its polls make up requests and batch reports, what is sent to it
//! goes to the emulated GPUs.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use baton_core::{BackendId, FrontendId, Nanos, TaskId};
use baton_rdma::wire::{Body, Hello, Kind, Plan, RefuseCode, Role, Submit, TaskResult};
use baton_rdma::{
    ConnId, Events, Identity, Peer, Read, SendError, SlabSet, Transport, TransportCounters,
};
use baton_topo::Waker;
use zerocopy::{FromBytes, IntoBytes};

use super::SchedError;
use super::arrivals::Arrivals;
use super::cpu::thread_time;
use super::gpus::Gpus;
use super::workload::{BACKLOG, Workload};

/// GPU slots per emulated backend: reports come from many connections, as in a cluster.
pub(super) const GPUS_PER_BACKEND: u32 = 8;
/// The one frontend, and the token every member presents.
pub(super) const FRONTEND: FrontendId = FrontendId(0);
pub(super) const TOKEN: u64 = 1;
const FRONTEND_CONN: ConnId = ConnId(0);

/// Requests a saturating generator adds per poll: what one system call brings over TCP at load.
pub(super) const REQUESTS_PER_POLL: usize = 64;
/// Requests a paced generator adds per poll at most, after a pause.
const CATCH_UP_MAX: usize = 1024;

/// See the module documentation.
pub(super) struct Generator {
    arrivals: Arrivals,
    gpus: Gpus,
    slo: Nanos,
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
}

impl Generator {
    /// The generator of ModelThread `thread`.
    pub(super) fn new(workload: &Workload, thread: u32, quiet: Arc<AtomicBool>) -> Self {
        let shape = &workload.shape;
        let models: Vec<u32> =
            (thread..shape.models).step_by(shape.model_threads as usize).collect();
        let share = models.len() as f64 / f64::from(shape.models);
        let rate = shape.rate.map(|rate| rate * share);
        Self {
            arrivals: Arrivals::new(&models, rate, shape.seed.wrapping_add(thread.into())),
            gpus: Gpus::new(workload.profile.clone(), shape.gpus),
            slo: workload.slo,
            unopened: peers(shape.gpus),
            made: 0,
            waiting: 0,
            waiting_max: u64::from(BACKLOG) * models.len() as u64,
            now: Nanos::ZERO,
            quiet,
        }
    }

    fn report_finished(&mut self, events: &mut Events) {
        while let Some(done) = self.gpus.finished(self.now) {
            let from = backend_conn(backend_of(done.gpu.get()));
            events.message(from, Kind::BatchDone, done.as_bytes());
        }
    }

    fn make_requests(&mut self, events: &mut Events) {
        if self.quiet.load(Ordering::Relaxed) {
            return;
        }
        let most = if self.arrivals.is_paced() {
            CATCH_UP_MAX
        } else {
            REQUESTS_PER_POLL.min((self.waiting_max - self.waiting.min(self.waiting_max)) as usize)
        };
        for _ in 0..most {
            let Some((model, arrived)) = self.arrivals.take(self.now) else { return };
            let submit = Submit {
                task: self.next_task().0.into(),
                deadline_ns: (arrived + self.slo).0.into(),
                model: model.into(),
            };
            events.message(FRONTEND_CONN, Kind::Submit, submit.as_bytes());
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
    ConnId(FRONTEND_CONN.0 + 1 + u64::from(backend.0))
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
            self.make_requests(events);
        } else {
            self.unopened.drain(..).for_each(|(conn, peer)| events.opened(conn, peer));
        }
        events.len() - before
    }

    fn send<B: Body>(&mut self, _: ConnId, body: &B, tail: &[u8]) -> Result<(), SendError> {
        match B::KIND {
            Kind::Plan => {
                let plan = Plan::ref_from_bytes(body.as_bytes()).expect("the kind says so");
                let rows = tail.len() / size_of::<u64>();
                self.waiting -= rows as u64;
                self.gpus.start(self.now, plan, rows as u16);
            }
            Kind::TaskEnd => self.waiting -= 1,
            _ => {}
        }
        Ok(())
    }

    fn local_addr(&self) -> SocketAddr {
        ([127, 0, 0, 1], 1).into()
    }

    fn connect(&mut self, _: SocketAddr, _: Hello) -> io::Result<ConnId> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn waker(&self) -> Waker {
        Waker::new(|| ())
    }

    /// Its thread spins or yields.
    fn wait(&mut self, _: Option<Nanos>) {}

    // Nothing below is called by a ModelThread that serves, or there is nothing to do for it.
    fn identify(&mut self, _: Identity) {}
    fn close(&mut self, _: ConnId, _: RefuseCode, _: &str) {}
    fn post_reads(&mut self, _: &mut Vec<Read>) {}
    fn abort_read(&mut self, _: ConnId, _: u64) {}
    fn reply(&mut self, _: ConnId, _: &TaskResult, _: &[u8]) -> Result<(), SendError> {
        Err(SendError::Closed)
    }
    fn expose(&mut self, _: Arc<SlabSet>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn flush(&mut self) {}
    fn counters(&self) -> TransportCounters {
        TransportCounters::default()
    }
}

/// CPU ns per request of the generator by itself: the polls and sends of a run with batches of
/// `batch`, and no scheduler between them.
pub(super) fn cost_alone(workload: &Workload, batch: f64) -> Result<f64, SchedError> {
    const REQUESTS: u64 = 2_000_000;
    let mut workload = workload.clone();
    (workload.shape.rate, workload.shape.model_threads) = (None, 1);
    let body = move || {
        let mut generator = Generator::new(&workload, 0, Arc::default());
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
    let tasks = [0u8; 8 * 64];
    let tail = &tasks[..(8 * batch as usize).min(tasks.len())];
    events.clear();
    // As many batches run at a time as there are GPUs.
    let step = generator.gpus.latency(batch as u32).0 * REQUESTS_PER_POLL as u64;
    let now = generator.now + Nanos(step / (batch * u64::from(gpus)));
    generator.poll(now, events);
    while generator.waiting >= batch {
        let gpu = (generator.made / batch) as u32 % gpus;
        let plan = Plan {
            batch: generator.made.into(),
            exec_at_ns: now.0.into(),
            invalid_after_ns: now.0.into(),
            model: 0.into(),
            gpu: gpu.into(),
        };
        generator.send(FRONTEND_CONN, &plan, tail).expect("it takes everything");
    }
}

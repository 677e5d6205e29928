//! A frontend that sends requests to one ModelThread over TCP, at a rate or as fast as they are taken:
//! those of a pass in one system call, as the client library does.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use baton_core::{Nanos, TaskId};
use baton_rdma::wire::{Hello, Role, Submit};
use baton_rdma::{ConnId, Event, Events, Identity, TcpConfig, TcpTransport, Transport};
use baton_topo::{Agent, Waker};

use super::arrivals::Arrivals;
use super::generator::{FRONTEND, REQUESTS_PER_POLL, TOKEN};
use super::traffic::Traffic;
use super::workload::{BACKLOG, Workload};

/// See the module documentation.
pub(super) struct Sender {
    transport: TcpTransport,
    conn: ConnId,
    /// The connection is up.
    open: bool,
    events: Events,
    arrivals: Arrivals,
    slo: Nanos,
    sent: u64,
    /// Requests under way or waiting, at most.
    unserved_max: u64,
    quiet: Arc<AtomicBool>,
    traffic: Arc<Traffic>,
}

impl Sender {
    /// To the ModelThread `thread`, which listens on `addr`.
    ///
    /// # Errors
    /// The system has no more sockets.
    pub(super) fn new(
        workload: &Workload,
        thread: u32,
        addr: SocketAddr,
        quiet: Arc<AtomicBool>,
        traffic: Arc<Traffic>,
    ) -> io::Result<Self> {
        let identity = Identity { role: Role::Frontend, member: FRONTEND.0.into() };
        let mut transport = TcpTransport::bind(None, identity, TcpConfig::default())?;
        let conn = transport.connect(addr, Hello::new(Role::Frontend, FRONTEND.0.into(), TOKEN))?;
        let models = workload.models_of(thread);
        let share = models.len() as f64 / f64::from(workload.shape.models);
        let rate = workload.shape.rate.map(|rate| rate * share);
        let seed = workload.shape.seed.wrapping_add(thread.into());
        Ok(Self {
            transport,
            conn,
            open: false,
            events: Events::new(),
            unserved_max: u64::from(BACKLOG) * models.len() as u64,
            arrivals: Arrivals::new(&models, rate, seed),
            slo: workload.slo,
            sent: 0,
            quiet,
            traffic,
        })
    }

    /// Requests sent since the start.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    fn hear(&mut self, now: Nanos) {
        self.transport.poll(now, &mut self.events);
        let mut events = self.events.drain();
        self.open |= events.any(|event| matches!(event, Event::Opened { .. }));
    }

    /// As many as one pass of a ModelThread takes, if there is room for them; returns how many.
    fn send(&mut self, now: Nanos) -> usize {
        let unserved = self.sent - self.traffic.taken.get() + self.traffic.open.get();
        if !self.open || unserved + REQUESTS_PER_POLL as u64 > self.unserved_max {
            return 0;
        }
        for sent in 0..REQUESTS_PER_POLL {
            let Some((model, at)) = self.arrivals.take(now) else { return sent };
            let slots = u64::from(TaskId::SLOTS_MAX);
            let [slot, generation] = [self.sent % slots, self.sent / slots].map(|n| n as u32);
            let submit = Submit {
                task: TaskId::new(FRONTEND, slot, generation).0.into(),
                deadline_ns: (at + self.slo).0.into(),
                model: model.into(),
                input_bytes: 1.into(),
                cost: 0.into(),
                accuracy_min: 0.into(),
            };
            if self.transport.send(self.conn, &submit, &[]).is_err() {
                return sent;
            }
            self.sent += 1;
        }
        REQUESTS_PER_POLL
    }
}

impl Agent for Sender {
    fn poll(&mut self, now: Nanos) -> usize {
        self.hear(now);
        if self.quiet.load(Ordering::Relaxed) {
            return 0;
        }
        let sent = self.send(now);
        self.transport.flush();
        sent
    }

    fn next_timer(&self) -> Option<Nanos> {
        None
    }

    /// Its thread spins or yields.
    fn wait(&mut self, _: Option<Nanos>) {}

    fn waker(&self) -> Waker {
        self.transport.waker()
    }
}

//! `baton bench tls-cost`: processor time of a READ and of a handshake, over plain TCP and with TLS.
//!
//! One thread polls both ends, and its CPU time is what counts: on a busy machine nothing else can be
//! compared. Stretches of both take turns; the cheapest of each counts.

use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;

use baton_core::{FrontendId, Nanos, TaskId};
use baton_rdma::wire::{Hello, Role};
use baton_rdma::{
    BatchBuffer, ConnId, Credentials, Event, Events, Identity, Read, ReadStatus, SlabSet,
    TcpConfig, TcpTransport, TlsSpec, Transport,
};
use baton_topo::Clock;
use serde::Serialize;

use super::harness::{Source, UP_TIMEOUT, fill, is_whole, slab_spec};
use super::{PullError, check_shape};
use crate::machine::thread_time;

/// CPU time of a stretch.
const STRETCH: Nanos = Nanos::from_millis(100);

/// What to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsCost {
    /// Both ends' certificate.
    pub tls: TlsSpec,
    /// Objects under way at a time.
    pub objects: u32,
    /// Bytes of an object.
    pub bytes: u32,
    /// Length of the measurement; one stretch of each is done in any case.
    pub length: Nanos,
}

/// CPU time, µs, of both ends together.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Cost {
    /// Over TCP.
    pub plain: f64,
    /// With TLS over it.
    pub tls: f64,
}

/// A run's result.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TlsCostReport {
    /// Which.
    pub bench: &'static str,
    /// Objects under way at a time.
    pub objects: u32,
    /// Bytes of an object.
    pub bytes: u32,
    /// Stretches of each.
    pub stretches: u64,
    /// Of one READ.
    pub read_cpu_us: Cost,
    /// From nothing to an open connection.
    pub handshake_cpu_us: Cost,
}

impl fmt::Display for TlsCostReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { objects, bytes, stretches, read_cpu_us: read, handshake_cpu_us: open, .. } =
            self;
        writeln!(f, "CPU time of both ends, the cheapest of {stretches} stretches each")?;
        let what = format!("READ of {bytes} bytes, {objects} at a time");
        writeln!(f, "{what}: {:.1} µs, with TLS {:.1} µs", read.plain, read.tls)?;
        write!(f, "handshake: {:.0} µs, with TLS {:.0} µs", open.plain, open.tls)
    }
}

/// Runs it.
///
/// # Errors
/// See [`PullError`].
pub fn tls_cost(run: &TlsCost, clock: Clock) -> Result<TlsCostReport, PullError> {
    let TlsCost { objects, bytes, length, .. } = *run;
    check_shape(1, objects, bytes)?;
    let credentials = Credentials::load(&run.tls)?;
    let mut plain = Way::new(None, (objects, bytes), clock)?;
    let mut tls = Way::new(Some(&credentials), (objects, bytes), clock)?;
    let (mut stretches, end) = (0, clock.now() + length);
    while stretches == 0 || clock.now() < end {
        plain.stretch(clock)?;
        tls.stretch(clock)?;
        stretches += 1;
    }
    let read_cpu_us = Cost { plain: plain.read_us, tls: tls.read_us };
    let handshake_cpu_us = Cost { plain: plain.open_us, tls: tls.open_us };
    let bench = "tls-cost";
    Ok(TlsCostReport { bench, objects, bytes, stretches, read_cpu_us, handshake_cpu_us })
}

/// Plain or with TLS: a connection, and the cheapest so far, µs of CPU time.
struct Way<'a> {
    credentials: Option<&'a Credentials>,
    ends: Ends,
    conn: ConnId,
    read_us: f64,
    open_us: f64,
}

impl<'a> Way<'a> {
    fn new(
        credentials: Option<&'a Credentials>,
        shape: (u32, u32),
        clock: Clock,
    ) -> Result<Self, PullError> {
        let mut ends = Ends::new(shape, credentials)?;
        let conn = ends.open(clock)?;
        Ok(Self { credentials, ends, conn, read_us: f64::INFINITY, open_us: f64::INFINITY })
    }

    /// A handshake on a connection of its own, then READs for a while.
    fn stretch(&mut self, clock: Clock) -> Result<(), PullError> {
        let mut fresh = Ends::new((1, 8), self.credentials)?;
        let start = thread_time();
        fresh.open(clock)?;
        self.open_us = self.open_us.min(micros(thread_time() - start));
        let (start, mut reads) = (thread_time(), 0);
        while thread_time() - start < STRETCH {
            reads += self.ends.round(self.conn, clock.now())?;
        }
        self.read_us = self.read_us.min(micros(thread_time() - start) / f64::from(reads));
        self.ends.check()
    }
}

fn micros(span: Nanos) -> f64 {
    span.0 as f64 / 1e3
}

/// A backend and a frontend.
struct Ends {
    backend: TcpTransport,
    frontend: TcpTransport,
    buffer: Arc<BatchBuffer>,
    tasks: Vec<TaskId>,
    bytes: u32,
    events: Events,
    reads: Vec<Read>,
}

impl Ends {
    /// With `objects` objects of `bytes` bytes each; not connected yet.
    fn new(
        (objects, bytes): (u32, u32),
        credentials: Option<&Credentials>,
    ) -> Result<Self, PullError> {
        let system = |what| move |source| PullError::System { what, source };
        let bind = |role, listen| {
            let identity = Identity { role, member: 0 };
            TcpTransport::bind_with(listen, identity, TcpConfig::default(), credentials)
        };
        let here = Some((Ipv4Addr::LOCALHOST, 0).into());
        let mut frontend = bind(Role::Frontend, here).map_err(system("the frontend's socket"))?;
        let mut backend = bind(Role::Backend, None).map_err(system("the backend's socket"))?;
        let source = Source { addr: frontend.local_addr(), number: 0 };
        let slabs = SlabSet::new(&[slab_spec(objects, bytes)], 0)?;
        slabs.set_frontend(FrontendId(source.number));
        let tasks: Vec<TaskId> = (0..objects).map(|slot| source.task(slot)).collect();
        tasks.iter().try_for_each(|&task| fill(&slabs, task))?;
        frontend.expose(slabs).map_err(system("the frontend's memory"))?;
        let buffer = BatchBuffer::new(objects as usize * bytes as usize)?;
        backend.land_in(&buffer).map_err(system("the backend's memory"))?;
        let (events, reads) = (Events::new(), Vec::new());
        Ok(Self { backend, frontend, buffer, tasks, bytes, events, reads })
    }

    /// Connects the backend, and polls until that is done.
    fn open(&mut self, clock: Clock) -> Result<ConnId, PullError> {
        let hello = Hello::new(Role::Backend, 0, 0);
        let conn = self.backend.connect(self.frontend.local_addr(), hello);
        let conn = conn.map_err(|source| PullError::System { what: "connecting", source })?;
        let until = clock.now() + UP_TIMEOUT;
        loop {
            let now = clock.now();
            if now > until {
                return Err(PullError::NotUp);
            }
            self.frontend.poll(now, &mut self.events);
            self.events.drain().for_each(drop);
            self.backend.poll(now, &mut self.events);
            for event in self.events.drain() {
                match event {
                    Event::Opened { .. } => return Ok(conn),
                    Event::Closed { .. } => return Err(PullError::NotUp),
                    _ => {}
                }
            }
        }
    }

    /// Compares every row with what was sent.
    fn check(&self) -> Result<(), PullError> {
        let whole = is_whole(&self.buffer, &self.tasks, self.bytes);
        if whole { Ok(()) } else { Err(PullError::Changed) }
    }

    /// Pulls every object once; returns how many.
    fn round(&mut self, conn: ConnId, now: Nanos) -> Result<u32, PullError> {
        let Self { backend, frontend, buffer, tasks, bytes, events, reads } = self;
        for (row, &task) in (0..).zip(&*tasks) {
            let row_mut = buffer.lend(row, *bytes).expect("no READ is under way here");
            reads.push(Read { conn, task, row: row_mut, tag: row.into() });
        }
        backend.post_reads(reads);
        backend.flush();
        let mut come = 0;
        while come < tasks.len() {
            frontend.poll(now, events);
            events.drain().for_each(drop);
            backend.poll(now, events);
            for event in events.drain() {
                match event {
                    Event::Read(done) if done.status == ReadStatus::Done => come += 1,
                    Event::Read(done) => return Err(PullError::Read(done.status)),
                    _ => {}
                }
            }
        }
        Ok(tasks.len() as u32)
    }
}

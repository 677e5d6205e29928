//! `client_handle step|THREADS [TASKS]`: what a task costs the client library, from `input()` to its outcome.
//! The scheduler is a transport that ends each task as soon as it is submitted, so that nothing is counted but
//! the handle, the queue to the I/O thread and the way of the outcome back.
//!
//! `step`: one thread is the application and the I/O thread in turn, [`WINDOW`] tasks at a time. THREADS: this many
//! threads of the application, each with [`WINDOW`] tasks outstanding, and an I/O thread. Where cores are shared,
//! compare builds by runs in turn, by the process's CPU time.
#![forbid(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use baton_client::io::ClientIo;
use baton_client::{Client, ClientConfig, Clock, Deadline, Idle, ModelHandle, Nanos, Outcome};
use baton_core::DropReason;
use baton_rdma::wire::{
    Body, CatalogEnd, Hello, JoinAck, Kind, LeaveAck, ModelDesc, Ping, Pong, RefuseCode, Role,
    SubclusterDesc, Submit, TaskEnd, TaskResult, ThreadDesc, WireAddr,
};
use baton_rdma::{
    BatchBuffer, ConnId, Events, Identity, Peer, Read, SendError, SlabSet, Transport,
    TransportCounters,
};
use baton_topo::{Agent, Placement, Waker};
use rustix::time::{ClockId, clock_gettime};
use zerocopy::{FromBytes, IntoBytes};

/// Tasks that a thread has outstanding.
const WINDOW: usize = 64;
const SLOTS: u32 = 1_024;
const MODEL: &str = "model";
const CONTROL: ConnId = ConnId(0);
const MODEL_THREAD: ConnId = ConnId(1);
/// [`TaskEnd::kind`] of a task that is dropped.
const DROPPED: u8 = 1;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let way = args.first().map(String::as_str).unwrap_or_default();
    let tasks = args.get(1).map_or(Ok(2_000_000), |tasks| tasks.parse());
    let done = match (way, way.parse(), tasks) {
        ("step", _, Ok(tasks)) => step(tasks),
        (_, Ok(threads), Ok(tasks)) => with_threads(threads, tasks),
        _ => Err("usage: client_handle step|THREADS [TASKS]".into()),
    };
    match done {
        Ok(report) => {
            eprintln!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn open(clock: Clock) -> Result<(ClientIo<EndsAtOnce>, Client), Failure> {
    let config = ClientConfig::new(([127, 0, 0, 1], 1).into())
        .slots_per_model(SLOTS)
        .leave_timeout(Duration::from_secs(1))
        .member_timeout(Duration::from_secs(60));
    let (mut io, joining) = ClientIo::new(config, EndsAtOnce::default(), clock)?;
    for _ in 0..100_000 {
        io.poll(clock.now());
        if let Some(client) = joining.poll() {
            return Ok((io, client?));
        }
    }
    Err("the client does not join".into())
}

fn step(tasks: usize) -> Result<String, Failure> {
    let clock = Clock::start();
    let (mut io, client) = open(clock)?;
    let model = client.model(MODEL)?;
    let cost = Cost::begin(clock);
    for _ in 0..tasks / WINDOW {
        window(&model, || {
            io.poll(clock.now());
        })?;
    }
    Ok(cost.per_task(tasks / WINDOW * WINDOW))
}

fn with_threads(threads: usize, tasks: usize) -> Result<String, Failure> {
    let clock = Clock::start();
    let (mut io, client) = open(clock)?;
    let model = client.model(MODEL)?;
    let stop = Arc::<AtomicBool>::default();
    let rounds = tasks / threads / WINDOW;
    let placement = Placement { name: "io".into(), core: None, idle: Idle::Yield };
    let cost = Cost::begin(clock);
    thread::scope(|scope| {
        let io_thread = scope.spawn(|| baton_topo::run(&mut io, clock, &placement, &stop));
        let application =
            || scope.spawn(|| (0..rounds).all(|_| window(&model, thread::yield_now).is_ok()));
        let applications: Vec<_> = (0..threads).map(|_| application()).collect();
        let all = applications.into_iter().all(|thread| matches!(thread.join(), Ok(true)));
        stop.store(true, Ordering::Relaxed);
        match io_thread.join() {
            Ok(()) if all => Ok(()),
            _ => Err("a thread has failed"),
        }
    })?;
    Ok(cost.per_task(rounds * WINDOW * threads))
}

/// Submits [`WINDOW`] tasks and takes their outcomes, oldest first.
fn window(model: &ModelHandle, mut not_yet: impl FnMut()) -> Result<(), Failure> {
    let submit = || Ok(model.input()?.submit(Deadline::Slo).map_err(|refused| refused.reason)?);
    let tickets: Result<Vec<_>, Failure> = (0..WINDOW).map(|_| submit()).collect();
    for mut ticket in tickets? {
        let outcome = loop {
            match ticket.poll() {
                Some(outcome) => break outcome,
                None => not_yet(),
            }
        };
        if !matches!(outcome, Outcome::Dropped(DropReason::Window, _)) {
            return Err(format!("{outcome:?}").into());
        }
    }
    Ok(())
}

struct Cost {
    clock: Clock,
    began: Nanos,
    cpu_began: Nanos,
}

impl Cost {
    fn begin(clock: Clock) -> Self {
        Self { clock, began: clock.now(), cpu_began: process_time() }
    }

    fn per_task(&self, tasks: usize) -> String {
        let each = |span: Nanos| span.0 as f64 / tasks as f64;
        let (wall, cpu) = (self.clock.now() - self.began, process_time() - self.cpu_began);
        format!("{:.1} ns of CPU time and {:.1} ns per task", each(cpu), each(wall))
    }
}

/// CPU time of all threads of this process.
fn process_time() -> Nanos {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// A transport whose other end is a scheduler with one model, which drops every task at once.
struct EndsAtOnce {
    connections: u64,
    /// What the next poll brings.
    arriving: Events,
    waker: Waker,
}

impl Default for EndsAtOnce {
    fn default() -> Self {
        Self { connections: 0, arriving: Events::new(), waker: Waker::for_current_thread() }
    }
}

impl EndsAtOnce {
    fn say<B: Body>(&mut self, body: &B, tail: &[u8]) {
        self.arriving.message(CONTROL, B::KIND, &[body.as_bytes(), tail].concat());
    }

    fn announce(&mut self) {
        let addr = WireAddr::new(self.local_addr());
        self.say(&ThreadDesc { thread: 0.into(), addr }, &[]);
        self.say(&SubclusterDesc { subcluster: 0.into() }, b"main");
        let model = ModelDesc {
            model: 0.into(),
            thread: 0.into(),
            subcluster: 0.into(),
            batch_max: 8.into(),
            input_bytes: 64.into(),
            output_bytes: 64.into(),
            slo_ns: Nanos::from_millis(60_000).0.into(),
        };
        self.say(&model, MODEL.as_bytes());
        self.say(&CatalogEnd { scheduler_epoch: 1.into() }, &[]);
    }

    fn end(&mut self, submit: &Submit) {
        let reason = DropReason::Window.code();
        let end = TaskEnd { task: submit.task, kind: DROPPED, reason, retry_ms: 0.into() };
        self.arriving.message(MODEL_THREAD, Kind::TaskEnd, end.as_bytes());
    }
}

impl Transport for EndsAtOnce {
    fn connect(&mut self, addr: SocketAddr, _: Hello) -> io::Result<ConnId> {
        let conn = ConnId(self.connections);
        self.connections += 1;
        let role = if conn == CONTROL { Role::Control } else { Role::ModelThread };
        let version = baton_rdma::wire::VERSION_MAX;
        let peer = Peer { role, member: 0, token: 0, addr, accepted: false, version };
        self.arriving.opened(conn, peer);
        if conn == CONTROL {
            self.announce();
        }
        Ok(conn)
    }

    fn send<B: Body>(&mut self, _: ConnId, body: &B, _: &[u8]) -> Result<(), SendError> {
        const WHOLE: &str = "the kind says so";
        match B::KIND {
            Kind::Submit => self.end(Submit::ref_from_bytes(body.as_bytes()).expect(WHOLE)),
            Kind::JoinFrontend => {
                let ack = JoinAck { member: 1.into(), first_gpu: 0.into(), token: 1.into() };
                self.say(&ack, &[]);
            }
            Kind::Ping => {
                let ping = Ping::ref_from_bytes(body.as_bytes()).expect(WHOLE);
                let (sent_ns, scheduler_ns) = (ping.sent_ns, ping.sent_ns);
                self.say(&Pong { sent_ns, scheduler_ns }, &[]);
            }
            Kind::Leave => self.say(&LeaveAck { reserved: 0.into() }, &[]),
            _ => {}
        }
        Ok(())
    }

    fn poll(&mut self, _: Nanos, events: &mut Events) -> usize {
        events.clear();
        std::mem::swap(events, &mut self.arriving);
        events.len()
    }

    fn local_addr(&self) -> SocketAddr {
        ([127, 0, 0, 1], 1).into()
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn expose(&mut self, _: Arc<SlabSet>) -> io::Result<()> {
        Ok(())
    }

    fn counters(&self) -> TransportCounters {
        TransportCounters::default()
    }

    // There is nothing to do for the rest.
    fn identify(&mut self, _: Identity) {}
    fn close(&mut self, _: ConnId, _: RefuseCode, _: &str) {}
    fn post_reads(&mut self, _: &mut Vec<Read>) {}
    fn abort_read(&mut self, _: ConnId, _: u64) {}
    fn reply(&mut self, _: ConnId, _: &TaskResult, _: &[u8]) -> Result<(), SendError> {
        Err(SendError::Closed)
    }
    fn withdraw(&mut self, _: &Arc<SlabSet>) {}
    fn land_in(&mut self, _: &Arc<BatchBuffer>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn release(&mut self, _: &Arc<BatchBuffer>) {}
    fn flush(&mut self) {}
    fn wait(&mut self, _: Option<Nanos>) {}
}

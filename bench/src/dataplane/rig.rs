//! Senders on threads of their own, and the puller on this one.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use baton_core::{FrontendId, ModelId, Nanos, TaskId};
use baton_rdma::wire::{Hello, Role};
use baton_rdma::{
    BatchBuffer, ConnId, Event, Events, Identity, MixedTransport, Read, ReadStatus, SlabSet,
    SlabSpec, TcpConfig, Transport,
};
use baton_topo::{Clock, Idle, VerbsConfig};

use super::bare::STRETCH;
use super::{Pull, PullError};

const MODEL: ModelId = ModelId(0);
/// Connecting and linking, on a busy machine.
const UP_TIMEOUT: Nanos = Nanos::from_millis(10_000);
/// A sender looks this often whether it is to end.
const LOOK: Nanos = Nanos::from_millis(50);

/// The puller and its senders.
pub(super) struct Rig {
    clock: Clock,
    idle: Idle,
    transport: MixedTransport,
    events: Events,
    buffer: Arc<BatchBuffer>,
    bytes: u32,
    /// What each row pulls.
    objects: Vec<(ConnId, TaskId)>,
    reads: Vec<Read>,
    stop: Arc<AtomicBool>,
    senders: Vec<JoinHandle<()>>,
}

impl Rig {
    pub(super) fn start(pull: &Pull, clock: Clock) -> Result<Self, PullError> {
        let rows = pull.senders * pull.objects;
        let mut rig = Self {
            clock,
            idle: pull.idle,
            transport: transport(pull, Role::Backend, clock)?,
            events: Events::new(),
            buffer: BatchBuffer::new(rows as usize * pull.bytes as usize),
            bytes: pull.bytes,
            objects: Vec::new(),
            reads: Vec::new(),
            stop: Arc::default(),
            senders: Vec::new(),
        };
        let system = |what| move |source| PullError::System { what, source };
        rig.transport.land_in(&rig.buffer).map_err(system("the puller's memory"))?;
        for number in 0..pull.senders {
            let sender = Sender::start(pull, number as u16, clock, Arc::clone(&rig.stop))?;
            let hello = Hello::new(Role::Backend, 0, 0);
            let conn = rig.transport.connect(sender.addr, hello).map_err(system("connecting"))?;
            rig.objects.extend(sender.tasks.iter().map(|task| (conn, *task)));
            rig.senders.push(sender.thread);
        }
        rig.await_open(pull.senders as usize)?;
        Ok(rig)
    }

    /// Pulls every object once; returns how many.
    pub(super) fn round(&mut self) -> Result<u64, PullError> {
        let rows = self.objects.len();
        (0..rows).for_each(|row| self.ask(row));
        self.pull_all(rows, rows)
    }

    /// Keeps every row's object under way, several times over; returns how many were pulled.
    pub(super) fn stream(&mut self) -> Result<u64, PullError> {
        let rows = self.objects.len();
        (0..rows).for_each(|row| self.ask(row));
        self.pull_all(rows, rows * STRETCH as usize)
    }

    /// Compares every row with what was sent.
    pub(super) fn check(&self) -> Result<(), PullError> {
        let rows = self.buffer.rows(self.objects.len() as u32, self.bytes);
        let rows = rows.ok_or(PullError::Changed)?;
        let of_row = |(row, bytes): (usize, &[u8])| {
            bytes.iter().enumerate().all(|(at, byte)| *byte == pattern(self.objects[row].1, at))
        };
        let whole = rows.chunks(self.bytes as usize).enumerate().all(of_row);
        if whole { Ok(()) } else { Err(PullError::Changed) }
    }

    fn ask(&mut self, row: usize) {
        let (conn, task) = self.objects[row];
        let row_mut = self.buffer.lend(row as u32, self.bytes).expect("no READ is under way here");
        self.reads.push(Read { conn, task, row: row_mut, tag: row as u64 });
    }

    /// Until `wanted` objects have come, with `asked` of them asked for; asks on as rows come back.
    fn pull_all(&mut self, mut asked: usize, wanted: usize) -> Result<u64, PullError> {
        // Only handshakes look at it, and those are done.
        let (now, mut come) = (self.clock.now(), 0);
        while come < wanted {
            self.transport.post_reads(&mut self.reads);
            self.transport.flush();
            let mut events = std::mem::take(&mut self.events);
            let mut free = Vec::new();
            if self.transport.poll(now, &mut events) == 0 {
                self.rest();
            }
            for event in events.drain() {
                match event {
                    Event::Read(done) if done.status == ReadStatus::Done => {
                        come += 1;
                        free.push(done.tag as usize);
                    }
                    Event::Read(done) => return Err(PullError::Read(done.status)),
                    _ => {}
                }
            }
            self.events = events;
            let more = free.into_iter().take(wanted.saturating_sub(asked));
            asked += more.map(|row| self.ask(row)).count();
        }
        Ok(wanted as u64)
    }

    fn rest(&mut self) {
        match self.idle {
            Idle::Spin => std::hint::spin_loop(),
            Idle::Yield => thread::yield_now(),
            Idle::Park => self.transport.wait(Some(LOOK)),
        }
    }

    fn await_open(&mut self, count: usize) -> Result<(), PullError> {
        let (mut open, until) = (0, self.clock.now() + UP_TIMEOUT);
        while open < count {
            if self.clock.now() > until {
                return Err(PullError::NotUp);
            }
            self.transport.poll(self.clock.now(), &mut self.events);
            let opened = |event: &Event<'_>| matches!(event, Event::Opened { .. });
            open += self.events.drain().filter(opened).count();
            self.transport.wait(Some(LOOK));
        }
        Ok(())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for sender in self.senders.drain(..) {
            if sender.join().is_err() {
                tracing::error!("a sender panicked");
            }
        }
    }
}

/// A frontend with its objects submitted.
struct Sender {
    addr: SocketAddr,
    tasks: Vec<TaskId>,
    thread: JoinHandle<()>,
}

impl Sender {
    fn start(
        pull: &Pull,
        number: u16,
        clock: Clock,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, PullError> {
        let mut transport = transport(pull, Role::Frontend, clock)?;
        let spec = SlabSpec {
            model: MODEL,
            slots: pull.objects,
            input_bytes: pull.bytes,
            output_bytes: 8,
        };
        let slabs = SlabSet::new(&[spec], 0)?;
        slabs.set_frontend(FrontendId(number));
        let system = |what| move |source| PullError::System { what, source };
        transport.expose(Arc::clone(&slabs)).map_err(system("a sender's memory"))?;
        let tasks: Result<_, _> = (0..pull.objects).map(|_| submit(&slabs, number)).collect();
        let addr = transport.local_addr();
        let serve = move || serve(transport, clock, &stop);
        let thread = thread::Builder::new().name("bench-sender".into()).spawn(serve);
        Ok(Self { addr, tasks: tasks?, thread: thread.map_err(system("a sender's thread"))? })
    }
}

fn submit(slabs: &Arc<SlabSet>, number: u16) -> Result<TaskId, PullError> {
    let mut input = slabs.acquire(MODEL)?;
    let task = TaskId::new(FrontendId(number), slabs.in_use() - 1, 0);
    input.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(task, at));
    Ok(input.submit())
}

fn serve(mut transport: MixedTransport, clock: Clock, stop: &AtomicBool) {
    let mut events = Events::new();
    while !stop.load(Ordering::Relaxed) {
        transport.poll(clock.now(), &mut events);
        let opened = events.drain().filter_map(|event| match event {
            Event::Opened { conn, .. } => Some(conn),
            _ => None,
        });
        let opened: Vec<ConnId> = opened.collect();
        opened.into_iter().for_each(|conn| transport.trust(conn));
        transport.flush();
        transport.wait(Some(LOOK));
    }
}

fn transport(pull: &Pull, role: Role, clock: Clock) -> Result<MixedTransport, PullError> {
    let listen = (role == Role::Frontend).then(|| SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let identity = Identity { role, member: 0 };
    // Patient: what is measured is how long it takes, not who gives up first.
    let verbs = VerbsConfig { read_timeout: UP_TIMEOUT, ack_timeout: 16, ..VerbsConfig::default() };
    let tcp = TcpConfig::default();
    Ok(MixedTransport::bind(listen, identity, tcp, pull.transport, &verbs, clock)?)
}

/// The byte at `at` of an object.
fn pattern(task: TaskId, at: usize) -> u8 {
    (task.0.wrapping_mul(31) ^ at as u64 ^ (at as u64 >> 8)) as u8
}

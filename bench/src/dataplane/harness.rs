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
use baton_topo::{Clock, Idle, TransportChoice, VerbsConfig};

use super::bare::STRETCH;
use super::{Pull, PullError};

const MODEL: ModelId = ModelId(0);
/// Connecting and linking, on a busy machine.
pub(super) const UP_TIMEOUT: Nanos = Nanos::from_millis(10_000);
/// A sender looks this often whether it is to end.
const LOOK: Nanos = Nanos::from_millis(50);

/// The puller and its senders.
pub(super) struct Harness {
    clock: Clock,
    idle: Idle,
    transport: MixedTransport,
    events: Events,
    buffer: Arc<BatchBuffer>,
    bytes: u32,
    /// What each row pulls.
    objects: Vec<(ConnId, TaskId)>,
    reads: Vec<Read>,
    /// Rows that came in a pass.
    free: Vec<usize>,
    /// The moment that polls receive: only handshakes look at it, and those are done.
    up_at: Nanos,
    stop: Arc<AtomicBool>,
    senders: Vec<JoinHandle<()>>,
}

impl Harness {
    /// With senders in this process.
    pub(super) fn start(pull: &Pull, clock: Clock) -> Result<Self, PullError> {
        let (verbs, here) = (patient(VerbsConfig::default()), (Ipv4Addr::LOCALHOST, 0).into());
        let stop = Arc::<AtomicBool>::default();
        let senders: Result<Vec<_>, _> = (0..pull.senders)
            .map(|number| Sender::start(pull, number as u16, here, &verbs, clock, &stop))
            .collect();
        let senders = senders?;
        let sources: Vec<_> = senders.iter().map(Sender::source).collect();
        let mut harness = Self::towards(pull, &sources, &verbs, clock)?;
        (harness.stop, harness.senders) =
            (stop, senders.into_iter().map(|sender| sender.thread).collect());
        Ok(harness)
    }

    /// With senders elsewhere.
    pub(super) fn towards(
        pull: &Pull,
        sources: &[Source],
        verbs: &VerbsConfig,
        clock: Clock,
    ) -> Result<Self, PullError> {
        let rows = sources.len() as u32 * pull.objects;
        let mut harness = Self {
            clock,
            idle: pull.idle,
            transport: transport(pull.transport, None, verbs, clock)?,
            events: Events::new(),
            buffer: BatchBuffer::new(rows as usize * pull.bytes as usize)?,
            bytes: pull.bytes,
            objects: Vec::new(),
            reads: Vec::new(),
            free: Vec::new(),
            up_at: clock.now(),
            stop: Arc::default(),
            senders: Vec::new(),
        };
        let system = |what| move |source| PullError::System { what, source };
        harness.transport.land_in(&harness.buffer).map_err(system("the puller's memory"))?;
        for source in sources {
            let hello = Hello::new(Role::Backend, 0, 0);
            let conn =
                harness.transport.connect(source.addr, hello).map_err(system("connecting"))?;
            let tasks = (0..pull.objects).map(|slot| source.task(slot));
            harness.objects.extend(tasks.map(|task| (conn, task)));
        }
        harness.await_open(sources.len())?;
        harness.up_at = clock.now();
        Ok(harness)
    }

    /// True if the objects come over RDMA.
    pub(super) fn is_rdma(&self) -> bool {
        self.transport.counters().reads_rdma > 0
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
        let tasks: Vec<TaskId> = self.objects.iter().map(|(_, task)| *task).collect();
        if is_whole(&self.buffer, &tasks, self.bytes) { Ok(()) } else { Err(PullError::Changed) }
    }

    fn ask(&mut self, row: usize) {
        let (conn, task) = self.objects[row];
        let row_mut = self.buffer.lend(row as u32, self.bytes).expect("no READ is under way here");
        self.reads.push(Read { conn, task, row: row_mut, tag: row as u64 });
    }

    /// Until `wanted` objects have come, with `asked` of them asked for; asks on as rows come back.
    fn pull_all(&mut self, mut asked: usize, wanted: usize) -> Result<u64, PullError> {
        let (now, mut come) = (self.up_at, 0);
        while come < wanted {
            let Self { transport, events, reads, free, .. } = self;
            transport.post_reads(reads);
            transport.flush();
            if transport.poll(now, events) == 0 {
                rest(transport, self.idle);
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
            while asked < wanted
                && let Some(row) = self.free.pop()
            {
                self.ask(row);
                asked += 1;
            }
            self.free.clear();
        }
        Ok(wanted as u64)
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

fn rest(transport: &mut MixedTransport, idle: Idle) {
    match idle {
        Idle::Spin => std::hint::spin_loop(),
        Idle::Yield => thread::yield_now(),
        Idle::Park => transport.wait(Some(LOOK)),
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for sender in self.senders.drain(..) {
            if sender.join().is_err() {
                tracing::error!("a sender panicked");
            }
        }
    }
}

/// Where objects are to be had: a frontend with its slots filled in order.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Source {
    pub(super) addr: SocketAddr,
    pub(super) number: u16,
}

impl Source {
    pub(super) fn task(self, slot: u32) -> TaskId {
        TaskId::new(FrontendId(self.number), slot, 0)
    }
}

/// A frontend with its objects submitted, on a thread of its own until told to stop.
pub(super) struct Sender {
    source: Source,
    pub(super) thread: JoinHandle<()>,
}

impl Sender {
    pub(super) fn start(
        pull: &Pull,
        number: u16,
        listen: SocketAddr,
        verbs: &VerbsConfig,
        clock: Clock,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self, PullError> {
        let mut transport = transport(pull.transport, Some(listen), verbs, clock)?;
        let slabs = SlabSet::new(&[slab_spec(pull.objects, pull.bytes)], 0)?;
        slabs.set_frontend(FrontendId(number));
        let system = |what| move |source| PullError::System { what, source };
        transport.expose(Arc::clone(&slabs)).map_err(system("a sender's memory"))?;
        let source = Source { addr: transport.local_addr(), number };
        for slot in 0..pull.objects {
            fill(&slabs, source.task(slot))?;
        }
        let stop = Arc::clone(stop);
        let serve = move || serve(transport, clock, &stop);
        let thread = thread::Builder::new().name("bench-sender".into()).spawn(serve);
        Ok(Self { source, thread: thread.map_err(system("a sender's thread"))? })
    }

    pub(super) fn source(&self) -> Source {
        self.source
    }
}

/// A slot for each object.
pub(super) fn slab_spec(objects: u32, bytes: u32) -> SlabSpec {
    SlabSpec { model: MODEL, slots: objects, input_bytes: bytes, output_bytes: 8 }
}

/// Submits the object that `task` is the name of: slots are given out in order.
pub(super) fn fill(slabs: &Arc<SlabSet>, task: TaskId) -> Result<(), PullError> {
    let mut input = slabs.acquire(MODEL)?;
    input.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(task, at));
    let submitted = input.submit();
    debug_assert_eq!(submitted, task);
    Ok(())
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

/// A puller's transport, or the sender's that listens.
fn transport(
    choice: TransportChoice,
    listen: Option<SocketAddr>,
    verbs: &VerbsConfig,
    clock: Clock,
) -> Result<MixedTransport, PullError> {
    let role = if listen.is_some() { Role::Frontend } else { Role::Backend };
    let identity = Identity { role, member: 0 };
    let tcp = TcpConfig::default();
    Ok(MixedTransport::bind(listen, identity, tcp, choice, verbs, None, clock)?)
}

/// What is measured is how long it takes, not who gives up first.
pub(super) fn patient(verbs: VerbsConfig) -> VerbsConfig {
    VerbsConfig { read_timeout: UP_TIMEOUT, ack_timeout: 16, ..verbs }
}

/// True if the rows hold the objects of `tasks`, in order.
pub(super) fn is_whole(buffer: &Arc<BatchBuffer>, tasks: &[TaskId], bytes: u32) -> bool {
    let of_row = |(row, task): (&[u8], &TaskId)| {
        row.iter().enumerate().all(|(at, byte)| *byte == pattern(*task, at))
    };
    let rows = buffer.rows(tasks.len() as u32, bytes);
    rows.is_some_and(|rows| rows.chunks(bytes as usize).zip(tasks).all(of_row))
}

/// The byte at `at` of an object.
fn pattern(task: TaskId, at: usize) -> u8 {
    (task.0.wrapping_mul(31) ^ at as u64 ^ (at as u64 >> 8)) as u8
}

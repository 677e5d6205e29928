//! A node is a transport, its clock and what it has seen; tests step nodes by hand.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

pub mod certs;
pub mod raw;
pub mod secure;

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use baton_rdma::wire::{self, Hello, Kind, Message, RefuseCode, Role, TaskResult};
use baton_rdma::{
    Backing, BatchBuffer, CloseReason, ConnId, Credentials, Event, Events, Identity, InprocNetwork,
    InprocTransport, MixedError, MixedTransport, Peer, Read, ReadDone, SlabSet, SlabSpec,
    TcpConfig, TcpTransport, Transport, TransportChoice, VerbsConfig, VerbsError,
};
use baton_topo::{Clock, PARK_MAX};
use baton_types::{FrontendId, ModelId, Nanos, TaskId};
use certs::Authority;
use zerocopy::IntoBytes;

/// Rounds before a test gives up; each waits at most [`PATIENCE`] when nothing moves.
const ROUNDS: usize = 20_000;
/// Rounds in which a backend maps what there is, on a host where bytes arrive when they are sent.
const ROUNDS_TO_MAP: usize = 4;
const PATIENCE: Nanos = Nanos::from_micros(500);

/// A kind of transport under test.
pub trait Fabric: Default {
    type Transport: Transport + Send + 'static;
    /// A peer that finds every place taken hears so, and is not only hung up on.
    const TELLS_WHEN_FULL: bool = true;
    /// This host has it.
    fn is_here() -> bool {
        true
    }
    fn endpoint(&self, role: Role, member: u32, cfg: TcpConfig) -> Self::Transport;
}

#[derive(Default)]
pub struct Tcp;

impl Fabric for Tcp {
    type Transport = TcpTransport;
    fn endpoint(&self, role: Role, member: u32, cfg: TcpConfig) -> TcpTransport {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        TcpTransport::bind(Some(any), Identity { role, member }, cfg).unwrap()
    }
}

/// TLS over TCP, all with one certificate.
pub struct Tls(Credentials);

impl Default for Tls {
    fn default() -> Self {
        Self(Credentials::load(&Authority::new().issue("member.test")).unwrap())
    }
}

impl Fabric for Tls {
    type Transport = TcpTransport;
    /// There is no saying anything before the handshake, and no place for one.
    const TELLS_WHEN_FULL: bool = false;
    fn endpoint(&self, role: Role, member: u32, cfg: TcpConfig) -> TcpTransport {
        secured(role, member, cfg, &self.0)
    }
}

pub fn secured(role: Role, member: u32, cfg: TcpConfig, credentials: &Credentials) -> TcpTransport {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let identity = Identity { role, member };
    TcpTransport::bind_with(Some(any), identity, cfg, Some(credentials)).unwrap()
}

#[derive(Default)]
pub struct Inproc(InprocNetwork);

impl Fabric for Inproc {
    type Transport = InprocTransport;
    fn endpoint(&self, role: Role, member: u32, cfg: TcpConfig) -> InprocTransport {
        self.0.endpoint_with(Identity { role, member }, cfg)
    }
}

/// Shared memory, with TCP below. This thread's slabs can be shared from now on.
pub struct SameHost;

impl Default for SameHost {
    fn default() -> Self {
        share_slabs();
        Self
    }
}

impl Fabric for SameHost {
    type Transport = MixedTransport;
    fn endpoint(&self, role: Role, member: u32, cfg: TcpConfig) -> MixedTransport {
        let none = VerbsConfig { device: Some("no-such-device".into()), ..verbs_config() };
        mixed(role, member, cfg, TransportChoice::Auto, &none).unwrap()
    }
}

/// RDMA or nothing, over the first device of this host.
#[derive(Default)]
pub struct Verbs;

impl Fabric for Verbs {
    type Transport = MixedTransport;
    fn is_here() -> bool {
        rdma_here()
    }
    fn endpoint(&self, role: Role, member: u32, cfg: TcpConfig) -> MixedTransport {
        mixed(role, member, cfg, TransportChoice::Rdma, &verbs_config()).unwrap()
    }
}

pub fn mixed(
    role: Role,
    member: u32,
    cfg: TcpConfig,
    choice: TransportChoice,
    verbs: &VerbsConfig,
) -> Result<MixedTransport, MixedError> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let identity = Identity { role, member };
    MixedTransport::bind(Some(any), identity, cfg, choice, verbs, None, Clock::start())
}

/// Patient enough for an emulated machine, where a megabyte may take a quarter of a second.
pub fn verbs_config() -> VerbsConfig {
    VerbsConfig {
        read_timeout: Nanos::from_millis(10_000),
        ack_timeout: 18,
        ..VerbsConfig::default()
    }
}

/// True if this host can do RDMA. A host that was promised to (`BATON_VERBS=1`: the guest) and cannot
/// fails; others skip, and say so.
pub fn rdma_here() -> bool {
    let problem =
        match mixed(Role::Backend, 0, TcpConfig::default(), TransportChoice::Rdma, &verbs_config())
        {
            Ok(_) => return true,
            Err(MixedError::Verbs(problem)) => problem,
            Err(other) => panic!("{other}"),
        };
    assert!(std::env::var_os("BATON_VERBS").is_none(), "BATON_VERBS is set, but {problem}");
    let absent = matches!(
        problem,
        VerbsError::NoLibrary { .. } | VerbsError::NoKernelSupport | VerbsError::NoDevice
    );
    assert!(absent, "neither RDMA nor a clear absence: {problem}");
    eprintln!("SKIPPED, NO RDMA: {problem}; `./x rdma` runs this in a guest that has Soft-RoCE");
    false
}

/// An event, owned.
#[derive(Debug)]
pub enum Seen {
    Opened(ConnId, Peer),
    Ping(ConnId, u64),
    Action(ConnId, Vec<u8>),
    Other(ConnId, Kind),
    Read(ReadDone),
    Result(ConnId, TaskResult, u32),
    Closed(ConnId, CloseReason),
}

impl From<Event<'_>> for Seen {
    fn from(event: Event<'_>) -> Self {
        match event {
            Event::Opened { conn, peer } => Self::Opened(conn, peer),
            Event::Message { conn, message: Message::Ping(ping) } => {
                Self::Ping(conn, ping.sent_ns.get())
            }
            Event::Message { conn, message: Message::Action(_, tasks) } => {
                Self::Action(conn, tasks.as_bytes().to_vec())
            }
            Event::Message { conn, message } => Self::Other(conn, message.kind()),
            Event::Read(done) => Self::Read(done),
            Event::Result { conn, result, len } => Self::Result(conn, result, len),
            Event::Closed { conn, reason } => Self::Closed(conn, reason),
        }
    }
}

pub struct Node<T> {
    pub transport: T,
    pub now: Nanos,
    pub seen: Vec<Seen>,
    events: Events,
}

impl<T: Transport> Node<T> {
    pub fn new(transport: T) -> Self {
        let now = Nanos::from_millis(1_000);
        Self { transport, now, seen: Vec::new(), events: Events::new() }
    }

    pub fn poll(&mut self) -> usize {
        let n = self.transport.poll(self.now, &mut self.events);
        assert_eq!(n, self.events.len());
        self.seen.extend(self.events.drain().map(Seen::from));
        n
    }

    /// `span` passes, with a pass now and then, as its owner makes when nothing happens.
    pub fn pass(&mut self, span: Nanos) {
        let end = self.now + span;
        while self.now < end {
            self.now = (self.now + PARK_MAX).min(end);
            self.poll();
        }
    }

    pub fn connect(&mut self, addr: SocketAddr) -> ConnId {
        self.transport.connect(addr, Hello::new(Role::Backend, 5, 77)).unwrap()
    }

    pub fn ping(&mut self, conn: ConnId, number: u64) {
        let ping = wire::Ping { sent_ns: number.into() };
        self.transport.send(conn, &ping, &[]).unwrap();
    }

    pub fn opened(&self) -> Vec<(ConnId, Peer)> {
        self.pick(|seen| match seen {
            Seen::Opened(conn, peer) => Some((*conn, *peer)),
            _ => None,
        })
    }

    pub fn pings(&self) -> Vec<u64> {
        self.pick(|seen| match seen {
            Seen::Ping(_, number) => Some(*number),
            _ => None,
        })
    }

    pub fn closed(&self) -> Vec<(ConnId, CloseReason)> {
        self.pick(|seen| match seen {
            Seen::Closed(conn, reason) => Some((*conn, reason.clone())),
            _ => None,
        })
    }

    pub fn reads(&self) -> Vec<&ReadDone> {
        self.pick(|seen| match seen {
            Seen::Read(done) => Some(done),
            _ => None,
        })
    }

    fn pick<'a, R>(&'a self, of: impl Fn(&'a Seen) -> Option<R>) -> Vec<R> {
        self.seen.iter().filter_map(of).collect()
    }
}

/// Polls the nodes in turn until `done`, waiting (bounded) on the one that is still, never sleeping.
pub fn settle<T: Transport, const N: usize>(
    mut nodes: [&mut Node<T>; N],
    mut done: impl FnMut(&[&mut Node<T>; N]) -> bool,
) {
    for round in 0..ROUNDS {
        let moved: usize = nodes.iter_mut().map(|node| node.poll()).sum();
        if done(&nodes) {
            return;
        }
        if moved == 0 {
            nodes[round % N].transport.wait(Some(PATIENCE));
        }
    }
    let seen: Vec<_> = nodes.iter().map(|node| &node.seen).collect();
    panic!("not there after {ROUNDS} rounds; seen: {seen:#?}");
}

/// A pair that has connected: the connection at each.
pub fn open<T: Transport>(from: &mut Node<T>, to: &mut Node<T>) -> (ConnId, ConnId) {
    let conn = from.connect(to.transport.local_addr());
    let before = to.opened().len();
    settle([from, to], |[from, to]| {
        from.opened().iter().any(|(id, _)| *id == conn) && to.opened().len() > before
    });
    let accepted = to.opened().last().unwrap().0;
    to.transport.trust(accepted);
    if BACKING.get() == Backing::Shared {
        // What may be mapped is: an offer, a datagram.
        for _ in 0..ROUNDS_TO_MAP {
            to.poll();
            from.poll();
        }
    }
    (conn, accepted)
}

pub const MODEL: ModelId = ModelId(0);
pub const OUTPUT: u32 = 16;

thread_local! {
    /// Of the slabs that this thread's tests make.
    static BACKING: Cell<Backing> = const { Cell::new(Backing::Private) };
}

/// From now on slabs of this thread's lie in memory that can be shared.
pub fn share_slabs() {
    BACKING.set(Backing::Shared);
}

/// A frontend's slab for one model.
pub fn slabs(frontend: u16, slots: u32, input_bytes: u32) -> Arc<SlabSet> {
    slabs_at(0, frontend, slots, input_bytes, 0)
}

/// A frontend's slab for one model, whose slots and generations begin there.
pub fn slabs_at(
    first_slot: u32,
    frontend: u16,
    slots: u32,
    input_bytes: u32,
    first_generation: u32,
) -> Arc<SlabSet> {
    let spec = SlabSpec { model: MODEL, slots, input_bytes, output_bytes: OUTPUT };
    let set = SlabSet::new_at(first_slot, &[spec], first_generation, BACKING.get()).unwrap();
    set.set_frontend(FrontendId(frontend));
    set
}

/// The byte at `at` of the input number `seed`.
pub fn pattern(seed: u64, at: usize) -> u8 {
    (seed.wrapping_mul(31) ^ at as u64 ^ (at as u64 >> 8)) as u8
}

/// Submits an input that only this seed gives.
pub fn submit(set: &Arc<SlabSet>, seed: u64) -> TaskId {
    submit_some(set, seed, u32::MAX)
}

/// Submits the first bytes of an input that only this seed gives.
pub fn submit_some(set: &Arc<SlabSet>, seed: u64, len: u32) -> TaskId {
    let mut input = set.acquire(MODEL).unwrap();
    input.truncate(len);
    input.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(seed, at));
    input.submit()
}

pub fn holds(row: &[u8], seed: u64) -> bool {
    row.iter().enumerate().all(|(at, &byte)| byte == pattern(seed, at))
}

/// A batch's memory, known to the transport that will read into it.
pub fn landing<T: Transport>(node: &mut Node<T>, bytes: usize) -> Arc<BatchBuffer> {
    let buffer = BatchBuffer::new(bytes).unwrap();
    node.transport.land_in(&buffer).unwrap();
    buffer
}

/// A READ of `task` into row `row` of `buffer`.
pub fn read(conn: ConnId, task: TaskId, buffer: &Arc<BatchBuffer>, row: u32, bytes: u32) -> Read {
    Read { conn, task, row: buffer.lend(row, bytes).unwrap(), tag: u64::from(row) }
}

pub fn result(task: TaskId) -> TaskResult {
    TaskResult {
        task: task.0.into(),
        started_ns: 1.into(),
        finished_ns: 2.into(),
        batch_size: 3.into(),
        variant: 0.into(),
        gpu: 4.into(),
    }
}

pub fn refused(reason: &CloseReason) -> Option<(RefuseCode, &str)> {
    match reason {
        CloseReason::Refused { code: Some(code), detail } => Some((*code, detail)),
        _ => None,
    }
}

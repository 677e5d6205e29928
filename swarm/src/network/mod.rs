//! A simulated network: streams of bytes between hosts, under virtual time.
//!
//! In: what the transports write, and faults. Out: the same bytes, later, in the order of their
//! connection and in no order across connections; or an end in the middle of them. A host is one
//! process's life: one that starts anew is another host. One `StdRng` of its own decides every delay,
//! so that the same calls have the same effects.

mod batches;
mod conn;
mod ears;
mod faults;
mod frames;
mod order;
mod port;
mod watch;

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use baton_core::Nanos;
use baton_rdma::wire::Kind;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::clock::SkewedClock;
pub(crate) use batches::START_GRACE;
use conn::{Cargo, Conn, Segment};
pub use port::{Port, SimStream};
pub use watch::Watch;

/// One life of one process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostId(pub u32);

/// How long bytes travel, and how much a connection holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Least time from host to host.
    pub delay: Nanos,
    /// At most this is added.
    pub jitter: Nanos,
    /// Of 1,000 pieces, how many take `spike` longer.
    pub spikes: u32,
    /// See `spikes`.
    pub spike: Nanos,
    /// Bytes a connection takes from its writer before its reader has read them.
    pub window: usize,
    /// Of 1,000 pieces, how many are cut in two that arrive apart.
    pub cuts: u32,
    /// A kernel gives a connection up of whose far end it hears nothing for so long.
    pub patience: Nanos,
}

impl Link {
    /// A fast network on which nothing unusual happens.
    pub const QUIET: Self = Self {
        delay: Nanos::from_micros(30),
        jitter: Nanos::from_micros(20),
        spikes: 0,
        spike: Nanos::ZERO,
        window: 256 * 1024,
        cuts: 0,
        patience: Nanos::from_millis(500),
    };

    /// How wrong two hosts may be about each other's clocks once they have compared them a few times:
    /// by half of the quickest round trip, and what passes and drift add.
    pub(crate) fn doubt(&self) -> Nanos {
        let spike = if self.spikes > 0 { self.spike } else { Nanos::ZERO };
        self.delay + self.jitter + spike + Nanos::from_micros(200)
    }
}

/// A frame that has left its sender, for the event log.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// From.
    pub from: HostId,
    /// To.
    pub to: HostId,
    /// What.
    pub kind: Kind,
    /// Bytes, payload included.
    pub bytes: usize,
}

/// What happens at a moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Due {
    /// The first piece of this way of this connection.
    Arrival(usize, usize),
    /// The writer at this end may go on.
    Room(usize, usize),
    /// A frame is repeated, if its way still stands.
    Repeat(usize, usize),
    /// Kernels ask whether their peers are there.
    Probe,
}

/// A transport's side of the network.
/// Between a port and the loop that polls its agent.
#[derive(Default, Debug)]
pub struct Bell {
    rung: AtomicBool,
    /// The transport would have slept: nothing that it could do was left.
    has_slept: AtomicBool,
}

impl Bell {
    pub(crate) fn ring(&self) {
        self.rung.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_rung(&self) -> bool {
        self.rung.load(Ordering::Relaxed)
    }

    pub(crate) fn take(&self) -> bool {
        self.rung.swap(false, Ordering::Relaxed)
    }

    /// Whether the transport sleeps if `wait` has it wait.
    pub(crate) fn sleeps(&self, wait: impl FnOnce()) -> bool {
        self.has_slept.store(false, Ordering::Relaxed);
        wait();
        self.has_slept.load(Ordering::Relaxed)
    }
}

struct Endpoint {
    host: HostId,
    addr: SocketAddr,
    /// Connections not accepted yet.
    incoming: Vec<usize>,
    /// Ends with news, and whether there is a connection to accept.
    news: Vec<(usize, usize)>,
    acceptable: bool,
    alive: bool,
    /// What it writes need not be frames.
    hostile: bool,
    bell: Arc<Bell>,
}

impl Endpoint {
    fn ring(&self) {
        self.bell.ring();
    }
}

struct State {
    now: Nanos,
    rng: StdRng,
    link: Link,
    conns: Vec<Conn>,
    endpoints: Vec<Endpoint>,
    ports: BTreeMap<SocketAddr, usize>,
    queue: BinaryHeap<Reverse<(Nanos, u64, Due)>>,
    serial: u64,
    /// Nothing passes from the first to the second.
    walls: Vec<(HostId, HostId)>,
    /// Hosts that vanished without a word, and whether something answers in their place again.
    vanished: BTreeMap<HostId, bool>,
    watch: Watch,
    /// Frames since the log was last read; kept only with `log`.
    sent: Vec<Sent>,
    log: bool,
    /// Frames of 1,000 that are repeated, of the kinds that may be.
    repeats: u32,
}

/// The network. Clones are the same one.
#[derive(Clone)]
pub struct Network {
    state: Rc<RefCell<State>>,
    /// Moved by the world.
    now: Rc<Cell<Nanos>>,
}

impl Network {
    /// A network without hosts. `log` keeps what [`Network::take_sent`] gives.
    pub fn new(link: Link, seed: u64, log: bool) -> Self {
        let mut state = State {
            now: Nanos::ZERO,
            rng: StdRng::seed_from_u64(seed),
            link,
            conns: Vec::new(),
            endpoints: Vec::new(),
            ports: BTreeMap::new(),
            queue: BinaryHeap::new(),
            serial: 0,
            walls: Vec::new(),
            vanished: BTreeMap::new(),
            watch: Watch::default(),
            sent: Vec::new(),
            log,
            repeats: 0,
        };
        state.schedule(link.patience, Due::Probe);
        Self { state: Rc::new(RefCell::new(state)), now: Rc::default() }
    }

    /// Moves time on: whatever has arrived by `now` is there.
    pub fn advance(&self, now: Nanos) {
        self.now.set(now);
        let mut state = self.state.borrow_mut();
        state.now = now;
        while let Some(&Reverse((at, _, due))) = state.queue.peek() {
            if at > now {
                return;
            }
            state.queue.pop();
            state.happen(due);
        }
    }

    /// When something arrives next.
    pub fn next_moment(&self) -> Option<Nanos> {
        self.state.borrow().queue.peek().map(|Reverse((at, ..))| *at)
    }

    /// A port of `host` at `addr`; `bell` is set when there is news.
    pub fn open(&self, host: HostId, addr: SocketAddr, bell: Arc<Bell>) -> Port {
        self.open_port(host, addr, bell, false)
    }

    /// A port of an attacker's: what it writes is not followed frame by frame, because it may be none.
    pub fn open_hostile(&self, host: HostId, addr: SocketAddr) -> Port {
        self.open_port(host, addr, Arc::default(), true)
    }

    fn open_port(&self, host: HostId, addr: SocketAddr, bell: Arc<Bell>, hostile: bool) -> Port {
        let mut state = self.state.borrow_mut();
        let number = state.endpoints.len();
        let (incoming, news) = (Vec::new(), Vec::new());
        let (acceptable, alive) = (false, true);
        let endpoint = Endpoint { host, addr, incoming, news, acceptable, alive, hostile, bell };
        state.endpoints.push(endpoint);
        let before = state.ports.insert(addr, number);
        debug_assert!(before.is_none_or(|old| !state.endpoints[old].alive), "{addr} is taken");
        drop(state);
        Port::new(self.clone(), number, addr)
    }

    /// Reports of backends to this host are held against its clock.
    pub(crate) fn know_clock(&self, host: HostId, clock: SkewedClock) {
        self.state.borrow_mut().watch.batches.know(host, clock);
    }

    /// Faults will make backends stand still for so long: what they report is as old then.
    pub(crate) fn expect_pauses(&self, longest: Nanos) {
        self.state.borrow_mut().watch.batches.expect_pauses(longest);
    }

    /// From now on tasks may be served after others that are due later.
    pub(crate) fn let_others_go_first(&self) {
        self.state.borrow_mut().watch.others_go_first = true;
    }

    /// How far apart clocks may have drifted while every process stood still.
    pub(crate) fn drift_in_pauses(&self) -> Nanos {
        self.state.borrow().watch.batches.drift_in_pauses()
    }

    /// Faults wait for messages of these kinds, each behind this many others of its kind.
    pub(crate) fn lie_in_wait(&self, faults: Vec<(Kind, u32)>) {
        self.state.borrow_mut().watch.ears.lie_in_wait(faults);
    }

    /// Those whose message has passed since the last call, who sent it and to whom.
    pub(crate) fn take_sprung(&self) -> Vec<(usize, HostId, HostId)> {
        std::mem::take(&mut self.state.borrow_mut().watch.ears.sprung)
    }

    /// Some thread of the scheduler stands still until then.
    pub(crate) fn scheduler_sleeps(&self, until: Nanos) {
        let watch = &mut self.state.borrow_mut().watch;
        watch.awake_since = watch.awake_since.max(until);
    }

    /// What was seen of tasks' outcomes and of hosts' connections.
    pub fn watch<T>(&self, look: impl FnOnce(&Watch) -> T) -> T {
        look(&self.state.borrow().watch)
    }

    /// Frames that have left since the last call.
    pub fn take_sent(&self) -> Vec<Sent> {
        std::mem::take(&mut self.state.borrow_mut().sent)
    }

    /// Connections of the host that stand at both ends. One whose far end vanished without a word
    /// does not count: its host cannot know.
    pub fn connections(&self, host: HostId) -> usize {
        let state = self.state.borrow();
        let whole = state.conns.iter().filter(|conn| conn.ends.iter().all(|end| end.held));
        let mine = |end: &conn::End| state.host_of(end.endpoint) == host;
        whole.filter(|conn| conn.ends.iter().any(mine)).count()
    }

    /// Bytes of the fullest connection: written and not read.
    pub fn fullest(&self) -> usize {
        let state = self.state.borrow();
        let ways = (0..state.conns.len()).flat_map(|at| [(at, 0), (at, 1)]);
        ways.map(|(at, way)| state.conns[at].pending(way)).max().unwrap_or(0)
    }
}

/// The address of a host's `port`.
pub(crate) fn addr_of(host: HostId, port: u16) -> SocketAddr {
    let [_, a, b, c] = host.0.to_be_bytes();
    SocketAddr::from((Ipv4Addr::new(10, a, b, c), port))
}

impl State {
    fn host_of(&self, endpoint: usize) -> HostId {
        self.endpoints[endpoint].host
    }

    fn hosts(&self, at: usize, way: usize) -> (HostId, HostId) {
        let ends = &self.conns[at].ends;
        (self.host_of(ends[way].endpoint), self.host_of(ends[1 - way].endpoint))
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Arrival(at, way) => self.arrive(at, way),
            Due::Room(at, end) => self.tell_room(at, end),
            Due::Repeat(at, way) => self.repeat(at, way),
            Due::Probe => self.probe(),
        }
    }

    fn schedule(&mut self, at: Nanos, due: Due) {
        self.serial += 1;
        self.queue.push(Reverse((at, self.serial, due)));
    }

    /// How long a piece travels.
    fn travel(&mut self) -> Nanos {
        let Link { delay, jitter, spikes, spike, .. } = self.link;
        let extra = Nanos(self.rng.random_range(0..=jitter.0));
        let spiked = spikes > 0 && self.rng.random_range(0..1000) < spikes;
        delay + extra + if spiked { Nanos(self.rng.random_range(0..=spike.0)) } else { Nanos::ZERO }
    }

    /// Puts something on its way; it arrives behind everything that left before it.
    fn dispatch(&mut self, at: usize, way: usize, cargo: Cargo) {
        let after = self.travel();
        let line = &mut self.conns[at].ways[way];
        let arrives = (self.now + after).max(line.last);
        line.last = arrives;
        line.pieces.push_back(Segment { arrives, cargo });
        if line.pieces.len() == 1 && !line.stuck {
            self.schedule(arrives, Due::Arrival(at, way));
        }
    }

    /// Everything of this way that is due.
    fn arrive(&mut self, at: usize, way: usize) {
        let (from, to) = self.hosts(at, way);
        if self.walls.contains(&(from, to)) {
            self.conns[at].ways[way].stuck = true;
            return;
        }
        while let Some(piece) = self.conns[at].ways[way].pieces.front() {
            if piece.arrives > self.now {
                let next = piece.arrives;
                self.schedule(next, Due::Arrival(at, way));
                return;
            }
            let piece = self.conns[at].ways[way].pieces.pop_front().expect("seen above");
            self.deliver(at, way, piece.cargo);
        }
    }
}

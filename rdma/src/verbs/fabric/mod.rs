//! The conversation about queue pairs, connection by connection, and what the engines are fed with.
//!
//! ```text
//! backend                                frontend
//!   FabricOffer{epoch, pair, …}   ───▶     once its owner trusts the connection
//!   ◀───  FabricSlab…, FabricAnswer{epoch, pair, …}
//!   READs                                  its CPU does nothing
//! ```
//! A queue pair that failed because a READ was given up is replaced by a new offer on the same
//! connection; one that failed by itself ends the connection, which the owner may open anew. Messages
//! have a queue pair of their own (`control`).

mod closing;
mod control;
mod end;
mod initiator;
mod messages;
mod target;

use std::net::SocketAddr;
use std::sync::Arc;

use baton_topo::Clock;
use baton_types::Nanos;

use super::breaker::CircuitBreaker;
use super::engine::{Completion, PullBounds, ReadEngine, RemoteSlab};
use super::error::VerbsError;
use super::pair::QpParams;
use super::verbs_device::{OPS_MAX, VerbsDevice};
use crate::events::{EventView, Events};
use crate::log_limit::LogLimit;
use crate::memory::landing::BatchBuffer;
use crate::protocol::wire::Message;
use crate::tcp::TcpTransport;
use crate::transport::{ConnId, Read, ReadStatus, TransportCounters};
use closing::Closing;
use control::ControlSessions;
use target::Targets;

/// A queue pair that a frontend is to answer for.
struct Offered {
    params: QpParams,
    answer_by: Nanos,
}

/// A connection this side opened, as far as the fabric is concerned.
struct Outgoing {
    conn: ConnId,
    /// Where it leads, once it is open.
    addr: Option<SocketAddr>,
    /// Of the last offer; 0 before the first.
    epoch: u32,
    /// `None` while nothing waits for an answer.
    offered: Option<Offered>,
    /// Announced for the answer to come.
    slabs: Vec<RemoteSlab>,
    /// The connection is gone.
    is_closed: bool,
}

/// Everything RDMA of a transport.
pub(super) struct Fabric {
    device: VerbsDevice,
    read_engine: ReadEngine,
    /// There is no going on over TCP.
    is_strict: bool,
    clock: Clock,
    /// By place.
    links: Vec<Option<Outgoing>>,
    /// Ascending: connections are numbered in order.
    places: Vec<(ConnId, usize)>,
    /// Connections that went on over TCP after an offer, ascending: their frontends may tell of slabs all the
    /// same.
    left: Vec<ConnId>,
    targets: Targets,
    sessions: ControlSessions,
    closing: Vec<Closing>,
    completions: Vec<Completion>,
    /// Empty between calls.
    others: Vec<Read>,
    /// An event of the completion queue has been asked for.
    is_armed: bool,
    breaker: CircuitBreaker,
    log: LogLimit,
    /// Queue pairs connected so far.
    linked: u64,
    reads_done: u64,
    reads_failed: u64,
}

impl Fabric {
    pub(super) fn new(
        device: VerbsDevice,
        is_strict: bool,
        credit_bytes: u64,
        clock: Clock,
    ) -> Self {
        let bounds = PullBounds {
            slice_bytes: device.cfg.slice_bytes.max(1),
            credit_bytes,
            posted_max: device.posted_max,
            ops_max: OPS_MAX,
        };
        Self {
            targets: Targets::new(device.cfg.read_timeout),
            device,
            read_engine: ReadEngine::new(bounds),
            is_strict,
            clock,
            links: Vec::new(),
            places: Vec::new(),
            left: Vec::new(),
            sessions: ControlSessions::default(),
            closing: Vec::new(),
            completions: Vec::new(),
            others: Vec::new(),
            is_armed: false,
            breaker: CircuitBreaker::default(),
            log: LogLimit::default(),
            linked: 0,
            reads_done: 0,
            reads_failed: 0,
        }
    }

    /// A connection is being opened: should it lead to a frontend, its READs are ours.
    pub(super) fn hold(&mut self, conn: ConnId) {
        let place = self.links.iter().position(Option::is_none).unwrap_or_else(|| {
            self.links.push(None);
            self.links.len() - 1
        });
        self.links[place] = Some(Outgoing {
            conn,
            addr: None,
            epoch: 0,
            offered: None,
            slabs: Vec::new(),
            is_closed: false,
        });
        self.places.push((conn, place));
        self.read_engine.open(place, conn);
    }

    /// True if this connection's READs go over the fabric, or may.
    pub(super) fn carries(&self, conn: ConnId) -> bool {
        self.place_of(conn).is_some()
    }

    /// True while something is posted.
    pub(super) fn is_reading(&self) -> bool {
        !self.read_engine.is_drained()
    }

    /// Takes its READs out of `reads`.
    pub(super) fn take_reads(&mut self, reads: &mut Vec<Read>) {
        let Self { places, read_engine, others, .. } = self;
        for read in reads.drain(..) {
            match find(places, read.conn) {
                Some(place) => read_engine.push(place, read),
                None => others.push(read),
            }
        }
        std::mem::swap(reads, others);
    }

    pub(super) fn abort(&mut self, conn: ConnId, tag: u64) {
        if let Some(place) = self.place_of(conn) {
            self.read_engine.abort(place, tag, &mut self.device);
        }
    }

    pub(super) fn land_in(&mut self, buffer: &Arc<BatchBuffer>) -> Result<(), VerbsError> {
        self.device.land_in(buffer)
    }

    pub(super) fn release(&mut self, buffer: &BatchBuffer) {
        self.device.release(buffer);
    }

    /// Looks at what TCP brought; false for what is not the owner's business, or not yet.
    pub(super) fn on_event(&mut self, view: EventView<'_>, tcp: &mut TcpTransport) -> bool {
        match view {
            EventView::Opened(conn, peer) => {
                self.on_opened(conn, peer, tcp);
                true
            }
            EventView::Message(conn, Message::FabricOffer(offer, device)) => {
                tracing::debug!(conn = conn.0, device, "a backend offers its queue pair");
                tcp.received_own();
                self.targets.on_offer(conn, offer, &mut self.device, tcp);
                false
            }
            EventView::Message(conn, Message::FabricSlab(slab)) => {
                tcp.received_own();
                self.on_slab(conn, slab, tcp);
                false
            }
            EventView::Message(conn, Message::FabricAnswer(answer, text)) => {
                tcp.received_own();
                self.on_answer(conn, answer, text, tcp);
                false
            }
            EventView::Message(conn, Message::ControlOffer(offer, device)) => {
                tracing::debug!(conn = conn.0, device, "a peer offers a queue pair for messages");
                tcp.received_own();
                self.on_control_offer(conn, offer, tcp);
                false
            }
            EventView::Message(conn, Message::ControlAnswer(answer, text)) => {
                tcp.received_own();
                self.on_control_answer(conn, answer, text, tcp);
                false
            }
            EventView::Message(conn, Message::ControlStart(_)) => {
                tcp.received_own();
                self.on_control_start(conn, tcp);
                false
            }
            // From a backend without RDMA: a frontend with it has its memory registered, and not shared.
            EventView::Message(_, Message::MemoryOffer(_)) => false,
            EventView::Message(..) => true,
            EventView::Closed(conn, reason) => self.on_closed(conn, reason),
        }
    }

    /// Moves everything: completions, deadlines, what became of links, new READs. With `in_full`
    /// false only if a completion has come or a READ waits to be posted, and no timer: reading the clock
    /// and looking at every link takes longer than asking the completion queue.
    pub(super) fn poll(&mut self, in_full: bool, tcp: &mut TcpTransport, events: &mut Events) {
        if std::mem::take(&mut self.is_armed) {
            self.device.queue.acknowledge();
        }
        if !self.read_engine.is_drained() || !self.sessions.is_empty() {
            self.device.poll(&mut self.completions, &mut self.sessions.signals);
        }
        let is_still = self.completions.is_empty() && self.read_engine.is_quiet();
        if !in_full && is_still && self.sessions.is_quiet() {
            return;
        }
        // After the completions were taken: what is here now had arrived by now.
        let now = self.clock.now();
        for completion in self.completions.drain(..) {
            self.read_engine.complete(completion, now, &mut self.device);
        }
        let mut gone = Vec::new();
        if in_full {
            self.read_engine.expire(now, &mut self.device);
            self.targets.poll(now);
            self.expire_offers(now, tcp);
            if let Some(lines) = self.log.left_out(now) {
                tracing::error!("... and {lines} more links in the last second");
            }
        }
        // A pass for a READ's sake has nothing to do with messages.
        if in_full || !self.sessions.is_quiet() {
            self.take_signals(tcp, events);
            self.expire_controls(now, tcp);
            self.end_controls(now, tcp, &mut gone);
        }
        self.pump(now);
        while let Some(notice) = self.read_engine.notices.pop() {
            gone.extend(self.act_on(notice, now, tcp));
        }
        for done in self.read_engine.done.drain(..) {
            let is_done = done.status == ReadStatus::Done;
            self.reads_done += u64::from(is_done);
            self.reads_failed += u64::from(!is_done);
            events.read(done);
        }
        for (conn, reason) in gone {
            events.closed(conn, reason);
        }
    }

    /// One doorbell per chain.
    pub(super) fn flush(&mut self) {
        if self.sessions.engine.has_waiting() || self.read_engine.has_waiting() {
            self.pump(self.clock.now());
        }
    }

    /// Posts; what is posted has its time from `now` on.
    fn pump(&mut self, now: Nanos) {
        self.read_engine.pump(now, &mut self.device);
        self.sessions.engine.pump(now, &mut self.device);
    }

    /// Asks for an event of the next completion. `None` if there is something to do already;
    /// otherwise how long a wait may be.
    pub(super) fn before_wait(&mut self, timeout: Option<Nanos>) -> Option<Option<Nanos>> {
        let has_news = !self.read_engine.done.is_empty() || !self.read_engine.notices.is_empty();
        if has_news || !self.sessions.is_quiet() {
            return None;
        }
        if !self.read_engine.is_drained() || !self.sessions.is_empty() {
            self.device.queue.arm();
            self.is_armed = true;
            // Completions that came before the queue was armed cause no event.
            self.device.poll(&mut self.completions, &mut self.sessions.signals);
            if !self.completions.is_empty() || !self.sessions.signals.is_empty() {
                return None;
            }
        }
        let offers = self.links.iter().flatten().filter_map(|link| link.offered.as_ref());
        let offers = offers.map(|offered| offered.answer_by);
        let timers =
            offers.chain(self.read_engine.next_deadline()).chain(self.targets.next_timer());
        let timers = timers.chain(self.sessions.next_deadline());
        let next = timers.min().filter(|at| *at < Nanos::MAX);
        let now = self.clock.now();
        // A microsecond more: a timer is due when its time has passed.
        let until = next.map(|at| Nanos(at.0.saturating_sub(now.0).saturating_add(1_000)));
        Some([timeout, until].into_iter().flatten().min())
    }

    pub(super) fn count(&self, counters: &mut TransportCounters) {
        counters.reads_done += self.reads_done;
        counters.reads_rdma += self.reads_done;
        counters.reads_failed += self.reads_failed;
        counters.links_rdma += self.linked + self.targets.linked;
        counters.control_links += self.sessions.linked;
    }

    fn addr_of(&self, conn: ConnId) -> Option<SocketAddr> {
        self.links[self.place_of(conn)?].as_ref()?.addr
    }

    fn place_of(&self, conn: ConnId) -> Option<usize> {
        find(&self.places, conn)
    }
}

fn find(places: &[(ConnId, usize)], conn: ConnId) -> Option<usize> {
    let at = places.binary_search_by_key(&conn, |(of, _)| *of).ok()?;
    Some(places[at].1)
}

fn micros(span: Nanos) -> u32 {
    u32::try_from(span.0 / 1_000).unwrap_or(u32::MAX)
}

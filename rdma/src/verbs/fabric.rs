//! The conversation about queue pairs, connection by connection, and what the engine is fed with.
//!
//! ```text
//! backend                                frontend
//!   FabricOffer{epoch, pair, …}   ───▶     once its owner trusts the connection
//!   ◀───  FabricSlab…, FabricAnswer{epoch, pair, …}
//!   READs                                  its CPU does nothing
//! ```
//! A queue pair that failed because a READ was given up is replaced by a new offer on the same
//! connection; one that failed by itself ends the connection, which the owner may open anew.

mod target;

use std::sync::Arc;

use baton_core::Nanos;
use baton_topo::Clock;

use super::engine::{Completion, LinkFailure, Notice, PullBounds, Puller, RemoteSlab};
use super::error::VerbsError;
use super::hub::{Hub, OPS_MAX};
use super::pair::{PairAddr, Side, Terms};
use crate::events::{CloseReason, Events, Peer, Sifted};
use crate::landing::BatchBuffer;
use crate::tcp::TcpTransport;
use crate::transport::{ConnId, Read, ReadStatus, Transport, TransportCounters};
use crate::wire::{FabricAnswer, FabricOffer, FabricSlab, Kind, Message, Role, VERSION_FABRIC};
use target::Targets;

/// How long a frontend may take to answer an offer: it may be waiting for its scheduler's word.
const ANSWER_TIMEOUT: Nanos = Nanos::from_millis(5_000);
/// Slabs a frontend may announce.
const SLABS_MAX: usize = 65_536;
/// At the end, how long the queue pairs may take to drain.
const LAST_DRAIN: Nanos = Nanos::from_millis(1_000);

/// A connection this side opened, as far as the fabric is concerned.
struct Outgoing {
    conn: ConnId,
    /// Of the last offer; 0 before the first.
    epoch: u32,
    /// What was offered; `None` while nothing waits for an answer.
    offered: Option<Terms>,
    answer_by: Nanos,
    /// Announced for the answer to come.
    slabs: Vec<RemoteSlab>,
    /// The connection is gone, for this reason; told when the queue pair is drained.
    closed: Option<CloseReason>,
}

/// Everything RDMA of a transport.
pub(super) struct Fabric {
    hub: Hub,
    puller: Puller,
    /// There is no going on over TCP.
    is_strict: bool,
    clock: Clock,
    /// By place.
    links: Vec<Option<Outgoing>>,
    /// Ascending: connections are numbered in order.
    places: Vec<(ConnId, usize)>,
    targets: Targets,
    completions: Vec<Completion>,
    /// An event of the completion queue has been asked for.
    is_armed: bool,
    /// Queue pairs connected so far.
    linked: u64,
    reads_done: u64,
    reads_failed: u64,
}

impl Fabric {
    pub(super) fn new(hub: Hub, is_strict: bool, credit_bytes: u64, clock: Clock) -> Self {
        let bounds = PullBounds {
            slice_bytes: hub.cfg.slice_bytes.max(1),
            credit_bytes,
            posted_max: hub.posted_max,
            ops_max: OPS_MAX,
        };
        Self {
            targets: Targets::new(hub.cfg.read_timeout),
            hub,
            puller: Puller::new(bounds),
            is_strict,
            clock,
            links: Vec::new(),
            places: Vec::new(),
            completions: Vec::new(),
            is_armed: false,
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
        let (answer_by, slabs) = (Nanos::MAX, Vec::new());
        self.links[place] =
            Some(Outgoing { conn, epoch: 0, offered: None, answer_by, slabs, closed: None });
        self.places.push((conn, place));
        self.puller.open(place, conn);
    }

    /// True if this connection's READs go over the fabric, or may.
    pub(super) fn carries(&self, conn: ConnId) -> bool {
        self.place_of(conn).is_some()
    }

    /// Takes its READs out of `reads`.
    pub(super) fn take_reads(&mut self, reads: &mut Vec<Read>) {
        let Self { places, puller, .. } = self;
        for read in reads.extract_if(.., |read| find(places, read.conn).is_some()) {
            if let Some(place) = find(places, read.conn) {
                puller.push(place, read);
            }
        }
    }

    pub(super) fn abort(&mut self, conn: ConnId, tag: u64) {
        if let Some(place) = self.place_of(conn) {
            self.puller.abort(place, tag, &mut self.hub);
        }
    }

    pub(super) fn land_in(&mut self, buffer: &Arc<BatchBuffer>) -> Result<(), VerbsError> {
        self.hub.land_in(buffer)
    }

    /// Looks at what TCP brought; false for what is not the owner's business, or not yet.
    pub(super) fn on_event(&mut self, sifted: Sifted<'_>, tcp: &mut TcpTransport) -> bool {
        match sifted {
            Sifted::Opened(conn, peer) => {
                self.on_opened(conn, peer, tcp);
                true
            }
            Sifted::Message(conn, Message::FabricOffer(offer, device)) => {
                tracing::debug!(conn = conn.0, device, "a backend offers its queue pair");
                tcp.received_own();
                self.targets.on_offer(conn, offer, &mut self.hub, tcp);
                false
            }
            Sifted::Message(conn, Message::FabricSlab(slab)) => {
                tcp.received_own();
                self.on_slab(conn, slab, tcp);
                false
            }
            Sifted::Message(conn, Message::FabricAnswer(answer, text)) => {
                tcp.received_own();
                self.on_answer(conn, answer, text, tcp);
                false
            }
            Sifted::Message(..) => true,
            Sifted::Closed(conn, reason) => self.on_closed(conn, reason),
        }
    }

    /// Moves everything: completions, deadlines, what became of links, new READs.
    pub(super) fn poll(&mut self, tcp: &mut TcpTransport, events: &mut Events) {
        if std::mem::take(&mut self.is_armed) {
            self.hub.queue.acknowledge();
        }
        self.hub.poll(&mut self.completions);
        // After the completions were taken: what is here now had arrived by now.
        let now = self.clock.now();
        for completion in self.completions.drain(..) {
            self.puller.complete(completion, now, &mut self.hub);
        }
        self.puller.expire(now, &mut self.hub);
        self.targets.poll(now);
        self.expire_offers(now, tcp);
        self.puller.pump(self.clock.now(), &mut self.hub);
        let mut gone = Vec::new();
        while let Some(notice) = self.puller.notices.pop() {
            gone.extend(self.act_on(notice, now, tcp));
        }
        for done in self.puller.done.drain(..) {
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
        self.puller.pump(self.clock.now(), &mut self.hub);
    }

    /// Asks for an event of the next completion. `None` if there is something to do already;
    /// otherwise how long a wait may be.
    pub(super) fn before_wait(&mut self, timeout: Option<Nanos>) -> Option<Option<Nanos>> {
        if !self.puller.done.is_empty() || !self.puller.notices.is_empty() {
            return None;
        }
        if !self.puller.is_drained() {
            self.hub.queue.arm();
            self.is_armed = true;
            // Completions that came before the queue was armed cause no event.
            self.hub.poll(&mut self.completions);
            if !self.completions.is_empty() {
                return None;
            }
        }
        let offers = self.links.iter().flatten().map(|link| link.answer_by);
        let timers = offers.chain(self.puller.next_deadline()).chain(self.targets.next_timer());
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
    }

    fn on_opened(&mut self, conn: ConnId, peer: &Peer, tcp: &mut TcpTransport) {
        let Some(place) = self.place_of(conn) else { return };
        if peer.role != Role::Frontend {
            // Schedulers' threads have no inputs.
            return self.leave_to_tcp(place, tcp);
        }
        if peer.version < VERSION_FABRIC {
            let why = format!("it speaks protocol version {}; upgrade it", peer.version);
            return self.unusable(place, &why, tcp);
        }
        self.offer(place, tcp);
    }

    /// Offers a fresh queue pair.
    fn offer(&mut self, place: usize, tcp: &mut TcpTransport) {
        let addr = match self.hub.make_pair(place) {
            Ok(addr) => addr,
            Err(error) => return self.unusable(place, &error.to_string(), tcp),
        };
        let terms = self.hub.terms(Side::Initiator);
        let now = self.clock.now();
        let Some(link) = self.links[place].as_mut() else { return };
        link.epoch += 1;
        link.offered = Some(terms);
        link.answer_by = now + ANSWER_TIMEOUT;
        let message = FabricOffer {
            epoch: link.epoch.into(),
            pair: addr.number.into(),
            first_psn: addr.first_psn.into(),
            lid: addr.lid.into(),
            read_depth: terms.read_depth,
            mtu: terms.mtu,
            gid: addr.gid,
            read_timeout_us: micros(self.hub.cfg.read_timeout).into(),
            reserved: 0.into(),
        };
        // If it cannot be queued there will be no answer, and that is noticed.
        let _ = tcp.send_own(link.conn, &message, self.hub.device_name().as_bytes());
    }

    fn on_slab(&mut self, conn: ConnId, slab: &FabricSlab, tcp: &mut TcpTransport) {
        let slab = RemoteSlab {
            first_slot: slab.first_slot.get(),
            slots: slab.slots.get(),
            stride: slab.stride.get(),
            input_bytes: slab.input_bytes.get(),
            addr: slab.addr.get(),
            rkey: slab.rkey.get(),
        };
        let link = self.place_of(conn).and_then(|place| self.links[place].as_mut());
        match link.filter(|link| link.offered.is_some() && link.slabs.len() < SLABS_MAX) {
            Some(link) if slab.makes_sense() => link.slabs.push(slab),
            _ => tcp.end(conn, CloseReason::Unexpected(Kind::FabricSlab)),
        }
    }

    fn on_answer(
        &mut self,
        conn: ConnId,
        answer: &FabricAnswer,
        text: &str,
        tcp: &mut TcpTransport,
    ) {
        let unexpected = CloseReason::Unexpected(Kind::FabricAnswer);
        let Some(place) = self.place_of(conn) else { return tcp.end(conn, unexpected) };
        let Some(link) = self.links[place].as_mut() else { return };
        let slabs = std::mem::take(&mut link.slabs);
        if link.epoch != answer.epoch.get() {
            return;
        }
        let Some(offered) = link.offered.take() else { return tcp.end(conn, unexpected) };
        link.answer_by = Nanos::MAX;
        if answer.pair.get() == 0 {
            let why = format!("the frontend has no RDMA: {text}");
            return self.unusable(place, &why, tcp);
        }
        let terms = Terms { mtu: answer.mtu, read_depth: answer.read_depth };
        let timeout = Nanos(u64::from(answer.read_timeout_us.get()) * 1_000);
        let fits = (1..=offered.mtu).contains(&terms.mtu)
            && (1..=offered.read_depth).contains(&terms.read_depth)
            && (Nanos(1)..=self.hub.cfg.read_timeout).contains(&timeout)
            && slabs.len() == answer.slabs.get() as usize;
        if !fits {
            return tcp.end(conn, unexpected);
        }
        let peer = PairAddr {
            number: answer.pair.get(),
            first_psn: answer.first_psn.get(),
            gid: answer.gid,
            lid: answer.lid.get(),
        };
        if let Err(error) = self.hub.connect(place, &peer, terms) {
            return self.unusable(place, &error.to_string(), tcp);
        }
        self.linked += 1;
        tracing::info!(
            conn = conn.0,
            device = self.hub.device_name(),
            peer_device = text,
            read_depth = terms.read_depth,
            mtu = 128u32 << terms.mtu,
            "transport: rdma with this frontend"
        );
        self.puller.up(place, slabs, terms.read_depth, timeout);
    }

    fn on_closed(&mut self, conn: ConnId, reason: &CloseReason) -> bool {
        self.targets.on_closed(conn, &mut self.hub);
        let Some(place) = self.place_of(conn) else { return true };
        if let Some(link) = self.links[place].as_mut() {
            link.closed = Some(reason.clone());
            link.answer_by = Nanos::MAX;
        }
        self.puller.close(place, &mut self.hub);
        false
    }

    /// Acts on the end of a link; returns the connection whose owner is to be told now.
    fn act_on(
        &mut self,
        notice: Notice,
        now: Nanos,
        tcp: &mut TcpTransport,
    ) -> Option<(ConnId, CloseReason)> {
        match notice {
            Notice::Relink(place) => {
                self.hub.drop_pair(place);
                let is_open = self.links[place].as_ref().is_some_and(|link| link.closed.is_none());
                if is_open {
                    tracing::debug!(now = now.0, place, "a queue pair is replaced");
                    self.offer(place, tcp);
                }
                None
            }
            Notice::Gone(place) => self.forget(place, None, tcp),
            Notice::Lost(place, why) => self.forget(place, Some(why), tcp),
        }
    }

    fn forget(
        &mut self,
        place: usize,
        why: Option<LinkFailure>,
        tcp: &mut TcpTransport,
    ) -> Option<(ConnId, CloseReason)> {
        self.hub.drop_pair(place);
        let link = self.links[place].take()?;
        self.places.retain(|(conn, _)| *conn != link.conn);
        if let Some(reason) = link.closed {
            return Some((link.conn, reason));
        }
        let problem = match why {
            Some(LinkFailure::Device(status)) => self.hub.queue.status_text(status),
            Some(why) => why.to_string(),
            None => "closed".to_owned(),
        };
        tracing::warn!(conn = link.conn.0, problem, "the RDMA link to a frontend failed");
        tcp.end(link.conn, CloseReason::Fabric(problem));
        None
    }

    fn expire_offers(&mut self, now: Nanos, tcp: &mut TcpTransport) {
        for place in 0..self.links.len() {
            if self.links[place].as_ref().is_some_and(|link| link.answer_by < now) {
                let why =
                    format!("no answer to the offer within {} ms", ANSWER_TIMEOUT.0 / 1_000_000);
                self.unusable(place, &why, tcp);
            }
        }
    }

    /// There will be no RDMA with this frontend: an error where it was insisted on, otherwise TCP.
    fn unusable(&mut self, place: usize, why: &str, tcp: &mut TcpTransport) {
        let Some(link) = self.links[place].as_mut() else { return };
        link.answer_by = Nanos::MAX;
        let conn = link.conn;
        if self.is_strict {
            tracing::error!(conn = conn.0, reason = why, "transport = \"rdma\" cannot be kept");
            return tcp.end(conn, CloseReason::Fabric(why.to_owned()));
        }
        tracing::info!(conn = conn.0, reason = why, "transport: tcp with this frontend");
        self.leave_to_tcp(place, tcp);
    }

    fn leave_to_tcp(&mut self, place: usize, tcp: &mut TcpTransport) {
        let mut held = self.puller.withdraw(place);
        self.hub.drop_pair(place);
        if let Some(link) = self.links[place].take() {
            self.places.retain(|(conn, _)| *conn != link.conn);
        }
        tcp.post_reads(&mut held);
    }

    fn place_of(&self, conn: ConnId) -> Option<usize> {
        find(&self.places, conn)
    }
}

impl Drop for Fabric {
    /// Rows are given back only when nothing writes to them any more, and otherwise never.
    fn drop(&mut self) {
        for place in 0..self.links.len() {
            self.puller.close(place, &mut self.hub);
        }
        let until = self.clock.now() + LAST_DRAIN;
        while !self.puller.is_drained() && self.clock.now() < until {
            self.hub.poll(&mut self.completions);
            for completion in self.completions.drain(..) {
                self.puller.complete(completion, until, &mut self.hub);
            }
            std::thread::yield_now();
        }
        if !self.puller.is_drained() {
            tracing::error!(
                "a queue pair does not drain; the rows its READs name are kept forever"
            );
            let empty = PullBounds { slice_bytes: 1, credit_bytes: 0, posted_max: 0, ops_max: 0 };
            std::mem::forget(std::mem::replace(&mut self.puller, Puller::new(empty)));
        }
        self.hub.disarm();
    }
}

fn find(places: &[(ConnId, usize)], conn: ConnId) -> Option<usize> {
    let at = places.binary_search_by_key(&conn, |(of, _)| *of).ok()?;
    Some(places[at].1)
}

fn micros(span: Nanos) -> u32 {
    u32::try_from(span.0 / 1_000).unwrap_or(u32::MAX)
}

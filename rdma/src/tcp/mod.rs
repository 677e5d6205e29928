//! The pull protocol over TCP.
//!
//! In the order of a pass: `net` (readiness), `stream` (TCP or TLS), `pass` (accepting, whose turn it is), `conn` (one socket),
//! `link` (what a frame means), `target` and `initiator` (the two sides of a READ), `sink` (where a
//! payload lands), `tx` (what leaves). One thread owns it all. Everything is bounded: connections,
//! bytes queued per connection, READs per connection, system calls per connection and pass, events
//! per poll, the time a handshake may take.

mod conn;
mod frame_reader;
mod hosts;
mod initiator;
mod link;
mod net;
mod pass;
mod ready_list;
mod sink;
mod stream;
mod target;
mod tx;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use baton_topo::{AwakeTime, PARK_MAX, Waker};
use baton_types::Nanos;
use mio::Interest;
use mio::unix::SourceFd;

use crate::events::{CloseReason, Events};
use crate::log_limit::LogLimit;
use crate::memory::landing::BatchBuffer;
use crate::memory::slab::SlabSet;
use crate::protocol::credit::RoundRobin;
use crate::protocol::frame::HEADER_LEN;
use crate::protocol::handshake::Stage;
use crate::protocol::wire::{
    self, BODY_MAX, Body, Hello, PAYLOAD_MAX, RefuseCode, TaskResult, Versions,
};
use crate::shared::Shared;
use crate::table::Table;
use crate::tls::Credentials;
use crate::transport::{
    ConnId, Identity, Read, ReadStatus, SendError, Transport, TransportCounters,
};
use conn::Conn;
pub(crate) use frame_reader::FrameReader;
use hosts::PerHostLimits;
pub use net::{Edge, Net, NetStream, OsNet};
use ready_list::ReadyList;
pub use stream::OsStream;
#[cfg(feature = "tls")]
pub(crate) use stream::{connected, send_plain};

/// Connections accepted per poll.
const ACCEPTS: usize = 64;
/// TLS handshakes taken a step further per poll: a step costs a signature or two, some 0.2 ms.
const HANDSHAKES: usize = 4;
/// A poll that has produced this much leaves the rest to the next one.
const EVENTS_PER_POLL: usize = 16 * 1024;
const EVENT_BYTES_PER_POLL: usize = 4 * 1024 * 1024;
/// A READ request as it travels.
const PULL_REQUEST_LEN: usize = HEADER_LEN + size_of::<wire::Read>();

/// Bounds of a [`TcpTransport`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpConfig {
    /// Most connections at a time, at most 65,536. Each costs 64 KiB once it is used, and with
    /// TLS another 64 KiB, and up to 256 KiB while its peer reads more slowly than it is sent to.
    pub connections_max: usize,
    /// Of these, most that one address has made. Many processes may share an address; a host that
    /// fills its part leaves the others theirs.
    pub host_connections_max: usize,
    /// Most bytes queued to one peer; leased inputs are not copied and do not count. A frame that is
    /// longer by itself passes when nothing else is queued.
    pub send_queue_bytes: usize,
    /// Window of bytes asked for and not arrived, over all connections; 0 for no limit. Twice to
    /// four times bandwidth · round trip keeps the port busy without filling the switch.
    pub credit_bytes: u64,
    /// From connecting or accepting to the end of the handshake, in time for which the transport is
    /// polled.
    pub handshake_timeout: Nanos,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            connections_max: 1024,
            host_connections_max: 512,
            send_queue_bytes: 4 * 1024 * 1024,
            credit_bytes: 1024 * 1024,
            handshake_timeout: Nanos::from_millis(5_000),
        }
    }
}

/// The [`Transport`] over TCP, of the operating system unless said otherwise.
pub struct TcpTransport<N: Net = OsNet> {
    pub(crate) cfg: TcpConfig,
    net: N,
    /// Connections may be waiting in the listener's queue.
    acceptable: bool,
    /// There was news of the descriptor that is watched.
    watched: bool,
    table: Table<Conn<N::Stream>>,
    shared: Shared,
    /// READs not asked for yet.
    waiting: RoundRobin<Read>,
    ready_list: ReadyList,
    /// Connections whose handshake is not done; nonzero makes polls look for late ones.
    opening: usize,
    hosts: PerHostLimits,
    /// Lines about peers that break off, or are broken off with.
    log: LogLimit,
    /// Of the last poll, for what happens between polls.
    now: Nanos,
    /// Handshakes are bounded in awake time: this thread may have stood still with its peer.
    awake: AwakeTime,
}

impl TcpTransport {
    /// A transport that accepts connections on `listen`, if given, and can connect.
    ///
    /// # Errors
    /// The address cannot be listened on, or the process is out of file descriptors.
    pub fn bind(
        listen: Option<SocketAddr>,
        identity: Identity,
        cfg: TcpConfig,
    ) -> io::Result<Self> {
        Self::bind_with(listen, identity, cfg, None)
    }

    /// As [`TcpTransport::bind`]; with `credentials` every connection is TLS, and nothing else is
    /// taken for one.
    ///
    /// # Errors
    /// As [`TcpTransport::bind`].
    pub fn bind_with(
        listen: Option<SocketAddr>,
        identity: Identity,
        cfg: TcpConfig,
        credentials: Option<&Credentials>,
    ) -> io::Result<Self> {
        let net = OsNet::bind(listen)?;
        let net = match credentials {
            Some(credentials) => net.secured(credentials.clone()),
            None => net,
        };
        Ok(Self::over(net, identity, cfg))
    }

    /// Ends waits also when `fd` becomes readable.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let raw = fd.as_raw_fd();
        self.net.registry().register(&mut SourceFd(&raw), net::WATCHED, Interest::READABLE)
    }
}

impl<N: Net> TcpTransport<N> {
    /// A transport over a network of the caller's.
    pub fn over(net: N, identity: Identity, cfg: TcpConfig) -> Self {
        Self {
            cfg,
            net,
            acceptable: false,
            watched: false,
            table: Table::new(cfg.connections_max),
            shared: Shared::new(identity, cfg.credit_bytes),
            waiting: RoundRobin::default(),
            ready_list: ReadyList::default(),
            opening: 0,
            hosts: PerHostLimits::new(cfg.host_connections_max),
            log: LogLimit::default(),
            now: Nanos::ZERO,
            awake: AwakeTime::default(),
        }
    }

    /// Claims to be of a build that speaks `versions`: for tests of an older or a newer one. What is
    /// said is this build's, as far as an agreed version allows it.
    #[must_use]
    pub fn claiming(mut self, versions: Versions) -> Self {
        self.shared.versions = versions;
        self
    }

    /// Refuses READs that arrive as messages from now on.
    pub(crate) fn refuse_reads(&mut self) {
        self.shared.serves_reads = false;
    }

    /// True if there was news of the watched descriptor since the last call.
    pub(crate) fn take_watched(&mut self) -> bool {
        std::mem::take(&mut self.watched)
    }

    /// Queues a message of the transport's own, which the counters leave out.
    pub(crate) fn send_own<B: Body>(
        &mut self,
        conn: ConnId,
        body: &B,
        tail: &[u8],
    ) -> Result<(), SendError> {
        self.send(conn, body, tail)?;
        self.shared.counters.messages_out -= 1;
        Ok(())
    }

    /// A message that arrived was the transport's own.
    pub(crate) fn received_own(&mut self) {
        self.shared.counters.messages_in -= 1;
    }

    /// Ends a connection for `reason`, and tells the peer.
    pub(crate) fn end(&mut self, conn: ConnId, reason: CloseReason) {
        if let Some(place) = self.table.place_of(conn) {
            self.tear_down(place, reason, None);
        }
    }

    /// Learns from the network which streams are ready.
    fn collect(&mut self) {
        let Self { net, acceptable, watched, table, ready_list, .. } = self;
        net.collect(|edge| match edge {
            Edge::Acceptable => *acceptable = true,
            Edge::Watched => *watched = true,
            Edge::Stream { place, readable, writable, hung_up } => {
                let Some(conn) = table.at(place) else { return };
                conn.note(readable, writable, hung_up);
                ready_list.note(place, conn);
            }
        });
    }
}

impl<N: Net> Transport for TcpTransport<N> {
    fn local_addr(&self) -> SocketAddr {
        self.net.local_addr()
    }

    fn identify(&mut self, identity: Identity) {
        self.shared.identity = identity;
    }

    fn connect(&mut self, addr: SocketAddr, hello: Hello) -> io::Result<ConnId> {
        let limit = || io::Error::new(io::ErrorKind::QuotaExceeded, "too many connections");
        let (place, id) = self.table.reserve().ok_or_else(limit)?;
        let stream = self.net.connect(addr)?;
        let mut link = self.link(id, addr, Stage::AwaitWelcome);
        let hello = match self.shared.versions {
            Versions::SPOKEN => hello,
            other => hello.claiming(other),
        };
        let queued = link.tx.push_urgent(&hello, &[], None);
        debug_assert!(queued, "a fresh queue has room");
        self.adopt(place, Conn::new(stream, link, false))?;
        Ok(id)
    }

    fn close(&mut self, conn: ConnId, code: RefuseCode, detail: &str) {
        if let Some(place) = self.table.place_of(conn) {
            self.tear_down(place, CloseReason::Local, Some((code, detail)));
        }
    }

    fn send<B: Body>(&mut self, conn: ConnId, body: &B, tail: &[u8]) -> Result<(), SendError> {
        if size_of::<B>() + tail.len() > BODY_MAX {
            return Err(SendError::TooLong);
        }
        self.queue(conn, body, tail, &[])
    }

    fn post_reads(&mut self, reads: &mut Vec<Read>) {
        for read in reads.drain(..) {
            match self.table.place_of(read.conn) {
                Some(place) => self.waiting.push(place, read),
                None => self.shared.finish(read, ReadStatus::PeerLost),
            }
        }
    }

    fn abort_read(&mut self, conn: ConnId, tag: u64) {
        let Some(place) = self.table.place_of(conn) else { return };
        if let Some(read) = self.waiting.remove(place, |read| read.tag == tag) {
            self.shared.finish(read, ReadStatus::Aborted);
        } else if let Some(conn) = self.table.at(place) {
            conn.link.abort(tag, &mut self.shared);
        }
    }

    fn reply(&mut self, conn: ConnId, result: &TaskResult, output: &[u8]) -> Result<(), SendError> {
        if output.len() > PAYLOAD_MAX {
            return Err(SendError::TooLong);
        }
        self.queue(conn, result, &[], output)
    }

    fn expose(&mut self, slabs: Arc<SlabSet>) -> io::Result<()> {
        self.shared.expose(&slabs)
    }

    fn withdraw(&mut self, slabs: &Arc<SlabSet>) {
        self.shared.withdraw(slabs);
    }

    fn land_in(&mut self, buffer: &Arc<BatchBuffer>) -> io::Result<()> {
        self.shared.counters.add_memory(buffer.memory_bytes());
        Ok(())
    }

    fn release(&mut self, buffer: &Arc<BatchBuffer>) {
        self.shared.counters.remove_memory(buffer.memory_bytes());
    }

    fn poll(&mut self, now: Nanos, events: &mut Events) -> usize {
        let before = events.len();
        self.now = now;
        self.awake.pass(now);
        self.collect();
        self.accept();
        self.receive(events);
        self.expire_handshakes();
        self.flush();
        self.tell_left_out();
        events.take_from(&mut self.shared.backlog);
        events.len() - before
    }

    fn flush(&mut self) {
        self.ask();
        for _ in 0..self.ready_list.dirty_len() {
            let Some(place) = self.ready_list.next_dirty() else { return };
            let Some(conn) = self.table.at(place) else { continue };
            conn.in_dirty = false;
            conn.send();
            self.ready_list.note(place, conn);
        }
    }

    fn wait(&mut self, timeout: Option<Nanos>) {
        if let Some(bound) = self.prepare_wait(timeout) {
            self.net.wait(bound);
        }
    }

    fn pollable(&self) -> Option<BorrowedFd<'_>> {
        self.net.pollable()
    }

    fn prepare_wait(&mut self, timeout: Option<Nanos>) -> Option<Option<Nanos>> {
        if !self.ready_list.is_empty() || !self.shared.backlog.is_empty() || self.acceptable {
            return None;
        }
        // A pending handshake must not be waited for without a bound, nor time pass uncounted.
        let bound = (self.opening > 0).then_some(self.cfg.handshake_timeout.min(PARK_MAX));
        let bounds = [timeout, bound, self.log.patience()];
        Some(bounds.into_iter().flatten().min())
    }

    fn waker(&self) -> Waker {
        self.net.waker()
    }

    fn has_unsent(&self) -> bool {
        self.table.iter().any(Conn::has_unsent)
    }

    fn has_unread(&self, conn: ConnId) -> bool {
        self.table.named(conn).is_some_and(|conn| conn.in_ready)
    }

    fn owes(&self, conn: ConnId) -> bool {
        self.table.named(conn).is_some_and(|conn| conn.link.owes())
    }

    fn counters(&self) -> TransportCounters {
        let credit_held = self.shared.credit.in_flight();
        TransportCounters { credit_held, ..self.shared.counters }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Event;
    use crate::protocol::wire::{Ping, Role};

    /// One that is connected to the other.
    fn pair() -> (TcpTransport, ConnId, TcpTransport) {
        let identity = Identity { role: Role::Backend, member: 0 };
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let [mut one, other] = [Some(any); 2]
            .map(|listen| TcpTransport::bind(listen, identity, TcpConfig::default()).unwrap());
        let conn = one.connect(other.local_addr(), Hello::new(Role::Backend, 0, 0)).unwrap();
        (one, conn, other)
    }

    #[test]
    fn a_connection_that_is_ended_is_closed_for_that_reason() {
        let (mut one, conn, _other) = pair();
        one.end(conn, CloseReason::SendQueueFull);
        assert_eq!(one.send(conn, &Ping { sent_ns: 1.into() }, &[]), Err(SendError::Closed));
        let mut events = Events::new();
        one.poll(Nanos::from_millis(1), &mut events);
        let closed = events.drain().filter_map(|event| match event {
            Event::Closed { conn, reason } => Some((conn, reason)),
            _ => None,
        });
        assert_eq!(closed.collect::<Vec<_>>(), [(conn, CloseReason::SendQueueFull)]);
    }

    #[test]
    fn messages_of_its_own_are_not_counted() {
        let (mut one, conn, _other) = pair();
        let ping = Ping { sent_ns: 1.into() };
        one.send_own(conn, &ping, &[]).unwrap();
        assert_eq!(one.counters().messages_out, 0);
        one.send(conn, &ping, &[]).unwrap();
        one.send_own(conn, &ping, &[]).unwrap();
        assert_eq!(one.counters().messages_out, 1);
    }
}

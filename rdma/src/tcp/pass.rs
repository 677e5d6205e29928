//! The parts of a pass over all connections: accept, receive in turn, give up on late handshakes,
//! ask for inputs; and the one place where a connection ends.

use std::io;
use std::net::SocketAddr;

use baton_topo::is_gone;

use super::conn::Conn;
use super::link::Link;
use super::net::{Net, NetStream as _};
use super::tx::TxQueue;
use super::{ACCEPTS, EVENT_BYTES_PER_POLL, EVENTS_PER_POLL, HANDSHAKES, TcpTransport};
use crate::events::{CloseReason, Events};
use crate::protocol::frame;
use crate::protocol::handshake::{self, Stage};
use crate::protocol::wire::{Body, Refuse, RefuseCode};
use crate::shared::credit_of;
use crate::transport::{ConnId, ReadStatus, SendError};

impl<N: Net> TcpTransport<N> {
    /// Takes new connections in, up to a bound per pass.
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            if !self.acceptable {
                return;
            }
            match self.net.accept() {
                Ok((stream, addr)) => self.admit(stream, addr),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.acceptable = false,
                Err(error) => {
                    // Most likely out of file descriptors: tried again when a connection closes.
                    if self.log.allows(self.now) {
                        tracing::warn!(%error, "could not accept a connection");
                    }
                    self.acceptable = false;
                }
            }
        }
    }

    /// Looks once at each connection that has something, in turn. Handshakes are work, and any peer
    /// that connects can ask for them: beyond a few, they wait for the next pass.
    pub(super) fn receive(&mut self, events: &mut Events) {
        let mut handshakes = 0;
        for _ in 0..self.ready_list.ready_len() {
            if events.len() >= EVENTS_PER_POLL || events.bytes() >= EVENT_BYTES_PER_POLL {
                return;
            }
            let Some(place) = self.ready_list.next_ready() else { return };
            let Some(conn) = self.table.at(place) else { continue };
            conn.in_ready = false;
            handshakes += usize::from(conn.is_shaking_hands());
            if handshakes > HANDSHAKES && conn.is_shaking_hands() {
                self.ready_list.note(place, conn);
                continue;
            }
            let was_open = conn.link.is_open();
            let received = conn.receive(&mut self.shared, events);
            self.opening -= usize::from(!was_open && conn.link.is_open());
            match received {
                Ok(()) => self.ready_list.note(place, conn),
                Err(reason) => self.tear_down(place, reason, None),
            }
        }
    }

    /// Closes connections whose handshake takes too long, once what has arrived of it is read.
    pub(super) fn expire_handshakes(&mut self) {
        if self.opening == 0 {
            return;
        }
        let (awake, timeout) = (self.awake.total(), self.cfg.handshake_timeout);
        let mut late = Vec::new();
        for (place, conn) in self.table.iter_mut().filter(|(_, conn)| !conn.link.is_open()) {
            let since = *conn.opening_since.get_or_insert(awake);
            if is_gone(awake - since, timeout, conn.in_ready) {
                late.push(place);
            }
        }
        for place in late {
            self.tear_down(place, CloseReason::HandshakeTimeout, None);
        }
    }

    /// Asks for waiting inputs, source by source, as far as the window reaches.
    pub(super) fn ask(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let Self { waiting, table, shared, ready_list, .. } = self;
        let mut exhausted = false;
        loop {
            let next = waiting.pop(|place, read| {
                let credit = credit_of(read.row.len());
                let may = |link: &Link| {
                    link.can_pull() && shared.credit.grants(link.pulls.held(), credit)
                };
                let ready = !exhausted && table.at(place).is_some_and(|conn| may(&conn.link));
                // A READ without credit keeps its turn: small inputs must not starve a large one.
                exhausted |= ready && !shared.credit.try_take(credit);
                ready && !exhausted
            });
            let Some((place, read)) = next else { return };
            let conn = table.at(place).expect("it was there a moment ago");
            conn.link.pull(read);
            ready_list.note(place, conn);
        }
    }

    /// Queues a message or an answer.
    pub(super) fn queue<B: Body>(
        &mut self,
        conn: ConnId,
        body: &B,
        tail: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError> {
        let place = self.table.place_of(conn).ok_or(SendError::Closed)?;
        let conn = self.table.at(place).ok_or(SendError::Closed)?;
        if !conn.link.tx.push(body, tail, payload) {
            self.shared.counters.send_full += 1;
            return Err(SendError::Full);
        }
        self.shared.counters.messages_out += 1;
        self.ready_list.note(place, conn);
        Ok(())
    }

    /// The conversation of a new connection.
    pub(super) fn link(&self, id: ConnId, addr: SocketAddr, stage: Stage) -> Link {
        Link::new(id, addr, stage, TxQueue::new(self.cfg.send_queue_bytes))
    }

    /// Takes a connection into the place reserved last.
    pub(super) fn adopt(&mut self, place: usize, mut conn: Conn<N::Stream>) -> io::Result<()> {
        self.net.register(&mut conn.stream, place)?;
        self.ready_list.note(place, &mut conn);
        self.table.insert(conn.link.id, conn);
        self.opening += 1;
        self.shared.counters.opened += 1;
        Ok(())
    }

    /// Ends a connection: tells the peer why, completes its READs, and tells the owner last.
    pub(super) fn tear_down(
        &mut self,
        place: usize,
        reason: CloseReason,
        told: Option<(RefuseCode, &str)>,
    ) {
        let Some((id, mut conn)) = self.table.remove(place) else { return };
        let refusal = handshake::refusal(&reason);
        let refusal =
            told.or_else(|| refusal.as_ref().map(|(code, detail)| (*code, detail.as_str())));
        if let Some((code, detail)) = refusal {
            conn.refuse(code, detail);
        }
        conn.link.lose_all(&mut self.shared);
        while let Some(read) = self.waiting.remove(place, |_| true) {
            self.shared.finish(read, ReadStatus::PeerLost);
        }
        let broke_rules = told.is_none() && refusal.is_some();
        self.log_end(conn.link.addr, &reason, broke_rules);
        if let Some(host) = conn.host {
            self.hosts.leave(host);
        }
        handshake::count(&mut self.shared.counters, &reason);
        self.opening -= usize::from(!conn.link.is_open());
        if conn.link.is_known() {
            self.shared.backlog.closed(id, reason);
        }
        // A descriptor is free: one that could not be accepted may be now.
        self.acceptable |= self.net.listens();
    }

    fn log_end(&mut self, addr: SocketAddr, reason: &CloseReason, broke_rules: bool) {
        let insecure = matches!(reason, CloseReason::Tls(_) | CloseReason::NotAllowed(_));
        if !(insecure || broke_rules) {
            return tracing::debug!(peer = %addr, %reason, "connection closed");
        }
        if !self.log.allows(self.now) {
            return;
        }
        if insecure {
            tracing::warn!(peer = %addr, %reason, "no secure connection");
        } else {
            tracing::info!(peer = %addr, %reason, "closed a connection that broke the rules");
        }
    }

    /// What the log does not show.
    pub(super) fn tell_left_out(&mut self) {
        if let Some(count) = self.log.left_out(self.now) {
            tracing::warn!("... and {count} more connections in the last second");
        }
    }

    fn admit(&mut self, mut stream: N::Stream, addr: SocketAddr) {
        let Some((place, id)) = self.table.reserve() else {
            let open = self.table.len();
            let detail = format!("{open} connections are open, which is the limit");
            return self.turn_away(&mut stream, addr, &detail);
        };
        let host = addr.ip().to_canonical();
        if !self.hosts.admit(host) {
            let most = self.cfg.host_connections_max;
            let detail = format!("{most} connections from {host} are open, the limit for one host");
            return self.turn_away(&mut stream, addr, &detail);
        }
        let link = self.link(id, addr, Stage::AwaitHello);
        let is_up = stream.is_up();
        let mut conn = Conn::new(stream, link, is_up);
        conn.host = Some(host);
        if let Err(error) = self.adopt(place, conn) {
            self.hosts.leave(host);
            if self.log.allows(self.now) {
                tracing::warn!(peer = %addr, %error, "could not take in a connection");
            }
        }
    }

    /// A bound is met: says so and hangs up.
    fn turn_away(&mut self, stream: &mut N::Stream, addr: SocketAddr, detail: &str) {
        let mut bytes = Vec::new();
        let refuse = Refuse { code: (RefuseCode::Limit as u16).into() };
        frame::encode(&mut bytes, &refuse, detail.as_bytes(), 0);
        let told = stream.send(&[io::IoSlice::new(&bytes)]);
        self.shared.counters.refused += 1;
        if self.log.allows(self.now) {
            tracing::warn!(peer = %addr, told = told.is_ok(), "{detail}; a connection was turned away");
        }
    }
}

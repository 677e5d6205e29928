//! Messages over control queue pairs: queued, taken in, and what is left when one ends.

use baton_core::Nanos;

use super::super::control::{Arrival, HEADER_LEN, Header, Signal};
use super::super::engine::{LinkFailure, Outcome};
use super::super::hub::Hub;
use super::Fabric;
use super::control::Talks;
use crate::events::{CloseReason, Events};
use crate::protocol::frame;
use crate::protocol::wire::{BODY_MAX, Body, PAYLOAD_MAX};
use crate::tcp::TcpTransport;
use crate::transport::{ConnId, SendError};

impl Fabric {
    /// Queues a message for the queue pair; `None` if the connection's messages go over TCP.
    pub(in super::super) fn say<B: Body>(
        &mut self,
        conn: ConnId,
        (body, tail, payload): (&B, &[u8], &[u8]),
        tcp: &mut TcpTransport,
    ) -> Option<Result<(), SendError>> {
        let (place, _) = self.talks.of(conn).filter(|(_, talk)| talk.is_sending)?;
        let body_len = size_of::<B>() + tail.len();
        if body_len > BODY_MAX || payload.len() > PAYLOAD_MAX {
            return Some(Err(SendError::TooLong));
        }
        if !self.talks.engine.is_up(place) {
            return Some(Err(SendError::Closed));
        }
        let len = frame::HEADER_LEN + body_len + payload.len();
        let queued = self.talks.engine.push(place, len, |bytes| {
            frame::encode(bytes, body, tail, payload.len());
            bytes.extend_from_slice(payload);
        });
        tcp.count_sent(queued);
        Some(if queued { Ok(()) } else { Err(SendError::Full) })
    }

    /// This side closes the connection: what is queued is posted as far as the peer has buffers, and
    /// nothing more is taken or delivered.
    pub(in super::super) fn hang_up(&mut self, conn: ConnId) {
        let now = self.clock.now();
        if let Some((_, talk)) = self.talks.of(conn) {
            (talk.is_sending, talk.inlet) = (false, None);
            self.talks.engine.pump(now, &mut self.hub);
        }
    }

    /// True if a message has not arrived yet.
    pub(in super::super) fn has_unsent(&self) -> bool {
        !self.talks.engine.is_delivered()
    }

    /// The connection is gone: its queue pair goes too. False if it has none.
    pub(super) fn close_control(&mut self, conn: ConnId, reason: &CloseReason) -> bool {
        let Some((place, _)) = self.talks.of(conn) else { return false };
        // What this side said before it closed may still arrive; a peer that closed takes nothing.
        self.talks.engine.close(place, *reason == CloseReason::Local, &mut self.hub);
        true
    }

    /// Takes in what completed: SENDs, and receives with what they brought.
    pub(super) fn take_signals(&mut self, tcp: &mut TcpTransport, events: &mut Events) {
        let Self { talks, hub, .. } = self;
        let mut signals = std::mem::take(&mut talks.signals);
        for signal in signals.drain(..) {
            match signal.buffer() {
                None => talks.engine.complete(&signal, hub),
                Some(_) => on_receive(talks, signal, hub, tcp, events),
            }
        }
        talks.signals = signals;
        if talks.taken.is_empty() {
            return;
        }
        let posted = hub.post_receives(&talks.taken);
        talks.taken.clear();
        for place in talks.delivered.drain(..) {
            match &posted {
                Ok(()) => talks.engine.reposted(place),
                Err(_) => talks.engine.give_up(place, LinkFailure::Post, hub),
            }
        }
        if let Err(error) = posted {
            tracing::error!(%error, "receive buffers were not taken");
        }
    }

    /// Peers that do not start, and SENDs that do not complete, in time.
    pub(super) fn expire_controls(&mut self, now: Nanos, tcp: &mut TcpTransport) {
        let Self { talks, hub, .. } = self;
        talks.engine.expire(now, hub);
        hub.bury_controls(now);
        for talk in talks.list.iter_mut().flatten().filter(|talk| talk.start_by < now) {
            talk.start_by = Nanos::MAX;
            let why = "the peer did not connect its queue pair for messages";
            tcp.end(talk.conn, CloseReason::Fabric(why.to_owned()));
        }
    }

    /// Ends what is drained; returns the connections whose owner is to be told now.
    pub(super) fn end_controls(
        &mut self,
        now: Nanos,
        tcp: &mut TcpTransport,
        gone: &mut Vec<(ConnId, CloseReason)>,
    ) {
        while let Some(ended) = self.talks.engine.ended.pop() {
            self.hub.drop_control(ended.place, Some(now));
            let Some(mut talk) = self.talks.leave(ended.place) else { continue };
            self.talks.taken.append(&mut talk.held);
            let is_closing = self.closing.iter().any(|closing| closing.conn == talk.conn);
            if !is_closing && ended.why != LinkFailure::Closed {
                let problem = self.problem(ended.why);
                tracing::warn!(conn = talk.conn.0, problem, "a queue pair for messages failed");
                if let Some(addr) = self.addr_of(talk.conn) {
                    self.breaker.strike(addr, now);
                }
                tcp.end(talk.conn, CloseReason::Fabric(problem));
            }
            gone.extend(self.part_closed(talk.conn));
        }
    }
}

/// A receive has completed, with a message or without.
fn on_receive(
    talks: &mut Talks,
    signal: Signal,
    hub: &mut Hub,
    tcp: &mut TcpTransport,
    events: &mut Events,
) {
    let place = talks.pairs.get(&signal.pair).copied();
    let Some(place) = place.filter(|_| signal.outcome == Outcome::Done) else {
        // Given up by a queue pair that failed, or of one that is gone: only the buffer counts.
        return talks.taken.push(signal);
    };
    let Some(talk) = talks.list[place].as_mut() else { return talks.taken.push(signal) };
    if !talk.is_receiving {
        return talk.held.push(signal);
    }
    let header = Header::read(hub.received(&signal));
    let arrival = talks.engine.arrived(place, header, hub);
    talks.taken.push(signal);
    if arrival != Arrival::Stream {
        return;
    }
    talks.delivered.push(place);
    let Some(inlet) = talk.inlet.as_mut() else { return };
    let stream = &hub.received(&signal)[HEADER_LEN..];
    if let Err(reason) = inlet.take_in(stream, tcp, events) {
        talk.inlet = None;
        tcp.end(talk.conn, reason);
    }
}

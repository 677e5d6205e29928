//! Messages over control queue pairs: queued, taken in, and what is left when one ends.

use baton_types::Nanos;

use super::super::control::{Arrival, HEADER_LEN, Header, Signal};
use super::super::engine::{LinkFailure, Outcome};
use super::super::verbs_device::VerbsDevice;
use super::Fabric;
use super::control::ControlSessions;
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
        let (place, _) = self.sessions.of(conn).filter(|(_, session)| session.is_sending)?;
        let body_len = size_of::<B>() + tail.len();
        if body_len > BODY_MAX || payload.len() > PAYLOAD_MAX {
            return Some(Err(SendError::TooLong));
        }
        if !self.sessions.engine.is_up(place) {
            return Some(Err(SendError::Closed));
        }
        let len = frame::HEADER_LEN + body_len + payload.len();
        let queued = self.sessions.engine.push(place, len, |bytes| {
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
        if let Some((_, session)) = self.sessions.of(conn) {
            (session.is_sending, session.frame_reader) = (false, None);
            self.sessions.engine.pump(now, &mut self.device);
        }
    }

    /// True if a message has not arrived yet.
    pub(in super::super) fn has_unsent(&self) -> bool {
        !self.sessions.engine.is_delivered()
    }

    /// The connection is gone: its queue pair goes too. False if it has none.
    pub(super) fn close_control(&mut self, conn: ConnId, reason: &CloseReason) -> bool {
        let Some((place, _)) = self.sessions.of(conn) else { return false };
        // What this side said before it closed may still arrive; a peer that closed takes nothing.
        self.sessions.engine.close(place, *reason == CloseReason::Local, &mut self.device);
        true
    }

    /// Takes in what completed: SENDs, and receives with what they brought.
    pub(super) fn take_signals(&mut self, tcp: &mut TcpTransport, events: &mut Events) {
        let Self { sessions, device, .. } = self;
        let mut signals = std::mem::take(&mut sessions.signals);
        for signal in signals.drain(..) {
            match signal.buffer() {
                None => sessions.engine.complete(&signal, device),
                Some(_) => on_receive(sessions, signal, device, tcp, events),
            }
        }
        sessions.signals = signals;
        if sessions.taken.is_empty() {
            return;
        }
        let posted = device.post_receives(&sessions.taken);
        sessions.taken.clear();
        for place in sessions.delivered.drain(..) {
            match &posted {
                Ok(()) => sessions.engine.reposted(place),
                Err(_) => sessions.engine.give_up(place, LinkFailure::Post, device),
            }
        }
        if let Err(error) = posted {
            tracing::error!(%error, "receive buffers were not taken");
        }
    }

    /// Peers that do not start, and SENDs that do not complete, in time.
    pub(super) fn expire_controls(&mut self, now: Nanos, tcp: &mut TcpTransport) {
        let Self { sessions, device, .. } = self;
        sessions.engine.expire(now, device);
        device.bury_controls(now);
        for session in sessions.list.iter_mut().flatten().filter(|session| session.start_by < now) {
            session.start_by = Nanos::MAX;
            let why = "the peer did not connect its queue pair for messages";
            tcp.end(session.conn, CloseReason::Fabric(why.to_owned()));
        }
    }

    /// Ends what is drained. `gone` receives the connections whose end their owner learns now.
    pub(super) fn end_controls(
        &mut self,
        now: Nanos,
        tcp: &mut TcpTransport,
        gone: &mut Vec<(ConnId, CloseReason)>,
    ) {
        while let Some(ended) = self.sessions.engine.ended.pop() {
            self.device.drop_control(ended.place, Some(now));
            let Some(mut session) = self.sessions.leave(ended.place) else { continue };
            self.sessions.taken.append(&mut session.held);
            let is_closing = self.closing.iter().any(|closing| closing.conn == session.conn);
            if !is_closing && ended.why != LinkFailure::Closed {
                let problem = self.problem(ended.why);
                tracing::warn!(conn = session.conn.0, problem, "a queue pair for messages failed");
                if let Some(addr) = self.addr_of(session.conn) {
                    self.breaker.strike(addr, now);
                }
                tcp.end(session.conn, CloseReason::Fabric(problem));
            }
            gone.extend(self.part_closed(session.conn));
        }
    }
}

/// A receive has completed, with a message or without.
fn on_receive(
    sessions: &mut ControlSessions,
    signal: Signal,
    device: &mut VerbsDevice,
    tcp: &mut TcpTransport,
    events: &mut Events,
) {
    let place = sessions.pairs.get(&signal.pair).copied();
    let Some(place) = place.filter(|_| signal.outcome == Outcome::Done) else {
        // Given up by a queue pair that failed, or of one that is gone: only the buffer counts.
        return sessions.taken.push(signal);
    };
    let Some(session) = sessions.list[place].as_mut() else { return sessions.taken.push(signal) };
    if !session.is_receiving {
        return session.held.push(signal);
    }
    let header = Header::read(device.received(&signal));
    let arrival = sessions.engine.arrived(place, header, device);
    sessions.taken.push(signal);
    if arrival != Arrival::Stream {
        return;
    }
    sessions.delivered.push(place);
    let Some(frame_reader) = session.frame_reader.as_mut() else { return };
    let stream = &device.received(&signal)[HEADER_LEN..];
    if let Err(reason) = frame_reader.take_in(stream, tcp, events) {
        session.frame_reader = None;
        tcp.end(session.conn, reason);
    }
}

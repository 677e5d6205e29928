//! The conversation about control queue pairs, over which messages travel.
//!
//! ```text
//! the connecting side                    the other
//!   ControlOffer{pair, window, …}  ───▶     once READs over the fabric are possible
//!   ◀───  ControlAnswer{pair, window, …}
//!   ControlStart  ───▶                      the last message over TCP
//!   ◀───  ControlStart                      the last message over TCP
//!   messages over the queue pair, both ways
//! ```
//! What arrives over the queue pair waits for the peer's start, which TCP brings behind everything
//! said before: nothing overtakes. From then on one way carries all of a side's messages. A queue pair
//! that fails ends the connection: what it took may have been lost.

use std::collections::HashMap;

use baton_types::Nanos;

use super::super::control::{Control, HEADER_LEN, Header, SessionParams, Signal};
use super::super::engine::Outcome;
use super::super::pair::{PairAddr, Side};
use super::super::verbs_device::{BUFFER_BYTES, SLOTS, VerbsDevice, WINDOW};
use super::initiator::ANSWER_TIMEOUT;
use super::{Fabric, find, micros};
use crate::events::CloseReason;
use crate::protocol::wire::{ControlAnswer, ControlOffer, ControlStart, Kind};
use crate::tcp::{FrameReader, TcpTransport};
use crate::transport::ConnId;

/// A connection that has, or will have, a control queue pair.
pub(super) struct ControlSession {
    pub(super) conn: ConnId,
    /// `None` once nothing more is to be delivered.
    pub(super) frame_reader: Option<FrameReader>,
    /// Its queue pair was offered and no answer has come: the packet size offered.
    offered: Option<u8>,
    /// By when the peer must have started.
    pub(super) start_by: Nanos,
    /// Our messages travel over the queue pair.
    pub(super) is_sending: bool,
    /// The peer's do.
    pub(super) is_receiving: bool,
    /// Receives that came before the peer's start; their buffers are not posted.
    pub(super) held: Vec<Signal>,
}

/// All control queue pairs of a fabric.
#[derive(Default)]
pub(super) struct ControlSessions {
    pub(super) engine: Control,
    /// By place.
    pub(super) list: Vec<Option<ControlSession>>,
    /// Ascending.
    places: Vec<(ConnId, usize)>,
    /// By queue pair's number.
    pub(super) pairs: HashMap<u32, usize>,
    /// Completions not looked at.
    pub(super) signals: Vec<Signal>,
    /// Receives whose buffers can be posted again, and of which links.
    pub(super) taken: Vec<Signal>,
    pub(super) delivered: Vec<usize>,
    /// Queue pairs connected so far.
    pub(super) linked: u64,
}

impl ControlSessions {
    /// True if there is no control queue pair: nothing completes.
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// True if nothing waits to be looked at, sent or ended.
    pub(super) fn is_quiet(&self) -> bool {
        self.signals.is_empty() && self.engine.is_quiet()
    }

    /// When something is overdue.
    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        let starts = self.list.iter().flatten().map(|session| session.start_by);
        starts.chain(self.engine.next_deadline()).min()
    }

    pub(super) fn of(&mut self, conn: ConnId) -> Option<(usize, &mut ControlSession)> {
        let place = find(&self.places, conn)?;
        Some((place, self.list[place].as_mut()?))
    }

    fn enter(&mut self, conn: ConnId, start_by: Nanos) -> usize {
        let place = self.list.iter().position(Option::is_none).unwrap_or_else(|| {
            self.list.push(None);
            self.list.len() - 1
        });
        self.list[place] = Some(ControlSession {
            conn,
            frame_reader: Some(FrameReader::new(conn)),
            offered: None,
            start_by,
            is_sending: false,
            is_receiving: false,
            held: Vec::new(),
        });
        let at = self.places.partition_point(|(of, _)| *of < conn);
        self.places.insert(at, (conn, place));
        self.engine.open(place);
        place
    }

    pub(super) fn leave(&mut self, place: usize) -> Option<ControlSession> {
        self.places.retain(|(_, of)| *of != place);
        self.pairs.retain(|_, of| *of != place);
        self.list[place].take()
    }

    /// Closes all, and waits no longer for any.
    pub(super) fn close_all(&mut self, device: &mut VerbsDevice) {
        for place in 0..self.list.len() {
            self.engine.close(place, false, device);
        }
    }

    /// At the end: takes in completions, and drops messages.
    pub(super) fn absorb(&mut self, device: &mut VerbsDevice) {
        for signal in std::mem::take(&mut self.signals) {
            if signal.buffer().is_none() {
                self.engine.complete(&signal, device);
            } else if let Some(place) = self.pairs.get(&signal.pair)
                && signal.outcome == Outcome::Done
            {
                let header = Header::read(device.received(&signal));
                let _ = self.engine.arrived(*place, header, device);
            }
        }
    }
}

impl Fabric {
    /// Offers a queue pair for messages.
    pub(super) fn offer_control(&mut self, conn: ConnId, tcp: &mut TcpTransport) {
        if self.sessions.of(conn).is_some() {
            return;
        }
        let place = self.sessions.enter(conn, self.clock.now() + ANSWER_TIMEOUT);
        let addr = match self.device.make_control(place) {
            Ok(addr) => addr,
            Err(error) => return self.without_control(place, &error.to_string(), tcp),
        };
        let mtu = self.device.params(Side::Control).mtu;
        if let Some(session) = self.sessions.list[place].as_mut() {
            session.offered = Some(mtu);
        }
        let message = ControlOffer {
            pair: addr.number.into(),
            first_psn: addr.first_psn.into(),
            lid: addr.lid.into(),
            window: WINDOW.into(),
            gid: addr.gid,
            buffer_bytes: BUFFER_BYTES.into(),
            timeout_us: micros(self.device.cfg.read_timeout).into(),
            mtu,
            reserved: [0; 3],
        };
        // If it cannot be queued there will be no answer, and that is noticed.
        let _ = tcp.send_own(conn, &message, self.device.device_name().as_bytes());
    }

    pub(super) fn on_control_offer(
        &mut self,
        conn: ConnId,
        offer: &ControlOffer,
        tcp: &mut TcpTransport,
    ) {
        let unexpected = CloseReason::Unexpected(Kind::ControlOffer);
        let makes_sense = (1..=5).contains(&offer.mtu) && offer.timeout_us.get() > 0;
        if !self.targets.trusts(conn) || self.sessions.of(conn).is_some() || !makes_sense {
            return tcp.end(conn, unexpected);
        }
        let place = self.sessions.enter(conn, self.clock.now() + ANSWER_TIMEOUT);
        let (gid, lid) = (offer.gid, offer.lid.get());
        let (number, first_psn) = (offer.pair.get(), offer.first_psn.get());
        let peer = PairAddr { number, first_psn, gid, lid };
        let mtu = offer.mtu.min(self.device.params(Side::Control).mtu);
        let timeout_us = offer.timeout_us.get().min(micros(self.device.cfg.read_timeout));
        let made = self.device.make_control(place);
        let made =
            made.and_then(|addr| Ok((addr, self.device.connect_control(place, &peer, mtu)?)));
        let addr = match made {
            Ok((addr, ())) => addr,
            Err(error) => {
                let reason = error.to_string();
                answer_control(conn, &PairAddr::NONE, 0, 0, &reason, tcp);
                return self.without_control(place, &reason, tcp);
            }
        };
        if !self.control_up(place, offer.window.get(), offer.buffer_bytes.get(), timeout_us, tcp) {
            return tcp.end(conn, unexpected);
        }
        answer_control(conn, &addr, mtu, timeout_us, self.device.device_name(), tcp);
    }

    pub(super) fn on_control_answer(
        &mut self,
        conn: ConnId,
        answer: &ControlAnswer,
        text: &str,
        tcp: &mut TcpTransport,
    ) {
        let unexpected = CloseReason::Unexpected(Kind::ControlAnswer);
        let session = self.sessions.of(conn);
        let offered = session.and_then(|(place, session)| Some((place, session.offered.take()?)));
        let Some((place, offered)) = offered else { return tcp.end(conn, unexpected) };
        if answer.pair.get() == 0 {
            let reason = format!("the peer has no queue pair for messages: {text}");
            return self.without_control(place, &reason, tcp);
        }
        let timeout_us = answer.timeout_us.get();
        let fits = (1..=offered).contains(&answer.mtu)
            && (1..=micros(self.device.cfg.read_timeout)).contains(&timeout_us);
        if !fits {
            return tcp.end(conn, unexpected);
        }
        let (number, first_psn) = (answer.pair.get(), answer.first_psn.get());
        let peer = PairAddr { number, first_psn, gid: answer.gid, lid: answer.lid.get() };
        if let Err(error) = self.device.connect_control(place, &peer, answer.mtu) {
            // The peer has connected its own already, and will wait for nothing.
            return tcp.end(conn, CloseReason::Fabric(error.to_string()));
        }
        let (window, buffer_bytes) = (answer.window.get(), answer.buffer_bytes.get());
        if !self.control_up(place, window, buffer_bytes, timeout_us, tcp) {
            return tcp.end(conn, unexpected);
        }
        self.start(place, tcp);
    }

    /// The peer's messages come over the queue pair from here on, and behind everything TCP brought.
    pub(super) fn on_control_start(&mut self, conn: ConnId, tcp: &mut TcpTransport) {
        let session = self.sessions.of(conn).filter(|(_, session)| !session.is_receiving);
        let Some((place, session)) = session.filter(|(_, session)| session.offered.is_none())
        else {
            return tcp.end(conn, CloseReason::Unexpected(Kind::ControlStart));
        };
        (session.is_receiving, session.start_by) = (true, Nanos::MAX);
        let is_sending = session.is_sending;
        let held = std::mem::take(&mut session.held);
        // Looked at again, in the order they came, before what has come since.
        self.sessions.signals.splice(0..0, held);
        if !is_sending {
            self.start(place, tcp);
        }
    }

    fn control_up(
        &mut self,
        place: usize,
        credits: u16,
        buffer_bytes: u32,
        timeout_us: u32,
        tcp: &TcpTransport,
    ) -> bool {
        if credits == 0 || buffer_bytes <= HEADER_LEN as u32 {
            return false;
        }
        let params = SessionParams {
            credits,
            window: WINDOW,
            send_bytes: BUFFER_BYTES.min(buffer_bytes),
            slots: SLOTS,
            timeout: Nanos(u64::from(timeout_us) * 1_000),
            queue_bytes: tcp.cfg.send_queue_bytes,
        };
        self.sessions.engine.up(place, params);
        self.sessions.pairs.extend(self.device.control_number(place).map(|number| (number, place)));
        self.sessions.linked += 1;
        true
    }

    /// From now on our messages go over the queue pair; `ControlStart` is the last one over TCP.
    fn start(&mut self, place: usize, tcp: &mut TcpTransport) {
        let Some(session) = self.sessions.list[place].as_mut() else { return };
        match tcp.send_own(session.conn, &ControlStart {}, &[]) {
            Ok(()) => {
                session.is_sending = true;
                tracing::info!(conn = session.conn.0, "messages: rdma with this peer");
            }
            Err(_) => tcp.end(session.conn, CloseReason::SendQueueFull),
        }
    }

    /// There will be no messages over RDMA with this peer: an error where RDMA was insisted on.
    fn without_control(&mut self, place: usize, why: &str, tcp: &mut TcpTransport) {
        self.sessions.engine.withdraw(place);
        self.device.drop_control(place, None);
        let Some(session) = self.sessions.leave(place) else { return };
        if self.is_strict {
            tracing::error!(
                conn = session.conn.0,
                reason = why,
                "transport = \"rdma\" cannot be kept"
            );
            return tcp.end(session.conn, CloseReason::Fabric(why.to_owned()));
        }
        tracing::warn!(conn = session.conn.0, reason = why, "messages: tcp with this peer");
    }
}

fn answer_control(
    conn: ConnId,
    addr: &PairAddr,
    mtu: u8,
    timeout_us: u32,
    text: &str,
    tcp: &mut TcpTransport,
) {
    let message = ControlAnswer {
        pair: addr.number.into(),
        first_psn: addr.first_psn.into(),
        lid: addr.lid.into(),
        window: WINDOW.into(),
        gid: addr.gid,
        buffer_bytes: BUFFER_BYTES.into(),
        timeout_us: timeout_us.into(),
        mtu,
        reserved: [0; 3],
    };
    let end = text.floor_char_boundary(512);
    // A peer that does not read is dealt with by its own timeout.
    let _ = tcp.send_own(conn, &message, &text.as_bytes()[..end]);
}

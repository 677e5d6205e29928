//! One connection's control link: what waits, what is posted, and the credits of both directions.

use std::collections::VecDeque;

use baton_types::Nanos;

use super::outbox::Outbox;
use super::{ControlCounters, ControlPort, HEADER_LEN, Header, ONLY_CREDITS, SendRequest, send_id};
use crate::verbs::engine::LinkFailure;

/// What the two sides agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SessionParams {
    /// SENDs the peer has buffers for, without those spare.
    pub(crate) credits: u16,
    /// SENDs this side has buffers for, without those spare.
    pub(crate) window: u16,
    /// Bytes of a SEND, header included.
    pub(crate) send_bytes: u32,
    /// Send slots of this side.
    pub(crate) slots: u32,
    /// How long a SEND may take.
    pub(crate) timeout: Nanos,
    /// Most bytes queued.
    pub(crate) queue_bytes: usize,
}

/// Where a link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Its queue pair is being connected.
    Opening,
    /// Messages flow.
    Up,
    /// Nothing more is posted; what is posted may still arrive.
    Closing,
    /// Its queue pair is in the error state and not empty; afterwards it is gone.
    Draining(LinkFailure),
}

/// A link.
pub(super) struct Link {
    pub(super) state: State,
    pub(super) outbox: Outbox,
    /// SENDs that may be posted before the peer posts buffers again; at most `credits_max`.
    credits: u16,
    credits_max: u16,
    /// SENDs the peer may make before it hears of more buffers.
    granted: u16,
    /// Buffers posted again that the peer has not heard of.
    pub(super) owed: u16,
    window: u16,
    stream_bytes: usize,
    slots: u32,
    timeout: Nanos,
    /// Number of the next SEND. Its slot is that, modulo their count.
    pub(super) next: u64,
    /// Number of the first SEND whose completion has not been seen, nor that of a later one.
    done: u64,
    /// SENDs with a completion asked for: their numbers, and since when they are under way.
    awaited: VecDeque<(u64, Nanos)>,
    pub(super) in_line: bool,
}

impl Link {
    pub(super) fn new() -> Self {
        Self {
            state: State::Opening,
            outbox: Outbox::default(),
            credits: 0,
            credits_max: 0,
            granted: 0,
            owed: 0,
            window: 0,
            stream_bytes: 0,
            slots: 0,
            timeout: Nanos::ZERO,
            next: 0,
            done: 0,
            awaited: VecDeque::new(),
            in_line: false,
        }
    }

    pub(super) fn up(&mut self, params: SessionParams) {
        debug_assert!(self.state == State::Opening && params.send_bytes as usize > HEADER_LEN);
        self.outbox = Outbox::new(params.queue_bytes);
        (self.credits, self.credits_max) = (params.credits, params.credits);
        (self.granted, self.window) = (params.window, params.window);
        self.stream_bytes = params.send_bytes as usize - HEADER_LEN;
        (self.slots, self.timeout) = (params.slots, params.timeout);
        self.state = State::Up;
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// SENDs under way, as far as is known.
    pub(super) fn posted(&self) -> u64 {
        self.next - self.done
    }

    /// True if the peer should receive its credits even if there is nothing else to say.
    pub(super) fn owes_much(&self) -> bool {
        self.owed > 0 && self.owed >= self.window.div_ceil(2)
    }

    /// Takes in the header of a SEND of the peer; false if it had no right to it.
    pub(super) fn admit(&mut self, header: Header) -> bool {
        let credits = self.credits.saturating_add(header.credits);
        if credits > self.credits_max {
            return false;
        }
        self.credits = credits;
        if header.is_bare() {
            return header.credits >= self.credits_max.div_ceil(2);
        }
        let admitted = self.granted > 0;
        self.granted = self.granted.saturating_sub(1);
        admitted
    }

    /// Fills slots with what may be sent now, up to a chain's length. Returns how many.
    pub(super) fn stage(
        &mut self,
        place: usize,
        chain: &mut [SendRequest],
        port: &mut impl ControlPort,
        counters: &mut ControlCounters,
    ) -> usize {
        let mut count = 0;
        while self.is_up() && count < chain.len() && self.posted() < u64::from(self.slots) {
            let has_stream = self.outbox.len() > 0 && self.credits > 0;
            if !has_stream && !self.owes_much() {
                break;
            }
            let stream = if has_stream { self.outbox.front(self.stream_bytes) } else { &[] };
            let flags = if has_stream { 0 } else { ONLY_CREDITS };
            let header = Header { credits: self.owed, flags };
            let (slot, len) = ((self.next % u64::from(self.slots)) as u32, stream.len());
            port.fill(place, slot, header.bytes(), stream);
            self.granted += std::mem::take(&mut self.owed);
            self.credits -= u16::from(has_stream);
            self.outbox.advance(len);
            let (id, len) = (send_id(place, self.next), (HEADER_LEN + len) as u32);
            chain[count] = SendRequest { id, slot, len, signalled: false };
            counters.sends += 1;
            counters.bare += u64::from(!has_stream);
            self.next += 1;
            count += 1;
        }
        count
    }

    /// The SEND staged last asks for a completion.
    pub(super) fn await_completion(&mut self, now: Nanos) {
        self.awaited.push_back((self.next - 1, now));
    }

    /// The `count` SENDs staged last were not taken, and will not complete.
    pub(super) fn forget(&mut self, count: usize) {
        self.next -= count as u64;
    }

    /// A completion: of the SEND with this number, and so of all before it.
    pub(super) fn completed(&mut self, sequence: u64) {
        self.done = self.done.max(sequence + 1).min(self.next);
        while self.awaited.pop_front_if(|(awaited, _)| *awaited <= sequence).is_some() {}
    }

    /// When the oldest SEND has taken too long.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        let is_moving = matches!(self.state, State::Up | State::Closing);
        let (_, since) = self.awaited.front().filter(|_| is_moving)?;
        Some(*since + self.timeout)
    }
}

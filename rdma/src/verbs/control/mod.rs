//! Messages over control queue pairs: what is posted, whose buffers it takes, what a failure costs.
//!
//! Each connection has a queue pair of its own for messages, beside the one for READs: a SEND behind
//! READs would wait for them. In: bytes of frames, completions, credits, time. Out: SENDs for a
//! [`ControlPort`], and what is to be done about a link. Pure: it runs over real queue pairs and over
//! the simulated ones of its tests alike.
//!
//! The frames of a connection are one stream of bytes, cut into SENDs of at most the peer's buffer:
//! small frames share one, long ones take several. Queue pairs keep the order and lose nothing while
//! they live, so that the stream is what TCP would have brought.
//! Invariants:
//! 1. A SEND is posted only for a buffer the peer has posted and not seen used: it costs a credit,
//!    which comes back once the buffer is posted again. So no receiver is ever "not ready".
//! 2. SENDs that bring nothing but credits cost none. A side sends one only for at least half of its
//!    window, of which at most two can be unread at the peer; it keeps [`SPARE`] buffers for them.
//! 3. A send slot is written again only after the completion of its SEND or of a later one.
//! 4. What waits to be sent is bounded by bytes; what does not fit is refused.

mod link;
mod outbox;
#[cfg(test)]
mod sim;

use baton_types::Nanos;

use super::engine::{LinkFailure, Outcome};
pub(crate) use link::SessionParams;
use link::{Link, State};

/// Bytes before the stream in each SEND: credits, little endian, and two of [`Header::flags`].
pub(crate) const HEADER_LEN: usize = 4;
/// Buffers beyond the window, for SENDs that bring nothing but credits.
pub(crate) const SPARE: u32 = 2;
/// SENDs per chain, at most: one doorbell.
pub(crate) const CHAIN_MAX: usize = 16;
/// Marks the ids of this module's requests among all that complete on one queue.
pub(crate) const CONTROL: u64 = 1 << 63;
/// Marks those of receives; the rest is the buffer's number.
pub(crate) const RECEIVE: u64 = 1 << 62;
/// Bits of a SEND's id that number it within its link; above them is the link's place.
const SEQUENCE_BITS: u32 = 40;
/// A header that brings credits and nothing else.
const ONLY_CREDITS: u16 = 1;

/// What precedes the stream in a SEND.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    /// Buffers posted again since the last SEND.
    pub(crate) credits: u16,
    flags: u16,
}

impl Header {
    /// As it travels.
    pub(crate) fn bytes(self) -> [u8; HEADER_LEN] {
        let ([a, b], [c, d]) = (self.credits.to_le_bytes(), self.flags.to_le_bytes());
        [a, b, c, d]
    }

    /// The header a SEND begins with; `None` if it is none, or there is less or more behind it than
    /// it says.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (&[a, b, c, d], rest) = bytes.split_first_chunk::<HEADER_LEN>()?;
        let (credits, flags) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        let known = match flags {
            0 => !rest.is_empty(),
            ONLY_CREDITS => rest.is_empty() && credits > 0,
            _ => false,
        };
        known.then_some(Self { credits, flags })
    }

    /// True if no stream follows.
    pub(crate) fn is_bare(self) -> bool {
        self.flags == ONLY_CREDITS
    }
}

/// One SEND for a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SendRequest {
    /// Returned in its completion.
    pub(crate) id: u64,
    /// The slot that holds it.
    pub(crate) slot: u32,
    /// Bytes of it.
    pub(crate) len: u32,
    /// Ask for a completion.
    pub(crate) signalled: bool,
}

/// A completion of a control queue pair, or of a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Signal {
    /// Which request.
    pub(crate) request: u64,
    /// How it ended.
    pub(crate) outcome: Outcome,
    /// Its queue pair's number.
    pub(crate) pair: u32,
    /// Of a receive that is done: bytes.
    pub(crate) bytes: u32,
}

impl Signal {
    /// The buffer, if it is of a receive.
    pub(crate) fn buffer(&self) -> Option<u32> {
        (self.request & RECEIVE != 0).then_some(self.request as u32)
    }
}

/// The control queue pairs, one per place, and their send slots.
pub(crate) trait ControlPort {
    /// Writes a SEND into a slot that no posted request names.
    fn fill(&mut self, place: usize, slot: u32, header: [u8; HEADER_LEN], bytes: &[u8]);

    /// Posts a chain.
    ///
    /// # Errors
    /// How many requests were taken before one was refused.
    fn post_sends(&mut self, place: usize, chain: &[SendRequest]) -> Result<(), usize>;

    /// Moves the queue pair to the error state and posts a request of no bytes behind everything,
    /// whose completion says that nothing is posted any more. False if that could not be posted.
    fn stop(&mut self, place: usize, mark: u64) -> bool;
}

/// What a received SEND is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrival {
    /// Bytes of the stream follow the header.
    Stream,
    /// Credits only, taken in.
    Bare,
    /// Against the rules; the link is failing now.
    Broken,
}

/// What is to be done about a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ended {
    /// Where it was; its queue pair is drained.
    pub(crate) place: usize,
    /// Why.
    pub(crate) why: LinkFailure,
}

/// Counted since start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ControlCounters {
    /// SENDs posted.
    pub(crate) sends: u64,
    /// Of these, credits only.
    pub(crate) bare: u64,
    /// Of these, with a completion asked for.
    pub(crate) signalled: u64,
}

/// The control links of one port.
#[derive(Default)]
pub(crate) struct Control {
    links: Vec<Option<Link>>,
    /// Links with something to send that may be possible, each once.
    line: Vec<usize>,
    /// Ended links, for the owner to take.
    pub(crate) ended: Vec<Ended>,
    pub(crate) counters: ControlCounters,
}

impl Control {
    /// A link whose queue pair is being connected, in a place that is free.
    pub(crate) fn open(&mut self, place: usize) {
        if self.links.len() <= place {
            self.links.resize_with(place + 1, || None);
        }
        self.links[place] = Some(Link::new());
    }

    /// The queue pair is connected.
    pub(crate) fn up(&mut self, place: usize, params: SessionParams) {
        if let Some(link) = self.link(place) {
            link.up(params);
        }
    }

    /// Forgets a link that was never connected.
    pub(crate) fn withdraw(&mut self, place: usize) {
        self.links[place] = None;
        self.line.retain(|&waiting| waiting != place);
    }

    /// Queues a frame of `len` bytes, which `encode` appends. False if the link is not up or the
    /// queue is full: nothing is queued then. A frame longer than the queue passes alone.
    pub(crate) fn push(
        &mut self,
        place: usize,
        len: usize,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        let Some(link) = self.link(place).filter(|link| link.is_up()) else { return false };
        let fits = link.outbox.push(len, encode);
        if fits {
            self.queue(place);
        }
        fits
    }

    /// True if messages can be queued.
    pub(crate) fn is_up(&self, place: usize) -> bool {
        self.links.get(place).and_then(Option::as_ref).is_some_and(Link::is_up)
    }

    /// Takes in the header of a received SEND.
    pub(crate) fn arrived(
        &mut self,
        place: usize,
        header: Option<Header>,
        port: &mut impl ControlPort,
    ) -> Arrival {
        let Some(link) = self.link(place) else { return Arrival::Broken };
        match header.filter(|header| link.admit(*header)) {
            Some(header) => {
                if header.credits > 0 {
                    self.queue(place);
                }
                if header.is_bare() { Arrival::Bare } else { Arrival::Stream }
            }
            None => {
                self.give_up(place, LinkFailure::Rules, port);
                Arrival::Broken
            }
        }
    }

    /// The buffer of a SEND that brought a piece of the stream is posted again: a credit is due.
    pub(crate) fn reposted(&mut self, place: usize) {
        let Some(link) = self.link(place) else { return };
        link.owed += 1;
        if link.owes_much() {
            self.queue(place);
        }
    }

    /// Posts what slots and credits allow, one doorbell per chain.
    pub(crate) fn pump(&mut self, now: Nanos, port: &mut impl ControlPort) {
        while let Some(place) = self.line.pop() {
            let Some(link) = self.links.get_mut(place).and_then(Option::as_mut) else { continue };
            link.in_line = false;
            let mut chain = [SendRequest::default(); CHAIN_MAX];
            loop {
                let count = link.stage(place, &mut chain, port, &mut self.counters);
                let Some(last) = chain[..count].last_mut() else { break };
                last.signalled = true;
                self.counters.signalled += 1;
                link.await_completion(now);
                if let Err(taken) = port.post_sends(place, &chain[..count]) {
                    link.forget(count - taken);
                    self.give_up(place, LinkFailure::Post, port);
                    break;
                }
            }
        }
    }

    /// Takes in the completion of a SEND.
    pub(crate) fn complete(&mut self, signal: &Signal, port: &mut impl ControlPort) {
        let place = ((signal.request & !CONTROL) >> SEQUENCE_BITS) as usize;
        let sequence = signal.request & ((1 << SEQUENCE_BITS) - 1);
        let Some(link) = self.link(place) else { return };
        link.completed(sequence);
        match signal.outcome {
            Outcome::Done => self.queue(place),
            // The first failure is the cause; the flushes behind it are its effect.
            Outcome::Flushed => self.fail(place, LinkFailure::Device(0), port),
            Outcome::Refused => self.fail(place, LinkFailure::Refused, port),
            Outcome::Failed(status) => self.fail(place, LinkFailure::Device(status), port),
        }
        self.finish_drain(place, port);
    }

    /// Links whose oldest SEND has been under way for too long are given up. Take in what has
    /// completed first.
    pub(crate) fn expire(&mut self, now: Nanos, port: &mut impl ControlPort) {
        for place in 0..self.links.len() {
            if self.deadline_of(place).is_some_and(|deadline| deadline < now) {
                let closing = self.link(place).is_some_and(|link| link.state == State::Closing);
                let why = if closing { LinkFailure::Closed } else { LinkFailure::Timeout };
                self.fail(place, why, port);
                self.finish_drain(place, port);
            }
        }
    }

    /// When [`Control::expire`] has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        (0..self.links.len()).filter_map(|place| self.deadline_of(place)).min()
    }

    /// Ends a link. With `in_full`, what is posted may still arrive; otherwise it is given up.
    pub(crate) fn close(&mut self, place: usize, in_full: bool, port: &mut impl ControlPort) {
        let Some(link) = self.link(place) else { return };
        if in_full && link.is_up() && link.posted() > 0 {
            link.state = State::Closing;
            return;
        }
        self.fail(place, LinkFailure::Closed, port);
        self.finish_drain(place, port);
    }

    /// Ends a link that cannot go on: what it brings is no message, or its buffers cannot be posted.
    pub(crate) fn give_up(&mut self, place: usize, why: LinkFailure, port: &mut impl ControlPort) {
        self.fail(place, why, port);
        self.finish_drain(place, port);
    }

    /// True if nothing can be sent and nothing is to be taken by the owner.
    pub(crate) fn is_quiet(&self) -> bool {
        self.line.is_empty() && self.ended.is_empty()
    }

    /// True if something may be waiting to be posted.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.line.is_empty()
    }

    /// True if there is no link: nothing completes.
    pub(crate) fn is_empty(&self) -> bool {
        self.links.iter().all(Option::is_none)
    }

    /// True if everything queued has been sent and every SEND has completed.
    pub(crate) fn is_delivered(&self) -> bool {
        self.links.iter().flatten().all(|link| link.posted() == 0 && link.outbox.len() == 0)
    }

    fn link(&mut self, place: usize) -> Option<&mut Link> {
        self.links.get_mut(place)?.as_mut()
    }

    fn deadline_of(&self, place: usize) -> Option<Nanos> {
        self.links.get(place)?.as_ref()?.deadline()
    }

    fn fail(&mut self, place: usize, why: LinkFailure, port: &mut impl ControlPort) {
        let Some(link) = self.link(place) else { return };
        match link.state {
            State::Draining(_) => {}
            State::Opening => link.state = State::Draining(why),
            State::Up | State::Closing => {
                let why = if link.state == State::Closing { LinkFailure::Closed } else { why };
                link.state = State::Draining(why);
                let mark = send_id(place, link.next);
                if port.stop(place, mark) {
                    link.next += 1;
                }
            }
        }
    }

    /// If the link is failing and nothing of it is posted any more: ends it.
    fn finish_drain(&mut self, place: usize, port: &mut impl ControlPort) {
        if self.link(place).is_some_and(|link| link.state == State::Closing && link.posted() == 0) {
            self.fail(place, LinkFailure::Closed, port);
        }
        let Some(link) = self.link(place) else { return };
        let State::Draining(why) = link.state else { return };
        if link.posted() == 0 {
            self.links[place] = None;
            self.line.retain(|&waiting| waiting != place);
            self.ended.push(Ended { place, why });
        }
    }

    /// Enters a link in the line, once.
    fn queue(&mut self, place: usize) {
        let Some(link) = self.link(place) else { return };
        if !link.in_line && link.is_up() {
            link.in_line = true;
            self.line.push(place);
        }
    }
}

/// Names a SEND over all links.
fn send_id(place: usize, sequence: u64) -> u64 {
    CONTROL | ((place as u64) << SEQUENCE_BITS) | sequence
}

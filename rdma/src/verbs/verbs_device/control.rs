//! The device's control queue pairs: one per connection, one receive queue for all, and their memory.
//!
//! What makes posting sound: the engine writes a send slot only when no posted SEND names it; a
//! receive buffer is read only between its completion and its next posting; and the memory is
//! registered for longer than the queue pairs and the receive queue live.
#![expect(unsafe_code, reason = "posts requests that name slots and buffers, and reads buffers")]

use std::sync::Arc;

use baton_types::Nanos;

use super::{VerbsDevice, random_psn};
use crate::memory::region::Region;
use crate::verbs::control::{
    CONTROL, ControlPort, HEADER_LEN, RECEIVE, SPARE, SendRequest, Signal,
};
use crate::verbs::engine::Piece;
use crate::verbs::error::VerbsError;
use crate::verbs::memory::{Access, MemoryRegion};
use crate::verbs::pair::{PairAddr, QpParams, QueuePair};
use crate::verbs::receives::{REFILL, SharedReceives};

/// SENDs that a peer may have under way to us.
pub(in super::super) const WINDOW: u16 = 32;
/// Bytes of a receive buffer, header included: an answer of a thousand classes and its frame.
pub(in super::super) const BUFFER_BYTES: u32 = 4096;
/// Send slots of a connection: as many as peers of this build have buffers.
pub(in super::super) const SLOTS: u32 = WINDOW as u32;
/// Buffers of a connection's share.
const SHARE: u32 = WINDOW as u32 + SPARE;
/// Completions a connection may have in the queue: of receives, of SENDs, of the mark.
pub(super) const COMPLETIONS_EACH: u32 = SHARE + SLOTS + 1;
/// Connections with a control queue pair; what one device serves well.
pub(super) const LINKS_MAX: u32 = 256;
/// A queue pair in its error state may still give back a receive it had begun: it is kept for so long.
const LAST_RECEIVE: Nanos = Nanos::from_millis(100);

/// A queue pair for messages and its send slots.
struct ControlPair {
    // Dropped in this order.
    pair: QueuePair,
    slots: MemoryRegion,
    memory: Arc<Region>,
}

/// Everything for messages.
#[derive(Default)]
pub(super) struct ControlQueues {
    // Dropped in this order: queue pairs, then the receive queue, then what it posts to.
    pairs: Vec<Option<ControlPair>>,
    /// Queue pairs of the past, and since when.
    leaving: Vec<(Nanos, ControlPair)>,
    receives: Option<Arc<SharedReceives>>,
    /// One per share.
    buffers: Vec<(MemoryRegion, Arc<Region>)>,
    /// Connections at most, by what the completion queue has room for.
    links_max: u32,
    links: u32,
}

impl VerbsDevice {
    /// Makes the control queue pair in `place`, with receive buffers for its peer; what the peer must
    /// know of it.
    ///
    /// # Errors
    /// The device has no more, or the process may not pin more.
    pub(in super::super) fn make_control(&mut self, place: usize) -> Result<PairAddr, VerbsError> {
        let receives = self.shared_receives()?;
        let most = self.control.links_max;
        if self.control.links >= most {
            let device = self.device_name().to_owned();
            return Err(VerbsError::ManyPeers { device, most });
        }
        if self.control.buffers.len() as u32 <= self.control.links {
            self.add_share(&receives)?;
        }
        // The mark needs a place beside the slots.
        let pair =
            QueuePair::for_messages(&self.pd, &self.queue, &receives, SLOTS + 1, random_psn())?;
        let (slots, memory) = self.memory(SLOTS, Access::Sending, "send slots")?;
        let addr = pair.addr(self.gid.raw);
        if self.control.pairs.len() <= place {
            self.control.pairs.resize_with(place + 1, || None);
        }
        self.control.pairs[place] = Some(ControlPair { pair, slots, memory });
        self.control.links += 1;
        Ok(addr)
    }

    /// Connects it.
    ///
    /// # Errors
    /// The peer's address makes no sense, or there is no such queue pair.
    pub(in super::super) fn connect_control(
        &self,
        place: usize,
        peer: &PairAddr,
        mtu: u8,
    ) -> Result<(), VerbsError> {
        let pair = self.control.pairs.get(place).and_then(Option::as_ref);
        let pair = pair.ok_or_else(|| self.device().failed("a queue pair that is gone", 22))?;
        pair.pair.connect(peer, QpParams { mtu, read_depth: 0 }, self.gid.index, &self.cfg)
    }

    /// Its number.
    pub(in super::super) fn control_number(&self, place: usize) -> Option<u32> {
        Some(self.control.pairs.get(place)?.as_ref()?.pair.number())
    }

    /// Takes a control queue pair that is drained, or was never connected, out of use. `now` is `None`
    /// where it was not: then it goes at once.
    pub(in super::super) fn drop_control(&mut self, place: usize, now: Option<Nanos>) {
        let Some(pair) = self.control.pairs.get_mut(place).and_then(Option::take) else { return };
        self.control.links -= 1;
        self.control.leaving.extend(now.map(|now| (now, pair)));
    }

    /// Destroys queue pairs that have been out of use for long enough.
    pub(in super::super) fn bury_controls(&mut self, now: Nanos) {
        self.control.leaving.retain(|(since, _)| *since + LAST_RECEIVE > now);
    }

    /// What a completed receive brought.
    pub(in super::super) fn received(&self, signal: &Signal) -> &[u8] {
        let Some((at, offset)) = self.control.place_of(signal) else { return &[] };
        let (_, memory) = &self.control.buffers[at];
        let len = signal.bytes.min(BUFFER_BYTES) as usize;
        // SAFETY: the receive has completed, and only `post_receives`, which takes `&mut self`, gives
        // the buffer to the device again.
        unsafe { memory.slice(offset, len) }
    }

    /// Posts receive buffers whose receives have completed and whose bytes are no longer needed.
    ///
    /// # Errors
    /// The device is broken.
    pub(in super::super) fn post_receives(&mut self, signals: &[Signal]) -> Result<(), VerbsError> {
        let Some(receives) = &self.control.receives else { return Ok(()) };
        for chunk in signals.chunks(REFILL) {
            let mut chain = [(0, Piece::default()); REFILL];
            for (receive, signal) in chain.iter_mut().zip(chunk) {
                let Some((at, offset)) = self.control.place_of(signal) else { continue };
                let (region, _) = &self.control.buffers[at];
                let addr = region.addr() + offset as u64;
                let piece = Piece { addr, len: BUFFER_BYTES, lkey: region.lkey() };
                *receive = (signal.request, piece);
            }
            // SAFETY: each buffer's last receive has completed, and regions outlive the queue.
            let posted = unsafe { receives.post(&chain[..chunk.len()]) };
            posted.map_err(|source| VerbsError::Refused {
                what: "posting receives",
                device: self.device().name().to_owned(),
                source,
            })?;
        }
        Ok(())
    }

    /// The receive queue, made when it is first needed.
    fn shared_receives(&mut self) -> Result<Arc<SharedReceives>, VerbsError> {
        if let Some(receives) = &self.control.receives {
            return Ok(Arc::clone(receives));
        }
        let room = (self.device().limits().shared_receives / SHARE).min(self.control.links_max);
        self.control.links_max = room;
        let receives = SharedReceives::new(&self.pd, room.max(1) * SHARE)?;
        self.control.receives = Some(Arc::clone(&receives));
        Ok(receives)
    }

    /// Posts one connection's worth of buffers.
    fn add_share(&mut self, receives: &SharedReceives) -> Result<(), VerbsError> {
        let (region, memory) = self.memory(SHARE, Access::Landing, "receive buffers")?;
        let first = self.control.buffers.len() as u32 * SHARE;
        let (addr, lkey) = (region.addr(), region.lkey());
        let receive = |at: u32| {
            let addr = addr + u64::from(at * BUFFER_BYTES);
            let id = CONTROL | RECEIVE | u64::from(first + at);
            (id, Piece { addr, len: BUFFER_BYTES, lkey })
        };
        let all: Vec<_> = (0..SHARE).map(receive).collect();
        // Kept whatever happens now: what is posted cannot be taken back.
        self.control.buffers.push((region, memory));
        for chain in all.chunks(REFILL) {
            // SAFETY: the buffers are fresh, and regions outlive the queue.
            let posted = unsafe { receives.post(chain) };
            posted.map_err(|source| VerbsError::Refused {
                what: "posting receives",
                device: self.device().name().to_owned(),
                source,
            })?;
        }
        Ok(())
    }

    fn memory(
        &self,
        buffers: u32,
        access: Access,
        what: &'static str,
    ) -> Result<(MemoryRegion, Arc<Region>), VerbsError> {
        let memory = Region::new((buffers * BUFFER_BYTES) as usize);
        let memory = Arc::new(memory.ok_or_else(|| self.device().failed("memory", 12))?);
        Ok((MemoryRegion::register(&self.pd, &memory, access, what)?, memory))
    }
}

impl ControlQueues {
    /// For at most `links_max` connections.
    pub(super) fn new(links_max: u32) -> Self {
        Self { links_max, ..Self::default() }
    }

    /// Which share a receive's buffer is in, and where it begins there.
    fn place_of(&self, signal: &Signal) -> Option<(usize, usize)> {
        let buffer = signal.buffer()?;
        let (at, index) = (buffer / SHARE, buffer % SHARE);
        let known = (at as usize) < self.buffers.len();
        known.then_some((at as usize, (index * BUFFER_BYTES) as usize))
    }

    /// Destroys every queue pair.
    pub(super) fn disarm(&mut self) {
        self.pairs.clear();
        self.leaving.clear();
    }
}

impl ControlPort for VerbsDevice {
    fn fill(&mut self, place: usize, slot: u32, header: [u8; HEADER_LEN], bytes: &[u8]) {
        let Some(pair) = self.control.pairs.get(place).and_then(Option::as_ref) else { return };
        let offset = (slot * BUFFER_BYTES) as usize;
        // SAFETY: no posted SEND names the slot, which is the engine's invariant; the device writes
        // no slots; and `&mut self` excludes other callers.
        let place = unsafe { pair.memory.slice_mut(offset, HEADER_LEN + bytes.len()) };
        place[..HEADER_LEN].copy_from_slice(&header);
        place[HEADER_LEN..].copy_from_slice(bytes);
    }

    fn post_sends(&mut self, place: usize, chain: &[SendRequest]) -> Result<(), usize> {
        let Some(pair) = self.control.pairs.get(place).and_then(Option::as_ref) else {
            return Err(0);
        };
        let mut sends = [(0, Piece::default(), false); crate::verbs::control::CHAIN_MAX];
        for (send, request) in sends.iter_mut().zip(chain) {
            let addr = pair.slots.addr() + u64::from(request.slot * BUFFER_BYTES);
            let piece = Piece { addr, len: request.len, lkey: pair.slots.lkey() };
            *send = (request.id, piece, request.signalled);
        }
        // SAFETY: the slots are filled and not written again before the completion, which is the
        // engine's invariant; their registration outlives the queue pair.
        let posted = unsafe { pair.pair.send(&sends[..chain.len()]) };
        posted.map_err(|(taken, error)| {
            tracing::error!(device = self.device_name(), %error, "a message was not taken");
            taken
        })
    }

    fn stop(&mut self, place: usize, mark: u64) -> bool {
        let Some(pair) = self.control.pairs.get(place).and_then(Option::as_ref) else {
            return false;
        };
        if let Err(error) = pair.pair.fail() {
            tracing::error!(%error, "a control queue pair could not be stopped");
        }
        // SAFETY: the request names no memory.
        unsafe { pair.pair.send(&[(mark, Piece::default(), true)]) }.is_ok()
    }
}

//! One process's device with everything made of it: queue pairs by place and by connection, the
//! memory READs land in, the memory peers read.
//!
//! The one place where requests are posted. What makes that sound: the engine gives a row back only
//! after the completions that end the device's access to it, and memory that is registered is kept
//! alive by its registration, which outlives the queue pairs.
#![expect(unsafe_code, reason = "posts requests that name rows the engine holds")]

mod control;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use baton_topo::VerbsConfig;
use baton_topo::machine::gid::Gid;

use super::control::Signal;
use super::device::Device;
use super::engine::{Completion, Piece, Port, Request};
use super::error::VerbsError;
use super::memory::{Access, MemoryRegion, ProtectionDomain};
use super::pair::{PairAddr, QpParams, QueuePair, Side};
use super::queue::{CompletionQueue, POLL_BATCH};
use crate::memory::landing::BatchBuffer;
use crate::memory::region::Region;
use crate::memory::slab::SlabSet;
use crate::protocol::wire::{FabricSlab, TRAILER_LEN};
use crate::transport::ConnId;
pub(super) use control::{BUFFER_BYTES, SLOTS, WINDOW};
use control::{COMPLETIONS_EACH, ControlQueues, LINKS_MAX};

/// Completions of READs the queue has room for, unless the device has less.
const COMPLETIONS: u32 = 8192;
/// Of these, kept free for the marks that end a drain.
const MARKS: u32 = 512;
/// READs in work at a time: each has a place for its trailer.
pub(super) const OPS_MAX: usize = 8192;

/// The device and what is made of it.
pub(super) struct VerbsDevice {
    pub(super) cfg: VerbsConfig,
    // Dropped in this order: queue pairs before the memory they write to.
    control: ControlQueues,
    pairs: Vec<Option<QueuePair>>,
    targets: Vec<(ConnId, QueuePair)>,
    landings: Vec<MemoryRegion>,
    inputs: Vec<(FabricSlab, MemoryRegion)>,
    trailers: MemoryRegion,
    trailer_memory: Arc<Region>,
    pub(super) queue: Arc<CompletionQueue>,
    pd: Arc<ProtectionDomain>,
    gid: Gid,
    /// READs that may be posted at a time, on all queue pairs.
    pub(super) posted_max: usize,
}

impl VerbsDevice {
    /// Opens the device and proves an address of it.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub(super) fn open(cfg: VerbsConfig) -> Result<Self, VerbsError> {
        let device = Device::open(&cfg)?;
        let pd = ProtectionDomain::new(&device)?;
        let gid = device.choose_gid(&pd, &cfg)?;
        let room = device.limits().completions;
        let entries = COMPLETIONS.min(room / 2);
        // One queue for READs and messages: a pass asks once.
        let links_max = ((room - entries) / COMPLETIONS_EACH).min(LINKS_MAX);
        let queue = CompletionQueue::new(&device, entries + links_max * COMPLETIONS_EACH)?;
        let trailer_memory =
            Region::new(OPS_MAX * TRAILER_LEN).ok_or_else(|| device.failed("memory", 12))?;
        let trailer_memory = Arc::new(trailer_memory);
        let trailers = MemoryRegion::register(&pd, &trailer_memory, Access::Landing, "trailers")?;
        Ok(Self {
            cfg,
            control: ControlQueues::new(links_max),
            pairs: Vec::new(),
            targets: Vec::new(),
            landings: Vec::new(),
            inputs: Vec::new(),
            trailers,
            trailer_memory,
            queue,
            pd,
            gid,
            posted_max: entries.saturating_sub(MARKS).max(1) as usize,
        })
    }

    /// Device, port and address, for logs.
    pub(super) fn describe(&self) -> String {
        format!("{} port {}, {}", self.device().name(), self.device().port(), self.gid)
    }

    /// The device's name.
    pub(super) fn device_name(&self) -> &str {
        self.device().name()
    }

    /// What this side would like, as initiator or as target.
    pub(super) fn params(&self, side: Side) -> QpParams {
        let limits = self.device().limits();
        let device_depth = match side {
            Side::Initiator => limits.initiator_depth,
            // What the whole device answers at a time is shared by the planned peers.
            Side::Target => {
                limits.responder_depth.min(limits.responder_budget / self.cfg.peers.max(1))
            }
            Side::Control => 0,
        };
        let read_depth = device_depth.clamp(1, self.cfg.read_depth.max(1).into()) as u8;
        let wanted = self.cfg.mtu.map_or(5, |bytes| (bytes.max(256).ilog2() - 7).min(5) as u8);
        QpParams { mtu: limits.mtu.min(wanted), read_depth }
    }

    /// Makes the queue pair of a link; what the peer must know of it.
    ///
    /// # Errors
    /// The device has no more.
    pub(super) fn make_pair(&mut self, place: usize) -> Result<PairAddr, VerbsError> {
        let requests = u32::from(self.params(Side::Initiator).read_depth) + 1;
        let pair = QueuePair::new(&self.pd, &self.queue, Side::Initiator, requests, random_psn())?;
        let addr = pair.addr(self.gid.raw);
        if self.pairs.len() <= place {
            self.pairs.resize_with(place + 1, || None);
        }
        self.pairs[place] = Some(pair);
        Ok(addr)
    }

    /// Connects a link's queue pair.
    ///
    /// # Errors
    /// The peer's address makes no sense, or there is no such queue pair.
    pub(super) fn connect(
        &self,
        place: usize,
        peer: &PairAddr,
        params: QpParams,
    ) -> Result<(), VerbsError> {
        let pair = self.pairs.get(place).and_then(Option::as_ref);
        let pair = pair.ok_or_else(|| self.device().failed("a queue pair that is gone", 22))?;
        pair.connect(peer, params, self.gid.index, &self.cfg)
    }

    /// Destroys a link's queue pair. Only when it is drained, or was never connected.
    pub(super) fn drop_pair(&mut self, place: usize) {
        if let Some(pair) = self.pairs.get_mut(place) {
            *pair = None;
        }
    }

    /// Lets a peer read the exposed slabs through a queue pair of its own, in place of an earlier one
    /// of the same connection.
    ///
    /// # Errors
    /// The device has no more, or the peer's address makes no sense.
    pub(super) fn admit(
        &mut self,
        conn: ConnId,
        peer: &PairAddr,
        params: QpParams,
    ) -> Result<PairAddr, VerbsError> {
        self.expel(conn);
        let pair = QueuePair::new(&self.pd, &self.queue, Side::Target, 1, random_psn())?;
        pair.connect(peer, params, self.gid.index, &self.cfg)?;
        let addr = pair.addr(self.gid.raw);
        self.targets.push((conn, pair));
        Ok(addr)
    }

    /// The peer can read no longer.
    pub(super) fn expel(&mut self, conn: ConnId) {
        self.targets.retain(|(of, _)| *of != conn);
    }

    /// Registers the slabs' inputs: to be read, never written. They become the last of [`VerbsDevice::slabs`].
    ///
    /// # Errors
    /// The process may not pin that much, or the driver refuses.
    pub(super) fn expose(&mut self, slabs: &SlabSet) -> Result<(), VerbsError> {
        let mut inputs = Vec::new();
        for (desc, memory) in slabs.inputs() {
            let region =
                MemoryRegion::register(&self.pd, memory, Access::RemoteRead, "input slabs")?;
            let slab = FabricSlab {
                first_slot: desc.first_slot,
                slots: desc.slots,
                stride: desc.stride,
                input_bytes: desc.input_bytes,
                addr: region.addr().into(),
                rkey: region.rkey().into(),
                reserved: 0.into(),
            };
            inputs.push((slab, region));
        }
        self.inputs.append(&mut inputs);
        Ok(())
    }

    /// Tells peers of these slabs no longer. Who has their keys can read as long as the registrations that
    /// this returns exist.
    pub(super) fn withdraw(&mut self, slabs: &SlabSet) -> Vec<MemoryRegion> {
        let slots = slabs.slots();
        let theirs = |(slab, _): &mut (FabricSlab, _)| slots.contains(&slab.first_slot.get());
        self.inputs.extract_if(.., theirs).map(|(_, region)| region).collect()
    }

    /// The connections whose peers may read.
    pub(super) fn readers(&self) -> impl Iterator<Item = ConnId> {
        self.targets.iter().map(|(conn, _)| *conn)
    }

    /// The exposed slabs, as this side describes them to peers.
    pub(super) fn slabs(&self) -> impl ExactSizeIterator<Item = &FabricSlab> {
        self.inputs.iter().map(|(slab, _)| slab)
    }

    /// Registers a batch's memory.
    ///
    /// # Errors
    /// The process may not pin that much, or the driver refuses.
    pub(super) fn land_in(&mut self, buffer: &BatchBuffer) -> Result<(), VerbsError> {
        let region =
            MemoryRegion::register(&self.pd, buffer.memory(), Access::Landing, "batch buffers")?;
        self.landings.push(region);
        Ok(())
    }

    /// Gives a batch's registration back.
    pub(super) fn release(&mut self, buffer: &BatchBuffer) {
        self.landings.retain(|region| !region.is_of(buffer.memory()));
    }

    /// Completions that are there, appended to `into`, those of control queue pairs to `signals`.
    pub(super) fn poll(&self, into: &mut Vec<Completion>, signals: &mut Vec<Signal>) {
        while self.queue.poll(into, signals) == POLL_BATCH as usize {}
    }

    /// Last resort at the end of the process's use of the device: destroys every queue pair and every
    /// registration, after which nothing can be written any more, whatever the device still has.
    pub(super) fn disarm(&mut self) {
        self.control.disarm();
        self.pairs.clear();
        self.targets.clear();
        self.landings.clear();
    }

    fn device(&self) -> &Arc<Device> {
        self.pd.device()
    }
}

impl Port for VerbsDevice {
    fn lkey(&self, addr: u64, len: u32) -> Option<u32> {
        let landing = self.landings.iter().find(|region| region.covers(addr, len.into()))?;
        Some(landing.lkey())
    }

    fn trailer_place(&self, op: u32) -> Piece {
        let addr = self.trailers.addr() + u64::from(op) * TRAILER_LEN as u64;
        Piece { addr, len: TRAILER_LEN as u32, lkey: self.trailers.lkey() }
    }

    fn trailer(&self, op: u32) -> u64 {
        let place = self.trailer_memory.range(op as usize * TRAILER_LEN, TRAILER_LEN);
        // SAFETY: in bounds, initialised, and aligned, since the region is and all trailers are of
        // eight bytes; an atomic, because the device may be writing neighbours, if not this one.
        let trailer = unsafe { place.cast::<AtomicU64>().as_ref() };
        u64::from_le(trailer.load(Ordering::Acquire))
    }

    fn post(&mut self, place: usize, chain: &[Request]) -> Result<(), usize> {
        let Some(pair) = self.pairs.get(place).and_then(Option::as_ref) else { return Err(0) };
        // SAFETY: the engine owns the rows and trailer places that the requests name until their
        // completion, and the memory is registered by regions that outlive the queue pair.
        let posted = unsafe { pair.post(chain) };
        posted.map_err(|(taken, error)| {
            tracing::error!(device = self.device_name(), %error, "a READ was not taken");
            taken
        })
    }

    fn fail(&mut self, place: usize, last: u64) -> bool {
        let Some(pair) = self.pairs.get(place).and_then(Option::as_ref) else { return false };
        if let Err(error) = pair.fail() {
            tracing::error!(%error, "a queue pair could not be stopped; its rows are withheld");
        }
        let mark = Request {
            id: last,
            local: [Piece::default(); 2],
            remote_addr: 0,
            rkey: 0,
            signalled: true,
        };
        // SAFETY: the request names no memory.
        unsafe { pair.post(&[mark]) }.is_ok()
    }
}

/// 24 bits that a stranger cannot guess.
fn random_psn() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

#[cfg(test)]
mod tests {
    use super::super::engine::Outcome;
    use super::*;

    /// Two ends on this host's first device, connected; `None`, and a word, where there is none.
    fn connected() -> Option<(VerbsDevice, VerbsDevice, Arc<SlabSet>, Arc<BatchBuffer>)> {
        let cfg = VerbsConfig { ack_timeout: 16, ..VerbsConfig::default() };
        let (mut a, mut b) = match (VerbsDevice::open(cfg.clone()), VerbsDevice::open(cfg)) {
            (Ok(a), Ok(b)) => (a, b),
            (Err(error), _) | (_, Err(error)) => {
                assert!(
                    std::env::var_os("BATON_VERBS").is_none(),
                    "BATON_VERBS is set, but {error}"
                );
                eprintln!("SKIPPED, NO RDMA: {error}; `./x rdma` runs this in a guest");
                return None;
            }
        };
        let spec = crate::SlabSpec {
            model: baton_types::ModelId(0),
            slots: 1,
            input_bytes: 1_000,
            output_bytes: 8,
        };
        let slabs = SlabSet::new(&[spec], 0).unwrap();
        b.expose(&slabs).unwrap();
        let buffer = BatchBuffer::new(1_000).unwrap();
        a.land_in(&buffer).unwrap();
        let offered = a.make_pair(0).unwrap();
        let params = a.params(Side::Initiator);
        let answered = b.admit(ConnId(1), &offered, params).unwrap();
        a.connect(0, &answered, params).unwrap();
        Some((a, b, slabs, buffer))
    }

    /// Reads 100 bytes with one thing wrong; how the device answers.
    fn read(
        a: &mut VerbsDevice,
        buffer: &Arc<BatchBuffer>,
        remote_addr: u64,
        rkey: u32,
    ) -> Outcome {
        let mut row = buffer.lend(0, 100).unwrap();
        let addr = row.as_mut_ptr().addr() as u64;
        let lkey = a.lkey(addr, 100).unwrap();
        let local = [Piece { addr, len: 100, lkey }, Piece::default()];
        let request = Request { id: 9, local, remote_addr, rkey, signalled: true };
        a.post(0, &[request]).unwrap();
        let mut seen = Vec::new();
        // The device answers within its own bounds; the row is held until it has.
        while seen.is_empty() {
            a.poll(&mut seen, &mut Vec::new());
            std::thread::yield_now();
        }
        seen[0].outcome
    }

    #[test]
    fn a_key_opens_its_slab_and_nothing_else() {
        let Some((mut a, b, _slabs, buffer)) = connected() else { return };
        let slab = *b.slabs().next().unwrap();
        let (addr, rkey) = (slab.addr.get(), slab.rkey.get());
        assert_eq!(read(&mut a, &buffer, addr, rkey), Outcome::Done);
        drop((a, b));
        // Each refusal costs the queue pair.
        for (at, key) in [(addr, rkey ^ 0x5a5a), (addr + (1 << 30), rkey)] {
            let Some((mut a, b, _slabs, buffer)) = connected() else { return };
            let fresh = *b.slabs().next().unwrap();
            let (at, key) = (at - addr + fresh.addr.get(), key ^ rkey ^ fresh.rkey.get());
            assert_eq!(read(&mut a, &buffer, at, key), Outcome::Refused);
        }
    }

    #[test]
    fn a_peer_that_was_expelled_reads_no_longer() {
        let Some((mut a, mut b, _slabs, buffer)) = connected() else { return };
        let slab = *b.slabs().next().unwrap();
        b.expel(ConnId(1));
        let outcome = read(&mut a, &buffer, slab.addr.get(), slab.rkey.get());
        assert!(matches!(outcome, Outcome::Failed(_)), "{outcome:?}");
    }

    /// What a queue pair in the error state still has is completed, and the mark behind it tells so.
    #[test]
    fn a_failed_pair_drains_up_to_its_mark() {
        let Some((mut a, b, _slabs, buffer)) = connected() else { return };
        let slab = *b.slabs().next().unwrap();
        let mut row = buffer.lend(0, 1_000).unwrap();
        let addr = row.as_mut_ptr().addr() as u64;
        let lkey = a.lkey(addr, 1_000).unwrap();
        let request = |id| Request {
            id,
            local: [Piece { addr, len: 1_000, lkey }, Piece::default()],
            remote_addr: slab.addr.get(),
            rkey: slab.rkey.get(),
            signalled: false,
        };
        a.post(0, &[request(1), request(2), request(3)]).unwrap();
        assert!(a.fail(0, 4));
        let mut seen: Vec<Completion> = Vec::new();
        while seen.last().is_none_or(|last| last.request != 4) {
            a.poll(&mut seen, &mut Vec::new());
            std::thread::yield_now();
        }
        assert_eq!(seen.last().unwrap().outcome, Outcome::Flushed);
        assert!(seen.is_sorted_by_key(|completion| completion.request), "{seen:?}");
    }
}

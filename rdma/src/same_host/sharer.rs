//! The frontend's side: which backends may map its slabs, and what is still to be sent to them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use baton_types::Nanos;
use zerocopy::IntoBytes;

use super::socket::{FILES_MAX, FileSocket};
use crate::memory::region::Region;
use crate::memory::slab::SlabSet;
use crate::protocol::wire::{MemoryOffer, SharedSlab, SharedSlabs, SlabDesc};
use crate::transport::ConnId;

/// How soon a backend whose queue was full is tried again, at the latest.
const RETRY_AFTER: Nanos = Nanos::from_millis(10);
/// Tries before it is left to TCP.
const TRIES_MAX: u32 = 1_000;
/// Slabs that may wait to be sent; a backend for which there are more is left to TCP.
const UNSENT_MAX: usize = 16_384;

/// A backend that has offered to read, and is not left to TCP.
#[derive(Clone, Copy)]
struct Backend {
    conn: ConnId,
    offer: MemoryOffer,
    /// Something has arrived in its queue.
    is_linked: bool,
}

/// A slab on its way to a backend.
struct Parcel {
    conn: ConnId,
    offer: MemoryOffer,
    slab: SharedSlab,
    /// `None` where the slab is withdrawn.
    region: Option<Arc<Region>>,
}

pub(crate) struct Sharer {
    socket: FileSocket,
    /// Connections whose peers may be given memory, ascending.
    trusted: Vec<ConnId>,
    backends: Vec<Backend>,
    slabs: Vec<Arc<SlabSet>>,
    /// In the order in which backends must get them.
    unsent: VecDeque<Parcel>,
    /// How often the first one was tried.
    tries: u32,
    linked: u64,
}

impl Sharer {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            socket: FileSocket::new()?,
            trusted: Vec::new(),
            backends: Vec::new(),
            slabs: Vec::new(),
            unsent: VecDeque::new(),
            tries: 0,
            linked: 0,
        })
    }

    pub(super) fn on_offer(&mut self, conn: ConnId, offer: &MemoryOffer) {
        let is_new = self.backends.iter().all(|backend| backend.conn != conn);
        if is_new {
            self.backends.push(Backend { conn, offer: *offer, is_linked: false });
            self.give_all(conn);
        }
    }

    pub(super) fn trust(&mut self, conn: ConnId) {
        if let Err(at) = self.trusted.binary_search(&conn) {
            self.trusted.insert(at, conn);
            self.give_all(conn);
        }
    }

    pub(super) fn on_closed(&mut self, conn: ConnId) {
        self.trusted.retain(|of| *of != conn);
        self.leave_to_tcp(conn);
    }

    pub(super) fn expose(&mut self, slabs: &Arc<SlabSet>) {
        self.slabs.push(Arc::clone(slabs));
        for backend in self.readers() {
            self.give(&backend, &parcels(slabs));
        }
    }

    /// Backends unmap the slabs when they hear of it. Until then they find no task in them.
    pub(super) fn withdraw(&mut self, slabs: &Arc<SlabSet>) {
        self.slabs.retain(|other| !Arc::ptr_eq(other, slabs));
        let gone = |(slab, _)| (SharedSlab { input_bytes: 0.into(), ..slab }, None);
        let gone: Vec<_> = parcels(slabs).into_iter().map(gone).collect();
        for backend in self.readers() {
            self.give(&backend, &gone);
        }
    }

    /// Sends what waits, as far as the receivers have room.
    pub(super) fn send(&mut self) {
        while let Some(first) = self.unsent.front() {
            let (conn, offer) = (first.conn, first.offer);
            let of_first = self.unsent.iter().take_while(|parcel| parcel.conn == conn);
            let parcels: Vec<&Parcel> = of_first.take(FILES_MAX).collect();
            let count = parcels.len();
            match self.post(&offer, &parcels) {
                Ok(()) => {
                    self.unsent.drain(..count);
                    self.note_linked(conn);
                }
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && self.tries < TRIES_MAX =>
                {
                    self.tries += 1;
                    return;
                }
                Err(error) => {
                    // As a rule, the backend is on another host.
                    tracing::debug!(conn = conn.0, %error, "this backend cannot map memory of this process");
                    self.leave_to_tcp(conn);
                }
            }
            self.tries = 0;
        }
    }

    fn post(&self, offer: &MemoryOffer, parcels: &[&Parcel]) -> io::Result<()> {
        let slabs = (parcels.len() as u32).into();
        let head = SharedSlabs { cookie: offer.cookie, slabs, reserved: 0.into() };
        let mut bytes = head.as_bytes().to_vec();
        parcels.iter().for_each(|parcel| bytes.extend_from_slice(parcel.slab.as_bytes()));
        let files = parcels.iter().filter_map(|parcel| parcel.region.as_ref()?.file());
        let files: Vec<BorrowedFd<'_>> = files.collect();
        self.socket.send(&offer.socket, &bytes, &files)
    }

    /// How long the owner may sleep, which would sleep for `timeout`; `None`: until it is woken.
    pub(super) fn patience(&self, timeout: Option<Nanos>) -> Option<Nanos> {
        let retry = (!self.unsent.is_empty()).then_some(RETRY_AFTER);
        [timeout, retry].into_iter().flatten().min()
    }

    pub(super) fn linked(&self) -> u64 {
        self.linked
    }

    /// The backends that are given slabs.
    fn readers(&self) -> Vec<Backend> {
        let is_trusted = |backend: &&Backend| self.trusted.binary_search(&backend.conn).is_ok();
        self.backends.iter().filter(is_trusted).copied().collect()
    }

    /// Every slab goes to a backend that has become a reader by what just happened, if it has.
    fn give_all(&mut self, conn: ConnId) {
        let reader = self.readers().into_iter().find(|backend| backend.conn == conn);
        if let Some(backend) = reader {
            let all: Vec<_> = self.slabs.iter().flat_map(parcels).collect();
            self.give(&backend, &all);
        }
    }

    fn give(&mut self, to: &Backend, slabs: &[(SharedSlab, Option<Arc<Region>>)]) {
        let Backend { conn, offer, .. } = *to;
        if self.unsent.len() + slabs.len() > UNSENT_MAX {
            return self.leave_to_tcp(conn);
        }
        let parcel = |(slab, region): &(_, Option<Arc<Region>>)| Parcel {
            conn,
            offer,
            slab: *slab,
            region: region.clone(),
        };
        self.unsent.extend(slabs.iter().map(parcel));
    }

    fn note_linked(&mut self, conn: ConnId) {
        let backend = self.backends.iter_mut().find(|backend| backend.conn == conn);
        if let Some(backend) = backend.filter(|backend| !backend.is_linked) {
            backend.is_linked = true;
            self.linked += 1;
            tracing::info!(conn = conn.0, "transport: shared memory with this backend");
        }
    }

    fn leave_to_tcp(&mut self, conn: ConnId) {
        self.backends.retain(|backend| backend.conn != conn);
        self.unsent.retain(|parcel| parcel.conn != conn);
    }
}

/// The slabs of a set that can be shared.
fn parcels(slabs: &Arc<SlabSet>) -> Vec<(SharedSlab, Option<Arc<Region>>)> {
    let shared = slabs.inputs().filter(|(_, region)| region.file().is_some());
    let parcel = |(desc, region): (SlabDesc, &Arc<Region>)| {
        let slab = SharedSlab {
            first_slot: desc.first_slot,
            slots: desc.slots,
            stride: desc.stride,
            input_bytes: desc.input_bytes,
        };
        (slab, Some(Arc::clone(region)))
    };
    shared.map(parcel).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(socket: [u8; 16]) -> MemoryOffer {
        MemoryOffer { cookie: 1.into(), socket }
    }

    fn parcel(conn: u64, socket: [u8; 16]) -> Parcel {
        let slab = SharedSlab {
            first_slot: 0.into(),
            slots: 1.into(),
            stride: 64.into(),
            input_bytes: 0.into(),
        };
        Parcel { conn: ConnId(conn), offer: offer(socket), slab, region: None }
    }

    /// Two backends get slabs in turn: each datagram is one backend's, and each backend is linked once.
    #[test]
    fn every_parcel_goes_to_its_backend() {
        let names = [*b"every parcel  1 ", *b"every parcel  2 "];
        let receivers = names.map(|name| FileSocket::bound(&name).unwrap());
        let mut sharer = Sharer::new().unwrap();
        (0..).zip(names).for_each(|(conn, name)| sharer.on_offer(ConnId(conn), &offer(name)));
        for _ in 0..2 {
            sharer.unsent.extend((0..).zip(names).map(|(conn, name)| parcel(conn, name)));
        }
        sharer.send();
        let count = |receiver: &FileSocket| {
            std::iter::from_fn(|| receiver.receive(&mut [0; 256]).ok()).count()
        };
        assert_eq!(receivers.each_ref().map(count), [2, 2]);
        assert_eq!((sharer.linked(), sharer.patience(None)), (2, None));
    }

    /// A backend whose queue is full is tried again as often as there may be tries, and after a success as often again.
    #[test]
    fn tries_count_from_the_last_that_went_well() {
        let name = *b"tries count     ";
        let receiver = FileSocket::bound(&name).unwrap();
        let mut sharer = Sharer::new().unwrap();
        sharer.on_offer(ConnId(0), &offer(name));
        for _ in 0..2 {
            while sharer.tries == 0 {
                sharer.unsent.push_back(parcel(0, name));
                sharer.send();
            }
            (1..TRIES_MAX).for_each(|_| sharer.send());
            let (short, long) = (Nanos(RETRY_AFTER.0 / 2), RETRY_AFTER.times(2));
            let patience = [None, Some(short), Some(long)].map(|timeout| sharer.patience(timeout));
            let expected = [RETRY_AFTER, short, RETRY_AFTER].map(Some);
            assert_eq!(patience, expected, "it is not given up");
            while receiver.receive(&mut [0; 256]).is_ok() {}
            sharer.send();
            assert_eq!(sharer.patience(Some(long)), Some(long));
        }
        while sharer.tries == 0 {
            sharer.unsent.push_back(parcel(0, name));
            sharer.send();
        }
        (0..TRIES_MAX).for_each(|_| sharer.send());
        assert_eq!((sharer.backends.len(), sharer.patience(None)), (0, None), "left to TCP");
    }

    /// As a rule it is on another host, where no queue will ever have room.
    #[test]
    fn a_backend_that_is_not_here_is_left_to_tcp_at_once() {
        let (here, name) = (*b"is here         ", *b"is not here     ");
        let _receiver = FileSocket::bound(&here).unwrap();
        let mut sharer = Sharer::new().unwrap();
        for (conn, name) in [(0, name), (1, here)] {
            sharer.on_offer(ConnId(conn), &offer(name));
            sharer.unsent.extend([parcel(conn, name), parcel(conn, name)]);
        }
        sharer.send();
        assert_eq!((sharer.unsent.len(), sharer.linked(), sharer.patience(None)), (0, 1, None));
        let left: Vec<ConnId> = sharer.backends.iter().map(|backend| backend.conn).collect();
        assert_eq!(left, [ConnId(1)]);
    }

    /// A backend that takes nothing holds no more than its share of memory: then its slabs are read over TCP.
    #[test]
    fn a_backend_for_which_too_much_waits_is_left_to_tcp() {
        for (more, stays) in [(0, true), (1, false), (2, false)] {
            let mut sharer = Sharer::new().unwrap();
            (0..2).for_each(|conn| sharer.on_offer(ConnId(conn), &offer([0; 16])));
            let [one, other] = [0, 1].map(|at| sharer.backends[at]);
            let slab = (parcel(0, [0; 16]).slab, None);
            sharer.give(&other, &vec![slab.clone(); 3]);
            sharer.give(&one, &vec![slab; UNSENT_MAX - 3 + more]);
            let waits = if stays { UNSENT_MAX } else { 3 };
            assert_eq!(
                (sharer.backends.len(), sharer.unsent.len()),
                (1 + usize::from(stays), waits)
            );
        }
    }
}

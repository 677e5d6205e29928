//! The backend's side: which slabs are mapped, and READs that are copied out of them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use zerocopy::{FromBytes, IntoBytes};

use super::socket::{FILES_MAX, FileSocket, Name};
use crate::events::{CloseReason, Events, Peer};
use crate::memory::mapped::Mapped;
use crate::protocol::wire::{
    MemoryOffer, Role, SAME_HOST_SINCE, SharedSlab, SharedSlabs, TRAILER_LEN,
};
use crate::tcp::TcpTransport;
use crate::transport::{ConnId, Read, ReadDone, ReadStatus, Transport, TransportCounters};

/// A poll that has copied this much leaves the rest to the next one.
const COPIED_PER_POLL: usize = 1024 * 1024;
/// Datagrams taken per poll: fewer than a queue of them has room for.
const RECEIVED_PER_POLL: usize = 8;
/// Slabs that a frontend may have mapped here.
const SLABS_MAX: usize = 65_536;
/// The longest datagram.
const DATAGRAM_MAX: usize = size_of::<SharedSlabs>() + FILES_MAX * size_of::<SharedSlab>();

/// A slab that is mapped.
struct Slab {
    desc: SharedSlab,
    inputs: Mapped,
}

/// What is mapped of one frontend.
struct Frontend {
    conn: ConnId,
    cookie: u64,
    /// By their first slots, ascending; no two have a slot in common.
    slabs: Vec<Slab>,
    is_linked: bool,
    /// The log says that some of its memory cannot be mapped.
    is_told: bool,
}

pub(crate) struct Reader {
    socket: FileSocket,
    name: Name,
    /// By connection, ascending.
    frontends: Vec<Frontend>,
    waiting: VecDeque<Read>,
    /// READs that ended between polls.
    ended: Vec<ReadDone>,
    /// Connections that are gone, held back until their READs have ended.
    closed: Vec<(ConnId, CloseReason)>,
    /// More datagrams may wait.
    has_unreceived: bool,
    linked: u64,
    reads_done: u64,
    reads_failed: u64,
}

impl Reader {
    pub(super) fn new() -> io::Result<Self> {
        let name = random()?;
        Ok(Self {
            socket: FileSocket::bound(&name)?,
            name,
            frontends: Vec::new(),
            waiting: VecDeque::new(),
            ended: Vec::new(),
            closed: Vec::new(),
            has_unreceived: false,
            linked: 0,
            reads_done: 0,
            reads_failed: 0,
        })
    }

    /// Offers a frontend to read its memory, wherever it is: on another host it finds no socket of that name.
    pub(super) fn on_opened(&mut self, conn: ConnId, peer: &Peer, tcp: &mut TcpTransport) {
        if peer.role != Role::Frontend || peer.version < SAME_HOST_SINCE {
            return;
        }
        let Ok(cookie) = random::<8>() else { return };
        let offer = MemoryOffer { cookie: u64::from_le_bytes(cookie).into(), socket: self.name };
        if tcp.send_own(conn, &offer, &[]).is_err() {
            return;
        }
        let (cookie, slabs) = (offer.cookie.get(), Vec::new());
        let at = self.frontends.partition_point(|frontend| frontend.conn < conn);
        self.frontends
            .insert(at, Frontend { conn, cookie, slabs, is_linked: false, is_told: false });
    }

    /// False if READs of this connection have to end first.
    pub(super) fn on_closed(&mut self, conn: ConnId, reason: &CloseReason) -> bool {
        self.frontends.retain(|frontend| frontend.conn != conn);
        let before = self.ended.len();
        for read in std::mem::take(&mut self.waiting) {
            if read.conn == conn {
                self.ended.push(end(read, ReadStatus::PeerLost));
            } else {
                self.waiting.push_back(read);
            }
        }
        let is_over = self.ended.len() == before;
        if !is_over {
            self.closed.push((conn, reason.clone()));
        }
        is_over
    }

    pub(super) fn take_reads(&mut self, reads: &mut Vec<Read>) {
        let Self { frontends, waiting, .. } = self;
        waiting.extend(reads.extract_if(.., |read| find(frontends, read).is_some()));
    }

    pub(super) fn abort(&mut self, conn: ConnId, tag: u64) -> bool {
        let at = self.waiting.iter().position(|read| read.conn == conn && read.tag == tag);
        let read = at.and_then(|at| self.waiting.remove(at));
        let is_here = read.is_some();
        self.ended.extend(read.map(|read| end(read, ReadStatus::Aborted)));
        is_here
    }

    /// Copies inputs; a READ without one is asked for over TCP.
    pub(super) fn copy(&mut self, tcp: &mut TcpTransport, events: &mut Events) {
        self.tell(events);
        let (mut copied, mut others) = (0, Vec::new());
        while copied < COPIED_PER_POLL
            && let Some(mut read) = self.waiting.pop_front()
        {
            copied += read.row.len();
            let slab = find(&self.frontends, &read);
            if slab.is_some_and(|(slab, at)| slab.inputs.read(at, read.task, &mut read.row)) {
                self.reads_done += 1;
                events.read(end(read, ReadStatus::Done));
            } else {
                others.push(read);
            }
        }
        if !others.is_empty() {
            tcp.post_reads(&mut others);
        }
    }

    /// Tells of what has ended between polls, and of connections last.
    fn tell(&mut self, events: &mut Events) {
        for done in self.ended.drain(..) {
            self.reads_failed += 1;
            events.read(done);
        }
        for (conn, reason) in self.closed.drain(..) {
            events.closed(conn, reason);
        }
    }

    /// Takes slabs that have come.
    pub(super) fn receive(&mut self, tcp: &mut TcpTransport, events: &mut Events) {
        self.tell(events);
        if !tcp.take_watched() && !self.has_unreceived {
            return;
        }
        let mut bytes = [0; DATAGRAM_MAX];
        for _ in 0..RECEIVED_PER_POLL {
            match self.socket.receive(&mut bytes) {
                Ok((len, files)) => self.on_datagram(&bytes[..len], files),
                Err(_) => {
                    self.has_unreceived = false;
                    return;
                }
            }
        }
        self.has_unreceived = true;
    }

    /// Maps the slabs of a datagram. One that makes no sense, or is from a stranger, changes nothing.
    fn on_datagram(&mut self, bytes: &[u8], files: Vec<OwnedFd>) {
        let Ok((head, slabs)) = SharedSlabs::ref_from_prefix(bytes) else { return };
        let Ok(slabs) = <[SharedSlab]>::ref_from_bytes(slabs) else { return };
        let cookie = head.cookie.get();
        let Some(frontend) = self.frontends.iter_mut().find(|other| other.cookie == cookie) else {
            return;
        };
        let count = slabs.iter().filter(|slab| slab.input_bytes.get() > 0).count();
        if slabs.len() != head.slabs.get() as usize || files.len() != count {
            return;
        }
        let mut files = files.into_iter();
        for slab in slabs {
            frontend.forget(slab);
            let file = if slab.input_bytes.get() > 0 { files.next() } else { None };
            if let Some(Err(error)) = file.map(|file| frontend.map(slab, &file)) {
                frontend.tell(&error);
            }
        }
        if !frontend.is_linked && !frontend.slabs.is_empty() {
            frontend.is_linked = true;
            self.linked += 1;
            tracing::info!(conn = frontend.conn.0, "transport: shared memory with this frontend");
        }
    }

    pub(super) fn has_news(&self) -> bool {
        // A connection has closed only with READs that have ended.
        !self.waiting.is_empty() || !self.ended.is_empty() || self.has_unreceived
    }

    pub(super) fn count(&self, counters: &mut TransportCounters) {
        counters.links_same_host += self.linked;
        counters.reads_done += self.reads_done;
        counters.reads_same_host += self.reads_done;
        counters.reads_failed += self.reads_failed;
    }
}

impl AsFd for Reader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Frontend {
    /// Unmaps the slabs that have any of these slots.
    fn forget(&mut self, slab: &SharedSlab) {
        let slots = range(slab);
        self.slabs.retain(|other| {
            let others = range(&other.desc);
            others.end <= slots.start || slots.end <= others.start
        });
    }

    fn tell(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.is_told, true) {
            let conn = self.conn.0;
            tracing::warn!(conn, %error, "memory of a frontend cannot be mapped; inputs in it come over TCP");
        }
    }

    fn map(&mut self, slab: &SharedSlab, file: &OwnedFd) -> io::Result<()> {
        let (stride, slots) = (slab.stride.get() as usize, slab.slots.get() as usize);
        let problem = if stride < slab.input_bytes.get() as usize + TRAILER_LEN {
            Some("its slots overlap")
        } else if self.slabs.len() >= SLABS_MAX {
            Some("it has too many slabs")
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        let bytes = stride.checked_mul(slots).ok_or(io::ErrorKind::InvalidInput)?;
        let inputs = Mapped::new(file, bytes)?;
        let first = slab.first_slot.get();
        let place = self.slabs.binary_search_by_key(&first, |other| other.desc.first_slot.get());
        let at = place.unwrap_or_else(|at| at);
        self.slabs.insert(at, Slab { desc: *slab, inputs });
        Ok(())
    }
}

/// The mapped slab that has the task's slot, and where in it the slot begins.
fn find<'a>(frontends: &'a [Frontend], read: &Read) -> Option<(&'a Slab, usize)> {
    let at = frontends.binary_search_by_key(&read.conn, |frontend| frontend.conn).ok()?;
    let (slabs, slot) = (&frontends[at].slabs, read.task.slot());
    let behind = slabs.partition_point(|slab| slab.desc.first_slot.get() <= slot);
    let slab = &slabs[behind.checked_sub(1)?];
    let desc = &slab.desc;
    let place = slot - desc.first_slot.get();
    let has_it = place < desc.slots.get() && read.row.len() <= desc.input_bytes.get() as usize;
    has_it.then(|| (slab, place as usize * desc.stride.get() as usize))
}

fn range(slab: &SharedSlab) -> std::ops::Range<u64> {
    let first = u64::from(slab.first_slot.get());
    first..first + u64::from(slab.slots.get())
}

fn end(read: Read, status: ReadStatus) -> ReadDone {
    let Read { task, tag, row, .. } = read;
    ReadDone { task, tag, row, status }
}

/// Bytes that a stranger cannot guess.
fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled =
        rustix::rand::getrandom(bytes.as_mut_bytes(), rustix::rand::GetRandomFlags::empty())?;
    if filled < N { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use baton_types::{FrontendId, Nanos, TaskId};

    use super::*;
    use crate::memory::region::Region;
    use crate::{BatchBuffer, Identity, TcpConfig};

    const COOKIE: u64 = 5;

    /// That has one frontend.
    fn reader() -> Reader {
        let mut reader = Reader::new().unwrap();
        let (slabs, is_linked, is_told) = (Vec::new(), false, false);
        reader.frontends.push(Frontend {
            conn: ConnId(1),
            cookie: COOKIE,
            slabs,
            is_linked,
            is_told,
        });
        reader
    }

    fn slab(first_slot: u32, slots: u32, stride: u32, input_bytes: u32) -> SharedSlab {
        let [first_slot, slots] = [first_slot, slots].map(Into::into);
        SharedSlab { first_slot, slots, stride: stride.into(), input_bytes: input_bytes.into() }
    }

    fn datagram(cookie: u64, count: u32, slabs: &[SharedSlab]) -> Vec<u8> {
        let (cookie, slabs_said) = (cookie.into(), count.into());
        let head = SharedSlabs { cookie, slabs: slabs_said, reserved: 0.into() };
        [head.as_bytes(), slabs.as_bytes()].concat()
    }

    /// Of one page each.
    fn files(count: usize) -> Vec<OwnedFd> {
        let region = Region::shared(1).unwrap();
        (0..count).map(|_| region.file().unwrap().try_clone_to_owned().unwrap()).collect()
    }

    fn first_slots(reader: &Reader) -> Vec<u32> {
        reader.frontends[0].slabs.iter().map(|slab| slab.desc.first_slot.get()).collect()
    }

    #[test]
    fn slabs_are_mapped_by_their_slots_and_give_way_to_later_ones() {
        let mut reader = reader();
        reader.on_datagram(&datagram(COOKIE, 1, &[slab(0, 4, 64, 0)]), Vec::new());
        assert_eq!(reader.linked, 0, "nothing is shared yet");
        for (first_slot, mapped) in [(8, vec![8]), (0, vec![0, 8]), (4, vec![0, 4, 8])] {
            reader.on_datagram(&datagram(COOKIE, 1, &[slab(first_slot, 4, 64, 8)]), files(1));
            assert_eq!(first_slots(&reader), mapped);
        }
        let both = [slab(3, 2, 64, 8), slab(20, 1, 64, 8)];
        reader.on_datagram(&datagram(COOKIE, 2, &both), files(2));
        assert_eq!(first_slots(&reader), [3, 8, 20], "in place of those that had any of its slots");
        let gone_and_new = [slab(8, 4, 64, 0), slab(30, 1, 64, 8)];
        reader.on_datagram(&datagram(COOKIE, 2, &gone_and_new), files(1));
        assert_eq!(first_slots(&reader), [3, 20, 30], "a withdrawn one has no file");
        assert_eq!(reader.linked, 1);
    }

    /// Of these frontends, each for the next row.
    fn reads(conns: &[u64]) -> Vec<Read> {
        let buffer = BatchBuffer::new(64 * conns.len()).unwrap();
        let read = |(row, &conn): (u32, &u64)| {
            let (conn, tag) = (ConnId(conn), row.into());
            let task = TaskId::new(FrontendId(1), row, 0);
            Read { conn, task, row: buffer.lend(row, 64).unwrap(), tag }
        };
        (0..).zip(conns).map(read).collect()
    }

    #[test]
    fn of_the_reads_that_wait_only_those_that_are_meant_end() {
        let mut reader = reader();
        reader.waiting = reads(&[1]).into();
        assert!(!reader.abort(ConnId(2), 0) && reader.abort(ConnId(1), 0));
        assert!(reader.has_news(), "the transport is to be told");
        reader.ended.clear();
        reader.waiting = reads(&[1, 2, 1, 2, 1]).into();
        assert!(!reader.on_closed(ConnId(2), &CloseReason::Eof));
        let waiting: Vec<u64> = reader.waiting.iter().map(|read| read.tag).collect();
        let ended: Vec<u64> = reader.ended.iter().map(|done| done.tag).collect();
        assert_eq!((waiting, ended), (vec![0, 2, 4], vec![1, 3]));
    }

    #[test]
    fn what_is_longer_than_an_input_or_behind_the_last_slot_is_not_here() {
        let (mut reader, reads) = (reader(), reads(&[1, 1, 1]));
        for (input_bytes, places) in [(64, [Some(0), Some(128), None]), (63, [None; 3])] {
            let slab = slab(0, 2, 128, input_bytes);
            reader.on_datagram(&datagram(COOKIE, 1, &[slab]), files(1));
            let found = reads.iter().map(|read| find(&reader.frontends, read).map(|it| it.1));
            assert_eq!(found.collect::<Vec<_>>(), places, "of inputs of {input_bytes} bytes");
        }
    }

    /// A queue that holds more than a pass takes is no news of the poller's again: only the reader knows.
    #[test]
    fn a_pass_goes_on_with_what_the_former_left() {
        let identity = Identity { role: Role::Backend, member: 1 };
        let mut tcp = TcpTransport::bind(None, identity, TcpConfig::default()).unwrap();
        let (mut reader, mut events) = (reader(), Events::new());
        let file = files(1);
        let sender = FileSocket::new().unwrap();
        for first_slot in 0..=RECEIVED_PER_POLL as u32 {
            let bytes = datagram(COOKIE, 1, &[slab(first_slot, 1, 64, 8)]);
            sender.send(&reader.name, &bytes, &[file[0].as_fd()]).unwrap();
        }
        reader.receive(&mut tcp, &mut events);
        assert_eq!(first_slots(&reader), [] as [u32; 0], "the poller saw nothing");
        assert!(!reader.has_news());
        tcp.watch(reader.as_fd()).unwrap();
        tcp.poll(Nanos::ZERO, &mut events);
        for taken in [RECEIVED_PER_POLL, RECEIVED_PER_POLL + 1] {
            reader.receive(&mut tcp, &mut events);
            assert_eq!(first_slots(&reader).len(), taken);
            assert_eq!(reader.has_news(), taken == RECEIVED_PER_POLL);
        }
    }

    #[test]
    fn what_makes_no_sense_changes_nothing() {
        let mut reader = reader();
        let good = slab(0, 4, 64, 8);
        for (bytes, count) in [
            (datagram(COOKIE + 1, 1, &[good]), 1),
            (datagram(COOKIE, 2, &[good]), 1),
            (datagram(COOKIE, 1, &[good]), 0),
            (datagram(COOKIE, 1, &[good]), 2),
            (datagram(COOKIE, 1, &[good])[..31].to_vec(), 1),
            (datagram(COOKIE, 1, &[slab(0, 4, 64, 57)]), 1),
            (datagram(COOKIE, 1, &[slab(0, 65, 64, 8)]), 1),
            (datagram(COOKIE, 1, &[slab(0, u32::MAX, u32::MAX, 8)]), 1),
            (datagram(COOKIE, 1, &[slab(0, 0, 64, 8)]), 1),
            (Vec::new(), 1),
        ] {
            reader.on_datagram(&bytes, files(count));
            assert_eq!(first_slots(&reader), [] as [u32; 0], "{bytes:?}");
        }
        reader.on_datagram(&datagram(COOKIE, 1, &[slab(u32::MAX, 64, 64, 56)]), files(1));
        assert_eq!(first_slots(&reader), [u32::MAX], "a page has room for this");
    }
}

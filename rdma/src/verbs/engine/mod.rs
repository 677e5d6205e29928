//! The backend's side of one-sided READs: what is posted, what that proves, what a failure costs.
//!
//! In: READs, completions, time. Out: chains of requests for a [`Port`], finished READs, and what is
//! to be done about a link. Pure: it runs over real queue pairs and over the simulated ones of its
//! tests alike.
//!
//! An input is read in slices, its task id behind it with the last one. Completions come in the
//! order of posting within a link, so that only some requests ask for one: it proves all before it.
//! Invariants:
//! 1. A row goes back to its owner only when no request that names it is posted: after a failure
//!    that is when the queue pair, in its error state, has completed everything (`drain`).
//! 2. An input counts only if its trailer names the task *and* no more than the link's time bound
//!    has passed since its first slice was posted. The frontend lets a slot rest for that long
//!    before it is written again, so whatever order the bytes were fetched in, none is of the next
//!    input (see [`SlabSet::rest`](crate::SlabSet::rest)).
//! 3. What is posted is bounded per link by the negotiated depth, over all links by the completion
//!    queue and by the credit window.

mod drain;
mod link;
mod pump;
#[cfg(test)]
pub(super) mod sim;

use std::collections::VecDeque;

use baton_types::{Nanos, TaskId};

use crate::memory::landing::RowMut;
use crate::protocol::credit::CreditWindow;
use crate::transport::{ConnId, Read, ReadDone, ReadStatus};
use link::Link;
pub(crate) use link::{LinkFailure, RemoteSlab};

/// Requests per chain, at most: one doorbell.
pub(crate) const CHAIN_MAX: usize = 16;
/// Times an input is read before its link is taken for too slow.
const TRIES_MAX: u8 = 3;
/// Bits of a request's id that number it within its link; the rest is the link's place.
const SEQUENCE_BITS: u32 = 48;

/// A piece of registered local memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Piece {
    /// Where.
    pub(crate) addr: u64,
    /// Bytes; a piece of none is left out.
    pub(crate) len: u32,
    /// Its registration.
    pub(crate) lkey: u32,
}

/// One READ request for a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    /// Returned in its completion.
    pub(crate) id: u64,
    /// Where the bytes go, in order: a piece of the row, then perhaps the trailer.
    pub(crate) local: [Piece; 2],
    /// Where they come from.
    pub(crate) remote_addr: u64,
    /// The peer's registration.
    pub(crate) rkey: u32,
    /// Ask for a completion.
    pub(crate) signalled: bool,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// It and all before it on its queue pair have landed.
    Done,
    /// The peer does not let us read there.
    Refused,
    /// Given up because its queue pair is in the error state.
    Flushed,
    /// Anything else, in the library's numbers; the queue pair is in the error state.
    Failed(u32),
}

/// A completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Completion {
    /// The id of the request.
    pub(crate) request: u64,
    /// How it ended.
    pub(crate) outcome: Outcome,
}

/// The queue pairs, one per place, and the local memory they know.
pub(crate) trait Port {
    /// The registration that covers a row; `None` if there is none.
    fn lkey(&self, addr: u64, len: u32) -> Option<u32>;

    /// Where the trailer of operation `op` lands.
    fn trailer_place(&self, op: u32) -> Piece;

    /// What has landed there.
    fn trailer(&self, op: u32) -> u64;

    /// Posts a chain. The local pieces belong to the device until the completion.
    ///
    /// # Errors
    /// How many requests were taken before one was refused.
    fn post(&mut self, place: usize, chain: &[Request]) -> Result<(), usize>;

    /// Moves the queue pair to the error state and posts a request of no bytes behind everything,
    /// whose completion says that nothing is posted any more. False if that could not be posted.
    fn fail(&mut self, place: usize, last: u64) -> bool;
}

/// What is to be done about a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Notice {
    /// Its queue pair is drained and of no more use; connect a new one. READs are held meanwhile.
    Relink(usize),
    /// The fabric or the peer failed; its queue pair is drained, its READs have completed.
    Lost(usize, LinkFailure),
    /// Closed as asked: drained, its READs have completed.
    Gone(usize),
}

/// Bounds of a [`ReadEngine`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PullBounds {
    /// Bytes of a slice, at most. Not 0.
    pub(crate) slice_bytes: u32,
    /// Bytes asked for and not arrived; 0 for no limit.
    pub(crate) credit_bytes: u64,
    /// Requests posted on all links: what the completion queue has room for.
    pub(crate) posted_max: usize,
    /// READs in work on all links: what there are trailer places for. Others wait.
    pub(crate) ops_max: usize,
}

/// Counted since start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PullCounters {
    /// Requests posted.
    pub(crate) requests: u64,
    /// Of these, with a completion asked for.
    pub(crate) signalled: u64,
    /// Inputs read again, because they came too late to be trusted or their link was renewed.
    pub(crate) rereads: u64,
    /// Inputs whose trailer named another task.
    pub(crate) stale: u64,
    /// Links moved to the error state.
    pub(crate) failed: u64,
}

/// One READ in work.
struct Op {
    place: usize,
    task: TaskId,
    tag: u64,
    row: RowMut,
    lkey: u32,
    remote_addr: u64,
    rkey: u32,
    /// Bytes of the row that have been posted; more than the row has: the trailer too.
    next: u32,
    /// When its first slice was posted.
    posted_at: Nanos,
    tries: u8,
    /// How it ends once its link is drained, if that is decided.
    fate: Option<ReadStatus>,
}

/// All links of one port.
pub(crate) struct ReadEngine {
    bounds: PullBounds,
    links: Vec<Option<Link>>,
    ops: Vec<Option<Op>>,
    free: Vec<u32>,
    /// Places of links with something to post, next one first.
    line: VecDeque<usize>,
    credit: CreditWindow,
    posted: usize,
    /// Finished READs, for the owner to take.
    pub(crate) done: Vec<ReadDone>,
    /// What to do, for the owner to take.
    pub(crate) notices: Vec<Notice>,
    pub(crate) counters: PullCounters,
    /// Links with something staged in this pass.
    touched: Vec<usize>,
}

impl ReadEngine {
    pub(crate) fn new(bounds: PullBounds) -> Self {
        Self {
            bounds,
            links: Vec::new(),
            ops: Vec::new(),
            free: Vec::new(),
            line: VecDeque::new(),
            credit: CreditWindow::new(bounds.credit_bytes),
            posted: 0,
            done: Vec::new(),
            notices: Vec::new(),
            counters: PullCounters::default(),
            touched: Vec::new(),
        }
    }

    /// A link whose queue pair is being connected. READs pushed to it are held.
    pub(crate) fn open(&mut self, place: usize, conn: ConnId) {
        if self.links.len() <= place {
            self.links.resize_with(place + 1, || None);
        }
        self.links[place] = Some(Link::new(conn));
    }

    /// The queue pair is connected: what the peer lets us read, how many READs may be under way, and
    /// how long one may take.
    pub(crate) fn up(&mut self, place: usize, slabs: Vec<RemoteSlab>, depth: u8, timeout: Nanos) {
        if let Some(link) = self.link(place) {
            link.up(slabs, depth, timeout);
            self.queue(place);
        }
    }

    /// The peer has another slab, in place of what had its slots before. False if it has too many.
    pub(crate) fn put_slab(&mut self, place: usize, slab: RemoteSlab) -> bool {
        self.link(place).is_none_or(|link| RemoteSlab::put(&mut link.slabs, slab))
    }

    /// The link turned out not to be one of this fabric: it is forgotten, and the READs held for it
    /// come back.
    pub(crate) fn withdraw(&mut self, place: usize) -> Vec<Read> {
        let Some(link) = self.links.get_mut(place).and_then(Option::take) else {
            return Vec::new();
        };
        debug_assert!(link.posted.is_empty(), "withdrawn before anything was posted");
        self.line.retain(|&waiting| waiting != place);
        link.waiting.into_iter().collect()
    }

    /// Is there a link in this place?
    pub(crate) fn has(&self, place: usize) -> bool {
        self.links.get(place).is_some_and(Option::is_some)
    }

    /// A READ over the link in `place`, which exists.
    pub(crate) fn push(&mut self, place: usize, read: Read) {
        match self.link(place) {
            Some(link) if link.takes_reads() => {
                link.waiting.push_back(read);
                self.queue(place);
            }
            _ => self.finish(read, ReadStatus::PeerLost),
        }
    }

    /// Gives a READ up. One that is posted takes its link's queue pair with it: only when that is
    /// drained is the row out of the device's reach.
    pub(crate) fn abort(&mut self, place: usize, tag: u64, port: &mut impl Port) {
        let Some(link) = self.link(place) else { return };
        if let Some(at) = link.waiting.iter().position(|read| read.tag == tag) {
            let _ = link.count_try(tag);
            let read = link.waiting.remove(at);
            return read.into_iter().for_each(|read| self.finish(read, ReadStatus::Aborted));
        }
        let mine = |op: &Op| op.place == place && op.tag == tag && op.fate.is_none();
        let Some(index) = self.ops.iter().position(|op| op.as_ref().is_some_and(mine)) else {
            return;
        };
        self.abort_begun(place, index as u32, port);
    }

    fn abort_begun(&mut self, place: usize, index: u32, port: &mut impl Port) {
        let Some(link) = self.link(place) else { return };
        if link.posted.iter().all(|posted| posted.op != Some(index)) {
            link.slicing.take_if(|slicing| *slicing == index);
            return self.end(index, ReadStatus::Aborted);
        }
        if let Some(op) = self.ops[index as usize].as_mut() {
            op.fate = Some(ReadStatus::Aborted);
        }
        self.fail(place, None, port);
        self.finish_drain(place);
    }

    /// Takes in a completion.
    pub(crate) fn complete(&mut self, completion: Completion, now: Nanos, port: &mut impl Port) {
        let place = (completion.request >> SEQUENCE_BITS) as usize;
        let sequence = completion.request & ((1 << SEQUENCE_BITS) - 1);
        if completion.outcome == Outcome::Done {
            while let Some((op, last)) = self.pop_posted(place, sequence) {
                if let (Some(op), true) = (op, last) {
                    self.arrived(op, now, port);
                }
            }
        } else {
            self.on_failure(place, sequence, completion.outcome, port);
        }
        self.finish_drain(place);
    }

    /// Links whose oldest READ has been under way for too long are given up. Take in what has
    /// completed first.
    pub(crate) fn expire(&mut self, now: Nanos, port: &mut impl Port) {
        for place in 0..self.links.len() {
            if let Some(link) = self.link(place) {
                link.watch_drain(now);
            }
            let late = self.deadline_of(place).is_some_and(|deadline| deadline < now);
            if late {
                self.fail(place, Some(LinkFailure::Timeout), port);
                self.finish_drain(place);
            }
        }
    }

    /// When [`ReadEngine::expire`] has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        (0..self.links.len()).filter_map(|place| self.deadline_of(place)).min()
    }

    /// Ends a link: its READs complete as lost, those that are posted once it is drained.
    pub(crate) fn close(&mut self, place: usize, port: &mut impl Port) {
        if self.has(place) {
            self.fail(place, Some(LinkFailure::Closed), port);
            self.finish_drain(place);
        }
    }

    /// True if a READ may be waiting to be posted.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.line.is_empty()
    }

    /// True if nothing waits: neither READs to be posted nor anything to be taken by the owner.
    pub(crate) fn is_quiet(&self) -> bool {
        self.line.is_empty() && self.done.is_empty() && self.notices.is_empty()
    }

    /// True if nothing is posted anywhere.
    pub(crate) fn is_drained(&self) -> bool {
        self.posted == 0
    }

    fn link(&mut self, place: usize) -> Option<&mut Link> {
        self.links.get_mut(place)?.as_mut()
    }

    fn deadline_of(&self, place: usize) -> Option<Nanos> {
        let link = self.links.get(place)?.as_ref().filter(|link| link.is_up())?;
        let oldest = link.posted.iter().find_map(|posted| posted.op)?;
        let op = self.ops[oldest as usize].as_ref()?;
        Some(op.posted_at + link.timeout)
    }

    /// The last slice of `op` has landed, and so all before it.
    fn arrived(&mut self, op: u32, now: Nanos, port: &impl Port) {
        let Some(entry) = self.ops[op as usize].as_ref() else { return };
        let timeout = self.links[entry.place].as_ref().map_or(Nanos::ZERO, |link| link.timeout);
        let in_time = now <= entry.posted_at + timeout;
        let status = match entry.fate {
            Some(fate) => fate,
            None if !in_time => return self.read_again(op),
            None if port.trailer(op) == entry.task.0 => ReadStatus::Done,
            None => ReadStatus::Stale,
        };
        self.counters.stale += u64::from(status == ReadStatus::Stale);
        self.end(op, status);
    }

    /// What it brought cannot be trusted, or it did not come: once more from the start.
    fn read_again(&mut self, op: u32) {
        let Some(entry) = self.ops[op as usize].take() else { return };
        self.free.push(op);
        let Op { place, task, tag, row, tries, .. } = entry;
        let link = self.links[place].as_mut().filter(|link| link.takes_reads());
        let Some(link) = link.filter(|_| tries < TRIES_MAX) else {
            return self.done.push(ReadDone { task, tag, row, status: ReadStatus::PeerLost });
        };
        self.counters.rereads += 1;
        link.tried.push((tag, tries));
        link.waiting.push_front(Read { conn: link.conn, task, row, tag });
        self.queue(place);
    }

    fn end(&mut self, op: u32, status: ReadStatus) {
        if let Some(Op { task, tag, row, .. }) = self.ops[op as usize].take() {
            self.free.push(op);
            self.done.push(ReadDone { task, tag, row, status });
        }
    }

    fn finish(&mut self, read: Read, status: ReadStatus) {
        let Read { task, tag, row, .. } = read;
        self.done.push(ReadDone { task, tag, row, status });
    }

    /// Enters a link in the line, once.
    fn queue(&mut self, place: usize) {
        if let Some(link) = self.link(place)
            && !link.in_line
        {
            link.in_line = true;
            self.line.push_back(place);
        }
    }
}

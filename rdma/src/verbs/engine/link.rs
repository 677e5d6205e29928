//! One peer's link: its state, what waits, what is posted.

use std::collections::VecDeque;
use std::fmt;

use baton_types::{Nanos, TaskId};

use super::Request;
use crate::protocol::wire::TRAILER_LEN;
use crate::transport::{ConnId, Read};

/// A queue pair in its error state that has not completed everything after this is worth a word.
const DRAIN_WORTH_A_WORD: Nanos = Nanos::from_millis(1_000);

/// Slabs a peer may have.
const SLABS_MAX: usize = 65_536;

/// A slab of the peer's that may be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RemoteSlab {
    /// Its first slot.
    pub(crate) first_slot: u32,
    /// How many it has.
    pub(crate) slots: u32,
    /// From one slot to the next, bytes.
    pub(crate) stride: u32,
    /// Bytes of an input; its trailer follows.
    pub(crate) input_bytes: u32,
    /// Where the first slot begins, in the peer's memory.
    pub(crate) addr: u64,
    /// The peer's registration.
    pub(crate) rkey: u32,
}

impl RemoteSlab {
    /// Where the input of `task` is, if it is one of this slab.
    pub(crate) fn find(&self, task: TaskId) -> Option<u64> {
        let at = task.slot().checked_sub(self.first_slot).filter(|at| *at < self.slots)?;
        let offset = u64::from(at) * u64::from(self.stride);
        self.addr.checked_add(offset)
    }

    /// Puts a slab to those that are known, last, in place of those that had any of its slots before. False if
    /// there are too many.
    pub(crate) fn put(known: &mut Vec<Self>, slab: Self) -> bool {
        known.retain(|other| !other.shares_slots(&slab));
        let has_room = known.len() < SLABS_MAX;
        if has_room {
            known.push(slab);
        }
        has_room
    }

    fn shares_slots(&self, other: &Self) -> bool {
        let end = |slab: &Self| u64::from(slab.first_slot) + u64::from(slab.slots);
        u64::from(self.first_slot) < end(other) && u64::from(other.first_slot) < end(self)
    }

    /// False if its slots would overlap.
    pub(crate) fn makes_sense(&self) -> bool {
        self.input_bytes > 0
            && u64::from(self.stride) >= u64::from(self.input_bytes) + TRAILER_LEN as u64
    }
}

/// Why a link ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LinkFailure {
    /// A READ did not complete in time.
    Timeout,
    /// The peer does not let us read where it said we may.
    Refused,
    /// The device gave up, for the reason with the library's number.
    Device(u32),
    /// A request was not taken.
    Post,
    /// The peer sent what it may not.
    Rules,
    /// Asked for by the owner.
    Closed,
}

impl fmt::Display for LinkFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => f.write_str("a READ or a message did not complete in time"),
            Self::Refused => f.write_str("the peer's device refused a READ (wrong key or range)"),
            Self::Device(status) => write!(f, "the device gave up (work completion {status})"),
            Self::Post => f.write_str("the driver did not take a request"),
            Self::Rules => f.write_str("the peer sent more than it may, or what is no message"),
            Self::Closed => f.write_str("closed"),
        }
    }
}

/// Where a link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Its queue pair is being connected.
    Opening,
    /// READs flow.
    Up,
    /// Its queue pair is in the error state and not empty; afterwards it is renewed (`None`) or
    /// gone.
    Draining(Option<LinkFailure>),
}

/// A posted request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    pub(super) sequence: u64,
    /// `None` for the request that marks the end of a drain.
    pub(super) op: Option<u32>,
    pub(super) bytes: u64,
    /// The last slice of its operation.
    pub(super) last: bool,
}

/// A link.
pub(super) struct Link {
    pub(super) conn: ConnId,
    pub(super) state: State,
    pub(super) slabs: Vec<RemoteSlab>,
    /// READs that may be posted.
    pub(super) depth: usize,
    pub(super) timeout: Nanos,
    /// READs not begun.
    pub(super) waiting: VecDeque<Read>,
    /// The operation whose slices are being posted.
    pub(super) slicing: Option<u32>,
    /// In order.
    pub(super) posted: VecDeque<Posted>,
    /// How often those that wait for another try were read, by tag.
    pub(super) tried: Vec<(u64, u8)>,
    pub(super) next_sequence: u64,
    pub(super) in_line: bool,
    /// Cut in this pass, not posted yet. Entered in `posted` already.
    pub(super) staged: Vec<Request>,
    /// When a look first found it draining; `MAX` once the log says so.
    draining_since: Option<Nanos>,
}

impl Link {
    pub(super) fn new(conn: ConnId) -> Self {
        Self {
            conn,
            state: State::Opening,
            slabs: Vec::new(),
            depth: 0,
            timeout: Nanos::ZERO,
            waiting: VecDeque::new(),
            slicing: None,
            posted: VecDeque::new(),
            tried: Vec::new(),
            next_sequence: 0,
            in_line: false,
            staged: Vec::new(),
            draining_since: None,
        }
    }

    pub(super) fn up(&mut self, slabs: Vec<RemoteSlab>, depth: u8, timeout: Nanos) {
        debug_assert!(self.state == State::Opening && self.posted.is_empty());
        (self.slabs, self.depth, self.timeout) = (slabs, usize::from(depth.max(1)), timeout);
        self.state = State::Up;
    }

    /// A device that does not complete what it was made to give up keeps the rows: better a batch
    /// that never executes than one that executes on bytes still being written.
    pub(super) fn watch_drain(&mut self, now: Nanos) {
        if !matches!(self.state, State::Draining(_)) {
            self.draining_since = None;
            return;
        }
        let since = *self.draining_since.get_or_insert(now);
        if since < now && now - since > DRAIN_WORTH_A_WORD {
            tracing::error!(
                conn = self.conn.0,
                posted = self.posted.len(),
                "a queue pair in its error state does not drain; its rows are withheld"
            );
            self.draining_since = Some(Nanos::MAX);
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// True unless it is ending.
    pub(super) fn takes_reads(&self) -> bool {
        !matches!(self.state, State::Draining(Some(_)))
    }

    /// True if it has something to post and may; `may_begin` says if another READ may be begun.
    pub(super) fn is_ready(&self, may_begin: bool) -> bool {
        let room = self.posted.len() < self.depth;
        let next = self.slicing.is_some() || (may_begin && !self.waiting.is_empty());
        self.is_up() && room && next
    }

    /// True if it has something to post, now or later.
    pub(super) fn has_work(&self) -> bool {
        self.slicing.is_some() || !self.waiting.is_empty()
    }

    /// How often this READ has been tried, this time included.
    pub(super) fn count_try(&mut self, tag: u64) -> u8 {
        let before = self.tried.iter().position(|(of, _)| *of == tag);
        before.map_or(0, |at| self.tried.swap_remove(at).1) + 1
    }

    /// Where the input is.
    pub(super) fn locate(&self, task: TaskId, len: usize) -> Option<(u64, u32)> {
        self.slabs.iter().find_map(|slab| {
            let addr = slab.find(task)?;
            (1..=slab.input_bytes as usize).contains(&len).then_some((addr, slab.rkey))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slab(first_slot: u32, slots: u32, addr: u64) -> RemoteSlab {
        RemoteSlab { first_slot, slots, stride: 64, input_bytes: 8, addr, rkey: 1 }
    }

    #[test]
    fn a_slot_has_room_for_the_trailer() {
        let of = |stride| RemoteSlab { stride, ..slab(0, 4, 100) }.makes_sense();
        assert_eq!([8, 15, 16, 17].map(of), [false, false, true, true]);
    }

    #[test]
    fn a_slab_replaces_those_that_had_its_slots_and_no_others() {
        let mut known = Vec::new();
        for (first_slot, addr) in [(0, 100), (4, 200), (8, 300)] {
            assert!(RemoteSlab::put(&mut known, slab(first_slot, 4, addr)));
        }
        assert!(RemoteSlab::put(&mut known, slab(4, 4, 400)));
        assert!(RemoteSlab::put(&mut known, slab(12, 1, 500)));
        let addrs = |known: &[RemoteSlab]| known.iter().map(|slab| slab.addr).collect::<Vec<_>>();
        assert_eq!(addrs(&known), [100, 300, 400, 500]);
        assert!(RemoteSlab::put(&mut known, slab(7, 2, 600)));
        assert_eq!(addrs(&known), [100, 500, 600], "it has a slot of each");
        assert!(RemoteSlab::put(&mut known, slab(u32::MAX, u32::MAX, 700)));
        assert_eq!(known.len(), 4);
    }
}

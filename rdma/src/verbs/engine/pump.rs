//! Posting: whose turn it is, how much may be under way, which requests ask for a completion.

use baton_types::Nanos;

use super::link::Posted;
use super::{CHAIN_MAX, LinkFailure, Op, Piece, Port, ReadEngine, Request, SEQUENCE_BITS};
use crate::protocol::wire::TRAILER_LEN;
use crate::transport::{Read, ReadStatus};

impl ReadEngine {
    /// Posts what the window, the depths and the completion queue allow, slice by slice, source by
    /// source.
    pub(crate) fn pump(&mut self, now: Nanos, port: &mut impl Port) {
        let mut skipped = 0;
        while skipped < self.line.len() {
            let Some(place) = self.line.pop_front() else { break };
            let may_begin = self.ops.len() - self.free.len() < self.bounds.ops_max;
            let full = self.posted >= self.bounds.posted_max;
            let Some(link) = self.link(place) else { continue };
            if !link.has_work() {
                link.in_line = false;
                continue;
            }
            if full || !link.is_ready(may_begin) {
                skipped += 1;
                self.line.push_back(place);
                continue;
            }
            let Some(op) = self.next_op(place, port) else { continue };
            let bytes = self.slice_credit(op);
            if !self.credit.try_take(bytes) {
                // A link without credit keeps its turn: small inputs must not starve a large one.
                self.line.push_front(place);
                break;
            }
            skipped = 0;
            self.stage(op, now, port);
            self.line.push_back(place);
        }
        self.post_staged(port);
    }

    /// The operation whose next slice is due on a ready link; begins one if need be. `None` if there
    /// is none after all, or no room for another; the link is in the line again then.
    fn next_op(&mut self, place: usize, port: &impl Port) -> Option<u32> {
        loop {
            let link = self.link(place)?;
            if let Some(op) = link.slicing {
                return Some(op);
            }
            let read = link.waiting.pop_front();
            let Some(read) = read else {
                link.in_line = false;
                return None;
            };
            self.begin(place, read, port);
        }
    }

    /// Makes an operation of a READ, or ends it at once if there is nothing to read.
    fn begin(&mut self, place: usize, mut read: Read, port: &impl Port) {
        let (addr, len) = (read.row.as_mut_ptr().addr() as u64, read.row.len());
        let Some(link) = self.link(place) else { return };
        let tries = link.count_try(read.tag);
        let found = link.locate(read.task, len).zip(port.lkey(addr, len as u32));
        let Some(((remote_addr, rkey), lkey)) = found else {
            return self.finish(read, ReadStatus::Refused);
        };
        let Read { task, tag, row, .. } = read;
        let op = Op {
            place,
            task,
            tag,
            row,
            lkey,
            remote_addr,
            rkey,
            next: 0,
            posted_at: Nanos::ZERO,
            tries,
            fate: None,
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.ops.push(None);
            self.ops.len() as u32 - 1
        });
        self.ops[index as usize] = Some(op);
        if let Some(link) = self.link(place) {
            link.slicing = Some(index);
        }
    }

    fn op(&mut self, op: u32) -> &mut Op {
        self.ops[op as usize].as_mut().expect("an operation being sliced exists")
    }

    /// What the next slice of `op` takes from the window.
    fn slice_credit(&mut self, op: u32) -> u64 {
        let slice_bytes = self.bounds.slice_bytes;
        let op = self.op(op);
        let left = op.row.len() as u32 - op.next;
        let trailer = if left <= slice_bytes { TRAILER_LEN as u64 } else { 0 };
        u64::from(left.min(slice_bytes)) + trailer
    }

    /// Cuts the next slice off `op` and enters it as posted.
    fn stage(&mut self, index: u32, now: Nanos, port: &impl Port) {
        let (slice_bytes, bytes) = (self.bounds.slice_bytes, self.slice_credit(index));
        let op = self.op(index);
        if op.next == 0 {
            op.posted_at = now;
        }
        let (at, left) = (op.next, op.row.len() as u32 - op.next);
        let (len, last) = (left.min(slice_bytes), left <= slice_bytes);
        let row = op.row.as_mut_ptr().addr() as u64;
        let data = Piece { addr: row + u64::from(at), len, lkey: op.lkey };
        let trailer = if last { port.trailer_place(index) } else { Piece::default() };
        let (remote_addr, rkey, place) = (op.remote_addr + u64::from(at), op.rkey, op.place);
        op.next += len;
        let link = self.link(place).expect("the link of an operation exists");
        link.slicing = if last { None } else { Some(index) };
        let sequence = link.next_sequence;
        link.next_sequence += 1;
        let id = request_id(place, sequence);
        link.posted.push_back(Posted { sequence, op: Some(index), bytes, last });
        let local = [data, trailer];
        link.staged.push(Request { id, local, remote_addr, rkey, signalled: false });
        let first = link.staged.len() == 1;
        self.posted += 1;
        if first {
            self.touched.push(place);
        }
    }

    /// Posts what was staged, link by link, in chains.
    fn post_staged(&mut self, port: &mut impl Port) {
        while let Some(place) = self.touched.pop() {
            let Some(link) = self.link(place) else { continue };
            let mut staged = std::mem::take(&mut link.staged);
            // Half the depth, so that the next chain can be under way while this one completes.
            let chain_max = (link.depth / 2).clamp(1, CHAIN_MAX);
            let refused =
                staged.chunks_mut(chain_max).find_map(|chain| self.post_chain(place, chain, port));
            if let Some(first_refused) = refused {
                self.forget_from(place, first_refused);
                self.fail(place, Some(LinkFailure::Post), port);
            }
            staged.clear();
            if let Some(link) = self.link(place) {
                link.staged = staged;
            }
            self.finish_drain(place);
        }
    }

    /// Posts a chain whose last request asks for a completion. Returns the id of the first one the
    /// driver refused: neither it nor what was staged behind it will complete.
    fn post_chain(
        &mut self,
        place: usize,
        chain: &mut [Request],
        port: &mut impl Port,
    ) -> Option<u64> {
        chain.last_mut()?.signalled = true;
        self.counters.requests += chain.len() as u64;
        self.counters.signalled += 1;
        let taken = port.post(place, chain).err()?;
        chain.get(taken).map(|request| request.id)
    }
}

/// Names a request over all links.
pub(super) fn request_id(place: usize, sequence: u64) -> u64 {
    ((place as u64) << SEQUENCE_BITS) | sequence
}

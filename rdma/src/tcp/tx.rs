//! What one connection still has to send, in order: bytes of its own, and leased inputs that leave
//! straight from the slab.
//!
//! Frames of one pass lie side by side and leave in one system call. The bytes are bounded; leases
//! are bounded by the READ depth, which the target enforces.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use crate::memory::slab::ReadLease;
use crate::protocol::frame;
use crate::protocol::wire::Body;

/// Pieces given to the kernel at a time.
const SLICES: usize = 64;
/// System calls per flush: what a peer that reads as fast as we write may cost the others.
const WRITES: usize = 8;
/// Sent bytes are kept until they are worth a move.
const COMPACT: usize = 64 * 1024;
/// What may be queued beyond the limit by frames that cannot be put off: replies to READs (of which
/// there are boundedly many), welcomes and refusals.
const RESERVE: usize = 64 * 1024;

enum Segment {
    /// This number of bytes of `inline`.
    Inline(usize),
    /// A slot's input and trailer; `sent` bytes of it are gone.
    Lease { lease: ReadLease, sent: usize },
}

/// The send queue of one connection.
pub(super) struct TxQueue {
    segments: VecDeque<Segment>,
    inline: Vec<u8>,
    inline_sent: usize,
    leases: usize,
    limit: usize,
}

impl TxQueue {
    /// A queue of at most `limit` bytes; a single longer frame passes if nothing else is queued.
    pub(super) fn new(limit: usize) -> Self {
        let (segments, inline) = (VecDeque::new(), Vec::new());
        Self { segments, inline, inline_sent: 0, leases: 0, limit }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Forgets everything, of which nothing may have been sent.
    pub(super) fn clear(&mut self) {
        debug_assert!(self.inline_sent == 0, "a frame cannot be taken back in part");
        *self = Self::new(self.limit);
    }

    /// Leased inputs waiting to leave.
    pub(super) fn leases(&self) -> usize {
        self.leases
    }

    /// True if a frame of `len` bytes fits.
    pub(super) fn room_for(&self, len: usize) -> bool {
        self.queued() == 0 || self.queued() + len <= self.limit
    }

    /// Queues a frame of `body`, `tail` and `payload`, unless it does not fit.
    #[must_use]
    pub(super) fn push<B: Body>(&mut self, body: &B, tail: &[u8], payload: &[u8]) -> bool {
        let len = frame::HEADER_LEN + size_of::<B>() + tail.len() + payload.len();
        let fits = self.room_for(len);
        if fits {
            self.append(|bytes| {
                frame::encode(bytes, body, tail, payload.len());
                bytes.extend_from_slice(payload);
            });
        }
        fits
    }

    /// Queues a frame that may use the reserve, with a leased payload if it has one.
    #[must_use]
    pub(super) fn push_urgent<B: Body>(
        &mut self,
        body: &B,
        tail: &[u8],
        lease: Option<ReadLease>,
    ) -> bool {
        let len = frame::HEADER_LEN + size_of::<B>() + tail.len();
        if self.queued() + len > self.limit + RESERVE {
            return false;
        }
        let payload_len = lease.as_ref().map_or(0, |lease| lease.as_ref().len());
        self.append(|bytes| frame::encode(bytes, body, tail, payload_len));
        if let Some(lease) = lease {
            self.segments.push_back(Segment::Lease { lease, sent: 0 });
            self.leases += 1;
        }
        true
    }

    /// Hands everything to `write` until it is gone, `write` fails (also: would block), or enough
    /// has been done for one pass.
    pub(super) fn drain(
        &mut self,
        mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<()> {
        for _ in 0..WRITES {
            if self.is_empty() {
                break;
            }
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.gather(&mut slices);
            match write(&slices[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.advance(sent),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn queued(&self) -> usize {
        self.inline.len() - self.inline_sent
    }

    fn append(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        let before = self.inline.len();
        encode(&mut self.inline);
        let added = self.inline.len() - before;
        match self.segments.back_mut() {
            Some(Segment::Inline(len)) => *len += added,
            _ => self.segments.push_back(Segment::Inline(added)),
        }
    }

    fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES]) -> usize {
        let mut inline = &self.inline[self.inline_sent..];
        for (slice, segment) in slices.iter_mut().zip(&self.segments) {
            *slice = match segment {
                Segment::Inline(len) => {
                    let (piece, rest) = inline.split_at(*len);
                    inline = rest;
                    IoSlice::new(piece)
                }
                Segment::Lease { lease, sent } => IoSlice::new(&lease.as_ref()[*sent..]),
            };
        }
        self.segments.len().min(SLICES)
    }

    fn advance(&mut self, mut bytes: usize) {
        while let Some(segment) = self.segments.front_mut() {
            let left = match segment {
                Segment::Inline(len) => *len,
                Segment::Lease { lease, sent } => lease.as_ref().len() - *sent,
            };
            let gone = bytes.min(left);
            bytes -= gone;
            match segment {
                Segment::Inline(len) => {
                    *len -= gone;
                    self.inline_sent += gone;
                }
                Segment::Lease { sent, .. } => *sent += gone,
            }
            if gone < left {
                break;
            }
            let done = self.segments.pop_front();
            self.leases -= usize::from(matches!(done, Some(Segment::Lease { .. })));
        }
        self.compact();
    }

    fn compact(&mut self) {
        if self.queued() == 0 {
            self.inline.clear();
            self.inline_sent = 0;
        } else if self.inline_sent >= COMPACT && self.inline_sent >= self.queued() {
            self.inline.drain(..self.inline_sent);
            self.inline_sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::wire::Ping;

    #[test]
    fn a_write_that_a_signal_interrupts_is_tried_again() {
        let mut queue = TxQueue::new(64);
        assert!(queue.push(&Ping { sent_ns: 1.into() }, &[], &[]));
        let mut writes = 0;
        queue
            .drain(|slices| {
                writes += 1;
                let sent = slices.iter().map(|slice| slice.len()).sum();
                if writes == 1 { Err(io::ErrorKind::Interrupted.into()) } else { Ok(sent) }
            })
            .unwrap();
        assert!(queue.is_empty() && writes == 2);
    }

    /// Replies and refusals come beside what fills the queue, but not without end.
    #[test]
    fn frames_that_cannot_be_put_off_fill_the_reserve_and_no_more() {
        let (ping, limit) = (Ping { sent_ns: 1.into() }, 1_000);
        let mut queue = TxQueue::new(limit);
        let len = frame::HEADER_LEN + size_of::<Ping>();
        let pushed = (0..).take_while(|_| queue.push_urgent(&ping, &[], None)).count();
        assert_eq!(pushed, (limit + RESERVE) / len);
        assert!(!queue.push(&ping, &[], &[]));
    }

    #[test]
    fn a_frame_above_the_bound_passes_alone() {
        let mut queue = TxQueue::new(8);
        let ping = Ping { sent_ns: 1.into() };
        assert!(queue.push(&ping, &[], &[]));
        assert!(!queue.push(&ping, &[], &[]), "something is queued");
        queue.drain(|slices| Ok(slices.iter().map(|slice| slice.len()).sum())).unwrap();
        assert!(queue.is_empty() && queue.push(&ping, &[], &[]));
    }

    #[test]
    fn a_frame_fits_up_to_the_last_byte() {
        let len = frame::HEADER_LEN + size_of::<Ping>() + 3 + 5;
        for (limit, fits) in [(2 * len, true), (2 * len - 1, false)] {
            let mut queue = TxQueue::new(limit);
            let mut push = || queue.push(&Ping { sent_ns: 1.into() }, &[0; 3], &[0; 5]);
            assert!(push());
            assert_eq!(push(), fits, "{limit}");
        }
    }

    #[test]
    fn what_was_sent_takes_no_memory_for_long_though_the_queue_is_never_empty() {
        let mut queue = TxQueue::new(1_000);
        let ping = Ping { sent_ns: 1.into() };
        let len = frame::HEADER_LEN + size_of::<Ping>();
        assert!(queue.push(&ping, &[], &[]));
        for _ in 0..3 * COMPACT / len {
            assert!(queue.push(&ping, &[], &[]));
            queue.advance(len);
            assert!(queue.inline.len() <= COMPACT + 2 * len);
        }
    }
}

//! Two sides that talk over queue pairs at their worst: bytes leave their slot late, completions are
//! seen later still, links break with things under way. What is checked: the bytes of a link arrive
//! as they were queued, none lost before the link fails, none twice, none out of order; no slot is
//! written before its completion was seen; and a SEND always finds a buffer.

mod world;

use std::collections::VecDeque;

use super::super::engine::Outcome;
use super::{ControlPort, HEADER_LEN, SendRequest, Signal};

const LINKS: usize = 3;

/// One side's queue pair of a link.
#[derive(Default)]
struct Pair {
    slots: Vec<Vec<u8>>,
    posted: VecDeque<SendRequest>,
    /// Landed at the peer; the completion is to come.
    landed: VecDeque<SendRequest>,
    /// Requests whose slots are in use as far as this side can know.
    unseen: VecDeque<SendRequest>,
    is_failed: bool,
}

/// One side's device.
#[derive(Default)]
struct Device {
    pairs: [Pair; LINKS],
    /// Buffers posted, and what lies in the others.
    free: VecDeque<u32>,
    buffers: Vec<Vec<u8>>,
    completions: VecDeque<Signal>,
    refuses_posts: bool,
}

impl Device {
    fn complete(&mut self, place: usize, request: &SendRequest, outcome: Outcome) {
        if request.signalled || outcome != Outcome::Done {
            let signal = Signal { request: request.id, outcome, pair: place as u32, bytes: 0 };
            self.completions.push_back(signal);
        }
    }

    /// A failed queue pair gives up what it has, one by one.
    fn flush_one(&mut self, place: usize) {
        let pair = &mut self.pairs[place];
        let flushed = pair.landed.pop_front().or_else(|| pair.posted.pop_front());
        if let Some(request) = flushed {
            self.complete(place, &request, Outcome::Flushed);
        }
    }
}

impl ControlPort for Device {
    fn fill(&mut self, place: usize, slot: u32, header: [u8; HEADER_LEN], bytes: &[u8]) {
        let pair = &mut self.pairs[place];
        let in_use = pair.unseen.iter().any(|request| request.slot == slot && request.len > 0);
        assert!(!in_use, "a slot is written before its completion was seen");
        pair.slots[slot as usize] = [&header[..], bytes].concat();
    }

    fn post_sends(&mut self, place: usize, chain: &[SendRequest]) -> Result<(), usize> {
        let taken = if self.refuses_posts { chain.len() / 2 } else { chain.len() };
        let pair = &mut self.pairs[place];
        pair.posted.extend(&chain[..taken]);
        pair.unseen.extend(&chain[..taken]);
        if taken == chain.len() { Ok(()) } else { Err(taken) }
    }

    fn stop(&mut self, place: usize, mark: u64) -> bool {
        let pair = &mut self.pairs[place];
        pair.is_failed = true;
        pair.posted.push_back(SendRequest { id: mark, slot: 0, len: 0, signalled: true });
        true
    }
}

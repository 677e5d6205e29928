//! Queue pairs at their worst: bytes fetched in any order and at any time, completions late and out
//! of order across links, losses, a device that writes until the very flush.
//!
//! The device keeps no bytes but what they were: which slot's input, of which generation, a slice's
//! two halves came from. So the tests can tell a torn row from a whole one, and who writes where.

mod world;

use std::collections::{HashMap, VecDeque};

use baton_types::{Nanos, SplitMix64};

use super::{Completion, Outcome, Piece, Port, Request};
use crate::protocol::wire::TRAILER_LEN;

/// Where trailers land.
const TRAILERS: u64 = 1 << 40;

/// Chance, the same everywhere.
pub(in super::super) struct Dice(SplitMix64);

impl Dice {
    pub(in super::super) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    pub(in super::super) fn roll(&mut self, below: u64) -> u64 {
        self.0.below(below)
    }

    pub(in super::super) fn one_in(&mut self, n: u64) -> bool {
        self.roll(n) == 0
    }
}

/// What the peers' memory holds at this moment: of an address, the generation of the bytes there and
/// the trailer of its slot.
pub(super) trait Remote {
    fn generation(&self, addr: u64) -> u32;
    fn trailer(&self, addr: u64) -> u64;
}

/// What a place in local memory last got: from which address, and the generation of each half.
pub(super) type Landed = (u64, [u32; 2]);

struct InFlight {
    request: Request,
    halves: [Option<u32>; 2],
    trailer: Option<u64>,
}

impl InFlight {
    fn is_fetched(&self) -> bool {
        self.halves.iter().all(Option::is_some) && self.trailer.is_some()
    }
}

/// One link's queue pair.
#[derive(Default)]
struct SimPair {
    posted: VecDeque<InFlight>,
    /// Completions that have happened and cannot be seen yet.
    late: VecDeque<Completion>,
    is_failed: bool,
    /// Nothing moves until then, unless it fails.
    still_until: Nanos,
}

/// The device.
#[derive(Default)]
pub(super) struct SimDevice {
    pairs: Vec<SimPair>,
    memory: HashMap<u64, Landed>,
    trailers: HashMap<u64, u64>,
    /// Chains refused from now on.
    pub(super) refuses_posts: bool,
}

impl SimDevice {
    pub(super) fn renew(&mut self, place: usize) {
        if self.pairs.len() <= place {
            self.pairs.resize_with(place + 1, SimPair::default);
        }
        assert!(
            self.pairs[place].posted.is_empty(),
            "a queue pair is destroyed when it is drained"
        );
        self.pairs[place] = SimPair::default();
    }

    /// True if a request that has not completed names a byte of this range.
    pub(super) fn reaches(&self, addr: u64, len: u64) -> bool {
        let pieces = self.pairs.iter().flat_map(|pair| &pair.posted).map(|at| at.request.local[0]);
        pieces
            .into_iter()
            .any(|piece| piece.addr < addr + len && addr < piece.addr + u64::from(piece.len))
    }

    pub(super) fn landed(&self, addr: u64) -> Option<Landed> {
        self.memory.get(&addr).copied()
    }

    /// Nothing moves on this link until then, unless it fails.
    pub(super) fn pause(&mut self, place: usize, until: Nanos) {
        if let Some(pair) = self.pairs.get_mut(place) {
            pair.still_until = until;
        }
    }

    /// A loss the link does not recover from: the oldest request fails.
    pub(super) fn lose(&mut self, place: usize, status: Outcome) {
        let pair = &mut self.pairs[place];
        let Some(lost) = pair.posted.pop_front() else { return };
        pair.late.push_back(Completion { request: lost.request.id, outcome: status });
        pair.is_failed = true;
    }

    /// Something happens on a link: a piece is fetched, a request completes, or one is flushed.
    pub(super) fn step(&mut self, place: usize, now: Nanos, dice: &mut Dice, remote: &impl Remote) {
        let Some(pair) = self.pairs.get_mut(place) else { return };
        if pair.is_failed {
            return self.flush_one(place, dice);
        }
        if pair.posted.is_empty() || now < pair.still_until {
            return;
        }
        let at = dice.roll(pair.posted.len().min(4) as u64) as usize;
        let InFlight { request, halves, trailer } = &mut pair.posted[at];
        match dice.roll(3) {
            2 if request.local[1].len > 0 => *trailer = Some(remote.trailer(request.remote_addr)),
            2 => *trailer = Some(0),
            half => halves[half as usize] = Some(remote.generation(request.remote_addr)),
        }
        self.complete_fetched(place, dice);
    }

    /// Requests complete in order.
    fn complete_fetched(&mut self, place: usize, dice: &mut Dice) {
        let Self { pairs, memory, trailers, .. } = self;
        let pair = &mut pairs[place];
        // Lazily, so that several are fetched before the first completes.
        while !dice.one_in(3)
            && let Some(done) = pair.posted.pop_front_if(|front| front.is_fetched())
        {
            let [data, trailer] = done.request.local;
            let halves = done.halves.map(Option::unwrap_or_default);
            memory.insert(data.addr, (done.request.remote_addr, halves));
            if trailer.len > 0 {
                trailers.insert(trailer.addr, done.trailer.unwrap_or_default());
            }
            if done.request.signalled {
                let id = done.request.id;
                pair.late.push_back(Completion { request: id, outcome: Outcome::Done });
            }
        }
    }

    /// In the error state a request is given up, perhaps after its bytes were written.
    fn flush_one(&mut self, place: usize, dice: &mut Dice) {
        let Self { pairs, memory, .. } = self;
        let Some(flushed) = pairs[place].posted.pop_front() else { return };
        let data = flushed.request.local[0];
        if data.len > 0 && dice.one_in(2) {
            memory.insert(data.addr, (flushed.request.remote_addr, [u32::MAX; 2]));
        }
        let outcome = Outcome::Flushed;
        pairs[place].late.push_back(Completion { request: flushed.request.id, outcome });
    }

    /// Completions that can be seen now: some of each link's, links in any order.
    pub(super) fn poll(&mut self, dice: &mut Dice, all: bool) -> Vec<Completion> {
        let mut seen = Vec::new();
        let links = self.pairs.len();
        let first = dice.roll(links.max(1) as u64) as usize;
        for at in 0..links {
            let late = &mut self.pairs[(first + at) % links].late;
            let count = if all { late.len() } else { dice.roll(late.len() as u64 + 1) as usize };
            seen.extend(late.drain(..count));
        }
        seen
    }
}

impl Port for SimDevice {
    fn lkey(&self, _: u64, _: u32) -> Option<u32> {
        Some(1)
    }

    fn trailer_place(&self, op: u32) -> Piece {
        let addr = TRAILERS + u64::from(op) * TRAILER_LEN as u64;
        Piece { addr, len: TRAILER_LEN as u32, lkey: 2 }
    }

    fn trailer(&self, op: u32) -> u64 {
        self.trailers.get(&self.trailer_place(op).addr).copied().unwrap_or_default()
    }

    fn post(&mut self, place: usize, chain: &[Request]) -> Result<(), usize> {
        let taken = if self.refuses_posts { chain.len() / 2 } else { chain.len() };
        let pair = &mut self.pairs[place];
        let posted =
            |request: &Request| InFlight { request: *request, halves: [None; 2], trailer: None };
        pair.posted.extend(chain[..taken].iter().map(posted));
        if taken == chain.len() { Ok(()) } else { Err(taken) }
    }

    fn fail(&mut self, place: usize, last: u64) -> bool {
        let pair = &mut self.pairs[place];
        pair.is_failed = true;
        let local = [Piece::default(); 2];
        let request = Request { id: last, local, remote_addr: 0, rkey: 0, signalled: true };
        pair.posted.push_back(InFlight { request, halves: [None; 2], trailer: None });
        true
    }
}

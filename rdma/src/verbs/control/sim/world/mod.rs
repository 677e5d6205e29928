//! Both sides at random, and what must hold whatever happens.

mod tests;

use baton_types::Nanos;

use super::super::super::engine::sim::Dice;
use super::super::super::engine::{LinkFailure, Outcome};
use super::super::link::SessionParams;
use super::super::{Arrival, CONTROL, Control, HEADER_LEN, Header, RECEIVE, SPARE, Signal};
use super::{Device, LINKS, Pair};

const TIMEOUT: Nanos = Nanos(5_000);

/// One process.
struct Side {
    control: Control,
    device: Device,
    /// By link: bytes queued by this side, and bytes that arrived here.
    queued: [u64; LINKS],
    arrived: [u64; LINKS],
    window: u16,
    slots: u32,
    /// By link: buffers that SENDs have taken and that are not posted again.
    taken: [u32; LINKS],
    ended: [bool; LINKS],
}

/// The byte at a position of a link's stream.
fn byte(side: usize, place: usize, at: u64) -> u8 {
    (at ^ (at >> 7) ^ ((side * LINKS + place) as u64 * 37)) as u8
}

struct World {
    dice: Dice,
    seed: u64,
    now: Nanos,
    sides: [Side; 2],
    send_bytes: u32,
    queue_bytes: usize,
    /// Links that ended, SENDs that arrived, pushes refused.
    ends: u64,
    sends: u64,
    full: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let mut side = || {
            let (window, slots) = (1 + dice.roll(6) as u16, 1 + dice.roll(5) as u32);
            let buffers = LINKS as u32 * (u32::from(window) + SPARE);
            let device = Device {
                free: (0..buffers).collect(),
                buffers: vec![Vec::new(); buffers as usize],
                ..Device::default()
            };
            let control = Control::default();
            let (queued, arrived) = ([0; LINKS], [0; LINKS]);
            let (taken, ended) = ([0; LINKS], [true; LINKS]);
            Side { control, device, queued, arrived, window, slots, taken, ended }
        };
        let sides = [side(), side()];
        let send_bytes = HEADER_LEN as u32 + 1 + dice.roll(30) as u32;
        let queue_bytes = 1 + dice.roll(300) as usize;
        let (now, ends, sends, full) = (Nanos(1_000), 0, 0, 0);
        let mut world = Self { dice, seed, now, sides, send_bytes, queue_bytes, ends, sends, full };
        (0..LINKS).for_each(|place| world.connect(place));
        world
    }

    /// A link that ended on both sides is made anew.
    fn connect(&mut self, place: usize) {
        let windows = [self.sides[0].window, self.sides[1].window];
        for (at, side) in self.sides.iter_mut().enumerate() {
            side.device.pairs[place] =
                Pair { slots: vec![Vec::new(); side.slots as usize], ..Pair::default() };
            (side.queued[place], side.arrived[place], side.ended[place]) = (0, 0, false);
            side.control.open(place);
            let params = SessionParams {
                credits: windows[1 - at],
                window: windows[at],
                send_bytes: self.send_bytes,
                slots: side.slots,
                timeout: TIMEOUT,
                queue_bytes: self.queue_bytes,
            };
            side.control.up(place, params);
        }
    }

    /// One random thing happens.
    fn act(&mut self) {
        self.now = self.now + Nanos(self.dice.roll(4));
        let (at, place) = (self.dice.roll(2) as usize, self.dice.roll(LINKS as u64) as usize);
        match self.dice.roll(32) {
            0..=5 => self.push(at, place),
            6..=11 => self.pass(at, false),
            12..=16 => self.acknowledge(at, place),
            17 if self.dice.one_in(60) => self.lose(at, place),
            18 if self.dice.one_in(60) => self.close(at, place),
            19 if self.dice.one_in(200) => self.now = self.now + TIMEOUT,
            20 if self.dice.one_in(400) => self.intrude(at, place),
            _ => self.land(at, place),
        }
    }

    fn push(&mut self, at: usize, place: usize) {
        let side = &mut self.sides[at];
        let len = 1 + self.dice.roll(80) as usize;
        let from = side.queued[place];
        let fits = side.control.push(place, len, |bytes| {
            bytes.extend((from..from + len as u64).map(|position| byte(at, place, position)));
        });
        side.queued[place] += if fits { len as u64 } else { 0 };
        self.full += u64::from(!fits && !side.ended[place]);
    }

    /// The oldest SEND of a queue pair lands in a buffer of the peer, or is given up.
    fn land(&mut self, at: usize, place: usize) {
        let [a, b] = &mut self.sides;
        let (from, to) = if at == 0 { (a, b) } else { (b, a) };
        let pair = &mut from.device.pairs[place];
        if pair.is_failed {
            return from.device.flush_one(place);
        }
        let Some(request) = pair.posted.pop_front() else { return };
        if to.device.pairs[place].is_failed {
            pair.is_failed = true;
            return from.device.complete(place, &request, Outcome::Failed(12));
        }
        pair.landed.push_back(request);
        let buffer = to.device.free.pop_front();
        let buffer = buffer.unwrap_or_else(|| {
            panic!("the receiver is not ready; BATON_SIM_SEED={}", self.seed);
        });
        to.taken[place] += 1;
        let share = u32::from(to.window) + SPARE;
        assert!(to.taken[place] <= share, "beyond its share; BATON_SIM_SEED={}", self.seed);
        let bytes = pair.slots[request.slot as usize].clone();
        assert_eq!(bytes.len(), request.len as usize);
        to.device.completions.push_back(Signal {
            request: CONTROL | RECEIVE | u64::from(buffer),
            outcome: Outcome::Done,
            pair: place as u32,
            bytes: request.len,
        });
        to.device.buffers[buffer as usize] = bytes;
        self.sends += 1;
    }

    fn acknowledge(&mut self, at: usize, place: usize) {
        let device = &mut self.sides[at].device;
        if let Some(request) = device.pairs[place].landed.pop_front() {
            device.complete(place, &request, Outcome::Done);
        }
    }

    /// A SEND is lost, or its acknowledgement is.
    fn lose(&mut self, at: usize, place: usize) {
        let device = &mut self.sides[at].device;
        let pair = &mut device.pairs[place];
        let Some(request) = pair.landed.pop_front().or_else(|| pair.posted.pop_front()) else {
            return;
        };
        pair.is_failed = true;
        device.complete(place, &request, Outcome::Failed(12));
    }

    fn close(&mut self, at: usize, place: usize) {
        let in_full = self.dice.one_in(2);
        let side = &mut self.sides[at];
        side.control.close(place, in_full, &mut side.device);
    }

    /// A chain is refused by the driver.
    fn intrude(&mut self, at: usize, place: usize) {
        self.push(at, place);
        self.sides[at].device.refuses_posts = true;
        self.pass(at, false);
        self.sides[at].device.refuses_posts = false;
    }

    /// A side's thread runs once.
    fn pass(&mut self, at: usize, all: bool) {
        let there = self.sides[at].device.completions.len() as u64;
        let count = if all { there } else { self.dice.roll(there + 1) };
        for _ in 0..count {
            let signal = self.sides[at].device.completions.pop_front();
            self.take_in(at, &signal.expect("counted a moment ago"));
        }
        let side = &mut self.sides[at];
        side.control.expire(self.now, &mut side.device);
        side.control.pump(self.now, &mut side.device);
        for ended in std::mem::take(&mut side.control.ended) {
            assert!(side.device.pairs[ended.place].posted.is_empty(), "seed {}", self.seed);
            assert_ne!(ended.why, LinkFailure::Rules, "BATON_SIM_SEED={}", self.seed);
            side.ended[ended.place] = true;
            self.ends += 1;
        }
        self.settle();
    }

    fn take_in(&mut self, at: usize, signal: &Signal) {
        let side = &mut self.sides[at];
        let place = signal.pair as usize;
        let Some(buffer) = signal.buffer() else {
            let unseen = &mut side.device.pairs[place].unseen;
            while unseen.pop_front_if(|request| request.id <= signal.request).is_some() {}
            return side.control.complete(signal, &mut side.device);
        };
        let bytes = std::mem::take(&mut side.device.buffers[buffer as usize]);
        let header = Header::read(&bytes);
        let arrival = side.control.arrived(place, header, &mut side.device);
        if arrival == Arrival::Stream {
            for received in &bytes[HEADER_LEN..] {
                let position = side.arrived[place];
                let expected = byte(1 - at, place, position);
                assert_eq!(*received, expected, "BATON_SIM_SEED={}", self.seed);
                side.arrived[place] += 1;
            }
        }
        side.device.free.push_back(buffer);
        side.taken[place] -= 1;
        if arrival == Arrival::Stream {
            side.control.reposted(place);
        }
    }

    /// The connection beside a link tells the other side of its end; then it is made anew.
    fn settle(&mut self) {
        for place in 0..LINKS {
            let ended = [self.sides[0].ended[place], self.sides[1].ended[place]];
            if ended == [true, true] {
                let [a, b] = &self.sides;
                let order =
                    a.arrived[place] <= b.queued[place] && b.arrived[place] <= a.queued[place];
                assert!(order, "BATON_SIM_SEED={}", self.seed);
                // Receives of the old queue pair are seen before there is another.
                if self.sides.iter().all(|side| side.device.completions.is_empty()) {
                    self.connect(place);
                }
            } else if let Some(at) = [1, 0].into_iter().find(|at| ended[1 - at])
                && self.dice.one_in(4)
            {
                let side = &mut self.sides[at];
                side.control.close(place, false, &mut side.device);
            }
        }
    }

    /// Nothing more is broken: everything arrives.
    fn come_to_rest(&mut self) {
        for round in 0..40_000 {
            self.now = self.now + Nanos(1);
            let (at, place) = (round % 2, round / 2 % LINKS);
            (0..8).for_each(|_| self.land(at, place));
            (0..8).for_each(|_| self.acknowledge(at, place));
            self.pass(at, true);
            if round % 12 == 0 && self.is_at_rest() {
                return;
            }
        }
        panic!("bytes that never arrive; BATON_SIM_SEED={}", self.seed);
    }

    fn is_at_rest(&self) -> bool {
        let [a, b] = &self.sides;
        let whole = (0..LINKS).all(|place| {
            a.queued[place] == b.arrived[place] && b.queued[place] == a.arrived[place]
        });
        let up = [a, b].iter().all(|side| {
            side.ended == [false; LINKS]
                && side.device.completions.is_empty()
                && side.control.is_delivered()
                && side.device.free.len() == side.device.buffers.len()
        });
        whole && up
    }
}

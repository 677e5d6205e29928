//! A backend that reads, aborts and loses peers at random, and frontends that go on using their
//! slots. What is checked: no byte of a recycled slot is ever taken for an input, no row is given
//! back while the device can write to it, and every READ completes exactly once.

mod tests;

use std::sync::Arc;

use baton_types::{FrontendId, Nanos, TaskId};

use super::super::{Notice, Outcome, PullBounds, ReadEngine, RemoteSlab};
use super::{Dice, Remote, SimDevice};
use crate::memory::landing::BatchBuffer;
use crate::transport::{ConnId, Read, ReadDone, ReadStatus};

const LINKS: usize = 3;
const SLOTS: u32 = 6;
const ROWS: u32 = 16;
const INPUT: u32 = 100;
const SLICE: u32 = 40;
const STRIDE: u32 = 128;
const TIMEOUT: Nanos = Nanos(1_000);
/// Each peer's memory begins at a multiple of this.
const PEER: u64 = 1 << 30;

#[derive(Clone, Copy)]
enum Phase {
    InFlight,
    Resting(Nanos),
    /// The bytes are being written; the trailer names no task yet.
    Filling,
}

struct SimSlot {
    phase: Phase,
    /// Of the task, of the bytes, and the trailer.
    generation: u32,
    bytes: u32,
    trailer: u64,
}

struct Frontends(Vec<Vec<SimSlot>>);

impl Frontends {
    fn at(&self, addr: u64) -> &SimSlot {
        let (peer, offset) = (addr / PEER - 1, addr % PEER);
        &self.0[peer as usize][offset as usize / STRIDE as usize]
    }
}

impl Remote for Frontends {
    fn generation(&self, addr: u64) -> u32 {
        self.at(addr).bytes
    }

    fn trailer(&self, addr: u64) -> u64 {
        self.at(addr).trailer
    }
}

fn task(link: usize, slot: u32, generation: u32) -> TaskId {
    TaskId::new(FrontendId(link as u16), slot, generation)
}

fn addr_of(task: TaskId) -> u64 {
    PEER * (u64::from(task.frontend().0) + 1) + u64::from(task.slot() * STRIDE)
}

pub(super) struct World {
    dice: Dice,
    seed: u64,
    now: Nanos,
    read_engine: ReadEngine,
    device: SimDevice,
    frontends: Frontends,
    buffer: Arc<BatchBuffer>,
    /// By row: what is being read into it, over which link.
    reading: Vec<Option<(TaskId, usize)>>,
    /// Links whose queue pair is not connected.
    down: Vec<usize>,
    rest: Nanos,
    stalled_until: Nanos,
    posted: u64,
    by_status: [u64; 5],
    /// Rows that counted as inputs and held bytes of another task.
    foreign: u64,
}

impl World {
    pub(super) fn new(seed: u64, rest: Nanos) -> Self {
        let slots = |link: usize| {
            let slot = |slot| SimSlot {
                phase: Phase::InFlight,
                generation: 0,
                bytes: 0,
                trailer: task(link, slot, 0).0,
            };
            (0..SLOTS).map(slot).collect()
        };
        let mut dice = Dice::new(seed);
        let bounds = PullBounds {
            slice_bytes: SLICE,
            credit_bytes: [0, 150, 400, 1_000][dice.roll(4) as usize],
            posted_max: 4 + dice.roll(40) as usize,
            ops_max: 1 + dice.roll(12) as usize,
        };
        let mut world = Self {
            dice,
            seed,
            now: Nanos(1_000_000),
            read_engine: ReadEngine::new(bounds),
            device: SimDevice::default(),
            frontends: Frontends((0..LINKS).map(slots).collect()),
            buffer: BatchBuffer::new((ROWS * INPUT) as usize).unwrap(),
            reading: vec![None; ROWS as usize],
            down: (0..LINKS).collect(),
            rest,
            stalled_until: Nanos::ZERO,
            posted: 0,
            by_status: [0; 5],
            foreign: 0,
        };
        (0..LINKS).for_each(|place| world.read_engine.open(place, ConnId(place as u64)));
        world
    }

    /// One random thing happens.
    fn act(&mut self) {
        self.now = self.now + Nanos(self.dice.roll(4));
        let link = self.dice.roll(LINKS as u64) as usize;
        match self.dice.roll(64) {
            0..=4 => self.post(link),
            5 if self.dice.one_in(8) => self.abort(),
            6 if self.dice.one_in(20) => self.break_link(link),
            7..=8 => self.connect(),
            9 => self.turn_slot(link),
            10..=20 if self.stalled_until < self.now => self.pass(false),
            // The thread is put aside while the frontends go on; the fabric is slow, then quick.
            21 if self.dice.one_in(30) => {
                let (thread, link_back) =
                    (self.dice.roll(3 * TIMEOUT.0), self.dice.roll(TIMEOUT.0));
                self.stalled_until = self.now + Nanos(thread);
                let slow_until = self.now + Nanos(thread.saturating_sub(link_back));
                self.device.pause(link, slow_until);
            }
            _ => self.device.step(link, self.now, &mut self.dice, &self.frontends),
        }
    }

    fn post(&mut self, link: usize) {
        let row = self.dice.roll(ROWS.into()) as u32;
        let bytes = INPUT;
        if self.reading[row as usize].is_some() {
            return;
        }
        let slot = self.dice.roll(u64::from(SLOTS) + 1) as u32;
        // A backend learns an id once its input is complete; until then it knows the one before.
        let known = self.frontends.0[link].get(slot as usize).map_or(0, |slot| match slot.phase {
            Phase::InFlight => slot.generation,
            Phase::Resting(_) | Phase::Filling => slot.generation - 1,
        });
        let stale = u32::from(self.dice.one_in(10));
        let task = task(link, slot, known.wrapping_sub(stale) % TaskId::GENERATIONS);
        let row_mut = self.buffer.lend(row, bytes).expect("a row that is not read into is free");
        self.reading[row as usize] = Some((task, link));
        self.posted += 1;
        let tag = u64::from(row);
        self.read_engine.push(link, Read { conn: ConnId(link as u64), task, row: row_mut, tag });
    }

    fn abort(&mut self) {
        let row = self.dice.roll(ROWS.into());
        if let Some((_, link)) = self.reading[row as usize] {
            self.read_engine.abort(link, row, &mut self.device);
            self.settle();
        }
    }

    /// A slot's life goes on, often by several steps at once.
    fn turn_slot(&mut self, link: usize) {
        let index = self.dice.roll(SLOTS.into()) as u32;
        self.turn(link, index);
        while !self.dice.one_in(3) {
            self.turn(link, index);
        }
    }

    fn turn(&mut self, link: usize, index: u32) {
        let slot = &mut self.frontends.0[link][index as usize];
        slot.phase = match slot.phase {
            Phase::InFlight => {
                slot.trailer = !slot.trailer;
                slot.generation += 1;
                Phase::Resting(self.now + self.rest)
            }
            Phase::Resting(until) if until < self.now || self.rest == Nanos::ZERO => {
                slot.bytes = slot.generation;
                Phase::Filling
            }
            resting @ Phase::Resting(_) => resting,
            Phase::Filling => {
                slot.trailer = task(link, index, slot.generation).0;
                Phase::InFlight
            }
        };
    }

    /// The backend's I/O thread runs once.
    fn pass(&mut self, all: bool) {
        for completion in self.device.poll(&mut self.dice, all) {
            self.read_engine.complete(completion, self.now, &mut self.device);
        }
        self.read_engine.expire(self.now, &mut self.device);
        self.device.refuses_posts = !all && self.dice.one_in(200);
        self.read_engine.pump(self.now, &mut self.device);
        self.device.refuses_posts = false;
        self.settle();
    }

    fn break_link(&mut self, link: usize) {
        if self.down.contains(&link) || !self.read_engine.has(link) {
            return;
        }
        match self.dice.roll(4) {
            0 => self.device.lose(link, Outcome::Failed(12)),
            1 => self.device.lose(link, Outcome::Refused),
            2 => self.device.pause(link, Nanos::MAX),
            _ => self.read_engine.close(link, &mut self.device),
        }
        self.settle();
    }

    /// A link that is down comes up, with a fresh queue pair.
    fn connect(&mut self) {
        let Some(place) = self.down.pop() else { return };
        let depth = 1 + self.dice.roll(9) as u8;
        self.connect_with(place, depth);
    }

    fn connect_with(&mut self, place: usize, depth: u8) {
        self.device.renew(place);
        let slab = RemoteSlab {
            first_slot: 0,
            slots: SLOTS,
            stride: STRIDE,
            input_bytes: INPUT,
            addr: PEER * (place as u64 + 1),
            rkey: 7,
        };
        self.read_engine.up(place, vec![slab], depth, TIMEOUT);
    }

    /// Takes in what the engine has finished.
    fn settle(&mut self) {
        for done in std::mem::take(&mut self.read_engine.done) {
            self.check(&done);
        }
        for notice in std::mem::take(&mut self.read_engine.notices) {
            let place = match notice {
                Notice::Relink(place) => place,
                Notice::Lost(place, _) | Notice::Gone(place) => {
                    self.read_engine.open(place, ConnId(place as u64));
                    place
                }
            };
            self.down.push(place);
        }
    }

    fn check(&mut self, done: &ReadDone) {
        let Self { seed, device, .. } = self;
        let addr = done.row.as_ptr().addr() as u64;
        assert!(
            !device.reaches(addr, INPUT.into()),
            "a row is given back while the device can write to it; BATON_SIM_SEED={seed}"
        );
        let row = done.tag as usize;
        let (task, _) = self.reading[row].take().expect("a READ completes once");
        assert_eq!(task, done.task, "BATON_SIM_SEED={seed}");
        self.by_status[done.status as usize] += 1;
        if done.status != ReadStatus::Done {
            return;
        }
        for at in (0..INPUT).step_by(SLICE as usize) {
            let from = addr_of(task) + u64::from(at);
            let landed = device.landed(addr + u64::from(at));
            let whole = landed == Some((from, [task.generation(); 2]));
            self.foreign += u64::from(!whole);
        }
    }

    /// Nothing more is broken: everything completes.
    fn come_to_rest(&mut self) {
        for _ in 0..20_000 {
            self.now = self.now + Nanos(20);
            self.connect();
            (0..LINKS * 8).for_each(|at| {
                self.device.step(at % LINKS, self.now, &mut self.dice, &self.frontends);
            });
            self.pass(true);
            if self.reading.iter().all(Option::is_none) && self.read_engine.is_drained() {
                break;
            }
        }
        let open = self.reading.iter().flatten().count();
        assert_eq!(open, 0, "READs that never complete; BATON_SIM_SEED={}", self.seed);
        assert_eq!(self.by_status.iter().sum::<u64>(), self.posted);
        assert_eq!(self.read_engine.credit.in_flight(), 0, "BATON_SIM_SEED={}", self.seed);
        assert!(self.buffer.rows(ROWS, INPUT).is_some(), "every row came back");
    }
}

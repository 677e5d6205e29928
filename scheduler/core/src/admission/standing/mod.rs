//! Which frontends of a model ask for more than their share of it.
//!
//! In: who asks, and what became of the tasks so far. Out: whether there is more demand than the model
//! can serve, who then asks for more than its share, and how long the queue may be. The share is
//! max-min fair: the level at which the demands, cut off there, are what was served. Nobody is limited
//! while next to nothing is given up, or one frontend asks alone.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::mem;
use core::ops::RangeInclusive;

use crate::units::ids::FrontendId;
use crate::units::time::Nanos;

/// Demand is counted by ticks: half an objective, within these bounds.
const TICK: RangeInclusive<u64> = 25_000_000..=500_000_000;
/// A sum loses one part of so many in a tick.
const MEMORY: u64 = 40;
/// The parts that a task is counted in.
const SCALE: u64 = 1024;
/// Fewer tasks lost than this are no reason to limit anybody,
const PRESSURE_MIN: u64 = 8 * SCALE;
/// nor is a smaller share of all: 1/64.
const PRESSURE_SHARE: u64 = 64;
/// How long the queue may be, as parts of the target batch size: at first, …
const FULL: u64 = 4096;
const ROOM_FIRST: u64 = FULL / 8 * 7;
/// … and at all.
const ROOM: RangeInclusive<u64> = FULL / 2..=FULL * 4;
/// It is looked at once in so many ticks, and not before so many tasks went or were given up.
const ROOM_TICKS: u32 = 4;
const ROOM_TASKS: u64 = 64;
/// It shrinks where more than 1/1024 of those let in are given up, …
const LOSS_SHARE: u64 = 1024;
/// … and grows by 1/256 otherwise.
const GROWTH: u64 = 256;
/// Ticks after its first task in which a frontend that comes during a rush is one of the newcomers,
const NEWCOMER: u32 = MEMORY as u32;
/// and after its latest in which it is remembered.
const SEATED: u32 = 16 * MEMORY as u32;
/// After so many ticks it is looked whether the rush is over.
const CALM_TICKS: u32 = 8;
/// Ticks after the limit began in which what is given up had been let in before.
const SETTLING: u64 = 8;

/// What became of a model's tasks since start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Fate {
    /// In batches that were sent.
    pub(crate) dispatched: u64,
    /// Let in, and given up for want of time.
    pub(crate) given_up: u64,
}

/// Tasks per [`MEMORY`] ticks in the recent past, in 1/[`SCALE`]; the older count less.
#[derive(Clone, Copy, Default, Debug)]
struct Recent {
    sum: u64,
    /// Tasks in this tick.
    open: u64,
}

impl Recent {
    /// A tick is over, the `age`-th of those that count.
    fn close(&mut self, age: u64) {
        let tasks = mem::take(&mut self.open) * SCALE;
        self.sum = (self.sum * (age - 1) + tasks * MEMORY) / age;
    }

    fn now(&self) -> u64 {
        self.sum + self.open * SCALE
    }
}

/// A frontend that asked not long ago.
#[derive(Clone, Debug)]
struct Seat {
    frontend: FrontendId,
    /// The ticks of its first and its latest task.
    since: u32,
    last: u32,
    /// There was a limit when it came, less than [`NEWCOMER`] ticks ago.
    is_new: bool,
    demand: Recent,
}

/// One model's; see the module documentation. Allocates when it is made and never again.
#[derive(Clone, Debug)]
pub(crate) struct Standings {
    tick: Nanos,
    tick_ends: Nanos,
    ticks: u32,
    /// Ticks that count: since the limit began, at most [`MEMORY`].
    age: u64,
    /// By frontend: one more than its place among the seats, or 0.
    places: Box<[u16]>,
    seats: Vec<Seat>,
    /// What newcomers asked for, together: whoever leaves and joins again is one.
    newcomers: Recent,
    served: Recent,
    /// Given up, not let in, or sent away.
    lost: Recent,
    /// While there is a limit: the share of each, as [`Recent::sum`].
    level: Option<u64>,
    /// So much longer the model counts as shared if only one frontend asks: another may join again.
    shared_for: u32,
    /// Tasks since the tick in which it was last looked whether the rush is over.
    asked: u64,
    counted_at: u32,
    /// In 1/[`FULL`] of the target batch size.
    room: u64,
    seen: Fate,
    /// When the room was looked at.
    judged: Fate,
}

impl Standings {
    /// For frontends `0..frontends` of a model with the latency objective `slo`. Others are never limited.
    pub(crate) fn new(slo: Nanos, frontends: u32) -> Self {
        Self {
            tick: Nanos((slo.0 / 2).clamp(*TICK.start(), *TICK.end())),
            tick_ends: Nanos::ZERO,
            ticks: 0,
            age: MEMORY,
            places: vec![0; frontends as usize].into_boxed_slice(),
            seats: Vec::with_capacity(frontends as usize),
            newcomers: Recent::default(),
            served: Recent::default(),
            lost: Recent::default(),
            level: None,
            shared_for: 0,
            asked: 0,
            counted_at: 0,
            room: ROOM_FIRST,
            seen: Fate::default(),
            judged: Fate::default(),
        }
    }

    /// [`Standings::close_ticks`] is to be called before the next task.
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        now >= self.tick_ends
    }

    /// A task of `frontend` arrived.
    pub(crate) fn on_task(&mut self, frontend: FrontendId) {
        match self.places.get(usize::from(frontend.0)) {
            None => {}
            Some(0) => self.take_seat(frontend),
            Some(&place) => self.seats[usize::from(place) - 1].demand.open += 1,
        }
    }

    fn take_seat(&mut self, frontend: FrontendId) {
        let (since, is_new) = (self.ticks, self.level.is_some());
        let demand = Recent { sum: 0, open: 1 };
        self.seats.push(Seat { frontend, since, last: since, is_new, demand });
        self.places[usize::from(frontend.0)] = self.seats.len() as u16;
    }

    /// A task was not let in, or had to leave.
    pub(crate) fn on_refused(&mut self) {
        self.lost.open += 1;
    }

    /// A frontend has left or died: whoever comes under its number next is another.
    pub(crate) fn forget(&mut self, frontend: FrontendId) {
        let Some(place) = self.places.get_mut(usize::from(frontend.0)) else { return };
        let place = usize::from(mem::take(place));
        if place > 0 {
            let seat = self.seats.swap_remove(place - 1);
            self.count(&seat);
            if let Some(moved) = self.seats.get(place - 1) {
                self.places[usize::from(moved.frontend.0)] = place as u16;
            }
        }
    }

    /// How many tasks may wait, if there is a limit.
    pub(crate) fn room(&self, target: u32) -> Option<usize> {
        self.level.map(|_| (u64::from(target) * self.room).div_ceil(FULL) as usize)
    }

    /// Whether `frontend` asks for more than its share. Nobody does while there is no limit.
    pub(crate) fn is_over(&self, frontend: FrontendId) -> bool {
        let place = self.places.get(usize::from(frontend.0)).map_or(0, |&place| usize::from(place));
        let (Some(level), Some(place)) = (self.level, place.checked_sub(1)) else { return false };
        let seat = &self.seats[place];
        let newcomers = if seat.is_new { self.newcomers.now() } else { 0 };
        seat.demand.now().max(newcomers) > level
    }

    /// Time has passed, and until now `fate` happened to the tasks.
    pub(crate) fn close_ticks(&mut self, now: Nanos, fate: Fate) {
        let passed = (now - self.tick_ends).0 / self.tick.0 + 1;
        self.tick_ends = self.tick_ends + self.tick.times(passed);
        self.served.open += fate.dispatched - self.seen.dispatched;
        self.lost.open += fate.given_up - self.seen.given_up;
        self.seen = fate;
        if passed > MEMORY {
            self.rest(passed);
        } else {
            (0..passed).for_each(|_| self.close_tick());
        }
        self.review();
    }

    /// Nobody has asked for so many ticks that what was before does not count. Many seats times many ticks
    /// would hold up the other models of the thread.
    fn rest(&mut self, ticks: u64) {
        self.close_tick();
        self.ticks = self.ticks.wrapping_add(ticks as u32 - 1);
        (self.age, self.level) = (MEMORY, None);
        (self.newcomers, self.served, self.lost) = Default::default();
        for seat in &mut self.seats {
            (seat.is_new, seat.demand) = (false, Recent::default());
        }
    }

    fn close_tick(&mut self) {
        for place in (0..self.seats.len()).rev() {
            let seat = self.seats[place].clone();
            self.count(&seat);
            if seat.demand.open > 0 {
                self.seats[place].last = self.ticks;
            } else if self.ticks.wrapping_sub(seat.last) >= SEATED {
                self.forget(seat.frontend);
            }
        }
        self.ticks = self.ticks.wrapping_add(1);
        self.age = (self.age + 1).min(MEMORY);
        for recent in [&mut self.newcomers, &mut self.served] {
            recent.close(self.age);
        }
        self.lost.close(MEMORY);
        for seat in &mut self.seats {
            seat.demand.close(self.age);
            if seat.is_new && self.ticks.wrapping_sub(seat.since) >= NEWCOMER {
                // From now on it counts by itself, and no longer among the others.
                seat.is_new = false;
                self.newcomers.sum = self.newcomers.sum.saturating_sub(seat.demand.sum);
            }
        }
    }

    /// What was asked for in this tick from a seat.
    fn count(&mut self, seat: &Seat) {
        self.asked += seat.demand.open;
        if seat.is_new {
            self.newcomers.open += seat.demand.open;
        }
    }

    /// Whether there is to be a limit, and what each may have of it.
    fn review(&mut self) {
        let asking = self.seats.iter().filter(|seat| seat.demand.sum >= SCALE).count();
        self.shared_for = if asking >= 2 { NEWCOMER } else { self.shared_for.saturating_sub(1) };
        let pressing = self.lost.sum >= PRESSURE_MIN
            && self.lost.sum * PRESSURE_SHARE >= self.served.sum + self.lost.sum;
        let calm = self.is_calm();
        if self.level.is_none() && pressing && asking >= 2 {
            // What was asked for before the rush says little.
            self.age = 0;
            self.level = Some(u64::MAX);
            (self.asked, self.counted_at) = (0, self.ticks);
        } else if calm || !pressing || self.shared_for == 0 {
            self.level = None;
        } else if self.level.is_some() {
            self.divide();
        }
    }

    /// For a while so little was asked for that everybody can be served.
    fn is_calm(&mut self) -> bool {
        let ticks = self.ticks.wrapping_sub(self.counted_at);
        if ticks < CALM_TICKS {
            return false;
        }
        self.counted_at = self.ticks;
        let asked = mem::take(&mut self.asked) * SCALE * MEMORY / u64::from(ticks);
        let calm = asked < self.served.sum - self.served.sum / 8;
        if calm {
            self.lost = Recent::default();
        }
        calm
    }

    fn divide(&mut self) {
        if self.age < SETTLING {
            self.judged = self.seen;
        } else if self.ticks.is_multiple_of(ROOM_TICKS) {
            self.judge_room();
        }
        let settled = self.seats.iter().filter(|seat| !seat.is_new);
        let settled = settled.map(|seat| seat.demand.sum);
        let demands = || settled.clone().chain([self.newcomers.sum]);
        self.level = Some(level(demands, self.served.sum));
    }

    /// A longer queue keeps the GPUs busier, and one that is too long lets tasks in that are given up.
    fn judge_room(&mut self) {
        let given_up = self.seen.given_up - self.judged.given_up;
        let ended = given_up + self.seen.dispatched - self.judged.dispatched;
        if ended < ROOM_TASKS {
            return;
        }
        self.judged = self.seen;
        if given_up * LOSS_SHARE > ended {
            self.room -= (self.room * 2 * given_up / ended).min(self.room / 8);
        } else {
            self.room += self.room / GROWTH;
        }
        self.room = self.room.clamp(*ROOM.start(), *ROOM.end());
    }
}

/// The level at which `Σ min(demand, level)` is `total`; [`u64::MAX`] if there is no more demand.
fn level<I: Iterator<Item = u64>>(demands: impl Fn() -> I, total: u64) -> u64 {
    if demands().sum::<u64>() <= total {
        return u64::MAX;
    }
    let mut level = 0;
    loop {
        let below = demands().filter(|&demand| demand <= level);
        let (count, sum) = below.fold((0, 0), |(count, sum), demand| (count + 1, sum + demand));
        let next = (total - sum) / (demands().count() as u64 - count).max(1);
        if next <= level {
            return level;
        }
        level = next;
    }
}

#[cfg(test)]
mod tests;

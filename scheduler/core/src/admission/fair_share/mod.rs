//! Max-min fair shares of a model's capacity among the frontends (tenants) that ask for it.
//!
//! In: who submits, and how many tasks were dispatched and given up. Out: whether demand exceeds capacity, which
//! tenants then exceed their share, and how long the queue may be. The share is the level at which the demands,
//! each cut off there, add up to what was served. No tenant is limited while next to nothing is lost, or while
//! only one submits.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::mem;
use core::ops::RangeInclusive;

use self::queue_limit::QueueLimit;
use self::spare::SpareTime;
use baton_types::{FrontendId, Nanos};

mod queue_limit;
mod spare;

/// Length of a tick, over which demand is counted: half an objective, within these bounds, in ns.
const TICK: RangeInclusive<u64> = 25_000_000..=500_000_000;
/// A [`DecayingSum`] loses 1/[`MEMORY`] in each tick.
const MEMORY: u64 = 40;
/// Fixed point of the sums: a task counts [`SCALE`].
const SCALE: u64 = 1024;
/// The limit begins only if at least this many tasks were lost, in 1/[`SCALE`].
const PRESSURE_MIN: u64 = 8 * SCALE;
/// The limit begins only if at least 1/[`PRESSURE_SHARE`] of the tasks was lost.
const PRESSURE_SHARE: u64 = 64;
/// Ticks between two adjustments of the queue limit.
const QUEUE_LIMIT_TICKS: u32 = 4;
/// Ticks in which a frontend that came while there was a limit counts among the recent joiners.
const JOINED_RECENTLY: u32 = MEMORY as u32;
/// Ticks after its latest task in which a frontend is remembered.
const REMEMBERED: u32 = 16 * MEMORY as u32;
/// Ticks between two looks at whether demand has fallen.
const CALM_TICKS: u32 = 8;
/// Ticks after the limit began in which tasks are given up that were admitted before it.
const SETTLING: u64 = 8;

/// How a model's tasks have ended since start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct TaskCounts {
    /// In batches that were sent.
    pub(crate) dispatched: u64,
    /// Let in, and given up for want of time.
    pub(crate) given_up: u64,
}

/// How a model's batches follow each other on the slots that serve it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns {
    /// Mean time between two.
    pub(crate) gap: Nanos,
    /// Mean GPU time of one.
    pub(crate) latency: Nanos,
}

impl Turns {
    /// The gap if batches took `latency`. Those of other models stay as they are, so it changes by the difference over
    /// the number of slots, which are at least those that this model keeps busy.
    pub(crate) fn gap_at(self, latency: Nanos) -> Nanos {
        let slots = ((self.latency.0 + self.gap.0 / 2) / self.gap.0.max(1)).max(1);
        self.gap + Nanos(latency.0 / slots) - Nanos(self.latency.0 / slots)
    }
}

/// Tasks, batches, or GPU time, per [`MEMORY`] ticks, in 1/[`SCALE`]; older ones count less.
#[derive(Clone, Copy, Default, Debug)]
struct DecayingSum {
    sum: u64,
    /// In this tick.
    open: u64,
}

impl DecayingSum {
    /// A tick is over, the `age`-th of those that count.
    fn close(&mut self, age: u64) {
        let open = mem::take(&mut self.open) * SCALE;
        self.sum = (self.sum * (age - 1) + open * MEMORY) / age;
    }

    fn now(&self) -> u64 {
        self.sum + self.open * SCALE
    }
}

/// A frontend that has submitted in the last [`REMEMBERED`] ticks.
#[derive(Clone, Debug)]
struct Tenant {
    frontend: FrontendId,
    /// The ticks of its first and its latest task.
    since: u32,
    last: u32,
    /// There was a limit when it came, less than [`JOINED_RECENTLY`] ticks ago.
    is_new: bool,
    demand: DecayingSum,
}

/// One model's; see the module documentation. Allocates when it is made and never again.
#[derive(Clone, Debug)]
pub(crate) struct FairShare {
    slo: Nanos,
    tick: Nanos,
    tick_ends: Nanos,
    ticks: u32,
    /// Ticks that count: since the limit began, at most [`MEMORY`].
    age: u64,
    /// By frontend: one more than its place among the tenants, or 0.
    places: Box<[u16]>,
    tenants: Vec<Tenant>,
    /// What recent joiners asked for, together: a frontend that leaves and joins again is one.
    recent_joiners: DecayingSum,
    served: DecayingSum,
    batches: DecayingSum,
    /// GPU time of the batches, in 1,024 ns.
    busy: DecayingSum,
    /// Given up, not let in, or sent away.
    lost: DecayingSum,
    /// While there is a limit: the share of each, as [`DecayingSum::sum`].
    fair_level: Option<u64>,
    /// How much longer the model counts as shared if only one frontend asks: another may join.
    shared_for: u32,
    /// Tasks since the tick in which it was last looked whether the rush is over.
    asked: u64,
    counted_at: u32,
    queue_limit: QueueLimit,
    seen: TaskCounts,
}

/// How often the shares are looked at.
fn tick(slo: Nanos) -> Nanos {
    Nanos((slo.0 / 2).clamp(*TICK.start(), *TICK.end()))
}

impl FairShare {
    pub(crate) fn set_objective(&mut self, slo: Nanos) {
        (self.slo, self.tick) = (slo, tick(slo));
    }

    /// For frontends `0..frontends` of a model with the latency objective `slo`. Others are never limited.
    pub(crate) fn new(slo: Nanos, frontends: u32) -> Self {
        Self {
            slo,
            tick: tick(slo),
            tick_ends: Nanos::ZERO,
            ticks: 0,
            age: MEMORY,
            places: vec![0; frontends as usize].into_boxed_slice(),
            tenants: Vec::with_capacity(frontends as usize),
            recent_joiners: DecayingSum::default(),
            served: DecayingSum::default(),
            batches: DecayingSum::default(),
            busy: DecayingSum::default(),
            lost: DecayingSum::default(),
            fair_level: None,
            shared_for: 0,
            asked: 0,
            counted_at: 0,
            queue_limit: QueueLimit::new(),
            seen: TaskCounts::default(),
        }
    }

    /// [`FairShare::close_ticks`] is to be called before the next task.
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        now >= self.tick_ends
    }

    /// A task of `frontend` arrived.
    pub(crate) fn on_task(&mut self, frontend: FrontendId) {
        match self.places.get(usize::from(frontend.0)) {
            None => {}
            Some(0) => self.add_tenant(frontend),
            Some(&place) => {
                let tenant = &mut self.tenants[usize::from(place) - 1];
                debug_assert_eq!(tenant.frontend, frontend, "it keeps its place");
                tenant.demand.open += 1;
            }
        }
    }

    fn add_tenant(&mut self, frontend: FrontendId) {
        let (since, is_new) = (self.ticks, self.fair_level.is_some());
        let demand = DecayingSum { sum: 0, open: 1 };
        self.tenants.push(Tenant { frontend, since, last: since, is_new, demand });
        self.places[usize::from(frontend.0)] = self.tenants.len() as u16;
    }

    /// A task was not let in, or had to leave.
    pub(crate) fn on_refused(&mut self) {
        self.lost.open += 1;
    }

    /// A batch was dispatched that takes `latency` of a GPU, with `spare` left to its latest moment, or to a slot that
    /// had been idle for as long.
    #[inline]
    pub(crate) fn on_dispatch(&mut self, latency: Nanos, spare: Nanos) {
        self.batches.open += 1;
        self.busy.open += latency.0 >> 10;
        self.queue_limit.spare.on_dispatch(spare);
    }

    /// A frontend has left or died: the next one under its number is another.
    pub(crate) fn forget(&mut self, frontend: FrontendId) {
        let Some(place) = self.places.get_mut(usize::from(frontend.0)) else { return };
        let place = usize::from(mem::take(place));
        if place > 0 {
            let tenant = self.tenants.swap_remove(place - 1);
            self.count(&tenant);
            if let Some(moved) = self.tenants.get(place - 1) {
                self.places[usize::from(moved.frontend.0)] = place as u16;
            }
        }
    }

    /// How many tasks may wait, if there is a limit.
    pub(crate) fn queue_limit(&self) -> Option<usize> {
        self.fair_level.map(|_| self.queue_limit.tasks())
    }

    /// How the model's batches take turns, if there is a limit and has been a batch.
    pub(crate) fn turns(&self) -> Option<Turns> {
        self.fair_level?;
        let batches = self.batches.now();
        let span = self.tick.times(MEMORY * SCALE).0;
        let gap = Nanos(span.checked_div(batches)?);
        Some(Turns { gap, latency: Nanos((self.busy.now() << 10) / batches) })
    }

    /// How many tasks can wait and be served in time.
    pub(crate) fn set_room(&mut self, room: u32) {
        self.queue_limit.room = room;
    }

    /// Whether `frontend` asks for more than its share. No frontend does while there is no limit.
    pub(crate) fn is_over(&self, frontend: FrontendId) -> bool {
        let place = self.places.get(usize::from(frontend.0)).map_or(0, |&place| usize::from(place));
        let (Some(fair_level), Some(place)) = (self.fair_level, place.checked_sub(1)) else {
            return false;
        };
        let tenant = &self.tenants[place];
        let recent_joiners = if tenant.is_new { self.recent_joiners.now() } else { 0 };
        tenant.demand.now().max(recent_joiners) > fair_level
    }

    /// Time has passed, and until now `counts` happened to the tasks.
    pub(crate) fn close_ticks(&mut self, now: Nanos, counts: TaskCounts) {
        let passed = (now - self.tick_ends).0 / self.tick.0 + 1;
        self.tick_ends = self.tick_ends + self.tick.times(passed);
        self.served.open += counts.dispatched - self.seen.dispatched;
        self.lost.open += counts.given_up - self.seen.given_up;
        self.seen = counts;
        if passed > MEMORY {
            self.reset_after(passed);
        } else {
            (0..passed).for_each(|_| self.close_tick());
        }
        self.review();
    }

    /// No frontend has asked for more than [`MEMORY`] ticks: what was before does not count. Many
    /// tenants times many ticks would hold up the other models of the thread.
    fn reset_after(&mut self, ticks: u64) {
        self.close_tick();
        self.ticks = self.ticks.wrapping_add(ticks as u32 - 1);
        (self.age, self.fair_level) = (MEMORY, None);
        (self.recent_joiners, self.served, self.lost) = Default::default();
        (self.batches, self.busy) = Default::default();
        for tenant in &mut self.tenants {
            (tenant.is_new, tenant.demand) = (false, DecayingSum::default());
        }
    }

    fn close_tick(&mut self) {
        for place in (0..self.tenants.len()).rev() {
            let tenant = self.tenants[place].clone();
            self.count(&tenant);
            if tenant.demand.open > 0 {
                self.tenants[place].last = self.ticks;
            } else if self.ticks.wrapping_sub(tenant.last) >= REMEMBERED {
                self.forget(tenant.frontend);
            }
        }
        self.ticks = self.ticks.wrapping_add(1);
        self.age = (self.age + 1).min(MEMORY);
        let Self { recent_joiners, served, batches, busy, .. } = self;
        for sum in [recent_joiners, served, batches, busy] {
            sum.close(self.age);
        }
        self.lost.close(MEMORY);
        for tenant in &mut self.tenants {
            tenant.demand.close(self.age);
            if tenant.is_new && self.ticks.wrapping_sub(tenant.since) >= JOINED_RECENTLY {
                // From now on it counts by itself, and no longer among the others.
                tenant.is_new = false;
                self.recent_joiners.sum = self.recent_joiners.sum.saturating_sub(tenant.demand.sum);
            }
        }
    }

    /// What was asked for in this tick from a tenant.
    fn count(&mut self, tenant: &Tenant) {
        self.asked += tenant.demand.open;
        if tenant.is_new {
            self.recent_joiners.open += tenant.demand.open;
        }
    }

    /// Whether there is to be a limit, and what each may have of it.
    fn review(&mut self) {
        let asking = self.tenants.iter().filter(|tenant| tenant.demand.sum >= SCALE).count();
        self.shared_for =
            if asking >= 2 { JOINED_RECENTLY } else { self.shared_for.saturating_sub(1) };
        let pressing = self.lost.sum >= PRESSURE_MIN
            && self.lost.sum * PRESSURE_SHARE >= self.served.sum + self.lost.sum;
        let calm = self.is_calm();
        if self.fair_level.is_none() && pressing && asking >= 2 {
            // What was asked for before the rush says little.
            self.age = 0;
            self.fair_level = Some(u64::MAX);
            (self.asked, self.counted_at) = (0, self.ticks);
            self.queue_limit.spare = SpareTime::since(self.seen);
        } else if calm || !pressing || self.shared_for == 0 {
            self.fair_level = None;
        } else if self.fair_level.is_some() {
            self.divide();
            self.adjust_queue_limit();
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
            self.lost = DecayingSum::default();
        }
        calm
    }

    fn divide(&mut self) {
        let settled = self.tenants.iter().filter(|tenant| !tenant.is_new);
        let settled = settled.map(|tenant| tenant.demand.sum);
        let demands = || settled.clone().chain([self.recent_joiners.sum]);
        self.fair_level = Some(fair_level(demands, self.served.sum));
    }

    fn adjust_queue_limit(&mut self) {
        if self.age < SETTLING {
            self.queue_limit.forget(self.seen);
        }
        if !self.ticks.is_multiple_of(QUEUE_LIMIT_TICKS) {
            return;
        }
        self.queue_limit.adjust(self.seen);
        if self.queue_limit.ends(self.seen, self.slo) {
            (self.fair_level, self.lost) = (None, DecayingSum::default());
        }
    }
}

/// The level at which `Σ min(demand, fair_level)` is `total`; [`u64::MAX`] if there is no more demand.
fn fair_level<I: Iterator<Item = u64>>(demands: impl Fn() -> I, total: u64) -> u64 {
    if demands().sum::<u64>() <= total {
        return u64::MAX;
    }
    let mut fair_level = 0;
    loop {
        let below = demands().filter(|&demand| demand <= fair_level);
        let (count, sum) = below.fold((0, 0), |(count, sum), demand| (count + 1, sum + demand));
        let next = (total - sum) / (demands().count() as u64 - count).max(1);
        if next <= fair_level {
            return fair_level;
        }
        fair_level = next;
    }
}

#[cfg(test)]
mod tests;

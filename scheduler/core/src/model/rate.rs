//! What a model's traffic was in the last five seconds: its rate λ, how it pauses, and how much of
//! it was given up; of rare tasks, in the last minute.

use alloc::boxed::Box;

use super::gaps::Gaps;
use super::older::Older;
use crate::policy::patience::PARTS;
use baton_types::Nanos;

const BUCKETS: usize = 50;
const BUCKET: Nanos = Nanos::from_millis(100);
/// Pauses that every estimate starts from, as if they had been unremarkable: a few
/// observations must not pass for a pattern.
const PAUSES_ASSUMED: u64 = 5;
/// [`RateMeter::pause_of_waiting`] differs from [`RateMeter::pause`] by this factor at least, or not at all.
const PLAIN: u64 = 4;
/// Tasks are in a run while they follow each other within this fraction of the mean gap.
const RUN: u64 = 16;
/// A quarter of a task, in 1/16: shorter runs are over when they begin.
const RUN_LEAST: u64 = 4;
/// [`RateMeter::dispersion`] of Poisson arrivals, and the largest.
pub(crate) const DISPERSION_ONE: u16 = 16;
const DISPERSION_MAX: u16 = 64 * DISPERSION_ONE;

/// Counts of one bucket, or of all closed ones.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Counts {
    arrivals: u64,
    /// Arrivals that came later after their predecessor than the mean gap …
    pauses: u64,
    /// … and by how much, in total.
    paused: Nanos,
    /// How long tasks waited, each time from when a run would have been over …
    waited: Nanos,
    /// … and arrivals that met one which waited for so long.
    joined: u64,
    /// Tasks given up although a slot had their weights …
    pub(super) bad: u64,
    /// … and while none had.
    pub(super) unready: u64,
    /// Tasks that were not let in, none of which are arrivals.
    pub(super) refused: u64,
}

/// Counts in 100 ms buckets. The estimates cover whole past buckets only, so they change when a
/// bucket closes and not with every arrival.
#[derive(Clone, Debug)]
pub struct RateMeter {
    // What every arrival touches, together …
    /// When the open bucket closes; `None` before the first arrival.
    closes_at: Option<Nanos>,
    last_arrival: Nanos,
    /// A task has waited ever since the last arrival.
    waits: bool,
    /// 1/λ as last estimated.
    mean_gap: Nanos,
    open: Counts,
    gaps: Gaps,
    // … and what is touched ten times a second, the bulk of it elsewhere.
    /// All closed buckets.
    sum: Counts,
    /// Closed buckets since the first arrival, at most [`BUCKETS`].
    closed: usize,
    /// Where the next closed bucket goes.
    next: usize,
    buckets: Box<[Counts; BUCKETS]>,
    /// What came before these; `None` if it does not count.
    older: Option<Older>,
}

/// λ as a fraction, so that comparisons stay in integers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Arrivals …
    pub arrivals: u64,
    /// … in this span, never zero.
    pub span: Nanos,
}

impl Rate {
    /// Tasks that arrive within `span`, rounded down; saturates.
    pub fn arrivals_in(self, span: Nanos) -> u64 {
        scale(self.arrivals, span.0, self.span.0)
    }

    /// Mean time for `count` tasks to arrive, rounded down; [`Nanos::MAX`] when none does.
    pub fn time_for(self, count: u64) -> Nanos {
        Nanos(if self.arrivals == 0 { u64::MAX } else { scale(self.span.0, count, self.arrivals) })
    }
}

/// `a · b / c`, saturating. Dividing 128 bits costs several times what dividing 64 does, and the
/// product nearly always fits them.
pub(super) fn scale(a: u64, b: u64, c: u64) -> u64 {
    if let Some(product) = a.checked_mul(b) {
        return product / c;
    }
    u64::try_from(u128::from(a) * u128::from(b) / u128::from(c)).unwrap_or(u64::MAX)
}

impl RateMeter {
    /// A meter without history.
    pub fn new() -> Self {
        Self {
            buckets: Box::new([Counts::default(); BUCKETS]),
            sum: Counts::default(),
            older: Some(Older::default()),
            closed: 0,
            next: 0,
            open: Counts::default(),
            gaps: Gaps::new(),
            closes_at: None,
            last_arrival: Nanos::ZERO,
            waits: false,
            mean_gap: Nanos::MAX,
        }
    }

    /// Counts one arrival.
    pub fn on_arrival(&mut self, now: Nanos) {
        let gap = now - self.last_arrival;
        match self.closes_at {
            None => self.closes_at = Some(now + BUCKET),
            Some(_) => self.gaps.on_gap(gap),
        }
        if gap > self.mean_gap {
            self.open.pauses += 1;
            self.open.paused = self.open.paused + (gap - self.mean_gap);
        }
        if gap > self.run_gap() {
            self.open.joined += u64::from(self.waits);
            self.note_wait(now);
        }
        self.last_arrival = now;
        self.waits = true;
        self.open.arrivals += 1;
    }

    /// No task waits any more.
    pub fn on_empty(&mut self, now: Nanos) {
        self.note_wait(now);
        self.waits = false;
    }

    fn note_wait(&mut self, now: Nanos) {
        if self.waits {
            self.open.waited = self.open.waited + (now - self.last_arrival - self.run_gap());
        }
    }

    /// Counts one task that was given up, while a slot had its weights or not.
    pub fn on_bad(&mut self, is_ready: bool) {
        let bad = if is_ready { &mut self.open.bad } else { &mut self.open.unready };
        *bad += 1;
    }

    /// Counts one task that was not let in.
    pub fn on_refused(&mut self) {
        self.open.refused += 1;
    }

    /// Forgets what was given up and not let in.
    pub(crate) fn forget_losses(&mut self) {
        let kept = |counts: Counts| Counts { bad: 0, unready: 0, refused: 0, ..counts };
        self.buckets.iter_mut().for_each(|bucket| *bucket = kept(*bucket));
        (self.sum, self.open) = (kept(self.sum), kept(self.open));
        self.older.iter_mut().for_each(Older::forget_losses);
    }

    /// From now on bad rates are those of the last five seconds, also of rare tasks.
    pub(crate) fn forget_older(&mut self) {
        self.older = None;
    }

    /// Closes the buckets that have ended by `now`; true if any did, and the estimates changed.
    /// Call before [`RateMeter::on_arrival`] of the same moment.
    pub fn roll(&mut self, now: Nanos) -> bool {
        let Some(closes_at) = self.closes_at else { return false };
        if now < closes_at {
            return false;
        }
        let ended = ((now - closes_at).0 / BUCKET.0 + 1) as usize;
        for _ in 0..ended.min(BUCKETS + 1) {
            self.close_bucket();
        }
        if let Some(older) = &mut self.older {
            older.fade(ended.saturating_sub(BUCKETS + 1));
        }
        self.closes_at = Some(closes_at + BUCKET.times(ended as u64));
        self.mean_gap = self.rate().map_or(Nanos::MAX, |rate| rate.time_for(1));
        true
    }

    /// λ; `None` until the first bucket has closed.
    pub fn rate(&self) -> Option<Rate> {
        (self.closed > 0)
            .then(|| Rate { arrivals: self.sum.arrivals, span: BUCKET.times(self.closed as u64) })
    }

    /// λ with what was not let in: what was asked for.
    pub fn demand(&self) -> Option<Rate> {
        let asked = self.sum.arrivals + self.sum.refused;
        self.rate().map(|rate| Rate { arrivals: asked, ..rate })
    }

    /// The mean time to the next arrival once a mean gap has passed without one: 1/λ for Poisson
    /// arrivals, longer the burstier they are, and never less than 1/λ. [`Nanos::MAX`] when nothing
    /// arrived.
    pub fn pause(&self) -> Nanos {
        let Counts { pauses, paused, .. } = self.sum;
        let span = self.mean_gap.times(PAUSES_ASSUMED) + paused;
        Nanos(span.0 / (pauses + PAUSES_ASSUMED)).max(self.mean_gap)
    }

    /// The mean time to the next arrival while a task waits. Clients that keep a number of tasks under way send none while theirs
    /// wait, so it can be much longer than [`RateMeter::pause`], in which their next tasks count. It is the same unless
    /// eight pauses of waiting were seen, and at most a quarter of the arrivals that these let expect.
    pub fn pause_of_waiting(&self) -> Nanos {
        let (pause, Counts { waited, joined, .. }) = (self.pause(), self.sum);
        let waiting = Nanos((pause + waited).0 / (joined + 1));
        let is_plain = waited > pause.times(2 * PLAIN) && waiting > pause.times(PLAIN);
        if is_plain { waiting } else { pause }
    }

    /// More tasks than this follow, as a run, one that has just arrived in about one case of ten thousand: ln 10⁴ times their
    /// mean, as if their number were geometric. 0 if they are fewer than a quarter of one on average: 1/16 follows for Poisson arrivals.
    pub fn run_tail(&self) -> u64 {
        let run = self.gaps.run(self.run_gap());
        if run > RUN_LEAST { run * 92 / 160 } else { 0 }
    }

    /// Until when more tasks than these, in [`PARTS`] of one, are expected to come before `latest`, if none comes meanwhile.
    pub(crate) fn awaited(&self, latest: Nanos, parts: u32) -> Nanos {
        let tasks = f64::from(parts) / f64::from(PARTS);
        self.last_arrival + self.gaps.awaited(latest - self.last_arrival, tasks)
    }

    /// 1/λ as last estimated; [`Nanos::MAX`] without an estimate.
    pub(crate) fn mean_gap(&self) -> Nanos {
        self.mean_gap
    }

    /// How much more the number of arrivals varies than that of a Poisson process, in 1/16: about the
    /// index of dispersion, variance over mean, of a renewal process with such pauses. 16 for Poisson
    /// arrivals and while λ is not known.
    pub fn dispersion(&self) -> u16 {
        let sixteenth = match self.mean_gap {
            Nanos::MAX => return DISPERSION_ONE,
            gap => gap.0.div_ceil(DISPERSION_ONE.into()).max(1),
        };
        let dispersion = self.pause().0 / sixteenth;
        dispersion.clamp(DISPERSION_ONE.into(), DISPERSION_MAX.into()) as u16
    }

    /// A run is over when nothing has arrived for so long. Zero while no mean gap is known.
    pub fn run_gap(&self) -> Nanos {
        if self.mean_gap == Nanos::MAX { Nanos::ZERO } else { Nanos(self.mean_gap.0 / RUN) }
    }

    /// When the last task arrived.
    pub fn last_arrival(&self) -> Nanos {
        self.last_arrival
    }

    /// Nothing has come for as long as the estimates look back. They change with arrivals only.
    pub fn is_silent(&self, now: Nanos) -> bool {
        now - self.last_arrival > BUCKET.times(BUCKETS as u64)
    }

    /// Tasks given up or not let in over tasks that came, in 1/65536, of the last five seconds, and of the last minute
    /// while fewer than a thousand came in these.
    pub fn bad_rate(&self) -> u32 {
        self.older.unwrap_or_default().bad_rate(&self.sum, true)
    }

    /// The same without tasks given up while no slot had their weights.
    pub fn bad_rate_where_ready(&self) -> u32 {
        self.older.unwrap_or_default().bad_rate(&self.sum, false)
    }

    fn close_bucket(&mut self) {
        let oldest = core::mem::replace(&mut self.buckets[self.next], self.open);
        self.sum = self.sum.less(oldest).plus(self.open);
        self.older.iter_mut().for_each(|older| older.add(&oldest));
        self.gaps.close();
        self.next = (self.next + 1) % BUCKETS;
        self.closed = (self.closed + 1).min(BUCKETS);
        self.open = Counts::default();
        debug_assert_eq!(
            self.sum,
            self.buckets.iter().fold(Counts::default(), |sum, bucket| sum.plus(*bucket)),
            "the sum is that of the closed buckets"
        );
    }
}

impl Counts {
    /// Tasks that asked, let in or not.
    pub(super) fn came(&self) -> u64 {
        self.arrivals + self.refused
    }

    fn plus(self, other: Self) -> Self {
        Self {
            arrivals: self.arrivals + other.arrivals,
            pauses: self.pauses + other.pauses,
            paused: self.paused + other.paused,
            waited: self.waited + other.waited,
            joined: self.joined + other.joined,
            bad: self.bad + other.bad,
            unready: self.unready + other.unready,
            refused: self.refused + other.refused,
        }
    }

    fn less(self, other: Self) -> Self {
        Self {
            arrivals: self.arrivals - other.arrivals,
            pauses: self.pauses - other.pauses,
            paused: self.paused - other.paused,
            waited: self.waited - other.waited,
            joined: self.joined - other.joined,
            bad: self.bad - other.bad,
            unready: self.unready - other.unready,
            refused: self.refused - other.refused,
        }
    }
}

impl Default for RateMeter {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
#[path = "rate_tests.rs"]
mod tests;

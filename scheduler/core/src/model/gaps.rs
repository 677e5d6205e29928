//! How long a model's gaps between arrivals are, and for how long that lets a batch expect further tasks.
//!
//! Arrivals that come in bursts are expected right after the last one, and less and less the longer none has come. No single
//! rate says so, and bursts have no length of their own: half of the tasks that are still to come may follow within
//! microseconds, the next quarter within a millisecond. So gaps are counted by their length, in classes of a factor of two.

use alloc::boxed::Box;
use core::mem::take;

use baton_types::Nanos;

/// Gaps shorter than 2 to this power, in ns, are one class.
const SHORTEST_LOG2: u32 = 10;
/// The last class begins at 17 s.
const CLASSES: usize = 26;
/// Gaps are counted in this part of one, so that single ones fade, too.
const GAP: u64 = 64;
/// One part in this many fades with each bucket, so that half is left after 4.4 s.
const FADES: u64 = 64;
/// In [`GAP`].
const RUNS_ASSUMED: f64 = 5.0 * GAP as f64;

/// See the module documentation.
#[derive(Clone, Debug)]
pub(super) struct Gaps {
    /// Of the open bucket, by class: what every arrival touches. The bulk of it is elsewhere.
    open: [u32; CLASSES],
    closed: Box<Closed>,
}

/// Of all closed buckets.
#[derive(Clone, Debug)]
struct Closed {
    /// By class, in [`GAP`].
    faded: [u64; CLASSES],
    /// Of these, those that are shorter than each class. The last sum is that of all.
    shorter: [Sum; CLASSES + 1],
}

/// Some gaps.
#[derive(Clone, Copy, Default, Debug)]
struct Sum {
    /// How many, in [`GAP`].
    count: f64,
    /// Their lengths together, in ns of [`GAP`].
    length: f64,
}

impl Gaps {
    /// None were seen.
    pub(super) fn new() -> Self {
        let shorter = [Sum::default(); CLASSES + 1];
        Self { open: [0; CLASSES], closed: Box::new(Closed { faded: [0; CLASSES], shorter }) }
    }

    /// A task came so long after its predecessor.
    #[inline]
    pub(super) fn on_gap(&mut self, gap: Nanos) {
        self.open[class_of(gap)] += 1;
    }

    /// A bucket closes.
    pub(super) fn close(&mut self) {
        let Self { open, closed } = self;
        let mut shorter = Sum::default();
        for (class, new) in open.iter_mut().enumerate() {
            let (faded, new) = (closed.faded[class], u64::from(take(new)));
            closed.faded[class] = faded - faded.div_ceil(FADES) + new * GAP;
            let count = closed.faded[class] as f64;
            let middle = (start_of(class) + length_of(class) / 2) as f64;
            shorter = Sum { count: shorter.count + count, length: shorter.length + count * middle };
            closed.shorter[class + 1] = shorter;
        }
    }

    /// How many tasks follow one within this time of each other, on average, in 1/16; five runs are assumed besides that have none,
    /// as few observations must not pass for a pattern.
    pub(super) fn run(&self, gap: Nanos) -> u64 {
        let (within, all) = (self.shorter_than(gap).count, self.closed.shorter[CLASSES].count);
        (within * 16.0 / (all - within + RUNS_ASSUMED)) as u64
    }

    /// How long after the last arrival at most `tasks` further ones are expected to come before `until` after it, if none has come.
    ///
    /// Of the gaps longer than t, some end by then. The task that ends one is followed by others at the rate ρ at which tasks
    /// come in such a time after an arrival: gaps that end within it, over the time that all spend in it. So n(t) are expected:
    ///
    /// > n(t) = Σ (1 + ρ · (until − gap)) / m,  over the gaps between t and `until`, with m gaps longer than t
    ///
    /// which is λ · (until − t) for Poisson arrivals.
    pub(super) fn awaited(&self, until: Nanos, tasks: f64) -> Nanos {
        let until = until.min(Nanos(2 * start_of(CLASSES - 1) - 1));
        let (all, by_then) = (self.closed.shorter[CLASSES].count, self.shorter_than(until));
        let left = until.0 as f64;
        let rho = by_then.count / (by_then.length + (all - by_then.count) * left).max(1.0);
        // n(t) − `tasks`, times m
        let excess = |at: Sum| {
            let (count, length) = (by_then.count - at.count, by_then.length - at.length);
            count * (1.0 + rho * left) - rho * length - tasks * (all - at.count)
        };
        let (mut end, mut after) = (until.0, excess(by_then));
        for class in (0..=class_of(until)).rev() {
            let (start, before) = (start_of(class), excess(self.closed.shorter[class]));
            if before > 0.0 {
                let part = before / (before - after);
                return Nanos(start + ((end - start) as f64 * part) as u64);
            }
            (end, after) = (start, before);
        }
        Nanos::ZERO
    }

    /// As if the gaps of a class were spread evenly.
    fn shorter_than(&self, gap: Nanos) -> Sum {
        let class = class_of(gap);
        let (start, shorter) = (start_of(class), self.closed.shorter[class]);
        let beyond = (gap.0 - start) as f64;
        let part = (beyond / length_of(class) as f64).min(1.0);
        let count = (self.closed.shorter[class + 1].count - shorter.count) * part;
        let length = shorter.length + count * (start as f64 + beyond / 2.0);
        Sum { count: shorter.count + count, length }
    }
}

fn class_of(gap: Nanos) -> usize {
    let log2 = (gap.0 | 1).ilog2() + 1;
    (log2.saturating_sub(SHORTEST_LOG2) as usize).min(CLASSES - 1)
}

/// The shortest gap of a class.
fn start_of(class: usize) -> u64 {
    if class == 0 { 0 } else { length_of(class) }
}

/// By how much the longest gap of a class is longer than the shortest.
fn length_of(class: usize) -> u64 {
    1 << (SHORTEST_LOG2 as usize + class.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const fn us(us: u64) -> Nanos {
        Nanos::from_micros(us)
    }

    fn after(gaps: impl IntoIterator<Item = Nanos>) -> Gaps {
        let mut all = Gaps::new();
        gaps.into_iter().for_each(|gap| all.on_gap(gap));
        all.close();
        all
    }

    /// The mean, up to a factor that leaves as many shorter ones as an exponential distribution has.
    fn poisson(mean: Nanos) -> Gaps {
        let quantile = |i: u64| -(1.0 - (i as f64 + 0.5) / 10_000.0).ln();
        after((0..10_000).map(|i| Nanos((quantile(i) * mean.0 as f64) as u64)))
    }

    #[test]
    fn gaps_are_classed_by_powers_of_two() {
        let classes = [0, 1_023, 1_024, 2_047, 2_048, u64::MAX].map(|ns| class_of(Nanos(ns)));
        assert_eq!(classes, [0, 0, 1, 1, 2, CLASSES - 1]);
        for class in 1..CLASSES {
            assert_eq!(start_of(class - 1) + length_of(class - 1), start_of(class));
            assert_eq!(class_of(Nanos(start_of(class))), class);
        }
    }

    #[test]
    fn of_poisson_arrivals_as_many_are_expected_as_come_on_average() {
        let gaps = poisson(us(1_000));
        for (until, tasks) in [(300, 0.1), (1_000, 0.2), (1_000, 0.5), (1_500, 1.0), (4_000, 3.5)] {
            let awaited = gaps.awaited(us(until), tasks).0 as f64;
            let expected = us(until).0 as f64 - tasks * 1e6;
            let off = (awaited - expected) / us(until).0 as f64;
            assert!(off.abs() < 0.07, "{tasks} in {until} us: {awaited} is not {expected}");
        }
        assert_eq!(gaps.awaited(us(300), 0.4), Nanos::ZERO, "so many do not come in 0.3 ms");
        let run = gaps.run(us(62)) as f64 / 16.0;
        assert!((0.03..0.09).contains(&run), "one of sixteen: {run}");
    }

    #[test]
    fn of_a_burst_the_next_task_is_expected_soon_or_not_at_all() {
        let burst = |i| if i % 50 == 0 { us(100_000) } else { us(50) };
        let gaps = after((0..1_000).map(burst));
        for tasks in [0.1, 1.0, 10.0] {
            let awaited = gaps.awaited(us(28_000), tasks);
            assert!((us(33)..=us(66)).contains(&awaited), "{tasks}: {awaited:?}");
        }
        assert_eq!(gaps.awaited(us(28_000), 60.0), Nanos::ZERO, "a burst has fifty");
        assert_eq!(gaps.awaited(us(20), 0.1), Nanos::ZERO, "none comes so soon");
        assert_eq!(gaps.run(us(70)), 980 * 16 / 25, "five runs are assumed to have ended at once");
    }

    /// Half of the gaps are 10 µs, a quarter 300 µs, the rest long: once 10 µs have passed, every other one ends in time.
    #[test]
    fn the_longer_none_has_come_the_fewer_are_expected() {
        let gap = |i: usize| [us(10), us(10), us(300), us(80_000)][i % 4];
        let gaps = after((0..1_000).map(gap));
        let awaited = [2.0, 1.0, 0.2].map(|tasks| gaps.awaited(us(700), tasks));
        assert!(awaited.is_sorted() && awaited[0] < us(17), "{awaited:?}");
        assert!((us(262)..us(524)).contains(&awaited[2]), "{awaited:?}");
    }

    #[test]
    fn of_regular_arrivals_none_is_expected_before_its_time() {
        let gaps = after([us(1_000); 100]);
        assert_eq!(gaps.awaited(us(500), 0.1), Nanos::ZERO);
        let awaited = gaps.awaited(us(3_500), 1.0);
        assert!((us(900)..us(1_100)).contains(&awaited), "{awaited:?}");
    }

    #[test]
    fn what_was_seen_fades_by_half_in_four_seconds() {
        let mut gaps = after([us(50); 64]);
        let counts: Vec<u64> = (0..600)
            .map(|_| {
                gaps.close();
                gaps.closed.faded[class_of(us(50))]
            })
            .collect();
        let half = counts.iter().position(|&count| count <= 32 * GAP).expect("they fade") + 1;
        assert_eq!((half, counts[599]), (44, 0), "nor is anything left");
        assert_eq!(gaps.awaited(us(1_000), 0.1), Nanos::ZERO, "nothing is known");
    }

    #[test]
    fn no_objective_is_too_long() {
        let gaps = poisson(us(1_000_000));
        assert!(gaps.awaited(Nanos::MAX, 1.0) < Nanos::from_millis(35_000));
    }
}

//! What gaps between arrivals let expect, from every arrival there was.

use baton_core::Nanos;

/// Buckets that close at most before the next arrival: after five seconds nothing changes any more.
const CLOSE_MOST: u64 = 51;
const CLASSES: usize = 26;
/// In 1/64 of a gap, by class.
pub(crate) struct Gaps([u64; CLASSES]);

impl Gaps {
    /// None yet.
    pub(crate) const NONE: Self = Self([0; CLASSES]);

    /// Each arrival has the number of its bucket; `open` is that of now. 1/64 fades with each bucket.
    pub(crate) fn of(arrivals: &[(u64, Nanos)], open: u64) -> Self {
        let (mut counts, mut new) = ([0; CLASSES], [0; CLASSES]);
        let nexts = arrivals.iter().skip(1).map(Some).chain([None]);
        for (&(bucket, at), next) in arrivals.iter().zip(nexts) {
            let closes = next.map_or(open, |&(bucket, _)| bucket) - bucket;
            for _ in 0..closes.min(CLOSE_MOST) {
                for (count, new) in counts.iter_mut().zip(&mut new) {
                    *count = *count - u64::div_ceil(*count, 64) + 64 * std::mem::take(new);
                }
            }
            if let Some(&(_, next)) = next {
                new[class(next - at)] += 1;
            }
        }
        Self(counts)
    }

    /// 9.2 times the mean number of tasks that follow one in a run, of more than a quarter. Five runs have none.
    pub(crate) fn run_tail(&self, run_gap: Nanos) -> u64 {
        let (within, all) = (self.shorter_than(run_gap).0, self.below(CLASSES).0);
        let run = (within * 16.0 / (all - within + 320.0)) as u64;
        if run > 4 { run * 92 / 160 } else { 0 }
    }

    /// How long after an arrival no more than `tasks` are expected until then, if none came meanwhile.
    pub(crate) fn awaited(&self, until: Nanos, tasks: f64) -> Nanos {
        let until = until.min(Nanos((1 << 35) - 1));
        let (all, left) = (self.below(CLASSES).0, until.0 as f64);
        let (then, then_length) = self.shorter_than(until);
        let rho = then / (then_length + (all - then) * left).max(1.0);
        let excess = |(count, length): (f64, f64)| {
            let (come, of_length) = (then - count, then_length - length);
            come * (1.0 + rho * left) - rho * of_length - tasks * (all - count)
        };
        let is_worth = |&class: &usize| excess(self.below(class)) > 0.0;
        let Some(last) = (0..=class(until)).rev().find(is_worth) else { return Nanos::ZERO };
        let start = bounds(last).0;
        let is_last = last == class(until);
        let end = if is_last { until.0 } else { bounds(last + 1).0 };
        let after = excess(if is_last { (then, then_length) } else { self.below(last + 1) });
        let before = excess(self.below(last));
        Nanos(start + ((end - start) as f64 * (before / (before - after))) as u64)
    }

    /// Gaps of shorter classes: how many, and how long.
    fn below(&self, class: usize) -> (f64, f64) {
        let middle = |class| (bounds(class).0 + bounds(class).1 / 2) as f64;
        let counts = self.0[..class].iter().map(|&count| count as f64).enumerate();
        counts.fold((0.0, 0.0), |sum, (c, count)| (sum.0 + count, sum.1 + count * middle(c)))
    }

    fn shorter_than(&self, gap: Nanos) -> (f64, f64) {
        let class = class(gap);
        let ((count, length), (start, wide)) = (self.below(class), bounds(class));
        let beyond = (gap.0 - start) as f64;
        let more = (self.below(class + 1).0 - count) * (beyond / wide as f64).min(1.0);
        (count + more, length + more * (start as f64 + beyond / 2.0))
    }
}

/// Classes end at 2¹⁰ ns, 2¹¹ ns, …
fn class(gap: Nanos) -> usize {
    (0..CLASSES - 1).find(|class| gap.0 < 1 << (10 + class)).unwrap_or(CLASSES - 1)
}

/// Where a class begins, and how wide it is.
fn bounds(class: usize) -> (u64, u64) {
    if class == 0 { (0, 1 << 10) } else { (1 << (9 + class), 1 << (9 + class)) }
}

//! How much of what is asked for is accepted: a token bucket for the model, and one of each frontend.
//!
//! A bucket fills at its limit's rate up to 100 ms' worth, at least [`BURST_MIN`] tasks; a task takes
//! one token of both, or none and is refused. Integers throughout: a token is 10¹² parts, so that
//! a thousandth of a task per second is one part per nanosecond and nothing is ever rounded.

use alloc::boxed::Box;
use alloc::vec;

use baton_types::{FrontendId, Nanos, QuotaLimits, RateLimit};

/// Tasks that may come at once, however low the limit is.
const BURST_MIN: u64 = 16;
/// How long a bucket takes to fill.
const BURST: Nanos = Nanos::from_millis(100);
/// One task, in parts.
const TOKEN: u64 = 1_000_000_000_000;

/// Parts in a full bucket.
fn full(limit: RateLimit) -> u64 {
    per_ns(limit).saturating_mul(BURST.0).max(BURST_MIN * TOKEN)
}

/// Parts that a bucket gains in a nanosecond: thousandths of a task per second.
fn per_ns(limit: RateLimit) -> u64 {
    limit.thousandths_per_second()
}

/// Parts that were left at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bucket {
    level: u64,
    at: Nanos,
}

impl Bucket {
    fn full(limit: RateLimit) -> Self {
        Self { level: full(limit), at: Nanos::ZERO }
    }

    /// Brings the level up to `now`; a moment that lies behind changes nothing.
    fn fill(&mut self, limit: RateLimit, now: Nanos) {
        let gained = (now - self.at).0.saturating_mul(per_ns(limit));
        self.level = self.level.saturating_add(gained).min(full(limit));
        self.at = self.at.max(now);
    }

    /// How long until there is a token: zero if there is one.
    fn wait(self, limit: RateLimit) -> Nanos {
        Nanos(TOKEN.saturating_sub(self.level).div_ceil(per_ns(limit)))
    }
}

/// One model's buckets. Allocates when it is made and never again.
#[derive(Clone, Debug)]
pub struct Quota {
    model: Option<(RateLimit, Bucket)>,
    frontend: Option<(RateLimit, Box<[Bucket]>)>,
}

impl Quota {
    /// Full buckets for frontends `0..frontends`; `None` if nothing is limited.
    pub fn new(limits: QuotaLimits, frontends: u32) -> Option<Self> {
        if limits == QuotaLimits::default() {
            return None;
        }
        let each = |limit| vec![Bucket::full(limit); frontends as usize].into_boxed_slice();
        Some(Self {
            model: limits.model.map(|limit| (limit, Bucket::full(limit))),
            frontend: limits.frontend.map(|limit| (limit, each(limit))),
        })
    }

    /// Takes a token for a task of `frontend`, whose number is below that given to [`Quota::new`].
    ///
    /// # Errors
    /// Nothing was taken: how long until the task would be accepted if no other came meanwhile.
    pub fn admit(&mut self, now: Nanos, frontend: FrontendId) -> Result<(), Nanos> {
        let own = self.frontend.as_mut();
        let own = own.map(|(limit, each)| (*limit, &mut each[usize::from(frontend.0)]));
        let all = self.model.as_mut().map(|(limit, bucket)| (*limit, bucket));
        let mut buckets = [all, own];
        let mut wait = Nanos::ZERO;
        for (limit, bucket) in buckets.iter_mut().flatten() {
            bucket.fill(*limit, now);
            wait = wait.max(bucket.wait(*limit));
        }
        if wait > Nanos::ZERO {
            return Err(wait);
        }
        for (limit, bucket) in buckets.iter_mut().flatten() {
            debug_assert!((TOKEN..=full(*limit)).contains(&bucket.level), "a token, and no hoard");
            bucket.level -= TOKEN;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const A: FrontendId = FrontendId(0);
    const B: FrontendId = FrontendId(1);

    fn quota(model: Option<f64>, frontend: Option<f64>) -> Quota {
        let [model, frontend] = [model, frontend].map(|rps| rps.map(RateLimit::per_second));
        Quota::new(QuotaLimits { model, frontend }, 2).expect("something is limited")
    }

    fn admitted(quota: &mut Quota, now: Nanos, frontend: FrontendId, tries: u32) -> u32 {
        (0..tries).map(|_| u32::from(quota.admit(now, frontend).is_ok())).sum()
    }

    #[test]
    fn without_limits_there_is_no_quota() {
        assert!(Quota::new(QuotaLimits::default(), 8).is_none());
    }

    #[test]
    fn a_tenth_of_a_second_may_come_at_once_and_sixteen_in_any_case() {
        let second = Nanos::from_millis(1_000);
        assert_eq!(admitted(&mut quota(Some(5_000.0), None), second, A, 9_999), 500);
        assert_eq!(admitted(&mut quota(Some(2.0), None), second, A, 9_999), 16);
        assert_eq!(admitted(&mut quota(None, Some(2.0)), Nanos::ZERO, A, 9_999), 16);
    }

    #[test]
    fn a_flooding_frontend_leaves_the_others_theirs() {
        let mut quota = quota(Some(10_000.0), Some(1_000.0));
        assert_eq!(admitted(&mut quota, Nanos::ZERO, A, 5_000), 100);
        assert_eq!(admitted(&mut quota, Nanos::ZERO, B, 5_000), 100);
    }

    #[test]
    fn a_task_that_is_refused_for_one_limit_takes_nothing_of_the_other() {
        let mut quota = quota(Some(1_000.0), Some(200.0));
        assert_eq!(admitted(&mut quota, Nanos::ZERO, A, 5_000), 20);
        assert_eq!(admitted(&mut quota, Nanos::ZERO, B, 5_000), 20);
        let Some((_, bucket)) = quota.model else { panic!("limited") };
        assert_eq!(bucket.level, 60 * TOKEN);
    }

    /// Both are empty after sixteen tasks at once.
    #[test]
    fn who_is_above_both_limits_waits_for_the_slower_one() {
        for (model, frontend) in [(150.0, 160.0), (160.0, 150.0)] {
            let mut quota = quota(Some(model), Some(frontend));
            assert_eq!(admitted(&mut quota, Nanos::ZERO, A, 16), 16);
            assert_eq!(quota.admit(Nanos::ZERO, A), Err(Nanos(6_666_667)));
        }
    }

    /// As the clocks of two ModelThreads, when a model moves between them.
    #[test]
    fn a_moment_that_lies_behind_gives_nothing_twice() {
        let mut quota = quota(Some(1_000.0), None);
        let (earlier, now) = (Nanos::from_millis(500), Nanos::from_millis(1_000));
        assert_eq!(admitted(&mut quota, now, A, 9_999), 100);
        assert_eq!(admitted(&mut quota, earlier, A, 9), 0);
        assert_eq!(admitted(&mut quota, now, A, 9), 0, "no time has passed");
    }

    #[test]
    fn the_largest_limit_can_be_counted() {
        let most = RateLimit::per_second(*RateLimit::RANGE.end());
        assert_eq!(u128::from(full(most)), 10_000_000 * u128::from(TOKEN), "it fits");
    }

    /// What may have been accepted up to a moment, counted in parts without any bound.
    struct Naive {
        per_ns: u128,
        level: u128,
        at: u64,
    }

    impl Naive {
        fn new(rps: f64) -> Self {
            let per_ns = per_ns(RateLimit::per_second(rps)).into();
            Self { per_ns, level: Self::full(per_ns), at: 0 }
        }

        fn full(per_ns: u128) -> u128 {
            (per_ns * 100_000_000).max(16 * 1_000_000_000_000)
        }

        /// Whether there would be a token at `now`.
        fn has(&self, now: u64) -> bool {
            self.after(now) >= 1_000_000_000_000
        }

        fn after(&self, now: u64) -> u128 {
            let gained = u128::from(now.saturating_sub(self.at)) * self.per_ns;
            (self.level + gained).min(Self::full(self.per_ns))
        }

        fn take(&mut self, now: u64) {
            self.level = self.after(now) - 1_000_000_000_000;
            self.at = self.at.max(now);
        }
    }

    proptest! {
        /// Both limits at once, against arithmetic without bounds; and the hint is exact.
        #[test]
        fn it_accepts_what_the_limits_allow_and_says_when_it_will(
            model_rps in prop_oneof![1 => 0.001..2.0f64, 3 => 10.0..1e5f64, 1 => 1e5..1e8f64],
            frontend_share in 0.05..1.5f64,
            steps in prop::collection::vec((0..40u64, 0..2u16, 0..1_000u64), 1..400),
        ) {
            let frontend_rps = model_rps * frontend_share;
            let mut quota = quota(Some(model_rps), Some(frontend_rps));
            let mut all = Naive::new(model_rps);
            let mut each = [Naive::new(frontend_rps), Naive::new(frontend_rps)];
            let gap = 1e9 / model_rps;
            let mut now = 0u64;
            for (gaps, frontend, fraction) in steps {
                // Mostly bursts, sometimes a pause.
                let gaps = if gaps < 30 { 0.0 } else { (gaps - 30) as f64 };
                now += (gap * (gaps + fraction as f64 / 2_000.0)) as u64;
                let own = &mut each[usize::from(frontend)];
                let room = all.has(now) && own.has(now);
                match quota.admit(Nanos(now), FrontendId(frontend)) {
                    Ok(()) => {
                        prop_assert!(room);
                        all.take(now);
                        own.take(now);
                    }
                    Err(wait) => {
                        prop_assert!(!room && wait > Nanos::ZERO);
                        let then = now + wait.0;
                        prop_assert!(all.has(then) && own.has(then), "too early");
                        prop_assert!(!(all.has(then - 1) && own.has(then - 1)), "too late");
                    }
                }
            }
        }

        /// However tasks come, no span sees more than a full bucket and what flowed in meanwhile.
        #[test]
        fn no_span_sees_more_than_the_burst_and_the_rate(
            rps in 1.0..1e6f64,
            gaps in prop::collection::vec(0..3_000_000u64, 1..300),
        ) {
            let mut quota = quota(None, Some(rps));
            let (mut now, mut taken) = (Nanos::from_millis(5), Vec::new());
            for gap in gaps {
                now = now + Nanos(gap);
                if quota.admit(now, B).is_ok() {
                    taken.push(now);
                }
            }
            for (first, &from) in taken.iter().enumerate() {
                for (last, &to) in taken.iter().enumerate().skip(first) {
                    let limit = RateLimit::per_second(rps);
                    let most = u128::from(full(limit))
                        + u128::from((to - from).0) * u128::from(per_ns(limit));
                    prop_assert!((last - first + 1) as u128 * u128::from(TOKEN) <= most);
                }
            }
        }
    }
}

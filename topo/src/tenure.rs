//! Until when a process may act.
//!
//! Who leads by a lease may act until a moment that is put off again and again. If once it is not put off in
//! time, acting is over for good. Each agent looks at the moment itself, at every pass: one that did not run
//! for a while finds out before it does anything, whichever thread should have told it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use baton_core::Nanos;

use crate::agent::Agent;
use crate::waker::Waker;

/// The moment, shared by everyone who looks at it. Clones are the same tenure.
#[derive(Clone, Debug)]
pub struct Tenure(Arc<AtomicU64>);

/// Stands for a tenure that is over: nothing makes another moment of it.
const OVER: u64 = 0;

impl Tenure {
    /// Until `ends`; [`Nanos::MAX`]: as long as the process runs.
    pub fn until(ends: Nanos) -> Self {
        Self(Arc::new(AtomicU64::new(ends.0)))
    }

    /// Puts the end off. False if it is over already.
    pub fn extend(&self, ends: Nanos) -> bool {
        let later = |old: u64| (old != OVER).then(|| old.max(ends.0));
        // One word carries all there is to know; nothing else is ordered by it.
        self.0.try_update(Ordering::Relaxed, Ordering::Relaxed, later).is_ok()
    }

    /// Ends it now.
    pub fn end(&self) {
        self.0.store(OVER, Ordering::Relaxed);
    }

    /// True if one may act at `now`. Once it was false for somebody it is so for everybody.
    pub fn lasts(&self, now: Nanos) -> bool {
        loop {
            let ends = self.0.load(Ordering::Relaxed);
            if now.0 < ends {
                return true;
            }
            // Put off at this very moment: look again.
            let ended =
                self.0.compare_exchange(ends, OVER, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if ended {
                return false;
            }
        }
    }

    /// When it ends as things stand; `None` if it is over.
    pub fn ends(&self) -> Option<Nanos> {
        let ends = self.0.load(Ordering::Relaxed);
        (ends != OVER).then_some(Nanos(ends))
    }
}

/// An agent that does nothing any more when a tenure is over: its thread ends, and with it its connections.
#[derive(Debug)]
pub struct Tenured<A> {
    agent: A,
    tenure: Tenure,
}

impl<A: Agent> Tenured<A> {
    /// `agent`, for as long as `tenure` lasts.
    pub fn new(agent: A, tenure: Tenure) -> Self {
        Self { agent, tenure }
    }
}

impl<A: Agent> Agent for Tenured<A> {
    fn poll(&mut self, now: Nanos) -> usize {
        // The end counts as work: whoever runs this then asks whether it has finished.
        if self.tenure.lasts(now) { self.agent.poll(now) } else { 1 }
    }

    fn next_timer(&self) -> Option<Nanos> {
        let ends = self.tenure.ends().filter(|ends| *ends < Nanos::MAX);
        [self.agent.next_timer(), ends].into_iter().flatten().min()
    }

    fn wait(&mut self, timeout: Option<Nanos>) {
        self.agent.wait(timeout);
    }

    fn waker(&self) -> Waker {
        self.agent.waker()
    }

    fn finished(&self) -> bool {
        self.tenure.ends().is_none() || self.agent.finished()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Nanos {
        Nanos::from_millis(n)
    }

    /// Counts its passes.
    struct Counting(usize);

    impl Agent for Counting {
        fn poll(&mut self, _: Nanos) -> usize {
            self.0 += 1;
            0
        }

        fn next_timer(&self) -> Option<Nanos> {
            Some(ms(500))
        }

        fn wait(&mut self, _: Option<Nanos>) {}

        fn waker(&self) -> Waker {
            Waker::new(|| {})
        }
    }

    #[test]
    fn it_lasts_as_long_as_it_is_put_off_in_time() {
        let tenure = Tenure::until(ms(10));
        assert!(tenure.lasts(ms(9)));
        assert!(tenure.extend(ms(20)) && tenure.extend(ms(15)));
        assert_eq!(tenure.ends(), Some(ms(20)));
        assert!(tenure.lasts(ms(19)));
        assert!(!tenure.lasts(ms(20)));
    }

    #[test]
    fn what_is_over_for_one_is_over_for_all_and_for_good() {
        let tenure = Tenure::until(ms(10));
        let other = tenure.clone();
        assert!(!tenure.lasts(ms(10)));
        assert!(!other.extend(ms(99)), "the answer came too late");
        assert!(!other.lasts(ms(9)));
        let ended = Tenure::until(Nanos::MAX);
        ended.end();
        assert!(!ended.lasts(ms(1)) && !ended.extend(ms(2)));
    }

    #[test]
    fn an_agent_makes_no_pass_after_the_end_and_asks_to_be_polled_at_it() {
        let tenure = Tenure::until(ms(10));
        let mut agent = Tenured::new(Counting(0), tenure.clone());
        assert_eq!(agent.next_timer(), Some(ms(10)));
        assert_eq!((agent.poll(ms(9)), agent.agent.0, agent.finished()), (0, 1, false));
        assert_eq!((agent.poll(ms(10)), agent.agent.0, agent.finished()), (1, 1, true));
        assert!(!tenure.extend(ms(30)));
        let mut unbounded = Tenured::new(Counting(0), Tenure::until(Nanos::MAX));
        assert_eq!((unbounded.next_timer(), unbounded.poll(ms(600))), (Some(ms(500)), 0));
    }
}

//! Until when a process may act on its lease.
//!
//! A process that leads by a lease may act until a deadline, which the renewals of the lease extend. Once a renewal came
//! too late, the process may never act again. Each agent checks the deadline itself, at every pass: an agent that did not
//! run for a while notices before it does anything else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use baton_types::Nanos;

use crate::runtime::Agent;
use crate::runtime::Waker;

/// The deadline, shared by all agents that check it. Clones are the same deadline.
#[derive(Clone, Debug)]
pub struct LeaseDeadline(Arc<AtomicU64>);

/// Stands for a deadline that has passed: it can no longer be extended.
const OVER: u64 = 0;

impl LeaseDeadline {
    /// Until `ends`; [`Nanos::MAX`]: as long as the process runs.
    pub fn until(ends: Nanos) -> Self {
        Self(Arc::new(AtomicU64::new(ends.0)))
    }

    /// Extends it. False if it has passed already.
    pub fn extend(&self, ends: Nanos) -> bool {
        let later = |old: u64| (old != OVER).then(|| old.max(ends.0));
        // One word carries all there is to know; nothing else is ordered by it.
        self.0.try_update(Ordering::Relaxed, Ordering::Relaxed, later).is_ok()
    }

    /// Ends it now.
    pub fn end(&self) {
        self.0.store(OVER, Ordering::Relaxed);
    }

    /// Whether the process may act at `now`. Once this was false for one caller, it is false for all.
    pub fn is_valid(&self, now: Nanos) -> bool {
        loop {
            let ends = self.0.load(Ordering::Relaxed);
            if now.0 < ends {
                return true;
            }
            // Extended at this very moment: look again.
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

/// An agent that stops once a lease deadline has passed: its thread ends, and with it its connections.
#[derive(Debug)]
pub struct Fenced<A> {
    agent: A,
    lease_deadline: LeaseDeadline,
}

impl<A: Agent> Fenced<A> {
    /// `agent`, for as long as `lease_deadline` lasts.
    pub fn new(agent: A, lease_deadline: LeaseDeadline) -> Self {
        Self { agent, lease_deadline }
    }
}

impl<A: Agent> Agent for Fenced<A> {
    fn poll(&mut self, now: Nanos) -> usize {
        // The end counts as work: the caller then asks whether it has finished.
        if self.lease_deadline.is_valid(now) { self.agent.poll(now) } else { 1 }
    }

    fn next_timer(&self) -> Option<Nanos> {
        let ends = self.lease_deadline.ends().filter(|ends| *ends < Nanos::MAX);
        [self.agent.next_timer(), ends].into_iter().flatten().min()
    }

    fn wait(&mut self, timeout: Option<Nanos>) {
        self.agent.wait(timeout);
    }

    fn waker(&self) -> Waker {
        self.agent.waker()
    }

    fn sleep_max(&self) -> Nanos {
        self.agent.sleep_max()
    }

    fn finished(&self) -> bool {
        self.lease_deadline.ends().is_none() || self.agent.finished()
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

        fn finished(&self) -> bool {
            self.0 == 2
        }
    }

    #[test]
    fn it_lasts_as_long_as_it_is_put_off_in_time() {
        let lease_deadline = LeaseDeadline::until(ms(10));
        assert!(lease_deadline.is_valid(ms(9)));
        assert!(lease_deadline.extend(ms(20)) && lease_deadline.extend(ms(15)));
        assert_eq!(lease_deadline.ends(), Some(ms(20)));
        assert!(lease_deadline.is_valid(ms(19)));
        assert!(!lease_deadline.is_valid(ms(20)));
    }

    #[test]
    fn what_is_over_for_one_is_over_for_all_and_for_good() {
        let lease_deadline = LeaseDeadline::until(ms(10));
        let other = lease_deadline.clone();
        assert!(!lease_deadline.is_valid(ms(10)));
        assert!(!other.extend(ms(99)), "the answer came too late");
        assert!(!other.is_valid(ms(9)));
        let ended = LeaseDeadline::until(Nanos::MAX);
        ended.end();
        assert!(!ended.is_valid(ms(1)) && !ended.extend(ms(2)));
    }

    #[test]
    fn an_agent_makes_no_pass_after_the_end_and_asks_to_be_polled_at_it() {
        let lease_deadline = LeaseDeadline::until(ms(10));
        let mut agent = Fenced::new(Counting(0), lease_deadline.clone());
        assert_eq!(agent.next_timer(), Some(ms(10)));
        assert_eq!((agent.poll(ms(9)), agent.agent.0, agent.finished()), (0, 1, false));
        assert_eq!((agent.poll(ms(10)), agent.agent.0, agent.finished()), (1, 1, true));
        assert!(!lease_deadline.extend(ms(30)));
        let mut unbounded = Fenced::new(Counting(0), LeaseDeadline::until(Nanos::MAX));
        assert_eq!((unbounded.next_timer(), unbounded.poll(ms(600))), (Some(ms(500)), 0));
        assert!(!unbounded.finished());
        unbounded.poll(ms(700));
        assert!(unbounded.finished(), "as the agent is");
    }
}

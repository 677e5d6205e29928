//! Two agents on one thread: what one leaves for the other costs no wake-up.

use baton_types::Nanos;

use super::{Agent, Waker};

/// Runs two agents in turn. They must have the same waker, that of the first, whose wait is the thread's.
#[derive(Debug)]
pub struct SharedThread<A, B> {
    first: A,
    second: B,
}

impl<A: Agent, B: Agent> SharedThread<A, B> {
    /// It has finished when `first` has.
    pub fn new(first: A, second: B) -> Self {
        assert!(
            first.waker().is(&second.waker()),
            "who wakes the second must end the first's wait"
        );
        Self { first, second }
    }
}

impl<A: Agent, B: Agent> Agent for SharedThread<A, B> {
    fn poll(&mut self, now: Nanos) -> usize {
        self.first.poll(now) + self.second.poll(now)
    }

    fn next_timer(&self) -> Option<Nanos> {
        [self.first.next_timer(), self.second.next_timer()].into_iter().flatten().min()
    }

    fn wait(&mut self, timeout: Option<Nanos>) {
        self.first.wait(timeout);
    }

    fn waker(&self) -> Waker {
        self.first.waker()
    }

    fn sleep_max(&self) -> Nanos {
        self.first.sleep_max().min(self.second.sleep_max())
    }

    fn finished(&self) -> bool {
        self.first.finished()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{PARK_MAX, SLEEP_MAX};

    /// Has work for some passes.
    struct Busy {
        left: usize,
        timer: Option<Nanos>,
        waker: Waker,
    }

    impl Agent for Busy {
        fn poll(&mut self, _: Nanos) -> usize {
            let work = self.left.min(1);
            self.left -= work;
            work
        }

        fn next_timer(&self) -> Option<Nanos> {
            self.timer
        }

        fn wait(&mut self, _: Option<Nanos>) {}

        fn waker(&self) -> Waker {
            self.waker.clone()
        }

        fn sleep_max(&self) -> Nanos {
            if self.timer.is_some() { PARK_MAX } else { SLEEP_MAX }
        }

        fn finished(&self) -> bool {
            self.left == 0
        }
    }

    fn both(first: (usize, Option<u64>), second: (usize, Option<u64>)) -> SharedThread<Busy, Busy> {
        let waker = Waker::new(|| ());
        let busy = |(left, timer): (usize, Option<u64>)| Busy {
            left,
            timer: timer.map(Nanos),
            waker: waker.clone(),
        };
        SharedThread::new(busy(first), busy(second))
    }

    #[test]
    fn both_have_their_turn_in_each_pass() {
        let mut both = both((1, None), (2, None));
        assert_eq!([0, 1, 2].map(|at| both.poll(Nanos(at))), [2, 1, 0]);
    }

    #[test]
    fn the_earlier_timer_and_the_shorter_sleep_count() {
        assert_eq!(both((0, Some(7)), (0, Some(5))).next_timer(), Some(Nanos(5)));
        assert_eq!(both((0, None), (0, Some(5))).next_timer(), Some(Nanos(5)));
        assert_eq!(both((0, None), (0, None)).next_timer(), None);
        assert_eq!(both((0, None), (0, Some(5))).sleep_max(), PARK_MAX);
        assert_eq!(both((0, Some(5)), (0, None)).sleep_max(), PARK_MAX);
    }

    #[test]
    #[should_panic(expected = "must end the first's wait")]
    fn agents_with_two_wakers_cannot_share_a_thread() {
        let busy = || Busy { left: 0, timer: None, waker: Waker::new(|| ()) };
        SharedThread::new(busy(), busy());
    }

    #[test]
    fn the_first_one_says_when_it_is_over() {
        assert!(!both((1, None), (0, None)).finished());
        assert!(both((0, None), (1, None)).finished());
    }
}

//! Which of the waiting tasks to run together: batch formation over the deadline-ordered queue.
//!
//! Both questions are monotone in what they bisect: a larger batch ends later, and a later head
//! has a later deadline. So nothing is rescanned.

use crate::execution::latency::Latency;
use crate::execution::network::NetworkDelay;
use crate::model::queue::DeadlineQueue;
use baton_types::Nanos;

/// When a batch could start, and whether it would end in time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Horizon<'a> {
    pub(crate) now: Nanos,
    /// The slot is not free before; zero while no slot is known.
    pub(crate) free_at: Nanos,
    pub(crate) latency: &'a Latency,
    pub(crate) network: NetworkDelay,
}

impl Horizon<'_> {
    /// Earliest start of a batch of this size.
    #[inline]
    pub(crate) fn start(&self, batch: u32) -> Nanos {
        (self.now + self.network.before(batch)).max(self.free_at)
    }

    /// Whether a batch of this size would end by `deadline`.
    pub(crate) fn fits(&self, batch: u32, deadline: Nanos) -> bool {
        self.start(batch) + self.latency.of(batch) <= deadline
    }

    /// Whether a single task would.
    #[inline]
    pub(crate) fn fits_alone(&self, deadline: Nanos) -> bool {
        self.start(1) + self.latency.alone() <= deadline
    }
}

/// Ranks `head .. head + batch` of the queue. `batch` is 0 when nothing can run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    pub(crate) head: usize,
    pub(crate) batch: u32,
}

/// The first head that leaves room for `floor` tasks, or for all that wait behind it, and as many
/// after it as its deadline allows, `most` in total. The queue's head must fit alone if there is one;
/// with a floor of 1 it is the batch's.
pub(crate) fn form(queue: &DeadlineQueue, horizon: &Horizon<'_>, floor: u32, most: u32) -> Window {
    let head = window_head(queue, horizon, floor.min(most));
    let waiting = (queue.len() - head) as u32;
    if waiting == 0 {
        return Window { head: 0, batch: 0 };
    }
    let deadline = queue.deadline(head);
    let most = waiting.min(most);
    Window { head, batch: largest(1, most, |b| horizon.fits(b, deadline)) }
}

/// This window, or one behind its head with a larger batch, if that must start first.
pub(crate) fn first_to_start(
    queue: &DeadlineQueue,
    horizon: &Horizon<'_>,
    window: Window,
    most: u32,
) -> Window {
    let Window { head, batch } = window;
    if batch == 0 || batch >= most || head + batch as usize >= queue.len() {
        return window;
    }
    let behind = form(queue, horizon, batch + 1, most);
    let latest = |window: Window| queue.deadline(window.head) - horizon.latency.of(window.batch);
    // One that is no larger has a later deadline and no more to execute: it never is.
    let is_first = latest(behind) < latest(window);
    if is_first { behind } else { window }
}

fn window_head(queue: &DeadlineQueue, horizon: &Horizon<'_>, floor: u32) -> usize {
    let spoils = |head: usize| {
        let wanted = ((queue.len() - head) as u32).min(floor);
        !horizon.fits(wanted, queue.deadline(head))
    };
    first_good(queue.len(), spoils)
}

/// The first of `all` that is not spoiled; behind it none is. `all` if each is spoiled.
fn first_good(all: usize, spoils: impl Fn(usize) -> bool) -> usize {
    // Usually the very first is good: gallop from there. Every one before `low` spoils.
    let (mut low, mut step) = (0, 1);
    let mut high = loop {
        let probe = low + step - 1;
        if probe >= all {
            break all;
        }
        if !spoils(probe) {
            break probe;
        }
        low = probe + 1;
        step *= 2;
    };
    while low < high {
        let middle = usize::midpoint(low, high);
        if spoils(middle) { low = middle + 1 } else { high = middle }
    }
    high
}

/// The largest value in `low..=high` that `fits`, which holds up to some value and not beyond;
/// `low` if none does. Asks about `high` first: growing is the common case.
pub(crate) fn largest(low: u32, high: u32, fits: impl Fn(u32) -> bool) -> u32 {
    if fits(high) {
        return high;
    }
    let (mut good, mut bad) = (low, high);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if fits(middle) { good = middle } else { bad = middle }
    }
    good
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_types::{Profile, Request, TaskId};
    use proptest::prelude::*;
    use std::vec::Vec;

    /// Everything a formation depends on, in units small enough for ties.
    #[derive(Clone, Debug)]
    struct Case {
        /// ℓ(1), then what each further task adds.
        steps: Vec<u64>,
        deadlines: Vec<u64>,
        now: u64,
        free_at: u64,
        ctrl: u64,
        data: u64,
        floor: u32,
        most: u32,
    }

    fn case() -> impl Strategy<Value = Case> {
        let lists =
            (prop::collection::vec(0..6u64, 1..20), prop::collection::vec(0..120u64, 0..40));
        let numbers = (0..20u64, 0..60u64, 0..4u64, 0..3u64, 1..25u32, 1..9u32);
        (lists, numbers).prop_map(
            |((steps, deadlines), (now, free_at, ctrl, data, floor, most))| {
                let floor = floor.min(steps.len() as u32);
                Case { steps, deadlines, now, free_at, ctrl, data, floor, most }
            },
        )
    }

    impl Case {
        fn latency(&self) -> Latency {
            let mut sum = Nanos(1);
            let rise = |&step: &u64| {
                sum = sum + Nanos(step);
                sum
            };
            let table: Vec<Nanos> = self.steps.iter().map(rise).collect();
            Latency::new(Profile::from_table(&table).unwrap(), Nanos::MAX)
        }

        fn network(&self) -> NetworkDelay {
            let (ctrl, data_per_task) = (Nanos(self.ctrl), Nanos(self.data));
            NetworkDelay { ctrl, data_per_task, ..NetworkDelay::default() }
        }

        /// Deadlines in order, of those that can run alone.
        fn viable(&self, horizon: &Horizon<'_>) -> Vec<Nanos> {
            let mut viable: Vec<Nanos> = self.deadlines.iter().copied().map(Nanos).collect();
            viable.retain(|&deadline| horizon.fits(1, deadline));
            viable.sort();
            viable
        }
    }

    /// The largest batch that ends by the head's deadline, found by trying every size.
    fn batch_at(deadlines: &[Nanos], head: usize, horizon: &Horizon<'_>, most: u32) -> u32 {
        let most = ((deadlines.len() - head) as u32).min(most);
        (1..=most).filter(|&batch| horizon.fits(batch, deadlines[head])).max().unwrap_or(0)
    }

    /// Tries every head: the first that reaches the floor, or takes all that wait behind it.
    fn naive(deadlines: &[Nanos], horizon: &Horizon<'_>, floor: u32, most: u32) -> Window {
        let reaches = |head: usize| {
            let wanted = ((deadlines.len() - head) as u32).min(floor).min(most);
            batch_at(deadlines, head, horizon, most) >= wanted
        };
        let window = |head| Window { head, batch: batch_at(deadlines, head, horizon, most) };
        (0..deadlines.len())
            .find(|&head| reaches(head))
            .map_or(Window { head: 0, batch: 0 }, window)
    }

    /// One task takes 5, two or three take 9. The head leaves 8 from now on, and starts alone by 3.
    #[test]
    fn a_larger_batch_behind_the_head_is_first_if_it_must_start_earlier() {
        let table = [5, 9, 9].map(Nanos);
        let latency = Latency::new(Profile::from_table(&table).unwrap(), Nanos::MAX);
        let network = NetworkDelay::default();
        let horizon = Horizon { now: Nanos(10), free_at: Nanos::ZERO, latency: &latency, network };
        let first = |behind: u64| {
            let mut queue = DeadlineQueue::new(4);
            for (task, left) in (0..).zip([8, behind, behind, behind]) {
                queue.push(Request::new(TaskId(task), Nanos(10 + left)), 0).unwrap();
            }
            let window = form(&queue, &horizon, 1, 3);
            let Window { head, batch } = first_to_start(&queue, &horizon, window, 3);
            (head, batch)
        };
        assert_eq!((first(11), first(12)), ((1, 3), (0, 1)), "by 2, by 3");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn it_agrees_with_trying_every_window(case in case()) {
            let latency = case.latency();
            let (now, free_at, network) = (Nanos(case.now), Nanos(case.free_at), case.network());
            let horizon = Horizon { now, free_at, latency: &latency, network };
            let deadlines = case.viable(&horizon);
            let mut queue = DeadlineQueue::new(64);
            for (i, &deadline) in deadlines.iter().enumerate() {
                queue.push(Request::new(TaskId(i as u64), deadline), 0).unwrap();
            }
            for floor in [1, case.floor] {
                for most in [latency.batch_max(), latency.batch_max().min(case.most)] {
                    let formed = form(&queue, &horizon, floor, most);
                    prop_assert_eq!(formed, naive(&deadlines, &horizon, floor, most));
                }
            }
        }

        #[test]
        fn bisecting_finds_the_largest_that_fits(low in 0..50u32, span in 0..50u32, limit in 0..120u32) {
            let high = low + span;
            let best = (low..=high).filter(|&value| value <= limit).max().unwrap_or(low);
            prop_assert_eq!(largest(low, high, |value| value <= limit), best);
        }
    }
}

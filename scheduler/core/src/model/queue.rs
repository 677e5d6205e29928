//! The tasks that wait for one model, ordered by deadline. Bounded; allocated once.
//!
//! A ring. Deadlines of one model nearly always arrive in order, so an
//! insertion compares once and moves nothing; one that is out of order moves the later tasks by
//! one place. Random access by rank is what batch formation needs: it bisects.

use alloc::boxed::Box;
use alloc::vec;

use crate::containers::range_max::RangeMax;
use baton_types::{FrontendId, Nanos, Request, TaskId};

/// Waiting tasks in deadline order; index 0 is the most urgent, "the head".
#[derive(Clone, Debug)]
pub(crate) struct DeadlineQueue {
    ring: Box<[Request]>,
    /// Ring index of rank 0.
    first: usize,
    len: usize,
    capacity: usize,
    /// By place in the ring: the cheapest variant that the task there may get. No places where no task asks for any.
    floors: RangeMax,
}

impl DeadlineQueue {
    /// An empty queue for at most `capacity` tasks (at least one).
    pub(crate) fn new(capacity: u32) -> Self {
        let capacity = capacity.max(1) as usize;
        let unused = Request::new(TaskId(0), Nanos::ZERO);
        Self {
            ring: vec![unused; capacity.next_power_of_two()].into_boxed_slice(),
            first: 0,
            len: 0,
            capacity,
            floors: RangeMax::new(0),
        }
    }

    /// From now on tasks may ask for variants. Call while the queue is empty.
    pub(crate) fn keep_floors(&mut self) {
        debug_assert!(self.is_empty(), "tasks without a floor wait");
        self.floors = RangeMax::new(self.ring.len());
    }

    /// The cheapest variant that suits each of the ranks `from .. from + count`.
    #[inline]
    pub(crate) fn floor(&self, from: usize, count: usize) -> u16 {
        if !self.floors.has_places() || count == 0 {
            return 0;
        }
        debug_assert!(from + count <= self.len);
        let (first, last) = (self.at(from), self.at(from + count - 1));
        u16::from(match first <= last {
            true => self.floors.of(first, last + 1),
            false => self.floors.of(first, self.ring.len()).max(self.floors.of(0, last + 1)),
        })
    }

    /// Whether a task that waits asks for more than the cheapest variant.
    #[inline]
    pub(crate) fn has_floors(&self) -> bool {
        self.floor(0, self.len) > 0
    }

    /// How many tasks may wait.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many tasks wait.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// True when none waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The task with the `rank`-th earliest deadline.
    pub(crate) fn get(&self, rank: usize) -> Request {
        self.ring[self.at(rank)]
    }

    /// The `rank`-th earliest deadline.
    pub(crate) fn deadline(&self, rank: usize) -> Nanos {
        debug_assert!(rank < self.len);
        self.ring[self.at(rank)].deadline
    }

    /// Inserts behind every task with the same or an earlier deadline. `floor` is the cheapest variant that suits the task.
    ///
    /// # Errors
    /// The queue is full; the request comes back.
    pub(crate) fn push(&mut self, request: Request, floor: u16) -> Result<(), Request> {
        if self.len == self.capacity {
            return Err(request);
        }
        let mut rank = self.len;
        self.len += 1;
        while rank > 0 && self.deadline(rank - 1) > request.deadline {
            self.copy(rank - 1, rank);
            rank -= 1;
        }
        self.set(rank, request, floor);
        debug_assert!(self.is_in_order_at(rank), "the earliest deadline is first");
        Ok(())
    }

    /// Takes the head out.
    pub(crate) fn pop(&mut self) -> Option<Request> {
        let head = (self.len > 0).then(|| self.get(0))?;
        self.advance(1);
        Some(head)
    }

    /// Takes out the ranks `from .. from + count`; the `from` tasks before them stay. Costs O(from).
    pub(crate) fn remove_range(&mut self, from: usize, count: usize) {
        debug_assert!(from + count <= self.len);
        let head = self.ring[self.at(0)];
        for rank in (0..from).rev() {
            self.copy(rank, rank + count);
        }
        self.advance(count);
        debug_assert!(from == 0 || self.get(0) == head, "what was before the range stays");
        debug_assert!(self.is_in_order_at(from), "no other is left out");
    }

    /// Takes out one task. Costs O(rank) or O(len - rank), whichever is less.
    pub(crate) fn remove_at(&mut self, rank: usize) {
        if rank < self.len / 2 {
            return self.remove_range(rank, 1);
        }
        self.len -= 1;
        for rank in rank..self.len {
            self.copy(rank + 1, rank);
        }
        debug_assert!(self.is_in_order_at(rank), "no other is left out");
    }

    /// Takes out one task wherever it is. Costs O(len): cancelling is rare.
    pub(crate) fn remove(&mut self, task: TaskId) -> Option<Request> {
        let rank = (0..self.len).find(|&rank| self.get(rank).task == task)?;
        let request = self.get(rank);
        self.remove_at(rank);
        Some(request)
    }

    /// Takes out every task of `frontend`, in order. Costs O(len).
    pub(crate) fn remove_frontend(&mut self, frontend: FrontendId, mut gone: impl FnMut(Request)) {
        let mut kept = 0;
        for rank in 0..self.len {
            let request = self.get(rank);
            if request.task.frontend() == frontend {
                gone(request);
            } else {
                self.copy(rank, kept);
                kept += 1;
            }
        }
        self.len = kept;
    }

    /// Whether the task of this rank, if there is one, is between its neighbours.
    fn is_in_order_at(&self, rank: usize) -> bool {
        let around = rank.saturating_sub(1)..self.len.min(rank + 2);
        around.map(|rank| self.deadline(rank)).is_sorted()
    }

    /// Leaves the first `count` out. An empty ring begins anew, so that a model whose queue is
    /// short uses the same few cache lines again.
    fn advance(&mut self, count: usize) {
        self.len -= count;
        self.first = if self.len == 0 { 0 } else { self.at(count) };
    }

    fn at(&self, rank: usize) -> usize {
        (self.first + rank) & (self.ring.len() - 1)
    }

    #[inline]
    fn set(&mut self, rank: usize, request: Request, floor: u16) {
        let at = self.at(rank);
        self.ring[at] = request;
        if self.floors.has_places() {
            self.floors.set(at, floor as u8);
        }
    }

    #[inline]
    fn copy(&mut self, from: usize, to: usize) {
        let at = self.at(from);
        let floor = if self.floors.has_places() { self.floors.get(at).into() } else { 0 };
        self.set(to, self.ring[at], floor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// Not a power of two: the ring is larger than what may wait.
    const CAPACITY: u32 = 11;

    #[derive(Clone, Debug)]
    enum Op {
        Push { deadline: u64, frontend: u16 },
        Pop,
        RemoveRange { from: usize, count: usize },
        Remove { nth: usize },
        RemoveFrontend(u16),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            8 => (0..20u64, 0..3u16)
                .prop_map(|(deadline, frontend)| Op::Push { deadline, frontend }),
            2 => Just(Op::Pop),
            2 => (0..12usize, 0..12usize)
                .prop_map(|(from, count)| Op::RemoveRange { from, count }),
            1 => (0..12usize).prop_map(|nth| Op::Remove { nth }),
            1 => (0..3u16).prop_map(Op::RemoveFrontend),
        ]
    }

    /// A sorted Vec, and what is done to it the obvious way.
    #[derive(Default)]
    struct Naive {
        /// With their floors, which accuracies stand for.
        waiting: Vec<Request>,
        pushed: u32,
    }

    impl Naive {
        fn next(&mut self, deadline: u64, frontend: u16) -> Request {
            self.pushed += 1;
            let task = TaskId::new(FrontendId(frontend), self.pushed, 0);
            let accuracy_min = self.pushed * 7 % 5;
            Request { accuracy_min, ..Request::new(task, Nanos(deadline)) }
        }

        fn push(&mut self, request: Request) -> Result<(), Request> {
            if self.waiting.len() == CAPACITY as usize {
                return Err(request);
            }
            self.waiting.push(request);
            self.waiting.sort_by_key(|r| r.deadline); // stable: behind its equals
            Ok(())
        }

        fn remove_frontend(&mut self, frontend: FrontendId) -> Vec<Request> {
            let of = |r: &Request| r.task.frontend() == frontend;
            let gone = self.waiting.iter().copied().filter(of).collect();
            self.waiting.retain(|r| !of(r));
            gone
        }
    }

    fn apply(queue: &mut DeadlineQueue, naive: &mut Naive, op: &Op) {
        match *op {
            Op::Push { deadline, frontend } => {
                let request = naive.next(deadline, frontend);
                assert_eq!(queue.push(request, request.accuracy_min as u16), naive.push(request));
            }
            Op::Pop => {
                let head = (!naive.waiting.is_empty()).then(|| naive.waiting.remove(0));
                assert_eq!(queue.pop(), head);
            }
            Op::RemoveRange { from, count } => {
                let from = from.min(naive.waiting.len());
                let count = count.min(naive.waiting.len() - from);
                naive.waiting.drain(from..from + count);
                queue.remove_range(from, count);
            }
            Op::Remove { nth } => {
                let present = naive.waiting.get(nth).map(|r| r.task);
                let task = present.unwrap_or(TaskId(u64::MAX));
                let request = present.map(|_| naive.waiting.remove(nth));
                assert_eq!(queue.remove(task), request);
            }
            Op::RemoveFrontend(frontend) => {
                let mut gone = Vec::new();
                queue.remove_frontend(FrontendId(frontend), |r| gone.push(r));
                assert_eq!(gone, naive.remove_frontend(FrontendId(frontend)));
            }
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_sorted_vec(ops in prop::collection::vec(op(), 0..200)) {
            let (mut queue, mut naive) = (DeadlineQueue::new(CAPACITY), Naive::default());
            queue.keep_floors();
            for op in ops {
                apply(&mut queue, &mut naive, &op);
                let waiting: Vec<Request> = (0..queue.len()).map(|rank| queue.get(rank)).collect();
                prop_assert_eq!(&waiting, &naive.waiting);
                prop_assert_eq!(queue.is_empty(), waiting.is_empty());
                for from in 0..=queue.len() {
                    let floors = naive.waiting[from..].iter().map(|r| r.accuracy_min as u16);
                    let largest = floors.max().unwrap_or(0);
                    prop_assert_eq!(queue.floor(from, queue.len() - from), largest);
                    let first = naive.waiting.get(from).map_or(0, |r| r.accuracy_min as u16);
                    prop_assert_eq!(queue.floor(from, usize::from(from < queue.len())), first);
                }
            }
        }
    }
}

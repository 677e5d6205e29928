//! The line of futures that wait for a free slot of a model: first come, first served. A *turn* is a place in it.
//!
//! In: [`Line::moved`], by the thread that has freed a slot. Out: the first turn is woken, takes the slot, and wakes the next
//! turn. Only the first turn may take a slot, so none overtakes another.
//!
//! No wake is lost. A turn that joins counts itself and then looks for a slot. A thread that frees a slot puts it down and
//! then looks at the count. A fence separates the two steps of each, so one of the two sees the other. While no turn waits,
//! no lock is taken. Wakers are the application's code: they are woken and dropped after the lock is given back.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::task::{Poll, Waker};

use crate::cell::sync::{AtomicU32, Mutex, MutexGuard, Ordering, fence};

/// Most that wait for one model's slots.
pub(crate) const WAITING_MAX: usize = 1 << 16;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Line {
    /// How many wait.
    waiting: AtomicU32,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    next: u64,
    /// By number, ascending.
    waiting: VecDeque<(u64, Waker)>,
}

/// There are [`WAITING_MAX`] in line already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LineFull;

/// A place in line, or the intention to take one. Dropped, it is given up.
#[derive(Debug)]
pub(crate) struct Turn {
    line: Arc<Line>,
    /// Its number, once it waits.
    number: Option<u64>,
}

impl Line {
    pub(crate) fn new() -> Arc<Self> {
        let (waiting, places) = (AtomicU32::new(0), Mutex::new(Places::default()));
        Arc::new(Self { waiting, places })
    }

    /// Something has changed that the first in line should look at.
    pub(crate) fn moved(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            let first = self.places().waiting.front().map(|(_, waker)| waker.clone());
            first.into_iter().for_each(Waker::wake);
        }
    }

    /// Something has changed that everyone in line should look at.
    pub(crate) fn closed(&self) {
        let all: Vec<Waker> =
            self.places().waiting.iter().map(|(_, waker)| waker.clone()).collect();
        all.into_iter().for_each(Waker::wake);
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the place out. The next one is the first then, perhaps with a slot to take.
    fn leave(&self, number: u64) {
        let mut places = self.places();
        let at = places.waiting.partition_point(|(other, _)| *other < number);
        let left = places.waiting.remove(at);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        drop(places);
        drop(left);
        if at == 0 {
            self.moved();
        }
    }
}

impl Turn {
    pub(crate) fn new(line: &Arc<Line>) -> Self {
        Self { line: Arc::clone(line), number: None }
    }

    /// What `take` gives, once it is this one's turn; otherwise `waker` is called when it may be.
    pub(crate) fn poll<T>(
        &mut self,
        waker: &Waker,
        take: impl FnOnce() -> Option<T>,
    ) -> Poll<Result<T, LineFull>> {
        let Some(is_first) = self.queue(waker) else { return Poll::Ready(Err(LineFull)) };
        fence(Ordering::SeqCst);
        let Some(taken) = is_first.then(take).flatten() else { return Poll::Pending };
        self.leave();
        Poll::Ready(Ok(taken))
    }

    /// In line from now on; whether it is the first. `None`: the line is full.
    fn queue(&mut self, waker: &Waker) -> Option<bool> {
        let mut places = self.line.places();
        let Places { next, waiting } = &mut *places;
        let number = match self.number {
            Some(number) => number,
            None if waiting.len() >= WAITING_MAX => return None,
            None => {
                let number = *self.number.insert(*next);
                *next += 1;
                waiting.push_back((number, waker.clone()));
                self.line.waiting.fetch_add(1, Ordering::Relaxed);
                return Some(waiting.len() == 1);
            }
        };
        let at = waiting.partition_point(|(other, _)| *other < number);
        let mine = waiting.get_mut(at).filter(|(other, _)| *other == number)?;
        let former =
            (!mine.1.will_wake(waker)).then(|| std::mem::replace(&mut mine.1, waker.clone()));
        drop(places);
        drop(former);
        Some(at == 0)
    }

    fn leave(&mut self) {
        if let Some(number) = self.number.take() {
            self.line.leave(number);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::{Wake, Waker};

    use super::*;

    /// Counts its wakes.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Count {
        fn taken(&self) -> usize {
            self.0.swap(0, Ordering::Relaxed)
        }
    }

    /// Slots, and turns that wait for them.
    struct World {
        line: Arc<Line>,
        free: AtomicUsize,
        wakes: Vec<Arc<Count>>,
        turns: Vec<Option<Turn>>,
    }

    impl World {
        fn new(waiting: usize) -> Self {
            let line = Line::new();
            let turns = (0..waiting).map(|_| Some(Turn::new(&line))).collect();
            let wakes = (0..waiting).map(|_| Arc::default()).collect();
            Self { line, free: AtomicUsize::new(0), wakes, turns }
        }

        fn free(&self, slots: usize) {
            for _ in 0..slots {
                self.free.fetch_add(1, Ordering::Relaxed);
                self.line.moved();
            }
        }

        /// True if it has a slot now.
        fn poll(&mut self, who: usize) -> bool {
            let waker = Waker::from(Arc::clone(&self.wakes[who]));
            let free = &self.free;
            let take = || {
                let less = |free: usize| free.checked_sub(1);
                free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok()
            };
            let turn = self.turns[who].as_mut().expect("it waits");
            turn.poll(&waker, take).map(|taken| assert!(taken.is_ok())).is_ready()
        }

        fn woken(&self) -> Vec<usize> {
            self.wakes.iter().map(|wakes| wakes.taken()).collect()
        }
    }

    #[test]
    fn a_slot_that_is_free_is_taken_at_once() {
        let mut world = World::new(1);
        world.free(1);
        assert!(world.poll(0));
        assert_eq!(world.line.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn slots_go_to_those_who_wait_in_the_order_of_their_coming() {
        let mut world = World::new(4);
        assert_eq!([0, 1, 2].map(|who| world.poll(who)), [false; 3]);
        world.free(2);
        assert_eq!(world.woken(), [2, 0, 0, 0], "only the first is woken");
        assert!(!world.poll(3), "one who comes now waits behind the others");
        assert!(!world.poll(1) && !world.poll(2), "and so do they, if they look");
        assert!(world.poll(0));
        assert_eq!(world.woken(), [0, 1, 0, 0], "and the next one after it");
        assert!(world.poll(1));
        assert_eq!(world.woken(), [0, 0, 1, 0]);
        assert!(!world.poll(2), "nothing is left");
        world.free(1);
        assert!(world.poll(2));
    }

    #[test]
    fn one_who_looks_again_is_woken_by_its_last_waker() {
        let mut world = World::new(1);
        assert!(!world.poll(0));
        let first = std::mem::take(&mut world.wakes[0]);
        assert!(!world.poll(0));
        world.free(1);
        assert_eq!((first.taken(), world.woken()), (0, vec![1]));
    }

    #[test]
    fn one_whose_slot_was_snatched_keeps_its_place() {
        let mut world = World::new(2);
        assert!(!world.poll(0) && !world.poll(1));
        world.free(1);
        world.free.store(0, Ordering::Relaxed);
        assert!(!world.poll(0));
        world.free(1);
        assert_eq!(world.woken(), [2, 0]);
        assert!(!world.poll(1) && world.poll(0));
    }

    #[test]
    fn one_who_gives_up_passes_the_wake_on() {
        let mut world = World::new(3);
        assert_eq!([0, 1, 2].map(|who| world.poll(who)), [false; 3]);
        world.turns[1] = None;
        world.free(1);
        world.turns[0] = None;
        assert_eq!(world.woken(), [1, 0, 1], "the third is the first now");
        assert!(world.poll(2));
        assert_eq!(world.line.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn everyone_looks_when_the_line_closes_and_it_is_bounded() {
        let mut world = World::new(2);
        assert!(!world.poll(0) && !world.poll(1));
        world.line.closed();
        assert_eq!(world.woken(), [1, 1]);
        let fill = |_| {
            let mut turn = Turn::new(&world.line);
            assert!(turn.poll(Waker::noop(), || None::<()>).is_pending());
            turn
        };
        let turns: Vec<Turn> = (2..WAITING_MAX).map(fill).collect();
        let mut late = Turn::new(&world.line);
        assert_eq!(late.poll(Waker::noop(), || Some(())), Poll::Ready(Err(LineFull)));
        drop(turns);
    }

    /// Each of some threads takes slots and gives them back, and none sleeps for ever.
    #[test]
    fn no_wake_is_lost_among_threads() {
        const SLOTS: usize = 2;
        let line = Line::new();
        let free = AtomicUsize::new(SLOTS);
        let take = || {
            let less = |free: usize| free.checked_sub(1);
            free.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less).ok()
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let (parker, unparker) = parking::pair();
                    let waker = Waker::from(unparker);
                    for _ in 0..2_000 {
                        let mut turn = Turn::new(&line);
                        while turn.poll(&waker, take).is_pending() {
                            parker.park();
                        }
                        free.fetch_add(1, Ordering::AcqRel);
                        line.moved();
                    }
                });
            }
        });
        assert_eq!(free.into_inner(), SLOTS);
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test -p baton-client --release --lib loom`
#[cfg(all(test, loom))]
mod loom_models {
    use std::future::poll_fn;

    use loom::future::block_on;
    use loom::thread;

    use super::*;

    /// Gives a slot back.
    fn free(line: &Line, slots: &AtomicU32) {
        slots.fetch_add(1, Ordering::AcqRel);
        line.moved();
    }

    /// Waits for a slot. loom notices if no thread wakes it.
    fn slot(line: &Arc<Line>, slots: &AtomicU32) {
        let less = |slots: u32| slots.checked_sub(1);
        let take = || slots.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).ok();
        let mut turn = Turn::new(line);
        assert!(block_on(poll_fn(|context| turn.poll(context.waker(), take))).is_ok());
    }

    #[test]
    fn who_waits_for_a_slot_is_woken() {
        loom::model(|| {
            let (line, slots) = (Line::new(), Arc::new(AtomicU32::new(0)));
            let freeing = {
                let (line, slots) = (Arc::clone(&line), Arc::clone(&slots));
                thread::spawn(move || free(&line, &slots))
            };
            slot(&line, &slots);
            freeing.join().unwrap();
        });
    }

    #[test]
    fn two_who_wait_for_one_slot_get_it_after_each_other() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let (line, slots) = (Line::new(), Arc::new(AtomicU32::new(1)));
            let other = {
                let (line, slots) = (Arc::clone(&line), Arc::clone(&slots));
                thread::spawn(move || {
                    slot(&line, &slots);
                    free(&line, &slots);
                })
            };
            slot(&line, &slots);
            free(&line, &slots);
            other.join().unwrap();
        });
    }
}

//! Which rows of a batch buffer are lent, by whichever threads.
//!
//! A row has one holder; while the whole is borrowed no row is lent; and all rows lent at a time have the same length. The first row
//! lent after everything was returned fixes the length.

use std::fmt;
#[cfg(not(test))]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use baton_types::BATCH_MAX;
#[cfg(test)]
use stepped::AtomicU64;

/// The lower half of [`Lent::state`] while the buffer is borrowed as a whole.
const WHOLE: u32 = u32::MAX;
const WORDS: usize = BATCH_MAX as usize / 64;

pub(super) struct Lent {
    /// Row length in the upper half, rows lent (or [`WHOLE`]) in the lower.
    state: AtomicU64,
    /// One bit per lent row; clear before the row leaves the count in `state`.
    rows: [AtomicU64; WORDS],
}

impl Default for Lent {
    fn default() -> Self {
        let rows = std::array::from_fn(|_| AtomicU64::new(0));
        Self { state: AtomicU64::new(0), rows }
    }
}

impl Lent {
    /// Lends a row below [`BATCH_MAX`]. False if it is lent already, if rows of another length are, or if the whole is borrowed.
    pub(super) fn lend(&self, row: u32, row_bytes: u32) -> bool {
        if !self.enter(row_bytes) {
            return false;
        }
        let (word, bit) = self.bit(row);
        let is_free = word.fetch_or(bit, Ordering::Acquire) & bit == 0;
        if !is_free {
            self.leave();
        }
        is_free
    }

    /// The row comes back.
    pub(super) fn give_back(&self, row: u32) {
        let (word, bit) = self.bit(row);
        word.fetch_and(!bit, Ordering::Release);
        self.leave();
    }

    /// False while a row is lent or another such borrow exists.
    pub(super) fn borrow_whole(&self) -> bool {
        let borrowed = self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, |state| {
            (state as u32 == 0).then_some(u64::from(WHOLE))
        });
        borrowed.is_ok()
    }

    pub(super) fn return_whole(&self) {
        self.state.store(0, Ordering::Release);
    }

    /// Counts one row of this length in; refused if rows of another length are out, or the whole.
    fn enter(&self, row_bytes: u32) -> bool {
        let entered = self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, |state| {
            let (length, lent) = ((state >> 32) as u32, state as u32);
            let free = lent == 0 || (lent != WHOLE && length == row_bytes);
            free.then(|| (u64::from(row_bytes) << 32) | u64::from(lent + 1))
        });
        entered.is_ok()
    }

    fn leave(&self) {
        self.state.fetch_sub(1, Ordering::Release);
    }

    fn bit(&self, row: u32) -> (&AtomicU64, u64) {
        (&self.rows[row as usize / 64], 1 << (row % 64))
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state.load(Ordering::Relaxed) as u32 {
            WHOLE => f.write_str("all"),
            count => count.fmt(f),
        }
    }
}

/// A word that several threads change, and behind each change a moment in which another thread may come in between.
#[cfg(test)]
mod stepped {
    use std::cell::RefCell;
    use std::sync::atomic::Ordering;

    type Between = Box<dyn FnMut()>;

    thread_local! {
        static BETWEEN: RefCell<Option<Between>> = const { RefCell::new(None) };
    }

    /// Does `body`, and `between` behind each change that it makes to a word.
    pub(super) fn with(between: impl FnMut() + 'static, body: impl FnOnce()) {
        BETWEEN.set(Some(Box::new(between)));
        body();
        BETWEEN.set(None);
    }

    pub(super) struct AtomicU64(std::sync::atomic::AtomicU64);

    impl AtomicU64 {
        pub(super) fn new(value: u64) -> Self {
            Self(std::sync::atomic::AtomicU64::new(value))
        }

        pub(super) fn load(&self, order: Ordering) -> u64 {
            self.0.load(order)
        }

        pub(super) fn store(&self, value: u64, order: Ordering) {
            self.0.store(value, order);
            come_between(());
        }

        pub(super) fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
            come_between(self.0.fetch_or(bits, order))
        }

        pub(super) fn fetch_and(&self, bits: u64, order: Ordering) -> u64 {
            come_between(self.0.fetch_and(bits, order))
        }

        pub(super) fn fetch_sub(&self, count: u64, order: Ordering) -> u64 {
            come_between(self.0.fetch_sub(count, order))
        }

        pub(super) fn fetch_update(
            &self,
            set: Ordering,
            fetch: Ordering,
            change: impl FnMut(u64) -> Option<u64>,
        ) -> Result<u64, u64> {
            come_between(self.0.fetch_update(set, fetch, change))
        }
    }

    /// What comes between is not interrupted itself.
    fn come_between<T>(result: T) -> T {
        if let Some(mut between) = BETWEEN.take() {
            between();
            BETWEEN.set(Some(between));
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    /// What another thread finds whenever it comes: while the whole is free, so is each row.
    fn look(lent: &Lent) -> bool {
        let is_whole_free = lent.borrow_whole();
        if is_whole_free {
            lent.return_whole();
            assert!(lent.lend(0, 4), "no row is lent");
            lent.give_back(0);
        }
        is_whole_free
    }

    #[test]
    fn a_row_that_comes_back_is_free_as_soon_as_the_whole_is() {
        let lent = Rc::new(Lent::default());
        let (theirs, found) = (Rc::clone(&lent), Rc::new(Cell::new([0; 2])));
        let counts = Rc::clone(&found);
        let between = move || {
            let mut count = counts.get();
            count[usize::from(look(&theirs))] += 1;
            counts.set(count);
        };
        stepped::with(between, || {
            assert!(lent.lend(0, 4));
            lent.give_back(0);
        });
        assert_eq!(found.get(), [3, 1], "two steps to lend it and two to give it back");
    }

    #[test]
    fn a_row_that_is_refused_leaves_no_trace() {
        let lent = Lent::default();
        assert!(lent.lend(70, 4));
        assert!(!lent.lend(70, 4), "it is lent");
        assert!(!lent.lend(71, 8), "rows of another length are");
        assert!(!look(&lent));
        lent.give_back(70);
        assert!(look(&lent));
        assert!(lent.borrow_whole());
        assert!(!lent.lend(0, 4) && !lent.borrow_whole());
        assert_eq!(format!("{lent:?}"), "all");
    }
}

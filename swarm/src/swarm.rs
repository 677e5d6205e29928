//! Many seeds: each on its own, several at a time.

use std::cell::{Cell, RefCell};
use std::num::NonZeroUsize;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use tracing::subscriber::NoSubscriber;

use crate::plan::Plan;
use crate::report::{Failure, Report, Summary};
use crate::run;

/// What a seed is read as.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Kind {
    /// Faults: [`Plan::of`].
    #[default]
    Faults,
    /// Attackers, in some runs faults as well: [`Plan::hostile`].
    Hostile,
}

/// Runs a seed.
pub fn run_seed(kind: Kind, seed: u64) -> Report {
    run_logged(kind, seed, false).0
}

/// Runs a seed and returns its event log as well.
pub fn run_traced(kind: Kind, seed: u64) -> (Report, Vec<String>) {
    run_logged(kind, seed, true)
}

/// Runs seeds from `from` on, `threads` at a time, for as long as `go_on` says of the number already
/// begun. `on_report` hears of each, in the order in which they end.
pub fn swarm(
    kind: Kind,
    from: u64,
    threads: NonZeroUsize,
    go_on: impl Fn(u64) -> bool + Sync,
    on_report: impl FnMut(&Report) + Send,
) -> Summary {
    let begun = AtomicU64::new(0);
    let shared = Mutex::new((Summary::new(kind, from), on_report));
    let work = || {
        loop {
            let number = begun.fetch_add(1, Ordering::Relaxed);
            if !go_on(number) {
                return;
            }
            let report = run_seed(kind, from + number);
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            shared.0.add(&report);
            (shared.1)(&report);
        }
    };
    std::thread::scope(|scope| {
        (0..threads.get()).for_each(|_| drop(scope.spawn(work)));
    });
    shared.into_inner().unwrap_or_else(PoisonError::into_inner).0
}

fn run_logged(kind: Kind, seed: u64, log: bool) -> (Report, Vec<String>) {
    catch_panics();
    let plan = match kind {
        Kind::Faults => Plan::of(seed),
        Kind::Hostile => Plan::hostile(seed),
    };
    // What the processes log is about time that passes nowhere, and a thousand processes of it.
    let silent = NoSubscriber::new();
    let ended = tracing::subscriber::with_default(silent, || {
        panic::catch_unwind(AssertUnwindSafe(|| run::run(plan, log)))
    });
    RUNNING.set(false);
    // A log ends with its run; to see what led to a panic, RUST_BACKTRACE and a debugger serve.
    ended.unwrap_or_else(|_| (panicked(seed), Vec::new()))
}

thread_local! {
    /// What the last panic of this thread said.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
    /// A run is in progress.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// A panic is a failure like any other: it is reported with its seed, not on stderr.
fn catch_panics() {
    static ONCE: Once = Once::new();
    RUNNING.set(true);
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if RUNNING.get() {
                PANIC.replace(info.to_string());
            } else {
                usual(info);
            }
        }));
    });
}

fn panicked(seed: u64) -> Report {
    let what = format!("panic: {}", PANIC.take().replace('\n', " "));
    Report { seed, failure: Some(Failure { what, at_us: 0 }), ..Report::default() }
}

//! What is shared between threads in an outcome's cell and in the line for slots: loom's where a model checker drives them.

#[cfg(not(loom))]
pub(crate) use atomic_waker::AtomicWaker;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

/// loom's own, with the names of the one it stands for.
#[cfg(loom)]
#[derive(Default, Debug)]
pub(crate) struct AtomicWaker(loom::future::AtomicWaker);

#[cfg(loom)]
impl AtomicWaker {
    pub(crate) fn register(&self, waker: &std::task::Waker) {
        self.0.register_by_ref(waker);
    }

    pub(crate) fn take(&self) -> Option<std::task::Waker> {
        self.0.take_waker()
    }
}

/// Blocks this thread until its unparker is used, at most `timeout`. Nothing blocks in loom's models, which have no time.
pub(crate) fn park(parker: &parking::Parker, timeout: std::time::Duration) {
    #[cfg(not(loom))]
    parker.park_timeout(timeout);
    #[cfg(loom)]
    let _ = (parker, timeout);
}

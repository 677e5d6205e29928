//! Waking an agent that sleeps, for nearly nothing while it is awake.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Ends an agent's wait from any thread. Cloning is cheap.
///
/// A producer makes its work visible, then calls [`Waker::wake`]; an agent announces its sleep with
/// [`Waker::prepare_sleep`], looks for work once more, and only then blocks. The two fences order
/// "work, then is it asleep?" against "asleep, then is there work?", so no wake-up is lost and a
/// wake-up of a running agent costs one load.
#[derive(Clone)]
pub struct Waker(Arc<Inner>);

struct Inner {
    asleep: AtomicBool,
    notify: Box<dyn Fn() + Send + Sync>,
}

impl Waker {
    /// `notify` must end the agent's blocking wait, also when called just before it starts.
    pub fn new(notify: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner { asleep: AtomicBool::new(false), notify: Box::new(notify) }))
    }

    /// Wakes by unparking the thread that calls this function.
    pub fn for_current_thread() -> Self {
        let thread = std::thread::current();
        Self::new(move || thread.unpark())
    }

    /// Wakes the agent if it sleeps or is about to.
    pub fn wake(&self) {
        if self.is_asleep() && self.0.asleep.swap(false, Ordering::Relaxed) {
            (self.0.notify)();
        }
    }

    /// Whether both wake the same agent.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether [`Waker::wake`] would notify the agent: it sleeps or is about to.
    pub fn is_asleep(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.asleep.load(Ordering::Relaxed)
    }

    /// Owner only: announces the sleep. Look for work once more before blocking.
    pub fn prepare_sleep(&self) {
        self.0.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Owner only: the sleep is over, or did not happen.
    pub fn awake(&self) {
        self.0.asleep.store(false, Ordering::Relaxed);
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waker").field("asleep", &self.0.asleep).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn who_sleeps_is_notified_once_and_who_is_awake_never() {
        let count = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&count);
        let waker = Waker::new(move || _ = counted.fetch_add(1, Ordering::Relaxed));
        let woken = |times: u32| {
            (0..times).for_each(|_| waker.wake());
            (waker.is_asleep(), count.swap(0, Ordering::Relaxed))
        };
        assert_eq!(woken(2), (false, 0));
        waker.prepare_sleep();
        assert_eq!(woken(0), (true, 0));
        assert_eq!(woken(2), (false, 1));
        waker.prepare_sleep();
        waker.awake();
        assert_eq!(woken(2), (false, 0), "the sleep did not happen");
        assert!(waker.is(&waker.clone()) && !waker.is(&Waker::new(|| {})));
    }
}

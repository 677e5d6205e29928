//! The client library's I/O on the thread that serves connections: a request goes from its connection to the cluster, and its
//! answer back, without a switch of threads.
//!
//! A task of that thread's runtime makes the client's passes: behind the requests that have submitted something, and when
//! something has arrived. While the thread is at something long, such as a large body of JSON, another one makes them, so that
//! the scheduler hears of this client and backends get their inputs.

use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use baton_client::{Client, Driver, LeaveError};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{self, Instant, Sleep};

/// How often to look whether passes are made. A member may be silent for some times as long.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The passes of a client. See the module documentation.
pub(crate) struct Driving {
    driver: Mutex<Driver>,
    /// How many there were.
    passes: AtomicU64,
    /// With it the thread ends that stands in.
    _ends: Sender<Infallible>,
}

impl fmt::Debug for Driving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driving").field("passes", &self.passes).finish_non_exhaustive()
    }
}

impl Driving {
    /// Starts the thread that stands in.
    pub(crate) fn start(driver: Driver) -> io::Result<Arc<Self>> {
        let (ends, ended) = channel();
        let driver = Mutex::new(driver);
        let driving = Arc::new(Self { driver, passes: AtomicU64::new(0), _ends: ends });
        let late = Arc::downgrade(&driving);
        let name = "baton-stands-in".to_owned();
        thread::Builder::new().name(name).spawn(move || stand_in(&late, &ended))?;
        Ok(driving)
    }

    /// Makes passes on this task's thread, for as long as it is polled.
    ///
    /// # Errors
    /// The runtime cannot watch the client's sockets.
    pub(crate) async fn drive(self: Arc<Self>) -> io::Result<Infallible> {
        let sockets = self.lock().as_fd().try_clone_to_owned()?;
        #[expect(
            deprecated,
            reason = "an OwnedFd is what its successor is not: safe without a promise"
        )]
        let sockets = AsyncFd::with_interest(sockets, Interest::READABLE)?;
        let mut timer = pin!(time::sleep(Duration::ZERO));
        poll_fn(|context| self.pass(&sockets, timer.as_mut(), context)).await
    }

    fn pass(
        &self,
        sockets: &AsyncFd<OwnedFd>,
        mut timer: Pin<&mut Sleep>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Infallible>> {
        // Before the pass: what arrives behind this shows again.
        while let Poll::Ready(is_readable) = sockets.poll_read_ready(context) {
            is_readable?.clear_ready();
        }
        let sleep = self.lock().poll_task(context);
        self.passes.fetch_add(1, Ordering::Relaxed);
        if sleep > Duration::ZERO && is_early(timer.as_mut(), sleep, context) {
            return Poll::Pending;
        }
        // Behind the tasks whose outcomes this pass has brought: they submit again.
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Ends the client, on the thread that calls.
    pub(crate) fn leave(&self, client: Client) -> Result<(), LeaveError> {
        self.lock().leave(client)
    }

    fn lock(&self) -> MutexGuard<'_, Driver> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True if the next pass is not due yet; then the timer wakes the task by the time that it is.
fn is_early(mut timer: Pin<&mut Sleep>, sleep: Duration, context: &mut Context<'_>) -> bool {
    let due = Instant::now() + sleep;
    // One that is too early wakes the task for nothing, which is less than to set it at each pass.
    if timer.is_elapsed() || due < timer.deadline() {
        timer.as_mut().reset(due);
    }
    timer.poll(context).is_pending()
}

/// Makes a pass whenever there was none since the last look, until `ended`.
fn stand_in(driving: &Weak<Driving>, ended: &Receiver<Infallible>) {
    let mut seen = 0;
    while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
        let Some(driving) = driving.upgrade() else { return };
        let passes = driving.passes.load(Ordering::Relaxed);
        if std::mem::replace(&mut seen, passes) != passes {
            continue;
        }
        match driving.driver.try_lock() {
            Ok(mut driver) => driver.stand_in(),
            // A pass is being made.
            Err(TryLockError::WouldBlock) => {}
            // The thread that serves has died in it, and ends the process.
            Err(TryLockError::Poisoned(_)) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing would wake the task: its timer has done so.
    #[test]
    fn a_timer_that_runs_out_as_it_is_asked_has_the_next_pass_due() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut timer = pin!(time::sleep_until(Instant::now() - Duration::from_millis(10)));
            let hour = Duration::from_secs(3_600);
            let early = poll_fn(|context| Poll::Ready(is_early(timer.as_mut(), hour, context)));
            assert!(!early.await);
        });
    }

    /// A timer that has run out and stays so would have the thread make passes for ever.
    #[test]
    fn a_timer_that_has_run_out_is_set_anew() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let hour = Duration::from_secs(3_600);
            let mut timer = pin!(time::sleep(Duration::ZERO));
            timer.as_mut().await;
            let early =
                poll_fn(|context| Poll::Ready(is_early(timer.as_mut(), hour, context))).await;
            assert!(early);
            let sooner = Instant::now() + hour / 2;
            let early = poll_fn(|context| Poll::Ready(is_early(timer.as_mut(), hour / 2, context)));
            assert!(early.await && timer.deadline() < sooner + hour / 4);
        });
    }
}

//! A client without a thread of its own: the application's loop makes the passes.
//!
//! In: the loop's calls. Out: what [`crate::Client`]'s I/O thread would do. Tickets have their outcomes behind the
//! [`Driver::poll`] that brought them, on the same thread, so neither a wake nor a switch lies between.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use atomic_waker::AtomicWaker;
use baton_rdma::MixedTransport;
use baton_topo::{Agent, Clock, Waker, wait_readable};
use baton_types::Nanos;

use crate::client::Client;
use crate::config::nanos;
use crate::error::LeaveError;
use crate::io::ClientIo;
use crate::io_thread::IoHandle;

/// Makes the passes of one client's I/O: [`Client::driven`]. For event loops, and for programs whose only work is requests.
///
/// ```text
/// loop {
///     submit what there is to submit; take outcomes with Ticket::poll
///     driver.poll();                  // sends, receives, hands out outcomes
///     driver.wait(Some(timeout));     // or block on the descriptor together with others
/// }
/// ```
///
/// Some thread must call [`Driver::poll`] whenever the descriptor is readable, and at the latest after
/// [`Driver::prepare_wait`]'s duration. Backends read the inputs in that call, and the scheduler hears of this client in it: one
/// that stays away for `member_timeout` (1 s by default) is lost. The thread that drives must not call what waits for
/// the I/O: [`crate::Ticket::wait`], [`Client::leave`]. Other threads may, and may submit. A driver that is dropped ends its client:
/// outstanding tasks fail with `scheduler_lost`.
pub struct Driver {
    io: ClientIo<MixedTransport>,
    clock: Clock,
    /// Wakes the task that drives, or else makes the descriptor readable.
    waker: Waker,
    task: Arc<AtomicWaker>,
}

impl Driver {
    pub(crate) fn new(mut io: ClientIo<MixedTransport>, clock: Clock) -> Self {
        let (task, descriptor) = (Arc::new(AtomicWaker::new()), io.waker());
        let driving = Arc::clone(&task);
        let waker = Waker::new(move || match driving.take() {
            Some(task) => task.wake(),
            None => {
                descriptor.prepare_sleep();
                descriptor.wake();
            }
        });
        io.reach_by(IoHandle::new(waker.clone()));
        Self { io, clock, waker, task }
    }

    /// One pass: sends what was submitted, receives, and hands out outcomes. Never blocks. Returns how much there was to do;
    /// after 0 the loop may block.
    pub fn poll(&mut self) -> usize {
        self.waker.awake();
        self.io.poll(self.clock.now())
    }

    /// To be called before the loop blocks on the descriptor, and after nothing but a [`Driver::poll`]: how long it
    /// may at most. Zero: poll again. From here until the next poll a submit by another thread makes the descriptor readable.
    pub fn prepare_wait(&mut self) -> Duration {
        // A task that drove before does so no longer.
        drop(self.task.take());
        self.waker.prepare_sleep();
        let now = self.clock.now();
        if self.io.poll(now) > 0 {
            return Duration::ZERO;
        }
        self.may_sleep(now)
    }

    /// For how long, after a pass at `now` that had nothing to do.
    fn may_sleep(&mut self, now: Nanos) -> Duration {
        let longest = self.io.sleep_max();
        let sleep = self.io.next_timer().map_or(longest, |due| (due - now).min(longest));
        let bound = self.io.prepare_wait(Some(sleep)).map(|bound| bound.unwrap_or(longest));
        bound.map_or(Duration::ZERO, |Nanos(ns)| Duration::from_nanos(ns))
    }

    /// Blocks until there may be something to poll for, at most `timeout`.
    pub fn wait(&mut self, timeout: Option<Duration>) {
        let bound = self.prepare_wait();
        let bound = timeout.map_or(bound, |timeout| timeout.min(bound));
        if bound > Duration::ZERO {
            wait_readable(&*self, Some(nanos(bound)));
        }
        self.waker.awake();
    }

    /// As [`Driver::poll`], by a task of an executor: from here until the next poll, what any thread or task submits wakes this
    /// task, once, and makes no descriptor readable. Returns for how long the task may sleep at most, unless it is woken or the
    /// descriptor becomes readable. Zero: poll again, behind the tasks whose outcomes this poll has brought.
    pub fn poll_task(&mut self, context: &Context<'_>) -> Duration {
        self.task.register(context.waker());
        // Before the pass: what comes meanwhile may be too late for it.
        self.waker.prepare_sleep();
        let now = self.clock.now();
        if self.io.poll(now) > 0 {
            return Duration::ZERO;
        }
        self.may_sleep(now)
    }

    /// A pass in place of the task that drives, whose thread may be at something long: by any other.
    pub fn stand_in(&mut self) {
        if self.io.poll(self.clock.now()) > 0 {
            // There may be more, of which the descriptor shows nothing again.
            self.task.wake();
        }
    }

    /// True once the client has left or could not join: there is nothing left to drive.
    pub fn has_ended(&self) -> bool {
        self.io.finished()
    }

    /// As [`Client::leave`], by the thread that drives.
    ///
    /// # Errors
    /// As [`Client::leave`].
    pub fn leave(&mut self, client: Client) -> Result<(), LeaveError> {
        let session = client.begin_leaving();
        self.drive_until(|driver| driver.has_ended().then_some(()));
        session.farewell()
    }

    /// Makes passes until `is_done` says something.
    pub(crate) fn drive_until<R>(&mut self, is_done: impl Fn(&Self) -> Option<R>) -> R {
        loop {
            self.poll();
            if let Some(result) = is_done(self) {
                return result;
            }
            self.wait(None);
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("has_ended", &self.has_ended()).finish_non_exhaustive()
    }
}

impl AsFd for Driver {
    /// Readable once there may be something to poll for.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.io.pollable().expect("this transport has sockets")
    }
}

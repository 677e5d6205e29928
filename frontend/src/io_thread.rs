//! The thread that makes a client's passes, and how the application's threads spare it most wakes.
//!
//! In: submits and cancels, in the queue of the [`crate::session::Session`]. Out: passes of the [`ClientIo`], each by one
//! thread at a time. While the I/O thread sleeps, the thread that has put something into the queue sends it itself, unless
//! it or another has just done so: one submit in a burst goes out by itself, and the I/O thread sends the others together.
//! Nor does it wait: if another thread is at it, it wakes the I/O thread instead. So nothing in the queue is left
//! behind: the I/O thread looks once more after it has announced its sleep, and what comes later finds it asleep.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::{fmt, io, task, thread};

use baton_core::Nanos;
use baton_rdma::Transport;
use baton_topo::{Agent, Clock, Idle, PARK_MAX, Placement, Waker, prepare_thread, wait_readable};

use crate::io::ClientIo;

/// A submit that comes sooner after another belongs to a burst, and is sent together with others. Threads that sleep for
/// the next arrival oversleep, by less than this, and then submit several.
const BURST_GAP: Nanos = Nanos::from_micros(250);

/// A sleep shorter than this is not worth it: the next pass comes at once.
const SLEEP_MIN: Nanos = Nanos::from_micros(20);

/// How a thread of the application's gets the queue emptied. Cloning is cheap.
#[derive(Clone, Debug)]
pub(crate) struct IoHandle {
    waker: Waker,
    /// `None` where the application makes the passes itself.
    thread: Option<Arc<dyn Sends>>,
}

/// An [`IoThread`] over any transport.
trait Sends: Send + Sync + fmt::Debug {
    /// Sends what is in the queue, on the calling thread. False if it cannot or should not: the I/O thread has to.
    fn send_here(&self) -> bool;
}

impl IoHandle {
    /// Of an I/O side that is polled by its owner.
    pub(crate) fn new(waker: Waker) -> Self {
        Self { waker, thread: None }
    }

    /// Something is in the queue. Returns whether the caller has sent it; otherwise the I/O thread will.
    pub(crate) fn see_to_commands(&self) -> bool {
        if !self.waker.is_asleep() {
            return false;
        }
        let is_sent = self.thread.as_ref().is_some_and(|thread| thread.send_here());
        if !is_sent {
            self.waker.wake();
        }
        is_sent
    }

    /// The next pass comes at once.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }
}

/// What the I/O thread and the application's threads share.
struct IoThread<T: Transport> {
    /// `None` once it has ended.
    io: Mutex<Option<ClientIo<T>>>,
    /// When the I/O thread will wake by itself, as of its last sleep.
    wakes_at: AtomicU64,
    /// When a thread of the application's sent last.
    sent_at: AtomicU64,
    waker: Waker,
    clock: Clock,
}

impl<T: Transport> fmt::Debug for IoThread<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoThread").field("waker", &self.waker).finish_non_exhaustive()
    }
}

/// Starts the thread. It ends when the client has left or could not join.
///
/// # Errors
/// The machine gives no thread or descriptor.
pub(crate) fn start<T: Transport + Send + 'static>(
    mut io: ClientIo<T>,
    clock: Clock,
    placement: Placement,
) -> io::Result<()> {
    let pollable = io.transport().pollable().ok_or(io::ErrorKind::Unsupported)?;
    let pollable = pollable.try_clone_to_owned()?;
    let [wakes_at, sent_at] = [(); 2].map(|()| AtomicU64::new(0));
    let waker = io.waker();
    let shared =
        Arc::new(IoThread { io: Mutex::new(None), wakes_at, sent_at, waker: waker.clone(), clock });
    io.reach_by(IoHandle { waker, thread: Some(Arc::clone(&shared) as Arc<dyn Sends>) });
    thread::Builder::new().name(placement.name.clone()).spawn(move || {
        *shared.io.lock().unwrap_or_else(PoisonError::into_inner) = Some(io);
        let ends = Ends(&shared);
        shared.run(&pollable, &placement);
        drop(ends);
    })?;
    Ok(())
}

/// Ends the I/O side when its thread does, also by a panic: no ticket is left waiting for it.
struct Ends<'a, T: Transport>(&'a IoThread<T>);

impl<T: Transport> Drop for Ends<'_, T> {
    fn drop(&mut self) {
        let io = self.0.io.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The lock is free again: what this wakes may submit.
        drop(io);
    }
}

impl<T: Transport> IoThread<T> {
    fn run(&self, pollable: &OwnedFd, placement: &Placement) {
        prepare_thread(placement);
        let mut listeners = Vec::new();
        while let Some(work) = self.pass(&mut listeners) {
            match placement.idle {
                _ if work > 0 => {}
                Idle::Spin => std::hint::spin_loop(),
                Idle::Yield => thread::yield_now(),
                Idle::Park => self.sleep(pollable, &mut listeners),
            }
        }
    }

    /// One pass, and the wakes behind it. `None` once this side has ended, or another thread died in it.
    fn pass(&self, listeners: &mut Vec<task::Waker>) -> Option<usize> {
        let work = {
            let mut io = self.io.lock().ok()?;
            let io = io.as_mut().filter(|io| !io.finished())?;
            let work = io.pass(self.clock.now());
            io.swap_listeners(listeners);
            work
        };
        listeners.drain(..).for_each(task::Waker::wake);
        Some(work)
    }

    fn sleep(&self, pollable: &OwnedFd, listeners: &mut Vec<task::Waker>) {
        self.waker.prepare_sleep();
        if self.pass(listeners) == Some(0)
            && let Some(timeout) = self.prepare_sleep()
        {
            wait_readable(pollable, Some(timeout));
        }
        self.waker.awake();
    }

    /// How long the thread may sleep; `None`: not at all.
    fn prepare_sleep(&self) -> Option<Nanos> {
        let mut io = self.io.lock().ok()?;
        let (io, now) = (io.as_mut()?, self.clock.now());
        let timeout = io.next_timer().map_or(PARK_MAX, |due| (due - now).min(PARK_MAX));
        if timeout < SLEEP_MIN {
            return None;
        }
        let timeout = io.transport().prepare_wait(Some(timeout))?.unwrap_or(timeout);
        self.wakes_at.store((now + timeout).0, Ordering::Relaxed);
        Some(timeout)
    }
}

impl<T: Transport + Send> Sends for IoThread<T> {
    fn send_here(&self) -> bool {
        let (now, mut listeners) = (self.clock.now(), Vec::new());
        // It orders nothing: a moment that another thread has just overwritten is as good.
        if now - Nanos(self.sent_at.swap(now.0, Ordering::Relaxed)) < BURST_GAP {
            return false;
        }
        let is_done = {
            let mut io = match self.io.try_lock() {
                Ok(io) => io,
                Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => return false,
            };
            // Where this side has ended, it has ended what was in the queue too.
            let Some(io) = io.as_mut() else { return true };
            let wakes_at = Nanos(self.wakes_at.load(Ordering::Relaxed));
            let is_done = io.send_commands(now, wakes_at);
            io.swap_listeners(&mut listeners);
            is_done
        };
        listeners.into_iter().for_each(task::Waker::wake);
        is_done
    }
}

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

use baton_rdma::Transport;
use baton_topo::{Agent, Clock, PARK_MAX, Placement, Waker, run, wait_readable};
use baton_types::Nanos;

use crate::io::ClientIo;

/// A submit that comes sooner after another belongs to a burst, and is sent together with others. Threads that sleep for
/// the next arrival oversleep, by less than this, and then submit several.
const BURST_GAP: Nanos = Nanos::from_micros(250);

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
    /// The first timer when the I/O thread went to sleep.
    timer: AtomicU64,
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
    let pollable = io.pollable().ok_or(io::ErrorKind::Unsupported)?.try_clone_to_owned()?;
    let [timer, sent_at] = [(); 2].map(|()| AtomicU64::new(0));
    let waker = io.waker();
    let shared =
        Arc::new(IoThread { io: Mutex::new(None), timer, sent_at, waker: waker.clone(), clock });
    io.reach_by(IoHandle { waker, thread: Some(Arc::clone(&shared) as Arc<dyn Sends>) });
    thread::Builder::new().name(placement.name.clone()).spawn(move || {
        *shared.io.lock().unwrap_or_else(PoisonError::into_inner) = Some(io);
        let mut passes = Passes { shared, pollable, listeners: Vec::new() };
        run(&mut passes, clock, &placement, &Arc::default());
    })?;
    Ok(())
}

/// The I/O side, as its thread runs it: each pass by itself under the lock, and no wait.
struct Passes<T: Transport> {
    shared: Arc<IoThread<T>>,
    pollable: OwnedFd,
    /// To be woken behind a pass; empty between two.
    listeners: Vec<task::Waker>,
}

impl<T: Transport> Passes<T> {
    /// `None` once this side has ended, or another thread has died in it.
    fn with<R>(&self, look: impl FnOnce(&mut ClientIo<T>) -> R) -> Option<R> {
        self.shared.io.lock().ok()?.as_mut().map(look)
    }
}

impl<T: Transport> Agent for Passes<T> {
    fn poll(&mut self, now: Nanos) -> usize {
        let mut listeners = std::mem::take(&mut self.listeners);
        let work = self.with(|io| {
            let work = io.pass(now);
            io.swap_listeners(&mut listeners);
            work
        });
        listeners.drain(..).for_each(task::Waker::wake);
        self.listeners = listeners;
        // The end counts as work: the loop then asks whether this side has finished.
        work.unwrap_or(1)
    }

    fn next_timer(&self) -> Option<Nanos> {
        self.with(|io| io.next_timer()).flatten()
    }

    fn wait(&mut self, timeout: Option<Nanos>) {
        let now = self.shared.clock.now();
        let bound = self.with(|io| {
            // Under the lock: a caller may have sent since `timeout` was reckoned, and that may have brought a timer.
            let timer = io.next_timer();
            self.shared.timer.store(timer.unwrap_or(Nanos::MAX).0, Ordering::Relaxed);
            io.prepare_wait(timeout.into_iter().chain(timer.map(|due| due - now)).min())
        });
        if let Some(bound) = bound.flatten() {
            wait_readable(&self.pollable, bound);
        }
    }

    fn sleep_max(&self) -> Nanos {
        self.with(|io| io.sleep_max()).unwrap_or(PARK_MAX)
    }

    fn waker(&self) -> Waker {
        self.shared.waker.clone()
    }

    fn finished(&self) -> bool {
        self.with(|io| io.finished()).unwrap_or(true)
    }
}

impl<T: Transport> Drop for Passes<T> {
    /// Also by a panic: no ticket is left waiting for this side.
    fn drop(&mut self) {
        let io = self.shared.io.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The lock is free again: what this wakes may submit.
        drop(io);
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
            let timer = Nanos(self.timer.load(Ordering::Relaxed));
            let is_done = io.send_commands(now, timer);
            io.swap_listeners(&mut listeners);
            is_done
        };
        listeners.into_iter().for_each(task::Waker::wake);
        is_done
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, TcpListener};

    use baton_rdma::wire::Role;
    use baton_rdma::{Identity, TcpTransport};

    use super::*;
    use crate::config::ClientConfig;

    /// Of a client that has just connected to `scheduler`, as of `now`.
    fn passes(scheduler: SocketAddr, now: Nanos) -> Passes<TcpTransport> {
        let (config, clock) = (ClientConfig::new(scheduler), Clock::start());
        let identity = Identity { role: Role::Frontend, member: 0 };
        let transport = TcpTransport::bind(None, identity, config.tcp).unwrap();
        let (mut io, _joining) = ClientIo::new(config, transport, clock).unwrap();
        io.pass(now);
        let pollable = io.pollable().unwrap().try_clone_to_owned().unwrap();
        let [timer, sent_at] = [(); 2].map(|()| AtomicU64::new(0));
        let (io, waker) = (Mutex::new(Some(io)), Waker::new(|| {}));
        let shared = Arc::new(IoThread { io, timer, sent_at, waker, clock });
        Passes { shared, pollable, listeners: Vec::new() }
    }

    fn listener() -> TcpListener {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
    }

    /// A thread that makes passes for nothing takes a core.
    #[test]
    fn it_sleeps_until_the_first_timer_of_the_side_that_it_runs() {
        let (listener, now) = (listener(), Nanos::from_millis(1_000));
        let passes = passes(listener.local_addr().unwrap(), now);
        let timer = passes.with(|io| io.next_timer()).unwrap();
        assert!(timer.is_some_and(|due| due > now), "the join has its bound");
        assert_eq!(passes.next_timer(), timer);
    }

    /// Which a caller may have brought since the sleep was reckoned.
    #[test]
    fn it_sleeps_no_longer_than_to_a_timer_that_has_come_meanwhile() {
        let closed = listener().local_addr().unwrap();
        let mut passes = passes(closed, Nanos::ZERO);
        let clock = passes.shared.clock;
        passes.poll(clock.now());
        passes.poll(clock.now());
        passes.wait(Some(Nanos::from_millis(30_000)));
        assert!(clock.now() < Nanos::from_millis(20_000), "it tries to connect again");
    }
}

//! Outcomes of many tasks in one place, with one descriptor to wait for.
//!
//! In: tickets, each with a tag of the application's. Out: completions, in the order in which the outcomes came. Between:
//! the I/O thread, which lists the entry whose task has ended ([`Ready`]), as the waker of that entry.
//!
//! Invariant: the descriptor is readable exactly while an entry is listed. Both change under one lock. An entry is listed
//! once at most, so the list has room for every wake, also for one that comes late and means the entry's former task: such
//! an entry is looked at and listens again.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use baton_topo::{Clock, wait_readable};
use rustix::event::{EventfdFlags, eventfd};

use crate::config::nanos;
use crate::outcome::Outcome;
use crate::ticket::Ticket;

/// Takes the outcomes of many tasks, of any models and clients, in the order in which they come. For event loops: its
/// descriptor ([`AsFd`]) is readable while an outcome may be there, so one registration serves every task.
///
/// ```no_run
/// use std::time::Duration;
/// use baton_client::{Client, ClientConfig, CompletionQueue, Deadline};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::connect(ClientConfig::new("127.0.0.1:7700".parse()?))?;
/// let (model, queue) = (client.model("digits")?, CompletionQueue::new(64)?);
/// for tag in 0..64 {
///     queue.add(model.input()?.submit(Deadline::Slo)?, tag)?;
/// }
/// while let Some(done) = queue.wait(Duration::from_secs(2)) {
///     println!("task {}: {:?}", done.tag, done.outcome);
/// }
/// # Ok(())
/// # }
/// ```
///
/// It holds at most as many tasks as it was made for, from [`CompletionQueue::add`] until their outcome is taken. Any thread
/// may call it. Dropping it drops the tickets in it, which cancels their tasks.
pub struct CompletionQueue {
    entries: Mutex<Entries>,
    ready: Arc<Ready>,
    /// By entry.
    wakers: Box<[Waker]>,
    clock: Clock,
}

/// How one task of a [`CompletionQueue`] ended.
#[derive(Debug)]
pub struct Completion {
    /// What the application gave with the ticket.
    pub tag: u64,
    /// As [`Ticket::wait`] returns it.
    pub outcome: Outcome,
}

/// Names a task in its [`CompletionQueue`] until its outcome is taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CompletionKey {
    entry: u32,
    generation: u32,
}

/// There is no room for another task. The ticket comes back untouched.
#[derive(Debug, thiserror::Error)]
#[error(
    "all {capacity} places of the completion queue are taken: take outcomes, or make it larger"
)]
pub struct CompletionQueueFull {
    /// The ticket, to be waited for in another way.
    pub ticket: Ticket,
    /// How many tasks the queue holds.
    pub capacity: usize,
}

struct Entries {
    places: Box<[Entry]>,
    free: Vec<u32>,
}

struct Entry {
    /// Counts the tasks that it has had.
    generation: u32,
    tag: u64,
    state: State,
}

enum State {
    Free,
    Waiting(Ticket),
}

impl CompletionKey {
    /// As one number, for callers in another language.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.entry)
    }

    /// A key from [`CompletionKey::to_bits`]. Any other number names no task, or another one.
    pub fn from_bits(bits: u64) -> Self {
        Self { entry: bits as u32, generation: (bits >> 32) as u32 }
    }
}

impl CompletionQueue {
    /// A queue for at most `capacity` tasks at once. As many as all slots of the models in question are never too few.
    ///
    /// # Errors
    /// The system gives no descriptor, or `capacity` is above `u32::MAX`.
    pub fn new(capacity: usize) -> io::Result<Self> {
        let count = u32::try_from(capacity).map_err(|_| io::ErrorKind::InvalidInput)?;
        let ready = Arc::new(Ready::new(capacity)?);
        let waker = |entry| Waker::from(Arc::new(EntryWaker { ready: Arc::clone(&ready), entry }));
        let entry = |_| Entry { generation: 0, tag: 0, state: State::Free };
        let places = (0..count).map(entry).collect();
        Ok(Self {
            entries: Mutex::new(Entries { places, free: (0..count).rev().collect() }),
            wakers: (0..count).map(waker).collect(),
            ready,
            clock: Clock::start(),
        })
    }

    /// Takes a ticket over. Its outcome comes with `tag`, which means nothing to the queue.
    ///
    /// # Errors
    /// The queue holds as many tasks as it can; the error gives the ticket back.
    pub fn add(&self, ticket: Ticket, tag: u64) -> Result<CompletionKey, CompletionQueueFull> {
        let mut entries = self.entries();
        let Some(entry) = entries.free.pop() else {
            ticket.count_completions_full();
            return Err(CompletionQueueFull { ticket, capacity: self.capacity() });
        };
        // What is there already is not taken yet: its slot would be free for a task that finds no room here.
        if ticket.listen(&self.wakers[entry as usize]) {
            self.ready.list(entry);
        }
        let place = &mut entries.places[entry as usize];
        place.tag = tag;
        place.state = State::Waiting(ticket);
        Ok(CompletionKey { entry, generation: place.generation })
    }

    /// The next outcome, if one is there. Never blocks.
    pub fn poll(&self) -> Option<Completion> {
        while let Some(entry) = self.ready.take() {
            // The ticket is let go behind the lock: with the last one its client may end.
            if let Some((completion, _ticket)) = self.settle(entry) {
                return Some(completion);
            }
        }
        None
    }

    /// The next outcome; blocks until one is there or `timeout` has passed. Returns at once if no task is in the queue.
    pub fn wait(&self, timeout: Duration) -> Option<Completion> {
        let until = self.clock.now() + nanos(timeout);
        loop {
            if let Some(completion) = self.poll() {
                return Some(completion);
            }
            let left = until - self.clock.now();
            if left.0 == 0 || self.is_empty() {
                return None;
            }
            wait_readable(self, Some(left));
        }
    }

    /// Asks the scheduler to drop a task, as [`Ticket::cancel`]. Its outcome still comes. False if it was taken already.
    pub fn cancel(&self, key: CompletionKey) -> bool {
        let entries = self.entries();
        let place = entries.places.get(key.entry as usize);
        let Some(place) = place.filter(|place| place.generation == key.generation) else {
            return false;
        };
        if let State::Waiting(ticket) = &place.state {
            ticket.cancel();
        }
        !matches!(place.state, State::Free)
    }

    /// Takes a ticket out again, to be waited for in another way. `None` if its outcome was taken.
    pub fn remove(&self, key: CompletionKey) -> Option<Ticket> {
        let mut entries = self.entries();
        let place = entries.places.get_mut(key.entry as usize)?;
        if place.generation != key.generation {
            return None;
        }
        let State::Waiting(ticket) = mem::replace(&mut place.state, State::Free) else {
            return None;
        };
        place.generation = place.generation.wrapping_add(1);
        entries.free.push(key.entry);
        Some(ticket)
    }

    /// Tasks whose outcomes were not taken yet.
    pub fn len(&self) -> usize {
        self.capacity() - self.entries().free.len()
    }

    /// True if no outcome is to come.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Most tasks that it holds.
    pub fn capacity(&self) -> usize {
        self.wakers.len()
    }

    /// The outcome of a ticket, or the ticket, which lists the entry once there is one.
    fn look(&self, entry: u32, mut ticket: Ticket) -> Result<(Ticket, Outcome), Ticket> {
        let mut context = Context::from_waker(&self.wakers[entry as usize]);
        match Pin::new(&mut ticket).poll(&mut context) {
            Poll::Ready(outcome) => Ok((ticket, outcome)),
            Poll::Pending => Err(ticket),
        }
    }

    /// Empties an entry that was listed, if its task has ended.
    fn settle(&self, entry: u32) -> Option<(Completion, Ticket)> {
        let mut entries = self.entries();
        let place = &mut entries.places[entry as usize];
        let (ticket, outcome) = match mem::replace(&mut place.state, State::Free) {
            State::Free => return None,
            State::Waiting(ticket) => match self.look(entry, ticket) {
                Ok(ended) => ended,
                Err(ticket) => {
                    place.state = State::Waiting(ticket);
                    return None;
                }
            },
        };
        place.generation = place.generation.wrapping_add(1);
        let tag = place.tag;
        entries.free.push(entry);
        Some((Completion { tag, outcome }, ticket))
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for CompletionQueue {
    /// Readable while [`CompletionQueue::poll`] may have something to return. Watch it; never read from it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.eventfd.as_fd()
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (len, capacity) = (self.len(), self.capacity());
        f.debug_struct("CompletionQueue").field("len", &len).field("capacity", &capacity).finish()
    }
}

/// The entries to be looked at, and the descriptor that says that there are some.
struct Ready {
    list: Mutex<List>,
    eventfd: OwnedFd,
}

struct List {
    order: VecDeque<u32>,
    /// By entry.
    is_listed: Box<[bool]>,
}

impl Ready {
    fn new(capacity: usize) -> io::Result<Self> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let order = VecDeque::with_capacity(capacity);
        let list = Mutex::new(List { order, is_listed: vec![false; capacity].into() });
        Ok(Self { list, eventfd })
    }

    /// The entry is to be looked at.
    fn list(&self, entry: u32) {
        let mut list = self.lock();
        if mem::replace(&mut list.is_listed[entry as usize], true) {
            return;
        }
        list.order.push_back(entry);
        if list.order.len() == 1 {
            let written = rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes());
            debug_assert_eq!(written, Ok(8), "the descriptor counts from 0 to 1 and back");
        }
    }

    /// The entry to be looked at next.
    fn take(&self) -> Option<u32> {
        let mut list = self.lock();
        let entry = list.order.pop_front()?;
        list.is_listed[entry as usize] = false;
        if list.order.is_empty() {
            let read = rustix::io::read(&self.eventfd, &mut [0_u8; 8]);
            debug_assert_eq!(read, Ok(8), "an entry was listed, so it is readable");
        }
        Some(entry)
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lists its entry.
struct EntryWaker {
    ready: Arc<Ready>,
    entry: u32,
}

impl Wake for EntryWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.list(self.entry);
    }
}

#[cfg(test)]
impl CompletionQueue {
    /// Wakes the entry of a task for nothing, as the wake for its former task does when it comes late.
    pub(crate) fn wake_for_nothing(&self, key: CompletionKey) {
        let waker = match &self.entries().places[key.entry as usize].state {
            State::Waiting(ticket) => ticket.steal_waker(),
            State::Free => None,
        };
        waker.unwrap_or_else(|| self.wakers[key.entry as usize].clone()).wake();
    }
}

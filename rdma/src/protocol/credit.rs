//! How much may be on its way to this receiver, and whose turn it is.
//!
//! The puller knows every byte headed for its port, so it alone can prevent an incast: it asks for
//! no more than a window at a time, and asks its sources in turn. Pure; the transports drive it.

use std::collections::VecDeque;

/// Bytes that may be asked for and have not arrived yet, over all connections of a transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CreditWindow {
    limit_bytes: u64,
    in_flight: u64,
}

impl CreditWindow {
    /// A window of `limit_bytes`; 0 means no limit.
    pub const fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes, in_flight: 0 }
    }

    /// Takes credit for an object, if the window has room. An object larger than the window passes
    /// alone: when nothing else is in flight.
    pub fn try_take(&mut self, bytes: u64) -> bool {
        let after = self.in_flight.saturating_add(bytes);
        let fits = self.limit_bytes == 0 || after <= self.limit_bytes || self.in_flight == 0;
        if fits {
            self.in_flight = after;
        }
        fits
    }

    /// Returns what was taken, once the bytes have arrived or never will.
    pub fn put_back(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.in_flight, "more credit returned than taken");
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    /// True if a source that holds `held` bytes may take `bytes` more: at most three times what it
    /// leaves. A source that answers nothing leaves the others a quarter, two of them a seventh.
    pub const fn grants(&self, held: u64, bytes: u64) -> bool {
        let left = self.limit_bytes.saturating_sub(self.in_flight.saturating_add(bytes));
        self.limit_bytes == 0 || held == 0 || held.saturating_add(bytes) <= left.saturating_mul(3)
    }

    /// Bytes taken and not returned.
    pub const fn in_flight(&self) -> u64 {
        self.in_flight
    }
}

/// One queue per source, served in turn: a source that was served goes to the back of the line.
/// Sources are dense numbers. Unbounded by itself; its user bounds what it pushes.
#[derive(Debug)]
pub struct RoundRobin<T> {
    queues: Vec<VecDeque<T>>,
    /// Sources with something queued, next one first.
    line: VecDeque<usize>,
    len: usize,
}

impl<T> Default for RoundRobin<T> {
    fn default() -> Self {
        Self { queues: Vec::new(), line: VecDeque::new(), len: 0 }
    }
}

impl<T> RoundRobin<T> {
    /// Queues behind everything of the same source.
    pub fn push(&mut self, source: usize, item: T) {
        if source >= self.queues.len() {
            self.queues.resize_with(source + 1, VecDeque::new);
        }
        if self.queues[source].is_empty() {
            self.line.push_back(source);
        }
        self.queues[source].push_back(item);
        self.len += 1;
    }

    /// Takes the first item of the first source for which `admit` says yes; that source goes to the
    /// back. `admit` sees each source's first item once, in turn.
    pub fn pop(&mut self, mut admit: impl FnMut(usize, &T) -> bool) -> Option<(usize, T)> {
        let at = self.line.iter().position(|&source| admit(source, &self.queues[source][0]))?;
        let source = self.line.remove(at)?;
        let item = self.queues[source].pop_front()?;
        if !self.queues[source].is_empty() {
            self.line.push_back(source);
        }
        self.len -= 1;
        Some((source, item))
    }

    /// Takes the first item of `source` that matches out of turn.
    pub fn remove(&mut self, source: usize, matches: impl Fn(&T) -> bool) -> Option<T> {
        let queue = self.queues.get_mut(source)?;
        let at = queue.iter().position(matches)?;
        let item = queue.remove(at)?;
        if queue.is_empty() {
            self.line.retain(|&waiting| waiting != source);
        }
        self.len -= 1;
        Some(item)
    }

    /// Items queued.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

//! Which connections have something to do: each stands in a list at most once.

use std::collections::VecDeque;

use super::conn::Conn;
use super::net::NetStream;

/// Places of the connections to look at.
#[derive(Default)]
pub(super) struct ReadyList {
    /// Something may be received, in turn.
    ready: VecDeque<usize>,
    /// Something may be sent.
    dirty: VecDeque<usize>,
}

impl ReadyList {
    /// Enters a connection for what it wants. Call whenever that may have changed.
    pub(super) fn note<S: NetStream>(&mut self, place: usize, conn: &mut Conn<S>) {
        if conn.wants_pass() && !conn.in_ready {
            conn.in_ready = true;
            self.ready.push_back(place);
        }
        if conn.wants_send() && !conn.in_dirty {
            conn.in_dirty = true;
            self.dirty.push_back(place);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.dirty.is_empty()
    }

    pub(super) fn ready_len(&self) -> usize {
        self.ready.len()
    }

    pub(super) fn next_ready(&mut self) -> Option<usize> {
        self.ready.pop_front()
    }

    pub(super) fn dirty_len(&self) -> usize {
        self.dirty.len()
    }

    pub(super) fn next_dirty(&mut self) -> Option<usize> {
        self.dirty.pop_front()
    }
}

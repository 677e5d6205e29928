//! What can go wrong with a network.

use std::io;

use baton_core::Nanos;
use baton_rdma::wire::Kind;
use rand::RngExt;

use super::conn::Cargo;
use super::{Due, HostId, Network, State};

/// True for messages that a receiver must bear to hear twice. Over one TCP connection nothing comes
/// twice. But a member that connects anew says again what may have been lost, and two senders may
/// each claim a task: the same bytes arrive again, later, with whatever has happened in between.
/// The outcome of a task, the report of a batch and a wish to cancel must bear that. A request and a
/// plan need not: no member says them again.
pub(super) fn may_repeat(kind: Kind) -> bool {
    matches!(kind, Kind::TaskEnd | Kind::TaskResult | Kind::ActionDone | Kind::Cancel)
}

impl Network {
    /// From now on `per_mille` of the messages that may be repeated are.
    pub fn repeat(&self, per_mille: u32) {
        self.state.borrow_mut().repeats = per_mille;
    }

    /// Nothing passes from `from` to `to` until [`Network::heal`]; what is sent meanwhile arrives
    /// afterwards, as TCP sends it again.
    pub fn wall(&self, from: HostId, to: HostId) {
        let mut state = self.state.borrow_mut();
        if !state.walls.contains(&(from, to)) {
            state.walls.push((from, to));
        }
    }

    /// The wall is gone.
    pub fn heal(&self, from: HostId, to: HostId) {
        let mut state = self.state.borrow_mut();
        state.walls.retain(|wall| *wall != (from, to));
        state.go_on(|hosts| hosts == (from, to));
    }

    /// Every wall is gone.
    pub fn heal_all(&self) {
        let mut state = self.state.borrow_mut();
        state.walls.clear();
        state.go_on(|_| true);
    }

    /// Breaks one connection between two hosts, the `pick`-th modulo how many there are: what is on
    /// its way is cut off somewhere, in the middle of a message if it comes to that, and then the
    /// connection is void. `both`: both ends learn of it; otherwise only one, and the other when it
    /// sends. False if there is none.
    pub fn cut(&self, a: HostId, b: HostId, pick: usize, both: bool) -> bool {
        let mut state = self.state.borrow_mut();
        let between = |&at: &usize| {
            let (from, to) = state.hosts(at, 0);
            let same = (from, to) == (a, b) || (from, to) == (b, a);
            same && state.conns[at]
                .ends
                .iter()
                .all(|end| end.held && end.up && end.broken.is_none())
        };
        let all: Vec<usize> = (0..state.conns.len()).filter(between).collect();
        let Some(&at) = all.get(pick % all.len().max(1)) else { return false };
        state.note_broken(at);
        let first = state.rng.random_range(0..2);
        for way in [first, 1 - first].into_iter().take(if both { 2 } else { 1 }) {
            state.truncate(at, way);
            state.dispatch(at, way, Cargo::Reset);
        }
        true
    }

    /// The host is gone without a word, as if its power was cut: nothing it holds is closed, and
    /// nothing answers for it. Call before its process is dropped.
    pub fn vanish(&self, host: HostId) {
        let mut state = self.state.borrow_mut();
        state.vanished.insert(host, false);
        for at in 0..state.conns.len() {
            for way in 0..2 {
                if state.conns[at].ends[way].held && state.hosts(at, way).0 == host {
                    state.truncate(at, way);
                    state.conns[at].ways[way].ended = true;
                }
            }
        }
    }

    /// The machine of a vanished host is up again: it knows nothing of old connections and says so.
    pub fn answer_for(&self, host: HostId) {
        if let Some(answers) = self.state.borrow_mut().vanished.get_mut(&host) {
            *answers = true;
        }
    }
}

/// Kernels look so often in the time of their patience.
const PROBES: u64 = 4;

impl State {
    /// What TCP's keep-alive and user timeout do: a connection whose far end does not answer, or has
    /// no such connection any more, is void after a while.
    pub(super) fn probe(&mut self) {
        for at in 0..self.conns.len() {
            for end in 0..2 {
                let alone = self.is_alone(at, end);
                let side = &mut self.conns[at].ends[end];
                side.alone_since = side.alone_since.filter(|_| alone);
                let since = alone.then(|| *side.alone_since.get_or_insert(self.now));
                if since.is_some_and(|since| since + self.link.patience <= self.now) {
                    self.break_end(at, end, io::ErrorKind::TimedOut);
                }
            }
        }
        self.schedule(self.now + Nanos(self.link.patience.0 / PROBES), Due::Probe);
    }

    fn is_alone(&self, at: usize, end: usize) -> bool {
        let conn = &self.conns[at];
        let (near, far) = (&conn.ends[end], &conn.ends[1 - end]);
        if !near.held || !near.up || near.broken.is_some() {
            return false;
        }
        let (here, there) = self.hosts(at, end);
        let walled = self.walls.iter().any(|wall| *wall == (here, there) || *wall == (there, here));
        let forgotten = !far.held && conn.ways[1 - end].pieces.is_empty() && !near.eof;
        walled || forgotten
    }

    fn go_on(&mut self, freed: impl Fn((HostId, HostId)) -> bool) {
        for at in 0..self.conns.len() {
            for way in 0..2 {
                if self.conns[at].ways[way].stuck && freed(self.hosts(at, way)) {
                    self.conns[at].ways[way].stuck = false;
                    let after = self.travel();
                    self.schedule(self.now + after, Due::Arrival(at, way));
                }
            }
        }
    }

    /// Of what is on its way only a part arrives, and nothing that is sent later.
    fn truncate(&mut self, at: usize, way: usize) {
        let rng = &mut self.rng;
        let line = &mut self.conns[at].ways[way];
        let mut left = rng.random_range(0..=line.bytes);
        let mut bytes = 0;
        line.pieces.retain_mut(|piece| match &mut piece.cargo {
            Cargo::Bytes(data) => {
                data.truncate(left);
                left -= data.len();
                bytes += data.len();
                !data.is_empty()
            }
            Cargo::Knock | Cargo::Granted => true,
            Cargo::End | Cargo::Reset => false,
        });
        line.bytes = bytes;
        line.repeats.clear();
        // Its own writer finds out when it writes.
        line.ended = true;
    }
}

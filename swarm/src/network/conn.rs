//! One connection: two ends, two ways, and what arrives at an end.

use std::collections::VecDeque;
use std::io;

use baton_core::Nanos;

use super::frames::FrameTracker;
use super::{Due, State};

/// What travels.
#[derive(Debug)]
pub(super) enum Cargo {
    /// A wish to connect.
    Knock,
    /// It was granted.
    Granted,
    /// A piece of the stream.
    Bytes(Vec<u8>),
    /// The stream ends here.
    End,
    /// The connection is void.
    Reset,
}

/// Cargo, and when it arrives.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) arrives: Nanos,
    pub(super) cargo: Cargo,
}

/// From one end to the other.
#[derive(Default)]
pub(super) struct Way {
    pub(super) pieces: VecDeque<Segment>,
    /// Nothing that leaves later arrives before this.
    pub(super) last: Nanos,
    /// Held up by a wall.
    pub(super) stuck: bool,
    /// Bytes on their way.
    pub(super) bytes: usize,
    /// Nothing leaves any more.
    pub(super) ended: bool,
    pub(super) frames: FrameTracker,
    /// Frames to be said again.
    pub(super) repeats: VecDeque<Vec<u8>>,
}

/// One end, as its owner's kernel sees it.
#[derive(Default)]
pub(super) struct End {
    pub(super) endpoint: usize,
    /// What the owner calls it; `None` until it is registered.
    pub(super) place: Option<usize>,
    /// The owner has a stream for it, or will have.
    pub(super) held: bool,
    pub(super) up: bool,
    pub(super) received: VecDeque<u8>,
    pub(super) eof: bool,
    pub(super) broken: Option<io::ErrorKind>,
    /// The owner has learned that there is no room.
    pub(super) wants_room: bool,
    /// Since when the far end is out of reach.
    pub(super) alone_since: Option<Nanos>,
    /// News not told yet: readable, writable, hung up.
    pub(super) news: (bool, bool, bool),
}

pub(super) struct Conn {
    /// Who connected, and who accepted.
    pub(super) ends: [End; 2],
    /// `ways[i]` leads from end i to the other.
    pub(super) ways: [Way; 2],
    /// Where the connection leads.
    pub(super) to: std::net::SocketAddr,
}

impl Conn {
    /// Bytes end `way` has written and the other has not read.
    pub(super) fn pending(&self, way: usize) -> usize {
        self.ways[way].bytes + self.ends[1 - way].received.len()
    }

    /// Nothing will happen here any more.
    pub(super) fn is_over(&self) -> bool {
        self.ends.iter().all(|end| !end.held)
    }
}

impl State {
    pub(super) fn deliver(&mut self, at: usize, way: usize, cargo: Cargo) {
        match cargo {
            Cargo::Knock => self.knock(at),
            Cargo::Granted => {
                self.conns[at].ends[0].up = true;
                self.tell(at, 0, (false, true, false));
            }
            Cargo::Bytes(bytes) => self.take_in(at, way, &bytes),
            Cargo::End => {
                self.note_broken(at);
                self.conns[at].ends[1 - way].eof = true;
                self.tell(at, 1 - way, (true, false, true));
            }
            Cargo::Reset => self.break_end(at, 1 - way, io::ErrorKind::ConnectionReset),
        }
    }

    fn knock(&mut self, at: usize) {
        let open = self.ports.get(&self.conns[at].to).copied();
        let listener = open.filter(|&port| self.endpoints[port].alive);
        let Some(listener) = listener else {
            let host = open.map(|port| self.host_of(port));
            // A machine that is off sends no reset.
            if host.is_none_or(|host| self.vanished.get(&host) != Some(&false)) {
                self.dispatch(at, 1, Cargo::Reset);
            }
            return;
        };
        let end = &mut self.conns[at].ends[1];
        (end.endpoint, end.held, end.up) = (listener, true, true);
        let endpoint = &mut self.endpoints[listener];
        endpoint.incoming.push(at);
        endpoint.acceptable = true;
        endpoint.ring();
        self.dispatch(at, 1, Cargo::Granted);
    }

    fn take_in(&mut self, at: usize, way: usize, bytes: &[u8]) {
        let conn = &mut self.conns[at];
        conn.ways[way].bytes -= bytes.len();
        let end = &mut conn.ends[1 - way];
        if end.held && end.broken.is_none() {
            end.received.extend(bytes);
            return self.tell(at, 1 - way, (true, false, false));
        }
        // A process that closed has said so already; a machine that was off has not.
        let host = self.host_of(self.conns[at].ends[1 - way].endpoint);
        if self.vanished.get(&host) == Some(&true) {
            self.dispatch(at, 1 - way, Cargo::Reset);
        }
    }

    /// The end's owner learns that the connection is void.
    pub(super) fn break_end(&mut self, at: usize, end: usize, why: io::ErrorKind) {
        self.note_broken(at);
        let conn = &mut self.conns[at];
        conn.ways[end].ended = true;
        let why = if conn.ends[end].up { why } else { io::ErrorKind::ConnectionRefused };
        conn.ends[end].broken.get_or_insert(why);
        self.tell(at, end, (true, true, true));
    }

    /// The owner of an end is gone, or wants no more of it.
    pub(super) fn let_go(&mut self, at: usize, end: usize) {
        self.watch.closings += 1;
        let host = self.host_of(self.conns[at].ends[end].endpoint);
        let silent = self.vanished.contains_key(&host);
        let conn = &mut self.conns[at];
        conn.ends[end].held = false;
        let unread = !conn.ends[end].received.is_empty();
        conn.ends[end].received.clear();
        let open = !conn.ways[end].ended;
        conn.ways[end].ended = true;
        if open && !silent {
            self.note_broken(at);
            self.dispatch(at, end, if unread { Cargo::Reset } else { Cargo::End });
        }
        self.watch.lost(&mut self.conns[at], 1 - end);
    }

    /// These two hosts' conversation is not whole any more.
    pub(super) fn note_broken(&mut self, at: usize) {
        let (a, b) = self.hosts(at, 0);
        self.watch.broken.insert((a.min(b), a.max(b)));
    }

    /// Leaves news for the end's owner.
    pub(super) fn tell(&mut self, at: usize, end: usize, news: (bool, bool, bool)) {
        let side = &mut self.conns[at].ends[end];
        if !side.held {
            return;
        }
        let old = side.news;
        side.news = (old.0 | news.0, old.1 | news.1, old.2 | news.2);
        if side.place.is_none() {
            return;
        }
        let endpoint = &mut self.endpoints[side.endpoint];
        if old == (false, false, false) {
            endpoint.news.push((at, end));
        }
        endpoint.ring();
    }

    pub(super) fn tell_room(&mut self, at: usize, end: usize) {
        let side = &mut self.conns[at].ends[end];
        if std::mem::take(&mut side.wants_room) {
            self.tell(at, end, (false, true, false));
        }
    }

    /// The reader at `end` has taken bytes: a writer that waits for room hears of it.
    pub(super) fn make_room(&mut self, at: usize, end: usize) {
        if self.conns[at].ends[1 - end].wants_room {
            let after = self.travel();
            self.schedule(self.now + after, Due::Room(at, 1 - end));
        }
    }
}

//! What a transport holds: a port to accept at and connect from, and streams.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use baton_core::Nanos;
use baton_rdma::{Edge, Net, NetStream};
use baton_topo::Waker;
use rand::RngExt;

use super::conn::{Cargo, Conn, End, Way};
use super::{Due, Network, Sent, State};

/// One transport's access to the network.
pub struct Port {
    network: Network,
    number: usize,
    addr: SocketAddr,
    waker: Waker,
}

impl Port {
    pub(super) fn new(network: Network, number: usize, addr: SocketAddr) -> Self {
        let bell = network.state.borrow().endpoints[number].bell.clone();
        let waker = Waker::new(move || bell.ring());
        // The agents of a simulation never block: each must always hear a wake.
        waker.prepare_sleep();
        Self { network, number, addr, waker }
    }
}

impl Net for Port {
    type Stream = SimStream;

    fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    fn listens(&self) -> bool {
        true
    }

    fn accept(&mut self) -> io::Result<(SimStream, SocketAddr)> {
        let mut state = self.network.state.borrow_mut();
        let incoming = &mut state.endpoints[self.number].incoming;
        if incoming.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let conn = incoming.remove(0);
        let from = state.endpoints[state.conns[conn].ends[0].endpoint].addr;
        drop(state);
        Ok((SimStream { network: self.network.clone(), conn, end: 1 }, from))
    }

    fn connect(&mut self, to: SocketAddr) -> io::Result<SimStream> {
        let mut state = self.network.state.borrow_mut();
        let mine = End { endpoint: self.number, held: true, ..End::default() };
        // Until it is accepted the far end counts as the port's it leads to, if there is one.
        let far = state.ports.get(&to).copied().unwrap_or(self.number);
        let ends = [mine, End { endpoint: far, ..End::default() }];
        let ways = [Way::default(), Way::default()];
        let conn = Conn { ends, ways, to };
        let at = match state.conns.iter().position(Conn::is_reusable) {
            Some(at) => {
                state.conns[at] = conn;
                at
            }
            None => {
                state.conns.push(conn);
                state.conns.len() - 1
            }
        };
        state.dispatch(at, 0, Cargo::Knock);
        drop(state);
        Ok(SimStream { network: self.network.clone(), conn: at, end: 0 })
    }

    fn register(&mut self, stream: &mut SimStream, place: usize) -> io::Result<()> {
        let mut state = self.network.state.borrow_mut();
        let (at, end) = (stream.conn, stream.end);
        let side = &mut state.conns[at].ends[end];
        side.place = Some(place);
        // News from before has not reached this place.
        let news = std::mem::take(&mut side.news);
        if news != (false, false, false) {
            state.tell(at, end, news);
        }
        Ok(())
    }

    fn collect(&mut self, mut on_edge: impl FnMut(Edge)) {
        let mut state = self.network.state.borrow_mut();
        let endpoint = &mut state.endpoints[self.number];
        if std::mem::take(&mut endpoint.acceptable) {
            on_edge(Edge::Acceptable);
        }
        let news = std::mem::take(&mut endpoint.news);
        for (at, end) in news {
            let side = &mut state.conns[at].ends[end];
            let (readable, writable, hung_up) = std::mem::take(&mut side.news);
            if let (true, Some(place)) = (side.held, side.place) {
                on_edge(Edge::Stream { place, readable, writable, hung_up });
            }
        }
    }

    /// Notes that nothing is left to do; time passes elsewhere.
    fn wait(&mut self, _: Option<Nanos>) {
        let state = self.network.state.borrow();
        state.endpoints[self.number].bell.has_slept.store(true, Ordering::Relaxed);
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let mut state = self.network.state.borrow_mut();
        state.endpoints[self.number].alive = false;
        let unseen = std::mem::take(&mut state.endpoints[self.number].incoming);
        unseen.into_iter().for_each(|conn| state.let_go(conn, 1));
    }
}

/// One end of a connection.
pub struct SimStream {
    network: Network,
    conn: usize,
    end: usize,
}

impl Read for SimStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut state = self.network.state.borrow_mut();
        let State { conns, watch, now, endpoints, .. } = &mut *state;
        let conn = &mut conns[self.conn];
        let side = &mut conn.ends[self.end];
        if side.received.is_empty() {
            return match (side.broken, side.eof) {
                (Some(why), _) => Err(why.into()),
                (None, true) => Ok(0),
                (None, false) => Err(io::ErrorKind::WouldBlock.into()),
            };
        }
        let mut n = 0;
        // A ring gives what lies in a row; a reader that gets less than asked for takes it for all.
        while n < buf.len() && !side.received.is_empty() {
            n += side.received.read(&mut buf[n..])?;
        }
        let reader = (side.endpoint, endpoints[side.endpoint].host);
        let writer = endpoints[conn.ends[1 - self.end].endpoint].host;
        conn.ways[1 - self.end].frames.read(n, |word| watch.read(reader, writer, word, *now));
        state.make_room(self.conn, self.end);
        Ok(n)
    }

    fn read_vectored(&mut self, bufs: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        let mut total = 0;
        for buf in bufs.iter_mut().filter(|buf| !buf.is_empty()) {
            match self.read(buf) {
                Ok(n) => total += n,
                Err(_) if total > 0 => return Ok(total),
                Err(error) => return Err(error),
            }
            let state = self.network.state.borrow();
            if state.conns[self.conn].ends[self.end].received.is_empty() {
                break;
            }
        }
        Ok(total)
    }
}

impl NetStream for SimStream {
    fn finish_connect(&mut self) -> io::Result<bool> {
        let state = self.network.state.borrow();
        let side = &state.conns[self.conn].ends[self.end];
        side.broken.map_or(Ok(side.up), |why| Err(why.into()))
    }

    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut state = self.network.state.borrow_mut();
        let (at, end) = (self.conn, self.end);
        let conn = &state.conns[at];
        if let Some(why) = conn.ends[end].broken {
            return Err(why.into());
        }
        if conn.ways[end].ended {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let room = state.link.window.saturating_sub(conn.pending(end));
        let mut bytes = Vec::with_capacity(slices.iter().map(|s| s.len()).sum::<usize>().min(room));
        for slice in slices {
            bytes.extend_from_slice(&slice[..slice.len().min(room - bytes.len())]);
        }
        if bytes.is_empty() || !conn.ends[end].up {
            state.conns[at].ends[end].wants_room = true;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let n = bytes.len();
        state.put(at, end, bytes, true);
        Ok(n)
    }

    fn finish_sending(&mut self) -> io::Result<()> {
        let mut state = self.network.state.borrow_mut();
        if !std::mem::replace(&mut state.conns[self.conn].ways[self.end].ended, true) {
            state.dispatch(self.conn, self.end, Cargo::End);
        }
        Ok(())
    }

    fn has_unread(&self) -> bool {
        false
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        self.network.state.borrow_mut().let_go(self.conn, self.end);
    }
}

impl Conn {
    /// True if nothing refers to it any more.
    fn is_reusable(&self) -> bool {
        self.is_over()
            && self.ways.iter().all(|way| way.pieces.is_empty() && way.repeats.is_empty())
    }
}

impl State {
    /// Bytes leave; `own` is false for those that are said again by the network.
    fn put(&mut self, at: usize, way: usize, mut bytes: Vec<u8>, own: bool) {
        self.follow(at, way, &bytes, own);
        let line = &mut self.conns[at].ways[way];
        line.bytes += bytes.len();
        let cut = self.link.cuts > 0 && self.rng.random_range(0..1000) < self.link.cuts;
        if cut && bytes.len() > 1 {
            let rest = bytes.split_off(self.rng.random_range(1..bytes.len()));
            self.dispatch(at, way, Cargo::Bytes(bytes));
            bytes = rest;
        }
        self.dispatch(at, way, Cargo::Bytes(bytes));
    }

    fn follow(&mut self, at: usize, way: usize, bytes: &[u8], own: bool) {
        if self.endpoints[self.conns[at].ends[way].endpoint].hostile {
            self.watch.bytes += bytes.len() as u64;
            return;
        }
        let (from, to) = self.hosts(at, way);
        let (now, doubt) = (self.now, self.link.doubt());
        let writer = self.conns[at].ends[way].endpoint;
        let State { conns, watch, sent, rng, log, repeats, .. } = self;
        let line = &mut conns[at].ways[way];
        let (queued, mut again) = (&mut line.repeats, 0);
        watch.bytes += bytes.len() as u64;
        line.frames.write(bytes, |passed| {
            watch.frames += 1;
            passed.wish.into_iter().for_each(|wish| watch.asked_of(to, wish));
            if let Some(task) = passed.word {
                watch.said(task);
            }
            watch.given_back.extend(passed.given_back.map(|task| task.0));
            if let Some(task) = passed.given_up {
                watch.check_turn(writer, from, task, now);
            }
            watch.said_of(from, passed.tidings, now);
            watch.ears.passes(passed.kind, from, to);
            watch.batches.follow(passed.kind, from, to);
            if let Some(word) = passed.batch {
                watch.check_order(writer, (from, to), &word, now);
                watch.batches.note(at, (from, to), word, now, doubt);
            }
            if *log {
                sent.push(Sent { from, to, kind: passed.kind, bytes: passed.len });
            }
            let repeated = own && super::faults::may_repeat(passed.kind) && *repeats > 0;
            if let (true, Some(bytes)) = (repeated, passed.bytes)
                && rng.random_range(0..1000) < *repeats
            {
                queued.push_back(bytes);
                again += 1;
            }
        });
        for _ in 0..again {
            let after = Nanos(self.rng.random_range(1_000..50_000_000));
            self.schedule(self.now + after, Due::Repeat(at, way));
        }
    }

    /// Says a frame again, between two others, once there is room for it.
    pub(super) fn repeat(&mut self, at: usize, way: usize) {
        let conn = &mut self.conns[at];
        let room = self.link.window.saturating_sub(conn.pending(way));
        let line = &mut conn.ways[way];
        let open = !line.ended && conn.ends[way].held && conn.ends[way].broken.is_none();
        if !open {
            line.repeats = VecDeque::new();
            return;
        }
        let fits = line.repeats.front().is_none_or(|bytes| bytes.len() <= room);
        if !fits || !line.frames.at_boundary() {
            let after = Nanos(self.rng.random_range(1_000..1_000_000));
            return self.schedule(self.now + after, Due::Repeat(at, way));
        }
        if let Some(bytes) = line.repeats.pop_front() {
            self.watch.repeated += 1;
            self.put(at, way, bytes, false);
        }
    }
}

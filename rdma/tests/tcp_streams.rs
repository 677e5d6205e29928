//! The TCP transport over a network of the test's own: what a stream has taken and not sent, or holds and
//! has not given, is asked for without a new word from the network.
#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod common;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use baton_rdma::wire::{Hello, Ping, Refuse, RefuseCode, Role, VERSION_MAX, Welcome};
use baton_rdma::{
    CloseReason, ConnId, Edge, Identity, Net, NetStream, TcpConfig, TcpTransport, Transport,
};
use baton_topo::{PARK_MAX, Waker};
use baton_types::{Nanos, TaskId};
use common::raw::frame_of;
use common::{Node, landing, read};

/// One connection, seen from both sides of the transport.
#[derive(Default)]
struct Line {
    edges: VecDeque<Edge>,
    /// What a read gives, piece by piece; each piece is short.
    incoming: VecDeque<Vec<u8>>,
    /// Taken from the transport.
    unsent: Vec<u8>,
    /// Taken by the network.
    sent: Vec<u8>,
    has_room: bool,
    /// The next write finds that the peer has broken the connection.
    is_broken: bool,
    /// It keeps nothing back that it has read, as a bare socket.
    is_bare: bool,
    /// Bytes that the last read had room for.
    room_to_read: usize,
    /// Peers may connect, and how often the transport has tried in vain to accept one.
    listens: bool,
    accepts: u32,
}

impl Line {
    fn edge(&mut self, readable: bool, writable: bool) {
        self.edges.push_back(Edge::Stream { place: 0, readable, writable, hung_up: false });
    }
}

#[derive(Clone, Default)]
struct Wire(Rc<RefCell<Line>>);

impl Net for Wire {
    type Stream = Self;

    fn local_addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, 1).into()
    }

    fn listens(&self) -> bool {
        self.0.borrow().listens
    }

    /// There is no descriptor left.
    fn accept(&mut self) -> io::Result<(Self, SocketAddr)> {
        self.0.borrow_mut().accepts += 1;
        Err(ErrorKind::Other.into())
    }

    fn connect(&mut self, _addr: SocketAddr) -> io::Result<Self> {
        Ok(self.clone())
    }

    fn register(&mut self, _stream: &mut Self, place: usize) -> io::Result<()> {
        assert_eq!(place, 0, "there is one connection");
        Ok(())
    }

    fn collect(&mut self, mut on_edge: impl FnMut(Edge)) {
        let edges = std::mem::take(&mut self.0.borrow_mut().edges);
        edges.into_iter().for_each(&mut on_edge);
    }

    fn wait(&mut self, _timeout: Option<Nanos>) {}

    fn waker(&self) -> Waker {
        Waker::new(|| {})
    }
}

impl Read for Wire {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut line = self.0.borrow_mut();
        line.room_to_read = buf.len();
        let piece = line.incoming.pop_front().ok_or(ErrorKind::WouldBlock)?;
        buf[..piece.len()].copy_from_slice(&piece);
        Ok(piece.len())
    }
}

impl NetStream for Wire {
    fn finish_connect(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut line = self.0.borrow_mut();
        if line.is_broken {
            return Err(ErrorKind::ConnectionReset.into());
        }
        slices.iter().for_each(|slice| line.unsent.extend_from_slice(slice));
        Ok(slices.iter().map(|slice| slice.len()).sum())
    }

    fn finish_sending(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut line = self.0.borrow_mut();
        if !line.has_room && !line.unsent.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let unsent = std::mem::take(&mut line.unsent);
        line.sent.extend(unsent);
        Ok(())
    }

    fn has_unsent(&self) -> bool {
        !self.0.borrow().unsent.is_empty()
    }

    fn has_unread(&self) -> bool {
        let line = self.0.borrow();
        !line.is_bare && !line.incoming.is_empty()
    }
}

/// A node whose one connection waits for the other end's welcome.
fn connecting() -> (Wire, Node<TcpTransport<Wire>>, ConnId) {
    let wire = Wire::default();
    let identity = Identity { role: Role::Backend, member: 0 };
    let mut node = Node::new(TcpTransport::over(wire.clone(), identity, TcpConfig::default()));
    let addr = (Ipv4Addr::LOCALHOST, 2).into();
    let conn = node.transport.connect(addr, Hello::new(Role::Backend, 0, 0)).unwrap();
    (wire, node, conn)
}

/// A node that is welcome there.
fn welcome() -> (Wire, Node<TcpTransport<Wire>>, ConnId) {
    let (wire, mut node, conn) = connecting();
    let (version, role) = (VERSION_MAX.into(), Role::Frontend as u8);
    let welcome = Welcome { version, role, reserved: 0, member: 3.into() };
    {
        let mut line = wire.0.borrow_mut();
        (line.has_room, line.incoming) = (true, [frame_of(&welcome, &[], &[])].into());
        line.edge(true, true);
    }
    node.poll();
    assert_eq!(node.opened().len(), 1);
    (wire, node, conn)
}

/// Handshakes time out by the time that a transport has been awake for, which it counts in short steps.
#[test]
fn a_wait_is_bounded_while_someone_is_not_welcome_yet() {
    let (short, long) = (Nanos::from_micros(50), Nanos::from_millis(600_000));
    let waits = |node: &mut Node<TcpTransport<Wire>>| {
        (0..3).for_each(|_| _ = node.poll());
        [Some(short), Some(long), None].map(|timeout| node.transport.prepare_wait(timeout))
    };
    let bound = Some(TcpConfig::default().handshake_timeout.min(PARK_MAX));
    assert_eq!(waits(&mut connecting().1), [Some(short), bound, bound].map(Some));
    assert_eq!(waits(&mut welcome().1), [Some(short), Some(long), None].map(Some));
}

#[test]
fn what_a_stream_has_taken_leaves_when_there_is_room_again() {
    let (wire, mut node, conn) = welcome();
    wire.0.borrow_mut().sent.clear();
    wire.0.borrow_mut().has_room = false;
    node.ping(conn, 8);
    node.poll();
    assert!(wire.has_unsent() && wire.0.borrow().sent.is_empty());
    assert!(node.transport.has_unsent());
    wire.0.borrow_mut().has_room = true;
    node.poll();
    assert!(wire.has_unsent(), "not tried again before the network says so");
    wire.0.borrow_mut().edge(false, true);
    node.poll();
    assert_eq!(wire.0.borrow().sent, frame_of(&Ping { sent_ns: 8.into() }, &[], &[]));
    assert!(!node.transport.has_unsent());
}

#[test]
fn who_could_not_be_accepted_is_once_a_connection_has_closed() {
    let (wire, mut node, conn) = welcome();
    wire.0.borrow_mut().listens = true;
    wire.0.borrow_mut().edges.push_back(Edge::Acceptable);
    (0..3).for_each(|_| _ = node.poll());
    assert_eq!(wire.0.borrow().accepts, 1, "not again and again");
    node.transport.close(conn, RefuseCode::Shutdown, "it is over");
    (0..3).for_each(|_| _ = node.poll());
    assert_eq!(wire.0.borrow().accepts, 2);
}

#[test]
fn what_a_stream_holds_back_is_read_on_without_an_edge() {
    let (wire, mut node, _) = welcome();
    let ping = |number: u64| frame_of(&Ping { sent_ns: number.into() }, &[], &[]);
    wire.0.borrow_mut().incoming = (0..40).map(ping).collect();
    wire.0.borrow_mut().edge(true, false);
    for _ in 0..20 {
        node.poll();
    }
    assert_eq!(node.pings(), (0..40).collect::<Vec<_>>());
}

/// The network says nothing more of a connection that a write has found broken: what came before that is read to its end.
#[test]
fn why_a_peer_has_broken_the_connection_is_read_before_it_counts_as_reset() {
    let refusal = frame_of(&Refuse { code: (RefuseCode::Limit as u16).into() }, b"too many", &[]);
    let (first, rest) = refusal.split_at(5);
    let detail = "too many".to_owned();
    let said = CloseReason::Refused { code: Some(RefuseCode::Limit), detail };
    let reset = CloseReason::Reset(ErrorKind::ConnectionReset);
    for (incoming, reason) in [(vec![first.to_vec(), rest.to_vec()], said), (vec![], reset)] {
        let (wire, mut node, conn) = welcome();
        {
            let mut line = wire.0.borrow_mut();
            (line.is_broken, line.is_bare, line.incoming) = (true, true, incoming.into());
        }
        node.ping(conn, 1);
        (0..4).for_each(|_| _ = node.poll());
        assert_eq!(node.closed(), [(conn, reason)]);
    }
}

/// What is read ahead of a long row is copied, and the row is not.
#[test]
fn little_is_read_ahead_of_a_long_row() {
    let (wire, mut node, conn) = welcome();
    let asked = |node: &mut Node<TcpTransport<Wire>>| {
        let ping = frame_of(&Ping { sent_ns: 1.into() }, &[], &[]);
        wire.0.borrow_mut().incoming.push_back(ping);
        wire.0.borrow_mut().edge(true, false);
        node.poll();
        wire.0.borrow().room_to_read
    };
    let plenty = asked(&mut node);
    assert!(plenty >= 32 * 1024, "{plenty}");
    for (row, bytes, is_long) in [(0, 100, false), (1, 100_000, true)] {
        let buffer = landing(&mut node, 2 * bytes as usize);
        node.transport.post_reads(&mut vec![read(conn, TaskId(7), &buffer, row, bytes)]);
        node.transport.flush();
        assert_eq!(asked(&mut node) <= plenty / 8, is_long, "{bytes}");
    }
}

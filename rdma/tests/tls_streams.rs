//! Streams under TLS that stop, stall, are altered or overheard.
#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod common;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;

use baton_rdma::wire::{Hello, Ping, RefuseCode, Role};
use baton_rdma::{CloseReason, ReadStatus, TcpTransport, Transport};
use baton_types::Nanos;
use common::certs::Authority;
use common::raw::{frame_of, node};
use common::secure::{RawTls, World, member, tls_text};
use common::{holds, landing, open, read, settle, slabs, submit};

const HANDSHAKE: Nanos = Nanos::from_millis(5_000);

// --- handshakes --------------------------------------------------------------------------------

/// Nothing of it is waited for longer than the handshake may take.
#[test]
fn half_a_handshake() {
    let mut world = World::new();
    let whole = RawTls::new(&world, None).opening();
    let addr = world.scheduler.transport.local_addr();
    let streams: Vec<TcpStream> = [0, 1, whole.len() / 2, whole.len()]
        .map(|len| {
            let mut stream = TcpStream::connect(addr).unwrap();
            stream.write_all(&whole[..len]).unwrap();
            stream
        })
        .into();
    settle([&mut world.scheduler], |[node]| node.transport.counters().opened == 5);
    world.check(0);
    world.scheduler.pass(HANDSHAKE);
    settle([&mut world.scheduler], |[node]| node.transport.counters().closed == 4);
    assert_eq!(world.scheduler.transport.counters().refused, 4);
    drop(streams);
    world.check(0);
}

/// Any peer that connects makes this side compute; it goes on with a few handshakes per pass.
#[test]
fn many_handshakes_at_once() {
    const PEERS: usize = 30;
    let mut world = World::new();
    let mut peers: Vec<RawTls> = (0..PEERS).map(|_| RawTls::connect(&world, None)).collect();
    for peer in &mut peers {
        let opening = peer.opening();
        peer.stream.write_all(&opening).unwrap();
    }
    let mut answered = 0;
    for _ in 0..10_000 {
        world.scheduler.poll();
        let has_answer = |peer: &&RawTls| peer.stream.peek(&mut [0]).is_ok();
        let now = peers.iter().filter(has_answer).count();
        assert!(now - answered <= 4, "{answered} to {now}");
        answered = now;
        if answered == PEERS {
            return world.check(0);
        }
    }
    panic!("{answered} of {PEERS} were answered");
}

/// Who breaks off in the middle of a handshake is no offence, but gone.
#[test]
fn a_handshake_broken_off() {
    let mut world = World::new();
    let whole = RawTls::new(&world, None).opening();
    let mut stream = TcpStream::connect(world.scheduler.transport.local_addr()).unwrap();
    stream.write_all(&whole[..20]).unwrap();
    drop(stream);
    settle([&mut world.scheduler], |[node]| node.transport.counters().closed == 1);
    world.check(0);
}

// --- an open connection ------------------------------------------------------------------------

/// An end that the peer did not announce may have been made by a third party in between.
#[test]
fn the_stream_is_cut_off() {
    for announced in [true, false] {
        let mut world = World::new();
        let mut raw = RawTls::open(&mut world);
        if announced {
            raw.tls.send_close_notify();
        }
        raw.pump();
        raw.stream.shutdown(std::net::Shutdown::Write).unwrap();
        settle([&mut world.scheduler], |[node]| !node.closed().is_empty());
        let expected = match announced {
            true => CloseReason::Eof,
            false => CloseReason::Reset(ErrorKind::UnexpectedEof),
        };
        assert_eq!(world.scheduler.closed()[0].1, expected);
    }
}

/// What came before counts, and comes first.
#[test]
fn a_message_and_the_end_in_one_go() {
    let mut world = World::new();
    let mut raw = RawTls::open(&mut world);
    raw.tls.writer().write_all(&frame_of(&Ping { sent_ns: 31.into() }, &[], &[])).unwrap();
    raw.tls.send_close_notify();
    raw.pump();
    drop(raw);
    settle([&mut world.scheduler], |[node]| !node.closed().is_empty());
    assert_eq!(world.scheduler.pings(), [31]);
    assert_eq!(world.scheduler.closed()[0].1, CloseReason::Eof);
}

#[test]
fn a_record_is_altered() {
    let mut world = World::new();
    let mut raw = RawTls::open(&mut world);
    raw.tls.writer().write_all(&frame_of(&Ping { sent_ns: 1.into() }, &[], &[])).unwrap();
    let mut record = Vec::new();
    raw.tls.write_tls(&mut record).unwrap();
    *record.last_mut().unwrap() ^= 1;
    raw.stream.write_all(&record).unwrap();
    settle([&mut world.scheduler], |[node]| !node.closed().is_empty());
    assert!(tls_text(&world.scheduler.closed()[0].1).contains("altered"));
    assert!(world.scheduler.pings().is_empty());
    assert_eq!(world.scheduler.transport.counters().tls_refused, 1);
}

/// Every byte of a record by itself, and many records at once.
#[test]
fn records_in_pieces_and_in_heaps() {
    let mut world = World::new();
    let mut raw = RawTls::open(&mut world);
    raw.stream.set_nodelay(true).unwrap();
    raw.tls.writer().write_all(&frame_of(&Ping { sent_ns: 0.into() }, &[], &[])).unwrap();
    let mut record = Vec::new();
    raw.tls.write_tls(&mut record).unwrap();
    for byte in record {
        raw.stream.write_all(&[byte]).unwrap();
        world.scheduler.transport.wait(Some(Nanos::from_millis(10)));
        world.scheduler.poll();
    }
    for number in 1..4_000 {
        let frame = frame_of(&Ping { sent_ns: number.into() }, &[], &[]);
        raw.tls.writer().write_all(&frame).unwrap();
        while raw.tls.wants_write() {
            raw.pump();
            world.scheduler.poll();
        }
    }
    settle([&mut world.scheduler], |[node]| node.pings().len() == 4_000);
    assert!(world.scheduler.pings().is_sorted());
}

/// Inputs as long as an image, on many connections at once.
#[test]
fn long_inputs_on_many_connections() {
    const BYTES: u32 = 150_528;
    let authority = Authority::new();
    let mut frontend = member(Role::Frontend, &authority.issue("web.cluster.test"));
    let mut backend = member(Role::Backend, &authority.issue("gpu-1.cluster.test"));
    let set = slabs(9, 24, BYTES);
    frontend.transport.expose(Arc::clone(&set)).unwrap();
    let buffer = landing(&mut backend, 24 * BYTES as usize);
    let mut reads = Vec::new();
    for row in 0..24 {
        let (conn, _) = open(&mut backend, &mut frontend);
        reads.push(read(conn, submit(&set, row.into()), &buffer, row, BYTES));
    }
    backend.transport.post_reads(&mut reads);
    settle([&mut backend, &mut frontend], |[backend, _]| backend.reads().len() == 24);
    for done in backend.reads() {
        assert_eq!(done.status, ReadStatus::Done);
        assert!(holds(&done.row, done.tag));
    }
}

/// More than one pass takes in is there at once, and nothing follows that would announce it again.
#[test]
fn a_long_input_that_waits_in_the_socket() {
    const BYTES: u32 = 2 << 20;
    let authority = Authority::new();
    let mut frontend = member(Role::Frontend, &authority.issue("web.cluster.test"));
    let mut backend = member(Role::Backend, &authority.issue("gpu-1.cluster.test"));
    let set = slabs(9, 1, BYTES);
    frontend.transport.expose(Arc::clone(&set)).unwrap();
    let buffer = landing(&mut backend, BYTES as usize);
    let (conn, _) = open(&mut backend, &mut frontend);
    backend.transport.post_reads(&mut vec![read(conn, submit(&set, 5), &buffer, 0, BYTES)]);
    backend.transport.flush();
    for _ in 0..200 {
        frontend.poll();
    }
    settle([&mut backend, &mut frontend], |[backend, _]| backend.reads().len() == 1);
    assert!(holds(&backend.reads()[0].row, 5));
}

#[test]
fn a_connection_that_is_closed_ends_as_one_should() {
    let mut world = World::new();
    let mut raw = RawTls::open(&mut world);
    let (conn, _) = *world.scheduler.opened().last().unwrap();
    world.scheduler.transport.close(conn, RefuseCode::Shutdown, "enough");
    raw.pump_until(&mut world.scheduler, |raw| raw.ended.is_some());
    assert!(raw.got.ends_with(b"enough"));
    assert_eq!(raw.tls.reader().read(&mut [0]).unwrap(), 0, "announced");

    let mut raw = RawTls::open(&mut world);
    drop(world);
    while raw.ended.is_none() {
        raw.pump();
    }
    assert_eq!(raw.tls.reader().read(&mut [0]).unwrap(), 0, "announced");
}

/// What lies on the wire is not what was sent; without TLS it is, so the tap sees what there is.
#[test]
fn nothing_can_be_read_on_the_wire() {
    let authority = Authority::new();
    let spec = authority.issue("member.test");
    let secure = (member(Role::Frontend, &spec), member(Role::Backend, &spec));
    for ((mut frontend, mut backend), visible) in [(secure, false), ((node(), node()), true)] {
        let set = slabs(9, 1, 5_000);
        frontend.transport.expose(Arc::clone(&set)).unwrap();
        let buffer = landing(&mut backend, 5_000);
        let mut tap = Tap::new(&frontend.transport);
        let conn = backend
            .transport
            .connect(tap.listener.local_addr().unwrap(), Hello::new(Role::Backend, 0, TOKEN))
            .unwrap();
        let mut reads = vec![read(conn, submit(&set, 3), &buffer, 0, 5_000)];
        backend.transport.post_reads(&mut reads);
        settle([&mut frontend, &mut backend], |[_, backend]| {
            tap.pass();
            backend.reads().len() == 1
        });
        assert!(holds(&backend.reads()[0].row, 3));
        let input: Vec<u8> = (0..32).map(|at| common::pattern(3, at)).collect();
        for secret in [&input[..], &TOKEN.to_le_bytes()] {
            let found = tap.seen.windows(secret.len()).any(|bytes| bytes == secret);
            assert_eq!(found, visible);
        }
    }
}

const TOKEN: u64 = 0x5ec2_e700_5ec2_e7aa;

/// Passes bytes on between two ends and keeps them.
struct Tap {
    listener: TcpListener,
    ends: Vec<TcpStream>,
    to: std::net::SocketAddr,
    seen: Vec<u8>,
}

impl Tap {
    fn new(to: &TcpTransport) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener, ends: Vec::new(), to: to.local_addr(), seen: Vec::new() }
    }

    fn pass(&mut self) {
        if let Ok((from, _)) = self.listener.accept() {
            self.ends = vec![from, TcpStream::connect(self.to).unwrap()];
            self.ends.iter().for_each(|end| end.set_nonblocking(true).unwrap());
        }
        let [from, to] = &mut self.ends[..] else { return };
        for (from, to) in [(&*from, &*to), (&*to, &*from)] {
            let (mut from, mut to) = (from, to);
            let mut piece = [0; 16 * 1024];
            if let Ok(n) = from.read(&mut piece) {
                to.write_all(&piece[..n]).unwrap();
                self.seen.extend_from_slice(&piece[..n]);
            }
        }
    }
}

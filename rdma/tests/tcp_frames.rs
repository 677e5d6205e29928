//! The TCP transport against peers that say what does not belong: bad hellos, bad frames, floods.
#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod common;

use std::io::{ErrorKind, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};

use baton_rdma::frame::HEADER_LEN;
use baton_rdma::wire::{
    self, DecodeError, Hello, Kind, ReadReply, RefuseCode, Role, VERSION_MAX, VERSION_MIN, Welcome,
};
use baton_rdma::{CloseReason, TcpConfig, Transport};
use baton_topo::{Clock, PARK_MAX};
use baton_types::{Nanos, TaskId};
use common::raw::{Raw, TcpNode, frame_of, node, node_with};
use common::{Seen, settle};
use rustix::net::{self, AddressFamily, SocketType};

// --- handshake ---------------------------------------------------------------------------------

#[test]
fn a_version_too_new() {
    let mut node = node();
    let mut raw = Raw::connect(&node);
    let (version_min, version_max) = (7.into(), 9.into());
    raw.send(&Hello { version_min, version_max, ..Hello::new(Role::Backend, 0, 0) }, &[], &[]);
    let (code, detail) = raw.refusal(&mut node);
    assert_eq!(code, RefuseCode::Version);
    let ours = format!("{VERSION_MIN} to {VERSION_MAX}");
    assert!(detail.contains(&ours) && detail.contains("7 to 9"), "{detail}");
    assert_eq!(node.transport.counters().version_refused, 1);
    assert!(node.seen.is_empty(), "the owner never heard of it");
}

#[test]
fn bad_hellos() {
    let good = Hello::new(Role::Backend, 0, 0);
    let hellos = [
        frame_of(&Hello { magic: 1.into(), ..good }, &[], &[]),
        frame_of(&Hello { role: 9, ..good }, &[], &[]),
        frame_of(&Hello { reserved: [0, 1, 0], ..good }, &[], &[]),
        b"GET / HTTP/1.1\r\nHost: baton\r\n\r\n".to_vec(),
        vec![0; 64],
    ];
    let mut node = node();
    for (n, bytes) in (1..).zip(hellos) {
        let mut raw = Raw::connect(&node);
        raw.stream.write_all(&bytes).unwrap();
        assert_eq!(raw.refusal(&mut node).0, RefuseCode::Malformed);
        assert_eq!(node.transport.counters().malformed, n);
    }
    let mut raw = Raw::connect(&node);
    raw.send(&wire::Ping { sent_ns: 1.into() }, &[], &[]);
    assert_eq!(raw.refusal(&mut node).0, RefuseCode::UnexpectedMessage);
    assert!(node.seen.is_empty());
}

#[test]
fn a_hello_in_single_bytes() {
    let mut node = node();
    let mut raw = Raw::connect(&node);
    raw.stream.set_nodelay(true).unwrap();
    for byte in frame_of(&Hello::new(Role::Backend, 8, 0), &[], &[]) {
        assert!(node.opened().is_empty());
        raw.stream.write_all(&[byte]).unwrap();
        node.transport.wait(Some(Nanos::from_millis(10)));
        node.poll();
    }
    raw.until(&mut node, |_, node| node.opened().len() == 1);
    assert_eq!(node.opened()[0].1.member, 8);
}

/// The poller has told of them once.
#[test]
fn a_pass_that_leaves_connections_behind_is_followed_by_another_at_once() {
    const ACCEPTED_PER_POLL: usize = 64;
    let mut node = node();
    let _all: Vec<Raw> = (0..=ACCEPTED_PER_POLL).map(|_| Raw::connect(&node)).collect();
    node.poll();
    assert_eq!(node.transport.counters().opened, ACCEPTED_PER_POLL as u64);
    assert_eq!(node.transport.prepare_wait(None), None, "one more waits");
    node.poll();
    assert!(node.transport.prepare_wait(None).is_some());
    assert_eq!(node.transport.counters().opened, ACCEPTED_PER_POLL as u64 + 1);
}

#[test]
fn silence_instead_of_a_hello() {
    let mut node = node();
    let mut raw = Raw::connect(&node);
    raw.until(&mut node, |_, node| node.transport.counters().opened == 1);
    node.pass(TcpConfig::default().handshake_timeout);
    assert_eq!(raw.refusal(&mut node).0, RefuseCode::Limit);
    assert_eq!(node.transport.counters().refused, 1);
}

/// This side stood still, and perhaps the far end with it.
#[test]
fn a_hello_behind_a_pause() {
    let mut node = node();
    let mut raw = Raw::connect(&node);
    raw.until(&mut node, |_, node| node.transport.counters().opened == 1);
    node.now = node.now + TcpConfig::default().handshake_timeout.times(3);
    node.poll();
    node.pass(TcpConfig::default().handshake_timeout - PARK_MAX.times(2));
    raw.send(&Hello::new(Role::Backend, 8, 0), &[], &[]);
    raw.until(&mut node, |_, node| node.opened().len() == 1);
}

/// Others fill the pass at whose end its time is over.
#[test]
fn a_hello_that_waits_for_its_turn_is_not_late() {
    let mut node = node();
    let mut raws: Vec<Raw> = (0..16).map(|_| Raw::open(&mut node)).collect();
    let mut slow = Raw::connect(&node);
    slow.until(&mut node, |_, node| node.transport.counters().opened == 17);
    node.pass(TcpConfig::default().handshake_timeout - PARK_MAX);
    let ping = frame_of(&wire::Ping { sent_ns: 1.into() }, &[], &[]);
    for raw in &mut raws {
        raw.stream.write_all(&ping.repeat(1_500)).unwrap();
    }
    slow.send(&Hello::new(Role::Backend, 8, 0), &[], &[]);
    node.now = node.now + PARK_MAX;
    node.poll();
    assert_eq!((node.opened().len(), node.closed()), (16, vec![]), "the pass was full");
    slow.until(&mut node, |_, node| node.opened().len() == 17);
}

/// A pass takes a bounded amount: the transport knows whose the rest is.
#[test]
fn what_is_not_read_yet_is_known_of() {
    let mut node = node();
    let ping = frame_of(&wire::Ping { sent_ns: 1.into() }, &[], &[]);
    let mut raws: Vec<Raw> = (0..16).map(|_| Raw::connect(&node)).collect();
    for raw in &mut raws {
        raw.send(&Hello::new(Role::Backend, 8, 0), &[], &[]);
    }
    settle([&mut node], |[node]| node.opened().len() == raws.len());
    // As much as one pass may take from all of them.
    for raw in &mut raws {
        raw.stream.write_all(&ping.repeat(1_500)).unwrap();
    }
    let conns: Vec<_> = node.opened().into_iter().map(|(conn, _)| conn).collect();
    let unread = |node: &TcpNode| conns.iter().any(|&conn| node.transport.has_unread(conn));
    settle([&mut node], |[node]| node.pings().len() > 16_000);
    assert!(node.pings().len() < 16 * 1_500 && unread(&node));
    settle([&mut node], |[node]| node.pings().len() == 16 * 1_500 && !unread(node));
}

/// Only TLS handshakes are put off, because they take long.
#[test]
fn a_pass_reads_of_every_connection() {
    let mut node = node();
    let mut raws: Vec<Raw> = (0..16).map(|_| Raw::open(&mut node)).collect();
    for raw in &mut raws {
        raw.send(&wire::Ping { sent_ns: 1.into() }, &[], &[]);
    }
    node.poll();
    assert_eq!(node.pings().len(), raws.len());
}

/// A peer on a host of its own, which loopback has many of.
fn peer_of(host: u8, node: &mut TcpNode) -> Raw {
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, host), 0)).unwrap();
    net::connect(&socket, &node.transport.local_addr()).unwrap();
    let mut raw = Raw::new(socket.into());
    raw.send(&Hello::new(Role::Backend, u32::from(host), 0), &[], &[]);
    raw.until(node, |raw, _| !raw.frames.is_empty() || raw.ended);
    raw
}

#[test]
fn one_host_cannot_fill_the_table() {
    let mut node = node_with(TcpConfig { host_connections_max: 2, ..TcpConfig::default() });
    let mut is_welcome = |raw: &mut Raw| raw.frames.front().unwrap().0 == Kind::Welcome;
    let mut greedy: Vec<Raw> = (0..2).map(|_| peer_of(2, &mut node)).collect();
    assert!(greedy.iter_mut().all(&mut is_welcome));
    let (code, detail) = peer_of(2, &mut node).refusal(&mut node);
    assert_eq!(code, RefuseCode::Limit);
    assert!(detail.contains("2 connections from 127.0.0.2"), "{detail}");
    assert_eq!(node.transport.counters().refused, 1);
    assert!(is_welcome(&mut peer_of(3, &mut node)), "another host");
    greedy.pop();
    settle([&mut node], |[node]| node.closed().len() == 2);
    assert!(is_welcome(&mut peer_of(2, &mut node)), "there is room again");
}

#[test]
fn answers_to_our_hello() {
    let welcome = Welcome { version: 1.into(), role: 1, reserved: 0, member: 0.into() };
    let too_new = Welcome { version: (VERSION_MAX + 1).into(), ..welcome };
    let roleless = Welcome { role: 77, ..welcome };
    let refuse = wire::Refuse { code: 999.into() };
    let malformed = CloseReason::Malformed(DecodeError::Hello);
    let (version, detail) =
        (CloseReason::Version { min: VERSION_MAX + 1, max: VERSION_MAX + 1 }, "why not".to_owned());
    let cases = [
        (frame_of(&too_new, &[], &[]), version),
        (frame_of(&roleless, &[], &[]), malformed),
        (frame_of(&refuse, b"why not", &[]), CloseReason::Refused { code: None, detail }),
        (
            frame_of(&wire::Ready { reserved: 0.into() }, &[], &[]),
            CloseReason::Unexpected(Kind::Ready),
        ),
        (Vec::new(), CloseReason::Eof),
        (vec![2, 0], CloseReason::Reset(ErrorKind::UnexpectedEof)),
    ];
    for (answer, expected) in cases {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut node = node();
        let conn = node.connect(listener.local_addr().unwrap());
        let mut raw = Raw::new(listener.accept().unwrap().0);
        raw.until(&mut node, |raw, _| !raw.frames.is_empty());
        raw.stream.write_all(&answer).unwrap();
        drop(raw);
        settle([&mut node], |[node]| !node.closed().is_empty());
        assert_eq!(node.closed(), [(conn, expected)]);
    }
}

/// What came with the welcome is held back for a pass. The kernel will not report it again, and a
/// wait must not oversleep it.
#[test]
fn more_behind_the_welcome() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut node = node();
    node.connect(listener.local_addr().unwrap());
    let mut raw = Raw::new(listener.accept().unwrap().0);
    raw.until(&mut node, |raw, _| !raw.frames.is_empty());
    let welcome = Welcome { version: 1.into(), role: 1, reserved: 0, member: 0.into() };
    let ping = frame_of(&wire::Ping { sent_ns: 4.into() }, &[], &[]);
    raw.stream.write_all(&[frame_of(&welcome, &[], &[]), ping].concat()).unwrap();
    settle([&mut node], |[node]| !node.opened().is_empty());
    assert!(node.pings().is_empty());
    let clock = Clock::start();
    let before = clock.now();
    node.transport.wait(Some(Nanos::from_millis(60_000)));
    assert!(clock.now() - before < Nanos::from_millis(50_000), "there is more to do: no wait");
    node.poll();
    assert_eq!(node.pings(), [4]);
}

// --- an open connection ------------------------------------------------------------------------

#[test]
fn what_does_not_belong_closes_that_connection_only() {
    let reply = ReadReply { task: 1.into(), tag: 1.into(), status: 0, reserved: [0; 3] };
    let ping = frame_of(&wire::Ping { sent_ns: 1.into() }, &[], &[]);
    let with_payload = [&[24, 0, 8, 0, 1, 0, 0, 0], &ping[HEADER_LEN..]].concat();
    let cases: [(Vec<u8>, RefuseCode, CloseReason); 5] = [
        (vec![200; 8], RefuseCode::Malformed, CloseReason::Malformed(DecodeError::Kind(200))),
        (with_payload, RefuseCode::Malformed, CloseReason::Malformed(DecodeError::PayloadLength)),
        (
            frame_of(&Hello::new(Role::Backend, 0, 0), &[], &[]),
            RefuseCode::UnexpectedMessage,
            CloseReason::Unexpected(Kind::Hello),
        ),
        (
            frame_of(&reply, &[], &[1; 50]),
            RefuseCode::UnexpectedMessage,
            CloseReason::Unexpected(Kind::ReadReply),
        ),
        (
            frame_of(&common::result(TaskId(1)), &[], &[1; 50]),
            RefuseCode::UnexpectedMessage,
            CloseReason::Unexpected(Kind::TaskResult),
        ),
    ];
    let mut node = node();
    let mut good = Raw::open(&mut node);
    for (n, (bytes, code, reason)) in (1..).zip(cases) {
        let mut bad = Raw::open(&mut node);
        bad.stream.write_all(&bytes).unwrap();
        assert_eq!(bad.refusal(&mut node).0, code);
        assert_eq!(node.closed().pop().unwrap().1, reason);
        assert_eq!(node.transport.counters().malformed, n);
        good.stream.write_all(&ping).unwrap();
        good.until(&mut node, |_, node| node.pings().len() as u64 == n);
    }
    assert_eq!(node.closed().len(), 5);
}

#[test]
fn the_end_in_the_middle_of_a_frame() {
    let mut node = node();
    let mut raw = Raw::open(&mut node);
    raw.stream.write_all(&[24, 0, 8, 0, 0, 0, 0, 0, 1, 2, 3]).unwrap();
    drop(raw);
    settle([&mut node], |[node]| !node.closed().is_empty());
    assert_eq!(node.closed()[0].1, CloseReason::Reset(ErrorKind::UnexpectedEof));
}

/// Everything of one pass leaves in one piece: the peer sees it all in its first read.
#[test]
fn messages_are_batched() {
    let mut node = node();
    let mut raw = Raw::open(&mut node);
    let conn = node.opened()[0].0;
    (0..200).for_each(|number| node.ping(conn, number));
    raw.receive();
    assert!(raw.frames.is_empty(), "nothing leaves before the flush");
    node.transport.flush();
    raw.until(&mut node, |raw, _| !raw.frames.is_empty());
    assert_eq!((raw.frames.len(), raw.bytes.len()), (200, 0));
}

/// A flood on one connection neither starves the other nor gets lost: what a pass leaves is found
/// by the next although the kernel does not report it again.
#[test]
fn a_flood_is_taken_in_turns() {
    const COUNT: usize = 60_000;
    let mut node = node();
    let mut flood = Raw::open(&mut node);
    let mut good = Raw::open(&mut node);
    let pings: Vec<u8> = (0..COUNT as u64)
        .flat_map(|number| frame_of(&wire::Ping { sent_ns: number.into() }, &[], &[]))
        .collect();
    let sent = flood.stream.write(&pings).unwrap();
    assert!(sent > 512 * 1024, "more than one pass takes");
    good.send(&wire::Leave { reserved: 0.into() }, &[], &[]);
    settle([&mut node], |[node]| !node.pings().is_empty());
    assert!(node.pings().len() * 16 <= 4 * 64 * 1024, "one pass");
    assert!(node.seen.iter().any(|seen| matches!(seen, Seen::Other(_, Kind::Leave))));
    let mut rest = &pings[sent..];
    flood.until(&mut node, |flood, node| {
        rest = &rest[flood.stream.write(rest).unwrap_or(0)..];
        node.pings().len() == COUNT
    });
    assert!(node.pings().into_iter().eq(0..COUNT as u64));
}

/// Its owner has other things to do in between, and memory for no more.
#[test]
fn a_pass_takes_no_more_than_its_bound_from_all_peers_together() {
    const EACH: usize = 30_000;
    let mut node = node();
    let mut peers: Vec<Raw> = (0..192).map(|_| Raw::open(&mut node)).collect();
    let frame = frame_of(&wire::ModelFailed { model: 0.into() }, &[b'x'; EACH], &[]);
    for raw in &mut peers {
        // Until the sockets between have no more room.
        while raw.stream.write(&frame).is_ok_and(|written| written == frame.len()) {}
    }
    let taken: Vec<usize> = (0..16).map(|_| EACH * node.poll()).collect();
    assert_eq!(node.closed(), []);
    let most = (4 << 20) + 5 * 64 * 1024;
    assert!(taken.iter().all(|&bytes| bytes <= most), "{taken:?}");
    assert!(taken.iter().sum::<usize>() > most, "{taken:?}");
}

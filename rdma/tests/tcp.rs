//! The TCP transport against peers that misbehave: raw sockets that say what no transport says.
#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod common;

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;

use baton_core::{Nanos, TaskId};
use baton_rdma::frame::{self, HEADER_LEN};
use baton_rdma::wire::{
    self, Body, DecodeError, FrameHeader, Hello, Kind, Message, ReadReply, RefuseCode, Role,
    Welcome, decode,
};
use baton_rdma::{
    BatchBuffer, CloseReason, ConnId, READ_DEPTH, ReadStatus, SlabSet, TcpConfig, TcpTransport,
    Transport,
};
use common::{Fabric, Node, Seen, Tcp, holds, pattern, read, settle, slabs, submit};
use zerocopy::FromBytes;

type TcpNode = Node<TcpTransport>;

fn node_with(cfg: TcpConfig) -> TcpNode {
    Node::new(Tcp.endpoint(Role::Frontend, 9, cfg))
}

fn node() -> TcpNode {
    node_with(TcpConfig::default())
}

/// The bytes of a frame.
fn frame_of<B: Body>(body: &B, tail: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::encode(&mut bytes, body, tail, payload.len());
    bytes.extend_from_slice(payload);
    bytes
}

/// A frame as received: kind, body, payload.
type Frame = (Kind, Vec<u8>, Vec<u8>);

/// A peer that is no transport.
struct Raw {
    stream: TcpStream,
    frames: VecDeque<Frame>,
    /// Received, not yet a frame.
    bytes: Vec<u8>,
    /// The other side has closed, politely or not.
    ended: bool,
}

impl Raw {
    fn new(stream: TcpStream) -> Self {
        stream.set_nonblocking(true).unwrap();
        Self { stream, frames: VecDeque::new(), bytes: Vec::new(), ended: false }
    }

    fn connect(node: &TcpNode) -> Self {
        Self::new(TcpStream::connect(node.transport.local_addr()).unwrap())
    }

    /// Connects and shakes hands.
    fn open(node: &mut TcpNode) -> Self {
        let mut raw = Self::connect(node);
        raw.send(&Hello::new(Role::Backend, 1, 2), &[], &[]);
        raw.until(node, |raw, _| !raw.frames.is_empty());
        assert_eq!(raw.frames.pop_front().unwrap().0, Kind::Welcome);
        raw
    }

    fn send<B: Body>(&mut self, body: &B, tail: &[u8], payload: &[u8]) {
        self.stream.write_all(&frame_of(body, tail, payload)).unwrap();
    }

    fn receive(&mut self) {
        let mut piece = [0; 64 * 1024];
        match self.stream.read(&mut piece) {
            Ok(0) => self.ended = true,
            Ok(n) => self.bytes.extend_from_slice(&piece[..n]),
            Err(error) => self.ended |= error.kind() != ErrorKind::WouldBlock,
        }
        while let Some(frame) = self.cut() {
            self.frames.push_back(frame);
        }
    }

    fn cut(&mut self) -> Option<Frame> {
        let (header, _) = FrameHeader::read_from_prefix(&self.bytes).ok()?;
        let body_end = HEADER_LEN + usize::from(header.body_len.get());
        let end = body_end + header.payload_len.get() as usize;
        let bytes: Vec<u8> =
            (self.bytes.len() >= end).then(|| self.bytes.drain(..end).collect())?;
        let (body, payload) = (bytes[HEADER_LEN..body_end].to_vec(), bytes[body_end..].to_vec());
        Some((header.check().unwrap(), body, payload))
    }

    /// Polls the node and receives until `done`.
    fn until(&mut self, node: &mut TcpNode, mut done: impl FnMut(&mut Self, &TcpNode) -> bool) {
        settle([node], |[node]| {
            self.receive();
            done(self, node)
        });
    }

    /// Waits for the end of the connection; the last frame before must be a refusal.
    fn refusal(&mut self, node: &mut TcpNode) -> (RefuseCode, String) {
        self.until(node, |raw, _| raw.ended);
        let (kind, body, _) = self.frames.pop_back().expect("a refusal before the end");
        let Ok(Message::Refuse(refuse, detail)) = decode(kind, &body) else { panic!("{kind:?}") };
        (RefuseCode::from_code(refuse.code.get()).unwrap(), detail.to_owned())
    }
}

/// A node that has connected to a raw peer and is welcome there.
fn welcomed(cfg: TcpConfig) -> (TcpNode, ConnId, Raw) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut node = node_with(cfg);
    let conn = node.connect(listener.local_addr().unwrap());
    let mut raw = Raw::new(listener.accept().unwrap().0);
    raw.until(&mut node, |raw, _| !raw.frames.is_empty());
    assert_eq!(raw.frames.pop_front().unwrap().0, Kind::Hello);
    let version = wire::VERSION_MAX.into();
    let role = Role::Frontend as u8;
    raw.send(&Welcome { version, role, reserved: 0, member: 3.into() }, &[], &[]);
    raw.until(&mut node, |_, node| node.opened().len() == 1);
    (node, conn, raw)
}

// --- handshake ---------------------------------------------------------------------------------

#[test]
fn a_version_too_new() {
    let mut node = node();
    let mut raw = Raw::connect(&node);
    let (version_min, version_max) = (7.into(), 9.into());
    raw.send(&Hello { version_min, version_max, ..Hello::new(Role::Backend, 0, 0) }, &[], &[]);
    let (code, detail) = raw.refusal(&mut node);
    assert_eq!(code, RefuseCode::Version);
    assert!(detail.contains("1 to 1") && detail.contains("7 to 9"), "{detail}");
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

#[test]
fn silence_instead_of_a_hello() {
    let mut node = node();
    let mut raw = Raw::connect(&node);
    raw.until(&mut node, |_, node| node.transport.counters().opened == 1);
    node.now = node.now + TcpConfig::default().handshake_timeout;
    assert_eq!(raw.refusal(&mut node).0, RefuseCode::Limit);
    assert_eq!(node.transport.counters().refused, 1);
}

#[test]
fn answers_to_our_hello() {
    let welcome = Welcome { version: 1.into(), role: 1, reserved: 0, member: 0.into() };
    let too_new = Welcome { version: 2.into(), ..welcome };
    let nobody = Welcome { role: 77, ..welcome };
    let refuse = wire::Refuse { code: 999.into() };
    let malformed = CloseReason::Malformed(DecodeError::Hello);
    let (version, detail) = (CloseReason::Version { min: 2, max: 2 }, "why not".to_owned());
    let cases = [
        (frame_of(&too_new, &[], &[]), version),
        (frame_of(&nobody, &[], &[]), malformed),
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

// --- as the target of READs --------------------------------------------------------------------

fn exposing(slots: u32, bytes: u32) -> (TcpNode, Raw, Arc<SlabSet>) {
    let mut node = node();
    let set = slabs(9, slots, bytes);
    node.transport.expose(set.clone());
    let raw = Raw::open(&mut node);
    (node, raw, set)
}

fn request(task: TaskId, tag: u32, len: u32) -> wire::Read {
    wire::Read { task: task.0.into(), tag: tag.into(), len: len.into() }
}

/// What a backend gets: the input, the trailer, and refusals by their codes.
#[test]
fn read_replies() {
    let (mut node, mut raw, set) = exposing(2, 300);
    let task = submit(&set, 6);
    let stale = TaskId::new(task.frontend(), task.slot(), 9);
    let nowhere = TaskId::new(task.frontend(), 2, 0);
    for (tag, (task, len)) in (0..).zip([(task, 300), (stale, 300), (task, 299), (nowhere, 300)]) {
        raw.send(&request(task, tag, len), &[], &[]);
    }
    raw.until(&mut node, |raw, _| raw.frames.len() == 4);
    let status = |frame: &Frame| ReadReply::read_from_bytes(&frame.1).unwrap().status;
    assert_eq!(raw.frames.iter().map(status).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let (input, trailer) = raw.frames[0].2.split_at(300);
    assert!(holds(input, 6) && trailer == task.0.to_le_bytes());
    assert!(raw.frames.iter().skip(1).all(|frame| frame.2.is_empty()));
    assert_eq!(set.leases(), 0, "returned once the bytes have left");
}

/// A peer that asks and does not read holds leases up to the depth and no further; when it is closed
/// they all come back.
#[test]
fn asking_for_more_than_the_depth() {
    let (mut node, mut raw, set) = exposing(1, 1 << 20);
    let task = submit(&set, 6);
    let requests: Vec<u8> = (0..READ_DEPTH as u32 + 20)
        .flat_map(|tag| frame_of(&request(task, tag, 1 << 20), &[], &[]))
        .collect();
    raw.stream.write_all(&requests).unwrap();
    let mut most = 0;
    settle([&mut node], |[node]| {
        most = most.max(set.leases());
        !node.closed().is_empty()
    });
    assert_eq!(node.closed()[0].1, CloseReason::Unexpected(Kind::Read));
    assert!(most <= READ_DEPTH as u64);
    assert_eq!(set.leases(), 0);
}

/// Refusals are answers too: a peer that collects them without reading is closed, not served for
/// ever.
#[test]
fn asking_in_vain_without_reading() {
    let mut node = node_with(TcpConfig { send_queue_bytes: 1000, ..TcpConfig::default() });
    let mut raw = Raw::open(&mut node);
    let requests: Vec<u8> =
        (0..1000).flat_map(|tag| frame_of(&request(TaskId(1), tag, 8), &[], &[])).collect();
    settle([&mut node], |[node]| {
        let _full_or_gone = raw.stream.write(&requests);
        !node.closed().is_empty()
    });
    assert_eq!(node.closed()[0].1, CloseReason::SendQueueFull);
    assert_eq!(node.transport.counters().refused, 1);
}

/// A backend that dies while its answer is landing leaves the slot open for another.
#[test]
fn death_in_the_middle_of_an_answer() {
    let (mut node, mut raw, set) = exposing(1, 8);
    let task = submit(&set, 0);
    let answer = frame_of(&common::result(task), &[], &[5; 16]);
    raw.stream.write_all(&answer[..answer.len() - 4]).unwrap();
    settle([&mut node], |_| set.landing(task).is_none());
    drop(raw);
    settle([&mut node], |[node]| !node.closed().is_empty());
    let mut other = Raw::open(&mut node);
    other.stream.write_all(&answer).unwrap();
    other.until(&mut node, |_, node| {
        node.seen.iter().any(|seen| matches!(seen, Seen::Result(_, _, 16)))
    });
    assert!(set.complete(task));
    assert_eq!(&set.output(task).unwrap()[..], [5; 16]);
}

// --- as the initiator --------------------------------------------------------------------------

const BYTES: u32 = 200_000;

/// The reply to the READ request `frame`, with the input of `seed` and this trailer.
fn reply_to(frame: &Frame, seed: u64, trailer: u64) -> Vec<u8> {
    let read = wire::Read::read_from_bytes(&frame.1).unwrap();
    let input = (0..read.len.get() as usize).map(|at| pattern(seed, at));
    let payload: Vec<u8> = input.chain(trailer.to_le_bytes()).collect();
    let reply = ReadReply { task: read.task, tag: read.tag, status: 0, reserved: [0; 3] };
    frame_of(&reply, &[], &payload)
}

/// A raw frontend that has been asked for one input, into row 0.
fn asked() -> (TcpNode, ConnId, Raw, Frame, Arc<BatchBuffer>) {
    let cfg = TcpConfig { credit_bytes: u64::from(BYTES), ..TcpConfig::default() };
    let (mut node, conn, mut raw) = welcomed(cfg);
    let buffer = BatchBuffer::new(2 * BYTES as usize);
    node.transport.post_reads(&mut vec![read(conn, TaskId(7), &buffer, 0, BYTES)]);
    raw.until(&mut node, |raw, _| !raw.frames.is_empty());
    let frame = raw.frames.pop_front().unwrap();
    assert_eq!(frame.0, Kind::Read);
    (node, conn, raw, frame, buffer)
}

fn write_all(raw: &mut Raw, node: &mut TcpNode, bytes: &[u8]) {
    let mut rest = bytes;
    raw.until(node, |raw, _| {
        rest = &rest[raw.stream.write(rest).unwrap_or(0)..];
        rest.is_empty()
    });
}

#[test]
fn the_trailer_names_the_task() {
    for (trailer, expected) in [(7, ReadStatus::Done), (8, ReadStatus::Stale)] {
        let (mut node, _, mut raw, frame, _buffer) = asked();
        let reply = reply_to(&frame, 1, trailer);
        write_all(&mut raw, &mut node, &reply);
        settle([&mut node], |[node]| !node.reads().is_empty());
        assert_eq!(node.reads()[0].status, expected);
        assert!(holds(&node.reads()[0].row, 1));
    }
}

#[test]
fn peer_dies_in_the_middle_of_a_payload() {
    let (mut node, conn, mut raw, frame, buffer) = asked();
    let reply = reply_to(&frame, 1, 7);
    write_all(&mut raw, &mut node, &reply[..reply.len() / 2]);
    assert!(node.reads().is_empty());
    drop(raw);
    settle([&mut node], |[node]| !node.closed().is_empty());
    assert_eq!(node.reads()[0].status, ReadStatus::PeerLost);
    assert_eq!(node.closed(), [(conn, CloseReason::Reset(ErrorKind::UnexpectedEof))]);
    node.seen.clear();
    assert!(buffer.rows(1, BYTES).is_some());
}

/// The row comes back at once, the rest of the payload passes without touching it, and its credit
/// returns only then.
#[test]
fn abort_in_the_middle_of_a_payload() {
    let (mut node, conn, mut raw, frame, buffer) = asked();
    let reply = reply_to(&frame, 1, 7);
    let (half, rest) = reply.split_at(reply.len() / 2);
    write_all(&mut raw, &mut node, half);
    node.transport.abort_read(conn, 0);
    node.poll();
    assert_eq!(node.reads()[0].status, ReadStatus::Aborted);
    node.seen.clear();

    let mut again = read(conn, TaskId(8), &buffer, 0, BYTES);
    again.row.fill(0xee);
    node.transport.post_reads(&mut vec![again]);
    node.transport.flush();
    raw.receive();
    assert!(raw.frames.is_empty(), "the window is still taken");
    write_all(&mut raw, &mut node, rest);
    raw.until(&mut node, |raw, _| !raw.frames.is_empty());
    node.transport.abort_read(conn, 0);
    node.poll();
    assert!(node.reads()[0].row.iter().all(|&byte| byte == 0xee));
}

/// Aborted before the answer began: the answer, when it comes, finds no row and does no harm.
#[test]
fn abort_before_the_payload() {
    let (mut node, conn, mut raw, frame, buffer) = asked();
    node.transport.abort_read(conn, 0);
    node.poll();
    assert_eq!(node.reads()[0].status, ReadStatus::Aborted);
    node.seen.clear();
    let rows = buffer.rows(1, BYTES).unwrap();
    let reply = reply_to(&frame, 1, 7);
    write_all(&mut raw, &mut node, &reply);
    raw.send(&wire::Ping { sent_ns: 4.into() }, &[], &[]);
    raw.until(&mut node, |_, node| node.pings() == [4]);
    assert!(rows.iter().all(|&byte| byte == 0) && node.reads().is_empty());
}

type Reply<'a> = &'a dyn Fn(&Frame) -> Vec<u8>;

#[test]
fn replies_that_do_not_fit() {
    let short = |frame: &Frame| {
        let read = wire::Read::read_from_bytes(&frame.1).unwrap();
        let reply = ReadReply { task: read.task, tag: read.tag, status: 0, reserved: [0; 3] };
        frame_of(&reply, &[], &[1; 100])
    };
    let refusing_with_payload = |frame: &Frame| {
        let read = wire::Read::read_from_bytes(&frame.1).unwrap();
        let reply = ReadReply { task: read.task, tag: read.tag, status: 1, reserved: [0; 3] };
        frame_of(&reply, &[], &[1; 8])
    };
    let other_task = |frame: &Frame| {
        let read = wire::Read::read_from_bytes(&frame.1).unwrap();
        let reply = ReadReply { task: 9.into(), tag: read.tag, status: 1, reserved: [0; 3] };
        frame_of(&reply, &[], &[])
    };
    let malformed = CloseReason::Malformed(DecodeError::PayloadLength);
    let unexpected = CloseReason::Unexpected(Kind::ReadReply);
    let cases: [(Reply<'_>, CloseReason); 3] = [
        (&short, malformed.clone()),
        (&refusing_with_payload, malformed),
        (&other_task, unexpected),
    ];
    for (reply, expected) in cases {
        let (mut node, conn, mut raw, frame, _buffer) = asked();
        raw.stream.write_all(&reply(&frame)).unwrap();
        settle([&mut node], |[node]| !node.closed().is_empty());
        assert_eq!(node.closed(), [(conn, expected)]);
        assert_eq!(node.reads()[0].status, ReadStatus::PeerLost);
    }
}

/// The second one answers nothing.
#[test]
fn the_same_reply_twice() {
    let (mut node, conn, mut raw, frame, _buffer) = asked();
    let reply = reply_to(&frame, 1, 7);
    write_all(&mut raw, &mut node, &[&reply[..], &reply[..]].concat());
    settle([&mut node], |[node]| !node.closed().is_empty());
    assert_eq!(node.closed(), [(conn, CloseReason::Unexpected(Kind::ReadReply))]);
    let statuses: Vec<_> = node.reads().iter().map(|done| done.status).collect();
    assert_eq!(statuses, [ReadStatus::Done]);
}

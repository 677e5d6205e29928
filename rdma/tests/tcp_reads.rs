//! READs and answers over TCP against peers that break off, give up, or ask for too much.
#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod common;

use std::io::{ErrorKind, Write as _};
use std::sync::Arc;

use baton_rdma::wire::{self, DecodeError, Kind, ReadReply};
use baton_rdma::{
    BatchBuffer, CloseReason, ConnId, READ_DEPTH, ReadStatus, SlabSet, TcpConfig, Transport,
};
use baton_types::TaskId;
use common::raw::{Frame, Raw, TcpNode, frame_of, node, node_with, welcome, welcomed};
use common::{Seen, holds, pattern, read, settle, slabs, submit};
use zerocopy::FromBytes;

// --- as the target of READs --------------------------------------------------------------------

fn exposing(slots: u32, bytes: u32) -> (TcpNode, Raw, Arc<SlabSet>) {
    let mut node = node();
    let set = slabs(9, slots, bytes);
    node.transport.expose(set.clone()).unwrap();
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
    let mut asked = 0;
    let mut ask = |raw: &mut Raw, node: &mut TcpNode| {
        let request = frame_of(&request(task, asked, 1 << 20), &[], &[]);
        raw.stream.write_all(&request).unwrap();
        asked += 1;
        settle([node], |[node]| {
            let is_served = node.transport.counters().reads_served == u64::from(asked);
            is_served || !node.closed().is_empty()
        });
    };
    // The first of them are in the sockets' buffers, and no lease is held for these any more.
    while set.leases() < READ_DEPTH as u64 {
        ask(&mut raw, &mut node);
        assert_eq!(node.closed(), []);
    }
    ask(&mut raw, &mut node);
    assert_eq!(node.closed()[0].1, CloseReason::Unexpected(Kind::Read));
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
    let buffer = BatchBuffer::new(2 * BYTES as usize).unwrap();
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

/// Writes a ping and the first half of `reply` in one piece and returns when the node has seen the
/// ping: then it has begun on the payload as well.
fn write_half(raw: &mut Raw, node: &mut TcpNode, reply: &[u8]) {
    let ping = frame_of(&wire::Ping { sent_ns: 1.into() }, &[], &[]);
    write_all(raw, node, &[&ping, &reply[..reply.len() / 2]].concat());
    settle([node], |[node]| node.pings() == [1]);
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
    write_half(&mut raw, &mut node, &reply);
    assert!(node.reads().is_empty());
    drop(raw);
    settle([&mut node], |[node]| !node.closed().is_empty());
    assert_eq!(node.reads()[0].status, ReadStatus::PeerLost);
    assert!(holds(&node.reads()[0].row[..1000], 1), "it had begun");
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
    write_half(&mut raw, &mut node, &reply);
    node.transport.abort_read(conn, 1);
    node.poll();
    assert!(node.reads().is_empty(), "it is another one's tag");
    node.transport.abort_read(conn, 0);
    node.poll();
    assert_eq!(node.reads()[0].status, ReadStatus::Aborted);
    assert!(holds(&node.reads()[0].row[..1000], 1), "it had begun");
    node.seen.clear();

    let mut again = read(conn, TaskId(8), &buffer, 0, BYTES);
    again.row.fill(0xee);
    node.transport.post_reads(&mut vec![again]);
    node.transport.flush();
    raw.receive();
    assert!(raw.frames.is_empty(), "the window is still taken");
    write_all(&mut raw, &mut node, &reply[reply.len() / 2..]);
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

/// A refusal too is the answer for which the next READs wait.
#[test]
fn a_peer_that_has_refused_what_was_given_up_is_asked_again() {
    let (mut node, conn, mut raw, frame, buffer) = asked();
    node.transport.abort_read(conn, 0);
    node.poll();
    node.transport.post_reads(&mut vec![read(conn, TaskId(8), &buffer, 1, BYTES)]);
    let asked = wire::Read::read_from_bytes(&frame.1).unwrap();
    let reply = ReadReply { task: asked.task, tag: asked.tag, status: 1, reserved: [0; 3] };
    raw.send(&reply, &[], &[]);
    raw.until(&mut node, |raw, _| !raw.frames.is_empty());
    assert_eq!(raw.frames[0].0, Kind::Read);
}

/// What a READ that was given up took has returned with its row. If it came back with the connection too, the others
/// would be asked for more than the window allows.
#[test]
fn the_credit_of_an_aborted_read_comes_back_once() {
    let cfg = TcpConfig { credit_bytes: u64::from(BYTES), ..TcpConfig::default() };
    let (mut node, lost, mut raw) = welcomed(cfg);
    let (one, mut busy) = welcome(&mut node);
    let (two, mut idle) = welcome(&mut node);
    let buffer = BatchBuffer::new(3 * BYTES as usize).unwrap();
    node.transport.post_reads(&mut vec![read(lost, TaskId(7), &buffer, 0, BYTES)]);
    raw.until(&mut node, |raw, _| !raw.frames.is_empty());
    node.transport.abort_read(lost, 0);
    let other = |conn, row| read(conn, TaskId(8), &buffer, row, BYTES);
    node.transport.post_reads(&mut vec![other(one, 1), other(two, 2)]);
    busy.until(&mut node, |busy, _| !busy.frames.is_empty());
    drop(raw);
    settle([&mut node], |[node]| !node.closed().is_empty());
    // A READ that may leave now does so before the ping.
    (0..3).for_each(|_| _ = node.poll());
    node.ping(two, 1);
    idle.until(&mut node, |idle, _| !idle.frames.is_empty());
    assert_eq!(idle.frames[0].0, Kind::Ping, "the window holds one input");
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

/// A batch that is executed again reads the same input again, maybe into the same place.
#[test]
fn an_answer_to_an_earlier_read_of_the_same_task_is_none() {
    let (mut node, conn, mut raw, frame, buffer) = asked();
    let reply = reply_to(&frame, 1, 7);
    write_all(&mut raw, &mut node, &reply);
    settle([&mut node], |[node]| !node.reads().is_empty());
    node.seen.clear();
    node.transport.post_reads(&mut vec![read(conn, TaskId(7), &buffer, 0, BYTES)]);
    raw.until(&mut node, |raw, _| !raw.frames.is_empty());
    write_all(&mut raw, &mut node, &reply);
    settle([&mut node], |[node]| !node.closed().is_empty());
    assert_eq!(node.closed(), [(conn, CloseReason::Unexpected(Kind::ReadReply))]);
    assert_eq!(node.reads()[0].status, ReadStatus::PeerLost);
}

#[test]
fn a_peer_owes_what_was_given_up_until_it_has_come() {
    let (mut node, conn, mut raw, frame, _buffer) = asked();
    assert!(!node.transport.owes(conn), "it has time");
    node.transport.abort_read(conn, 0);
    assert!(node.transport.owes(conn));
    assert!(!node.transport.owes(ConnId(conn.0 + 1)), "no other peer does");
    let ping = frame_of(&wire::Ping { sent_ns: 1.into() }, &[], &[]);
    write_all(&mut raw, &mut node, &[reply_to(&frame, 1, 7), ping].concat());
    settle([&mut node], |[node]| node.pings() == [1]);
    assert!(!node.transport.owes(conn), "it has come");
}

/// Smaller ones that went before would have it wait for ever.
#[test]
fn a_read_without_credit_keeps_its_turn() {
    let cfg = TcpConfig { credit_bytes: 1_000, ..TcpConfig::default() };
    let (mut node, first, mut first_raw) = welcomed(cfg);
    let (large, mut large_raw) = welcome(&mut node);
    let (small, mut small_raw) = welcome(&mut node);
    let reads = [(first, 600), (large, 600), (small, 50)].map(|(conn, bytes)| {
        let buffer = BatchBuffer::new(bytes as usize).unwrap();
        read(conn, TaskId(7), &buffer, 0, bytes)
    });
    node.transport.post_reads(&mut reads.into());
    first_raw.until(&mut node, |raw, _| !raw.frames.is_empty());
    for _ in 0..3 {
        node.poll();
    }
    assert_eq!(node.transport.counters().credit_held, 608, "the others are not asked");
    let frame = first_raw.frames.pop_front().unwrap();
    write_all(&mut first_raw, &mut node, &reply_to(&frame, 1, 7));
    small_raw.until(&mut node, |raw, _| !raw.frames.is_empty());
    large_raw.until(&mut node, |raw, _| !raw.frames.is_empty());
    assert_eq!(node.transport.counters().credit_held, 608 + 58);
}

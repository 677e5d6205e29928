//! READs: how many, how large, refused, lost and aborted.

use baton_rdma::wire::Role;
use baton_rdma::{READ_DEPTH, ReadDone, ReadStatus, TcpConfig, Transport};
use baton_types::{FrontendId, TaskId};

use crate::common::{
    Fabric, Node, Seen, holds, landing, open, read, result, settle, slabs, submit, submit_some,
};
use crate::{NodeOf, nodes, pair};

/// Many inputs from three frontends through a window of two and a half: all arrive, never more than
/// two are on their way, and no frontend is served twice while another waits.
pub(crate) fn pull_through_a_tiny_window<F: Fabric>() {
    const EACH: u32 = 20;
    const BYTES: u32 = 50_000;
    let fabric = F::default();
    let cfg = TcpConfig { credit_bytes: u64::from(BYTES) * 5 / 2, ..TcpConfig::default() };
    let mut backend = Node::new(fabric.endpoint(Role::Backend, 5, cfg));
    let mut frontends: [_; 3] =
        std::array::from_fn(|i| Node::new(fabric.endpoint(Role::Frontend, i as u32, cfg)));
    let sets: [_; 3] = std::array::from_fn(|i| slabs(i as u16, EACH, BYTES));
    let buffer = landing(&mut backend, (3 * EACH * BYTES) as usize);
    let mut reads = Vec::new();
    for (source, (frontend, set)) in (0u32..).zip(frontends.iter_mut().zip(&sets)) {
        frontend.transport.expose(set.clone()).unwrap();
        let (conn, _) = open(&mut backend, frontend);
        for i in 0..EACH {
            let task = submit(set, u64::from(source * EACH + i));
            reads.push(read(conn, task, &buffer, source * EACH + i, BYTES));
        }
    }
    backend.transport.post_reads(&mut reads);
    assert!(reads.is_empty());
    let [f0, f1, f2] = &mut frontends;
    settle([&mut backend, f0, f1, f2], |[backend, frontends @ ..]| {
        let served = |node: &&mut NodeOf<F>| node.transport.counters().reads_served;
        let served: u64 = frontends.iter().map(served).sum();
        assert!(served <= backend.transport.counters().reads_done + 2, "the window is two inputs");
        backend.reads().len() as u32 == 3 * EACH
    });
    let mut served = [0i32; 3];
    for done in backend.reads() {
        assert_eq!(done.status, ReadStatus::Done);
        assert!(done.tag == u64::from(done.row.row()) && holds(&done.row, done.tag));
        served[done.tag as usize / EACH as usize] += 1;
        assert!(served.iter().max().unwrap() - served.iter().min().unwrap() <= 2, "{served:?}");
    }
    assert_eq!(sets.map(|set| set.leases()), [0; 3]);
}

pub(crate) fn credit_is_held_until_the_input_is_here<F: Fabric>() {
    const BYTES: u32 = 1_000;
    let (mut a, mut b) = pair::<F>();
    let set = slabs(9, 1, BYTES);
    b.transport.expose(set.clone()).unwrap();
    let (conn, _) = open(&mut a, &mut b);
    let buffer = landing(&mut a, BYTES as usize);
    a.transport.post_reads(&mut vec![read(conn, submit(&set, 0), &buffer, 0, BYTES)]);
    assert_eq!(a.transport.counters().credit_held, 0, "not asked for yet");
    a.transport.flush();
    assert_eq!(a.transport.counters().credit_held, u64::from(BYTES) + 8, "and the trailer");
    settle([&mut a, &mut b], |[a, _]| a.reads().len() == 1);
    assert_eq!(a.transport.counters().credit_held, 0);
}

/// Inputs shorter than their slots are read with their own lengths, whatever was in the slot before, and not with
/// another length.
pub(crate) fn inputs_of_their_own_lengths<F: Fabric>() {
    const BYTES: u32 = 40_000;
    let (mut a, mut b) = pair::<F>();
    let set = slabs(9, 2, BYTES);
    b.transport.expose(set.clone()).unwrap();
    let (conn, _) = open(&mut a, &mut b);
    let buffer = landing(&mut a, 2 * BYTES as usize);
    // 16 KiB is the longest row that counts as short.
    for (seed, len) in [(1, BYTES), (2, 13), (3, 30_001), (4, 1), (5, BYTES), (6, 16 * 1024)] {
        let task = submit_some(&set, seed, len);
        let mut wrong = read(conn, task, &buffer, 1, BYTES);
        wrong.row.truncate(if len == BYTES { len - 1 } else { len + 1 });
        let mut right = read(conn, task, &buffer, 0, BYTES);
        right.row.truncate(len);
        a.transport.post_reads(&mut vec![right, wrong]);
        settle([&mut a, &mut b], |[a, _]| a.reads().len() == 2);
        for done in a.reads() {
            match done.tag {
                0 => assert!(done.status == ReadStatus::Done && holds(&done.row, seed), "{len}"),
                _ => assert_ne!(done.status, ReadStatus::Done, "{len} with another length"),
            }
        }
        assert!(!a.transport.owes(conn), "what was asked for has come");
        // Answered, the slot is free at once, also where a READ may be under way unseen.
        a.transport.reply(conn, &result(task), &[7; 16]).unwrap();
        settle([&mut a, &mut b], |[_, b]| b.seen.iter().any(|s| matches!(s, Seen::Result(..))));
        a.seen.clear();
        b.seen.clear();
        assert!(set.complete(task));
        drop(set.output(task).expect("it has landed"));
    }
}

/// A batch's memory is exchanged for larger memory between two READs.
pub(crate) fn memory_that_is_exchanged<F: Fabric>() {
    const BYTES: u32 = 40_000;
    let (mut a, mut b) = pair::<F>();
    let set = slabs(9, 2, BYTES);
    b.transport.expose(set.clone()).unwrap();
    let (conn, _) = open(&mut a, &mut b);
    let mut buffer = landing(&mut a, BYTES as usize);
    for (rows, seed) in [(1, 1), (2, 2)] {
        let task = submit(&set, seed);
        a.transport.post_reads(&mut vec![read(conn, task, &buffer, rows - 1, BYTES)]);
        settle([&mut a, &mut b], |[a, _]| a.reads().len() == 1);
        assert!(a.reads().iter().all(|d| d.status == ReadStatus::Done && holds(&d.row, seed)));
        a.seen.clear();
        let larger = landing(&mut a, 2 * BYTES as usize);
        a.transport.release(&std::mem::replace(&mut buffer, larger));
        assert_eq!(a.transport.counters().memory_bytes, buffer.memory_bytes().0);
    }
}

pub(crate) fn more_reads_than_the_depth<F: Fabric>() {
    const COUNT: u32 = READ_DEPTH as u32 + 500;
    let (mut a, mut b) = pair::<F>();
    let set = slabs(9, COUNT, 8);
    b.transport.expose(set.clone()).unwrap();
    let (conn, _) = open(&mut a, &mut b);
    let buffers = [(); 2].map(|()| landing(&mut a, 1024 * 8));
    let mut reads: Vec<_> = (0..COUNT)
        .map(|i| {
            read(conn, submit(&set, u64::from(i % 1024)), &buffers[i as usize / 1024], i % 1024, 8)
        })
        .collect();
    a.transport.post_reads(&mut reads);
    settle([&mut a, &mut b], |[a, _]| a.reads().len() as u32 == COUNT);
    let good = |done: &&ReadDone| done.status == ReadStatus::Done && holds(&done.row, done.tag);
    assert!(a.reads().iter().all(good));
    assert_eq!(a.transport.counters().reads_done, u64::from(COUNT));
    assert_eq!(set.leases(), 0);
}

/// Inputs larger than any socket buffer leave and arrive in pieces.
pub(crate) fn large_inputs<F: Fabric>() {
    const BYTES: u32 = 6 << 20;
    let whole = TcpConfig { credit_bytes: 0, ..TcpConfig::default() };
    let (mut a, mut b) = nodes::<F>(whole, whole);
    let set = slabs(9, 3, BYTES);
    b.transport.expose(set.clone()).unwrap();
    let (conn, _) = open(&mut a, &mut b);
    let buffer = landing(&mut a, 3 * BYTES as usize);
    let mut reads =
        [0, 1, 2].map(|row| read(conn, submit(&set, u64::from(row)), &buffer, row, BYTES)).into();
    a.transport.post_reads(&mut reads);
    settle([&mut a, &mut b], |[a, _]| a.reads().len() == 3);
    let good = |done: &&ReadDone| done.status == ReadStatus::Done && holds(&done.row, done.tag);
    assert!(a.reads().iter().all(good));
    assert_eq!(set.leases(), 0);
}

pub(crate) fn refused_reads<F: Fabric>() {
    let (mut a, mut b) = pair::<F>();
    let (conn, _) = open(&mut a, &mut b);
    let buffer = landing(&mut a, 4096);
    // Nothing is exposed yet.
    let set = slabs(9, 1, 100);
    let old = submit(&set, 1);
    a.transport.post_reads(&mut vec![read(conn, old, &buffer, 0, 100)]);
    settle([&mut a, &mut b], |[a, _]| a.reads().len() == 1);
    b.transport.expose(set.clone()).unwrap();
    assert!(set.complete(old));
    set.release(old);
    let task = submit(&set, 2);
    let elsewhere = TaskId::new(FrontendId(9), 1, 0);
    let tasks = [old, elsewhere, task];
    let mut reads: Vec<_> =
        (1..).zip(tasks).map(|(row, task)| read(conn, task, &buffer, row, 100)).collect();
    a.transport.post_reads(&mut reads);
    settle([&mut a, &mut b], |[a, _]| a.reads().len() == 4);
    let statuses: Vec<_> = a.reads().iter().map(|done| done.status).collect();
    let (refused, stale) = (ReadStatus::Refused, ReadStatus::Stale);
    assert_eq!(statuses, [refused, stale, refused, ReadStatus::Done]);
    a.seen.clear();
    a.transport.post_reads(&mut vec![read(conn, task, &buffer, 0, 99)]);
    settle([&mut a, &mut b], |[a, _]| a.reads().len() == 1);
    assert_eq!(a.reads()[0].status, ReadStatus::Refused, "another size");
    let counters = b.transport.counters();
    assert_eq!((counters.reads_served, counters.reads_refused), (1, 4));
    assert_eq!((a.transport.counters().reads_done, a.transport.counters().reads_failed), (1, 4));
}

/// Every READ completes exactly once, before the connection's last event, and gives its row back.
pub(crate) fn peer_dies_under_reads<F: Fabric>() {
    let tiny = TcpConfig { credit_bytes: 100, ..TcpConfig::default() };
    let (mut a, mut b) = nodes::<F>(tiny, tiny);
    let set = slabs(9, 4, 100);
    b.transport.expose(set.clone()).unwrap();
    let (conn, _) = open(&mut a, &mut b);
    let buffer = landing(&mut a, 400);
    let mut reads: Vec<_> =
        (0..4).map(|row| read(conn, submit(&set, 0), &buffer, row, 100)).collect();
    a.transport.post_reads(&mut reads);
    a.transport.flush();
    drop(b);
    settle([&mut a], |[a]| !a.closed().is_empty());
    let lost: Vec<_> = a.reads().iter().map(|done| done.status).collect();
    assert_eq!((lost, a.transport.counters().credit_held), (vec![ReadStatus::PeerLost; 4], 0));
    assert!(matches!(a.seen.last(), Some(Seen::Closed(..))));
    a.seen.clear();
    a.transport.post_reads(&mut vec![read(conn, TaskId(0), &buffer, 2, 100)]);
    settle([&mut a], |[a]| !a.reads().is_empty());
    assert_eq!(a.reads()[0].status, ReadStatus::PeerLost);
    a.seen.clear();
    assert!(buffer.rows(4, 100).is_some(), "every row came back");
    assert_eq!(set.leases(), 0);
}

/// Of several that were asked for, on two connections, the one that is meant.
pub(crate) fn an_abort_names_its_read<F: Fabric>() {
    let (mut a, mut b) = pair::<F>();
    let set = slabs(9, 4, 100);
    b.transport.expose(set.clone()).unwrap();
    let conns = [(); 2].map(|()| open(&mut a, &mut b).0);
    let buffers = conns.map(|_| landing(&mut a, 300));
    let tasks = [0, 1, 2, 3].map(|seed| submit(&set, seed));
    let mut reads = [(0, 0), (0, 1), (1, 0), (1, 1)]
        .map(|(peer, row)| (conns[peer], &buffers[peer], row))
        .into_iter()
        .zip(tasks)
        .map(|((conn, buffer, row), task)| read(conn, task, buffer, row, 100))
        .collect();
    a.transport.post_reads(&mut reads);
    a.transport.flush();
    a.transport.abort_read(conns[1], 1);
    a.transport.abort_read(conns[1], 1);
    a.transport.abort_read(conns[0], 99);
    settle([&mut a, &mut b], |[a, _]| a.reads().len() == 4);
    let status = |task| a.reads().iter().find(|done| done.task == task).map(|done| done.status);
    let (done, aborted) = (Some(ReadStatus::Done), Some(ReadStatus::Aborted));
    assert_eq!(tasks.map(status), [done, done, done, aborted]);
}

/// An aborted READ gives its row back whether it was asked for or waits, and its credit returns.
pub(crate) fn aborted_reads<F: Fabric>() {
    let tiny = TcpConfig { credit_bytes: 100, ..TcpConfig::default() };
    let (mut a, mut b) = nodes::<F>(tiny, tiny);
    let set = slabs(9, 3, 100);
    b.transport.expose(set.clone()).unwrap();
    let (conn, _) = open(&mut a, &mut b);
    let buffer = landing(&mut a, 300);
    let tasks = [0, 1, 2].map(|seed| submit(&set, seed));
    let mut reads = [0, 1, 2].map(|i| read(conn, tasks[i], &buffer, i as u32, 100)).into();
    a.transport.post_reads(&mut reads);
    a.transport.flush();
    a.transport.abort_read(conn, 0);
    a.transport.abort_read(conn, 2);
    a.transport.abort_read(conn, 2);
    a.transport.abort_read(conn, 99);
    settle([&mut a, &mut b], |[a, _]| a.reads().len() == 3);
    let ended: Vec<_> = a.reads().iter().map(|done| (done.tag, done.status)).collect();
    let expected = [(0, ReadStatus::Aborted), (2, ReadStatus::Aborted), (1, ReadStatus::Done)];
    assert_eq!(ended, expected);
    assert!(holds(&a.reads()[2].row, 1));
    a.seen.clear();
    a.transport.post_reads(&mut vec![read(conn, tasks[2], &buffer, 0, 100)]);
    settle([&mut a, &mut b], |[a, _]| a.reads().len() == 1);
    assert_eq!(a.reads()[0].status, ReadStatus::Done);
    assert!(holds(&a.reads()[0].row, 2));
}

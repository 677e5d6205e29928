//! What every transport does, run over each of them.
#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod common;

use baton_core::{FrontendId, Nanos, TaskId};
use baton_rdma::wire::{BODY_MAX, DecodeError, Hello, Kind, Ping, Plan, RefuseCode, Role};
use baton_rdma::{
    CloseReason, ConnId, Identity, READ_DEPTH, ReadDone, ReadStatus, SendError, TcpConfig,
    Transport,
};
use baton_topo::Clock;
use common::{
    Fabric, Inproc, Node, OUTPUT, Seen, Tcp, Tls, Verbs, holds, landing, open, rdma_here, read,
};
use common::{refused, result, settle, slabs, submit};
use zerocopy::FromBytes;

/// Each function becomes a test per transport.
macro_rules! on_every_transport {
    ($($name:ident)*) => {
        mod tcp { $(#[test] fn $name() { super::$name::<super::Tcp>(); })* }
        mod tls { $(#[test] fn $name() { super::$name::<super::Tls>(); })* }
        mod inproc { $(#[test] fn $name() { super::$name::<super::Inproc>(); })* }
        mod verbs {
            $(#[test] fn $name() { if super::rdma_here() { super::$name::<super::Verbs>(); } })*
        }
    };
}

on_every_transport! {
    handshake
    early_messages_follow_the_handshake
    messages_arrive_in_order
    what_cannot_be_sent
    closing_says_why
    nobody_there
    too_many_connections
    no_answer_to_the_hello
    a_peer_that_does_not_read
    pull_through_a_tiny_window
    more_reads_than_the_depth
    large_inputs
    peer_dies_under_reads
    aborted_reads
    answers_land
    answers_that_do_not_belong
    waker_ends_a_wait
    wait_keeps_time
    two_threads
}

/// Over verbs the slabs are told once, when a peer is linked, and nobody serves READs: see `verbs.rs`.
mod tcp_refused {
    #[test]
    fn refused_reads() {
        super::refused_reads::<super::Tcp>();
    }
}

mod tls_refused {
    #[test]
    fn refused_reads() {
        super::refused_reads::<super::Tls>();
    }
}

mod inproc_refused {
    #[test]
    fn refused_reads() {
        super::refused_reads::<super::Inproc>();
    }
}

type NodeOf<F> = Node<<F as Fabric>::Transport>;

fn nodes<F: Fabric>(a: TcpConfig, b: TcpConfig) -> (NodeOf<F>, NodeOf<F>) {
    let fabric = F::default();
    let backend = fabric.endpoint(Role::Backend, 5, a);
    (Node::new(backend), Node::new(fabric.endpoint(Role::Frontend, 9, b)))
}

fn pair<F: Fabric>() -> (NodeOf<F>, NodeOf<F>) {
    nodes::<F>(TcpConfig::default(), TcpConfig::default())
}

fn handshake<F: Fabric>() {
    let (mut a, mut b) = pair::<F>();
    b.transport.identify(Identity { role: Role::ModelThread, member: 4 });
    let (conn, accepted) = open(&mut a, &mut b);
    let (id, peer) = a.opened()[0];
    assert_eq!((id, peer.role, peer.member, peer.accepted), (conn, Role::ModelThread, 4, false));
    assert_eq!(peer.addr, b.transport.local_addr());
    let (id, peer) = b.opened()[0];
    assert_eq!((id, peer.role, peer.member, peer.token), (accepted, Role::Backend, 5, 77));
    assert!(peer.accepted);
    assert_eq!((a.transport.counters().opened, b.transport.counters().opened), (1, 1));
}

/// Messages may be sent at once, and the acceptor's owner sees the opening in a poll of its own: it
/// can still turn the peer away before anything else of it is acted on.
fn early_messages_follow_the_handshake<F: Fabric>() {
    let (mut a, mut b) = pair::<F>();
    let conn = a.connect(b.transport.local_addr());
    a.ping(conn, 1);
    settle([&mut a, &mut b], |[_, b]| !b.opened().is_empty());
    assert!(b.pings().is_empty());
    settle([&mut a, &mut b], |[_, b]| b.pings() == [1]);
}

fn messages_arrive_in_order<F: Fabric>() {
    const COUNT: u64 = 5_000;
    let (mut a, mut b) = pair::<F>();
    let (to_b, to_a) = open(&mut a, &mut b);
    let tasks: Vec<u8> = (0..BODY_MAX - size_of::<Plan>()).map(|i| i as u8).collect();
    let plan = Plan {
        batch: 1.into(),
        exec_at_ns: 2.into(),
        invalid_after_ns: 3.into(),
        model: 4.into(),
        gpu: 5.into(),
    };
    for number in 0..COUNT {
        a.ping(to_b, number);
        b.ping(to_a, number + COUNT);
        if number % 500 == 0 {
            a.transport.send(to_b, &plan, &tasks).unwrap();
        }
    }
    settle([&mut a, &mut b], |[a, b]| {
        a.pings().len() as u64 == COUNT && b.pings().len() as u64 == COUNT
    });
    assert!(b.pings().into_iter().eq(0..COUNT) && a.pings().into_iter().eq(COUNT..2 * COUNT));
    let plans = b.seen.iter().filter(|seen| match seen {
        Seen::Plan(_, ids) => ids.iter().flat_map(|id| id.to_le_bytes()).eq(tasks.iter().copied()),
        _ => false,
    });
    assert_eq!(plans.count() as u64, COUNT / 500);
    assert_eq!(a.transport.counters().messages_out, COUNT + COUNT / 500);
    assert_eq!(b.transport.counters().messages_in, COUNT + COUNT / 500);
}

fn what_cannot_be_sent<F: Fabric>() {
    let (mut a, mut b) = pair::<F>();
    let (conn, _) = open(&mut a, &mut b);
    let ping = Ping { sent_ns: 1.into() };
    let send = |a: &mut NodeOf<F>, conn, tail| a.transport.send(conn, &ping, tail);
    assert_eq!(send(&mut a, conn, &[0; BODY_MAX]), Err(SendError::TooLong));
    assert_eq!(send(&mut a, ConnId(12345), &[]), Err(SendError::Closed));
    a.transport.close(ConnId(12345), RefuseCode::Shutdown, "nobody");
    a.transport.close(conn, RefuseCode::Shutdown, "bye");
    assert_eq!(send(&mut a, conn, &[]), Err(SendError::Closed));
}

fn closing_says_why<F: Fabric>() {
    let (mut a, mut b) = pair::<F>();
    let (to_b, to_a) = open(&mut a, &mut b);
    b.ping(to_a, 3);
    b.transport.close(to_a, RefuseCode::BadRequest, "model 7 is unknown");
    settle([&mut a, &mut b], |[a, b]| !a.closed().is_empty() && !b.closed().is_empty());
    assert_eq!(a.pings(), [3], "what was queued before still arrives");
    assert_eq!(b.closed(), [(to_a, CloseReason::Local)]);
    let (conn, reason) = &a.closed()[0];
    assert_eq!(*conn, to_b);
    assert_eq!(refused(reason), Some((RefuseCode::BadRequest, "model 7 is unknown")));
    assert_eq!((a.transport.counters().closed, b.transport.counters().closed), (1, 1));
}

fn nobody_there<F: Fabric>() {
    let (mut a, b) = pair::<F>();
    let addr = b.transport.local_addr();
    drop(b);
    let conn = a.connect(addr);
    settle([&mut a], |[a]| !a.closed().is_empty());
    let refused = CloseReason::Reset(std::io::ErrorKind::ConnectionRefused);
    assert_eq!(a.closed(), [(conn, refused)]);
}

fn too_many_connections<F: Fabric>() {
    let full = TcpConfig { connections_max: 1, ..TcpConfig::default() };
    let (mut a, mut b) = nodes::<F>(TcpConfig::default(), full);
    open(&mut a, &mut b);
    let addr = a.transport.local_addr();
    assert!(b.transport.connect(addr, Hello::new(Role::Backend, 0, 0)).is_err());
    let second = a.connect(b.transport.local_addr());
    settle([&mut a, &mut b], |[a, _]| !a.closed().is_empty());
    let (conn, reason) = &a.closed()[0];
    assert_eq!(*conn, second);
    let told = refused(reason).map(|(code, _)| code);
    assert_eq!(told, F::TELLS_WHEN_FULL.then_some(RefuseCode::Limit), "{reason}");
    assert_eq!(b.transport.counters().refused, 1);
}

fn no_answer_to_the_hello<F: Fabric>() {
    let (mut a, b) = pair::<F>();
    let conn = a.connect(b.transport.local_addr());
    a.poll();
    a.now = a.now + TcpConfig::default().handshake_timeout;
    settle([&mut a], |[a]| !a.closed().is_empty());
    assert_eq!(a.closed(), [(conn, CloseReason::HandshakeTimeout)]);
    assert_eq!(a.transport.counters().refused, 1);
}

/// What does not fit is refused and counted, what was taken arrives, and then there is room again.
fn a_peer_that_does_not_read<F: Fabric>() {
    let small = TcpConfig { send_queue_bytes: 100_000, ..TcpConfig::default() };
    let (mut a, mut b) = nodes::<F>(small, small);
    let (conn, _) = open(&mut a, &mut b);
    let tail = vec![9; 8 * 1000];
    let mut taken = 0;
    let plan = Plan::read_from_bytes(&[0; size_of::<Plan>()]).unwrap();
    let full = (0..10_000).find_map(|_| {
        let sent = a.transport.send(conn, &plan, &tail);
        a.transport.flush();
        taken += usize::from(sent.is_ok());
        sent.err()
    });
    assert_eq!((full, a.transport.counters().send_full), (Some(SendError::Full), 1));
    let arrived =
        |b: &NodeOf<F>| b.seen.iter().filter(|seen| matches!(seen, Seen::Plan(..))).count();
    settle([&mut a, &mut b], |[_, b]| arrived(b) == taken);
    assert_eq!(a.transport.send(conn, &plan, &tail), Ok(()));
    settle([&mut a, &mut b], |[_, b]| arrived(b) == taken + 1);
}

/// Many inputs from three frontends through a window of two and a half: all arrive, never more than
/// two are on their way, and no frontend is served twice while another waits.
fn pull_through_a_tiny_window<F: Fabric>() {
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

fn more_reads_than_the_depth<F: Fabric>() {
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
fn large_inputs<F: Fabric>() {
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

fn refused_reads<F: Fabric>() {
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
fn peer_dies_under_reads<F: Fabric>() {
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
    assert_eq!(lost, [ReadStatus::PeerLost; 4]);
    assert!(matches!(a.seen.last(), Some(Seen::Closed(..))));
    a.seen.clear();
    a.transport.post_reads(&mut vec![read(conn, TaskId(0), &buffer, 2, 100)]);
    settle([&mut a], |[a]| !a.reads().is_empty());
    assert_eq!(a.reads()[0].status, ReadStatus::PeerLost);
    a.seen.clear();
    assert!(buffer.rows(4, 100).is_some(), "every row came back");
    assert_eq!(set.leases(), 0);
}

/// An aborted READ gives its row back whether it was asked for or waits, and its credit returns.
fn aborted_reads<F: Fabric>() {
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

fn answers_land<F: Fabric>() {
    let (mut a, mut b) = pair::<F>();
    let set = slabs(9, 2, 8);
    b.transport.expose(set.clone()).unwrap();
    let (conn, accepted) = open(&mut a, &mut b);
    let tasks = [submit(&set, 0), submit(&set, 1)];
    a.transport.reply(conn, &result(tasks[0]), b"forty-two").unwrap();
    a.transport.reply(conn, &result(tasks[1]), b"").unwrap();
    settle([&mut a, &mut b], |[_, b]| b.seen.len() == 3);
    for (i, len) in [(0, 9), (1, 0)] {
        let Seen::Result(from, landed, bytes) = &b.seen[i + 1] else { panic!("{:?}", b.seen) };
        assert_eq!((*from, *landed, *bytes), (accepted, result(tasks[i]), len));
        assert!(set.complete(tasks[i]));
    }
    assert_eq!(&set.output(tasks[0]).unwrap()[..], b"forty-two");
    assert_eq!(&set.output(tasks[1]).unwrap()[..], b"");
    assert_eq!(set.in_use(), 0);
}

fn answers_that_do_not_belong<F: Fabric>() {
    let (mut a, mut b) = pair::<F>();
    // Three: over verbs a slot without an answer rests before it is used again.
    let set = slabs(9, 3, 8);
    b.transport.expose(set.clone()).unwrap();
    let (conn, accepted) = open(&mut a, &mut b);
    let (task, decided) = (submit(&set, 0), submit(&set, 1));
    assert!(set.complete(decided));
    for _ in 0..2 {
        a.transport.reply(conn, &result(task), b"once").unwrap();
        a.transport.reply(conn, &result(decided), b"late").unwrap();
    }
    a.ping(conn, 1);
    settle([&mut a, &mut b], |[_, b]| b.pings() == [1]);
    let landed = b.seen.iter().filter(|seen| matches!(seen, Seen::Result(..)));
    assert_eq!((landed.count(), b.transport.counters().results_stale), (1, 3));
    assert!(set.output(decided).is_none());

    // Longer than the output slot: not an answer of this model.
    set.release(decided);
    let another = submit(&set, 2);
    a.transport.reply(conn, &result(another), &[0; OUTPUT as usize + 1]).unwrap();
    settle([&mut a, &mut b], |[a, b]| !a.closed().is_empty() && !b.closed().is_empty());
    let malformed = CloseReason::Malformed(DecodeError::PayloadLength);
    assert_eq!(b.closed(), [(accepted, malformed)]);
    assert_eq!(refused(&a.closed()[0].1).unwrap().0, RefuseCode::Malformed);
    assert!(set.landing(another).is_some(), "the slot is open for the right answer");

    // To someone who exposes nothing.
    let (to_a, conn) = open(&mut b, &mut a);
    b.transport.reply(to_a, &result(task), b"what?").unwrap();
    settle([&mut a, &mut b], |[a, _]| a.closed().len() == 2);
    assert_eq!(a.closed()[1], (conn, CloseReason::Unexpected(Kind::TaskResult)));
    assert_eq!(a.transport.counters().malformed, 1);
}

/// A wake-up counts even if it comes just before the wait.
fn waker_ends_a_wait<F: Fabric>() {
    let (mut a, _b) = pair::<F>();
    a.poll();
    let (waker, clock) = (a.transport.waker(), Clock::start());
    for early in [true, false] {
        waker.prepare_sleep();
        let remote = waker.clone();
        let thread = std::thread::spawn(move || remote.wake());
        if early {
            thread.join().unwrap();
            a.transport.wait(Some(Nanos::from_millis(60_000)));
        } else {
            a.transport.wait(Some(Nanos::from_millis(60_000)));
            thread.join().unwrap();
        }
        waker.awake();
        a.poll();
    }
    assert!(clock.now() < Nanos::from_millis(50_000), "woken, not timed out");
}

fn wait_keeps_time<F: Fabric>() {
    let (mut a, _b) = pair::<F>();
    a.poll();
    let clock = Clock::start();
    let best = (0..20).map(|_| {
        let before = clock.now();
        a.transport.wait(Some(Nanos::from_micros(300)));
        clock.now() - before
    });
    // The best of some, because the machine may be busy; a millisecond timer would never make it.
    let best = best.min().unwrap();
    assert!(best >= Nanos::from_micros(300) && best < Nanos::from_micros(900), "{best:?}");
}

/// A ball between two threads that block in `wait` and are woken by what arrives.
fn two_threads<F: Fabric>() {
    const ROUNDS: u64 = 500;
    let (mut a, mut b) = pair::<F>();
    let (conn, accepted) = open(&mut a, &mut b);
    let other = std::thread::spawn(move || rally(b, accepted, ROUNDS));
    a.ping(conn, 0);
    let returned = rally(a, conn, ROUNDS);
    assert!(other.join().unwrap() && returned);
}

/// Returns every ball with one more on it; true once the last ball has been sent or received.
fn rally<T: Transport>(mut node: Node<T>, conn: ConnId, rounds: u64) -> bool {
    node.transport.flush();
    for _ in 0..10 * rounds {
        let ball = if node.poll() > 0 { node.pings().pop() } else { None };
        node.seen.clear();
        let Some(ball) = ball else {
            node.transport.wait(Some(Nanos::from_millis(1_000)));
            continue;
        };
        if ball < rounds {
            node.ping(conn, ball + 1);
            node.transport.flush();
        }
        if ball + 1 >= rounds {
            return true;
        }
    }
    false
}

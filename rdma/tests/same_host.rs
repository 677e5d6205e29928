//! Inputs out of shared memory: when they come so, and when over TCP.
#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod common;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use baton_rdma::wire::{Kind, Role, SAME_HOST_SINCE, VERSION_MIN, Versions};
use baton_rdma::{
    Backing, BatchBuffer, ConnId, Identity, MixedTransport, ReadDone, ReadStatus, SlabSet,
    TcpConfig, TcpTransport, Transport, TransportChoice, TransportCounters,
};
use baton_types::TaskId;
use common::{
    Fabric, Node, SameHost, Seen, holds, landing, mixed, open, read, settle, share_slabs, slabs,
    slabs_at, submit, verbs_config,
};

const BYTES: u32 = 3_000;

type Side = Node<MixedTransport>;

fn side(role: Role) -> Side {
    Node::new(SameHost.endpoint(role, 9, TcpConfig::default()))
}

/// A backend that is connected to a frontend, and what it reads into.
struct Pair {
    backend: Side,
    frontend: Side,
    conn: ConnId,
    buffer: Arc<BatchBuffer>,
}

impl Pair {
    fn over(mut backend: Side, mut frontend: Side, rows: u32) -> Self {
        let (conn, _) = open(&mut backend, &mut frontend);
        let buffer = landing(&mut backend, (rows * BYTES) as usize);
        Self { backend, frontend, conn, buffer }
    }

    /// With this set exposed.
    fn sharing(set: &Arc<SlabSet>) -> Self {
        let (backend, mut frontend) = (side(Role::Backend), side(Role::Frontend));
        frontend.transport.expose(set.clone()).unwrap();
        Self::over(backend, frontend, 4)
    }

    /// How a READ ends, and whether it brings the input of this seed.
    fn pull(&mut self, task: TaskId, seed: u64) -> (ReadStatus, bool) {
        self.backend.seen.clear();
        let read = read(self.conn, task, &self.buffer, 0, BYTES);
        self.backend.transport.post_reads(&mut vec![read]);
        settle([&mut self.backend, &mut self.frontend], |[backend, _]| !backend.reads().is_empty());
        let seen = (self.backend.reads()[0].status, holds(&self.backend.reads()[0].row, seed));
        self.backend.seen.clear();
        seen
    }

    /// READs out of shared memory, and those that the frontend has served.
    fn counts(&self) -> (u64, u64) {
        let [backend, frontend] =
            [&self.backend, &self.frontend].map(|side| side.transport.counters());
        (backend.reads_same_host, frontend.reads_served)
    }

    /// A few passes of both sides.
    fn pass(&mut self) {
        for _ in 0..8 {
            self.frontend.poll();
            self.backend.poll();
        }
    }
}

fn shared(first_slot: u32, slots: u32) -> Arc<SlabSet> {
    share_slabs();
    slabs_at(first_slot, 9, slots, BYTES, 0)
}

#[test]
fn inputs_of_this_host_are_copied_and_their_frontend_does_nothing() {
    let set = shared(0, 2);
    let mut pair = Pair::sharing(&set);
    assert_eq!(pair.frontend.transport.backing(), Backing::Shared);
    for seed in 0..3 {
        let task = submit(&set, seed);
        assert_eq!(pair.pull(task, seed), (ReadStatus::Done, true));
        assert!(set.complete(task));
        set.release(task);
    }
    assert_eq!(pair.counts(), (3, 0));
    let [mine, theirs] = [&pair.backend, &pair.frontend].map(|side| side.transport.counters());
    assert_eq!((mine.links_same_host, theirs.links_same_host), (1, 1));
    assert_eq!((mine.reads_done, mine.reads_failed, mine.credit_held), (3, 0, 0));
    assert_eq!((mine.messages_in, theirs.messages_in), (0, 0), "the offer is the transport's own");
}

#[test]
fn what_is_not_there_is_asked_for_over_tcp() {
    let set = shared(0, 2);
    let mut pair = Pair::sharing(&set);
    let stale = submit(&set, 1);
    assert!(set.complete(stale));
    set.release(stale);
    assert_eq!(pair.pull(stale, 1).0, ReadStatus::Stale);
    let ahead = set.acquire(common::MODEL).unwrap().submit_ahead();
    let task = ahead.task();
    assert_eq!(pair.pull(task, 1).0, ReadStatus::Stale, "it is not written");
    assert!(set.is_missed(task), "the frontend knows that a batch goes without it");
    let beyond = TaskId::new(task.frontend(), 7, 0);
    assert_eq!(pair.pull(beyond, 1).0, ReadStatus::Refused);
    assert_eq!(pair.counts(), (0, 0));
    assert_eq!(pair.frontend.transport.counters().reads_refused, 3);
}

#[test]
fn private_memory_is_read_over_tcp() {
    let set = slabs(9, 1, BYTES);
    let mut pair = Pair::sharing(&set);
    let task = submit(&set, 5);
    assert_eq!(pair.pull(task, 5), (ReadStatus::Done, true));
    assert_eq!(pair.counts(), (0, 1));
    let again = read(pair.conn, task, &pair.buffer, 0, BYTES);
    let Pair { backend, frontend, conn, .. } = &mut pair;
    backend.transport.post_reads(&mut vec![again]);
    backend.transport.flush();
    assert!(!backend.transport.owes(*conn), "it has time");
    backend.transport.abort_read(*conn, 0);
    assert!(backend.transport.owes(*conn), "its answer still comes");
    settle([backend, frontend], |[backend, _]| !backend.transport.owes(*conn));
}

#[test]
fn a_peer_that_is_not_trusted_gets_nothing() {
    let set = shared(0, 1);
    let (mut backend, mut frontend) = (side(Role::Backend), side(Role::Frontend));
    frontend.transport.expose(set.clone()).unwrap();
    let conn = backend.connect(frontend.transport.local_addr());
    settle([&mut backend, &mut frontend], |[backend, frontend]| {
        !backend.opened().is_empty() && !frontend.opened().is_empty()
    });
    let accepted = frontend.opened()[0].0;
    let buffer = landing(&mut backend, BYTES as usize);
    let mut pair = Pair { backend, frontend, conn, buffer };
    pair.pass();
    assert_eq!(pair.backend.transport.counters().links_same_host, 0);
    pair.frontend.transport.trust(accepted);
    pair.pass();
    assert_eq!(pair.backend.transport.counters().links_same_host, 1);
    let task = submit(&set, 1);
    assert_eq!(pair.pull(task, 1), (ReadStatus::Done, true));
    assert_eq!(pair.counts(), (1, 0));
}

#[test]
fn slabs_come_and_go_while_peers_are_connected() {
    let first = shared(0, 2);
    let mut pair = Pair::sharing(&first);
    let (far, near) = (shared(10, 2), shared(4, 2));
    for (set, seed) in [(&far, 2), (&near, 3), (&first, 4)] {
        if seed < 4 {
            pair.frontend.transport.expose(set.clone()).unwrap();
            pair.pass();
        }
        let task = submit(set, seed);
        assert_eq!(pair.pull(task, seed), (ReadStatus::Done, true));
        set.complete(task);
        set.release(task);
    }
    assert_eq!(pair.counts(), (3, 0));
    let memory =
        || std::fs::read_to_string("/proc/self/maps").unwrap().matches("baton-inputs").count();
    let before = memory();
    assert!(near.retire());
    pair.frontend.transport.withdraw(&near);
    drop(near);
    pair.pass();
    assert_eq!(memory(), before - 2, "neither side maps it");
    let again = slabs_at(4, 9, 2, BYTES, 50);
    pair.frontend.transport.expose(again.clone()).unwrap();
    pair.pass();
    let task = submit(&again, 6);
    assert_eq!(pair.pull(task, 6), (ReadStatus::Done, true));
    assert_eq!(pair.counts(), (4, 0));
}

/// Slots are numbered by each frontend for itself.
#[test]
fn each_frontend_has_its_own_memory() {
    let sets = [1, 2].map(|_| shared(0, 1));
    let mut backend = side(Role::Backend);
    let buffer = landing(&mut backend, 2 * BYTES as usize);
    let mut frontends = sets.each_ref().map(|set| {
        let mut frontend = side(Role::Frontend);
        frontend.transport.expose(set.clone()).unwrap();
        frontend
    });
    let conns = frontends.each_mut().map(|frontend| open(&mut backend, frontend).0);
    let tasks = [(&sets[0], 1), (&sets[1], 2)].map(|(set, seed)| submit(set, seed));
    assert_eq!(tasks[0], tasks[1], "no one could tell them apart by their names");
    let mut reads = vec![
        read(conns[1], tasks[1], &buffer, 1, BYTES),
        read(conns[0], tasks[0], &buffer, 0, BYTES),
    ];
    backend.transport.post_reads(&mut reads);
    backend.poll();
    let right = |done: &&ReadDone| holds(&done.row, done.tag + 1);
    assert!(backend.reads().len() == 2 && backend.reads().iter().all(right));
    assert_eq!(backend.transport.counters().reads_same_host, 2);
}

/// More slabs than a datagram carries, and than the socket's queue holds.
#[test]
fn any_number_of_slabs() {
    const SLABS: u32 = 700;
    let (backend, mut frontend) = (side(Role::Backend), side(Role::Frontend));
    let sets: Vec<_> = (0..SLABS).map(|at| shared(at * 2, 1)).collect();
    sets.iter().for_each(|set| frontend.transport.expose(set.clone()).unwrap());
    let mut pair = Pair::over(backend, frontend, 1);
    (0..4).for_each(|_| pair.pass());
    for (seed, set) in (0..).zip(&sets) {
        let task = submit(set, seed);
        assert_eq!(pair.pull(task, seed), (ReadStatus::Done, true), "slab {seed}");
    }
    assert_eq!(pair.counts(), (u64::from(SLABS), 0));
}

/// A pass copies a bounded number of bytes, so that messages do not wait for all of a large batch.
#[test]
fn a_large_batch_takes_several_passes() {
    const LARGE: u32 = 700_000;
    share_slabs();
    let set = slabs(9, 6, LARGE);
    let mut pair = Pair::sharing(&set);
    let buffer = landing(&mut pair.backend, 6 * LARGE as usize);
    let mut reads: Vec<_> =
        (0..6).map(|row| read(pair.conn, submit(&set, row.into()), &buffer, row, LARGE)).collect();
    pair.backend.transport.post_reads(&mut reads);
    let mut passes = Vec::new();
    while passes.iter().sum::<usize>() < 6 {
        assert!(pair.backend.transport.prepare_wait(None).is_none(), "there is something to do");
        passes.push(pair.backend.poll());
    }
    assert_eq!(passes, [2, 2, 2]);
    assert!(pair.backend.reads().iter().all(|done| holds(&done.row, done.tag)));
    assert!(pair.backend.transport.prepare_wait(None).is_some());
}

#[test]
fn reads_that_wait_can_be_given_up() {
    let set = shared(0, 2);
    let mut pair = Pair::sharing(&set);
    let tasks = [1, 2].map(|seed| submit(&set, seed));
    let mut reads = (0..)
        .zip(tasks)
        .map(|(row, task)| read(pair.conn, task, &pair.buffer, row, BYTES))
        .collect();
    pair.backend.transport.post_reads(&mut reads);
    pair.backend.transport.abort_read(pair.conn, 0);
    pair.backend.transport.abort_read(pair.conn, 7);
    assert!(pair.backend.transport.prepare_wait(None).is_none());
    pair.pass();
    let ends: Vec<_> = pair.backend.reads().iter().map(|done| (done.tag, done.status)).collect();
    assert_eq!(ends, [(0, ReadStatus::Aborted), (1, ReadStatus::Done)]);
    let TransportCounters { reads_done, reads_failed, .. } = pair.backend.transport.counters();
    assert_eq!((reads_done, reads_failed), (1, 1));
}

/// Every READ ends before its connection's last event.
#[test]
fn a_frontend_that_goes_takes_its_memory_along() {
    let set = shared(0, 2);
    let mut pair = Pair::sharing(&set);
    let Pair { backend, frontend, conn, buffer } = &mut pair;
    let task = submit(&set, 1);
    backend.transport.close(*conn, baton_rdma::wire::RefuseCode::Shutdown, "over");
    backend.transport.post_reads(&mut vec![read(*conn, task, buffer, 0, BYTES)]);
    settle([backend, frontend], |[backend, _]| !backend.closed().is_empty());
    assert_eq!(backend.reads().len(), 1);
    assert!(matches!(backend.seen.last(), Some(Seen::Closed(..))));
    drop(set);
    drop(pair);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("baton-inputs"), "{maps}");
}

/// The connection ends while most of a batch waits to be copied.
#[test]
fn reads_that_wait_are_lost_with_their_connection() {
    const ROWS: u32 = 24;
    const LARGE: u32 = 700_000;
    share_slabs();
    let set = slabs(9, ROWS, LARGE);
    let mut pair = Pair::sharing(&set);
    let buffer = landing(&mut pair.backend, (ROWS * LARGE) as usize);
    let mut reads: Vec<_> = (0..ROWS)
        .map(|row| read(pair.conn, submit(&set, row.into()), &buffer, row, LARGE))
        .collect();
    pair.backend.transport.post_reads(&mut reads);
    let Pair { mut backend, frontend, .. } = pair;
    drop(frontend);
    while backend.closed().is_empty() {
        backend.poll();
    }
    let lost = backend.reads().iter().filter(|done| done.status == ReadStatus::PeerLost).count();
    assert!(lost >= 2 && backend.reads().len() == ROWS as usize, "{:?}", backend.reads());
    assert!(matches!(backend.seen.last(), Some(Seen::Closed(..))));
    assert!(buffer.rows(ROWS, LARGE).is_none(), "the rows are with who has seen the READs");
    backend.seen.clear();
    assert!(buffer.rows(ROWS, LARGE).is_some(), "every row came back");
}

#[test]
fn tcp_alone_is_tcp_alone() {
    let tcp = |role| {
        let cfg = TcpConfig::default();
        Node::new(mixed(role, 9, cfg, TransportChoice::Tcp, &verbs_config()).unwrap())
    };
    for (backend, frontend) in
        [(tcp(Role::Backend), side(Role::Frontend)), (side(Role::Backend), tcp(Role::Frontend))]
    {
        let set = shared(0, 1);
        let mut frontend = frontend;
        frontend.transport.expose(set.clone()).unwrap();
        let mut pair = Pair::over(backend, frontend, 1);
        let task = submit(&set, 5);
        assert_eq!(pair.pull(task, 5), (ReadStatus::Done, true));
        assert_eq!(pair.counts(), (0, 1));
    }
}

#[test]
fn older_peers_hear_no_offer() {
    for (max, hears) in [(SAME_HOST_SINCE - 1, false), (SAME_HOST_SINCE, true)] {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let identity = Identity { role: Role::Frontend, member: 9 };
        let frontend = TcpTransport::bind(Some(any), identity, TcpConfig::default()).unwrap();
        let versions = Versions { min: VERSION_MIN, max };
        let (mut backend, mut frontend) =
            (side(Role::Backend), Node::new(frontend.claiming(versions)));
        let conn = backend.connect(frontend.transport.local_addr());
        for _ in 0..8 {
            backend.poll();
            frontend.poll();
        }
        assert!(backend.opened().iter().any(|(of, _)| *of == conn));
        let offered = |seen: &Seen| matches!(seen, Seen::Other(_, Kind::MemoryOffer));
        assert_eq!(frontend.seen.iter().any(offered), hears, "version {max}");
    }
}

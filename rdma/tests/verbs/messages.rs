//! Messages and answers over control queue pairs: that they travel there, in order, all of them, and
//! what a broken link costs. Only where there is RDMA.

use baton_rdma::wire::Ping;
use baton_rdma::{SendError, SlabSpec};

use super::*;
use crate::common::{MODEL, OUTPUT, Seen, pattern, result};

/// The numbers of the pings a node has seen.
fn pings(node: &MixedNode) -> Vec<u64> {
    node.pings()
}

pub(crate) fn answers(node: &MixedNode) -> usize {
    node.seen.iter().filter(|seen| matches!(seen, Seen::Result(..))).count()
}

impl Pair {
    /// As [`Pair::new`] with outputs of `output_bytes`, once messages travel over the queue pair.
    pub(crate) fn talking(
        ends: [&VerbsConfig; 2],
        tcp: TcpConfig,
        slots: u32,
        output_bytes: u32,
    ) -> Self {
        let end =
            |role, verbs| Node::new(mixed(role, 1, tcp, TransportChoice::Rdma, verbs).unwrap());
        let (backend, frontend) = (end(Role::Backend, ends[0]), end(Role::Frontend, ends[1]));
        let mut pair = Self::of(backend, frontend, slots, output_bytes);
        pair.started();
        pair
    }

    /// These two ends, connected; inputs of 100 bytes.
    pub(crate) fn of(
        mut backend: MixedNode,
        mut frontend: MixedNode,
        slots: u32,
        output_bytes: u32,
    ) -> Self {
        let spec = SlabSpec { model: MODEL, slots, input_bytes: 100, output_bytes };
        let slabs = SlabSet::new(&[spec], 0).unwrap();
        slabs.set_frontend(baton_types::FrontendId(1));
        frontend.transport.expose(slabs.clone()).unwrap();
        let buffer = landing(&mut backend, (slots as usize + 1) * 100);
        let (conn, _) = open(&mut backend, &mut frontend);
        Self { backend, frontend, conn, slabs, buffer }
    }

    /// Until pings go over the queue pair.
    pub(crate) fn started(&mut self) {
        let mut sent = 0;
        settle([&mut self.backend, &mut self.frontend], |[_, frontend]| {
            frontend.transport.counters().control_links == 1
        });
        while self.backend.transport.counters().messages_rdma == 0 {
            self.backend.ping(self.conn, sent);
            sent += 1;
            settle([&mut self.backend, &mut self.frontend], |[_, frontend]| {
                frontend.pings().len() as u64 == sent
            });
        }
        self.frontend.seen.clear();
    }

    pub(crate) fn both(&mut self, done: impl FnMut(&[&mut MixedNode; 2]) -> bool) {
        settle([&mut self.backend, &mut self.frontend], done);
    }
}

#[test]
fn answers_land_over_the_queue_pair() {
    if !rdma_here() {
        return;
    }
    const COUNT: u32 = 200;
    let ends = [&on_device(0), &on_device(1)];
    let mut pair = Pair::talking(ends, TcpConfig::default(), COUNT, 4_000);
    let tasks: Vec<_> = (0..COUNT).map(|seed| submit(&pair.slabs, seed.into())).collect();
    let output = |seed: u64| -> Vec<u8> { (0..4_000).map(|at| pattern(seed, at)).collect() };
    for (seed, task) in (0..).zip(&tasks) {
        pair.backend.transport.reply(pair.conn, &result(*task), &output(seed)).unwrap();
    }
    pair.both(|[_, frontend]| answers(frontend) as u32 == COUNT);
    for (seed, task) in (0..).zip(&tasks) {
        assert!(pair.slabs.complete(*task));
        assert_eq!(pair.slabs.output(*task).unwrap()[..], output(seed)[..], "answer {seed}");
    }
    let (theirs, mine) = (pair.frontend.transport.counters(), pair.backend.transport.counters());
    assert_eq!((theirs.answers_rdma, theirs.results_stale), (COUNT.into(), 0));
    assert!(mine.messages_rdma > COUNT.into() && mine.send_full == 0, "{mine:?}");
}

/// Nothing overtakes: neither what went over TCP before, nor a long answer what follows it.
#[test]
fn order_is_kept_from_the_first_message_on() {
    if !rdma_here() {
        return;
    }
    let mut backend = node(Role::Backend, TransportChoice::Rdma, &on_device(0));
    let mut frontend = node(Role::Frontend, TransportChoice::Rdma, &on_device(1));
    let spec = SlabSpec { model: MODEL, slots: 1, input_bytes: 100, output_bytes: 300_000 };
    let slabs = SlabSet::new(&[spec], 0).unwrap();
    slabs.set_frontend(baton_types::FrontendId(1));
    frontend.transport.expose(slabs.clone()).unwrap();
    let (conn, accepted) = open(&mut backend, &mut frontend);
    settle([&mut backend, &mut frontend], |[_, frontend]| {
        frontend.transport.counters().control_links == 1
    });
    // More than a pass takes in: the last of them are on their way when the queue pair brings others.
    let mut sent = 60_000;
    (0..sent).for_each(|number| backend.ping(conn, number));
    while backend.transport.counters().messages_rdma < 100 && sent < 100_000 {
        backend.ping(conn, sent);
        sent += 1;
        settle([&mut backend, &mut frontend], |_| true);
    }
    let over_tcp = sent - backend.transport.counters().messages_rdma;
    assert!(over_tcp > 0, "some went before the queue pair was there");
    let task = submit(&slabs, 1);
    let output: Vec<u8> = (0..300_000).map(|at| pattern(9, at)).collect();
    backend.transport.reply(conn, &result(task), &output).unwrap();
    backend.ping(conn, sent);
    settle([&mut backend, &mut frontend], |[_, frontend]| frontend.pings().len() as u64 > sent);
    assert_eq!(pings(&frontend), (0..=sent).collect::<Vec<_>>());
    let landed = frontend.seen.iter().position(|seen| matches!(seen, Seen::Result(..)));
    let last = frontend.seen.len() - 1;
    assert_eq!(landed, Some(last - 1), "the answer came before the ping behind it");
    assert!(slabs.complete(task));
    assert_eq!(slabs.output(task).unwrap()[..], output[..]);
    // And the other way.
    let before = frontend.transport.counters().messages_rdma;
    (0..1_000).for_each(|number| frontend.ping(accepted, number));
    settle([&mut backend, &mut frontend], |[backend, _]| backend.pings().len() == 1_000);
    assert_eq!(pings(&backend), (0..1_000).collect::<Vec<_>>());
    assert_eq!(frontend.transport.counters().messages_rdma - before, 1_000);
}

/// A peer that does not take its messages fills a bounded queue; nothing that was taken is lost.
#[test]
fn a_frontend_that_does_not_read_fills_the_queue() {
    if !rdma_here() {
        return;
    }
    let tcp = TcpConfig { send_queue_bytes: 100_000, ..TcpConfig::default() };
    let mut pair = Pair::talking([&on_device(0), &on_device(1)], tcp, 1, OUTPUT);
    let mut taken = 0;
    let refused = loop {
        match pair.backend.transport.send(pair.conn, &Ping { sent_ns: taken.into() }, &[]) {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
        pair.backend.transport.flush();
        assert!(taken < 1_000_000, "the queue has no bound");
        pair.backend.poll();
    };
    assert_eq!(refused, SendError::Full);
    assert_eq!(pair.backend.transport.counters().send_full, 1);
    pair.both(|[_, frontend]| frontend.pings().len() as u64 == taken);
    assert_eq!(pings(&pair.frontend), (0..taken).collect::<Vec<_>>());
    pair.backend.ping(pair.conn, taken);
}

/// No thread spins: a message ends its receiver's wait.
#[test]
fn a_message_ends_a_wait() {
    if !rdma_here() {
        return;
    }
    let ends = [&on_device(0), &on_device(1)];
    let mut pair = Pair::talking(ends, TcpConfig::default(), 1, OUTPUT);
    let clock = Clock::start();
    let before = clock.now();
    for number in 0..4 {
        pair.backend.ping(pair.conn, number);
        pair.backend.transport.flush();
        while pings(&pair.frontend).len() as u64 <= number {
            if pair.frontend.poll() == 0 {
                pair.frontend.transport.wait(Some(Nanos::from_millis(9_000)));
            }
        }
    }
    assert!(clock.now() - before < Nanos::from_millis(9_000), "woken, not timed out");
}

/// What a process was given to say is said before it is gone, as over TCP.
#[test]
fn a_backend_that_leaves_has_said_everything() {
    if !rdma_here() {
        return;
    }
    const COUNT: u32 = 300;
    let ends = [&on_device(0), &on_device(1)];
    let mut pair = Pair::talking(ends, TcpConfig::default(), COUNT, 2_000);
    let tasks: Vec<_> = (0..COUNT).map(|seed| submit(&pair.slabs, seed.into())).collect();
    // As many as the frontend has buffers for: it takes part in nothing until the backend is gone.
    for task in &tasks[..20] {
        pair.backend.transport.reply(pair.conn, &result(*task), &[1; 2_000]).unwrap();
    }
    let Pair { backend, mut frontend, .. } = pair;
    drop(backend);
    settle([&mut frontend], |[frontend]| !frontend.closed().is_empty());
    assert_eq!(answers(&frontend), 20);
    assert!(matches!(frontend.seen.last(), Some(Seen::Closed(..))), "its last event");
}

#[test]
fn a_frontend_that_dies_under_answers_closes_the_connection() {
    if !rdma_here() {
        return;
    }
    let ends = [&on_device(0), &on_device(1)];
    let mut pair = Pair::talking(ends, TcpConfig::default(), 100, 4_000);
    let tasks: Vec<_> = (0..100).map(|seed| submit(&pair.slabs, seed)).collect();
    for task in &tasks {
        pair.backend.transport.reply(pair.conn, &result(*task), &[1; 4_000]).unwrap();
    }
    pair.backend.transport.flush();
    let Pair { mut backend, frontend, conn, .. } = pair;
    drop(frontend);
    settle([&mut backend], |[backend]| !backend.closed().is_empty());
    let sent = backend.transport.reply(conn, &result(tasks[0]), &[]);
    assert_eq!(sent, Err(SendError::Closed));
    assert_eq!(backend.closed().len(), 1);
}

/// A side drops what comes for a connection that it has closed, and posts the buffers again:
/// after forty such ends the next backend still finds all of its share.
#[test]
fn connections_closed_under_answers_leave_every_buffer() {
    if !rdma_here() {
        return;
    }
    // Small packets, so that a SEND takes many.
    let small = |end| VerbsConfig { mtu: Some(256), ..on_device(end) };
    let ends = [&small(0), &small(1)];
    let mut pair = Pair::talking(ends, TcpConfig::default(), 40, 200_000);
    for round in 1..=40 {
        let (conn, accepted) = open(&mut pair.backend, &mut pair.frontend);
        pair.both(|ends| ends.iter().all(|end| end.transport.counters().control_links > round));
        if round % 2 == 0 {
            // Otherwise the frontend has not heard yet that messages come over the queue pair.
            pair.backend.ping(conn, round);
            pair.both(|[_, frontend]| frontend.pings().contains(&round));
        }
        let task = submit(&pair.slabs, 1);
        pair.backend.transport.reply(conn, &result(task), &[1; 200_000]).unwrap();
        pair.backend.transport.flush();
        pair.frontend.transport.close(accepted, RefuseCode::Limit, "enough");
        pair.both(|ends| ends.iter().all(|end| !end.closed().is_empty()));
        assert!(pair.slabs.complete(task));
        pair.slabs.release(task);
        pair.backend.seen.clear();
        pair.frontend.seen.clear();
    }
    let before = pair.backend.transport.counters().messages_rdma;
    let mut sent = 0;
    while pair.backend.transport.counters().messages_rdma < before + 500 {
        pair.backend.ping(pair.conn, sent);
        sent += 1;
        pair.both(|_| true);
    }
    pair.both(|[_, frontend]| frontend.pings().len() as u64 == sent);
    assert_eq!(pings(&pair.frontend), (0..sent).collect::<Vec<_>>());
}

/// A READ that is given up renews the queue pair for READs; messages have their own, and go on.
#[test]
fn messages_outlive_the_queue_pair_for_reads() {
    if !rdma_here() {
        return;
    }
    let mut pair = Pair::new(&on_device(0), &on_device(1), 2, 4 << 20);
    pair.linked();
    pair.started();
    let tasks = [0, 1].map(|seed| submit(&pair.slabs, seed));
    let before = pair.links();
    pair.post(&tasks, 4 << 20);
    pair.backend.ping(pair.conn, 1);
    pair.backend.transport.abort_read(pair.conn, 0);
    pair.backend.ping(pair.conn, 2);
    pair.settle(2);
    pair.backend.ping(pair.conn, 3);
    pair.both(|[_, frontend]| frontend.pings().len() == 3);
    assert_eq!(pings(&pair.frontend), [1, 2, 3]);
    assert_eq!(pair.links(), before + 1, "a fresh queue pair for READs");
    assert_eq!(pair.backend.transport.counters().control_links, 1);
}

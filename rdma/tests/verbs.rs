//! Inputs and messages over real queue pairs: what is read, what is refused, what a broken link costs, and who
//! falls back to TCP. Hosts without RDMA run the second half; `./x rdma` runs all of it.
#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod common;
#[path = "verbs/cut.rs"]
mod cut;
#[path = "verbs/device_memory.rs"]
mod device_memory;
#[path = "verbs/messages.rs"]
mod messages;
#[path = "verbs/secure.rs"]
mod secure;
#[path = "verbs/tap.rs"]
mod tap;

use std::sync::Arc;

use baton_rdma::wire::{RefuseCode, Role};
use baton_rdma::{
    BatchBuffer, CloseReason, ConnId, MixedTransport, ReadDone, ReadStatus, SlabSet, TcpConfig,
    Transport, TransportChoice, VerbsConfig,
};
use baton_topo::Clock;
use baton_types::{Nanos, TaskId};
use common::verbs_config;
use common::{
    Node, holds, landing, mixed, open, rdma_here, read, refused, settle, slabs, slabs_at, submit,
};

/// A 224 × 224 image, three bytes a pixel.
const IMAGE: u32 = 150_528;

type MixedNode = Node<MixedTransport>;

fn node(role: Role, choice: TransportChoice, verbs: &VerbsConfig) -> MixedNode {
    Node::new(mixed(role, 1, TcpConfig::default(), choice, verbs).unwrap())
}

/// The device of one end; two ends are two devices where the host says it has them.
fn on_device(end: usize) -> VerbsConfig {
    let pair = std::env::var("BATON_VERBS_PAIR").ok();
    let device = pair.and_then(|pair| pair.split(',').nth(end).map(str::to_owned));
    VerbsConfig { device, ..verbs_config() }
}

/// A backend and a frontend, RDMA or nothing.
struct Pair {
    backend: MixedNode,
    frontend: MixedNode,
    conn: ConnId,
    slabs: Arc<SlabSet>,
    buffer: Arc<BatchBuffer>,
}

impl Pair {
    fn new(backend: &VerbsConfig, frontend: &VerbsConfig, slots: u32, bytes: u32) -> Self {
        let mut backend = node(Role::Backend, TransportChoice::Rdma, backend);
        let mut frontend = node(Role::Frontend, TransportChoice::Rdma, frontend);
        let slabs = slabs(1, slots, bytes);
        frontend.transport.expose(slabs.clone()).unwrap();
        let buffer = landing(&mut backend, (slots as usize + 1) * bytes as usize);
        let (conn, _) = open(&mut backend, &mut frontend);
        Self { backend, frontend, conn, slabs, buffer }
    }

    fn post(&mut self, tasks: &[TaskId], bytes: u32) {
        let (conn, buffer) = (self.conn, &self.buffer);
        let reads = (0..).zip(tasks).map(|(row, task)| read(conn, *task, buffer, row, bytes));
        self.backend.transport.post_reads(&mut reads.collect());
        self.backend.transport.flush();
    }

    fn settle(&mut self, count: usize) -> Vec<&ReadDone> {
        settle([&mut self.backend, &mut self.frontend], |[backend, _]| {
            backend.reads().len() >= count || !backend.closed().is_empty()
        });
        self.backend.reads()
    }

    fn links(&self) -> u64 {
        self.backend.transport.counters().links_rdma
    }

    /// Until the queue pairs are connected, READs wait on this side.
    fn linked(&mut self) {
        let before = Clock::start();
        while self.links() == 0 && before.now() < Nanos::from_millis(60_000) {
            settle([&mut self.backend, &mut self.frontend], |_| true);
        }
    }
}

#[test]
fn images_are_read_without_the_frontends_help() {
    if !rdma_here() {
        return;
    }
    const COUNT: u32 = 24;
    let mut pair = Pair::new(&on_device(0), &on_device(1), COUNT, IMAGE);
    let tasks: Vec<_> = (0..COUNT).map(|seed| submit(&pair.slabs, seed.into())).collect();
    pair.linked();
    pair.post(&tasks, IMAGE);
    // From here on the frontend does nothing at all.
    settle([&mut pair.backend], |[backend]| backend.reads().len() as u32 == COUNT);
    for done in pair.backend.reads() {
        assert_eq!(done.status, ReadStatus::Done);
        assert!(holds(&done.row, done.tag), "row {}", done.tag);
    }
    let counters = pair.backend.transport.counters();
    assert_eq!((counters.reads_rdma, counters.reads_failed), (COUNT.into(), 0));
    assert_eq!(pair.frontend.transport.counters().reads_served, 0, "none went over TCP");
}

/// Keys are the permission: a peer that the owner does not trust gets none, however long it waits.
#[test]
fn no_key_leaves_before_the_owner_trusts_the_peer() {
    if !rdma_here() {
        return;
    }
    let mut backend = node(Role::Backend, TransportChoice::Rdma, &on_device(0));
    let mut frontend = node(Role::Frontend, TransportChoice::Rdma, &on_device(1));
    let set = slabs(1, 1, 100);
    frontend.transport.expose(set.clone()).unwrap();
    let buffer = landing(&mut backend, 100);
    let conn = backend.connect(frontend.transport.local_addr());
    let task = submit(&set, 3);
    backend.transport.post_reads(&mut vec![read(conn, task, &buffer, 0, 100)]);
    let mut rounds = 0;
    settle([&mut backend, &mut frontend], |[_, frontend]| {
        rounds += u32::from(!frontend.opened().is_empty());
        rounds > 200
    });
    assert!(backend.reads().is_empty());
    assert_eq!(frontend.transport.counters().links_rdma, 0);
    let accepted = frontend.opened()[0].0;
    frontend.transport.trust(accepted);
    settle([&mut backend, &mut frontend], |[backend, _]| !backend.reads().is_empty());
    assert_eq!(backend.reads()[0].status, ReadStatus::Done);
    assert!(holds(&backend.reads()[0].row, 3));
}

/// No thread spins: the completion queue's event ends the wait.
#[test]
fn a_completion_ends_a_wait() {
    if !rdma_here() {
        return;
    }
    let mut pair = Pair::new(&on_device(0), &on_device(1), 4, IMAGE);
    let tasks: Vec<_> = (0..4).map(|seed| submit(&pair.slabs, seed)).collect();
    pair.linked();
    let clock = Clock::start();
    let before = clock.now();
    for (row, task) in (0..).zip(tasks) {
        let reads = &mut vec![read(pair.conn, task, &pair.buffer, row, IMAGE)];
        pair.backend.transport.post_reads(reads);
        while pair.backend.reads().len() as u32 <= row {
            if pair.backend.poll() == 0 {
                pair.backend.transport.wait(Some(Nanos::from_millis(9_000)));
            }
        }
    }
    assert!(clock.now() - before < Nanos::from_millis(9_000), "woken, not timed out");
}

#[test]
fn what_cannot_be_read_is_distinguished() {
    if !rdma_here() {
        return;
    }
    let mut pair = Pair::new(&on_device(0), &on_device(1), 2, 100);
    let old = submit(&pair.slabs, 1);
    let good = submit(&pair.slabs, 2);
    assert!(pair.slabs.complete(old));
    pair.slabs.release(old);
    let nowhere = TaskId::new(good.frontend(), 77, 0);
    pair.post(&[old, nowhere, good], 100);
    let mut statuses: Vec<_> = pair.settle(3).iter().map(|done| (done.tag, done.status)).collect();
    statuses.sort_by_key(|(tag, _)| *tag);
    let (stale, refused) = (ReadStatus::Stale, ReadStatus::Refused);
    assert_eq!(statuses, [(0, stale), (1, refused), (2, ReadStatus::Done)]);
    pair.backend.seen.clear();
    pair.post(&[good], 99);
    assert_eq!(pair.settle(1)[0].status, ReadStatus::Stale, "the trailer is elsewhere");
    pair.backend.seen.clear();
    pair.post(&[good], 101);
    assert_eq!(pair.settle(1)[0].status, ReadStatus::Refused, "longer than a slot's input");
}

/// The device had better be given a queue pair of its own afterwards: what was given up may still be
/// on its way.
#[test]
fn a_read_given_up_under_way_costs_the_others_nothing() {
    if !rdma_here() {
        return;
    }
    const BYTES: u32 = 4 << 20;
    let mut pair = Pair::new(&on_device(0), &on_device(1), 3, BYTES);
    let tasks = [0, 1, 2].map(|seed| submit(&pair.slabs, seed));
    pair.linked();
    let before = pair.links();
    pair.post(&tasks, BYTES);
    pair.backend.transport.abort_read(pair.conn, 0);
    assert!(pair.buffer.lend(0, BYTES).is_none(), "the row is not given back in the call");
    let mut ended: Vec<_> = pair
        .settle(3)
        .iter()
        .map(|done| {
            (done.tag, done.status, done.status != ReadStatus::Done || holds(&done.row, done.tag))
        })
        .collect();
    ended.sort_by_key(|(tag, ..)| *tag);
    let (aborted, done) = (ReadStatus::Aborted, ReadStatus::Done);
    assert_eq!(ended, [(0, aborted, true), (1, done, true), (2, done, true)]);
    assert_eq!(pair.links(), before + 1, "a fresh queue pair");
}

#[test]
fn the_depths_of_both_sides_are_kept() {
    if !rdma_here() {
        return;
    }
    for (mine, theirs) in [(16, 1), (1, 16), (3, 128)] {
        let backend = VerbsConfig { read_depth: mine, slice_bytes: 4_096, ..on_device(0) };
        let frontend = VerbsConfig { read_depth: theirs, ..on_device(1) };
        let mut pair = Pair::new(&backend, &frontend, 8, 40_000);
        let tasks: Vec<_> = (0..8).map(|seed| submit(&pair.slabs, seed)).collect();
        pair.post(&tasks, 40_000);
        let good = |done: &&ReadDone| done.status == ReadStatus::Done && holds(&done.row, done.tag);
        assert!(pair.settle(8).iter().all(good), "{mine} against {theirs}");
    }
}

#[test]
fn a_frontend_that_dies_under_reads_is_a_lost_peer() {
    if !rdma_here() {
        return;
    }
    const BYTES: u32 = 2 << 20;
    let mut pair = Pair::new(&on_device(0), &on_device(1), 4, BYTES);
    let tasks: Vec<_> = (0..4).map(|seed| submit(&pair.slabs, seed)).collect();
    pair.linked();
    pair.post(&tasks, BYTES);
    let Pair { mut backend, frontend, slabs, buffer, .. } = pair;
    drop((frontend, slabs));
    settle([&mut backend], |[backend]| !backend.closed().is_empty());
    assert_eq!(backend.reads().len(), 4, "every READ ended before the connection's last event");
    assert!(backend.reads().iter().any(|done| done.status == ReadStatus::PeerLost));
    backend.seen.clear();
    assert!(buffer.rows(4, BYTES).is_some(), "every row came back");
}

/// The frontend announces it by itself, and with the answer to the offer that was under way.
#[test]
fn a_slab_exposed_while_a_queue_pair_is_renewed_is_known_afterwards() {
    if !rdma_here() {
        return;
    }
    const BYTES: u32 = 4 << 20;
    let mut pair = Pair::new(&on_device(0), &on_device(1), 2, BYTES);
    let tasks = [0, 1].map(|seed| submit(&pair.slabs, seed));
    pair.linked();
    let before = pair.links();
    pair.post(&tasks[..1], BYTES);
    pair.backend.transport.abort_read(pair.conn, 0);
    settle([&mut pair.backend], |[backend]| backend.reads().len() == 1);
    // The backend has offered another queue pair, of which the frontend does not know yet.
    let later = slabs_at(2, 1, 1, BYTES, 0);
    pair.frontend.transport.expose(later.clone()).unwrap();
    pair.backend.seen.clear();
    settle([&mut pair.backend, &mut pair.frontend], |[backend, _]| {
        backend.transport.counters().links_rdma > before
    });
    let task = submit(&later, 2);
    pair.post(&[tasks[1], task], BYTES);
    for done in pair.settle(2) {
        assert_eq!(done.status, ReadStatus::Done);
        assert!(holds(&done.row, done.tag + 1), "row {}", done.tag);
    }
    assert!(pair.backend.closed().is_empty());
}

/// Slots that end without an answer rest before they are used again; answered ones do not.
#[test]
fn unanswered_slots_rest() {
    if !rdma_here() {
        return;
    }
    let rest = Nanos::from_millis(300);
    let verbs = VerbsConfig { read_timeout: rest, ..verbs_config() };
    let mut frontend = node(Role::Frontend, TransportChoice::Rdma, &verbs);
    let set = slabs(1, 1, 64);
    frontend.transport.expose(set.clone()).unwrap();
    let task = submit(&set, 1);
    let clock = Clock::start();
    assert!(set.complete(task));
    set.release(task);
    let (before, mut waits) = (clock.now(), 0);
    while set.in_use() > 0 && waits < 10_000 {
        frontend.poll();
        frontend.transport.wait(Some(Nanos::from_millis(1_000)));
        waits += 1;
    }
    let rested = clock.now() - before;
    assert!(rested >= rest && waits < 100, "{rested:?} in {waits} waits");
    let task = submit(&set, 2);
    set.landing(task).unwrap().commit(4);
    assert!(set.complete(task));
    drop(set.output(task));
    assert_eq!(set.in_use(), 0);
}

// --- sides without RDMA, or configured not to use it; also on hosts without ------------------------

/// Reads one input between two sides of the given choices; over what, or how it was refused.
fn meet(backend: TransportChoice, frontend: TransportChoice) -> Result<bool, CloseReason> {
    let mut backend = node(Role::Backend, backend, &on_device(0));
    let mut frontend = node(Role::Frontend, frontend, &on_device(1));
    let set = slabs(1, 1, 1_000);
    frontend.transport.expose(set.clone()).unwrap();
    let buffer = landing(&mut backend, 1_000);
    let (conn, _) = open(&mut backend, &mut frontend);
    let task = submit(&set, 7);
    backend.transport.post_reads(&mut vec![read(conn, task, &buffer, 0, 1_000)]);
    settle([&mut backend, &mut frontend], |[backend, _]| !backend.reads().is_empty());
    if backend.reads()[0].status == ReadStatus::Done {
        assert!(holds(&backend.reads()[0].row, 7));
        let over_tcp = frontend.transport.counters().reads_served;
        let over_rdma = backend.transport.counters().reads_rdma;
        assert_eq!(over_tcp + over_rdma, 1);
        return Ok(over_rdma == 1);
    }
    settle([&mut backend, &mut frontend], |[backend, _]| !backend.closed().is_empty());
    Err(backend.closed().swap_remove(0).1)
}

#[test]
fn auto_and_tcp_meet_over_tcp() {
    use TransportChoice::{Auto, Tcp};
    assert_eq!(meet(Auto, Tcp), Ok(false));
    assert_eq!(meet(Tcp, Auto), Ok(false));
    assert_eq!(meet(Tcp, Tcp), Ok(false));
}

#[test]
fn where_both_have_it_auto_is_rdma() {
    use TransportChoice::{Auto, Rdma};
    let expected = rdma_here();
    assert_eq!(meet(Auto, Auto), Ok(expected));
    if expected {
        assert_eq!(meet(Rdma, Auto), Ok(true));
        assert_eq!(meet(Auto, Rdma), Ok(true));
    }
}

/// `rdma` does not degrade: neither side serves the other over TCP.
#[test]
fn rdma_refuses_a_peer_that_is_set_to_tcp() {
    use TransportChoice::{Rdma, Tcp};
    if !rdma_here() {
        return;
    }
    let reason = meet(Rdma, Tcp).unwrap_err();
    assert!(matches!(&reason, CloseReason::Fabric(text) if text.contains("tcp")), "{reason}");
    let reason = meet(Tcp, Rdma).unwrap_err();
    let (code, detail) = refused(&reason).unwrap();
    assert!(code == RefuseCode::Fabric && detail.contains("rdma"), "{detail}");
}

/// What this host lacks is said by name, with what to do about it.
#[test]
fn rdma_on_a_host_without_fails_and_says_why() {
    if rdma_here() {
        let unknown = VerbsConfig { device: Some("mlx9_9".into()), ..verbs_config() };
        let error = mixed(Role::Backend, 0, TcpConfig::default(), TransportChoice::Rdma, &unknown);
        let text = error.err().unwrap().to_string();
        return assert!(text.contains("mlx9_9") && text.contains("rxe"), "{text}");
    }
    let result =
        mixed(Role::Backend, 0, TcpConfig::default(), TransportChoice::Rdma, &verbs_config());
    let text = result.err().unwrap().to_string();
    assert!(text.starts_with("transport = \"rdma\", but "), "{text}");
    assert!(
        ["install rdma-core", "ib_uverbs", "rdma link add"].iter().any(|fix| text.contains(fix))
    );
    let auto =
        mixed(Role::Backend, 0, TcpConfig::default(), TransportChoice::Auto, &verbs_config());
    assert!(!auto.unwrap().has_rdma());
}

/// Run by `rdma/guest-tests.sh` under `ulimit -l` of 1 MB and without CAP_IPC_LOCK.
#[test]
fn too_little_lockable_memory_is_named() {
    if std::env::var_os("BATON_MEMLOCK_LOW").is_none() {
        return eprintln!("SKIPPED: needs a low memlock limit; `./x rdma` runs this in a guest");
    }
    let mut frontend = node(Role::Frontend, TransportChoice::Rdma, &verbs_config());
    let error = frontend.transport.expose(slabs(1, 64, IMAGE)).unwrap_err().to_string();
    assert!(error.contains("input slabs") && error.contains("ulimit -l"), "{error}");
}

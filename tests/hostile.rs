//! Peers that speak the protocol nearly right, against live processes that serve other clients.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use baton_client::{Clock, Nanos};
use baton_rdma::OsNet;
use baton_swarm::{Attack, Attacker, AttackerKind, Hostility, Targets};
use support::{Cluster, Process};

/// What attackers may say before they leave.
const MESSAGES: u64 = 100_000;
/// What a process may keep of them, in memory.
const GROWTH_BYTES: u64 = 16 * 1024 * 1024;
/// Lines that a scheduler of up to four threads may write in a second about strangers, and about members.
const LINES_PER_S: usize = 5 * 9 + 257;

fn attack(kind: AttackerKind) -> Attack {
    let pace = Nanos::from_micros(400);
    Attack { kind, from: Nanos::ZERO, pace, burst: 32, lines: 8, illegal: 20, serves: 990 }
}

/// Attackers for as long as `go_on`, all from one thread; what they did.
fn harass(
    control: &str,
    attacks: &[Attack],
    seed: u64,
    go_on: impl Fn(&Hostility) -> bool,
) -> Hostility {
    let (clock, any) = (Clock::start(), SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let mut attackers: Vec<Attacker<OsNet>> = (0..)
        .zip(attacks)
        .map(|(number, &attack)| {
            let port = OsNet::bind(Some(any)).unwrap();
            Attacker::new(attack, number, port, seed + u64::from(number), clock.now())
        })
        .collect();
    let mut targets = Targets { control: Some(control.parse().unwrap()), others: Vec::new() };
    loop {
        let now = clock.now();
        for attacker in attackers.iter_mut().filter(|attacker| attacker.next <= now) {
            attacker.act(now, &targets);
            if targets.others.is_empty() {
                targets.others = attacker.threads().to_vec();
            }
        }
        let mut done = Hostility::default();
        attackers.iter().for_each(|attacker| done.add(&attacker.done));
        if !go_on(&done) {
            return done;
        }
        let next = attackers.iter().map(|attacker| attacker.next).min().unwrap();
        thread::park_timeout(Duration::from_nanos((next - clock.now()).0));
    }
}

/// What a process has counted, as it says at its end.
fn counted(stderr: &[String], what: &str) -> u64 {
    let line =
        stderr.iter().find(|line| line.contains("stopped; counted")).expect("its last words");
    let found = line.split(' ').find_map(|word| word.strip_prefix(&format!("{what}=")));
    found.map_or(0, |count| count.parse().unwrap())
}

#[test]
fn beside_hostile_peers_a_frontend_is_served_and_nothing_of_them_stays() {
    let mut cluster = Cluster::start("hostile");
    let (mut a, mut b) = (cluster.backend("a"), cluster.backend("b"));
    let load = cluster.load(1);
    load.await_completed(50);
    let measure = |process: &Process| (process.resident_bytes(), process.handles());
    let before = [&cluster.scheduler, &a, &b].map(measure);

    let kinds = [
        AttackerKind::Stranger,
        AttackerKind::Stranger,
        AttackerKind::Frontend,
        AttackerKind::Idler,
    ];
    let clock = Clock::start();
    let from = clock.now();
    let done = harass(cluster.addr(), &kinds.map(attack), 1, |done| done.messages < MESSAGES);
    let seconds = ((clock.now() - from).0 / 1_000_000_000) as usize;
    load.await_completed(100);
    for (process, (_, handles)) in [&cluster.scheduler, &a, &b].into_iter().zip(before) {
        process.await_handles(handles);
    }
    let after = [&cluster.scheduler, &a, &b].map(measure);
    eprintln!("{done:?} in {seconds} s\n{before:?}\n{after:?}");

    let counts = load.stop();
    eprintln!("{counts:?}");
    // How many were in time is the machine's: `swarm/tests/hostile.rs` bounds what attackers cost.
    counts.failed_only(&[]);
    for ((before_bytes, _), (bytes, _)) in before.into_iter().zip(after) {
        assert!(bytes <= before_bytes + GROWTH_BYTES, "from {before_bytes} to {bytes} bytes");
    }
    assert!(done.joins > 5 && done.connections > 500, "they exercise little: {done:?}");
    assert!(done.refused * 2 > done.connections, "they hear why: {done:?}");
    a.terminate();
    b.terminate();
    cluster.scheduler.terminate();
    let stderr = cluster.scheduler.rest_of_stderr();
    for what in ["control_malformed", "malformed", "unauthorised", "conversations_refused"] {
        assert!(counted(&stderr, what) > 0, "{what}");
    }
    let refused = ["joins_refused", "joins_duplicate", "joins_over_limit", "conversations_refused"];
    let refused: u64 = refused.iter().map(|what| counted(&stderr, what)).sum();
    assert!(refused <= done.connections, "{refused} refused: each connection once");
    // In each second the log counts what it left out of the one before.
    assert!(stderr.len() <= LINES_PER_S * (seconds + 5), "{} lines", stderr.len());
    assert!(stderr.iter().any(|line| line.contains("more connections in the last second")));
}

/// What may become of a task whose batch a thief was given.
const EXPLAINED: [&str; 2] = ["lease_expired", "backend_lost"];

/// Until it is dropped, by a failed assertion too: the scope waits for its threads.
struct Harassing<'a>(&'a AtomicBool);

impl Drop for Harassing<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The slots of the first to join are the first to be given batches.
#[test]
fn what_thieves_take_is_lost_to_its_lease_and_when_they_are_gone_nothing_is() {
    let mut cluster = Cluster::start("thieves");
    let (addr, over) = (&cluster.addr().to_owned(), &AtomicBool::new(false));
    let thieves = [Attack {
        illegal: 0,
        pace: Nanos::from_millis(2),
        burst: 8,
        ..attack(AttackerKind::Thief)
    }; 2];
    thread::scope(|scope| {
        let harassing = Harassing(over);
        let go_on = move |_: &Hostility| !over.load(Ordering::Relaxed);
        let harassment = scope.spawn(move || harass(addr, &thieves, 7, go_on));
        cluster.scheduler.await_stderr("backend joined");
        let (mut a, mut b) = (cluster.backend("a"), cluster.backend("b"));
        let load = cluster.load(1);
        (0..8).for_each(|_| _ = load.completed());
        drop(harassing);
        let done = harassment.join().unwrap();
        load.await_completed(50);
        let counts = load.stop();
        eprintln!("{done:?}\n{counts:?}");
        counts.failed_only(&EXPLAINED);
        assert!(counts.completed < counts.submitted, "they took nothing: {counts:?}");
        let after = cluster.load(2);
        after.await_completed(100);
        after.stop().failed_only(&[]);
        a.terminate();
        b.terminate();
    });
    cluster.scheduler.terminate();
}

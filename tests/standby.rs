//! Two schedulers and a real etcd: whichever leads serves, and when it is gone, stopped or told to end, the
//! other one takes over; two never do at once.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use baton_client::{ClientConfig, Deadline, EtcdSpec, Nanos, Outcome, Ticket, Whereabouts};
use rustix::process::Signal;
use support::application::Application;
use support::etcd::{Etcd, free_ports};
use support::{Folder, Load, Process};

/// The lease, and then what it takes to notice, to campaign, to join and to answer.
const TTL: Nanos = Nanos::from_millis(2_000);
const BOUND: Nanos = Nanos::from_millis(4_000);
/// How long a member waits for a leader that accepts connections but answers nothing.
const REACH: Nanos = Nanos::from_millis(1_000);
/// More than anything here takes.
const LONG: Deadline = Deadline::Within(Duration::from_secs(60));
const PATIENCE: Nanos = Nanos::from_millis(60_000);
const OUTSTANDING: u64 = 60;

const CLUSTER: &str = r#"
[[model]]
name = "m"
alpha_ms = 1
beta_ms = 10
slo_ms = 400
input_bytes = 4096
[[backend]]
name = "a"
[[backend]]
name = "b"
"#;

/// An etcd, two schedulers' addresses, and members that know nothing but the cluster file.
struct Standing {
    etcd: Etcd,
    spec: EtcdSpec,
    addrs: Vec<SocketAddr>,
    file: String,
    _folder: Folder,
}

impl Standing {
    /// `None` without etcd.
    fn start(test: &str, etcds: usize, lease_ttl_s: u32) -> Option<Self> {
        let folder = Folder::new(test);
        let etcd = Etcd::start(etcds, folder.path())?;
        let (endpoints, prefix) = (etcd.endpoints(), format!("/baton/{test}"));
        let scheduler = format!(
            "[scheduler]\netcd = {endpoints:?}\netcd_prefix = \"{prefix}\"\nlease_ttl_s = {lease_ttl_s}\n"
        );
        let file = folder.write("cluster.toml", &(scheduler + CLUSTER));
        let addr = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let addrs = free_ports(2).into_iter().map(addr).collect();
        let spec = EtcdSpec { endpoints, prefix, lease_ttl_s };
        Some(Self { etcd, spec, addrs, file, _folder: folder })
    }

    fn scheduler(&self, at: usize) -> Process {
        let listen = self.addrs[at].to_string();
        Process::start(&["scheduler", "--config", &self.file, "--listen", &listen])
    }

    /// The first leads, the second stands by.
    fn schedulers(&self) -> [Process; 2] {
        let leader = self.scheduler(0);
        leader.line("listening ");
        let standby = self.scheduler(1);
        standby.line("standby");
        [leader, standby]
    }

    fn endpoints_without(&self, at: usize) -> Vec<String> {
        let mut endpoints = self.spec.endpoints.clone();
        endpoints.remove(at);
        endpoints
    }

    /// Who leads, as these members of etcd know once they answer.
    fn leader_by(&self, endpoints: Vec<String>) -> SocketAddr {
        let spec = EtcdSpec { endpoints, ..self.spec.clone() };
        Whereabouts::led(&spec).unwrap().wait(Duration::from_nanos(PATIENCE.0)).unwrap()
    }

    fn backend(&self, name: &str) -> Process {
        let backend = Process::start(&["backend", "--config", &self.file, "--name", name]);
        backend.line("ready");
        backend
    }

    fn load(&self) -> Load {
        let args = ["load", "--config", &self.file, "--seconds", "600", "--rate", "m=100"];
        Load { process: Process::start(&[&args[..], &["--progress-json"]].concat()) }
    }

    fn application(&self) -> Application {
        let whereabouts = Whereabouts::led(&self.spec).unwrap();
        let mut application = Application::join(ClientConfig::wherever(whereabouts));
        application.until_answered(PATIENCE);
        application
    }
}

fn outstanding(application: &mut Application) -> Vec<(Ticket, [u8; 8])> {
    (0..OUTSTANDING).map(|_| application.submit(LONG).unwrap()).collect()
}

/// Every task was answered, and with its own answer.
fn all_answered(tickets: Vec<(Ticket, [u8; 8])>) {
    for (ticket, expected) in tickets {
        match ticket.wait() {
            Outcome::Completed(reply) => assert_eq!(reply.bytes(), expected),
            other => panic!("there was time enough: {other:?}"),
        }
    }
}

fn conserved(application: &Application) {
    let counters = application.client.counters();
    assert_eq!(counters.submitted, application.submitted);
    assert_eq!(counters.submitted, counters.completed + counters.dropped + counters.failed);
    assert_eq!(application.client.slots_in_use(), 0);
}

#[test]
fn a_standby_takes_over_from_a_leader_that_is_killed_and_nothing_is_lost() {
    let Some(standing) = Standing::start("standby-kill", 1, 2) else { return };
    let [mut leader, mut standby] = standing.schedulers();
    let backends = [standing.backend("a"), standing.backend("b")];
    let load = standing.load();
    let mut application = standing.application();
    for round in 1..=2 {
        load.await_completed(50);
        let tickets = outstanding(&mut application);
        let killed = application.clock.now();
        leader.signal(Signal::KILL);
        assert_eq!(standby.line("listening "), standing.addrs[round % 2].to_string());
        let listening = application.clock.now() - killed;
        application.until_answered(PATIENCE);
        let took = application.clock.now() - killed;
        eprintln!("listening after {} ms, answers after {} ms", ms(listening), ms(took));
        assert!(took <= BOUND, "round {round}: served only after {} ms", ms(took));
        all_answered(tickets);
        assert_eq!(application.client.counters().reconnects, round as u64);
        leader = std::mem::replace(&mut standby, standing.scheduler((round + 1) % 2));
        standby.line("standby");
    }
    conserved(&application);
    drop(application);
    load.await_completed(100);
    load.stop();
    for backend in backends {
        backend.signal(Signal::TERM);
        backend.line("left");
        assert!(backend.finish().0.success());
    }
}

#[test]
fn a_leader_that_stood_still_does_not_lead_again_and_one_that_ends_hands_over_at_once() {
    let Some(standing) = Standing::start("standby-stop", 1, 2) else { return };
    let [stopped, next] = standing.schedulers();
    let _backends = [standing.backend("a"), standing.backend("b")];
    let load = standing.load();
    let mut application = standing.application();
    let tickets = outstanding(&mut application);
    let start = application.clock.now();
    stopped.signal(Signal::STOP);
    next.line("listening ");
    application.until_answered(PATIENCE);
    let took = application.clock.now() - start;
    eprintln!("answers {} ms after the leader stood still", ms(took));
    assert!(took <= BOUND + REACH, "served only after {} ms", ms(took));
    stopped.signal(Signal::CONT);
    stopped.await_stderr("does not lead any more");
    assert_eq!(stopped.finish().0.code(), Some(1));
    all_answered(tickets);
    assert_eq!(application.client.counters().reconnects, 1, "it went back to the old leader");

    let last = standing.scheduler(0);
    last.line("standby");
    load.await_completed(50);
    let tickets = outstanding(&mut application);
    let start = application.clock.now();
    next.signal(Signal::TERM);
    last.line("listening ");
    let took = application.clock.now() - start;
    eprintln!("handed over after {} ms", ms(took));
    assert!(took < TTL, "it waited for the lease: {} ms", ms(took));
    assert!(next.finish().0.success());
    application.until_answered(PATIENCE);
    all_answered(tickets);
    conserved(&application);
    drop(application);
    load.await_completed(50);
    load.stop();
    let idle = standing.scheduler(1);
    idle.line("standby");
    idle.signal(Signal::TERM);
    assert!(idle.finish().0.success());
}

#[test]
fn without_etcd_nobody_leads_for_long_and_when_it_is_back_somebody_does() {
    let Some(mut standing) = Standing::start("standby-etcd", 1, 2) else { return };
    let [leader, standby] = standing.schedulers();
    let _backends = [standing.backend("a"), standing.backend("b")];
    let mut application = standing.application();
    let tickets = outstanding(&mut application);
    let start = application.clock.now();
    standing.etcd.kill(0);
    leader.await_stderr("does not lead any more");
    let took = application.clock.now() - start;
    assert!(took < BOUND, "it led for {} ms without etcd", ms(took));
    assert_eq!(leader.finish().0.code(), Some(1));
    standing.etcd.restart(0);
    standby.line("listening ");
    application.until_answered(PATIENCE);
    all_answered(tickets);
    conserved(&application);
}

#[test]
fn an_etcd_that_is_back_before_the_lease_ends_is_no_matter() {
    let Some(mut standing) = Standing::start("standby-blink", 1, 20) else { return };
    let [leader, _standby] = standing.schedulers();
    let _backend = standing.backend("a");
    let mut application = standing.application();
    standing.etcd.kill(0);
    leader.await_stderr("etcd does not answer");
    standing.etcd.restart(0);
    leader.await_stderr("etcd answers again");
    application.until_answered(PATIENCE);
    assert_eq!(application.client.counters().reconnects, 0);
    leader.signal(Signal::TERM);
    assert!(leader.finish().0.success());
}

#[test]
fn the_leader_leads_on_while_the_members_of_etcd_die_one_after_the_other() {
    let Some(mut standing) = Standing::start("standby-three", 3, 10) else { return };
    let [leader, _standby] = standing.schedulers();
    let _backend = standing.backend("a");
    let mut application = standing.application();
    // One of them is etcd's own leader.
    for at in 0..3 {
        standing.etcd.kill(at);
        // Known only to an etcd that has agreed on it anew.
        let others: Vec<String> = standing.endpoints_without(at);
        assert_eq!(standing.leader_by(others), standing.addrs[0]);
        standing.etcd.restart(at);
        assert_eq!(
            standing.leader_by(vec![standing.spec.endpoints[at].clone()]),
            standing.addrs[0]
        );
        application.until_answered(PATIENCE);
    }
    assert_eq!(application.client.counters().reconnects, 0);
    leader.signal(Signal::TERM);
    assert!(leader.finish().0.success());
}

#[test]
fn an_address_that_members_cannot_be_told_is_refused() {
    let folder = Folder::new("standby-addr");
    let etcd = "[scheduler]\netcd = [\"http://127.0.0.1:1\"]\n".to_owned();
    let file = folder.write("cluster.toml", &(etcd + CLUSTER));
    for listen in ["0.0.0.0:7700", "127.0.0.1:0"] {
        let output = support::run(&["scheduler", "--config", &file, "--listen", listen]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("give --listen an address of this host and a port"), "{stderr}");
    }
}

fn ms(span: Nanos) -> u64 {
    span.0 / 1_000_000
}

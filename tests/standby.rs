//! Two schedulers and a real etcd: whichever leads serves, and when it is gone, stopped or told to end, the
//! other one takes over; two never do at once.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

#[path = "../rdma/tests/common/certs.rs"]
mod certs;
#[path = "standby/harness.rs"]
mod harness;
mod support;

use std::time::Duration;

use baton_client::{
    Client, ClientConfig, Clock, Deadline, EtcdSpec, EtcdTlsSpec, Nanos, Outcome, SchedulerLocator,
    Ticket,
};
use certs::{Authority, Valid};
use harness::{StandbyCluster, shown};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose};
use rustix::process::Signal;
use support::application::Application;
use support::{CLUSTER, Folder, in_time};

/// What is promised: the lease, and then what it takes to notice, to campaign, to join and to answer.
const LEASE: Nanos = Nanos::from_millis(2_000);
const BOUND: Nanos = Nanos::from_millis(4_000);
/// How long a member waits for a leader that accepts connections but answers nothing.
const REACH: Nanos = Nanos::from_millis(1_000);
/// A lease whose end a leader that hands over does not wait for: more than a loaded machine takes.
const TTL: Nanos = Nanos::from_millis(60_000);
/// More than anything here takes.
const LONG: Deadline = Deadline::Within(Duration::from_secs(60));
const PATIENCE: Nanos = Nanos::from_millis(60_000);
const OUTSTANDING: u64 = 60;

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
    let Some(harness) = StandbyCluster::start("standby-kill", 1, 2) else { return };
    let [mut leader, mut standby] = harness.schedulers();
    let backends = [harness.backend("a"), harness.backend("b")];
    let load = harness.load();
    let mut application = harness.application();
    for round in 1..=2 {
        load.await_completed(50);
        let tickets = outstanding(&mut application);
        let killed = application.clock.now();
        leader.signal(Signal::KILL);
        assert_eq!(standby.line("listening "), harness.addrs[round % 2].to_string());
        in_time("listening", application.clock.now() - killed, BOUND);
        application.until_answered(PATIENCE);
        in_time("answers", application.clock.now() - killed, BOUND);
        all_answered(tickets);
        assert_eq!(application.client.counters().reconnects, round as u64);
        leader = std::mem::replace(&mut standby, harness.scheduler((round + 1) % 2));
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
fn a_leader_that_gets_sigterm_hands_over_under_load_and_no_task_fails() {
    let Some(harness) = StandbyCluster::start("standby-rolling", 1, (TTL.0 / 1_000_000_000) as u32)
    else {
        return;
    };
    let [mut leader, mut standby] = harness.schedulers();
    let _backends = [harness.backend("a"), harness.backend("b")];
    let load = harness.load();
    let mut application = harness.application();
    const ROUNDS: usize = 4;
    for round in 1..=ROUNDS {
        load.await_completed(50);
        let tickets = outstanding(&mut application);
        let start = application.clock.now();
        leader.signal(Signal::TERM);
        assert_eq!(standby.line("listening "), harness.addrs[round % 2].to_string());
        assert!(application.clock.now() - start < TTL, "it waited for the lease");
        assert!(leader.finish().0.success());
        all_answered(tickets);
        leader = std::mem::replace(&mut standby, harness.scheduler((round + 1) % 2));
        standby.line("standby");
        load.await_completed(100);
    }
    let counters = application.client.counters();
    assert_eq!((counters.reconnects, counters.failed), (ROUNDS as u64, 0));
    assert_eq!(counters.scheduler_lost, 0, "no submit was refused");
    conserved(&application);
    load.stop().nothing_failed();
}

#[test]
fn who_starts_while_etcd_still_names_a_dead_leader_joins_the_next_one() {
    let Some(harness) = StandbyCluster::start("standby-start", 1, 5) else { return };
    let [leader, standby] = harness.schedulers();
    leader.signal(Signal::KILL);
    leader.await_end();
    let load = harness.load();
    let backend = harness.start_backend("a");
    assert_eq!(harness.leader_by(harness.spec.endpoints.clone()), harness.addrs[0]);
    for process in [&load.process, &backend] {
        process.await_stderr("no scheduler yet");
    }
    let client = Client::connect(ClientConfig::with_locator(
        SchedulerLocator::via_etcd(&harness.spec).unwrap(),
    ));
    assert_eq!(client.unwrap().counters().reconnects, 0);
    standby.line("listening ");
    backend.line("ready");
    load.await_completed(50);
    load.stop().failed_only(&[]);
}

#[test]
fn a_leader_that_stood_still_does_not_lead_again_and_one_that_ends_hands_over_at_once() {
    let Some(harness) = StandbyCluster::start("standby-stop", 1, 2) else { return };
    let [stopped, next] = harness.schedulers();
    let _backends = [harness.backend("a"), harness.backend("b")];
    let load = harness.load();
    let mut application = harness.application();
    let tickets = outstanding(&mut application);
    let start = application.clock.now();
    stopped.signal(Signal::STOP);
    next.line("listening ");
    application.until_answered(PATIENCE);
    in_time("answers", application.clock.now() - start, BOUND + REACH);
    stopped.signal(Signal::CONT);
    stopped.await_stderr("does not lead any more");
    assert_eq!(stopped.finish().0.code(), Some(1));
    all_answered(tickets);
    assert_eq!(application.client.counters().reconnects, 1, "it went back to the old leader");

    let last = harness.scheduler(0);
    last.line("standby");
    load.await_completed(50);
    let tickets = outstanding(&mut application);
    let start = application.clock.now();
    next.signal(Signal::TERM);
    last.line("listening ");
    in_time("handed over", application.clock.now() - start, LEASE);
    assert!(next.finish().0.success());
    application.until_answered(PATIENCE);
    all_answered(tickets);
    conserved(&application);
    drop(application);
    load.await_completed(50);
    load.stop();
    let idle = harness.scheduler(1);
    idle.line("standby");
    idle.signal(Signal::TERM);
    assert!(idle.finish().0.success());
}

#[test]
fn without_etcd_no_scheduler_leads_for_long_and_when_it_is_back_one_does() {
    let Some(mut harness) = StandbyCluster::start("standby-etcd", 1, 2) else { return };
    let [leader, standby] = harness.schedulers();
    let _backends = [harness.backend("a"), harness.backend("b")];
    let mut application = harness.application();
    let tickets = outstanding(&mut application);
    let start = application.clock.now();
    harness.etcd.kill(0);
    leader.await_stderr("does not lead any more");
    in_time("via_etcd no more without etcd", application.clock.now() - start, BOUND);
    assert_eq!(leader.finish().0.code(), Some(1));
    harness.etcd.restart(0);
    standby.line("listening ");
    application.until_answered(PATIENCE);
    all_answered(tickets);
    conserved(&application);
}

#[test]
fn an_etcd_that_is_back_before_the_lease_ends_is_no_matter() {
    let Some(mut harness) = StandbyCluster::start("standby-blink", 1, 20) else { return };
    let [leader, _standby] = harness.schedulers();
    let _backend = harness.backend("a");
    let mut application = harness.application();
    harness.etcd.kill(0);
    leader.await_stderr("etcd does not answer");
    harness.etcd.restart(0);
    leader.await_stderr("etcd answers again");
    application.until_answered(PATIENCE);
    assert_eq!(application.client.counters().reconnects, 0);
    leader.signal(Signal::TERM);
    assert!(leader.finish().0.success());
}

#[test]
fn the_leader_leads_on_while_the_members_of_etcd_die_one_after_the_other() {
    let Some(mut harness) = StandbyCluster::start("standby-three", 3, 10) else { return };
    let [leader, _standby] = harness.schedulers();
    let _backend = harness.backend("a");
    let mut application = harness.application();
    // One of them is etcd's own leader.
    for at in 0..3 {
        harness.etcd.kill(at);
        // Known only to an etcd that has agreed on it anew.
        let others: Vec<String> = harness.endpoints_without(at);
        assert_eq!(harness.leader_by(others), harness.addrs[0]);
        harness.etcd.restart(at);
        assert_eq!(harness.leader_by(vec![harness.spec.endpoints[at].clone()]), harness.addrs[0]);
        application.until_answered(PATIENCE);
    }
    assert_eq!(application.client.counters().reconnects, 0);
    leader.signal(Signal::TERM);
    assert!(leader.finish().0.success());
}

#[test]
fn with_an_etcd_that_wants_certificates_all_is_as_without() {
    let authority = Authority::new();
    let Some(harness) = StandbyCluster::secure("standby-tls", &authority) else { return };
    assert!(support::run(&["config", "check", &harness.file]).status.success());
    let [leader, standby] = harness.schedulers();
    let _backend = harness.backend("a");
    let mut application = harness.application();
    let tickets = outstanding(&mut application);
    leader.signal(Signal::KILL);
    assert_eq!(standby.line("listening "), harness.addrs[1].to_string());
    application.until_answered(PATIENCE);
    all_answered(tickets);
    assert_eq!(application.client.counters().reconnects, 1);
    conserved(&application);
    standby.signal(Signal::TERM);
    assert!(standby.finish().0.success());
}

/// Asks until etcd answers something that contains `text`.
fn told_by_etcd(spec: &EtcdSpec, text: &str) {
    let via_etcd = SchedulerLocator::via_etcd(spec).unwrap();
    let clock = Clock::start();
    loop {
        let unknown = via_etcd.wait(Duration::from_millis(200)).unwrap_err().to_string();
        if unknown.contains(text) {
            return;
        }
        assert!(clock.now() < PATIENCE, "{text}: {unknown}");
    }
}

#[test]
fn a_connection_to_etcd_that_is_not_secure_on_both_sides_comes_to_nothing_and_says_why() {
    let (authority, other) = (Authority::new(), Authority::named("another authority"));
    let Some(harness) = StandbyCluster::secure("standby-tls-refused", &authority) else { return };
    told_by_etcd(&harness.spec, "no scheduler leads");
    let with = |tls| EtcdSpec { tls: Some(tls), ..harness.spec.clone() };
    let anonymous = EtcdTlsSpec { ca: authority.ca(), identity: None };
    told_by_etcd(&with(anonymous), "it wants a certificate of an authority");
    told_by_etcd(&with(shown(&authority, &other)), "it wants a certificate of an authority");
    told_by_etcd(&with(shown(&other, &authority)), "of no authority in etcd_ca");
    let at = |from: &str, to: &str| {
        let endpoints = vec![harness.spec.endpoints[0].replace(from, to)];
        EtcdSpec { endpoints, ..harness.spec.clone() }
    };
    told_by_etcd(&at("127.0.0.1", "localhost"), "for other hosts");
    told_by_etcd(&EtcdSpec { tls: None, ..at("https", "http") }, "if it has TLS, write https://");

    let Some(plain) = StandbyCluster::start("standby-tls-plain", 1, 2) else { return };
    told_by_etcd(&plain.spec, "no scheduler leads");
    let endpoints = vec![plain.spec.endpoints[0].replace("http", "https")];
    let spec = EtcdSpec { endpoints, ..harness.spec.clone() };
    told_by_etcd(&spec, "if it has no TLS, write http://");
}

/// Its gateway asks etcd as a client does, with the certificate that it has as a server.
#[test]
fn an_etcd_whose_certificate_is_for_servers_only_says_so() {
    let authority = Authority::new();
    let server_only = |params: &mut CertificateParams| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    };
    let etcd = authority.issue_with("127.0.0.1", Valid::Now, server_only);
    let Some(harness) = StandbyCluster::secure_as("standby-tls-eku", &authority, &etcd) else {
        return;
    };
    told_by_etcd(&harness.spec, "clientAuth");
}

#[test]
fn an_address_that_members_cannot_reach_is_refused() {
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

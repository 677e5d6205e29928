//! A member whose scheduler is found through etcd.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::net::TcpListener;

use baton_leader::{SchedulerLocator, Unknown};
use baton_membership::{Member, Membership, MembershipError};
use baton_rdma::wire::Role;
use baton_topo::{Clock, EtcdSpec, ReconnectSpec};
use baton_types::Nanos;

const PAUSE: Nanos = Nanos::from_millis(400);

/// Asked at once, it would name the one that was lost: the next one does not lead yet.
#[test]
fn etcd_is_asked_who_leads_at_the_end_of_the_pause() {
    let etcd = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoints = vec![format!("http://{}", etcd.local_addr().unwrap())];
    let spec = EtcdSpec { endpoints, prefix: "/baton/x".into(), lease_ttl_s: 1, tls: None };
    let scheduler = SchedulerLocator::via_etcd(&spec).unwrap();
    // Hangs up.
    let asked = || drop(etcd.accept().unwrap());
    asked();
    let (role, join_timeout) = (Role::Frontend, PAUSE.times(100));
    let reconnect = ReconnectSpec { first: PAUSE, longest: PAUSE, ..ReconnectSpec::default() };
    let mut membership = Membership::new(Member {
        role,
        scheduler,
        reconnect,
        seed: 7,
        join_timeout,
        join_timeout_setting: "join_timeout",
        member_timeout: PAUSE,
    });
    let (clock, lost) = (Clock::start(), MembershipError::NoScheduler(Unknown::NotYet));
    let began = clock.now();
    membership.fail(began, lost).unwrap();
    asked();
    // The pause is half as long at least, and 30 ms are for the answer.
    assert!(clock.now() - began > Nanos::from_millis(150));
}

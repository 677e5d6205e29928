//! TLS against peers that are not who they should be, or speak something else: each is refused with a
//! reason that names the fix, is counted, and disturbs no other peer. Streams that go wrong:
//! `tls_streams.rs`; what two honest ends do: `behaviour.rs`.
#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod common;

use std::io::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use baton_rdma::wire::{Hello, RefuseCode, Role};
use baton_rdma::{Credentials, CredentialsError, TlsSpec, Transport};
use common::certs::{Authority, Valid};
use common::raw::node;
use common::secure::{RawTls, World, listed, member, tls_text};
use common::{refused, settle};
use rcgen::ExtendedKeyUsagePurpose;

// --- certificates ------------------------------------------------------------------------------

/// The peer's certificate, what the refusing side tells its owner, and what the refusing side
/// itself reports.
fn bad_certificates(good: &Authority) -> Vec<(TlsSpec, &'static str, &'static str)> {
    let foreign = |of: Authority, name: &str| {
        let spec = of.issue(name);
        let place = |from: &Path, ending: &str| {
            let to = good.folder().join(format!("{name}.{ending}"));
            std::fs::copy(from, &to).unwrap();
            to
        };
        TlsSpec { cert: place(&spec.cert, "pem"), key: place(&spec.key, "key"), ..good.issue("x") }
    };
    let namesake = foreign(Authority::new(), "namesake.test");
    let other = foreign(Authority::named("another"), "other.test");
    let expired = good.issue_with("expired.test", Valid::Formerly, |_| {});
    let early = good.issue_with("early.test", Valid::InFuture, |_| {});
    vec![
        (namesake, "of no authority", "of no authority"),
        (other, "of no authority", "of no authority"),
        (expired, "expired or not valid yet", "has expired"),
        (early, "expired or not valid yet", "not valid yet"),
    ]
}

#[test]
fn a_bad_certificate_of_the_side_that_connects() {
    let mut world = World::new();
    for (n, (spec, told, _)) in (1..).zip(bad_certificates(&world.authority)) {
        let mut guest = member(Role::Backend, &spec);
        let reason = world.ends_for(&mut guest, Role::Backend);
        let text = tls_text(&reason);
        assert!(text.starts_with("the peer refused this side's certificate"), "{text}");
        assert!(text.contains(told), "{text}");
        assert_eq!(guest.transport.counters().tls_refused, 1);
        world.check(n);
    }
}

#[test]
fn a_bad_certificate_of_the_side_that_is_connected_to() {
    let authority = Authority::new();
    for (spec, _, said) in bad_certificates(&authority) {
        let mut host = member(Role::Control, &spec);
        let mut guest = member(Role::Frontend, &authority.issue("web.cluster.test"));
        guest.connect(host.transport.local_addr());
        settle([&mut guest, &mut host], |[guest, host]| {
            !guest.closed().is_empty() && host.transport.counters().closed == 1
        });
        let text = guest.closed()[0].1.to_string();
        assert!(text.contains(said), "{text}");
        assert_eq!(host.transport.counters().tls_refused, 1, "it heard that it was refused");
        assert!(host.seen.is_empty() && guest.opened().is_empty());
    }
}

#[test]
fn a_certificate_for_servers_only() {
    let mut world = World::new();
    let spec = world.authority.issue_with("gpu-1.cluster.test", Valid::Now, |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    let reason = world.ends_for(&mut member(Role::Backend, &spec), Role::Backend);
    assert!(tls_text(&reason).contains("see the peer's log"), "{reason}");
    world.check(1);
    let problems = Credentials::load(&spec).unwrap().problems();
    assert!(problems.iter().any(|problem| problem.contains("clientAuth")), "{problems:?}");
}

#[test]
fn no_certificate_at_all() {
    let mut world = World::new();
    let mut raw = RawTls::connect(&world, None);
    raw.pump_until(&mut world.scheduler, |raw| raw.ended.is_some());
    let ended = raw.ended.unwrap();
    assert!(ended.contains("CertificateRequired"), "{ended}");
    world.check(1);
}

// --- lists -------------------------------------------------------------------------------------

/// The role is what the peer says in its hello; the certificate must allow it.
#[test]
fn a_role_the_certificate_does_not_allow() {
    let mut world = World::new();
    let cases = [
        ("web.cluster.test", Role::Backend, "may not act as Backend", "tls.backends"),
        ("web.cluster.test", Role::Control, "may not act as Control", "tls.schedulers"),
        ("gpu-1.cluster.test", Role::Frontend, "may not act as Frontend", "tls.frontends"),
        ("unlisted.test", Role::Frontend, "unlisted.test", "tls.frontends"),
        ("a.b.gpus.test", Role::Backend, "a.b.gpus.test", "tls.backends"),
    ];
    for (n, (name, role, who, list)) in (1..).zip(cases) {
        let mut guest = member(role, &world.authority.issue(name));
        let reason = world.ends_for(&mut guest, role);
        let (code, detail) = refused(&reason).unwrap();
        assert_eq!(code, RefuseCode::Unauthorised);
        assert!(detail.contains(who) && detail.contains(list), "{detail}");
        world.check(n);
    }
}

#[test]
fn roles_that_the_lists_allow() {
    let mut world = World::new();
    let allowed = [("web.cluster.test", Role::Frontend), ("GPU-7.gpus.test", Role::Backend)];
    for (n, (name, role)) in (2..).zip(allowed) {
        let mut guest = member(role, &world.authority.issue(name));
        let addr = world.scheduler.transport.local_addr();
        guest.transport.connect(addr, Hello::new(role, 0, 0)).unwrap();
        settle([&mut guest, &mut world.scheduler], |[guest, _]| guest.opened().len() == 1);
        assert_eq!(world.scheduler.opened().len(), n);
    }
    assert_eq!(world.scheduler.transport.counters().tls_refused, 0);
}

/// A frontend's certificate does not make a scheduler, and no hello is sent to find out.
#[test]
fn a_frontend_that_poses_as_the_scheduler() {
    let authority = Authority::new();
    let mut impostor = member(Role::Control, &authority.issue("web.cluster.test"));
    for (role, name) in
        [(Role::Frontend, "web.cluster.test"), (Role::Backend, "gpu-1.cluster.test")]
    {
        let mut victim = member(role, &listed(authority.issue(name)));
        victim.connect(impostor.transport.local_addr());
        settle([&mut victim, &mut impostor], |[victim, _]| !victim.closed().is_empty());
        let reason = victim.closed()[0].1.to_string();
        assert!(reason.starts_with("not allowed: the certificate of web.cluster.test"), "{reason}");
        assert!(reason.contains("may not act as Control"), "{reason}");
        assert!(victim.opened().is_empty());
        assert_eq!(victim.transport.counters().tls_refused, 1);
    }
    // Backends have business with frontends too, so a backend finds out by the answer to its hello.
    assert_eq!(impostor.opened().len(), 1, "the frontend's hello never left");
}

// --- no TLS, or not quite ----------------------------------------------------------------------

#[test]
fn a_plain_peer() {
    let mut world = World::new();
    let mut plain = node();
    let reason = world.ends_for(&mut plain, Role::Backend);
    assert!(tls_text(&reason).contains("this side has no [tls]"), "{reason}");
    assert_eq!(plain.transport.counters().tls_refused, 1);
    world.check(1);
}

#[test]
fn a_plain_port() {
    let (authority, mut plain) = (Authority::new(), node());
    let mut guest = member(Role::Backend, &authority.issue("gpu-1.cluster.test"));
    guest.connect(plain.transport.local_addr());
    settle([&mut guest, &mut plain], |[guest, plain]| {
        !guest.closed().is_empty() && plain.transport.counters().closed == 1
    });
    let reason = guest.closed()[0].1.clone();
    assert!(tls_text(&reason).contains("does not speak TLS"), "{reason}");
    assert_eq!(plain.transport.counters().tls_refused, 1);
    assert!(plain.seen.is_empty());
}

#[test]
fn bytes_of_no_protocol() {
    let mut world = World::new();
    let texts: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\nHost: baton\r\n\r\n",
        &[0; 600],
        &[0x16, 3, 1, 0, 5, 1, 0, 0, 1, 9, 9],
        &[0x16, 3, 1, 0xff, 0xff, 1, 0, 0, 1, 9, 9],
    ];
    for (n, bytes) in (1..).zip(texts) {
        let mut stream = TcpStream::connect(world.scheduler.transport.local_addr()).unwrap();
        stream.write_all(bytes).unwrap();
        settle([&mut world.scheduler], |[node]| node.transport.counters().tls_refused == n);
        world.check(n);
    }
}

// --- files -------------------------------------------------------------------------------------

#[test]
fn files_that_cannot_be_used() {
    let authority = Authority::new();
    let (good, other) = (authority.issue("a.test"), authority.issue("b.test"));
    let nowhere = PathBuf::from("/nonexistent/x.pem");
    let text = authority.folder().join("text.pem");
    std::fs::write(&text, "nothing of the kind\n").unwrap();
    let broken = authority.folder().join("broken.pem");
    std::fs::write(&broken, "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n")
        .unwrap();
    let cases = [
        (TlsSpec { ca: nowhere.clone(), ..good.clone() }, "tls.ca: /nonexistent", "cannot be read"),
        (TlsSpec { cert: nowhere.clone(), ..good.clone() }, "tls.cert", "cannot be read"),
        (TlsSpec { key: nowhere, ..good.clone() }, "tls.key", "cannot be read"),
        (TlsSpec { ca: text.clone(), ..good.clone() }, "tls.ca", "holds no certificate"),
        (TlsSpec { key: text, ..good.clone() }, "tls.key", "holds no private key"),
        (TlsSpec { cert: good.key.clone(), ..good.clone() }, "tls.cert", "holds no certificate"),
        (TlsSpec { cert: broken, ..good.clone() }, "tls.cert", "is damaged"),
        (TlsSpec { key: other.key, ..good.clone() }, "tls.key", "is not the key of tls.cert"),
    ];
    for (spec, whose, what) in cases {
        let error: CredentialsError = Credentials::load(&spec).unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with(whose) && error.contains(what), "{error}");
    }
    assert_eq!(Credentials::load(&good).unwrap().problems(), Vec::<String>::new());
}

/// What peers would say is known before they do.
#[test]
fn a_certificate_that_no_peer_will_accept() {
    let authority = Authority::new();
    for (spec, _, said) in bad_certificates(&authority) {
        let problems = Credentials::load(&spec).unwrap().problems();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(
            problems[0].starts_with("tls.cert: ") && problems[0].contains(said),
            "{problems:?}"
        );
        assert!(!problems[0].contains("peer"), "{problems:?}");
    }
}

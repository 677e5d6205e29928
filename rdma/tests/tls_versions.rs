//! Builds of different protocol versions under TLS: as without, for the hello is the same; what is
//! refused is refused with words, and with the reason that counts.
#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod common;

use std::sync::Arc;

use baton_rdma::wire::{Hello, RefuseCode, Role, VERSION_MAX, VERSION_MIN, Versions};
use baton_rdma::{Credentials, ReadStatus, TcpConfig, TlsSpec, Transport};
use common::certs::Authority;
use common::raw::TcpNode;
use common::secure::listed;
use common::{
    Node, Seen, holds, landing, open, read, refused, result, secured, settle, slabs, submit,
};

const BYTES: u32 = 40_000;

/// A member of a build that speaks `versions`.
fn of_build(role: Role, spec: &TlsSpec, versions: Versions) -> TcpNode {
    let credentials = Credentials::load(spec).unwrap();
    Node::new(secured(role, 9, TcpConfig::default(), &credentials).claiming(versions))
}

fn up_to(max: u16) -> Versions {
    Versions { min: VERSION_MIN, max }
}

/// A frontend and a backend of these builds, each with the certificate of its role.
fn pair(authority: &Authority, builds: [Versions; 2]) -> (TcpNode, TcpNode) {
    let spec = |name| listed(authority.issue(name));
    let frontend = of_build(Role::Frontend, &spec("web.cluster.test"), builds[0]);
    (frontend, of_build(Role::Backend, &spec("gpu-1.cluster.test"), builds[1]))
}

/// A build ahead of this one included: it comes first in an upgrade.
#[test]
fn every_mixture_of_builds_speaks_the_newest_version_both_know() {
    let authority = Authority::new();
    for accepting in VERSION_MIN..=VERSION_MAX + 1 {
        for connecting in VERSION_MIN..=VERSION_MAX + 1 {
            let builds = [up_to(accepting), up_to(connecting)];
            let (mut frontend, mut backend) = pair(&authority, builds);
            let set = slabs(9, 1, BYTES);
            frontend.transport.expose(Arc::clone(&set)).unwrap();
            let buffer = landing(&mut backend, BYTES as usize);
            let (conn, _) = open(&mut backend, &mut frontend);
            let agreed = accepting.min(connecting);
            for node in [&frontend, &backend] {
                assert_eq!(node.opened()[0].1.version, agreed, "{builds:?}");
            }
            let task = submit(&set, 3);
            backend.transport.post_reads(&mut vec![read(conn, task, &buffer, 0, BYTES)]);
            settle([&mut backend, &mut frontend], |[backend, _]| backend.reads().len() == 1);
            assert_eq!(backend.reads()[0].status, ReadStatus::Done, "{builds:?}");
            assert!(holds(&backend.reads()[0].row, 3), "{builds:?}");
            backend.transport.reply(conn, &result(task), &[7; 16]).unwrap();
            settle([&mut backend, &mut frontend], |[_, frontend]| {
                frontend.seen.iter().any(|seen| matches!(seen, Seen::Result(_, _, 16)))
            });
        }
    }
}

/// The refusal crosses the encrypted connection whole, and is no matter of TLS.
#[test]
fn builds_that_have_nothing_in_common_part_with_words() {
    let authority = Authority::new();
    let ahead = Versions { min: VERSION_MAX + 1, max: VERSION_MAX + 1 };
    for builds in [[Versions::SPOKEN, ahead], [ahead, Versions::SPOKEN]] {
        let (mut frontend, mut backend) = pair(&authority, builds);
        backend.connect(frontend.transport.local_addr());
        settle([&mut backend, &mut frontend], |[backend, _]| !backend.closed().is_empty());
        let told = backend.closed();
        let (code, detail) = refused(&told[0].1).expect("words");
        assert_eq!(code, RefuseCode::Version, "{detail}");
        let Versions { min, max } = builds[1];
        let theirs = format!("you speak {min} to {max}; upgrade the older one");
        assert!(detail.contains(&theirs), "{detail}");
        assert!(frontend.opened().is_empty() && backend.opened().is_empty());
        let counters = frontend.transport.counters();
        assert_eq!((counters.version_refused, counters.tls_refused), (1, 0));
    }
}

/// A peer of another build must be who the lists say, like any other.
#[test]
fn a_newer_build_with_the_certificate_of_another_role_is_refused_for_that() {
    let authority = Authority::new();
    for versions in
        [up_to(VERSION_MAX + 1), Versions { min: VERSION_MAX + 1, max: VERSION_MAX + 1 }]
    {
        let (mut frontend, _) = pair(&authority, [Versions::SPOKEN; 2]);
        let foreign = listed(authority.issue("web.cluster.test"));
        let mut guest = of_build(Role::Backend, &foreign, versions);
        let addr = frontend.transport.local_addr();
        guest.transport.connect(addr, Hello::new(Role::Backend, 5, 77)).unwrap();
        settle([&mut guest, &mut frontend], |[guest, _]| !guest.closed().is_empty());
        let told = guest.closed();
        let (code, detail) = refused(&told[0].1).expect("words");
        assert_eq!(code, RefuseCode::Unauthorised, "{detail}");
        assert!(detail.contains("may not act as Backend"), "{detail}");
        let counters = frontend.transport.counters();
        assert_eq!((counters.version_refused, counters.tls_refused), (0, 1));
        assert!(frontend.opened().is_empty());
    }
}

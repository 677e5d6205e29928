//! Who is let near a key, and what a wrong one opens: certificates before queue pairs, and keys only over TLS.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use baton_rdma::wire::{FabricSlab, Kind};
use baton_rdma::{Credentials, Identity, TlsSpec};
use zerocopy::FromBytes as _;

use super::messages::answers;
use super::tap::Tap;
use super::*;
use crate::common::certs::{Authority, Valid};
use crate::common::secure::tls_text;
use crate::common::{Seen, result};

/// What members of either role must be called.
fn listed(spec: TlsSpec) -> TlsSpec {
    let names = |name: &str| Some(vec![name.to_owned()]);
    TlsSpec { backends: names("gpu.test"), frontends: names("web.test"), ..spec }
}

/// A member with this certificate, or none; RDMA or nothing.
fn member(role: Role, spec: Option<&TlsSpec>) -> MixedNode {
    let credentials = spec.map(|spec| Credentials::load(&listed(spec.clone())).unwrap());
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let verbs = on_device(usize::from(role == Role::Frontend));
    let identity = Identity { role, member: 1 };
    let (tcp, choice, clock) = (TcpConfig::default(), TransportChoice::Rdma, Clock::start());
    let bound =
        MixedTransport::bind(Some(any), identity, tcp, choice, &verbs, credentials.as_ref(), clock);
    Node::new(bound.unwrap())
}

fn backend_and_frontend(authority: Option<&Authority>) -> (MixedNode, MixedNode) {
    let [gpu, web] = ["gpu.test", "web.test"].map(|name| authority.map(|of| of.issue(name)));
    (member(Role::Backend, gpu.as_ref()), member(Role::Frontend, web.as_ref()))
}

/// Queue pairs of this machine, as the kernel counts them.
fn queue_pairs() -> usize {
    let output = Command::new("rdma").args(["resource", "show", "qp"]).output().unwrap();
    assert!(output.status.success(), "rdma resource show qp");
    String::from_utf8(output.stdout).unwrap().lines().count()
}

#[test]
fn inputs_and_answers_with_tls() {
    if !rdma_here() {
        return;
    }
    const COUNT: u32 = 20;
    let before = queue_pairs();
    let (backend, frontend) = backend_and_frontend(Some(&Authority::new()));
    let mut pair = Pair::of(backend, frontend, COUNT, 4_000);
    pair.started();
    assert_eq!(queue_pairs(), before + 4, "two at each end");
    let tasks: Vec<_> = (0..COUNT).map(|seed| submit(&pair.slabs, seed.into())).collect();
    pair.post(&tasks, 100);
    let good = |done: &&ReadDone| done.status == ReadStatus::Done && holds(&done.row, done.tag);
    assert!(pair.settle(COUNT as usize).iter().all(good));
    for task in &tasks {
        pair.backend.transport.reply(pair.conn, &result(*task), &[7; 4_000]).unwrap();
    }
    pair.both(|[_, frontend]| answers(frontend) as u32 == COUNT);
    for task in tasks {
        assert!(pair.slabs.complete(task));
        assert_eq!(pair.slabs.output(task).unwrap()[..], [7; 4_000]);
    }
    let (mine, theirs) = (pair.backend.transport.counters(), pair.frontend.transport.counters());
    assert_eq!((mine.reads_rdma, theirs.answers_rdma), (COUNT.into(), COUNT.into()));
    assert_eq!((theirs.reads_served, mine.tls_refused, theirs.tls_refused), (0, 0, 0));
}

/// Queue pairs and keys travel beside the devices' names, which are easy to look for.
#[test]
fn keys_cross_the_network_in_tls_only() {
    if !rdma_here() {
        return;
    }
    let authority = Authority::new();
    for secured in [false, true] {
        let (mut backend, mut frontend) = backend_and_frontend(secured.then_some(&authority));
        let set = slabs(1, 1, 100);
        frontend.transport.expose(set.clone()).unwrap();
        let buffer = landing(&mut backend, 100);
        let tap = Tap::new(frontend.transport.local_addr(), None);
        let conn = backend.connect(tap.addr);
        settle([&mut backend, &mut frontend], |[_, frontend]| !frontend.opened().is_empty());
        let accepted = frontend.opened()[0].0;
        frontend.transport.trust(accepted);
        let task = submit(&set, 3);
        backend.transport.post_reads(&mut vec![read(conn, task, &buffer, 0, 100)]);
        settle([&mut backend, &mut frontend], |[backend, _]| !backend.reads().is_empty());
        assert_eq!(backend.reads()[0].status, ReadStatus::Done, "{:?}", backend.closed());
        assert!(tap.bytes() > 100, "{}", tap.bytes());
        assert_eq!(tap.saw("rxe"), !secured, "with TLS: {secured}");
    }
}

/// A connection that must not come about: how it ends at the backend, and what the frontend counted.
fn turned_away(backend: Option<&TlsSpec>, frontend: Option<&TlsSpec>) -> CloseReason {
    let mut backend = member(Role::Backend, backend);
    let mut frontend = member(Role::Frontend, frontend);
    let set = slabs(1, 1, 100);
    frontend.transport.expose(set.clone()).unwrap();
    let buffer = landing(&mut backend, 100);
    let before = queue_pairs();
    let conn = backend.connect(frontend.transport.local_addr());
    let task = submit(&set, 3);
    backend.transport.post_reads(&mut vec![read(conn, task, &buffer, 0, 100)]);
    let mut most = before;
    settle([&mut backend, &mut frontend], |[backend, frontend]| {
        most = most.max(queue_pairs());
        !backend.closed().is_empty() && frontend.transport.counters().closed == 1
    });
    assert_eq!(most, before, "a queue pair was made");
    assert!(backend.opened().is_empty() && frontend.seen.is_empty(), "{:?}", frontend.seen);
    assert_eq!(backend.reads()[0].status, ReadStatus::PeerLost);
    for counters in [backend.transport.counters(), frontend.transport.counters()] {
        assert_eq!((counters.links_rdma, counters.control_links, counters.reads_rdma), (0, 0, 0));
        assert!(counters.tls_refused <= 1, "{counters:?}");
    }
    let refused = [&backend, &frontend].map(|end| end.transport.counters().tls_refused);
    assert!(refused.contains(&1), "{refused:?}");
    backend.closed().swap_remove(0).1
}

#[test]
fn without_the_right_certificate_there_is_no_queue_pair_and_no_key() {
    if !rdma_here() {
        return;
    }
    let authority = Authority::new();
    let (gpu, web) = (authority.issue("gpu.test"), authority.issue("web.test"));
    let other = Authority::named("another");
    let stranger = TlsSpec { ca: authority.ca(), ..other.issue("gpu.test") };
    let expired = authority.issue_with("late.test", Valid::Formerly, |_| {});
    for (spec, why) in [(&stranger, "of no authority"), (&expired, "expired")] {
        let reason = turned_away(Some(spec), Some(&web));
        assert!(tls_text(&reason).contains(why), "{reason}");
        let other_way = TlsSpec { cert: spec.cert.clone(), key: spec.key.clone(), ..web.clone() };
        let reason = turned_away(Some(&gpu), Some(&other_way));
        assert!(reason.to_string().contains(why), "{reason}");
    }
    // A frontend's certificate does not make a backend: the keys are for backends.
    let reason = turned_away(Some(&web), Some(&web));
    let (code, detail) = refused(&reason).unwrap();
    assert!(code == RefuseCode::Unauthorised && detail.contains("tls.backends"), "{detail}");
    let reason = turned_away(None, Some(&web));
    assert!(tls_text(&reason).contains("this side has no [tls]"), "{reason}");
    let reason = turned_away(Some(&gpu), None);
    assert!(tls_text(&reason).contains("does not speak TLS"), "{reason}");
}

/// The frontend's device has the last word: a key it did not give opens nothing, and the connection over
/// which it was used ends with the reason. Another backend is read to as before.
#[test]
fn a_wrong_key_ends_its_connection_and_no_other() {
    if !rdma_here() {
        return;
    }
    let spoil = |kind, body: &mut [u8]| {
        if kind == Kind::FabricSlab {
            let (slab, _) = FabricSlab::mut_from_prefix(body).unwrap();
            slab.rkey = (slab.rkey.get() ^ 0x5a5a).into();
        }
    };
    let mut good = Pair::new(&on_device(0), &on_device(1), 2, IMAGE);
    let mut backend = node(Role::Backend, TransportChoice::Rdma, &on_device(0));
    let buffer = landing(&mut backend, IMAGE as usize);
    let tap = Tap::new(good.frontend.transport.local_addr(), Some(spoil));
    let conn = backend.connect(tap.addr);
    settle([&mut backend, &mut good.frontend], |[_, frontend]| frontend.opened().len() == 2);
    let accepted = good.frontend.opened()[1].0;
    good.frontend.transport.trust(accepted);
    let task = submit(&good.slabs, 1);
    backend.transport.post_reads(&mut vec![read(conn, task, &buffer, 0, IMAGE)]);
    settle([&mut backend, &mut good.frontend], |[backend, _]| !backend.closed().is_empty());
    let reason = backend.closed().swap_remove(0).1;
    assert!(
        matches!(&reason, CloseReason::Fabric(text) if text.contains("wrong key or range")),
        "{reason}"
    );
    assert_eq!(backend.reads()[0].status, ReadStatus::Refused);
    assert_eq!(backend.reads()[0].row[..], [0; IMAGE as usize], "not a byte");
    let last = backend.seen.last();
    assert!(matches!(last, Some(Seen::Closed(..))), "its last event");
    good.post(&[task], IMAGE);
    let done = good.settle(1)[0];
    assert!(done.status == ReadStatus::Done && holds(&done.row, 1));
}

/// A READ that comes after its task's time finds another one's input: it ends as stale, and
/// its bytes do not count.
#[test]
fn a_task_of_an_earlier_generation_is_stale() {
    if !rdma_here() {
        return;
    }
    let mut pair = Pair::new(&on_device(0), &on_device(1), 1, IMAGE);
    let old = submit(&pair.slabs, 1);
    pair.slabs.landing(old).unwrap().commit(4);
    assert!(pair.slabs.complete(old));
    drop(pair.slabs.output(old));
    let new = submit(&pair.slabs, 0);
    assert!(old.slot() == new.slot() && old != new);
    pair.post(&[old], IMAGE);
    assert_eq!(pair.settle(1)[0].status, ReadStatus::Stale);
    pair.backend.seen.clear();
    pair.post(&[new], IMAGE);
    let done = pair.settle(1)[0];
    assert!(done.status == ReadStatus::Done && holds(&done.row, 0));
    let counters = pair.backend.transport.counters();
    assert_eq!((counters.reads_rdma, counters.reads_failed), (1, 1));
}

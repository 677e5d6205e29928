//! Connections, and the messages on them.

use baton_rdma::wire::{Action, ActionTask, BODY_MAX, Hello, Ping, RefuseCode, Role};
use baton_rdma::{CloseReason, ConnId, Identity, SendError, TcpConfig, Transport};
use baton_types::{GpuId, ModelId, Nanos};
use zerocopy::FromBytes;

use crate::common::{Fabric, Seen, open, refused, settle};
use crate::{NodeOf, nodes, pair};

pub(crate) fn handshake<F: Fabric>() {
    let (mut a, mut b) = pair::<F>();
    b.transport.identify(Identity { role: Role::ModelThread, member: 4 });
    let (conn, accepted) = open(&mut a, &mut b);
    let (id, peer) = a.opened()[0];
    assert_eq!((id, peer.role, peer.member, peer.accepted), (conn, Role::ModelThread, 4, false));
    assert_eq!(peer.addr, b.transport.local_addr());
    let (id, peer) = b.opened()[0];
    assert_eq!((id, peer.role, peer.member, peer.token), (accepted, Role::Backend, 5, 77));
    assert!(peer.accepted);
    assert_eq!((a.transport.counters().opened, b.transport.counters().opened), (1, 1));
}

/// Messages may be sent at once, and the acceptor's owner sees the opening in a poll of its own: it
/// can still turn the peer away before anything else of it is acted on.
pub(crate) fn early_messages_follow_the_handshake<F: Fabric>() {
    let (mut a, mut b) = pair::<F>();
    let conn = a.connect(b.transport.local_addr());
    a.ping(conn, 1);
    settle([&mut a, &mut b], |[_, b]| !b.opened().is_empty());
    assert!(b.pings().is_empty());
    settle([&mut a, &mut b], |[_, b]| b.pings() == [1]);
}

pub(crate) fn messages_arrive_in_order<F: Fabric>() {
    const COUNT: u64 = 5_000;
    let (mut a, mut b) = pair::<F>();
    let (to_b, to_a) = open(&mut a, &mut b);
    let most = (BODY_MAX - size_of::<Action>()) / size_of::<ActionTask>();
    let tasks: Vec<u8> = (0..most * size_of::<ActionTask>()).map(|i| i as u8).collect();
    let action = Action::infer(1, [Nanos(2), Nanos(3)], ModelId(4), GpuId(5));
    for number in 0..COUNT {
        a.ping(to_b, number);
        b.ping(to_a, number + COUNT);
        if number % 500 == 0 {
            a.transport.send(to_b, &action, &tasks).unwrap();
        }
    }
    settle([&mut a, &mut b], |[a, b]| {
        a.pings().len() as u64 == COUNT && b.pings().len() as u64 == COUNT
    });
    assert!(b.pings().into_iter().eq(0..COUNT) && a.pings().into_iter().eq(COUNT..2 * COUNT));
    let actions = b.seen.iter().filter(|seen| match seen {
        Seen::Action(_, listed) => *listed == tasks,
        _ => false,
    });
    assert_eq!(actions.count() as u64, COUNT / 500);
    assert_eq!(a.transport.counters().messages_out, COUNT + COUNT / 500);
    assert_eq!(b.transport.counters().messages_in, COUNT + COUNT / 500);
}

pub(crate) fn what_cannot_be_sent<F: Fabric>() {
    let (mut a, mut b) = pair::<F>();
    let (conn, _) = open(&mut a, &mut b);
    let ping = Ping { sent_ns: 1.into() };
    let send = |a: &mut NodeOf<F>, conn, tail| a.transport.send(conn, &ping, tail);
    assert_eq!(send(&mut a, conn, &[0; BODY_MAX]), Err(SendError::TooLong));
    assert_eq!(send(&mut a, ConnId(12345), &[]), Err(SendError::Closed));
    a.transport.close(ConnId(12345), RefuseCode::Shutdown, "no such connection");
    a.transport.close(conn, RefuseCode::Shutdown, "bye");
    assert_eq!(send(&mut a, conn, &[]), Err(SendError::Closed));
}

pub(crate) fn closing_says_why<F: Fabric>() {
    let (mut a, mut b) = pair::<F>();
    let (to_b, to_a) = open(&mut a, &mut b);
    b.ping(to_a, 3);
    b.transport.close(to_a, RefuseCode::BadRequest, "model 7 is unknown");
    settle([&mut a, &mut b], |[a, b]| !a.closed().is_empty() && !b.closed().is_empty());
    assert_eq!(a.pings(), [3], "what was queued before still arrives");
    assert_eq!(b.closed(), [(to_a, CloseReason::Local)]);
    let (conn, reason) = &a.closed()[0];
    assert_eq!(*conn, to_b);
    assert_eq!(refused(reason), Some((RefuseCode::BadRequest, "model 7 is unknown")));
    assert_eq!((a.transport.counters().closed, b.transport.counters().closed), (1, 1));
}

pub(crate) fn nothing_listens<F: Fabric>() {
    let (mut a, b) = pair::<F>();
    let addr = b.transport.local_addr();
    drop(b);
    let conn = a.connect(addr);
    settle([&mut a], |[a]| !a.closed().is_empty());
    let refused = CloseReason::Reset(std::io::ErrorKind::ConnectionRefused);
    assert_eq!(a.closed(), [(conn, refused)]);
}

pub(crate) fn too_many_connections<F: Fabric>() {
    let full = TcpConfig { connections_max: 1, ..TcpConfig::default() };
    let (mut a, mut b) = nodes::<F>(TcpConfig::default(), full);
    open(&mut a, &mut b);
    let addr = a.transport.local_addr();
    assert!(b.transport.connect(addr, Hello::new(Role::Backend, 0, 0)).is_err());
    let second = a.connect(b.transport.local_addr());
    settle([&mut a, &mut b], |[a, _]| !a.closed().is_empty());
    let (conn, reason) = &a.closed()[0];
    assert_eq!(*conn, second);
    let told = refused(reason).map(|(code, _)| code);
    assert_eq!(told, F::TELLS_WHEN_FULL.then_some(RefuseCode::Limit), "{reason}");
    assert_eq!(b.transport.counters().refused, 1);
}

pub(crate) fn no_answer_to_the_hello<F: Fabric>() {
    let (mut a, b) = pair::<F>();
    let conn = a.connect(b.transport.local_addr());
    a.poll();
    a.pass(TcpConfig::default().handshake_timeout);
    settle([&mut a], |[a]| !a.closed().is_empty());
    assert_eq!(a.closed(), [(conn, CloseReason::HandshakeTimeout)]);
    assert_eq!(a.transport.counters().refused, 1);
}

/// What does not fit is refused and counted, what was taken arrives, and then there is room again.
pub(crate) fn a_peer_that_does_not_read<F: Fabric>() {
    let small = TcpConfig { send_queue_bytes: 100_000, ..TcpConfig::default() };
    let (mut a, mut b) = nodes::<F>(small, small);
    let (conn, _) = open(&mut a, &mut b);
    let tail = vec![9; 8 * 1000];
    let mut taken = 0;
    let action = Action::read_from_bytes(&[0; size_of::<Action>()]).unwrap();
    let full = (0..10_000).find_map(|_| {
        let sent = a.transport.send(conn, &action, &tail);
        a.transport.flush();
        taken += usize::from(sent.is_ok());
        sent.err()
    });
    assert_eq!((full, a.transport.counters().send_full), (Some(SendError::Full), 1));
    let arrived =
        |b: &NodeOf<F>| b.seen.iter().filter(|seen| matches!(seen, Seen::Action(..))).count();
    settle([&mut a, &mut b], |[_, b]| arrived(b) == taken);
    assert_eq!(a.transport.send(conn, &action, &tail), Ok(()));
    settle([&mut a, &mut b], |[_, b]| arrived(b) == taken + 1);
}

//! Connections within one process: what a send queue holds, and who hears of a connection.

use baton_rdma::wire::{Hello, PAYLOAD_MAX, Ping, Role, TaskResult};
use baton_rdma::{
    ConnId, Event, Events, Identity, InprocNetwork, InprocTransport, SendError, TcpConfig,
    Transport,
};
use baton_types::Nanos;
use zerocopy::FromZeros;

fn identity(role: Role) -> Identity {
    Identity { role, member: 0 }
}

/// What `transport` hears in one pass: openings and ends.
fn hear(transport: &mut InprocTransport) -> Vec<(&'static str, ConnId)> {
    let mut events = Events::new();
    transport.poll(Nanos::from_millis(1), &mut events);
    let heard = events.drain().filter_map(|event| match event {
        Event::Opened { conn, .. } => Some(("opened", conn)),
        Event::Closed { conn, .. } => Some(("closed", conn)),
        _ => None,
    });
    let heard = heard.collect();
    transport.flush();
    heard
}

/// Whether this can be sent twice to a peer that takes nothing, if a send queue has this room.
fn fits_twice(
    room: usize,
    send: impl Fn(&mut InprocTransport, ConnId) -> Result<(), SendError>,
) -> bool {
    let network = InprocNetwork::new();
    let config = TcpConfig { send_queue_bytes: room, ..TcpConfig::default() };
    let mut one = network.endpoint_with(identity(Role::Backend), config);
    let mut other = network.endpoint(identity(Role::Frontend));
    let conn =
        one.connect(other.local_addr(), Hello::new(Role::Backend, 0, 0)).expect("it is there");
    one.flush();
    assert_eq!(hear(&mut other).len(), 1);
    assert_eq!(hear(&mut one), [("opened", conn)]);
    send(&mut one, conn).expect("one passes whatever its length");
    one.flush();
    send(&mut one, conn).is_ok()
}

/// How long a frame is: twice as long as it is the least room for two.
fn frame_bytes(
    send: impl Fn(&mut InprocTransport, ConnId) -> Result<(), SendError> + Copy,
) -> usize {
    let room = (0..1_000).find(|&room| fits_twice(room, send)).expect("frames are short");
    assert_eq!(room % 2, 0);
    room / 2
}

#[test]
fn a_frame_takes_its_length_in_the_send_queue() {
    let ping = Ping { sent_ns: 1.into() };
    let bare = frame_bytes(|one, conn| one.send(conn, &ping, &[]));
    assert!(bare > size_of::<Ping>(), "it has a header");
    assert_eq!(frame_bytes(|one, conn| one.send(conn, &ping, b"seven b")), bare + 7);
    let answer = TaskResult::new_zeroed();
    let empty = frame_bytes(|one, conn| one.reply(conn, &answer, &[]));
    assert_eq!(empty, bare + size_of::<TaskResult>() - size_of::<Ping>());
    assert_eq!(frame_bytes(|one, conn| one.reply(conn, &answer, &[0; 9])), empty + 9);
}

#[test]
fn an_answer_may_be_as_long_as_a_payload_and_no_longer() {
    let answer = TaskResult::new_zeroed();
    let longest = vec![0; PAYLOAD_MAX];
    assert!(!fits_twice(0, |one, conn| one.reply(conn, &answer, &longest)), "it passes alone");
    let send = |one: &mut InprocTransport, conn| {
        assert_eq!(one.reply(conn, &answer, &vec![0; PAYLOAD_MAX + 1]), Err(SendError::TooLong));
        Ok(())
    };
    assert!(fits_twice(0, send));
}

#[test]
fn who_hangs_up_before_a_word_was_never_heard_of() {
    let network = InprocNetwork::new();
    let [mut one, mut other] =
        [Role::Backend, Role::Frontend].map(|role| network.endpoint(identity(role)));
    one.connect(other.local_addr(), Hello::new(Role::Backend, 0, 0)).expect("it is there");
    drop(one);
    assert_eq!(hear(&mut other), []);
    assert_eq!(hear(&mut other), []);
}

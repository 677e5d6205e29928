//! Which frontends a backend pulls from, and where their slots lie.

use std::net::Ipv4Addr;

use baton_rdma::wire::WireAddr;
use baton_rdma::{Identity, InprocNetwork, TcpConfig, TcpTransport};

use super::*;

const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9);

fn slab(frontend: u32, first_slot: u32, model: u32) -> SlabDesc {
    SlabDesc {
        frontend: frontend.into(),
        first_slot: first_slot.into(),
        slots: 4.into(),
        stride: 64.into(),
        input_bytes: 16.into(),
        model: model.into(),
    }
}

fn up(frontend: u32, slabs: u16) -> PeerUp {
    PeerUp {
        frontend: frontend.into(),
        reserved: 0.into(),
        token: 1.into(),
        addr: WireAddr::new(HERE),
        slabs: slabs.into(),
        reserved2: 0.into(),
    }
}

fn model(id: u32, input_bytes: u32) -> ServedModel {
    let (id, local) = (ModelId(id), ModelId(0));
    ServedModel {
        id,
        local,
        batch_max: 4,
        input_bytes,
        output_bytes: 8,
        input_is_fixed: true,
        variants: 1,
    }
}

#[test]
fn a_task_is_found_only_in_a_slab_of_its_model_and_size() {
    let mut peers = Peers::default();
    peers.announce(&slab(2, 0, 6)).unwrap();
    peers.announce(&slab(2, 4, 7)).unwrap();
    peers.up(&up(2, 2), HERE.ip()).unwrap();
    let of = |frontend, slot| {
        let id = TaskId::new(FrontendId(frontend), slot, 0);
        BatchTask { id, input_bytes: 16, is_cold: false }
    };
    let at = |slot| of(2, slot);
    let sound = Err(FailReason::FetchFailed); // found, but not connected yet
    assert_eq!(peers.locate(at(4), &model(7, 16)), sound);
    assert_eq!(peers.locate(at(3), &model(7, 16)), Err(FailReason::WrongSize));
    assert_eq!(peers.locate(at(8), &model(7, 16)), Err(FailReason::WrongSize));
    assert_eq!(peers.locate(at(4), &model(7, 32)), Err(FailReason::WrongSize));
    let stranger = of(3, 4);
    let short = BatchTask { input_bytes: 15, ..at(4) };
    assert_eq!(peers.locate(short, &model(7, 16)), Err(FailReason::WrongSize));
    let small = BatchTask { input_bytes: 8, ..at(4) };
    assert_eq!(peers.locate(small, &model(7, 8)), Err(FailReason::WrongSize));
    assert_eq!(peers.locate(stranger, &model(7, 16)), Err(FailReason::FetchFailed));
}

#[test]
fn the_frontend_that_is_due_first_is_tried_first() {
    let mut peers = Peers::default();
    let ms = Nanos::from_millis;
    for (frontend, tried) in [(1, ms(10)), (2, ms(40))] {
        peers.up(&up(frontend, 0), HERE.ip()).unwrap();
        peers.frontends[frontend as usize].as_mut().unwrap().tried = Some(tried);
    }
    let identity = Identity { role: Role::Backend, member: 5 };
    let mut transport = InprocNetwork::new().endpoint(identity);
    assert_eq!(peers.connect_due(ms(41), 5, &mut transport), 0);
    assert_eq!(peers.next_retry(), Some(ms(10) + RECONNECT_AFTER));
    assert_eq!(peers.connect_due(ms(10) + RECONNECT_AFTER, 5, &mut transport), 1);
    let tried = [1, 2].map(|at| peers.frontends[at].as_ref().unwrap().conn.is_some());
    assert_eq!(tried, [true, false]);
}

#[test]
fn a_frontend_for_which_there_is_no_connection_is_tried_again() {
    let mut peers = Peers::default();
    peers.up(&up(1, 0), HERE.ip()).unwrap();
    let identity = Identity { role: Role::Backend, member: 5 };
    let none = TcpConfig { connections_max: 0, ..TcpConfig::default() };
    let mut transport = TcpTransport::bind(None, identity, none).unwrap();
    let now = Nanos::from_millis(10);
    assert_eq!(peers.connect_due(now, 5, &mut transport), 1);
    assert_eq!(peers.next_retry(), Some(now + RECONNECT_AFTER));
}

#[test]
fn a_frontend_whose_slabs_do_not_add_up_is_not_taken_in() {
    let mut peers = Peers::default();
    assert!(peers.announce(&slab(2, TaskId::SLOTS_MAX - 3, 6)).is_err(), "beyond all slots");
    assert!(peers.up(&up(2, 1), HERE.ip()).is_err(), "announced none, claims one");
    peers.announce(&slab(3, 0, 6)).unwrap();
    assert!(peers.up(&up(2, 1), HERE.ip()).is_err(), "another frontend's slab");
    assert!(peers.up(&up(1 << 16, 0), HERE.ip()).is_err(), "no such id");
}

/// A stranger may have the address of a frontend that is gone.
#[test]
fn a_connection_that_does_not_lead_to_the_frontend_is_not_it() {
    let mut peers = Peers::default();
    peers.up(&up(2, 0), HERE.ip()).unwrap();
    let conn = ConnId(4);
    let frontend = peers.frontends[2].as_mut().unwrap();
    (frontend.conn, frontend.is_told) = (Some(conn), true);
    let (role, version) = (Role::Frontend, 1);
    let it = Peer { role, member: 2, token: 0, addr: HERE, accepted: false, version };
    let strangers = [
        Peer { role: Role::ModelThread, ..it },
        Peer { member: 3, ..it },
        Peer { accepted: true, ..it },
    ];
    assert!(strangers.iter().all(|peer| !peers.opened(conn, peer)));
    let is_told = |peers: &Peers| peers.frontends[2].as_ref().unwrap().is_told;
    assert!(is_told(&peers));
    assert!(peers.opened(conn, &it) && !is_told(&peers));
    assert!(peers.opened(conn, &Peer { member: 0, ..it }), "it has not joined yet");
}

/// Whose model has gone, and whose slots another model's has now.
#[test]
fn a_slab_that_comes_later_takes_the_place_of_those_that_had_its_slots() {
    for (first, stays) in [(4, true), (5, false), (8, false), (11, false), (12, true)] {
        let mut peers = Peers::default();
        peers.announce(&slab(2, 8, 6)).unwrap();
        peers.up(&up(2, 1), HERE.ip()).unwrap();
        peers.extend(&slab(2, first, 7)).unwrap();
        let slabs = &peers.frontends[2].as_ref().unwrap().slabs;
        let models: Vec<u32> = slabs.iter().map(|slab| slab.model.0).collect();
        let expected: &[u32] = if stays { &[6, 7] } else { &[7] };
        assert_eq!(models, expected, "slots 8 to 11, then four from {first} on");
    }
}

#[test]
fn no_frontend_has_a_slab_of_a_removed_model() {
    let mut peers = Peers::default();
    for frontend in [1, 2] {
        peers.announce(&slab(frontend, 0, 6)).unwrap();
        peers.announce(&slab(frontend, 4, 7)).unwrap();
        peers.up(&up(frontend, 2), HERE.ip()).unwrap();
    }
    peers.forget_model(ModelId(6));
    for frontend in peers.frontends.iter().flatten() {
        assert_eq!(frontend.slabs.iter().map(|slab| slab.model.0).collect::<Vec<_>>(), [7]);
    }
}

/// Older frontends read the bit as a part of something else, and of one that is not connected nothing is known.
#[test]
fn frontends_hear_of_cold_tasks_from_the_version_on_that_has_a_word_for_it() {
    let mut peers = Peers::default();
    peers.up(&up(1, 0), HERE.ip()).unwrap();
    let mut hears = |version| {
        peers.frontends[1].as_mut().unwrap().version = version;
        peers.hears_cold(FrontendId(1))
    };
    assert_eq!([0, COLD_SINCE - 1, COLD_SINCE].map(&mut hears), [false, false, true]);
    assert!(!peers.hears_cold(FrontendId(2)), "it is no member");
}

#[test]
fn a_number_has_another_owner_only_once_the_former_has_gone() {
    let mut peers = Peers::default();
    peers.up(&up(2, 0), HERE.ip()).unwrap();
    assert!(peers.up(&up(2, 0), HERE.ip()).is_err());
    peers.down(FrontendId(2));
    assert_eq!(peers.up(&up(2, 0), HERE.ip()), Ok(()));
}

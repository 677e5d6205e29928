//! Slabs that joined frontends announce: a frontend may use one once every backend knows it.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod stage;

use baton_core::Policy;
use baton_rdma::TcpConfig;
use baton_rdma::wire::{RefuseCode, SlabDesc, SlabKnown};
use stage::changes::{add, remove, stage};
use stage::{Stage, Told, cluster};

fn slab(first_slot: u32, slots: u32) -> SlabDesc {
    SlabDesc {
        frontend: 999.into(),
        first_slot: first_slot.into(),
        slots: slots.into(),
        stride: 64.into(),
        input_bytes: 8.into(),
        model: 0.into(),
    }
}

#[test]
fn a_new_slab_is_known_when_every_backend_knows_it() {
    let mut stage = stage();
    let (mut one, mut two) = (stage.backend("one", 0, 1), stage.backend("two", 1, 1));
    let mut client = stage.frontend();
    [&mut one, &mut two].into_iter().for_each(|backend| drop(stage.exchange(backend)));
    let slab = slab(7, 2);
    client.send(&slab, &[]);
    assert_eq!(stage.exchange(&mut client), []);
    let known = SlabKnown { frontend: client.id.into(), first_slot: 7.into() };
    one.send(&known, &[]);
    stage.exchange(&mut one);
    let slabs: Vec<u32> = one.slabs.iter().map(|slab| slab.frontend.get()).collect();
    assert_eq!(slabs, [client.id], "it is the client's, whatever the client says");
    assert_eq!(stage.exchange(&mut client), [], "the other does not");
    drop(two);
    stage.settle();
    assert_eq!(stage.exchange(&mut client), [Told::SlabKnown { first_slot: 7 }], "nor needs to");
    client.send(&SlabDesc { model: 3.into(), ..slab }, &[]);
    let told = stage.exchange(&mut client);
    assert!(matches!(told.last(), Some(Told::Refused { .. } | Told::Closed)), "{told:?}");
}

/// The backend's word may come when another frontend has the number.
#[test]
fn a_frontend_hears_nothing_of_the_slabs_of_the_one_that_had_its_number() {
    let mut stage = stage();
    let (mut backend, mut client) = (stage.backend("a", 0, 1), stage.frontend());
    client.send(&slab(7, 2), &[]);
    assert_eq!(stage.exchange(&mut client), []);
    let number = client.id;
    let mut next = loop {
        drop(client);
        stage.settle();
        client = stage.frontend();
        if client.id == number {
            break client;
        }
    };
    backend.send(&SlabKnown { frontend: number.into(), first_slot: 7.into() }, &[]);
    stage.exchange(&mut backend);
    assert_eq!(stage.exchange(&mut next), []);
}

/// The place of the slab is free for another model only once it is known.
#[test]
fn no_backend_is_waited_for_to_know_a_slab_of_a_removed_model() {
    let mut stage = stage();
    let (mut backend, mut client) = (stage.backend("a", 0, 1), stage.frontend());
    stage.exchange(&mut backend);
    let (id, _) = add(&mut stage, &mut backend, &mut client);
    client.send(&SlabDesc { model: id.into(), ..slab(7, 2) }, &[]);
    assert_eq!(stage.exchange(&mut client), []);
    remove(&mut stage);
    let told = stage.exchange(&mut client);
    assert!(told.contains(&Told::SlabKnown { first_slot: 7 }), "{told:?}");
}

#[test]
fn a_frontend_has_no_more_slabs_than_there_may_be_models() {
    let mut spec = cluster(Policy::Eager, 1);
    spec.scheduler.models_max = Some(3);
    let mut stage = Stage::new(&spec);
    let mut client = stage.frontend();
    let mut announce = |number: u32| {
        client.send(&slab(number, 1), &[]);
        stage.exchange(&mut client)
    };
    for number in [0, 1, 2, 2] {
        assert_eq!(announce(number), [Told::SlabKnown { first_slot: number }]);
    }
    let told = announce(3);
    let Some(Told::Refused { code, .. }) = told.first() else { panic!("{told:?}") };
    assert_eq!(*code, Some(RefuseCode::Limit));
}

/// It would not know from where to fetch what it is to execute.
#[test]
fn a_backend_that_reads_nothing_of_who_comes_is_lost() {
    let bounds = TcpConfig { send_queue_bytes: 1_024, ..TcpConfig::default() };
    let mut stage = Stage::bounded(&cluster(Policy::Eager, 1), bounds);
    let mut backend = stage.backend("one", 0, 1);
    stage.exchange(&mut backend);
    let clients: Vec<_> = (0..64).map(|_| stage.frontend()).collect();
    let told = stage.exchange(&mut backend);
    let known = told.iter().filter(|told| matches!(told, Told::PeerUp { .. })).count();
    assert!((1..clients.len()).contains(&known), "{told:?}");
    assert!(matches!(told.last(), Some(Told::Refused { .. } | Told::Closed)), "{told:?}");
    let counters = &stage.scheduler.counters().control_thread;
    assert_eq!((counters.undelivered.get(), counters.backends_lost.get()), (1, 1));
}

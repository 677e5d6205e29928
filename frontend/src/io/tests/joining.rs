//! How a client comes to be, and how it fails to.

use baton_core::Nanos;
use baton_rdma::wire::{JoinAck, RefuseCode, Role};
use baton_rdma::{CloseReason, Identity, Transport};

use super::world::*;
use crate::ConnectError;

#[test]
fn a_client_announces_its_slabs_and_is_ready_when_linked() {
    let mut world = World::new(|config| config);
    world.announce();
    let slab = |model| Heard::Slab { model, slots: SLOTS, input_bytes: INPUT as u32 };
    let opened = Heard::Opened { role: Role::Frontend, token: 0 };
    assert_eq!(world.control.take(), [opened, slab(0), slab(1), Heard::Join { slabs: 2 }]);
    assert!(world.joining.poll().is_none(), "not admitted yet");

    world.admit();
    world.steps(40);
    assert_eq!(world.control.take(), [Heard::Ready]);
    for thread in &mut world.threads {
        assert_eq!(thread.take(), [Heard::Opened { role: Role::Frontend, token: TOKEN }]);
    }
    let client = world.joining.poll().unwrap().unwrap();
    let names: Vec<_> = client.models().iter().map(|model| model.name().to_owned()).collect();
    assert_eq!(names, MODELS);
    let alpha = client.model("alpha").unwrap();
    assert_eq!((alpha.input_bytes(), alpha.output_bytes()), (INPUT, OUTPUT));
    assert_eq!(alpha.slo().as_nanos() as u64, SLO.0);
}

#[test]
fn memory_is_reserved_only_for_the_models_named() {
    let (_world, client) = World::open_with(|config| config.models(["beta"]));
    assert_eq!(client.models().len(), 1);
    let error = client.model("alpha").unwrap_err();
    assert_eq!(error.known, ["beta"]);
    assert_eq!(client.counters().unknown_model, 1);
}

#[test]
fn a_model_that_is_not_there_fails_the_join() {
    let mut world = World::new(|config| config.models(["alpha", "gamma"]));
    world.announce();
    match world.join_error() {
        ConnectError::UnknownModel(error) => {
            assert_eq!(
                (error.name.as_str(), error.known.as_slice()),
                ("gamma", &MODELS.map(String::from)[..])
            );
        }
        other => panic!("{other}"),
    }
    world.steps(2);
    assert!(world.io.is_none(), "nothing is left running");
    assert!(matches!(
        world.control.take().last(),
        Some(Heard::Closed(CloseReason::Refused { .. }))
    ));
}

#[test]
fn a_scheduler_that_says_no_is_quoted() {
    let mut world = World::new(|config| config);
    world.steps(3);
    world.control.close(RefuseCode::Limit);
    world.steps(3);
    match world.join_error() {
        ConnectError::Refused { code, detail, .. } => {
            assert_eq!(code, Some(RefuseCode::Limit));
            assert_eq!(detail, "as the test wants it");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_join_that_hangs_says_where() {
    let hang = |prepare: fn(&mut World), expected: &str| {
        let mut world = World::new(|config| config);
        prepare(&mut world);
        world.pass(Nanos::from_millis(5_001));
        match world.join_error() {
            ConnectError::Timeout { timeout_ms: 5_000, waiting_for } => {
                assert!(waiting_for.contains(expected), "{waiting_for}");
            }
            other => panic!("{other}"),
        }
        assert!(world.io.is_none());
    };
    hang(|world| world.steps(3), "catalogue");
    hang(World::announce, "admit");
    hang(
        |world| {
            world.alive = false;
            world.announce();
            world.admit();
        },
        "clock",
    );
}

#[test]
fn somebody_else_at_the_address_is_noticed() {
    let mut world = World::new(|config| config);
    world.control.transport.identify(Identity { role: Role::Backend, member: 3 });
    world.steps(4);
    let error = world.join_error().to_string();
    assert!(error.contains("it is no scheduler but says it is Backend"), "{error}");
}

#[test]
fn a_frontend_number_that_fits_no_task_id_is_refused() {
    let mut world = World::new(|config| config);
    world.announce();
    let ack = JoinAck { member: 70_000.into(), first_gpu: 0.into(), token: 1.into() };
    world.control.send(&ack, &[]);
    world.steps(3);
    assert!(matches!(world.join_error(), ConnectError::BadCatalogue(_)));
}

#[test]
fn a_backend_quicker_than_our_own_admission_is_let_in_by_its_token() {
    let mut world = World::new(|config| config);
    world.announce();
    world.connect_backend(Role::Backend, TOKEN);
    world.admit();
    world.steps(40);
    let client = world.joining.poll().unwrap().unwrap();
    let ticket = world.submit(&client.model("alpha").unwrap(), 1, crate::Deadline::Slo);
    world.backend.take();
    world.answer(ticket.task(), &[1; OUTPUT]);
    assert!(matches!(ticket.wait(), crate::Outcome::Completed(_)));
    assert_eq!(client.counters().strangers, 0);
}

#[test]
fn strangers_are_turned_away() {
    let (mut world, client) = World::open();
    world.backend.close(RefuseCode::Shutdown);
    for (role, token) in [(Role::Backend, TOKEN + 1), (Role::Frontend, TOKEN)] {
        world.backend.take();
        world.connect_backend(role, token);
        let refused = world.backend.take().pop();
        let Some(Heard::Closed(CloseReason::Refused { code, .. })) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(code, Some(RefuseCode::Unauthorised));
    }
    assert_eq!(client.counters().strangers, 2);
}

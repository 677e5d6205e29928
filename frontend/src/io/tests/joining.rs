//! How a client comes to be, and how it fails to.

use baton_membership::Stage;
use baton_rdma::wire::{JoinAck, RefuseCode, Role};
use baton_rdma::{CloseReason, ConnId, Identity, Peer, Transport};
use baton_topo::Agent;
use baton_types::Nanos;

use super::world::*;
use crate::io::backends::Backends;
use crate::{ConnectError, MembershipError};

#[test]
fn a_client_announces_its_slabs_and_is_ready_when_linked() {
    let mut world = World::new(|config| config);
    world.announce();
    let slab = |model| {
        let (first_slot, slots, input_bytes) = (model * SLOTS, SLOTS, INPUT as u32);
        Heard::Slab { model, first_slot, slots, input_bytes }
    };
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
        ConnectError::Membership(MembershipError::Refused { code, detail, .. }) => {
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
            ConnectError::Membership(MembershipError::Timeout {
                timeout_ms: 5_000,
                waiting_for,
                addr,
            }) => {
                assert!(waiting_for.contains(expected), "{waiting_for}");
                assert_eq!(addr, world.control.transport.local_addr());
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

/// The scheduler that is there now lets the client in, which serves.
fn joins_and_serves(mut world: World, member: u32) {
    world.take_back(member);
    let client = world.joining.poll().expect("it has joined").unwrap();
    let token = TOKEN + u64::from(member);
    world.connect_backend(Role::Backend, token);
    let ticket = world.submit(&client.model("alpha").unwrap(), 1, crate::Deadline::Slo);
    assert_eq!(u32::from(ticket.task().frontend().0), member);
    world.answer(ticket.task(), &[1; OUTPUT]);
    assert!(matches!(ticket.wait(), crate::Outcome::Completed(_)));
    assert_eq!((client.counters().reconnects, client.loss()), (0, None));
}

#[test]
fn a_scheduler_that_is_not_up_yet_is_tried_again() {
    let mut world = World::without_scheduler();
    world.pass(Nanos::from_millis(4_000));
    assert!(world.joining.poll().is_none(), "there is time left");
    world.start_scheduler();
    joins_and_serves(world, 7);
}

#[test]
fn after_a_long_search_the_next_one_begins_with_a_short_pause() {
    let mut world = World::without_scheduler();
    world.pass(Nanos::from_millis(4_000));
    world.start_scheduler();
    world.take_back(7);
    let _client = world.joining.poll().expect("it has joined").unwrap();
    world.lose_scheduler();
    let again = world.io.as_ref().unwrap().next_timer().unwrap();
    assert!(again <= world.now + Nanos::from_millis(50), "{:?}", again - world.now);
}

#[test]
fn a_scheduler_that_never_comes_is_an_error_with_address_time_and_remedy() {
    let mut world = World::without_scheduler();
    world.pass(Nanos::from_millis(4_400));
    assert!(world.joining.poll().is_none(), "the next pause ends before the bound");
    world.pass(Nanos::from_millis(700));
    let error = world.join_error();
    let ConnectError::Membership(MembershipError::TimedOut { tried_ms, .. }) = error else {
        panic!("{error}")
    };
    // Time passes in steps of 50 ms here.
    assert!((4_500..5_100).contains(&tried_ms), "{tried_ms}");
    let text = error.to_string();
    for part in [&LATER.to_string(), &format!("for {tried_ms} ms"), "start it", "connect_timeout()"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    world.steps(1);
    assert!(world.io.is_none(), "nothing is left running");
}

#[test]
fn time_that_has_passed_before_the_first_attempt_counts() {
    let mut world = World::without_scheduler();
    let began = world.now;
    world.io.as_mut().unwrap().count_from(began);
    world.now = began + Nanos::from_millis(4_900);
    world.pass(Nanos::from_millis(200));
    assert!(matches!(
        world.join_error(),
        ConnectError::Membership(MembershipError::TimedOut { .. })
    ));
}

#[test]
fn a_scheduler_that_stops_while_a_client_joins_is_waited_for_whatever_the_stage() {
    let stages: [fn(&mut World); 3] = [
        |world| world.steps(3),
        World::announce,
        |world| {
            world.alive = false;
            world.announce();
            world.admit();
            world.alive = true;
        },
    ];
    for prepare in stages {
        let mut world = World::new(|config| config);
        prepare(&mut world);
        world.stop_scheduler();
        assert!(world.joining.poll().is_none());
        joins_and_serves(world, 7);
    }
}

#[test]
fn a_model_thread_of_the_next_life_that_knows_no_such_client_is_no_error() {
    let mut world = World::new(|config| config);
    world.alive = false;
    world.announce();
    world.admit();
    world.alive = true;
    world.threads[1].close(RefuseCode::Unauthorised);
    world.steps(3);
    joins_and_serves(world, 7);
}

/// Registering slabs can take longer than a member may be silent.
#[test]
fn who_was_silent_while_it_made_its_slabs_joins_again() {
    let mut world = World::new(|config| config);
    world.announce();
    world.alive = false;
    world.control.close(RefuseCode::Silent);
    world.alive = true;
    world.steps(3);
    joins_and_serves(world, 7);
}

#[test]
fn a_scheduler_that_takes_connections_and_answers_nothing_is_called_anew() {
    let mut world = World::new(|config| config);
    for _ in 0..30 {
        world.now = world.now + Nanos::from_millis(50);
        world.io.as_mut().unwrap().poll(world.now);
    }
    world.steps(1);
    assert_eq!(world.control.transport.counters().opened, 2);
    joins_and_serves(world, 7);
}

/// The slabs are there already, for those models that are the same.
#[test]
fn models_may_change_before_a_client_is_in() {
    let mut world = World::new(|config| config);
    world.announce();
    world.stop_scheduler();
    world.await_client();
    world.control.take();
    world.announce_models(&["gamma", "alpha"]);
    let heard = world.control.take();
    let slab = |model, first_slot| {
        let (slots, input_bytes) = (SLOTS, INPUT as u32);
        Heard::Slab { model, first_slot, slots, input_bytes }
    };
    assert_eq!(heard, [slab(1, 0), slab(0, 2 * SLOTS), Heard::Join { slabs: 2 }]);
    world.admit();
    world.steps(40);
    let client = world.joining.poll().unwrap().unwrap();
    let names: Vec<_> = client.models().iter().map(|model| model.name().to_owned()).collect();
    assert_eq!(names, ["alpha", "gamma"]);
}

#[test]
fn a_model_that_is_wanted_and_gone_before_the_client_is_in_fails_the_join() {
    let mut world = World::new(|config| config.models(["beta"]));
    world.announce();
    world.stop_scheduler();
    world.await_client();
    world.announce_models(&["alpha"]);
    assert!(matches!(world.join_error(), ConnectError::UnknownModel(_)));
}

#[test]
fn a_peer_that_is_no_scheduler_is_noticed() {
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
    assert!(matches!(
        world.join_error(),
        ConnectError::Membership(MembershipError::BadCatalogue(_))
    ));
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

/// It is a stranger once this client is admitted.
#[test]
fn a_backend_that_came_early_and_left_again_is_forgotten() {
    let mut backends = Backends::default();
    let addr = "127.0.0.1:9".parse().expect("an address");
    let (accepted, version) = (true, 1);
    let peer = Peer { role: Role::Backend, member: 1, token: TOKEN, addr, accepted, version };
    let [left, stays] = [ConnId(1), ConnId(2)];
    assert!(backends.admit(left, &peer) && backends.admit(stays, &peer));
    backends.remove(left);
    assert_eq!(backends.set_token(TOKEN), []);
    assert!(backends.authorised(stays) && !backends.authorised(left));
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

#[test]
fn the_application_gets_the_client_once_its_memory_is_there() {
    let mut world = World::new(|config| config.slots_per_model(1 << 19));
    world.announce();
    world.admit();
    let (mut waited, mut joined) = (false, None);
    while joined.is_none() {
        let io = world.io.as_ref().unwrap();
        let prefaults = io.serving.as_ref().unwrap().prefaults;
        assert_eq!(io.next_timer() == Some(Nanos::ZERO), prefaults, "it waits for nothing else");
        waited |= prefaults && io.membership.stage() == Stage::Ready;
        world.step();
        joined = world.joining.poll();
    }
    assert!(
        joined.unwrap().is_ok() && !world.io.as_ref().unwrap().serving.as_ref().unwrap().prefaults
    );
    assert!(waited, "it was ready before: use more slots");
}

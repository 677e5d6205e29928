//! A membership, stepped by hand between a ControlThread and a ModelThread that do what the test says.

mod world;

use baton_membership::{MembershipError, Stage};
use baton_rdma::wire::{
    CatalogEnd, LeaveAck, RefuseCode, Role, SubclusterDesc, ThreadDesc, WireAddr,
};
use baton_rdma::{ConnId, Identity, Transport};
use baton_topo::{PARK_MAX, SLEEP_MAX};
use baton_types::Nanos;
use world::{JOIN_TIMEOUT, MEMBER_TIMEOUT, STEP, World};

#[test]
fn a_member_joins_stays_and_leaves() {
    let mut world = World::new();
    assert_eq!(world.membership.stage(), Stage::Catalogue);
    world.announce();
    assert_eq!((world.membership.stage(), world.membership.threads()), (Stage::Joining, 1));
    world.admit();
    world.steps(30);
    assert_eq!(world.control.heard, ["join", "ready"]);
    assert_eq!((world.membership.number(), world.membership.token()), (5, 77));
    assert_eq!((world.membership.life(), world.admissions, world.readies), (1, 1, 1));
    let conn = world.membership.thread(0).expect("connected");
    let others = ConnId(conn.0 + 1_000);
    assert_eq!([conn, others].map(|conn| world.membership.thread_of(conn)), [Some(0), None]);
    let bound = world.now + MEMBER_TIMEOUT;
    assert_eq!(world.membership.leave(bound, &mut world.transport), Ok(true));
    world.steps(2);
    assert_eq!(world.control.heard, ["join", "ready", "leave"]);
    world.control.send(&LeaveAck { reserved: 0.into() });
    world.steps(2);
    assert_eq!((world.membership.stage(), world.error), (Stage::Left, None));
}

/// What the rest of a member asks of it in each pass.
#[test]
fn what_holds_of_a_member_that_is_ready_holds_of_no_other() {
    let told = |world: &World| {
        let knows_the_clock = world.membership.sync().to_scheduler(world.now).is_some();
        (world.membership.is_ready(), knows_the_clock, world.membership.sleep_max())
    };
    let mut world = World::new();
    assert_eq!(told(&world), (false, false, PARK_MAX));
    world.announce();
    world.admit();
    world.steps(30);
    assert_eq!(told(&world), (true, true, PARK_MAX), "it had work just now");
    world.steps(600);
    assert_eq!(told(&world), (true, true, SLEEP_MAX), "it pings less often");
    assert_eq!(world.membership.leave(world.now + STEP, &mut world.transport), Ok(true));
    assert_eq!(told(&world), (false, true, PARK_MAX));
}

#[test]
fn what_is_no_part_of_the_conversation_is_the_members() {
    let mut world = World::new();
    let subcluster = SubclusterDesc { subcluster: 4.into() };
    world.control.send_with(&subcluster, b"here");
    world.steps(2);
    assert_eq!(world.others, 0);
    assert_eq!(world.membership.catalogue_mut().subcluster("here"), Some(4));
    world.control.send(&LeaveAck { reserved: 0.into() });
    world.steps(2);
    assert_eq!(world.others, 1, "it is no part of a catalogue");
    let mut world = world.become_ready();
    world.control.send_with(&subcluster, b"there");
    world.steps(2);
    assert_eq!((world.others, &world.error), (2, &None), "the catalogue is complete");
}

/// Nothing depends on them any more.
#[test]
fn connections_that_close_behind_the_end_are_no_matter() {
    let mut left = World::ready();
    assert_eq!(left.membership.leave(left.now + MEMBER_TIMEOUT, &mut left.transport), Ok(true));
    left.steps(2);
    left.control.send(&LeaveAck { reserved: 0.into() });
    left.steps(2);
    let mut away = World::ready();
    away.control.close(RefuseCode::Shutdown);
    away.steps(2);
    let lost = away.error.take().unwrap();
    away.membership.fail(away.now, lost).unwrap();
    for (mut world, stage) in [(left, Stage::Left), (away, Stage::Away)] {
        assert_eq!(world.membership.stage(), stage);
        world.thread.close(RefuseCode::Shutdown);
        world.steps(2);
        assert_eq!((world.error, world.membership.thread(0)), (None, None), "{stage:?}");
    }
}

#[test]
fn a_connection_that_is_forgotten_leads_nowhere() {
    let mut world = World::ready();
    let thread = world.membership.thread(0).unwrap();
    assert_eq!(world.membership.thread_conns().collect::<Vec<_>>(), [thread]);
    world.membership.forget(thread);
    assert_eq!(world.membership.thread_of(thread), None);
    assert_eq!(world.membership.thread_conns().count(), 0);
}

#[test]
fn a_member_that_stays_away_makes_no_other_attempt() {
    for mut world in [World::ready(), World::sent_away()] {
        world.membership.stay_away("no scheduler will do", &mut world.transport);
        world.steps(500);
        assert_eq!((world.membership.stage(), world.membership.next_timer()), (Stage::Away, None));
        assert_eq!((world.control.conn, world.thread.conn), (None, None));
    }
}

#[test]
fn a_ready_member_is_lost_to_a_scheduler_that_contradicts_itself_alone() {
    let world = World::ready();
    let may_pass = |error| world.membership.may_pass(&error);
    assert!(!may_pass(MembershipError::BadCatalogue(String::new())));
    assert!(may_pass(MembershipError::Silent { timeout_ms: 1 }));
    assert!(may_pass(world.membership.unfit("it says what none says")));
}

#[test]
fn a_stage_that_lasts_too_long_says_what_it_waits_for() {
    let hang = |prepare: fn(&mut World), waits_for: &str| {
        let mut world = World::new();
        prepare(&mut world);
        world.steps(200);
        assert!(world.membership.next_timer() > Some(world.now), "it sleeps between its pings");
        world.steps(110);
        let error = world.fail().unwrap_err();
        assert!(matches!(error, MembershipError::Timeout { timeout_ms: 3_000, .. }), "{error}");
        assert!(error.to_string().contains(waits_for), "{error}");
    };
    hang(|_| {}, "catalogue");
    hang(World::announce, "admit");
    let admit_in_silence = |world: &mut World| {
        world.answers_pings = false;
        world.announce();
        world.admit();
    };
    hang(admit_in_silence, "clock");
    let admit_without_thread = |world: &mut World| {
        world.thread_polls = false;
        world.announce();
        world.admit();
    };
    hang(admit_without_thread, "clock");
}

#[test]
fn only_the_control_thread_confirms_a_leave() {
    let mut world = World::ready();
    let bound = world.now + MEMBER_TIMEOUT;
    assert_eq!(world.membership.leave(bound, &mut world.transport), Ok(true));
    world.steps(2);
    world.thread.close(RefuseCode::Shutdown);
    world.steps(2);
    assert_eq!((world.membership.stage(), &world.error), (Stage::Leaving, &None));
    world.control.close(RefuseCode::Shutdown);
    world.steps(2);
    assert!(world.error.is_some(), "no confirmation can come any more");
}

#[test]
fn a_member_that_was_ready_is_not_bound_by_the_time_to_join() {
    let shorter_than_a_pause = Nanos::from_millis(450);
    let mut world = World::with(Role::Frontend, shorter_than_a_pause).become_ready();
    let lost = world.now;
    while world.now - lost < JOIN_TIMEOUT.times(2) {
        if world.control.conn.is_some() {
            world.control.close(RefuseCode::Shutdown);
        }
        world.step();
        if world.error.is_some() {
            world.fail().expect("it tries for ever");
        }
    }
    while world.control.conn.is_none() {
        world.step();
    }
    world.steps(2);
    world.announce();
    world.admit();
    world.steps(30);
    assert_eq!((world.readies, world.membership.life(), world.error), (2, 2, None));
}

#[test]
fn a_leave_without_confirmation_ends() {
    let mut world = World::ready();
    let bound = world.now + STEP.times(5);
    assert_eq!(world.membership.leave(bound, &mut world.transport), Ok(true));
    world.membership.excuse(STEP.times(3));
    world.steps(7);
    assert_eq!(world.error, None, "this side stood still for three of them");
    world.steps(2);
    assert!(matches!(world.error, Some(MembershipError::Timeout { .. })), "{:?}", world.error);
    assert!(!world.membership.may_pass(&world.error.take().unwrap()));
}

#[test]
fn silence_counts_once_a_member_is_ready() {
    let mut world = World::ready();
    world.answers_pings = false;
    world.steps(120);
    assert_eq!(world.error, Some(MembershipError::Silent { timeout_ms: 1_000 }));
    assert_eq!(world.fail(), Ok(()));
    assert_eq!((world.membership.stage(), world.membership.number()), (Stage::Away, 0));
}

#[test]
fn a_ready_member_pings_less_often_while_it_has_no_work() {
    let mut world = World::ready();
    let mut pings = |has_work| {
        world.has_work = has_work;
        world.steps(600);
        let before = world.pings;
        world.steps(600);
        world.pings - before
    };
    assert_eq!([true, false, true].map(&mut pings), [60, 6, 60]);
}

/// The code with which the scheduler refuses, when, and whether the member tries again.
#[test]
fn a_refusal_is_final_or_not() {
    use RefuseCode::{BadRequest, DuplicateJoin, Limit, Shutdown, Silent, Unauthorised, Version};
    type Place = fn(Role) -> World;
    let first: Place = World::of;
    let linking: Place = |role| {
        let mut world = World::of(role);
        world.answers_pings = false;
        world.announce();
        world.admit();
        assert_eq!(world.membership.stage(), Stage::Linking);
        world
    };
    let again: Place = |role| {
        let mut world = World::of(role).become_ready();
        world.control.close(Shutdown);
        world.steps(2);
        world.fail().expect("a member that was ready is worth waiting for");
        world.steps(8);
        assert_eq!((world.membership.stage(), world.membership.life()), (Stage::Catalogue, 1));
        world
    };
    let (client, backend) = (Role::Frontend, Role::Backend);
    for (place, role, code, tries_again) in [
        (first, client, Limit, false),
        (first, client, Shutdown, true),
        (first, backend, Silent, true),
        (first, client, Unauthorised, false),
        (linking, backend, Unauthorised, true),
        (linking, client, DuplicateJoin, false),
        (again, backend, DuplicateJoin, true),
        (again, client, Version, false),
        (again, client, BadRequest, true),
        (again, backend, BadRequest, false),
    ] {
        let mut world = place(role);
        world.control.close(code);
        world.steps(2);
        let tried = world.fail();
        assert_eq!(tried.is_ok(), tries_again, "{role:?} {code:?}: {tried:?}");
    }
}

#[test]
fn the_first_join_has_one_bound_for_all_its_attempts() {
    // Some of the time may have passed before the first attempt.
    for passed_ms in [0, 1_500] {
        let mut world = World::new();
        let began = world.now - Nanos::from_millis(passed_ms);
        world.membership.count_from(began);
        let error = world.refused_until_it_gives_up();
        let MembershipError::TimedOut { tried_ms, ref last, .. } = error else { panic!("{error}") };
        assert!((2_400..3_100).contains(&tried_ms), "{tried_ms}");
        assert_eq!(tried_ms, (world.now - began).as_millis_f64() as u64);
        assert_eq!(last.code(), Some(RefuseCode::Shutdown));
        assert!(error.to_string().contains("raise join_timeout"), "{error}");
    }
}

#[test]
fn an_address_where_nothing_answers_is_tried_again_soon() {
    let mut world = World::sent_away();
    // The connection is taken, and nothing is said on it.
    let lost = world.now;
    while world.error.is_none() {
        world.now = world.now + STEP;
        world.error = world.membership.poll(world.now, false, &mut world.transport).err();
    }
    assert!(world.now - lost <= Nanos::from_millis(1_100), "{:?}", world.now - lost);
    assert!(matches!(world.error, Some(MembershipError::Closed { .. })), "{:?}", world.error);
    world.fail().expect("something may answer there later");
}

#[test]
fn a_peer_of_another_role_or_number_is_recognised() {
    let mut world = World::sent_away();
    world.control.transport.identify(Identity { role: Role::Backend, member: 0 });
    world.steps(8);
    let error = world.fail().unwrap_err();
    assert!(error.to_string().contains("it is no scheduler but says it is Backend"), "{error}");

    for (role, member) in [(Role::ModelThread, 3), (Role::Control, 0)] {
        let mut world = World::new();
        world.announce();
        world.thread.transport.identify(Identity { role, member });
        world.admit();
        world.steps(2);
        let error = world.error.expect("it is not ModelThread 0");
        assert!(matches!(error, MembershipError::Unfit { .. }), "{error}");
    }
}

#[test]
fn a_catalogue_without_one_of_its_model_threads_is_refused() {
    let mut world = World::new();
    let addr = WireAddr::new(world.thread.addr());
    world.control.send(&ThreadDesc { thread: 1.into(), addr });
    world.control.send(&CatalogEnd { scheduler_epoch: 1.into() });
    world.steps(2);
    assert!(matches!(world.error, Some(MembershipError::BadCatalogue(_))), "{:?}", world.error);
}

#[test]
fn the_pauses_of_one_loss_do_not_lengthen_those_of_the_next() {
    let mut world = World::new();
    for _ in 0..4 {
        world.control.close(RefuseCode::Shutdown);
        world.steps(2);
        world.fail().unwrap();
        while world.control.conn.is_none() {
            world.step();
        }
    }
    let mut world = world.become_ready();
    world.control.close(RefuseCode::Shutdown);
    world.steps(2);
    world.fail().unwrap();
    world.steps(8);
    assert_eq!(world.membership.stage(), Stage::Catalogue, "the first pause is 50 ms at most");
}

#[test]
fn what_was_said_to_the_former_scheduler_is_forgotten() {
    let mut world = World::ready();
    world.control.close(RefuseCode::Shutdown);
    world.steps(2);
    assert!(world.membership.thread(0).is_some(), "it may still have something to say");
    world.fail().unwrap();
    assert_eq!((world.membership.threads(), world.membership.token()), (0, 0));
    assert_eq!(world.membership.sync().to_scheduler(world.now), None, "the next has its own clock");
    world.steps(8);
    world.announce();
    world.admit();
    world.steps(30);
    assert_eq!((world.membership.life(), world.readies), (2, 2));
}

/// They close when it joins anew: a ModelThread would go on with a member that the scheduler has lost.
#[test]
fn a_member_that_joins_anew_has_closed_its_connections() {
    let mut world = World::ready();
    assert!(world.thread.conn.is_some());
    assert_eq!(world.membership.scheduler(), world.control.addr());
    world.control.close(RefuseCode::Shutdown);
    world.steps(2);
    let error = world.error.take().unwrap();
    world.membership.fail(world.now, error).unwrap();
    assert!(world.thread.conn.is_some(), "it may still have something to say");
    world.steps(8);
    assert_eq!((world.membership.stage(), world.thread.conn), (Stage::Catalogue, None));
}

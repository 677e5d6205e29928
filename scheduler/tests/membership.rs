//! Joining, proving life, leaving: the ControlThread on the stage.

mod stage;

use baton_core::{DropReason, Nanos, Policy, TaskId};
use baton_rdma::wire::{
    JoinBackend, JoinFrontend, ProfileDesc, Ready, RefuseCode, Role, SlabDesc, Submit, WireAddr,
};
use baton_rdma::{Identity, Transport};
use stage::{Member, Stage, Told, cluster, ms};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

fn stage() -> Stage {
    Stage::new(&cluster(Policy::Symphony, 2))
}

fn refused(told: &[Told]) -> Option<RefuseCode> {
    told.iter().find_map(|told| match told {
        Told::Refused { code, detail } => {
            assert!(!detail.is_empty(), "a refusal says why");
            *code
        }
        _ => None,
    })
}

#[test]
fn the_catalogue_names_every_model_and_its_thread() {
    let member = stage().member(Role::Frontend);
    assert_eq!(member.models, [("model-0".to_owned(), 0), ("model-1".to_owned(), 1)]);
}

#[test]
fn backends_learn_of_frontends_that_joined_before_or_after_them() {
    let mut stage = stage();
    let early = stage.frontend();
    let mut backend = stage.member(Role::Backend);
    backend.send(&ProfileDesc { model: 0.into(), pages: 0.into() }, &[]);
    backend.send(&JoinBackend { subcluster: 0.into(), gpus: 2.into() }, b"b");
    let told = stage.exchange(&mut backend);
    assert!(matches!(told[0], Told::Joined { first_gpu: 0, .. }), "{told:?}");
    assert_eq!(told[1], Told::PeerUp { frontend: early.id });

    let late = stage.frontend();
    assert_eq!(stage.exchange(&mut backend), [Told::PeerUp { frontend: late.id }]);
    drop(late.transport);
    assert_eq!(stage.exchange(&mut backend), [Told::PeerDown { frontend: late.id }]);
}

#[test]
fn a_ping_is_answered_with_the_schedulers_time() {
    let mut stage = stage();
    let mut frontend = stage.frontend();
    frontend.ping();
    assert_eq!(stage.exchange(&mut frontend), [Told::Pong { scheduler: stage.now }]);
}

#[test]
fn a_silent_member_is_taken_for_dead_and_a_pinging_one_is_not() {
    let mut stage = stage();
    let (mut silent, mut alive) = (stage.frontend(), stage.frontend());
    for _ in 0..4 {
        alive.ping();
        stage.exchange(&mut alive);
        stage.advance(ms(400));
    }
    assert_eq!(refused(&stage.exchange(&mut silent)), Some(RefuseCode::Silent));
    alive.ping();
    assert!(matches!(stage.exchange(&mut alive)[..], [Told::Pong { .. }]));
}

/// Its members may have stood still with it, as on a host that has too much to do.
#[test]
fn a_scheduler_that_stood_still_waits_for_its_members_as_long_as_ever() {
    let mut stage = stage();
    let (mut slow, mut dead) = (stage.frontend(), stage.frontend());
    stage.now = stage.now + ms(3_000);
    stage.advance(ms(800));
    slow.ping();
    assert!(matches!(stage.exchange(&mut slow)[..], [Told::Pong { .. }]));
    assert!(stage.exchange(&mut dead).is_empty(), "it was awake for less than the timeout");
    stage.advance(ms(400));
    assert_eq!(refused(&stage.exchange(&mut dead)), Some(RefuseCode::Silent));
    assert!(stage.exchange(&mut slow).is_empty());
}

#[test]
fn a_backend_that_says_farewell_to_a_scheduler_that_stays_is_lost() {
    let mut stage = stage();
    let mut backend = stage.backend("b", 0, 1);
    backend.transport.close(backend.control, RefuseCode::Shutdown, "it ends");
    backend.transport.flush();
    stage.settle();
    let counters = &stage.scheduler.counters().control_thread;
    assert_eq!((counters.left.get(), counters.backends_lost.get()), (0, 1));
}

#[test]
fn a_silent_backend_is_taken_for_dead_and_its_model_for_unserved() {
    let mut stage = stage();
    let (mut silent, mut alive) = (stage.backend("b", 0, 1), stage.frontend());
    stage.exchange(&mut silent);
    for _ in 0..4 {
        alive.ping();
        stage.exchange(&mut alive);
        stage.advance(ms(400));
    }
    assert_eq!(refused(&stage.exchange(&mut silent)), Some(RefuseCode::Silent));
    assert_eq!(stage.scheduler.control.roster().backends().count(), 0);
    let task = alive.task(0, 0);
    alive.submit(0, task, stage.now + ms(30));
    let reason = DropReason::NoBackend.code();
    assert_eq!(stage.exchange(&mut alive), [Told::Ended { task, kind: 1, reason, retry_ms: 0 }]);
}

/// Conversations that the ControlThread has ended: as bad joins, as second ones, at a limit, and for all else.
fn refusals(stage: &Stage) -> [u64; 4] {
    let counters = stage.scheduler.counters();
    let of = &counters.control_thread;
    [&of.joins_refused, &of.joins_duplicate, &of.joins_over_limit, &of.conversations_refused]
        .map(|counter| counter.get())
}

#[test]
fn joins_that_cannot_be_served_are_refused_with_the_reason() {
    let cases: [(&[u32], u32, u32, &str); 4] = [
        (&[0], 9, 1, "no sub-cluster"),
        (&[0], 0, 0, "no slot"),
        (&[0], 0, 257, "too many slots"),
        (&[7], 0, 1, "no such model"),
    ];
    for (profiles, subcluster, gpus, why) in cases {
        let mut stage = stage();
        let mut backend = stage.member(Role::Backend);
        for &model in profiles {
            backend.send(&ProfileDesc { model: model.into(), pages: 0.into() }, &[]);
        }
        backend.send(&JoinBackend { subcluster: subcluster.into(), gpus: gpus.into() }, b"b");
        let told = stage.exchange(&mut backend);
        assert_eq!(refused(&told), Some(RefuseCode::BadRequest), "{why}: {told:?}");
        assert_eq!(refusals(&stage), [1, 0, 0, 0]);
    }
}

#[test]
fn a_measured_profile_must_fit_the_model() {
    let tables: [&[u64]; 3] = [&[1; 7], &[5, 4, 6, 7, 8, 9, 10, 11], &[0; 8]];
    for table in tables {
        let mut stage = stage();
        let mut backend = stage.member(Role::Backend);
        let wire: Vec<U64> = table.iter().map(|&ns| U64::new(ns)).collect();
        backend.send(&ProfileDesc { model: 0.into(), pages: 0.into() }, wire.as_bytes());
        let told = stage.exchange(&mut backend);
        assert_eq!(refused(&told), Some(RefuseCode::BadRequest), "{table:?}: {told:?}");
    }
}

#[test]
fn a_name_and_a_connection_join_once() {
    let mut stage = stage();
    let _first = stage.backend("b", 0, 1);
    let mut second = stage.member(Role::Backend);
    second.send(&ProfileDesc { model: 0.into(), pages: 0.into() }, &[]);
    second.send(&JoinBackend { subcluster: 0.into(), gpus: 1.into() }, b"b");
    assert_eq!(refused(&stage.exchange(&mut second)), Some(RefuseCode::DuplicateJoin));

    let mut frontend = stage.frontend();
    let addr = WireAddr::new(frontend.transport.local_addr());
    frontend.send(&JoinFrontend { addr, slabs: 0.into() }, &[]);
    assert_eq!(refused(&stage.exchange(&mut frontend)), Some(RefuseCode::DuplicateJoin));
    assert_eq!(refusals(&stage), [0, 2, 0, 0]);
}

#[test]
fn messages_out_of_place_end_the_conversation() {
    let mut stage = stage();
    let mut hasty = stage.member(Role::Backend);
    hasty.send(&Ready { reserved: 0.into() }, &[]);
    assert_eq!(refused(&stage.exchange(&mut hasty)), Some(RefuseCode::UnexpectedMessage));

    let mut confused = stage.member(Role::Backend);
    confused.send(&slab(0, 0, 1), &[]);
    assert_eq!(refused(&stage.exchange(&mut confused)), Some(RefuseCode::UnexpectedMessage));

    let mut lost = stage.member(Role::Frontend);
    lost.send(&Submit::read_from_bytes(&[0; size_of::<Submit>()]).unwrap(), &[]);
    assert_eq!(refused(&stage.exchange(&mut lost)), Some(RefuseCode::UnexpectedMessage));
    assert_eq!(refusals(&stage), [0, 0, 0, 3]);
}

#[test]
fn a_model_thread_admits_no_member_without_a_token() {
    let mut stage = stage();
    let frontend = stage.frontend();
    let mut thief = stage.member(Role::Frontend);
    thief.id = frontend.id;
    thief.token = frontend.token ^ 1;
    let hello = baton_rdma::wire::Hello::new(Role::Frontend, thief.id, thief.token);
    let addr = thief.thread_addr(0);
    thief.transport.connect(addr, hello).unwrap();
    assert_eq!(refused(&stage.exchange(&mut thief)), Some(RefuseCode::Unauthorised));
    let counters = &stage.scheduler.counters().model_threads[0];
    assert_eq!(counters.unauthorised.get(), 1);
}

#[test]
fn another_scheduler_cannot_join() {
    let mut stage = stage();
    let mut other = stage.network.endpoint(Identity { role: Role::Control, member: 0 });
    let hello = baton_rdma::wire::Hello::new(Role::Control, 0, 0);
    other.connect(stage.control_addr(), hello).unwrap();
    other.flush();
    stage.settle();
    assert_eq!(stage.scheduler.counters().control_thread.conversations_refused.get(), 1);
}

#[test]
fn an_idle_backend_drains_at_once_and_its_name_is_free_again() {
    let mut stage = stage();
    let mut backend = stage.backend("b", 0, 2);
    backend.leave();
    assert_eq!(stage.exchange(&mut backend), [Told::LeaveAck]);
    drop(backend.transport);
    stage.settle();
    let again = stage.backend("b", 0, 2);
    assert_ne!(again.token, 0);
}

#[test]
fn what_a_member_says_behind_what_was_refused_is_not_heard() {
    let mut stage = stage();
    let mut member = stage.member(Role::Frontend);
    member.send(&Ready { reserved: 0.into() }, &[]);
    let addr = WireAddr::new(member.transport.local_addr());
    member.send(&JoinFrontend { addr, slabs: 0.into() }, &[]);
    assert_eq!(refused(&stage.exchange(&mut member)), Some(RefuseCode::UnexpectedMessage));
    assert_eq!(stage.frontend().id, 0, "no frontend has joined before");
}

#[test]
fn a_backend_that_has_left_before_it_was_ready_gets_nothing() {
    let mut stage = stage();
    let mut backend = stage.member(Role::Backend);
    backend.send(&ProfileDesc { model: 0.into(), pages: 0.into() }, &[]);
    backend.send(&JoinBackend { subcluster: 0.into(), gpus: 1.into() }, b"b");
    stage.connect(&mut backend);
    backend.leave();
    stage.exchange(&mut backend);
    backend.send(&Ready { reserved: 0.into() }, &[]);
    stage.exchange(&mut backend);
    assert_eq!(stage.scheduler.rank.slots(), (0, 0));
}

fn slab(model: u32, first_slot: u32, slots: u32) -> SlabDesc {
    SlabDesc {
        frontend: 0.into(),
        first_slot: first_slot.into(),
        slots: slots.into(),
        stride: 64.into(),
        input_bytes: 8.into(),
        model: model.into(),
    }
}

#[test]
fn slabs_that_cannot_be_are_refused_before_a_backend_hears_of_them() {
    let max = TaskId::SLOTS_MAX;
    let limit = "more slabs than there may be models";
    let many: Vec<SlabDesc> = (0..5).map(|slot| slab(slot % 2, slot, 1)).collect();
    let cases: [(&[SlabDesc], RefuseCode, &str); 5] = [
        (&[slab(2, 0, 1)], RefuseCode::BadRequest, "no such model"),
        (&[slab(0, max, 1)], RefuseCode::BadRequest, "behind the last slot"),
        (&[slab(0, 1, max)], RefuseCode::BadRequest, "across the last slot"),
        (&[slab(0, u32::MAX, u32::MAX)], RefuseCode::BadRequest, "beyond all numbers"),
        (&many, RefuseCode::Limit, limit),
    ];
    for (slabs, code, why) in cases {
        let mut stage = stage();
        let mut backend = stage.backend("b", 0, 1);
        let mut frontend = stage.member(Role::Frontend);
        slabs.iter().for_each(|slab| frontend.send(slab, &[]));
        let join = JoinFrontend {
            addr: WireAddr::new(stage.control_addr()),
            slabs: (slabs.len() as u32).into(),
        };
        frontend.send(&join, &[]);
        assert_eq!(refused(&stage.exchange(&mut frontend)), Some(code), "{why}");
        assert_eq!(stage.exchange(&mut backend), [], "{why}");
    }
}

#[test]
fn slabs_up_to_the_last_slot_are_taken() {
    let mut stage = stage();
    let mut frontend = stage.member(Role::Frontend);
    frontend.send(&slab(0, 0, 1), &[]);
    frontend.send(&slab(1, 1, TaskId::SLOTS_MAX - 1), &[]);
    let addr = WireAddr::new(frontend.transport.local_addr());
    frontend.send(&JoinFrontend { addr, slabs: 2.into() }, &[]);
    assert!(matches!(stage.exchange(&mut frontend)[..], [Told::Joined { .. }]));
}

/// A table for model 0, whose batches have at most eight tasks.
fn table_ns(first: u64, step: u64) -> Vec<U64> {
    (0..8).map(|row| U64::new(first + row * step)).collect()
}

#[test]
fn profiles_announced_twice_or_beyond_reason_are_refused() {
    let hour_ns = 3_600_000_000_000;
    let absurd = [table_ns(hour_ns, 1), table_ns(u64::MAX - 7, 1)];
    for table in absurd {
        let mut stage = stage();
        let mut backend = stage.member(Role::Backend);
        backend.send(&ProfileDesc { model: 0.into(), pages: 0.into() }, table.as_bytes());
        let told = stage.exchange(&mut backend);
        assert_eq!(refused(&told), Some(RefuseCode::BadRequest), "{table:?}: {told:?}");
    }
    let mut stage = stage();
    let mut backend = stage.member(Role::Backend);
    for table in [table_ns(1_000_000, 1_000_000), Vec::new()] {
        backend.send(&ProfileDesc { model: 0.into(), pages: 0.into() }, table.as_bytes());
    }
    assert_eq!(refused(&stage.exchange(&mut backend)), Some(RefuseCode::BadRequest));
    assert_eq!(stage.scheduler.counters().control_thread.joins_refused.get(), 1);
}

/// A backend for model 0 that has joined with this profile and is not ready.
fn measured(stage: &mut Stage, name: &str, table: &[U64]) -> Member {
    let mut backend = stage.member(Role::Backend);
    backend.send(&ProfileDesc { model: 0.into(), pages: 0.into() }, table.as_bytes());
    backend.send(&JoinBackend { subcluster: 0.into(), gpus: 1.into() }, name.as_bytes());
    stage.connect(&mut backend);
    backend
}

fn ready(stage: &mut Stage, backend: &mut Member) {
    backend.send(&Ready { reserved: 0.into() }, &[]);
    stage.exchange(backend);
}

/// What is planned with shows in what is taken: 30 ms are enough for ℓ(1) = 5 ms, and not for 60 ms.
#[test]
fn a_profile_counts_while_its_backend_serves_and_no_longer() {
    let mut stage = stage();
    let mut frontend = stage.frontend();
    let mut slow = measured(&mut stage, "slow", &table_ns(60_000_000, 1_000_000));
    let mut quick = measured(&mut stage, "quick", &table_ns(5_000_000, 1_000_000));
    let mut told_of = |stage: &mut Stage, slot: u32| {
        let task = frontend.task(slot, 0);
        frontend.submit(0, task, stage.now + ms(30));
        stage.exchange(&mut frontend)
    };
    ready(&mut stage, &mut quick);
    assert_eq!(told_of(&mut stage, 0), [], "one has joined and is not ready");
    ready(&mut stage, &mut slow);
    let late = DropReason::DeadlinePassed.code();
    let is_late = |told: &Told| matches!(told, Told::Ended { reason, .. } if *reason == late);
    let told = told_of(&mut stage, 1);
    // The one that waited may have ended too.
    assert!(told.iter().any(is_late), "{told:?}");
    drop(slow.transport);
    stage.settle();
    assert_eq!(told_of(&mut stage, 2), [], "it is gone, and so is its profile");
}

#[test]
fn of_two_profiles_the_slower_one_counts_in_either_order() {
    let (slow, quick) = (table_ns(60_000_000, 1_000_000), table_ns(5_000_000, 1_000_000));
    for tables in [[&slow, &quick], [&quick, &slow]] {
        let mut stage = stage();
        let mut join = |(table, name): (&Vec<U64>, &str)| {
            let mut backend = measured(&mut stage, name, table);
            ready(&mut stage, &mut backend);
            backend
        };
        let _both = [(tables[0], "first"), (tables[1], "second")].map(&mut join);
        let latency = stage.scheduler.model_threads[0].model(0).latency().of(1);
        assert_eq!(latency, Nanos(60_000_000));
    }
}

#[test]
fn of_two_profiles_of_one_backend_the_later_one_counts() {
    let mut stage = stage();
    let mut backend = measured(&mut stage, "a", &table_ns(60_000_000, 1_000_000));
    let table = table_ns(5_000_000, 1_000_000);
    backend.send(&ProfileDesc { model: 0.into(), pages: 0.into() }, table.as_bytes());
    ready(&mut stage, &mut backend);
    assert_eq!(stage.scheduler.model_threads[0].model(0).latency().of(1), ms(5));
}

/// As one whose model the scheduler before had removed.
#[test]
fn a_backend_that_has_not_loaded_a_model_of_the_file_is_given_nothing_before() {
    let mut stage = stage();
    let mut frontend = stage.frontend();
    let mut backend = stage.member(Role::Backend);
    backend.send(&JoinBackend { subcluster: 0.into(), gpus: 1.into() }, b"b");
    stage.connect(&mut backend);
    backend.send(&Ready { reserved: 0.into() }, &[]);
    stage.exchange(&mut backend);
    let mut submit = |stage: &mut Stage, slot| {
        let task = frontend.task(slot, 0);
        frontend.submit(0, task, stage.now + ms(30));
        (task, stage.exchange(&mut frontend))
    };
    let (task, told) = submit(&mut stage, 0);
    let reason = DropReason::NoBackend.code();
    assert_eq!(told, [Told::Ended { task, kind: 1, reason, retry_ms: 0 }]);
    backend.send(&ProfileDesc { model: 0.into(), pages: 0.into() }, &[]);
    stage.exchange(&mut backend);
    assert_eq!(submit(&mut stage, 1).1, []);
    stage.advance(ms(25));
    let told = stage.exchange(&mut backend);
    assert!(matches!(told[..], [Told::Action { .. }]), "{told:?}");
}

/// Without a connection it could be sent no batch.
#[test]
fn a_backend_that_is_ready_and_not_connected_is_given_nothing() {
    let mut stage = Stage::new(&cluster(Policy::Eager, 1));
    let mut frontend = stage.frontend();
    let mut hollow = stage.member(Role::Backend);
    hollow.send(&ProfileDesc { model: 0.into(), pages: 0.into() }, &[]);
    hollow.send(&JoinBackend { subcluster: 0.into(), gpus: 1.into() }, b"hollow");
    hollow.send(&Ready { reserved: 0.into() }, &[]);
    assert!(matches!(stage.exchange(&mut hollow)[..], [Told::Joined { .. }, Told::PeerUp { .. }]));
    let mut real = stage.backend("real", 0, 1);

    let task = frontend.task(0, 0);
    frontend.submit(0, task, stage.now + ms(30));
    assert_eq!(stage.exchange(&mut frontend), []);
    let planned = stage.exchange(&mut real);
    assert!(
        matches!(&planned[..], [Told::Action { tasks, .. }] if tasks == &[task]),
        "{planned:?}"
    );
    assert_eq!(refused(&stage.exchange(&mut hollow)), Some(RefuseCode::Unauthorised));
    let counters = stage.scheduler.counters();
    let undelivered = counters.model_threads[0].plans_undelivered.get();
    assert!(
        (1..=4).contains(&undelivered),
        "{undelivered}: once or twice before the word is passed on"
    );
    let counters = &counters.control_thread;
    let lost = [&counters.lost, &counters.frontends_lost, &counters.backends_lost];
    assert_eq!(lost.map(|count| count.get()), [1, 0, 1]);
}

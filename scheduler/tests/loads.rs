//! LOADs on the stage: a scripted backend with room for two of three models.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod stage;

use baton_core::Nanos;
use baton_rdma::Transport;
use baton_rdma::status::LoadEntry;
use baton_rdma::wire::{ChangeKind, JoinBackend, LoadFault, LoadStatus, RefuseCode, Role};
use baton_topo::Agent;
use stage::asking::status;
use stage::cached::*;
use stage::changes::{TABLE, ask};
use stage::{Stage, Told, ms};

#[test]
fn a_cold_task_brings_its_model_and_then_its_batch() {
    let mut cold = Cold::start(&[]);
    let told = cold.submit(1);
    let [Told::Load { latest, .. }] = told[..] else { panic!("{told:?}") };
    assert!(latest >= cold.stage.now, "it may begin now");
    let (load, victims) = load_of(&told, 1);
    assert!(victims.is_empty());
    assert_eq!(cold.wait(LOAD - Nanos(1)), [], "no batch before the weights are there");
    let batch = batch_of(&cold.loaded(load), 1);
    cold.execute(batch);
    let warm = batch_of(&cold.submit(1), 1);
    cold.execute(warm);
}

#[test]
fn an_added_model_is_loaded_for_its_first_task() {
    let mut cold = Cold::start(&[]);
    let mut operator = cold.stage.member(Role::Operator);
    ask(&mut cold.stage, &mut operator, ChangeKind::Add, &format!("{TABLE}weights_mib = 2\n"));
    describe(&mut cold.backend, MODELS, 2);
    cold.stage.exchange(&mut cold.backend);
    cold.stage.exchange(&mut cold.frontend);
    load_of(&cold.submit(MODELS), MODELS);
}

#[test]
fn a_victim_leaves_in_the_load_that_needs_its_pages_and_is_loaded_anew() {
    let mut cold = Cold::start(&[]);
    assert_eq!((cold.serve_cold(0), cold.serve_cold(1)), (vec![], vec![]), "two fit");
    let victims = cold.serve_cold(2);
    assert_eq!(victims.len(), 1, "the third needs the pages of one");
    let other = 1 - victims[0];
    let batch = batch_of(&cold.submit(other), other);
    cold.execute(batch);
    assert_eq!(cold.serve_cold(victims[0]).len(), 1, "it comes back for another");
}

#[test]
fn a_load_that_fails_is_tried_again_after_a_pause_and_no_batch_comes_before() {
    let mut cold = Cold::start(&[]);
    let (load, _) = load_of(&cold.submit(0), 0);
    done(&mut cold.backend, load, LoadStatus::Failed, Nanos::ZERO, cold.stage.now);
    assert_eq!(cold.stage.exchange(&mut cold.backend), [], "not at once");
    let (again, _) = load_of(&cold.wait(ms(20)), 0);
    assert_ne!(again, load);
    let batch = batch_of(&cold.loaded(again), 0);
    cold.execute(batch);
    let counted = counted(&cold.stage, ["loads_planned", "loads_done", "loads_failed"]);
    assert_eq!(counted, [2, 1, 1]);
}

fn counted<const N: usize>(stage: &Stage, names: [&str; N]) -> [u64; N] {
    let counters = stage.scheduler.counters().pairs();
    names.map(|name| counters.iter().find(|(known, _)| *known == name).unwrap().1)
}

#[test]
fn a_report_counts_once_and_only_from_the_slots_own_backend() {
    let mut cold = Cold::start(&[]);
    let (load, _) = load_of(&cold.submit(0), 0);
    for name in [load ^ 1 << 32, load + 1, u64::MAX] {
        done(&mut cold.backend, name, LoadStatus::Loaded, LOAD, cold.stage.now);
    }
    assert_eq!(cold.stage.exchange(&mut cold.backend), [], "no such LOAD");
    let batch = batch_of(&cold.loaded(load), 0);
    done(&mut cold.backend, load, LoadStatus::Failed, LOAD, cold.stage.now);
    cold.execute(batch);
    let warm = batch_of(&cold.submit(0), 0);
    cold.execute(warm);
}

#[test]
fn what_a_backend_holds_when_it_joins_is_used_at_once() {
    let mut cold = Cold::start(&[2]);
    let batch = batch_of(&cold.submit(2), 2);
    cold.execute(batch);
    assert!(cold.serve_cold(0).is_empty(), "there is room for another");
    assert_eq!(cold.serve_cold(1).len(), 1, "and not for a third");
}

#[test]
fn a_backend_that_is_lost_in_mid_load_takes_the_load_with_it_and_the_next_one_is_asked() {
    let mut cold = Cold::start(&[]);
    let (old, _) = load_of(&cold.submit(0), 0);
    cold.lose_backend();
    let ended = cold.stage.exchange(&mut cold.frontend);
    assert!(matches!(ended[..], [Told::Ended { .. }]), "no slot serves it: {ended:?}");
    cold.backend = backend(&mut cold.stage, &[]);
    let (load, _) = load_of(&cold.submit(0), 0);
    assert_ne!(load, old);
    done(&mut cold.backend, old, LoadStatus::Loaded, LOAD, cold.stage.now);
    assert_eq!(cold.stage.exchange(&mut cold.backend), [], "the old one is no news");
    let batch = batch_of(&cold.loaded(load), 0);
    cold.execute(batch);
}

#[test]
fn models_of_two_threads_share_a_slot() {
    let mut stage = Stage::new(&cached(2));
    let mut frontend = stage.frontend();
    let mut backend = backend(&mut stage, &[0, 1]);
    for (slot, model) in [(0, 0), (1, 1), (2, 0), (3, 1)] {
        let task = frontend.task(slot, 0);
        frontend.submit(model, task, stage.now + ms(100));
        stage.exchange(&mut frontend);
    }
    let told = stage.exchange(&mut backend);
    assert!(told.iter().all(|told| matches!(told, Told::Action { .. })), "{told:?}");
    assert!(!told.is_empty());
}

#[test]
fn a_backend_whose_memory_is_not_the_schedulers_is_refused_with_the_fix() {
    let mut stage = Stage::new(&cached(1));
    let refused = |stage: &mut Stage, first: u32, memory: &[(u32, u64)]| {
        let mut member = stage.member(Role::Backend);
        (first..).zip(memory).for_each(|(slot, &of)| announce(&mut member, slot, of, &[]));
        member.send(&JoinBackend { subcluster: 0.into(), gpus: 1.into() }, b"b");
        match &stage.exchange(&mut member)[..] {
            [Told::Refused { code, detail }] => (*code, detail.clone()),
            other => panic!("{other:?}"),
        }
    };
    let cases = [
        (0, vec![], "this backend has no weights caches"),
        (0, vec![(4, 2 * PAGE)], "this backend has weights caches with pages of 2 MiB"),
        (0, vec![(4, PAGE), (4, PAGE)], "start both with the same cluster file"),
        (1, vec![(4, PAGE)], "memory of slot 1 is announced, not of 0"),
        (0, vec![(4, PAGE); 257], "memory of slot 256 is announced"),
    ];
    for (first, memory, expected) in cases {
        let (code, detail) = refused(&mut stage, first, &memory);
        assert_eq!(code, Some(RefuseCode::BadRequest));
        assert!(detail.contains(expected), "{detail}");
    }
}

#[test]
fn a_backend_that_counts_other_pages_for_a_model_is_refused_by_its_name() {
    let mut stage = Stage::new(&cached(1));
    let mut member = stage.member(Role::Backend);
    describe(&mut member, 0, 2);
    assert_eq!(stage.exchange(&mut member), []);
    describe(&mut member, 1, 3);
    let told = stage.exchange(&mut member);
    let why = format!("{told:?}");
    assert!(why.contains("model `model-1` takes 2 pages at the scheduler and 3 at"), "{why}");
}

/// Free pages of the slot, where there is one, and copies of each model.
fn shown(stage: &mut Stage) -> (Option<u32>, Vec<u32>) {
    let status = status(stage);
    let copies = status.models.iter().map(|model| model.cache.as_ref().unwrap().copies).collect();
    (status.gpus.first().map(|gpu| gpu.pages_free.unwrap()), copies)
}

/// Of each model, the tasks that came while no slot held it, and those of them that ended in time.
fn cold_tasks(stage: &mut Stage) -> Vec<(u64, u64)> {
    let status = status(stage);
    let caches = status.models.iter().map(|model| model.cache.as_ref().unwrap());
    caches.map(|cache| (cache.cold, cache.cold_in_time)).collect()
}

#[test]
fn status_says_how_many_pages_are_free_and_where_the_weights_are() {
    let mut cold = Cold::start(&[]);
    cold.wait(ms(1));
    assert_eq!(shown(&mut cold.stage), (Some(4), vec![0, 0, 0]));
    cold.serve_cold(0);
    assert_eq!(shown(&mut cold.stage), (Some(2), vec![1, 0, 0]));
    let (load, _) = load_of(&cold.submit(1), 1);
    assert_eq!(shown(&mut cold.stage), (Some(0), vec![1, 0, 0]), "its pages are taken already");
    let batch = batch_of(&cold.loaded(load), 1);
    cold.execute(batch);
    assert_eq!(shown(&mut cold.stage), (Some(0), vec![1, 1, 0]));
    assert_eq!(cold.serve_cold(2), [0]);
    assert_eq!(shown(&mut cold.stage), (Some(0), vec![0, 1, 1]));
    assert_eq!(cold_tasks(&mut cold.stage), [(1, 1); 3]);
    drop(cold.backend);
    cold.stage.settle();
    assert_eq!(shown(&mut cold.stage), (None, vec![0, 0, 0]), "it has taken them along");
    let _backend = backend(&mut cold.stage, &[1]);
    assert_eq!(shown(&mut cold.stage), (Some(2), vec![0, 1, 0]), "as it says itself");
}

#[test]
fn the_model_with_the_fewest_tasks_leaves_although_it_was_used_last() {
    let mut cold = Cold::start(&[]);
    cold.serve_cold(0);
    for _ in 0..9 {
        let batch = batch_of(&cold.submit(0), 0);
        cold.execute(batch);
        cold.wait(ms(10));
    }
    cold.serve_cold(1);
    cold.wait(ms(10));
    assert_eq!(cold.serve_cold(2), [1]);
}

#[test]
fn the_new_home_of_a_model_knows_that_its_weights_are_not_there() {
    let mut stage = Stage::new(&cached(2));
    let mut frontend = stage.frontend();
    let _backend = backend(&mut stage, &[]);
    let mut ends_at_once = |stage: &mut Stage, slot, deadline| {
        let task = frontend.task(slot, 0);
        frontend.submit_to(1, 0, task, stage.now + deadline);
        stage.exchange(&mut frontend).iter().any(|told| matches!(told, Told::Ended { .. }))
    };
    assert!(stage.scheduler.control.move_model(baton_core::ModelId(0), 1));
    stage.settle();
    assert!(ends_at_once(&mut stage, 0, ms(9)), "five for the LOAD, five to execute it");
    assert!(!ends_at_once(&mut stage, 1, ms(11)));
}

#[test]
fn a_task_whose_model_leaves_after_it_has_come_did_not_come_cold() {
    let mut cold = Cold::start(&[0, 1]);
    cold.wait(ms(10));
    let [task_of_2, task_of_0] = [0, 1].map(|slot| cold.frontend.task(slot, 0));
    cold.frontend.submit(2, task_of_2, cold.stage.now + ms(100));
    cold.frontend.transport.flush();
    let now = cold.stage.now;
    cold.stage.scheduler.model_threads[0].poll(now);
    cold.stage.scheduler.rank.poll(now);
    // The LOAD of model 2 is ordered, and model 0 its victim. The ModelThread does not know that yet.
    cold.frontend.submit(0, task_of_0, now + ms(100));
    cold.frontend.transport.flush();
    cold.stage.settle();
    let (load, victims) = load_of(&cold.stage.exchange(&mut cold.backend), 2);
    assert_eq!(victims, [0]);
    let told = cold.loaded(load);
    let (loads, batches): (Vec<Told>, Vec<Told>) =
        told.into_iter().partition(|told| matches!(told, Told::Load { .. }));
    let (load, _) = load_of(&loads, 0);
    cold.execute(batch_of(&batches, 2));
    let batch = batch_of(&cold.loaded(load), 0);
    cold.execute(batch);
    assert_eq!(cold_tasks(&mut cold.stage), [(0, 0), (0, 0), (1, 1)]);
}

/// Of each LOAD: its model, why it was ordered, what left for it, and what became of it.
fn loads(stage: &mut Stage) -> Vec<(String, String, u32, String)> {
    let status = status(stage);
    let told = |outcome: Option<String>| outcome.unwrap_or_else(|| "under way".into());
    let of = |load: LoadEntry| (load.model, load.reason, load.victims, told(load.outcome));
    status.loads.into_iter().map(of).collect()
}

fn entry(model: u32, victims: u32, outcome: &str) -> (String, String, u32, String) {
    (format!("model-{model}"), "waiting".into(), victims, outcome.into())
}

#[test]
fn status_says_of_each_load_why_it_was_ordered_and_what_became_of_it() {
    let mut cold = Cold::start(&[]);
    let (load, _) = load_of(&cold.submit(0), 0);
    assert_eq!(loads(&mut cold.stage), [entry(0, 0, "under way")]);
    cold.wait(ms(2));
    let batch = batch_of(&cold.loaded(load), 0);
    let load = status(&mut cold.stage).loads.remove(0);
    assert_eq!((load.slot, load.planned_ms, load.copied_ms), (0, 5.0, Some(5.0)), "as LOAD");
    assert!(load.ended_ms.unwrap() >= 2.0, "{load:?}");
    cold.execute(batch);
    cold.serve_cold(1);
    let _lost = load_of(&cold.submit(2), 2);
    let all = [entry(0, 0, "loaded"), entry(1, 0, "loaded"), entry(2, 1, "under way")];
    assert_eq!(loads(&mut cold.stage), all);
    cold.lose_backend();
    assert_eq!(loads(&mut cold.stage)[2], entry(2, 1, "lost"));
}

#[test]
fn status_and_counters_say_why_loads_have_failed() {
    let counters = ["loads_unreadable", "loads_different", "loads_hung", "loads_without_pages"];
    let fault = |fault: LoadFault| (LoadStatus::Failed, fault as u8);
    for (told, name, counts) in [
        (fault(LoadFault::Unreadable), "unreadable", [1, 0, 0, 0]),
        (fault(LoadFault::Different), "different", [0, 1, 0, 0]),
        (fault(LoadFault::Hung), "hung", [0, 0, 1, 0]),
        ((LoadStatus::NoPages, 0), "no_pages", [0, 0, 0, 1]),
        (fault(LoadFault::Other), "failed", [0; 4]),
        ((LoadStatus::Failed, 77), "failed", [0; 4]),
    ] {
        let mut cold = Cold::start(&[]);
        let (mut load, _) = load_of(&cold.submit(0), 0);
        for times in 1..3 {
            let now = cold.stage.now;
            report(&mut cold.backend, load, told, [now, now]);
            cold.stage.exchange(&mut cold.backend);
            let cache = status(&mut cold.stage).models[0].cache.clone().unwrap();
            assert_eq!((cache.failed, cache.failure.as_deref()), (times, Some(name)));
            assert_eq!(loads(&mut cold.stage)[times as usize - 1], entry(0, 0, name));
            (load, _) = load_of(&cold.wait(ms(12)), 0);
            assert_eq!(counted(&cold.stage, counters), counts.map(|count| count * times), "{name}");
        }
    }
}

/// There is room for 64 slots, of which one is taken.
#[test]
fn a_backend_some_of_whose_slots_no_cache_has_room_for_is_refused() {
    let mut cold = Cold::start(&[]);
    for (gpus, is_refused) in [(64, true), (63, false)] {
        let mut large = cold.stage.member(Role::Backend);
        (0..MODELS).for_each(|model| describe(&mut large, model, 2));
        (0..gpus).for_each(|slot| announce(&mut large, slot, (PAGES, PAGE), &[]));
        large.send(&JoinBackend { subcluster: 0.into(), gpus: gpus.into() }, b"large");
        let told = cold.stage.exchange(&mut large);
        let code = Some(RefuseCode::Limit);
        let refused = |told: &Told| matches!(told, Told::Refused { code: why, .. } if *why == code);
        assert_eq!(told.iter().any(refused), is_refused, "{gpus}: {told:?}");
    }
}

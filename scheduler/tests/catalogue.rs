//! Models are added, changed and removed while others are served.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod stage;

use baton_core::{DropReason, ModelId, Policy, Profile};
use baton_rdma::Transport;
use baton_rdma::wire::{
    ActionStatus, CatalogChange, ChangeKind, JoinBackend, ModelFailed, ProfileDesc, Ready,
    RefuseCode, Role,
};
use baton_scheduler::limits::READS_MAX;
use baton_topo::{Cluster, ModelSpec, VariantSpec, WeightsCacheSpec, WeightsSpec};
use stage::caches::with_cache;
use stage::changes::{
    TABLE, add, answer, ask, change, loaded, newest, remove, report, serve_one, stage,
};
use stage::{Member, Stage, Told, cluster, ms};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

#[test]
fn an_added_model_is_served_once_its_backends_have_loaded_it() {
    let mut stage = stage();
    let (mut backend, mut other) = (stage.backend("a", 0, 1), stage.backend("b", 1, 1));
    let mut client = stage.frontend();
    stage.exchange(&mut backend);
    stage.exchange(&mut other);
    let mut operator = stage.member(Role::Operator);
    ask(&mut stage, &mut operator, ChangeKind::Add, TABLE);
    let table = Told::Table { model: 2, text: TABLE.to_owned() };
    assert_eq!(stage.exchange(&mut backend), [table]);
    assert_eq!(stage.exchange(&mut other), [], "it serves another sub-cluster");
    assert_eq!(stage.exchange(&mut operator), [], "not loaded yet");
    let before = client.models.len();
    stage.exchange(&mut client);
    assert_eq!(client.models.len(), before, "clients hear of it when it is served");
    let moves = |to| stage.scheduler.control.move_model(ModelId(2), to);
    assert_eq!([0, 1].map(moves), [false; 2], "no thread has it yet");
    loaded(&mut stage, &mut backend, 2);
    assert!(answer(&mut stage, &mut operator).0);
    stage.exchange(&mut client);
    let model = newest(&client);
    serve_one(&mut stage, &mut backend, &mut client, model, 0);
    assert_eq!(stage.frontend().models.len(), 3, "a client that joins now learns of it");
}

#[test]
fn a_number_serves_one_model_after_the_other() {
    let mut stage = stage();
    let mut backend = stage.backend("a", 0, 1);
    let mut client = stage.frontend();
    stage.exchange(&mut backend);
    let mut ids = Vec::new();
    for round in 0..5 {
        let model = add(&mut stage, &mut backend, &mut client);
        assert!(!ids.contains(&model.0), "{model:?} was used before: {ids:?}");
        ids.push(model.0);
        (0..3).for_each(|i| {
            serve_one(&mut stage, &mut backend, &mut client, model, round * 3 + i);
        });
        // Where it was first leaves as little behind as where it goes.
        let number = model.0 & 0xffff;
        assert!(stage.scheduler.control.move_model(ModelId(number), 1 - model.1));
        stage.settle();
        stage.exchange(&mut client);
        let moved = (model.0, 1 - model.1);
        assert_eq!(newest(&client), moved);
        serve_one(&mut stage, &mut backend, &mut client, moved, 20 + round);
        let mut operator = remove(&mut stage);
        assert!(answer(&mut stage, &mut operator).0);
        stage.exchange(&mut client);
        assert_eq!(stage.exchange(&mut backend), [Told::ModelDown { model: model.0 }]);
    }
    assert!(ids.iter().any(|id| id >> 16 > 0), "a number was used again: {ids:?}");
    let open = stage.scheduler.model_threads.iter().map(|thread| thread.open_migrations());
    assert_eq!(open.sum::<usize>(), 0, "no channel stays open");
    let taken = stage.scheduler.rank.slots();
    assert_eq!(taken, (1, 1), "every slot is offered again");
}

#[test]
fn a_batch_that_a_former_home_awaits_keeps_the_number() {
    let mut stage = stage();
    let mut backend = stage.backend("a", 0, 1);
    let mut client = stage.frontend();
    stage.exchange(&mut backend);
    let (id, thread) = add(&mut stage, &mut backend, &mut client);
    let task = client.task(0, 0);
    client.submit_to(thread, id, task, stage.now + ms(30));
    stage.exchange(&mut client);
    let told = stage.exchange(&mut backend);
    let [Told::Action { batch, .. }] = told[..] else { panic!("{told:?}") };
    let mut operator = stage.member(Role::Operator);
    assert!(stage.scheduler.control.move_model(ModelId(id), 1 - thread));
    // Asked for while the model is on its way: it is removed once it has arrived.
    ask(&mut stage, &mut operator, ChangeKind::Remove, "new");
    assert_eq!(stage.exchange(&mut operator), [], "the former home awaits a report");
    assert_eq!(stage.exchange(&mut backend), [], "the backend has the batch");
    report(&mut stage, &mut backend, thread, batch);
    assert!(answer(&mut stage, &mut operator).0);
}

#[test]
fn a_model_that_a_backend_cannot_load_is_not_added() {
    let mut stage = stage();
    let (mut one, mut two) = (stage.backend("one", 0, 1), stage.backend("two", 0, 1));
    let mut operator = stage.member(Role::Operator);
    ask(&mut stage, &mut operator, ChangeKind::Add, TABLE);
    stage.exchange(&mut one);
    stage.exchange(&mut two);
    loaded(&mut stage, &mut one, 2);
    assert_eq!(stage.exchange(&mut operator), [], "the other has not");
    two.send(&ModelFailed { model: 2.into() }, b"no memory");
    assert_eq!(stage.exchange(&mut two), [Told::ModelDown { model: 2 }]);
    assert_eq!(stage.exchange(&mut one), [Told::ModelDown { model: 2 }], "it unloads again");
    let (done, text) = answer(&mut stage, &mut operator);
    assert_eq!((done, text.contains("`two` cannot load it: no memory")), (false, true), "{text}");
    let mut client = stage.frontend();
    assert_eq!(client.models.len(), 2);
    let told = stage.exchange(&mut one);
    assert!(matches!(told[..], [Told::PeerUp { .. }]), "{told:?}");
    drop(two);
    stage.settle();
    // Until the number of the model that failed is used again.
    for slot in 0..3 {
        let model = add(&mut stage, &mut one, &mut client);
        assert_ne!(model.0, 2, "the id was that of the model that failed");
        serve_one(&mut stage, &mut one, &mut client, model, slot);
        let mut operator = remove(&mut stage);
        assert!(answer(&mut stage, &mut operator).0);
        stage.exchange(&mut client);
        stage.exchange(&mut one);
    }
}

#[test]
fn tables_that_are_refused_take_no_place_from_the_next() {
    let mut stage = stage();
    for _ in 0..2 * READS_MAX {
        let (done, why) = change(&mut stage, ChangeKind::Add, "[[model]]\nname = \"new\"\n");
        assert!(!done && !why.contains("try again"), "{why}");
    }
    assert!(change(&mut stage, ChangeKind::Add, TABLE).0);
}

#[test]
fn a_backend_serves_once_it_has_loaded_what_was_added() {
    let mut stage = stage();
    let mut client = stage.frontend();
    assert!(change(&mut stage, ChangeKind::Add, TABLE).0, "no backend serves: none needs to load");
    stage.exchange(&mut client);
    let (id, thread) = newest(&client);
    let mut backend = stage.backend("late", 0, 1);
    assert!(backend.models.iter().any(|(name, _)| name == "new"), "its catalogue has it");
    let task = client.task(0, 0);
    client.submit_to(thread, id, task, stage.now + ms(30));
    let reason = DropReason::NoBackend.code();
    assert_eq!(stage.exchange(&mut client), [Told::Ended { task, kind: 1, reason, retry_ms: 0 }]);
    loaded(&mut stage, &mut backend, id);
    serve_one(&mut stage, &mut backend, &mut client, (id, thread), 1);
}

#[test]
fn a_backend_that_goes_is_not_waited_for() {
    let mut stage = stage();
    let (mut one, two) = (stage.backend("one", 0, 1), stage.backend("two", 0, 1));
    let mut operator = stage.member(Role::Operator);
    ask(&mut stage, &mut operator, ChangeKind::Add, TABLE);
    loaded(&mut stage, &mut one, 2);
    assert_eq!(stage.exchange(&mut operator), []);
    drop(two);
    stage.settle();
    assert!(answer(&mut stage, &mut operator).0);
}

#[test]
fn a_backend_that_leaves_is_not_waited_for() {
    let mut stage = stage();
    let (mut one, mut two) = (stage.backend("one", 0, 1), stage.backend("two", 0, 1));
    let mut operator = stage.member(Role::Operator);
    ask(&mut stage, &mut operator, ChangeKind::Add, TABLE);
    loaded(&mut stage, &mut one, 2);
    assert_eq!(stage.exchange(&mut operator), []);
    two.leave();
    two.transport.flush();
    stage.settle();
    assert!(answer(&mut stage, &mut operator).0);
}

/// It has told what it has loaded, and is not ready.
#[test]
fn a_backend_that_does_not_serve_yet_is_not_waited_for_and_serves_once_it_is_ready() {
    let mut stage = stage();
    let (mut one, mut two) = (stage.backend("one", 0, 1), stage.member(Role::Backend));
    two.send(&ProfileDesc { model: 0.into(), pages: 0.into() }, &[]);
    two.send(&JoinBackend { subcluster: 0.into(), gpus: 1.into() }, b"two");
    stage.connect(&mut two);
    let mut client = stage.frontend();
    stage.exchange(&mut one);
    let (model, _) = add(&mut stage, &mut one, &mut client);
    loaded(&mut stage, &mut two, model);
    stage.exchange(&mut two);
    assert_eq!(two.confirmed, 0);
    two.send(&Ready { reserved: 0.into() }, &[]);
    stage.exchange(&mut two);
    assert_eq!(two.confirmed, 1);
}

/// A member that remembers a removed model must not take the next one for it.
#[test]
fn a_number_is_given_out_again_only_after_the_others() {
    let mut stage = stage();
    let (mut backend, mut client) = (stage.backend("a", 0, 1), stage.frontend());
    stage.exchange(&mut backend);
    let mut next = || {
        let (id, _) = add(&mut stage, &mut backend, &mut client);
        let mut operator = remove(&mut stage);
        assert!(answer(&mut stage, &mut operator).0);
        stage.exchange(&mut backend);
        id
    };
    let numbers = [next(), next()].map(|id| id & 0xffff);
    assert_ne!(numbers[0], numbers[1]);
}

#[test]
fn an_objective_and_a_quota_change_while_tasks_come() {
    let mut stage = stage();
    let mut backend = stage.backend("a", 0, 1);
    let mut client = stage.frontend();
    stage.exchange(&mut backend);
    let text =
        "[[model]]\nname = \"model-0\"\nslo_ms = 50\nmax_rps = 1\nalpha_ms = 2\nbeta_ms = 4\n";
    assert!(change(&mut stage, ChangeKind::Set, text).0);
    let latency = stage.scheduler.model_threads[0].model(0).latency().of(2);
    assert_eq!(latency, ms(8), "the new profile");
    stage.exchange(&mut client);
    let desc = client.described.last().unwrap();
    assert_eq!((desc.model.get(), desc.slo_ns.get()), (0, 50_000_000));
    serve_one(&mut stage, &mut backend, &mut client, (0, 0), 0);
    for slot in 1..18 {
        let task = client.task(slot, 0);
        client.submit(0, task, stage.now + ms(30));
    }
    let told = stage.exchange(&mut client);
    let quota = DropReason::Quota.code();
    assert!(matches!(told[..], [Told::Ended { reason, .. }, ..] if reason == quota), "{told:?}");
}

#[test]
fn what_cannot_be_is_refused_with_words() {
    let mut stage = stage();
    let refusal = |stage: &mut Stage, kind, text: &str, words: &str| {
        let (done, told) = change(stage, kind, text);
        assert!(!done && told.contains(words), "{told}");
    };
    let of = |name: &str, subcluster: &str| {
        TABLE.replace("\"new\"", &format!("\"{name}\"")).replace("\"a\"", subcluster)
    };
    refusal(&mut stage, ChangeKind::Add, &of("model-1", "\"a\""), "named `model-1` already");
    refusal(
        &mut stage,
        ChangeKind::Add,
        &of("new", "\"c\""),
        "no sub-cluster `c`; there are: a, b",
    );
    refusal(&mut stage, ChangeKind::Add, "[[model]]\nname = \"new\"\n", "slo_ms");
    refusal(
        &mut stage,
        ChangeKind::Remove,
        "new",
        "no model named `new`; there are: model-0, model-1",
    );
    refusal(
        &mut stage,
        ChangeKind::Set,
        "[[model]]\nname = \"new\"\nslo_ms = 1\n",
        "no model named",
    );
    for name in ["new-2", "new-3"] {
        assert!(change(&mut stage, ChangeKind::Add, &of(name, "\"a\"")).0);
    }
    refusal(&mut stage, ChangeKind::Add, &of("new-4", "\"a\""), "there are 4 models");
    let counters = &stage.scheduler.counters().control_thread;
    assert_eq!((counters.changes_done.get(), counters.changes_refused.get()), (2, 6));
    let mut client = stage.frontend();
    client.send(&CatalogChange { kind: 3, reserved: [0; 3] }, b"model-0");
    let told = stage.exchange(&mut client);
    let code = Some(RefuseCode::UnexpectedMessage);
    assert!(matches!(&told[..], [Told::Refused { code: c, .. }, ..] if *c == code), "{told:?}");
}

#[test]
fn a_backend_that_has_the_catalogue_and_has_not_joined_hears_of_changes() {
    let mut stage = stage();
    let mut backend = stage.member(Role::Backend);
    assert!(change(&mut stage, ChangeKind::Add, TABLE).0);
    let told = stage.exchange(&mut backend);
    assert!(matches!(told[..], [Told::Table { model: 2, .. }]), "{told:?}");
}

#[test]
fn a_batch_that_comes_back_is_served_before_its_model_goes() {
    let mut stage = stage();
    let mut backend = stage.backend("a", 0, 1);
    let mut client = stage.frontend();
    stage.exchange(&mut backend);
    let (id, thread) = add(&mut stage, &mut backend, &mut client);
    let task = client.task(0, 0);
    client.submit_to(thread, id, task, stage.now + ms(30));
    stage.exchange(&mut client);
    let mut operator = remove(&mut stage);
    for status in [ActionStatus::Refused, ActionStatus::Executed] {
        let told = stage.exchange(&mut backend);
        let [Told::Action { batch, ref tasks, .. }] = told[..] else { panic!("{told:?}") };
        assert_eq!((&tasks[..], stage.exchange(&mut operator)), (&[task][..], vec![]));
        backend.threads.swap(0, thread);
        backend.report(batch, 0, status, (stage.now, stage.now + ms(5)));
        backend.threads.swap(0, thread);
        backend.transport.flush();
        stage.settle();
    }
    assert!(answer(&mut stage, &mut operator).0);
    assert_eq!(stage.exchange(&mut client), [Told::ModelDown { model: id }], "it was answered");
}

#[test]
fn loads_are_counted_anew_for_each_model() {
    let mut stage = stage();
    let mut backend = stage.backend("a", 0, 1);
    let mut client = stage.frontend();
    stage.exchange(&mut backend);
    let pass = |stage: &mut Stage, backend: &mut Member, client: &mut Member| {
        for _ in 0..6 {
            [&mut *backend, &mut *client].into_iter().for_each(Member::ping);
            stage.exchange(backend);
            stage.exchange(client);
            stage.advance(ms(500));
        }
    };
    for round in 0..4 {
        let model = add(&mut stage, &mut backend, &mut client);
        // More of the first model than of those that have its number later.
        for i in 0..8 - 2 * round {
            serve_one(&mut stage, &mut backend, &mut client, model, round * 8 + i);
        }
        pass(&mut stage, &mut backend, &mut client);
        let mut operator = remove(&mut stage);
        assert!(answer(&mut stage, &mut operator).0);
        stage.exchange(&mut client);
        stage.exchange(&mut backend);
        pass(&mut stage, &mut backend, &mut client);
    }
}

#[test]
fn members_learn_of_a_models_variants_and_a_plan_names_the_cheapest_that_each_task_allows() {
    let mut cluster = cluster(Policy::Eager, 1);
    let variant = |name: &str, accuracy, alpha_ms| VariantSpec {
        name: name.to_owned(),
        accuracy,
        profile: Profile::linear(ms(alpha_ms), ms(4), 8).unwrap(),
        file: None,
        sha256: None,
    };
    cluster.models[0].variants = vec![
        variant("small", 70_000, 1),
        variant("middle", 75_000, 2),
        variant("large", 80_000, 3),
    ];
    let mut stage = Stage::new(&cluster);
    let (mut backend, mut client) = (stage.backend("a", 0, 1), stage.frontend());
    let expected = [(0, 70_000, "small"), (0, 75_000, "middle"), (0, 80_000, "large")];
    let expected = expected.map(|(model, accuracy, name)| (model, accuracy, name.to_owned()));
    assert_eq!((&client.variants[..], &backend.variants[..]), (&expected[..], &expected[..]));
    stage.exchange(&mut backend);
    client.accuracy_min = 70_001;
    client.submit(0, client.task(0, 0), stage.now + ms(30));
    stage.exchange(&mut client);
    let told = stage.exchange(&mut backend);
    let [Told::Action { variants: [floor, variant], .. }] = told[..] else { panic!("{told:?}") };
    assert_eq!(floor, 1);
    assert!(variant >= floor);
}

#[test]
fn a_model_whose_weights_no_cache_of_its_subcluster_has_room_for_is_not_added() {
    let base = cluster(Policy::Baton, 1);
    let weights = Some(WeightsSpec { bytes: 1 << 20, load: ms(1), is_guess: false });
    let models = base.models.iter().map(|model| ModelSpec { weights, ..model.clone() }).collect();
    let backend = with_cache(WeightsCacheSpec { pages: 4, page_bytes: 1 << 20 });
    let mut stage = Stage::new(&Cluster { models, backends: vec![backend], ..base });
    for (weights, words) in [("", "give weights_mib"), ("weights_mib = 4.5\n", "larger than one")] {
        let (done, told) = change(&mut stage, ChangeKind::Add, &format!("{TABLE}{weights}"));
        assert!(!done && told.contains(words), "{told}");
    }
    let (done, told) = change(&mut stage, ChangeKind::Add, &format!("{TABLE}weights_mib = 4\n"));
    assert!(done, "{told}");
}

/// From its first batch on: what was measured while it was added is not lost.
#[test]
fn an_added_model_is_planned_with_what_its_backend_has_measured() {
    let mut stage = stage();
    let (mut backend, mut client) = (stage.backend("a", 0, 1), stage.frontend());
    stage.exchange(&mut backend);
    let mut operator = stage.member(Role::Operator);
    ask(&mut stage, &mut operator, ChangeKind::Add, TABLE);
    let told = stage.exchange(&mut backend);
    let [Told::Table { model, .. }] = told[..] else { panic!("received {told:?}") };
    let table: Vec<U64> = (0..8).map(|above: u64| U64::from(ms(20 + above).0)).collect();
    backend.send(&ProfileDesc { model: model.into(), pages: 0.into() }, table.as_bytes());
    backend.transport.flush();
    stage.settle();
    assert!(answer(&mut stage, &mut operator).0);
    stage.exchange(&mut client);
    let (_, thread) = newest(&client);
    let latency = stage.scheduler.model_threads[thread].model(1).latency();
    assert_eq!([1, 8].map(|size| latency.of(size)), [ms(20), ms(27)]);
}

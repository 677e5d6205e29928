//! An operator asks how the cluster fares.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod stage;

use baton_core::{DropReason, Nanos, Policy};
use baton_rdma::Transport;
use baton_rdma::status::{ClusterStatus, EventStatus, MemberRole, ModelStatus, PART_MAX};
use baton_rdma::wire::{ActionStatus, RefuseCode, Role, StatusAsk};
use stage::asking::{part, status};
use stage::changes::{add, answer, remove, serve_one, stage};
use stage::passing::pass;
use stage::{Member, Stage, Told, cluster, ms};

fn events(status: &ClusterStatus) -> Vec<(String, String, Option<String>)> {
    let parts = |e: &EventStatus| (e.event.clone(), e.subject.clone(), e.reason.clone());
    status.events.iter().map(parts).collect()
}

/// Executes `rows` of the batch that the backend is given next, from `begin` to `end` from now, and says so at its end, with
/// the rows that were stale.
fn execute(
    stage: &mut Stage,
    backend: &mut Member,
    (rows, stale): (u16, &[u16]),
    (begin, end): (Nanos, Nanos),
) {
    let (batch, gpu) = next_batch(stage, backend);
    let ran = (stage.now + begin, stage.now + end);
    stage.advance(end);
    backend.report_rows(batch, gpu, (ActionStatus::Executed, rows, stale), ran);
    stage.exchange(backend);
}

fn next_batch(stage: &mut Stage, backend: &mut Member) -> (u64, u32) {
    let told = stage.exchange(backend);
    let batch = told.iter().find_map(|told| match told {
        Told::Action { batch, gpu, .. } => Some((*batch, *gpu)),
        _ => None,
    });
    batch.unwrap_or_else(|| panic!("no batch: {told:?}"))
}

fn close_to(value: Option<f64>, wanted: f64) -> bool {
    value.is_some_and(|value| (value / wanted - 1.0).abs() < 0.07)
}

#[test]
fn a_models_figures_are_those_of_its_tasks() {
    let mut stage = Stage::new(&cluster(Policy::Eager, 1));
    let (mut backend, mut client) = (stage.backend("b", 0, 1), stage.frontend());
    pass(&mut stage, &mut [&mut backend, &mut client], ms(200));
    assert_eq!(
        status(&mut stage).models[0],
        ModelStatus {
            name: "model-0".into(),
            subcluster: "a".into(),
            slo_ms: 30.0,
            ..ModelStatus::default()
        }
    );
    // Ten tasks of 8 ms, of which the last one ends too late: it takes 40 ms.
    for slot in 0..10 {
        let task = client.task(slot % 4, slot / 4);
        client.submit(0, task, stage.now + ms(30));
        stage.exchange(&mut client);
        let took = if slot == 9 { ms(40) } else { ms(8) };
        execute(&mut stage, &mut backend, (1, &[]), (ms(2), took));
        pass(&mut stage, &mut [&mut backend, &mut client], ms(100));
    }
    // One whose time is shorter than an execution.
    let hopeless = client.task(3, 9);
    client.submit(0, hopeless, stage.now + ms(1));
    let reason = DropReason::DeadlinePassed.code();
    assert!(stage.exchange(&mut client).contains(&Told::Ended {
        task: hopeless,
        kind: 1,
        reason,
        retry_ms: 0
    }));
    pass(&mut stage, &mut [&mut backend, &mut client], ms(2_000));
    let status = status(&mut stage);
    let model = &status.models[0];
    assert_eq!((model.queue, model.mean_batch), (0, Some(1.0)));
    assert_eq!(model.bad_rate, Some(0.181818), "one late and one dropped, of eleven");
    assert!(close_to(model.p50_ms, 8.0), "{model:?}");
    assert!(close_to(model.p99_ms, 40.0), "{model:?}");
    assert!((2.5..5.0).contains(&model.rate_rps), "eleven in three seconds: {model:?}");
    assert_eq!(status.models[1].p50_ms, None, "the other one has had no task");
    // 9 · 6 ms and 38 ms, of some three seconds.
    let busy = status.gpus[0].busy;
    assert!((0.02..0.05).contains(&busy), "{busy}");
    let outstanding: Vec<u64> = status.members.iter().map(|m| m.outstanding).collect();
    assert_eq!(outstanding, [0, 0], "every task has its outcome");
    drop(backend.transport);
    stage.settle();
    let _successor = stage.backend("successor", 0, 1);
    stage.advance(ms(100));
    let status = self::status(&mut stage);
    assert_eq!((status.gpus[0].slot, status.gpus[0].busy), (0, 0.0), "that was another life");
}

/// The bad rate of a model of which the slot has all it can have, once something has happened to the third task, which waits.
fn bad_rate_after(happens: impl FnOnce(&mut Stage, &mut Member, u64)) -> Option<f64> {
    let mut stage = Stage::new(&cluster(Policy::Eager, 1));
    let (mut backend, mut client) = (stage.backend("b", 0, 1), stage.frontend());
    let mut other = stage.frontend();
    pass(&mut stage, &mut [&mut backend, &mut client, &mut other], ms(200));
    // The slot has two batches at most.
    for slot in 0..2 {
        other.submit(0, other.task(slot, 0), stage.now + ms(30));
        stage.exchange(&mut other);
    }
    let waits = client.task(0, 0);
    client.submit(0, waits, stage.now + ms(30));
    stage.exchange(&mut client);
    happens(&mut stage, &mut client, waits);
    let actions = stage.exchange(&mut backend);
    stage.advance(ms(12));
    for told in &actions {
        let Told::Action { batch, gpu, .. } = *told else { continue };
        let ran = (stage.now - ms(6), stage.now - ms(1));
        backend.report(batch, gpu, ActionStatus::Executed, ran);
    }
    stage.exchange(&mut backend);
    pass(&mut stage, &mut [&mut backend, &mut other], ms(2_000));
    status(&mut stage).models[0].bad_rate
}

/// No GPU could have served it better.
#[test]
fn a_task_that_its_application_gives_up_while_it_waits_is_no_bad_one() {
    let cancelled = bad_rate_after(|stage, client, task| {
        client.cancel(0, task);
        let told = stage.exchange(client);
        let is_its = |told: &Told| matches!(told, Told::Ended { task: of, .. } if *of == task);
        assert!(told.iter().any(is_its), "{told:?}");
    });
    let left = bad_rate_after(|stage, client, _| {
        client.transport.close(client.control, RefuseCode::Shutdown, "it is gone");
        stage.exchange(client);
    });
    assert_eq!((cancelled, left), (Some(0.0), Some(0.0)));
}

/// Their clients submit them again, or have given them up.
#[test]
fn tasks_with_stale_inputs_count_neither_as_bad_nor_as_executed() {
    // Rows executed and stale of a batch of three; bad rate and mean batch.
    let cases: [(u16, &[u16], _, _); 6] = [
        (3, &[], Some(0.0), Some(3.0)),
        (2, &[0], Some(0.0), Some(2.0)),
        (1, &[0, 1], Some(0.0), Some(1.0)),
        (1, &[2], Some(0.5), Some(2.0)),
        (0, &[0, 1, 2], None, None),
        (3, &[3, 900], Some(0.0), Some(3.0)),
    ];
    for (rows, stale, bad_rate, mean_batch) in cases {
        let mut stage = Stage::new(&cluster(Policy::Eager, 1));
        let (mut backend, mut client) = (stage.backend("b", 0, 1), stage.frontend());
        pass(&mut stage, &mut [&mut backend, &mut client], ms(200));
        let until = stage.now + ms(30);
        (0..3).for_each(|slot| client.submit(0, client.task(slot, 0), until));
        stage.exchange(&mut client);
        execute(&mut stage, &mut backend, (rows, stale), (ms(1), ms(8)));
        pass(&mut stage, &mut [&mut backend, &mut client], ms(2_000));
        let status = status(&mut stage);
        let model = &status.models[0];
        assert_eq!((model.bad_rate, model.mean_batch), (bad_rate, mean_batch), "{stale:?}");
        assert!(status.members.iter().all(|member| member.outstanding == 0), "{stale:?}");
    }
}

/// A backend whose clock is beside itself, or that lies.
#[test]
fn an_absurd_report_is_counted_as_what_can_have_been() {
    let mut stage = Stage::new(&cluster(Policy::Eager, 1));
    let (mut backend, mut client) = (stage.backend("b", 0, 1), stage.frontend());
    pass(&mut stage, &mut [&mut backend, &mut client], ms(1_000));
    for slot in 0..3 {
        let task = client.task(slot, 0);
        client.submit(0, task, stage.now + ms(30));
        stage.exchange(&mut client);
        let (batch, gpu) = next_batch(&mut stage, &mut backend);
        stage.advance(ms(10));
        let ran = (Nanos::ZERO, Nanos::MAX);
        backend.report(batch, gpu, ActionStatus::Executed, ran);
        stage.exchange(&mut backend);
        // The scheduler takes the slot for busy for as long as it believes.
        pass(&mut stage, &mut [&mut backend, &mut client], ms(100));
    }
    let status = status(&mut stage);
    assert!(status.gpus[0].busy <= 1.0, "{:?}", status.gpus[0]);
    assert!(close_to(status.models[0].p50_ms, 10.0), "{:?}", status.models[0]);
}

#[test]
fn figures_forget_what_is_ten_seconds_old() {
    let mut stage = Stage::new(&cluster(Policy::Eager, 1));
    let (mut backend, mut client) = (stage.backend("b", 0, 1), stage.frontend());
    pass(&mut stage, &mut [&mut backend, &mut client], ms(200));
    let task = client.task(0, 0);
    client.submit(0, task, stage.now + ms(30));
    stage.exchange(&mut client);
    execute(&mut stage, &mut backend, (1, &[]), (ms(1), ms(8)));
    pass(&mut stage, &mut [&mut backend, &mut client], ms(3_000));
    assert!(status(&mut stage).models[0].p50_ms.is_some());
    pass(&mut stage, &mut [&mut backend, &mut client], ms(11_000));
    let status = status(&mut stage);
    assert_eq!((status.models[0].p50_ms, status.models[0].rate_rps), (None, 0.0));
    assert_eq!(status.gpus[0].busy, 0.0);
    assert!((4.9..10.2).contains(&status.scheduler.window_s), "{:?}", status.scheduler);
    assert!(status.scheduler.uptime_s > 14.0);
}

#[test]
fn members_say_what_is_outstanding_and_slots_whose_they_are() {
    let mut stage = Stage::new(&cluster(Policy::Eager, 2));
    let mut backend = stage.backend("gpu-a", 0, 2);
    let mut client = stage.frontend();
    stage.exchange(&mut backend);
    // Two slots have a batch each, in which the first tasks of both ModelThreads are; the others wait.
    let tasks: Vec<u64> = (0..4).map(|slot| client.task(slot, 0)).collect();
    for &task in &tasks {
        client.submit(0, task, stage.now + ms(30));
        stage.exchange(&mut client);
    }
    let told = stage.exchange(&mut backend);
    let given: usize = told
        .iter()
        .map(|told| match told {
            Told::Action { tasks, .. } => tasks.len(),
            _ => 0,
        })
        .sum();
    let before = status(&mut stage);
    let [frontend, of_backend] = &before.members[..] else { panic!("{before:?}") };
    assert_eq!((frontend.role, frontend.outstanding), (MemberRole::Frontend, 4));
    assert_eq!((of_backend.role, of_backend.outstanding), (MemberRole::Backend, given as u64));
    assert_eq!(of_backend.name.as_deref(), Some("gpu-a"));
    assert_eq!((of_backend.gpus, of_backend.state.as_str()), (Some(2), "serving"));
    let slots: Vec<(u32, &str, &str)> = before
        .gpus
        .iter()
        .map(|gpu| (gpu.slot, gpu.backend.as_str(), gpu.subcluster.as_str()))
        .collect();
    assert_eq!(slots, [(0, "gpu-a", "a"), (1, "gpu-a", "a")]);
    assert_eq!((before.subclusters[0].gpus, before.subclusters[1].gpus), (2, 0));
    drop(backend.transport);
    stage.settle();
    stage.exchange(&mut client);
    let after = status(&mut stage);
    assert_eq!(after.members.len(), 1);
    assert_eq!(after.members[0].outstanding, 0, "all were dropped: nothing serves them");
    assert_eq!(after.gpus, []);
}

#[test]
fn who_came_and_went_and_why_is_remembered() {
    let mut stage = Stage::new(&cluster(Policy::Eager, 2));
    let mut silent = stage.backend("quiet", 0, 1);
    let (mut alive, mut leaver) = (stage.frontend(), stage.frontend());
    leaver.leave();
    stage.exchange(&mut leaver);
    drop(leaver.transport);
    let mut torn = stage.frontend();
    let thread = torn.threads[0];
    torn.transport.close(thread, RefuseCode::Shutdown, "");
    stage.exchange(&mut torn);
    pass(&mut stage, &mut [&mut alive], ms(1_500));
    stage.exchange(&mut silent);
    let status = status(&mut stage);
    let expected = [
        ("joined", "backend quiet", None),
        ("joined", "frontend 0", None),
        ("joined", "frontend 1", None),
        ("left", "frontend 1", None),
        ("joined", "frontend 2", None),
        ("lost", "frontend 2", Some("connection_broken")),
        ("lost", "backend quiet", Some("silent")),
    ];
    let expected = expected.map(|(event, subject, reason)| {
        (event.to_owned(), subject.to_owned(), reason.map(str::to_owned))
    });
    assert_eq!(events(&status), expected);
    let lost = &status.events[6];
    assert_eq!(lost.detail, "nothing heard for 1000 ms");
    let counters = &stage.scheduler.counters().control_thread;
    let by_role = [&counters.frontends_lost, &counters.backends_lost].map(|count| count.get());
    assert_eq!((by_role, counters.lost.get()), ([1, 1], 2));
    assert!(lost.age_s < status.events[0].age_s, "{:?}", status.events);
}

#[test]
fn a_model_with_a_used_number_begins_from_nothing() {
    let mut stage = stage();
    let (mut backend, mut client) = (stage.backend("a", 0, 1), stage.frontend());
    stage.exchange(&mut backend);
    for round in 0..3 {
        let model = add(&mut stage, &mut backend, &mut client);
        let fresh = status(&mut stage);
        let [.., new] = &fresh.models[..] else { panic!("{fresh:?}") };
        assert_eq!((new.name.as_str(), new.mean_batch), ("new", None), "round {round}");
        serve_one(&mut stage, &mut backend, &mut client, model, round);
        let used = status(&mut stage);
        assert_eq!(used.models.last().unwrap().mean_batch, Some(1.0), "round {round}");
        let mut operator = remove(&mut stage);
        assert!(answer(&mut stage, &mut operator).0);
        stage.exchange(&mut client);
        stage.exchange(&mut backend);
    }
    let status = status(&mut stage);
    let models = events(&status).into_iter().filter(|event| event.1 == "model new");
    let kinds: Vec<String> = models.map(|event| event.0).collect();
    assert_eq!(kinds, ["model_added", "model_removed"].repeat(3));
}

#[test]
fn tasks_of_a_subcluster_without_gpus_ask_for_the_first_one() {
    let mut stage = Stage::new(&cluster(Policy::Eager, 1));
    let mut client = stage.frontend();
    pass(&mut stage, &mut [&mut client], ms(6_000));
    assert_eq!(status(&mut stage).scheduler.gpus_needed, 0, "nothing has come");
    client.submit(0, client.task(0, 0), stage.now + ms(30));
    stage.exchange(&mut client);
    pass(&mut stage, &mut [&mut client], ms(2_000));
    let found = status(&mut stage);
    assert_eq!((found.scheduler.gpus_needed, found.subclusters[0].gpus_needed), (1, 1));
}

#[test]
fn a_large_cluster_answers_in_parts_that_a_message_can_carry() {
    let mut stage = Stage::new(&cluster(Policy::Eager, 1));
    let mut backends: Vec<Member> = (0..20)
        .map(|number| stage.backend(&format!("\"{number}\"{}", "\u{1}".repeat(200)), 0, 64))
        .collect();
    let mut operator = stage.member(Role::Operator);
    let (mut status, mut from, mut parts) = (ClusterStatus::default(), 0, 0);
    loop {
        let (next, text) = part(&mut stage, &mut operator, from);
        assert!(text.len() <= PART_MAX, "{} bytes", text.len());
        status.take_in(&text).unwrap();
        parts += 1;
        if parts == 5 {
            // One that a part has listed is gone: the parts still list each of the others once.
            drop(backends.remove(0).transport);
            stage.settle();
        }
        from = next;
        if from == 0 {
            break;
        }
    }
    assert!(parts > 10, "{parts} parts");
    let mut slots: Vec<u32> = status.gpus.iter().map(|gpu| gpu.slot).collect();
    assert_eq!(slots.iter().filter(|&&slot| slot >= 64).count(), 19 * 64);
    slots.dedup();
    assert_eq!(slots.len(), status.gpus.len(), "none twice");
    assert_eq!(status.events.len(), 21, "each once: all have come, and one has gone");
    let lost = status.events.last().unwrap();
    assert_eq!((lost.event.as_str(), lost.reason.as_deref()), ("lost", Some("connection_broken")));
}

#[test]
fn only_operators_ask_and_for_one_part_at_a_time() {
    let mut stage = Stage::new(&cluster(Policy::Eager, 1));
    let mut client = stage.frontend();
    client.send(&StatusAsk { from: 0.into() }, &[]);
    let mut hasty = stage.member(Role::Operator);
    hasty.send(&StatusAsk { from: 0.into() }, &[]);
    hasty.send(&StatusAsk { from: 0.into() }, &[]);
    for member in [&mut client, &mut hasty] {
        let told = stage.exchange(member);
        let refused = told.iter().any(|told| {
            matches!(told, Told::Refused { code: Some(RefuseCode::UnexpectedMessage), .. })
        });
        assert!(refused, "{told:?}");
    }
    let mut lost = stage.member(Role::Operator);
    let (next, text) = part(&mut stage, &mut lost, u64::MAX);
    assert_eq!((next, text.as_str()), (0, ""), "there is no such place");
}

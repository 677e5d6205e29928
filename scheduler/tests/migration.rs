//! Models that move between ModelThreads, message by message: what waits goes along, and what still
//! comes to the former home follows.

mod stage;

use baton_core::{DropReason, ModelId, Nanos, Policy};
use baton_rdma::Transport;
use baton_rdma::wire::{ActionStatus, JoinBackend, ProfileDesc, Ready, RefuseCode, Role};
use baton_scheduler::limits::{MIGRATION_MAX, MODEL_NOTICES_MAX, RANK_NOTICES_MAX};
use baton_topo::Agent;
use stage::{Member, Stage, Told, cluster, ms};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

/// Model 0 lives on thread 0, model 1 on thread 1; a frontend, and a backend for `model`.
fn stage(policy: Policy, model: u32) -> (Stage, Member, Member) {
    let mut stage = Stage::new(&cluster(policy, 2));
    let (frontend, backend) = (stage.frontend(), stage.backend("b", model, 1));
    (stage, frontend, backend)
}

fn move_model(stage: &mut Stage, model: u32, to: usize) {
    assert!(stage.scheduler.control.move_model(ModelId(model), to));
}

fn poll(stage: &mut Stage, thread: usize) {
    let now = stage.now;
    stage.scheduler.model_threads[thread].poll(now);
}

fn submit(stage: &Stage, frontend: &mut Member, model: u32, slot: u32) -> u64 {
    let task = frontend.task(slot, 0);
    frontend.submit(model, task, stage.now + ms(30));
    frontend.transport.flush();
    task
}

/// Batch and tasks of the one plan in `told`.
fn action(told: &[Told]) -> (u64, Vec<u64>) {
    match told {
        [Told::Action { batch, tasks, .. }] => (*batch, tasks.clone()),
        other => panic!("expected one action, received {other:?}"),
    }
}

fn passed_on(stage: &Stage, thread: usize) -> u64 {
    stage.scheduler.counters().model_threads[thread].passed_on.get()
}

#[test]
fn what_waits_goes_along_and_is_planned_at_the_new_home() {
    let (mut stage, mut frontend, mut backend) = stage(Policy::Symphony, 0);
    let tasks: Vec<u64> = (0..3).map(|slot| submit(&stage, &mut frontend, 0, slot)).collect();
    stage.settle();
    move_model(&mut stage, 0, 1);
    stage.settle();
    let waiting = |thread: usize| stage.scheduler.model_threads[thread].waiting();
    assert_eq!((waiting(0), waiting(1)), (0, 3));
    stage.advance(ms(25));
    assert_eq!(action(&stage.exchange(&mut backend)).1, tasks);
    assert_eq!(stage.scheduler.model_threads[1].in_flight(), 1);
    assert_eq!(passed_on(&stage, 0), 0, "the grant went to the new home at once");
    assert_eq!(stage.scheduler.control.homes()[..2], [1, 1]);
    assert_eq!(stage.frontend().models[0].1, 1, "a frontend that joins now learns the new home");
}

/// Nothing else comes for the model: time alone ends its task.
#[test]
fn what_waits_for_nothing_is_dropped_at_its_new_home_in_time() {
    let (mut stage, mut frontend, mut backend) = stage(Policy::Eager, 0);
    for slot in 0..2 {
        submit(&stage, &mut frontend, 0, slot);
        stage.advance(ms(10));
        action(&stage.exchange(&mut backend));
    }
    let waits = submit(&stage, &mut frontend, 0, 2);
    stage.settle();
    move_model(&mut stage, 0, 1);
    assert_eq!(stage.exchange(&mut backend), [], "its slot has all it can have");
    stage.advance(ms(31));
    let told = stage.exchange(&mut frontend);
    let ended =
        |task| told.iter().any(|told| matches!(told, Told::Ended { task: t, .. } if *t == task));
    assert!(ended(waits), "{told:?}");
}

/// The frontend has gone before its request arrives at the new home, which no longer knows it.
#[test]
fn a_request_of_a_frontend_that_has_gone_is_not_queued_at_the_new_home() {
    let (mut stage, mut frontend, _backend) = stage(Policy::Symphony, 0);
    move_model(&mut stage, 0, 1);
    stage.settle();
    submit(&stage, &mut frontend, 0, 0);
    poll(&mut stage, 0);
    assert_eq!(passed_on(&stage, 0), 1);
    drop(frontend.transport);
    let now = stage.now;
    stage.scheduler.control.poll(now);
    stage.settle();
    assert_eq!(stage.scheduler.model_threads[1].waiting(), 0);
}

#[test]
fn requests_and_wishes_that_come_to_the_former_home_follow() {
    let (mut stage, mut frontend, mut backend) = stage(Policy::Symphony, 0);
    move_model(&mut stage, 0, 1);
    let before = submit(&stage, &mut frontend, 0, 0);
    stage.settle();
    let (after, cancelled) =
        (submit(&stage, &mut frontend, 0, 1), submit(&stage, &mut frontend, 0, 2));
    frontend.cancel(0, cancelled);
    let reason = DropReason::Cancelled.code();
    assert_eq!(
        stage.exchange(&mut frontend),
        [Told::Ended { task: cancelled, kind: 1, reason, retry_ms: 0 }],
        "this frontend has not learnt where the model is"
    );
    stage.advance(ms(25));
    assert_eq!(action(&stage.exchange(&mut backend)).1, [before, after]);
    assert_eq!(passed_on(&stage, 0), 4);
}

#[test]
fn a_report_of_more_rows_than_there_were_teaches_what_the_batch_took() {
    let learnt = |rows: u16| {
        let (mut stage, mut frontend, mut backend) = stage(Policy::Eager, 0);
        for slot in 0..4 {
            submit(&stage, &mut frontend, 0, slot);
            stage.settle();
            let (batch, ..) = action(&stage.exchange(&mut backend));
            let ran = (stage.now, stage.now + ms(9));
            backend.report_rows(batch, 0, (ActionStatus::Executed, rows, &[]), ran);
            stage.advance(ms(10));
        }
        [1, 2, 8].map(|size| stage.scheduler.model_threads[0].model(0).latency().of(size))
    };
    assert_eq!(learnt(2), learnt(1));
    assert_eq!(learnt(u16::MAX), learnt(1));
}

/// What a slow slot needs longer says nothing of the model.
#[test]
fn a_slow_slots_measurement_follows_as_if_it_were_a_usual_one() {
    let mut stage = Stage::new(&cluster(Policy::Eager, 2));
    let (mut frontend, mut backend) = (stage.frontend(), stage.backend("b", 0, 2));
    let serve_two =
        |stage: &mut Stage, frontend: &mut Member, backend: &mut Member, moves: bool| {
            for slot in 0..2 {
                submit(stage, frontend, 0, slot);
                stage.settle();
            }
            let told = stage.exchange(backend);
            if moves {
                move_model(stage, 0, 1);
                stage.settle();
            }
            for said in &told {
                let Told::Action { batch, gpu, .. } = *said else { panic!("{said:?}") };
                let took = if gpu == 0 { ms(10) } else { ms(5) };
                backend.report(batch, gpu, ActionStatus::Executed, (stage.now, stage.now + took));
            }
            stage.advance(ms(15));
            assert_eq!((told.len(), stage.exchange(backend)), (2, Vec::new()));
        };
    (0..40).for_each(|_| serve_two(&mut stage, &mut frontend, &mut backend, false));
    let drift = |stage: &Stage, thread: usize, at: usize| {
        stage.scheduler.model_threads[thread].model(at).latency().drift()
    };
    let before = drift(&stage, 0, 0);
    serve_two(&mut stage, &mut frontend, &mut backend, true);
    assert_eq!(passed_on(&stage, 0), 2, "both measurements");
    let after = drift(&stage, 1, 1);
    assert!((after - before).abs() < 0.008, "{before} {after}");
}

#[test]
fn a_grant_that_comes_to_the_former_home_follows() {
    let (mut stage, mut frontend, mut backend) = stage(Policy::Eager, 0);
    let first = submit(&stage, &mut frontend, 0, 0);
    poll(&mut stage, 0);
    let now = stage.now;
    stage.scheduler.rank.poll(now);
    move_model(&mut stage, 0, 1);
    let (batch, tasks) = action(&stage.exchange(&mut backend));
    assert_eq!((tasks, passed_on(&stage, 0)), (vec![first], 1));
    // The model goes on to get grants, and now at its new home.
    report(&mut backend, 1, batch, ActionStatus::Executed);
    stage.exchange(&mut backend);
    let second = submit(&stage, &mut frontend, 0, 1);
    assert_eq!(action(&stage.exchange(&mut backend)).1, [second]);
    assert_eq!(passed_on(&stage, 0), 2, "the request, not the grant");
}

#[test]
fn what_the_former_home_published_last_is_not_news() {
    let (mut stage, mut frontend, mut backend) = stage(Policy::Eager, 1);
    let task = submit(&stage, &mut frontend, 1, 0);
    poll(&mut stage, 1);
    move_model(&mut stage, 1, 0);
    // The RankThread looks only when both have published; it reads thread 0 before thread 1.
    [1, 0].into_iter().for_each(|thread| poll(&mut stage, thread));
    assert_eq!(action(&stage.exchange(&mut backend)).1, [task]);
    assert_eq!(passed_on(&stage, 1), 0, "the grant went to the new home");
}

#[test]
fn a_batch_given_back_to_the_former_home_is_planned_again_at_the_new_one() {
    let (mut stage, mut frontend, mut backend) = stage(Policy::Eager, 0);
    let task = submit(&stage, &mut frontend, 0, 0);
    let (batch, _) = action(&stage.exchange(&mut backend));
    move_model(&mut stage, 0, 1);
    stage.settle();
    report(&mut backend, 0, batch, ActionStatus::Expired);
    assert_eq!(action(&stage.exchange(&mut backend)).1, [task]);
    assert_eq!(stage.scheduler.model_threads[0].in_flight(), 0);
    assert_eq!(stage.scheduler.model_threads[1].in_flight(), 1);
}

#[test]
fn a_frontend_that_goes_while_its_tasks_are_under_way_takes_them_along() {
    let (mut stage, mut frontend, _backend) = stage(Policy::Symphony, 0);
    submit(&stage, &mut frontend, 0, 0);
    stage.settle();
    move_model(&mut stage, 0, 1);
    drop(frontend.transport);
    let now = stage.now;
    stage.scheduler.control.poll(now);
    // The new home hears of it before the model comes, the former one after it has sent it.
    [1, 0, 1].into_iter().for_each(|thread| poll(&mut stage, thread));
    let counters = &stage.scheduler.counters().model_threads;
    assert_eq!(counters[1].dropped_frontend_lost.get(), 1);
    assert_eq!(stage.scheduler.model_threads[1].waiting(), 0);
}

#[test]
fn a_model_that_comes_back_is_as_if_it_had_never_left() {
    let (mut stage, mut frontend, mut backend) = stage(Policy::Symphony, 0);
    let first = submit(&stage, &mut frontend, 0, 0);
    for to in [1, 0, 1, 0] {
        move_model(&mut stage, 0, to);
        stage.settle();
    }
    let second = submit(&stage, &mut frontend, 0, 1);
    stage.advance(ms(25));
    assert_eq!(action(&stage.exchange(&mut backend)).1, [first, second]);
    assert_eq!(stage.scheduler.model_threads[0].in_flight(), 1);
}

/// Each move makes a migration channel. What it is for is over once the model has come back to where it led from.
#[test]
fn channels_of_former_moves_do_not_pile_up() {
    let mut stage = Stage::new(&cluster(Policy::Symphony, 3));
    let mut open_after = |to: usize| -> Vec<usize> {
        move_model(&mut stage, 0, to);
        stage.settle();
        stage.scheduler.model_threads.iter().map(|thread| thread.open_migrations()).collect()
    };
    // Both ends of the way it came by count.
    for round in 0..5 {
        assert_eq!([open_after(1), open_after(0)], [[1, 1, 0]; 2], "round {round}");
    }
    open_after(1);
    for round in 0..5 {
        let around = [open_after(2), open_after(0), open_after(1)];
        assert_eq!(around, [[1, 2, 1], [1, 1, 2], [2, 1, 1]], "round {round}");
    }
}

/// The way by which it came the last time is still open.
#[test]
fn a_model_that_comes_again_learns_what_was_measured_while_it_is_under_way() {
    let mut stage = Stage::new(&cluster(Policy::Eager, 3));
    for to in [1, 2] {
        move_model(&mut stage, 0, to);
        stage.settle();
    }
    let mut backend = stage.member(Role::Backend);
    let table: Vec<U64> = (60..68).map(|latency_ms| ms(latency_ms).0.into()).collect();
    backend.send(&ProfileDesc { model: 0.into(), pages: 0.into() }, table.as_bytes());
    backend.send(&JoinBackend { subcluster: 0.into(), gpus: 1.into() }, b"slow");
    stage.connect(&mut backend);
    move_model(&mut stage, 0, 1);
    backend.send(&Ready { reserved: 0.into() }, &[]);
    backend.transport.flush();
    let now = stage.now;
    stage.scheduler.control.poll(now);
    [1, 2, 1].into_iter().for_each(|thread| poll(&mut stage, thread));
    // Where it was the last time: behind the model that has lived there from the start.
    let model = stage.scheduler.model_threads[1].model(1);
    assert_eq!((model.id(), model.latency().of(1)), (ModelId(0), ms(60)));
}

/// Its last backend goes between the two homes: the former one has no tasks of it any more, and the
/// new one none yet.
#[test]
fn what_is_under_way_when_the_last_backend_goes_ends_at_the_new_home() {
    let (mut stage, mut frontend, backend) = stage(Policy::Symphony, 0);
    let task = submit(&stage, &mut frontend, 0, 0);
    stage.settle();
    move_model(&mut stage, 0, 1);
    drop(backend.transport);
    let now = stage.now;
    stage.scheduler.control.poll(now);
    [1, 0, 1].into_iter().for_each(|thread| poll(&mut stage, thread));
    let reason = DropReason::NoBackend.code();
    assert_eq!(stage.exchange(&mut frontend), [Told::Ended { task, kind: 1, reason, retry_ms: 0 }]);
    let after = submit(&stage, &mut frontend, 0, 1);
    assert_eq!(
        stage.exchange(&mut frontend),
        [Told::Ended { task: after, kind: 1, reason, retry_ms: 0 }],
        "the new home knows too"
    );
}

#[test]
fn a_frontend_that_knows_the_former_home_and_joins_later_hears_of_the_move() {
    let (mut stage, ..) = stage(Policy::Symphony, 0);
    let mut joining = stage.member(Role::Frontend);
    let (name, home) = joining.models[0].clone();
    assert_eq!(home, 0);
    move_model(&mut stage, 0, 1);
    stage.exchange(&mut joining);
    assert_eq!(joining.models.last(), Some(&(name, 1)));
}

/// As many requests as the migration channel holds beside the model: what comes back then cannot
/// follow, and ends here.
#[test]
fn a_batch_given_back_when_the_channel_is_full_ends() {
    let (mut stage, mut frontend, mut backend) = stage(Policy::Eager, 0);
    let task = submit(&stage, &mut frontend, 0, 0);
    let (batch, _) = action(&stage.exchange(&mut backend));
    move_model(&mut stage, 0, 1);
    poll(&mut stage, 0);
    for slot in 1..MIGRATION_MAX as u32 {
        submit(&stage, &mut frontend, 0, slot);
        poll(&mut stage, 0);
    }
    report(&mut backend, 0, batch, ActionStatus::Expired);
    backend.transport.flush();
    poll(&mut stage, 0);
    let counters = &stage.scheduler.counters().model_threads[0];
    assert_eq!((counters.passage_full.get(), counters.dropped_deadline.get()), (1, 1));
    let told = stage.exchange(&mut frontend);
    let ended = |told: &&Told| matches!(told, Told::Ended { task: id, .. } if *id == task);
    assert_eq!(told.iter().filter(ended).count(), 1, "of {}", told.len());
}

#[test]
fn one_model_moves_at_a_time_and_only_to_where_it_is_not() {
    let (mut stage, ..) = stage(Policy::Symphony, 0);
    let control = &mut stage.scheduler.control;
    assert!(!control.move_model(ModelId(0), 0), "it is there");
    assert!(!control.move_model(ModelId(0), 2), "no such thread");
    assert!(!control.move_model(ModelId(2), 0), "no such model");
    assert!(control.move_model(ModelId(0), 1));
    assert!(!control.move_model(ModelId(1), 0), "another one is on its way");
    stage.settle();
    move_model(&mut stage, 1, 0);
}

/// Threads 0 and 1 are both behind: each passes on what it gets.
#[test]
fn what_comes_for_a_model_that_has_moved_twice_follows_it_all_the_way() {
    let mut stage = Stage::new(&cluster(Policy::Symphony, 3));
    let (mut frontend, mut backend) = (stage.frontend(), stage.backend("b", 0, 1));
    for to in [1, 2] {
        move_model(&mut stage, 0, to);
        stage.settle();
    }
    let [first, second] = [0, 1].map(|slot| submit(&stage, &mut frontend, 0, slot));
    frontend.cancel(0, second);
    frontend.transport.flush();
    stage.settle();
    assert_eq!([0, 1, 2].map(|thread| passed_on(&stage, thread)), [3, 3, 0]);
    let reason = DropReason::Cancelled.code();
    let ended = Told::Ended { task: second, kind: 1, reason, retry_ms: 0 };
    assert!(stage.exchange(&mut frontend).contains(&ended));
    stage.advance(ms(25));
    assert_eq!(action(&stage.exchange(&mut backend)).1, [first]);
}

/// The ControlThread hears of it later, and of nothing else so often that there is no room for it: not
/// even of a backend that is not connected and is granted again and again meanwhile.
#[test]
fn a_model_that_moves_while_the_control_thread_stands_still_is_not_the_last_one() {
    let (mut stage, mut frontend, mut backend) = stage(Policy::Eager, 0);
    backend.transport.close(backend.threads[0], RefuseCode::Shutdown, "");
    backend.transport.flush();
    submit(&stage, &mut frontend, 0, 0);
    let rounds = RANK_NOTICES_MAX + 3 * MODEL_NOTICES_MAX;
    for _ in 0..rounds {
        poll(&mut stage, 0);
        stage.scheduler.rank.poll(stage.now);
    }
    let undelivered = stage.scheduler.counters().model_threads[0].plans_undelivered.get();
    assert!(undelivered as usize > rounds / 2, "{undelivered} plans: there is something to say");
    move_model(&mut stage, 1, 0);
    poll(&mut stage, 1);
    poll(&mut stage, 0);
    stage.settle();
    move_model(&mut stage, 1, 1);
    assert_eq!(stage.scheduler.counters().control_thread.lost.get(), 1, "the backend");
}

fn report(backend: &mut Member, thread: usize, batch: u64, status: ActionStatus) {
    let done = baton_rdma::wire::ActionDone {
        action: batch.into(),
        started_ns: Nanos::ZERO.0.into(),
        finished_ns: ms(1).0.into(),
        gpu: 0.into(),
        rows: 1.into(),
        status: status as u8,
        variant: 0,
        fetch: baton_rdma::wire::WireFetch::NOT_MEASURED,
    };
    backend
        .transport
        .send(backend.threads[thread], &done, &[])
        .expect("the scheduler is connected");
}

/// Both models are on one ModelThread, where one of them alone would leave it half of the load.
#[test]
fn a_busy_model_thread_is_relieved_by_an_idle_one() {
    let mut stage = Stage::new(&cluster(Policy::Eager, 2));
    let mut frontend = stage.frontend();
    let mut backends = [("a", 0), ("b", 1)].map(|(name, model)| stage.backend(name, model, 1));
    move_model(&mut stage, 1, 0);
    stage.exchange(&mut frontend);
    assert_eq!(stage.scheduler.control.homes()[..2], [0, 0]);
    for pass in 0..400 {
        for slot in 0..20 {
            let (model, task) = (slot % 2, frontend.task(slot, pass));
            frontend.submit_to(0, model, task, stage.now + ms(30));
        }
        stage.advance(ms(10));
        for member in backends.iter_mut().chain([&mut frontend]) {
            member.ping();
            stage.exchange(member);
        }
    }
    let mut homes = stage.scheduler.control.homes()[..2].to_vec();
    homes.sort_unstable();
    assert_eq!(homes, [0, 1]);
}

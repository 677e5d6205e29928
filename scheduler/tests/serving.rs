//! Tasks on the stage: from a submit to a plan to an outcome, and what happens when members die.

mod stage;

use baton_core::{DropReason, FailReason, Nanos, Policy};
use baton_rdma::Transport;
use baton_rdma::wire::{ActionStatus, RefuseCode, Submit};
use baton_scheduler::Assembly;
use baton_topo::{Agent as _, Idle};
use stage::{Member, Stage, Told, cluster, ms};

const DROPPED: u8 = 1;
const FAILED: u8 = 2;

fn stage(policy: Policy) -> Stage {
    Stage::new(&cluster(policy, 1))
}

/// The one plan the backend has been sent: batch, slot, tasks.
fn action(told: &[Told]) -> (u64, u32, Vec<u64>) {
    match told {
        [Told::Action { batch, gpu, tasks, .. }] => (*batch, *gpu, tasks.clone()),
        other => panic!("expected one action, received {other:?}"),
    }
}

fn dropped(task: u64, why: DropReason) -> Told {
    Told::Ended { task, kind: DROPPED, reason: why.code(), retry_ms: 0 }
}

/// Submits `count` tasks of model 0 with the model's SLO.
fn submit(stage: &mut Stage, frontend: &mut Member, count: u32) -> Vec<u64> {
    let tasks: Vec<u64> = (0..count).map(|slot| frontend.task(slot, 0)).collect();
    for &task in &tasks {
        frontend.submit(0, task, stage.now + ms(30));
    }
    assert_eq!(stage.exchange(frontend), [], "nothing ends yet");
    tasks
}

#[test]
fn deferred_tasks_leave_as_one_batch_at_the_frontrun_moment() {
    let mut stage = stage(Policy::Symphony);
    let (mut frontend, mut backend) = (stage.frontend(), stage.backend("b", 0, 1));
    let tasks = submit(&mut stage, &mut frontend, 3);
    // ℓ(4) = 8 ms before the deadline of 30 ms: until then a fourth task could still join.
    stage.advance(ms(22) - Nanos(1));
    assert_eq!(stage.exchange(&mut backend), []);
    stage.advance(Nanos(1));
    let (batch, gpu, planned) = action(&stage.exchange(&mut backend));
    assert_eq!((gpu, planned), (0, tasks));

    backend.report(batch, gpu, ActionStatus::Executed, (stage.now, stage.now + ms(7)));
    stage.advance(ms(8));
    stage.exchange(&mut backend);
    assert_eq!(stage.scheduler.model_threads[0].in_flight(), 0);
    assert_eq!(stage.exchange(&mut frontend), [], "the backend answers, not the scheduler");
}

#[test]
fn eager_tasks_leave_at_once_on_the_lowest_slot() {
    let mut stage = stage(Policy::Eager);
    let (mut frontend, mut backend) = (stage.frontend(), stage.backend("b", 0, 2));
    let tasks = submit(&mut stage, &mut frontend, 1);
    let (_, gpu, planned) = action(&stage.exchange(&mut backend));
    assert_eq!((gpu, planned), (0, tasks));
}

#[test]
fn without_a_backend_a_task_ends_at_once() {
    let mut stage = stage(Policy::Symphony);
    let mut frontend = stage.frontend();
    let task = frontend.task(0, 0);
    frontend.submit(0, task, stage.now + ms(30));
    assert_eq!(stage.exchange(&mut frontend), [dropped(task, DropReason::NoBackend)]);
}

#[test]
fn bad_submissions_are_answered_with_their_reason() {
    let mut stage = stage(Policy::Symphony);
    let (mut frontend, _backend) = (stage.frontend(), stage.backend("b", 0, 1));
    let (late, hopeless, unknown) = (frontend.task(0, 0), frontend.task(1, 0), frontend.task(2, 0));
    frontend.submit(0, late, stage.now - ms(1));
    frontend.submit(0, hopeless, stage.now + ms(4));
    assert_eq!(
        stage.exchange(&mut frontend),
        [late, hopeless].map(|task| dropped(task, DropReason::DeadlinePassed))
    );
    let submit = Submit {
        task: unknown.into(),
        deadline_ns: (stage.now + ms(30)).0.into(),
        model: 99.into(),
        input_bytes: 1.into(),
        cost: 0.into(),
        accuracy_min: 0.into(),
    };
    frontend.transport.send(frontend.threads[0], &submit, &[]).unwrap();
    let reason = FailReason::UnknownModel.code();
    assert_eq!(
        stage.exchange(&mut frontend),
        [Told::Ended { task: unknown, kind: FAILED, reason, retry_ms: 0 }]
    );
}

#[test]
fn a_full_queue_refuses_the_next_task_only() {
    let mut stage = stage(Policy::Symphony);
    let (mut frontend, _backend) = (stage.frontend(), stage.backend("b", 0, 1));
    // A batch of the largest size leaves at once for the idle slot; the rest fills the queue.
    let total = 8 + 16 + 1;
    let tasks: Vec<u64> = (0..total).map(|slot| frontend.task(slot, 0)).collect();
    let mut told = Vec::new();
    for &task in &tasks {
        frontend.submit(0, task, stage.now + ms(10_000));
        told.extend(stage.exchange(&mut frontend));
    }
    let (task, reason) = (*tasks.last().unwrap(), DropReason::QueueFull.code());
    // The head could wait for ten seconds, but the model's objective is 30 ms.
    assert_eq!(told, [Told::Ended { task, kind: DROPPED, reason, retry_ms: 30 }]);
}

#[test]
fn a_frontend_that_names_anothers_task_is_thrown_out() {
    let mut stage = stage(Policy::Symphony);
    let (mut honest, mut liar) = (stage.frontend(), stage.frontend());
    let task = honest.task(0, 0);
    liar.submit(0, task, stage.now + ms(30));
    let told = stage.exchange(&mut liar);
    let for_lying = |told: &Told| match told {
        Told::Refused { code, .. } => *code == Some(RefuseCode::UnexpectedMessage),
        _ => false,
    };
    assert!(told.iter().any(for_lying), "{told:?}");
    honest.ping();
    assert_eq!(stage.exchange(&mut honest).len(), 1, "the other one is not hurt");
}

#[test]
fn a_frontend_cannot_cancel_anothers_task() {
    let mut stage = stage(Policy::Symphony);
    let (mut frontend, mut other) = (stage.frontend(), stage.frontend());
    let _backend = stage.backend("b", 0, 1);
    let tasks = submit(&mut stage, &mut frontend, 1);
    other.cancel(0, tasks[0]);
    let told = stage.exchange(&mut other);
    assert!(matches!(told[..], [Told::Refused { .. }, ..]), "{told:?}");
    assert_eq!(stage.exchange(&mut frontend), []);
    assert_eq!(stage.scheduler.model_threads[0].waiting(), 1);
}

#[test]
fn cancelled_before_its_batch_a_task_is_dropped_and_after_it_is_not() {
    let mut stage = stage(Policy::Symphony);
    let (mut frontend, mut backend) = (stage.frontend(), stage.backend("b", 0, 1));
    let tasks = submit(&mut stage, &mut frontend, 2);
    frontend.cancel(0, tasks[0]);
    assert_eq!(stage.exchange(&mut frontend), [dropped(tasks[0], DropReason::Cancelled)]);
    stage.advance(ms(25));
    assert_eq!(action(&stage.exchange(&mut backend)).2, [tasks[1]]);
    frontend.cancel(0, tasks[1]);
    assert_eq!(stage.exchange(&mut frontend), [], "the backend owes the outcome now");
}

#[test]
fn a_dead_backends_tasks_run_elsewhere_if_there_is_time() {
    let mut stage = stage(Policy::Eager);
    let (mut frontend, mut first) = (stage.frontend(), stage.backend("b1", 0, 1));
    let tasks = submit(&mut stage, &mut frontend, 1);
    action(&stage.exchange(&mut first));
    let mut second = stage.backend("b2", 0, 1);
    drop(first.transport);
    assert_eq!(action(&stage.exchange(&mut second)).2, tasks);
    assert_eq!(stage.exchange(&mut frontend), []);
}

#[test]
fn a_dead_backends_tasks_fail_when_time_is_up() {
    let mut stage = stage(Policy::Eager);
    let (mut frontend, mut first) = (stage.frontend(), stage.backend("b1", 0, 1));
    let tasks = submit(&mut stage, &mut frontend, 1);
    action(&stage.exchange(&mut first));
    let _second = stage.backend("b2", 0, 1);
    stage.advance(ms(27));
    drop(first.transport);
    let reason = FailReason::BackendLost.code();
    let failed = Told::Ended { task: tasks[0], kind: FAILED, reason, retry_ms: 0 };
    assert_eq!(stage.exchange(&mut frontend), [failed]);
}

/// It waits for the other backend, which has all the batches that it may have. The timer of the first task has fired for
/// nothing meanwhile.
#[test]
fn a_dead_backends_task_that_finds_no_slot_is_dropped_in_time() {
    let mut stage = stage(Policy::Eager);
    let (mut frontend, mut first) = (stage.frontend(), stage.backend("b1", 0, 1));
    let mut second = stage.backend("b2", 0, 1);
    for slot in 0..4 {
        let task = frontend.task(slot, 0);
        frontend.submit(0, task, stage.now + ms(if slot == 0 { 30 } else { 100 }));
        stage.exchange(&mut frontend);
        stage.advance(ms(3));
    }
    stage.advance(ms(28));
    let planned = stage.exchange(&mut first).len() + stage.exchange(&mut second).len();
    assert_eq!((planned, stage.scheduler.model_threads[0].in_flight()), (4, 4));
    drop(first.transport);
    stage.settle();
    assert_eq!(stage.scheduler.model_threads[0].waiting(), 1);
    stage.advance(ms(70));
    assert_eq!(stage.exchange(&mut frontend).len(), 2, "the first one at once");
}

#[test]
fn when_the_last_backend_dies_what_waits_ends() {
    let mut stage = stage(Policy::Symphony);
    let (mut frontend, backend) = (stage.frontend(), stage.backend("b1", 0, 1));
    let tasks = submit(&mut stage, &mut frontend, 2);
    drop(backend.transport);
    let told = stage.exchange(&mut frontend);
    assert_eq!(told, [tasks[0], tasks[1]].map(|task| dropped(task, DropReason::NoBackend)));
}

#[test]
fn when_the_last_backend_leaves_what_waits_ends_and_nothing_more_is_taken() {
    let mut stage = stage(Policy::Symphony);
    let (mut frontend, mut backend) = (stage.frontend(), stage.backend("b1", 0, 1));
    let tasks = submit(&mut stage, &mut frontend, 2);
    backend.leave();
    assert_eq!(stage.exchange(&mut backend), [Told::LeaveAck]);
    let told = stage.exchange(&mut frontend);
    assert_eq!(told, [tasks[0], tasks[1]].map(|task| dropped(task, DropReason::NoBackend)));
    let late = frontend.task(9, 0);
    frontend.submit(0, late, stage.now + ms(30));
    assert_eq!(stage.exchange(&mut frontend), [dropped(late, DropReason::NoBackend)]);
    let _next = stage.backend("b2", 0, 1);
    submit(&mut stage, &mut frontend, 1);
}

#[test]
fn a_backend_that_goes_takes_neither_the_others_nor_another_subclusters_tasks() {
    let mut stage = stage(Policy::Symphony);
    let mut frontend = stage.frontend();
    let mut staying = stage.backend("a1", 0, 1);
    let [going, last] = [("a2", 0), ("b", 1)].map(|(name, at)| stage.backend(name, at, 1));
    let tasks = submit(&mut stage, &mut frontend, 1);
    let other = frontend.task(1, 0);
    frontend.submit(1, other, stage.now + ms(30));
    assert_eq!(stage.exchange(&mut frontend), []);
    drop(going.transport);
    assert_eq!(stage.exchange(&mut frontend), [], "one of two");
    drop(last.transport);
    assert_eq!(stage.exchange(&mut frontend), [dropped(other, DropReason::NoBackend)]);
    stage.advance(ms(24));
    let told = stage.exchange(&mut staying);
    assert_eq!(action(&told[told.len() - 1..]).2, tasks);
}

/// The slot has as many batches as it can, and none of them is reported: only time can tell. Their
/// timers are still set, for before or for after what comes.
#[test]
fn a_hopeless_task_ends_at_its_moment_whatever_the_timer_was_set_for() {
    for before in [ms(30), ms(10_000)] {
        let mut stage = stage(Policy::Eager);
        let (mut frontend, _backend) = (stage.frontend(), stage.backend("b", 0, 1));
        let [first, second, patient, urgent] = [0, 1, 2, 3].map(|slot| frontend.task(slot, 0));
        for task in [first, second] {
            frontend.submit(0, task, stage.now + before);
            assert_eq!(stage.exchange(&mut frontend), []);
            stage.advance(ms(5));
        }
        assert_eq!(stage.scheduler.model_threads[0].in_flight(), 2);
        for (task, slo) in [(patient, ms(30)), (urgent, ms(22))] {
            frontend.submit(0, task, stage.now + slo);
            assert_eq!(stage.exchange(&mut frontend), []);
        }
        // ℓ(1) = 5 ms
        for (after, task) in [(ms(17), urgent), (ms(8) - Nanos(1), patient)] {
            stage.advance(after);
            assert_eq!(stage.exchange(&mut frontend), [], "it could still be executed in time");
            stage.advance(Nanos(1));
            let told = stage.exchange(&mut frontend);
            assert_eq!(told, [dropped(task, DropReason::Deadline)], "{before:?}");
        }
    }
}

#[test]
fn a_dead_frontends_tasks_leave_the_queue() {
    let mut stage = stage(Policy::Symphony);
    let (mut frontend, mut other) = (stage.frontend(), stage.frontend());
    let mut backend = stage.backend("b", 0, 1);
    submit(&mut stage, &mut frontend, 2);
    let task = other.task(0, 0);
    other.submit(0, task, stage.now + ms(30));
    stage.exchange(&mut other);
    drop(frontend.transport);
    stage.advance(ms(25));
    let told = stage.exchange(&mut backend);
    assert_eq!(action(&told[told.len() - 1..]).2, [task]);
    let counters = &stage.scheduler.counters().model_threads[0];
    assert_eq!(counters.dropped_frontend_lost.get(), 2);
}

#[test]
fn a_batch_given_back_is_planned_again_or_dropped() {
    let mut stage = stage(Policy::Eager);
    let (mut frontend, mut backend) = (stage.frontend(), stage.backend("b", 0, 1));
    let tasks = submit(&mut stage, &mut frontend, 1);
    let (first, gpu, _) = action(&stage.exchange(&mut backend));
    backend.report(first, gpu, ActionStatus::Expired, (Nanos::ZERO, Nanos::ZERO));
    let (second, gpu, again) = action(&stage.exchange(&mut backend));
    assert_ne!(first, second);
    assert_eq!(again, tasks);
    stage.advance(ms(29));
    backend.report(second, gpu, ActionStatus::Refused, (Nanos::ZERO, Nanos::ZERO));
    stage.exchange(&mut backend);
    assert_eq!(stage.exchange(&mut frontend), [dropped(tasks[0], DropReason::Deadline)]);
}

#[test]
fn reports_that_no_batch_waits_for_are_counted_and_harmless() {
    let mut stage = stage(Policy::Eager);
    let (mut frontend, mut backend) = (stage.frontend(), stage.backend("b1", 0, 1));
    let mut other = stage.backend("b2", 0, 1);
    submit(&mut stage, &mut frontend, 1);
    let (batch, gpu, _) = action(&stage.exchange(&mut backend));
    other.report(batch, gpu, ActionStatus::Executed, (stage.now, stage.now));
    stage.exchange(&mut other);
    assert_eq!(stage.scheduler.model_threads[0].in_flight(), 1, "it is not the other one's");
    for _ in 0..2 {
        backend.report(batch, gpu, ActionStatus::Executed, (stage.now, stage.now));
    }
    backend.report(u64::MAX, gpu, ActionStatus::Executed, (stage.now, stage.now));
    stage.exchange(&mut backend);
    let counters = &stage.scheduler.counters().model_threads[0];
    assert_eq!((counters.batches_executed.get(), counters.stale_reports.get()), (1, 3));
}

#[test]
fn a_busy_backend_drains_after_its_last_batch_and_gets_no_other() {
    let mut stage = stage(Policy::Eager);
    let (mut frontend, mut leaving) = (stage.frontend(), stage.backend("b1", 0, 1));
    submit(&mut stage, &mut frontend, 1);
    let (batch, gpu, _) = action(&stage.exchange(&mut leaving));
    leaving.leave();
    assert_eq!(stage.exchange(&mut leaving), [], "a batch is outstanding");
    let mut staying = stage.backend("b2", 0, 1);
    let task = frontend.task(9, 0);
    frontend.submit(0, task, stage.now + ms(30));
    stage.exchange(&mut frontend);
    assert_eq!(action(&stage.exchange(&mut staying)).2, [task]);
    leaving.report(batch, gpu, ActionStatus::Executed, (stage.now, stage.now));
    assert_eq!(stage.exchange(&mut leaving), [Told::LeaveAck]);
}

/// Threads come to an end one after the other; what the first closes, the others do not lose.
#[test]
fn a_thread_that_has_ended_takes_no_member_from_those_that_have_not() {
    let mut stage = Stage::new(&cluster(Policy::Eager, 2));
    let (mut frontend, mut backend) = (stage.frontend(), stage.backend("b", 0, 1));
    submit(&mut stage, &mut frontend, 1);
    let (batch, gpu, _) = action(&stage.exchange(&mut backend));
    stage.scheduler.stop_serving();
    let refusals = |told: Vec<Told>| -> Vec<Option<RefuseCode>> {
        let code = |told| match told {
            Told::Refused { code, .. } => code,
            other => panic!("{other:?}"),
        };
        told.into_iter().map(code).collect()
    };
    let shutdown = [Some(RefuseCode::Shutdown)];
    assert_eq!(refusals(stage.exchange(&mut frontend)), shutdown, "by the idle thread");
    assert_eq!(refusals(stage.exchange(&mut backend)), shutdown, "by the idle thread");
    backend.report(batch, gpu, ActionStatus::Executed, (stage.now, stage.now));
    assert_eq!(refusals(stage.exchange(&mut backend)), shutdown, "after its last batch");
    assert_eq!(refusals(stage.exchange(&mut frontend)), shutdown, "after the last batch");
}

/// The members only say that they are there, for these tenths of a second.
fn idle(stage: &mut Stage, mut members: [&mut Member; 2], tenths: u32) {
    for _ in 0..tenths {
        for member in &mut members {
            member.ping();
            stage.exchange(member);
        }
        stage.advance(ms(100));
    }
}

#[test]
fn the_gpus_that_the_traffic_needs_are_counted_and_forgotten() {
    let mut stage = stage(Policy::Baton);
    let (mut frontend, mut backend) = (stage.frontend(), stage.backend("b", 0, 2));
    let needed = |stage: &Stage| stage.scheduler.counters().control_thread.gpus_needed.get();
    assert_eq!(needed(&stage), 0, "nothing has come");
    idle(&mut stage, [&mut frontend, &mut backend], 10);
    assert_eq!(needed(&stage), 2, "as many as serve, until it has looked for five seconds");
    // Every 4 ms a task: in batches of five, for which the objective leaves time, 1.8 ms of work.
    for round in 0..1_500 {
        frontend.ping();
        backend.ping();
        frontend.submit(0, frontend.task(round % 4, round / 4), stage.now + ms(30));
        stage.exchange(&mut frontend);
        stage.advance(ms(4));
        for told in stage.exchange(&mut backend) {
            if let Told::Action { batch, gpu, .. } = told {
                backend.report(batch, gpu, ActionStatus::Executed, (stage.now, stage.now + ms(5)));
            }
        }
    }
    assert_eq!(needed(&stage), 1);
    // The backend does not say that anything has ended.
    for round in 1_500..2_250 {
        frontend.ping();
        backend.ping();
        frontend.submit(0, frontend.task(round % 4, round / 4), stage.now + ms(30));
        stage.exchange(&mut frontend);
        stage.exchange(&mut backend);
        stage.advance(ms(4));
    }
    assert_eq!(needed(&stage), 3, "tasks are lost, so two are too few");
    idle(&mut stage, [&mut frontend, &mut backend], 80);
    assert_eq!(needed(&stage), 0, "nothing has come for eight seconds");
}

/// A task is on its way: whether the ModelThread wakes the RankThread for its candidate, and the RankThread
/// the ModelThread for its grant.
fn woken(idle: Idle) -> [bool; 2] {
    let mut cluster = cluster(Policy::Eager, 1);
    cluster.scheduler.idle = idle;
    let mut stage = Stage::new(&cluster);
    let (mut frontend, _backend) = (stage.frontend(), stage.backend("b", 0, 1));
    let task = frontend.task(0, 0);
    frontend.submit(0, task, stage.now + ms(30));
    frontend.transport.flush();
    let Assembly { rank, model_threads, .. } = &mut stage.scheduler;
    rank.waker().prepare_sleep();
    model_threads[0].poll(stage.now);
    let is_rank_woken = !rank.waker().is_asleep();
    model_threads[0].waker().prepare_sleep();
    rank.poll(stage.now);
    [is_rank_woken, !model_threads[0].waker().is_asleep()]
}

#[test]
fn threads_wake_each_other_where_they_park() {
    assert_eq!(woken(Idle::Park), [true; 2]);
    assert_eq!(woken(Idle::Spin), [false; 2], "asking whether the other sleeps costs time");
}

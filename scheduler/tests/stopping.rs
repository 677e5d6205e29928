//! An orderly stop: what waits is given back, what backends have is waited for, and only then is everybody
//! told. On the stage, and once with threads and sockets.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod stage;

use std::net::TcpStream;

use baton_core::{DropReason, ModelId, Nanos, Policy};
use baton_rdma::wire::{
    ActionStatus, JoinBackend, JoinFrontend, ProfileDesc, Ready, RefuseCode, Role, WireAddr,
};
use baton_rdma::{Identity, TcpConfig, TcpTransport, Transport};
use baton_topo::{Agent, Clock};
use stage::{Member, Stage, Told, cluster, ms};

/// A frontend, and a backend for model 0.
fn stage(policy: Policy, model_threads: u32, gpus: u32) -> (Stage, Member, Member) {
    let mut stage = Stage::new(&cluster(policy, model_threads));
    let (frontend, backend) = (stage.frontend(), stage.backend("b", 0, gpus));
    (stage, frontend, backend)
}

fn submit(stage: &mut Stage, frontend: &mut Member, slot: u32) -> u64 {
    let task = frontend.task(slot, 0);
    frontend.submit(0, task, stage.now + ms(30));
    assert_eq!(stage.exchange(frontend), [], "it waits, or is executed");
    task
}

/// Names of the batches the backend has been sent.
fn planned(told: &[Told]) -> Vec<(u64, u32)> {
    let plan = |told: &Told| match told {
        Told::Action { batch, gpu, .. } => (*batch, *gpu),
        other => panic!("expected actions, received {other:?}"),
    };
    told.iter().map(plan).collect()
}

fn given_back(task: u64) -> Told {
    Told::Ended { task, kind: 1, reason: DropReason::Shutdown.code(), retry_ms: 0 }
}

fn farewell() -> Told {
    let detail = "the scheduler is shutting down".to_owned();
    Told::Refused { code: Some(RefuseCode::Shutdown), detail }
}

fn poll(stage: &mut Stage, thread: usize) {
    let now = stage.now;
    stage.scheduler.model_threads[thread].poll(now);
}

#[test]
fn what_waits_is_given_back_at_once() {
    let (mut stage, mut frontend, _backend) = stage(Policy::Symphony, 1, 1);
    let tasks = [0, 1].map(|slot| submit(&mut stage, &mut frontend, slot));
    stage.scheduler.stop_serving();
    let told = stage.exchange(&mut frontend);
    assert_eq!(told, [given_back(tasks[0]), given_back(tasks[1]), farewell()]);
    assert_eq!(stage.scheduler.model_threads[0].waiting(), 0);
    let counters = &stage.scheduler.counters().model_threads[0];
    assert_eq!((counters.dropped_shutdown.get(), counters.outcomes_undelivered.get()), (2, 0));
}

#[test]
fn the_last_word_is_said_after_the_last_batch() {
    let (mut stage, mut frontend, mut backend) = stage(Policy::Eager, 1, 2);
    for slot in [0, 1] {
        submit(&mut stage, &mut frontend, slot);
    }
    let batches = planned(&stage.exchange(&mut backend));
    assert_eq!(batches.len(), 2);
    stage.scheduler.stop_serving();
    assert_eq!(stage.exchange(&mut frontend), []);
    let (late, now) = (frontend.task(2, 0), stage.now);
    frontend.submit(0, late, now + ms(30));
    assert_eq!(stage.exchange(&mut frontend), [given_back(late)], "nothing more is accepted");
    for &(batch, gpu) in &batches {
        assert!(!stage.scheduler.model_threads[0].finished());
        assert_eq!(stage.exchange(&mut backend), []);
        assert_eq!(stage.exchange(&mut frontend), []);
        backend.report(batch, gpu, ActionStatus::Executed, (now, now));
        stage.advance(ms(1));
    }
    backend.transport.flush();
    stage.settle();
    assert!(stage.scheduler.model_threads[0].finished());
    assert_eq!(stage.exchange(&mut backend), [farewell()]);
    assert_eq!(stage.exchange(&mut frontend), [farewell()]);
}

/// A backend goes because a ModelThread has sent it away, a frontend is sent away by the ControlThread. Neither is a loss; a
/// backend whose connection breaks meanwhile is.
#[test]
fn an_orderly_stop_loses_no_member() {
    let (mut stage, mut frontend, mut backend) = stage(Policy::Eager, 1, 1);
    let dying = stage.backend("dying", 0, 1);
    let lost = |stage: &Stage| stage.scheduler.counters().control_thread.lost.get();
    stage.scheduler.stop_serving();
    for member in [&mut frontend, &mut backend] {
        assert_eq!(stage.exchange(member), [farewell()]);
    }
    backend.transport.close(
        backend.control,
        RefuseCode::Shutdown,
        "it looks for the next scheduler",
    );
    stage.exchange(&mut backend);
    assert_eq!(lost(&stage), 0);
    drop(dying.transport);
    stage.settle();
    assert_eq!(lost(&stage), 1);
    stage.scheduler.take_leave();
    assert_eq!(stage.exchange(&mut frontend), [farewell()]);
    assert_eq!(lost(&stage), 1);
}

/// One ModelThread has ended, another still waits for a batch: a member that the first has sent away closes all of its connections.
#[test]
fn who_goes_before_the_last_batch_is_not_lost() {
    let (mut stage, mut frontend, mut backend) = stage(Policy::Eager, 2, 1);
    submit(&mut stage, &mut frontend, 0);
    assert_eq!(planned(&stage.exchange(&mut backend)).len(), 1);
    stage.scheduler.stop_serving();
    assert_eq!(stage.exchange(&mut frontend), [farewell()], "by the one that has no batch");
    // The ModelThread hears of it before the ControlThread does.
    for conn in [frontend.threads[0], frontend.control] {
        frontend.transport.close(conn, RefuseCode::Shutdown, "it looks for the next scheduler");
        frontend.transport.flush();
        stage.settle();
    }
    let counters = stage.scheduler.counters();
    assert_eq!(
        (counters.control_thread.lost.get(), stage.scheduler.control.finished()),
        (0, false)
    );
}

/// Its tasks have been given back by one ModelThread, another still waits for a batch. Joined again, it would submit them to a
/// scheduler that is about to end.
#[test]
fn nobody_joins_a_scheduler_that_stops() {
    let (mut stage, mut frontend, mut backend) = stage(Policy::Eager, 1, 1);
    submit(&mut stage, &mut frontend, 0);
    let (batch, gpu) = planned(&stage.exchange(&mut backend))[0];
    let mut late = [Role::Frontend, Role::Backend].map(|role| stage.member(role));
    stage.scheduler.stop_serving();
    let addr = WireAddr::new(late[0].transport.local_addr());
    late[0].send(&JoinFrontend { addr, slabs: 0.into() }, &[]);
    late[1].send(&JoinBackend { subcluster: 0.into(), gpus: 1.into() }, b"late");
    for member in &mut late {
        assert_eq!(stage.exchange(member), [farewell()]);
    }
    assert!(!stage.scheduler.control.finished(), "the members that it has are still served");
    backend.report(batch, gpu, ActionStatus::Executed, (stage.now, stage.now));
    assert_eq!(stage.exchange(&mut backend), [farewell()]);
}

/// A frontend that hears that the scheduler stops keeps the task for the next one. Any other
/// outcome would reach its application.
#[test]
fn what_comes_back_from_a_backend_is_given_back() {
    for status in [Some(ActionStatus::Expired), Some(ActionStatus::Refused), None] {
        let (mut stage, mut frontend, mut backend) = stage(Policy::Eager, 1, 1);
        let task = submit(&mut stage, &mut frontend, 0);
        let (batch, gpu) = planned(&stage.exchange(&mut backend))[0];
        stage.scheduler.stop_serving();
        assert_eq!(stage.exchange(&mut frontend), []);
        match status {
            Some(status) => {
                backend.report(batch, gpu, status, (Nanos::ZERO, Nanos::ZERO));
                stage.exchange(&mut backend);
            }
            None => drop(backend.transport),
        }
        let told = stage.exchange(&mut frontend);
        assert_eq!(told, [given_back(task), farewell()], "{status:?}");
    }
}

/// The new home has nothing to wait for and has ended: nothing can follow the model any more.
#[test]
fn what_comes_to_a_models_former_home_is_given_back_there() {
    let (mut stage, mut frontend, mut backend) = stage(Policy::Eager, 2, 1);
    let task = submit(&mut stage, &mut frontend, 0);
    let (batch, gpu) = planned(&stage.exchange(&mut backend))[0];
    assert!(stage.scheduler.control.move_model(ModelId(0), 1));
    stage.settle();
    stage.scheduler.stop_serving();
    assert_eq!(stage.exchange(&mut frontend).last(), Some(&farewell()), "by the new home");
    let late = frontend.task(1, 0);
    frontend.submit(0, late, stage.now + ms(30));
    assert_eq!(stage.exchange(&mut frontend), [given_back(late)]);
    assert_eq!(stage.exchange(&mut backend), [farewell()], "by the new home");
    backend.report(batch, gpu, ActionStatus::Expired, (Nanos::ZERO, Nanos::ZERO));
    assert_eq!(stage.exchange(&mut backend), [farewell()]);
    assert_eq!(stage.exchange(&mut frontend), [given_back(task), farewell()]);
}

#[test]
fn a_model_under_way_is_waited_for_and_its_tasks_are_given_back() {
    let (mut stage, mut frontend, _backend) = stage(Policy::Symphony, 2, 1);
    let tasks = [0, 1].map(|slot| submit(&mut stage, &mut frontend, slot));
    assert!(stage.scheduler.control.move_model(ModelId(0), 1));
    stage.scheduler.stop_serving();
    poll(&mut stage, 1);
    assert!(!stage.scheduler.model_threads[1].finished(), "the model has not come");
    [0, 1].into_iter().for_each(|thread| poll(&mut stage, thread));
    assert!(stage.scheduler.model_threads.iter().all(Agent::finished));
    let told = stage.exchange(&mut frontend);
    let ended: Vec<&Told> = told.iter().filter(|told| **told != farewell()).collect();
    assert_eq!(ended, [&given_back(tasks[0]), &given_back(tasks[1])], "{told:?}");
}

/// A thread that has said its last word takes in no model: its members are gone.
#[test]
fn a_scheduler_that_stops_moves_no_model() {
    let (mut stage, ..) = stage(Policy::Symphony, 2, 1);
    stage.scheduler.stop_serving();
    stage.settle();
    assert!(!stage.scheduler.control.move_model(ModelId(0), 1));
}

/// Members connected to a scheduler with threads and sockets.
struct Live {
    scheduler: baton_scheduler::SchedulerHandle,
    clock: Clock,
}

impl Live {
    fn start() -> Self {
        let mut cluster = cluster(Policy::Eager, 1);
        cluster.scheduler.member_timeout = ms(60_000);
        let clock = Clock::start();
        Self { scheduler: baton_scheduler::start(&cluster, clock).unwrap(), clock }
    }

    fn member(&self, role: Role) -> Member<TcpTransport> {
        let listen = "127.0.0.1:0".parse().unwrap();
        let identity = Identity { role, member: 0 };
        let transport = TcpTransport::bind(Some(listen), identity, TcpConfig::default()).unwrap();
        let mut member = Member::new(transport, role, self.scheduler.addr());
        hear(self.clock, &mut member, |member, _| member.models.len() == 2);
        member
    }

    /// A frontend, and a backend for model 0 that is ready.
    fn members(&self) -> [Member<TcpTransport>; 2] {
        let mut frontend = self.member(Role::Frontend);
        let addr = WireAddr::new(frontend.transport.local_addr());
        frontend.send(&JoinFrontend { addr, slabs: 0.into() }, &[]);
        let mut backend = self.member(Role::Backend);
        backend.send(&ProfileDesc { model: 0.into(), pages: 0.into() }, &[]);
        backend.send(&JoinBackend { subcluster: 0.into(), gpus: 1.into() }, b"b");
        for member in [&mut frontend, &mut backend] {
            let told = hear(self.clock, member, |_, told| !told.is_empty());
            member.joined(&told);
            hear(self.clock, member, |member, _| member.opened == 2);
        }
        backend.send(&Ready { reserved: 0.into() }, &[]);
        backend.transport.flush();
        [frontend, backend]
    }
}

/// What a member hears until `enough`.
fn hear(
    clock: Clock,
    member: &mut Member<TcpTransport>,
    enough: impl Fn(&Member<TcpTransport>, &[Told]) -> bool,
) -> Vec<Told> {
    let (begun, mut told) = (clock.now(), Vec::new());
    loop {
        member.transport.flush();
        told.extend(member.listen(clock.now()));
        if enough(member, &told) {
            return told;
        }
        assert!(clock.now() - begun < ms(20_000), "{told:?}");
        member.transport.wait(Some(ms(10)));
    }
}

/// Submits a task of model 0, and one of model 1, which no backend serves; all that has ended until
/// the second one has. What is submitted first ends first.
fn submit_both(clock: Clock, frontend: &mut Member<TcpTransport>, slot: u32) -> Vec<Told> {
    let [served, unserved] = [frontend.task(slot, 0), frontend.task(slot, 1)];
    for (model, task) in [(0, served), (1, unserved)] {
        frontend.submit(model, task, clock.now() + ms(60_000));
    }
    let of = |told: &Told| matches!(told, Told::Ended { task, .. } if *task == unserved);
    hear(clock, frontend, |_, told| told.iter().any(of))
}

/// The ControlThread goes on while a batch is out: it takes leave after the ModelThreads, and so it
/// answers pings until then.
#[test]
fn members_are_let_go_of_after_the_last_batch() {
    let live = Live::start();
    let [mut frontend, mut backend] = live.members();
    let Live { scheduler, clock } = live;
    // A task with an outcome came before the backend; one without is executed.
    let begun = (0..).find(|&slot| submit_both(clock, &mut frontend, slot).len() == 1).unwrap();
    let is_action = |told: &Told| matches!(told, Told::Action { .. });
    let mut told = hear(clock, &mut backend, |_, told| told.iter().any(is_action));
    told.retain(is_action);
    let stopping = std::thread::spawn(move || scheduler.stop());
    let mut stops = |slot: u32| {
        let told = submit_both(clock, &mut frontend, slot);
        told.contains(&given_back(frontend.task(slot, 1)))
    };
    assert!((begun + 1..).any(&mut stops));
    // For longer than that it need not wait.
    let soon = clock.now() + ms(500);
    for _ in (0..50).take_while(|_| clock.now() < soon) {
        frontend.ping();
        let told = hear(clock, &mut frontend, |_, told| !told.is_empty());
        assert!(matches!(told[..], [Told::Pong { .. }]), "a batch is out: {told:?}");
    }
    // If the word to stop was slow, it has another one.
    told.extend(hear(clock, &mut backend, |_, _| true));
    for (batch, gpu) in planned(&told) {
        backend.report(batch, gpu, ActionStatus::Executed, (clock.now(), clock.now()));
    }
    for member in [&mut backend, &mut frontend] {
        let told = hear(clock, member, |_, told| told.len() == 2);
        assert_eq!(told, [farewell(), farewell()], "by the ModelThread and the ControlThread");
    }
    stopping.join().unwrap();
}

#[test]
fn a_handle_that_is_dropped_ends_its_threads() {
    let live = Live::start();
    let member = live.member(Role::Frontend);
    let scheduler = live.scheduler;
    let addrs = [scheduler.addr(), member.thread_addr(0)];
    assert!(addrs.iter().all(|addr| TcpStream::connect(addr).is_ok()));
    drop(scheduler);
    assert!(addrs.iter().all(|addr| TcpStream::connect(addr).is_err()));
}

#[test]
fn a_backend_that_asks_to_leave_twice_is_let_go_once() {
    let mut stage = Stage::new(&cluster(Policy::Eager, 1));
    let mut backend = stage.member(Role::Backend);
    backend.send(&ProfileDesc { model: 0.into(), pages: 0.into() }, &[]);
    backend.send(&JoinBackend { subcluster: 0.into(), gpus: 1.into() }, b"b");
    stage.connect(&mut backend);
    (0..2).for_each(|_| backend.leave());
    let told = stage.exchange(&mut backend);
    assert_eq!(told.iter().filter(|told| **told == Told::LeaveAck).count(), 1, "{told:?}");
    assert_eq!(stage.scheduler.counters().control_thread.left.get(), 1);
}

//! Members come, go and die while tasks flow; every task keeps exactly one outcome, and those that
//! remain keep being served.

mod support;

use rustix::process::Signal;
use support::Cluster;

#[test]
fn a_killed_backend_takes_no_task_with_it_and_the_other_serves_on() {
    let cluster = Cluster::start("kill-backend");
    let (a, _b) = (cluster.backend("a"), cluster.backend("b"));
    let load = cluster.load(1);
    load.await_completed(50);
    a.signal(Signal::KILL);
    a.finish();
    load.await_completed(100);
    let counts = load.stop();
    counts.failed_only(&["backend_lost", "fetch_failed"]);
}

#[test]
fn a_killed_frontend_does_not_disturb_another() {
    let cluster = Cluster::start("kill-frontend");
    let _backends = (cluster.backend("a"), cluster.backend("b"));
    let (doomed, other) = (cluster.load(1), cluster.load(2));
    doomed.await_completed(50);
    other.await_completed(50);
    doomed.process.signal(Signal::KILL);
    doomed.process.finish();
    other.await_completed(100);
    other.stop().failed_only(&[]);
    let late_comer = cluster.load(3);
    late_comer.await_completed(50);
    late_comer.stop().failed_only(&[]);
}

#[test]
fn a_backend_that_joins_late_takes_over_from_one_that_drains_and_nothing_is_lost() {
    let cluster = Cluster::start("join-drain");
    let a = cluster.backend("a");
    let load = cluster.load(1);
    load.await_completed(50);
    let _b = cluster.backend("b");
    a.signal(Signal::TERM);
    a.line("left");
    let (status, _) = a.finish();
    assert!(status.success(), "{status}");
    load.await_completed(100);
    let counts = load.stop();
    counts.failed_only(&[]);
    assert!(!counts.drops.iter().any(|reason| reason == "no_backend"), "{counts:?}");
}

#[test]
fn before_the_first_backend_tasks_are_dropped_for_that_reason_and_then_served() {
    let cluster = Cluster::start("no-backend");
    let load = cluster.load(1);
    assert_eq!(load.completed(), 0);
    let _a = cluster.backend("a");
    load.await_completed(50);
    let counts = load.stop();
    assert!(counts.drops.iter().any(|reason| reason == "no_backend"), "{counts:?}");
}

#[test]
fn without_a_scheduler_every_task_has_its_outcome_and_members_may_still_leave() {
    let cluster = Cluster::start("kill-scheduler");
    let a = cluster.backend("a");
    let load = cluster.load(1);
    load.await_completed(50);
    cluster.scheduler.signal(Signal::KILL);
    load.completed();
    let counts = load.stop();
    let reasons: Vec<_> = counts.failures.iter().chain(&counts.drops).collect();
    assert!(reasons.iter().any(|&reason| reason == "scheduler_lost"), "{counts:?}");
    leave(a);
}

/// Whatever has become of the scheduler.
fn leave(backend: support::Process) {
    backend.signal(Signal::TERM);
    backend.line("left");
    let (status, _) = backend.finish();
    assert!(status.success(), "{status}");
}

#[test]
fn a_scheduler_told_to_stop_ends_in_order_and_tells_why() {
    let cluster = Cluster::start("stop-scheduler");
    let a = cluster.backend("a");
    cluster.scheduler.signal(Signal::TERM);
    let (status, _) = cluster.scheduler.finish();
    assert!(status.success(), "{status}");
    leave(a);
}

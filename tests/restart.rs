//! The scheduler is killed in mid-run and started again at the same address: each member of the old
//! one serves with the new one, and no task is left without its outcome. How soon: `swarm/tests/whole_path.rs`.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use std::time::Duration;

use baton_client::{Deadline, Nanos, Outcome};
use support::application::Application;
use support::{Cluster, in_time};

/// From the scheduler's listening to an answered task: what is promised, and far more than that.
const PROMISED: Nanos = Nanos::from_millis(2_000);
const BOUND: Nanos = Nanos::from_millis(60_000);
/// More than any restart takes.
const LONG: Deadline = Deadline::Within(Duration::from_secs(30));
const OUTSTANDING: u64 = 60;

#[test]
fn a_scheduler_that_is_killed_and_restarted_twice_loses_nothing() {
    let mut cluster = Cluster::start("restart");
    let backends = [cluster.backend("a"), cluster.backend("b")];
    let load = cluster.load(1);
    let mut application = Application::connect(&cluster);
    application.until_answered(BOUND);
    for round in 1..=2 {
        load.await_completed(50);
        let tickets: Vec<_> = (0..OUTSTANDING).map(|_| application.submit(LONG).unwrap()).collect();
        cluster.kill_and_restart_scheduler();
        in_time("served again", application.until_answered(BOUND), PROMISED);
        for (ticket, expected) in tickets {
            match ticket.wait() {
                Outcome::Completed(reply) => assert_eq!(reply.bytes(), expected),
                other => panic!("there was time enough: {other:?}"),
            }
        }
        let counters = application.client.counters();
        assert_eq!(counters.reconnects, round);
        assert!(counters.resubmitted >= round, "nothing was outstanding: {counters:?}");
    }
    let counters = application.client.counters();
    assert_eq!(counters.submitted, application.submitted);
    assert_eq!(counters.submitted, counters.completed + counters.dropped + counters.failed);
    assert_eq!(application.client.slots_in_use(), 0);
    drop(application.model);
    application.client.leave().unwrap();

    load.await_completed(100);
    load.stop();
    for backend in backends {
        backend.signal(rustix::process::Signal::TERM);
        backend.line("left");
        assert!(backend.finish().0.success());
    }
}

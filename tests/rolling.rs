//! Every process of a cluster is restarted under load, one after the other, as for a new version: no
//! task fails, and none is dropped because of it but by its own deadline.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use std::time::Duration;

use baton_client::{Clock, Deadline, Nanos, Outcome};
use support::application::Application;
use support::{Cluster, Counts, Process};

/// From the signal to the end of a process: what executes is finished, nothing more.
const BOUND: Nanos = Nanos::from_millis(5_000);
/// More than any restart takes.
const LONG: Deadline = Deadline::Within(Duration::from_secs(30));
const OUTSTANDING: u64 = 60;

fn terminate(process: &mut Process, clock: Clock) {
    let start = clock.now();
    process.terminate();
    let took = clock.now() - start;
    assert!(took <= BOUND, "it took {} ms to end", took.as_millis_f64());
}

fn nothing_failed(counts: &Counts) {
    assert_eq!(counts.failed, 0, "{counts:?}");
    let unfit = |reason: &String| reason == "shutdown" || reason == "no_backend";
    assert!(!counts.drops.iter().any(unfit), "{counts:?}");
}

#[test]
fn every_process_is_restarted_under_load_and_no_task_fails() {
    let clock = Clock::start();
    let mut cluster = Cluster::start("rolling");
    let mut backends = ["a", "b", "c"].map(|name| cluster.backend(name));
    let loads = [cluster.load(1), cluster.load(2)];
    let mut application = Application::connect(&cluster);
    loads.iter().for_each(|load| load.await_completed(50));

    for (name, backend) in ["a", "b", "c"].into_iter().zip(&mut backends) {
        terminate(backend, clock);
        *backend = cluster.backend(name);
        loads.iter().for_each(|load| load.await_completed(50));
    }

    for _ in 0..2 {
        let tickets: Vec<_> = (0..OUTSTANDING).map(|_| application.submit(LONG).unwrap()).collect();
        cluster.restart_scheduler();
        for (ticket, expected) in tickets {
            match ticket.wait() {
                Outcome::Completed(reply) => assert_eq!(reply.bytes(), expected),
                other => panic!("there was time enough: {}", other.explain()),
            }
        }
        loads.iter().for_each(|load| load.await_completed(100));
    }
    let counters = application.client.counters();
    assert_eq!((counters.reconnects, counters.completed), (2, application.submitted));
    assert_eq!(counters.scheduler_lost, 0, "no submit was refused");

    for (seed, load) in (3..).zip(loads) {
        let start = clock.now();
        nothing_failed(&load.stop());
        assert!(clock.now() - start <= BOUND);
        let next = cluster.load(seed);
        next.await_completed(50);
        nothing_failed(&next.stop());
    }
    drop(application.model);
    application.client.leave().unwrap();
    backends.iter_mut().for_each(|backend| terminate(backend, clock));
    terminate(&mut cluster.scheduler, clock);
}

//! Every process of a cluster is restarted under load, one after the other, as for a new version: no
//! task fails, and none is dropped because of it but by its own deadline.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use std::time::Duration;

use baton_client::{Clock, Deadline, Nanos, Outcome};
use rustix::process::Signal;
use support::application::Application;
use support::etcd::free_ports;
use support::{Cluster, Folder, Load, Process, in_time};

/// From the signal to the end of a process: what executes is finished, nothing more.
const ENDS: Nanos = Nanos::from_millis(5_000);
/// More than any restart takes.
const LONG: Deadline = Deadline::Within(Duration::from_secs(30));
const OUTSTANDING: u64 = 60;

fn terminate(process: &mut Process, clock: Clock) {
    let start = clock.now();
    process.terminate();
    in_time("ended", clock.now() - start, ENDS);
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
        load.stop().nothing_failed();
        in_time("stopped", clock.now() - start, ENDS);
        let next = cluster.load(seed);
        next.await_completed(50);
        next.stop().nothing_failed();
    }
    drop(application.model);
    application.client.leave().unwrap();
    backends.iter_mut().for_each(|backend| terminate(backend, clock));
    terminate(&mut cluster.scheduler, clock);
}

/// A member that is first looks for the scheduler until it is there.
#[test]
fn processes_that_are_started_before_their_scheduler_join_it() {
    let folder = Folder::new("any-order");
    let file = folder.write("cluster.toml", support::CLUSTER);
    let addr = format!("127.0.0.1:{}", free_ports(1)[0]);
    let members = ["--config", &file, "--scheduler", &addr];
    let load = ["--seconds", "600", "--rate", "m=100", "--progress-json"];
    let load = Process::start(&[&["load"], &members[..], &load].concat());
    let backend = Process::start(&[&["backend"], &members[..], &["--name", "a"]].concat());
    // It is up and has looked in vain.
    for process in [&load, &backend] {
        process.await_stderr("no scheduler yet");
    }
    let _scheduler = Process::start(&["scheduler", "--config", &file, "--listen", &addr]);
    backend.line("ready");
    let load = Load { process: load };
    load.await_completed(50);
    load.stop().failed_only(&[]);
}

/// Ctrl-C of one that waits for its scheduler, or the end of its container.
#[test]
fn members_that_look_for_their_scheduler_end_at_once_when_they_are_asked_to() {
    let folder = Folder::new("no-scheduler");
    let patient = format!("{}\n[reconnect]\nstart_ms = 600000\n", support::CLUSTER);
    let file = folder.write("cluster.toml", &patient);
    let addr = format!("127.0.0.1:{}", free_ports(1)[0]);
    let members = ["--config", &file, "--scheduler", &addr];
    for (command, more, status) in [
        ("backend", &["--name", "a"][..], 0),
        ("gateway", &["--http", "127.0.0.1:0"], 0),
        ("load", &["--rate", "m=100"], 1),
    ] {
        let process = Process::start(&[&[command], &members[..], more].concat());
        process.await_stderr("no scheduler yet");
        process.signal(Signal::TERM);
        assert_eq!(process.finish().0.code(), Some(status), "{command}");
    }
}

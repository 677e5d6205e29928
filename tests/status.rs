//! `baton status` against processes: what it prints while a cluster serves, and what it says of members that go.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use rustix::process::Signal;
use serde_json::Value;
use support::operator::await_status;
use support::{Cluster, Process, run};

fn loss(status: &Value) -> Option<&Value> {
    status["events"].as_array().unwrap().iter().find(|event| event["event"] == "lost")
}

#[test]
fn a_cluster_that_serves_says_how_it_fares() {
    let cluster = Cluster::start("status");
    let (_a, b) = (cluster.backend("a"), cluster.backend("b"));
    let load = cluster.load(1);
    load.await_completed(100);
    let status = await_status(&cluster, |status| {
        status["models"][0]["rate_rps"].as_f64().unwrap() > 20.0
            && status["gpus_needed"].as_u64().unwrap() > 0
    });
    let model = &status["models"][0];
    assert_eq!(model["name"], "m");
    let number = |key: &str| model[key].as_f64().unwrap_or_else(|| panic!("{key}: {model}"));
    assert!(number("rate_rps") < 200.0 && number("bad_rate") <= 1.0, "{model}");
    assert!(number("mean_batch") >= 1.0 && number("queue") >= 0.0, "{model}");
    assert!((10.0..=number("p99_ms")).contains(&number("p50_ms")), "{model}");
    let members = status["members"].as_array().unwrap();
    let roles: Vec<&str> = members.iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["frontend", "backend", "backend"]);
    assert_eq!((&members[1]["name"], &members[2]["name"]), (&"a".into(), &"b".into()));
    let gpus = status["gpus"].as_array().unwrap();
    let busy: f64 = gpus.iter().map(|gpu| gpu["busy"].as_f64().unwrap()).sum();
    assert!(gpus.len() == 2 && busy > 0.0 && busy <= 2.0, "{gpus:?}");
    assert_eq!(
        (&status["policy"], &status["version"]),
        (&"baton".into(), &env!("CARGO_PKG_VERSION").into())
    );
    b.signal(Signal::KILL);
    let status = await_status(&cluster, |status| loss(status).is_some());
    let lost = loss(&status).unwrap();
    assert_eq!(
        (&lost["subject"], &lost["reason"]),
        (&"backend b".into(), &"connection_broken".into())
    );
    load.stop();
}

#[test]
fn a_member_that_says_nothing_is_silent_and_not_unauthorised() {
    let cluster = Cluster::start("status-silent");
    let a = cluster.backend("a");
    a.signal(Signal::STOP);
    let status = await_status(&cluster, |status| loss(status).is_some());
    a.signal(Signal::CONT);
    let lost = loss(&status).unwrap();
    assert_eq!((&lost["subject"], &lost["reason"]), (&"backend a".into(), &"silent".into()));
    assert!(lost["detail"].as_str().unwrap().contains("nothing heard for 1000 ms"), "{lost}");
    // It comes again by itself.
    await_status(&cluster, |status| status["gpus"].as_array().unwrap().len() == 1);
}

#[test]
fn a_watch_writes_one_picture_after_the_other_and_ends_on_a_signal() {
    let cluster = Cluster::start("status-watch");
    let mut watch = Process::start(&["status", "--watch", "--scheduler", cluster.addr()]);
    let first = watch.line("baton ");
    let second = watch.line("baton ");
    for line in [first, second] {
        assert!(line.contains("policy baton, up ") && !line.contains('\x1b'), "{line:?}");
    }
    watch.terminate();
}

#[test]
fn without_a_scheduler_the_error_says_where_it_was_sought() {
    let output = run(&["status", "--scheduler", "127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    let fix =
        "127.0.0.1:1: the connection failed (connection refused); start it, or correct its address";
    assert!(error.contains(&format!("cannot connect to the scheduler at {fix}")), "{error}");
    assert_eq!(output.stdout, b"");
}

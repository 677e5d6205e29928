//! What became of a task is written by the load and told by `baton explain`.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use std::fs;

use serde_json::Value;
use support::{Cluster, Folder, run};

#[test]
fn a_dropped_task_is_explained_from_its_own_moments() {
    let cluster = Cluster::start("explain");
    let folder = Folder::new("explain-outcomes");
    let file = folder.path().join("bad.jsonl").display().to_string();
    let load = cluster.load_with(1, &["--outcomes", &file]);
    // There is no backend: each task is dropped for that.
    assert_eq!(load.completed(), 0);
    let counts = load.stop();

    let written = fs::read_to_string(&file).unwrap();
    let records: Vec<Value> =
        written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len() as u64, counts.dropped + counts.failed, "each task once");
    let first = &records[0];
    assert_eq!((&first["outcome"], &first["reason"]), (&"dropped".into(), &"no_backend".into()));

    let task = first["task"].to_string();
    let told = run(&["explain", &task, "--outcomes", &file]);
    assert!(told.status.success());
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.starts_with(&format!("task {task} of m: ")), "{told}");
    assert!(told.contains("no backend served its model"), "{told}");
    assert!(
        told.contains("0.000 ms  submitted") && told.contains("400.000 ms  deadline"),
        "{told}"
    );
    assert!(told.contains("the scheduler's message"), "{told}");
    let unknown = run(&["explain", "1", "--outcomes", &file]);
    assert_eq!(unknown.status.code(), Some(1));
}

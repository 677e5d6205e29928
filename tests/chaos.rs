//! Some seconds of `baton bench chaos`: each kind of fault once. `docs/chaos.md` says how to run more.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use serde_json::Value;
use support::run;

#[test]
fn a_cluster_that_is_killed_stopped_cut_off_and_robbed_loses_nothing() {
    let out =
        run(&["bench", "chaos", "--seed", "1", "--seconds", "7", "--processes", "5", "--json"]);
    let (text, log) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{text}\n{log}");
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["conserved"], true, "{report}");
    assert_eq!(report["failures"], serde_json::json!([]), "{report}");
    let count = |key: &str| report[key].as_u64().unwrap();
    let sum = |key: &str| -> u64 {
        report[key].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum()
    };
    assert_eq!(count("submitted"), count("completed") + sum("dropped") + sum("failed"));
    assert!(count("completed") > 100, "it exercises little: {report}");
    assert!(report["faults"].as_object().unwrap().len() >= 5, "it exercises little: {report}");
}

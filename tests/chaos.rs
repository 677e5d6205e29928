//! A short `baton bench chaos`: each kind of fault once. `docs/chaos.md` says how to run more. That service
//! comes back is asserted, not how soon: that is for machines that have nothing else to do.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use serde_json::Value;
use support::run;

#[test]
fn a_cluster_that_is_killed_stopped_cut_off_and_robbed_loses_nothing() {
    let short = ["--seed", "1", "--seconds", "1", "--faults", "7", "--within", "60"];
    let out = run(&[&["bench", "chaos", "--processes", "5", "--json"], &short[..]].concat());
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
    assert!(count("completed") > 0, "it exercises little: {report}");
    assert_eq!(report["faults"].as_object().unwrap().len(), 7, "each kind once: {report}");
}

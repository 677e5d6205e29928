//! `baton bench overload` as a user runs it, but short: what it says must add up, and quotas must be felt.
//! How much goodput is left is for machines that have nothing else to do.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use serde_json::Value;
use support::run;

#[test]
fn a_short_flood_is_survived_conserved_and_reported() {
    let short = ["--seconds", "2", "--step", "1", "--factor", "5", "--quota", "100"];
    let output = run(&[&["bench", "overload", "--json"], &short[..]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("is the machine free?") {
        eprintln!("SKIPPED: not even a fraction of the load was served in time: {errors}");
        return;
    }
    assert!(output.status.success(), "{errors}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let number = |key: &str| report[key].as_u64().unwrap();
    assert_eq!(number("submitted"), number("completed") + number("dropped") + number("failed"));
    assert_eq!((&report["conserved"], report["lost"].as_array().unwrap().len()), (&true.into(), 0));
    let flood = &report["flood"];
    let refused = flood["dropped"]["quota"].as_u64().unwrap();
    assert!(refused > 0 && number("refused") >= refused, "{report}");
    assert_eq!(number("hinted"), number("refused"), "each hears how long to wait: {report}");
    let rate = |of: &Value, key: &str| of[key].as_f64().unwrap();
    assert!(rate(flood, "offered_rps") > 0.0 && rate(&report["peak"], "goodput_rps") > 0.0);
    let processes: Vec<&str> = report["memory"]
        .as_array()
        .unwrap()
        .iter()
        .map(|of| of["process"].as_str().unwrap())
        .collect();
    assert_eq!(processes, ["scheduler", "backend-left", "backend-right"]);
    for of in report["memory"].as_array().unwrap() {
        let [before, most] = ["before_kib", "peak_kib"].map(|key| of[key].as_u64().unwrap());
        assert!(before > 0 && most >= before, "{report}");
    }
}

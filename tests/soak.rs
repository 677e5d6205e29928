//! `baton bench soak` as a user runs it, but for two seconds: what it says must add up and be drawn.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use serde_json::Value;
use support::run;

#[test]
fn a_short_soak_is_conserved_reported_and_drawn() {
    let out = std::env::temp_dir().join(format!("baton-soak-{}", std::process::id()));
    let out_text = out.display().to_string();
    let short = ["--seconds", "2", "--every", "0.5", "--load", "0.3", "--out", &out_text];
    let output = run(&[&["bench", "soak", "--json"], &short[..]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let number = |key: &str| report[key].as_u64().unwrap();
    assert_eq!(number("submitted"), number("completed") + number("dropped") + number("failed"));
    assert_eq!((&report["conserved"], report["lost"].as_array().unwrap().len()), (&true.into(), 0));
    let samples = report["samples"].as_array().unwrap();
    let each = samples.iter().map(|sample| sample["tasks"]["submitted"].as_u64().unwrap());
    assert_eq!((samples.len(), each.sum::<u64>()), (4, number("submitted")));
    for key in ["memory", "handles"] {
        let of = |drift: &Value| drift["what"].as_str().unwrap().to_owned();
        let processes: Vec<String> = report[key].as_array().unwrap().iter().map(of).collect();
        assert_eq!(processes, ["scheduler", "backend-left", "backend-right", "client"]);
    }
    let written = std::fs::read_to_string(out.join("soak.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), report);
    assert!(std::fs::read_to_string(out.join("soak.svg")).unwrap().starts_with("<svg"));
    std::fs::remove_dir_all(out).unwrap();
}

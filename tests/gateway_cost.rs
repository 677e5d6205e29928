//! `baton bench gateway` as a user runs it, but for a moment: what it says must add up. What a request costs is a figure of a release
//! build on a quiet machine, and no test's.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use serde_json::{Value, json};
use support::run;

#[test]
fn each_kind_of_request_has_its_cost_beside_the_bare_servers() {
    let args =
        ["bench", "gateway", "--json", "--seconds", "0.2", "--rounds", "2", "--outstanding", "4"];
    let output = run(&[&args[..], &["--bytes", "256,20000"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["outstanding"], &report["rounds"]), (&json!(4), &json!(2)));
    let rows = report["rows"].as_array().unwrap();
    let kinds: Vec<_> =
        rows.iter().map(|row| (&row["protocol"], &row["bytes"], &row["goal"])).collect();
    let (http, grpc) = (&json!("http, binary"), &json!("grpc"));
    let (short, long, none) = (&json!(256), &json!(20_000), &Value::Null);
    let goals = (&json!(2.5), &json!(1.3));
    assert_eq!(
        kinds,
        [(http, short, goals.0), (http, long, none), (grpc, short, goals.1), (grpc, long, none)]
    );
    for row in rows {
        let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"));
        assert!(number("requests") > 0.0 && number("bare_us") > 0.0, "{row}");
        assert!(number("serving_us") > 0.0 && number("gateway_us") > number("serving_us"), "{row}");
        assert!(number("ratio") > number("serving_ratio"), "{row}");
    }
    let cancels = report["cancels"].as_array().unwrap();
    let kinds: Vec<_> = cancels.iter().map(|row| (&row["protocol"], &row["requests"])).collect();
    assert_eq!(kinds, [(http, &json!(160)), (grpc, &json!(160))]);
    for row in cancels {
        let ms = ["p50_ms", "p90_ms", "max_ms"].map(|key| row[key].as_f64().unwrap());
        // A look at the metrics takes longer than ten microseconds.
        assert!(ms[0] > 0.01 && ms.is_sorted(), "{row}");
    }
}

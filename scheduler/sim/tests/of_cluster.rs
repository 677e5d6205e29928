//! A cluster file as a scenario.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use std::path::PathBuf;

use baton_core::{Nanos, SubclusterId};
use baton_sim::{Run, Scenario, Span, analytic_bound_rps, run};

const CLUSTER: &str = r#"
[network]
ctrl_us = 100
[[model]]
name = "big"
latency_ms = [10, 12, 14]
slo_ms = 40
expected_rps = 30
subcluster = "gpu"
[[model]]
name = "small"
alpha_ms = 1.0
beta_ms = 2.0
slo_ms = 20
expected_rps = 10
subcluster = "cpu"
[[backend]]
name = "a"
subcluster = "cpu"
[[backend]]
name = "b"
subcluster = "gpu"
gpus = 3
"#;

const SPAN: Span = Span { duration: Nanos::from_millis(10_000), warmup: Nanos::from_millis(5_000) };

fn file(name: &str, text: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cluster-{name}.toml"));
    std::fs::write(&path, text).unwrap();
    path
}

fn refused(name: &str, text: &str) -> String {
    Scenario::load_cluster(&file(name, text), SPAN).unwrap_err().to_string()
}

#[test]
fn models_slots_delays_and_shares_are_the_files() {
    let scenario = Scenario::load_cluster(&file("whole", CLUSTER), SPAN).unwrap();
    assert_eq!((scenario.gpus, scenario.subclusters.count()), (4, 2));
    let subclusters: Vec<u32> = (0..4).map(|gpu| scenario.subclusters.of_slot(gpu).0).collect();
    assert_eq!(subclusters, [0, 0, 0, 1], "slots are numbered by sub-cluster");
    assert_eq!(scenario.network.ctrl, Nanos::from_millis_f64(0.1));
    assert_eq!((scenario.duration, scenario.warmup), (SPAN.duration, SPAN.warmup));
    let [big, small] = &scenario.models[..] else { panic!("two models") };
    assert_eq!((big.name.as_str(), big.slo_ms, big.share), ("big", 40.0, 0.75));
    assert!((big.alpha_ms - 2.0).abs() < 1e-9 && (big.beta_ms - 8.0).abs() < 1e-9, "{big:?}");
    assert_eq!((small.subcluster, small.profile.batch_max()), (SubclusterId(1), 64));
}

#[test]
fn it_runs() {
    let scenario = Scenario::load_cluster(&file("run", CLUSTER), SPAN).unwrap();
    assert!(analytic_bound_rps(&scenario) > 100.0);
    let policy = "baton".parse().unwrap();
    let report = run(&scenario, Run { policy, rate_rps: 100.0, seed: 1 }).unwrap();
    assert!(report.bad_rate < 0.01, "{report:?}");
    assert!(report.models.iter().all(|model| model.submitted > 100), "{report:?}");
}

#[test]
fn models_without_expectations_get_equal_shares() {
    let text = CLUSTER.replace("expected_rps = 30\n", "");
    let scenario = Scenario::load_cluster(&file("shares", &text), SPAN).unwrap();
    assert!(scenario.models.iter().all(|model| model.share == 0.5));
}

#[test]
fn what_is_missing_is_said_with_the_fix() {
    let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits.onnx");
    let measured =
        format!("{CLUSTER}[[model]]\nname = \"digits\"\nfile = \"{digits}\"\nslo_ms = 50\n");
    let error = refused("measured", &measured);
    assert!(
        error.contains("cluster-measured.toml: model digits: its backends measure ℓ(b)"),
        "{error}"
    );
    assert!(
        error.contains("fix: give it latency_ms = [ℓ(1), ℓ(2), …], or alpha_ms and"),
        "{error}"
    );
    let error = refused(
        "empty",
        &CLUSTER
            .replace("name = \"b\"\nsubcluster = \"gpu\"", "name = \"b\"\nsubcluster = \"cpu\""),
    );
    assert!(error.contains("model big: sub-cluster gpu has no GPU slot"), "{error}");
    let error = refused("typo", &CLUSTER.replace("slo_ms = 20", "slo_sm = 20"));
    assert!(
        error.contains("model[1].slo_sm: is not a key of this table; fix: write slo_ms"),
        "{error}"
    );
}

//! A cluster file as a scenario.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use std::path::PathBuf;

use baton_core::{Nanos, SubclusterId};
use baton_sim::{ClusterRun, Run, Scenario, ScenarioError, analytic_bound_rps, goodput, run};

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

const DURATION: Nanos = Nanos::from_millis(10_000);
const WARMUP: Nanos = Nanos::from_millis(5_000);

fn file(name: &str, text: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cluster-{name}.toml"));
    std::fs::write(&path, text).unwrap();
    path
}

/// The cluster file's scenario, without these models.
fn loaded(name: &str, text: &str, without: &[&str]) -> Result<Scenario, ScenarioError> {
    let without = without.iter().map(|&model| model.to_owned()).collect();
    let run = ClusterRun { duration: DURATION, warmup: WARMUP, without, replay: None };
    Scenario::load_cluster(&file(name, text), &run)
}

fn refused(name: &str, text: &str) -> String {
    loaded(name, text, &[]).unwrap_err().to_string()
}

#[test]
fn models_slots_delays_and_shares_are_the_files() {
    let scenario = loaded("whole", CLUSTER, &[]).unwrap();
    assert_eq!((scenario.gpus, scenario.subclusters.count()), (4, 2));
    let subclusters: Vec<u32> = (0..4).map(|gpu| scenario.subclusters.of_slot(gpu).0).collect();
    assert_eq!(subclusters, [0, 0, 0, 1], "slots are numbered by sub-cluster");
    assert_eq!(scenario.network.ctrl, Nanos::from_millis_f64(0.1));
    assert_eq!((scenario.duration, scenario.warmup), (DURATION, WARMUP));
    let [big, small] = &scenario.models[..] else { panic!("two models") };
    assert_eq!((big.name.as_str(), big.slo_ms, big.share), ("big", 40.0, 0.75));
    assert!((big.alpha_ms - 2.0).abs() < 1e-9 && (big.beta_ms - 8.0).abs() < 1e-9, "{big:?}");
    assert_eq!((small.subcluster, small.profile.batch_max()), (SubclusterId(1), 64));
}

#[test]
fn it_runs() {
    let scenario = loaded("run", CLUSTER, &[]).unwrap();
    assert!(analytic_bound_rps(&scenario) > 100.0);
    let policy = "baton".parse().unwrap();
    let report = run(&scenario, Run { policy, rate_rps: 100.0, seed: 1 }).unwrap();
    assert!(report.bad_rate < 0.01, "{report:?}");
    assert!(report.models.iter().all(|model| model.submitted > 100), "{report:?}");
}

/// A model that gains nothing from batches executes them on both slots at a time, and the other one must not wait
/// until its last moment for a slot.
#[test]
fn the_example_cluster_serves_nine_tenths_of_what_it_does_without_waiting() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/cluster.toml");
    let without = vec!["digits".to_owned()];
    let given =
        ClusterRun { duration: Nanos::from_millis(60_000), warmup: WARMUP, without, replay: None };
    let scenario = Scenario::load_cluster(path.as_ref(), &given).unwrap();
    let found = |policy: &str| goodput(&scenario, policy.parse().unwrap(), 1).unwrap().goodput_rps;
    let (baton, eager) = (found("baton"), found("eager"));
    assert!(baton >= 0.9 * eager, "baton {baton}, eager {eager}");
}

#[test]
fn models_without_expectations_get_equal_shares() {
    let text = CLUSTER.replace("expected_rps = 30\n", "");
    let scenario = loaded("shares", &text, &[]).unwrap();
    assert!(scenario.models.iter().all(|model| model.share == 0.5));
}

#[test]
fn a_model_left_out_takes_the_slots_with_it_that_serve_no_other() {
    let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits.onnx");
    let text = format!(
        "{CLUSTER}[[model]]\nname = \"digits\"\nfile = \"{digits}\"\nslo_ms = 50\nsubcluster = \"cpu\"\n"
    );
    let names = |scenario: &Scenario| -> Vec<String> {
        scenario.models.iter().map(|model| model.name.clone()).collect()
    };
    let shared = loaded("without-one", &text, &["digits"]).unwrap();
    assert_eq!((names(&shared), shared.gpus), (vec!["big".to_owned(), "small".to_owned()], 4));
    assert_eq!(shared.models[0].share, 0.75);
    let alone = loaded("without-two", &text, &["digits", "small"]).unwrap();
    assert_eq!((names(&alone), alone.gpus), (vec!["big".to_owned()], 3));
    assert_eq!(alone.subclusters.of_slot(2), alone.models[0].subcluster);
    let other = loaded("without-big", &text, &["digits", "big"]).unwrap();
    assert_eq!((names(&other), other.gpus), (vec!["small".to_owned()], 1));
    assert_eq!(other.subclusters.of_slot(0), other.models[0].subcluster);
    let error = |without: &[&str]| loaded("without-error", &text, without).unwrap_err().to_string();
    assert!(error(&["digitz"]).contains("no model is called digitz"), "{}", error(&["digitz"]));
    assert!(error(&["digits", "small", "big"]).contains("no model remains"));
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
        error.contains(
            "or alpha_ms and beta_ms, as measured on its GPU, or leave it out: --without MODEL"
        ),
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

/// Three models of which a slot holds two, on two backends of which the second has this cache.
fn caches(second: &str) -> String {
    let backends = format!(
        "[[backend]]\nname = \"a\"\nweights_cache_mib = 100\n[[backend]]\nname = \"b\"\n{second}"
    );
    let model = |name| {
        format!(
            "[[model]]\nname = \"{name}\"\nalpha_ms = 0.1\nbeta_ms = 1\nslo_ms = 90\nbatch_max = 4\n\
             weights_mib = 16\nload_ms = 4\n"
        )
    };
    backends + &["x", "y", "z"].map(model).concat()
}

#[test]
fn slots_have_the_memory_of_the_files_caches() {
    let scenario = loaded("caches", &caches("weights_cache_mib = 100\n"), &[]).unwrap();
    let memory = scenario.memory.unwrap();
    assert_eq!((memory.pages, memory.page_mib), (6, 16.0));
    let weights = scenario.models[0].weights.unwrap();
    assert_eq!((weights.weights_mb, weights.load_ms), (16.777216, Some(4.0)));
    let rate_rps = 50.0;
    let report = run(&scenario, Run { policy: "baton".parse().unwrap(), rate_rps, seed: 1 });
    assert!(report.unwrap().satisfied > 0.99);
    let differ = refused("differ", &caches("weights_cache_mib = 200\n"));
    assert!(differ.contains("weights caches that differ; fix: give all backends"), "{differ}");
}

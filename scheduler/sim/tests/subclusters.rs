//! A cluster that is divided into sub-clusters is as many clusters.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use baton_sim::{Run, Scenario, run, run_traced};

const DIVIDED: &str = "
    gpus = 5
    duration_s = 4
    warmup_s = 1
    [[subcluster]]
    name = 'a'
    gpus = 3
    [[subcluster]]
    name = 'b'
    gpus = 2
    [[model]]
    name = 'x'
    alpha_ms = 1
    beta_ms = 5
    slo_ms = 25
    [[model]]
    name = 'y'
    alpha_ms = 2
    beta_ms = 3
    slo_ms = 40
    subcluster = 'b'";

fn at(policy: &str, rate_rps: f64) -> Run {
    Run { policy: policy.parse().unwrap(), rate_rps, seed: 1 }
}

#[test]
fn a_batch_executes_in_the_sub_cluster_of_its_model() {
    let scenario = Scenario::parse(DIVIDED).unwrap();
    for policy in ["baton", "symphony", "eager"] {
        let (report, trace) = run_traced(&scenario, at(policy, 600.0)).unwrap();
        assert!(report.models.iter().all(|model| model.completed > 500), "{report:?}");
        let trace = String::from_utf8(trace).unwrap();
        let of = |line: &str, key: &str| {
            let mut words = line.split(' ');
            words.find_map(|word| word.strip_prefix(key)?.parse::<u32>().ok())
        };
        let mut batches = 0;
        for (gpu, model) in trace.lines().filter_map(|l| Some((of(l, "gpu=")?, of(l, "model=")?))) {
            assert_eq!(gpu >= 3, model == 1, "model {model} on slot {gpu} under {policy}");
            batches += 1;
        }
        assert!(batches > 100, "{trace}");
    }
}

/// The load of one sub-cluster costs the other nothing.
#[test]
fn an_overloaded_sub_cluster_leaves_the_other_alone() {
    let scenario =
        Scenario::parse(&format!("popularity = {{ kind = 'zipf', s = 3.0 }}\n{DIVIDED}"));
    let report = run(&scenario.unwrap(), at("baton", 4_000.0)).unwrap();
    let [overloaded, other] = &report.models[..] else { panic!("two models") };
    assert!(overloaded.dropped > overloaded.submitted / 5, "{report:?}");
    assert!(other.dropped + other.late < other.submitted / 100, "{report:?}");
}

#[test]
fn what_cannot_be_is_refused() {
    let error = |text: &str| Scenario::parse(text).unwrap_err().to_string();
    let sum = error(&DIVIDED.replace("gpus = 5", "gpus = 6"));
    assert!(sum.contains("5 GPUs together, and gpus = 6"), "{sum}");
    let twice = error(&DIVIDED.replace("name = 'b'", "name = 'a'"));
    assert!(twice.contains("two [[subcluster]] named \"a\""), "{twice}");
    let unknown = error(&DIVIDED.replace("subcluster = 'b'", "subcluster = 'c'"));
    assert!(unknown.contains("model y") && unknown.contains("\"c\""), "{unknown}");
    let scenario = Scenario::parse(DIVIDED).unwrap();
    let refused = run(&scenario, at("clockwork:0", 100.0)).unwrap_err().to_string();
    assert!(refused.contains("subcluster"), "{refused}");
}

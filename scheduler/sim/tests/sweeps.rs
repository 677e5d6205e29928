//! Sweeps against the single runs and searches that they consist of.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use baton_core::Policy;
use std::path::PathBuf;

use baton_sim::{
    PolicyName, Report, Run, Scenario, ScenarioSource, Sweep, SweepPoint, analytic_bound_rps,
    goodput, run,
};

const TABLE_4: &str = "
    gpus = 8
    duration_s = 1
    warmup_s = 0.2
    [[model]]
    name = 'resnet50'
    alpha_ms = 1.053
    beta_ms = 5.072
    slo_ms = 25.0";

/// A scenario file of its own for each test.
fn file(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.toml"));
    std::fs::write(&path, TABLE_4).unwrap();
    path
}

fn sweep(name: &str, policies: &[&str], rates: Option<&str>, vary: Option<&str>) -> Sweep {
    Sweep {
        scenario: ScenarioSource::Scenario(file(name)),
        policies: policies.iter().map(|policy| policy.parse().unwrap()).collect(),
        rates: rates.map(|rates| rates.parse().unwrap()),
        vary: vary.map(|vary| vary.parse().unwrap()),
        seeds: 2,
    }
}

fn points(sweep: &Sweep) -> Vec<SweepPoint> {
    sweep.jobs().unwrap().iter().map(|job| job.run().unwrap()).collect()
}

#[test]
fn a_line_is_the_mean_of_its_runs() {
    let points = points(&sweep("rates", &["symphony", "eager"], Some("3000,5600"), None));
    let scenario = Scenario::parse(TABLE_4).unwrap();
    let expected =
        [("symphony", 3_000.0), ("eager", 3_000.0), ("symphony", 5_600.0), ("eager", 5_600.0)];
    assert_eq!(points.len(), expected.len());
    for (point, (policy, rate_rps)) in points.iter().zip(expected) {
        assert_eq!((point.policy.as_str(), point.value.as_deref()), (policy, None));
        let at = |seed| run(&scenario, Run { policy: policy.parse().unwrap(), rate_rps, seed });
        let runs = [at(1).unwrap(), at(2).unwrap()];
        let mean = |of: fn(&Report) -> f64| runs.iter().map(of).sum::<f64>() / 2.0;
        assert_eq!(point.offered_rps, mean(|report| report.offered_rps));
        assert_eq!(point.goodput_rps, mean(|report| report.goodput_rps));
        assert_eq!(point.bad_rate, Some(mean(|report| report.bad_rate)));
        assert_eq!(point.worst_model_bad_rate, Some(mean(|report| report.worst_model_bad_rate)));
        assert_eq!(point.gpu_utilization, mean(|report| report.gpu_utilization));
        assert_eq!(point.mean_batch, mean(|report| report.mean_batch));
        for (found, of) in [
            (point.mean_ms, (|r| r.mean_ms) as fn(&Report) -> Option<f64>),
            (point.p50_ms, |r| r.p50_ms),
            (point.p99_ms, |r| r.p99_ms),
        ] {
            assert_eq!(found, Some(runs.iter().map(|r| of(r).unwrap()).sum::<f64>() / 2.0));
        }
    }
}

#[test]
fn without_rates_a_line_is_a_search() {
    let point = points(&sweep("search", &["eager"], None, None)).remove(0);
    let found =
        goodput(&Scenario::parse(TABLE_4).unwrap(), PolicyName::Production(Policy::Eager), 2)
            .unwrap();
    assert_eq!((point.goodput_rps, point.mean_batch), (found.goodput_rps, found.mean_batch));
    assert_eq!((point.bad_rate, point.analytic_bound_rps), (None, found.analytic_bound_rps));
    assert_eq!((point.mean_ms, point.p50_ms, point.p99_ms), (None, None, None));
}

#[test]
fn a_varied_key_changes_the_scenario_and_the_bound_that_rates_refer_to() {
    let points = points(&sweep("vary", &["eager"], Some("0.5x"), Some("gpus=4,16")));
    assert_eq!(points.len(), 2);
    for (point, gpus) in points.iter().zip(["4", "16"]) {
        let text = TABLE_4.replace("gpus = 8", &format!("gpus = {gpus}"));
        let bound = analytic_bound_rps(&Scenario::parse(&text).unwrap());
        assert_eq!((point.value.as_deref(), point.analytic_bound_rps), (Some(gpus), bound));
        assert!((point.offered_rps / bound - 0.5).abs() < 0.02, "{point:?}");
    }
}

#[test]
fn a_value_that_makes_no_scenario_is_named() {
    let error =
        |name, vary| sweep(name, &["eager"], None, Some(vary)).jobs().unwrap_err().to_string();
    assert!(error("slo", "slo_ms=20,0").starts_with("model.slo_ms = 0: resnet50.slo_ms"));
    let unknown = error("unknown", "gpu=2");
    assert!(unknown.starts_with("gpu = 2: unknown field `gpu`; fix: write gpus, or"), "{unknown}");
    assert!(error("filter", "zoo_filter=gt2").contains("zoo_filter"));
}

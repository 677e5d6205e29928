//! Whole runs: repeatable, conserving, and where the papers and the rules say they should be.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use std::cell::RefCell;

use baton_core::Policy;
use baton_sim::{
    Goodput, PolicyName, Report, Run, Scenario, TriedRate, goodput, goodput_told, run, run_traced,
};

const POLICIES: [&str; 7] =
    ["symphony", "symphony-text", "eager", "frontrun", "timeout", "clockwork", "nexus:3"];

const RESNET50: &str = "
    [[model]]
    name = 'resnet50'
    alpha_ms = 1.053
    beta_ms = 5.072
    slo_ms = 25.0";

fn scenario(head: &str, models: &str) -> Scenario {
    Scenario::parse(&format!("{head}\n{models}")).unwrap()
}

fn resnet50(duration_s: f64) -> Scenario {
    scenario(&format!("gpus = 8\nduration_s = {duration_s}\nwarmup_s = 1"), RESNET50)
}

fn at(scenario: &Scenario, policy: &str, rate_rps: f64, seed: u64) -> Report {
    run(scenario, Run { policy: policy.parse().unwrap(), rate_rps, seed }).unwrap()
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    let bursty = "gpus = 6\nduration_s = 2\noverrun_ms = 0.1\n\
                  arrival = { process = 'gamma', shape = 0.3 }\nzoo = '1080ti'";
    let bursty = Scenario::parse(bursty).unwrap();
    for policy in POLICIES {
        let traced = |seed| {
            let policy = policy.parse().unwrap();
            run_traced(&bursty, Run { policy, rate_rps: 600.0, seed }).unwrap()
        };
        let (first, second) = (traced(1), traced(1));
        assert!(first == second, "{policy} is not repeatable");
        assert!(first.1 != traced(2).1, "{policy} ignores the seed");
        assert!(first.1.split(|&byte| byte == b'\n').count() > 100, "{policy}: no trace");
    }
}

#[test]
fn every_task_is_accounted_for_under_any_load() {
    let mixed = "gpus = 3\nduration_s = 1\nwarmup_s = 0.5\nzoo = '1080ti'\n\
                 popularity = { kind = 'zipf', s = 0.9 }";
    let mixed = Scenario::parse(mixed).unwrap();
    for policy in POLICIES {
        for rate_rps in [20.0, 400.0, 4_000.0] {
            // `run` itself fails when a task is lost or ends twice.
            let report = at(&mixed, policy, rate_rps, 3);
            for model in &report.models {
                assert_eq!(model.submitted, model.completed + model.dropped, "{policy} {model:?}");
                assert!(model.late == 0, "execution is exact here: {policy} {model:?}");
            }
        }
    }
}

#[test]
fn evenly_spaced_tasks_at_little_load_are_all_in_time() {
    let even = scenario("gpus = 8\nduration_s = 5\narrival = { process = 'constant' }", RESNET50);
    for policy in POLICIES {
        let report = at(&even, policy, 2_000.0, 1);
        assert_eq!(report.models[0].submitted, 10_000);
        assert_eq!(report.bad_rate, 0.0, "{policy}: {report:?}");
    }
}

#[test]
fn latencies_are_those_of_each_models_executed_tasks_and_of_all() {
    let model = |name: &str, alpha_ms: f64, slo_ms: f64| {
        format!(
            "[[model]]\nname = '{name}'\nalpha_ms = {alpha_ms}\nbeta_ms = 1\nslo_ms = {slo_ms}\n"
        )
    };
    let models = [model("fast", 2.0, 30.0), model("slow", 4.0, 30.0), model("never", 5.0, 4.0)];
    let head = "gpus = 8\nduration_s = 4\narrival = { process = 'constant' }";
    // Tasks of the last are given up; the others execute alone and at once.
    let report = at(&scenario(head, &models.concat()), "eager", 30.0, 1);
    let near = |found: Option<f64>, ms: f64| (found.unwrap() / ms - 1.0).abs() < 0.002;
    for (model, ms) in report.models.iter().zip([3.0, 5.0]) {
        assert!([model.mean_ms, model.p50_ms, model.p99_ms].iter().all(|&l| near(l, ms)), "{ms}");
    }
    let none = &report.models[2];
    assert_eq!((none.dropped, none.mean_ms, none.p50_ms, none.p99_ms), (40, None, None, None));
    assert!(near(report.mean_ms, 4.0) && near(report.p50_ms, 3.0) && near(report.p99_ms, 5.0));
}

#[test]
fn table_4_is_where_it_should_be() {
    for (policy, serves, fails) in [
        ("symphony", 5_150.0, 5_500.0),
        ("frontrun", 5_150.0, 5_500.0),
        ("symphony-text", 4_700.0, 5_400.0),
        ("eager", 4_700.0, 5_100.0),
        ("clockwork:0", 5_100.0, 5_450.0),
        ("clockwork:5", 4_500.0, 4_900.0),
        ("nexus:1", 4_000.0, 4_400.0),
    ] {
        let good = at(&resnet50(5.0), policy, serves, 1);
        assert!(good.bad_rate <= 0.01, "{policy} at {serves}: {good:?}");
        let bad = at(&resnet50(5.0), policy, fails, 1);
        assert!(bad.bad_rate > 0.01, "{policy} at {fails}: {bad:?}");
    }
}

/// Written separately, so each is the other's oracle: at this load βλ is never met, and without
/// network delay nothing else tells the two apart.
#[test]
fn the_production_scheduler_and_the_baseline_of_its_rule_agree() {
    let symphony = at(&resnet50(5.0), "symphony", 5_200.0, 1);
    let frontrun = at(&resnet50(5.0), "frontrun", 5_200.0, 1);
    assert!((symphony.goodput_rps / frontrun.goodput_rps - 1.0).abs() < 0.002);
    assert!((symphony.mean_batch / frontrun.mean_batch - 1.0).abs() < 0.005);
}

/// A head that is not given up keeps the batch behind it small, and with it the next one.
#[test]
fn pruning_as_the_text_has_it_does_not_survive_overload() {
    let report = |policy| at(&resnet50(2.0), policy, 6_500.0, 1);
    let (text, window) = (report("symphony-text"), report("symphony"));
    assert!(text.goodput_rps < 0.4 * window.goodput_rps, "{text:?} {window:?}");
    assert!(text.mean_batch < 2.0 && window.mean_batch > 14.0, "{text:?} {window:?}");
}

#[test]
fn pruning_as_the_text_has_it_still_waits_for_beta_lambda() {
    let text = at(&resnet50(2.0), "symphony-text", 2_000.0, 1);
    let frontrun = at(&resnet50(2.0), "frontrun", 2_000.0, 1);
    // βλ = 10.1
    assert!((9.0..=11.5).contains(&text.mean_batch), "{text:?}");
    assert!(frontrun.mean_batch > text.mean_batch + 0.5, "{frontrun:?} {text:?}");
}

#[test]
fn only_deferral_leaves_gpus_idle_at_half_load() {
    for (policy, range) in
        [("symphony", 0.4..=0.55), ("eager", 0.9..=1.0), ("clockwork", 0.9..=1.0)]
    {
        let report = at(&resnet50(3.0), policy, 2_575.0, 1);
        assert!(range.contains(&report.gpu_utilization), "{policy}: {report:?}");
    }
}

#[test]
fn the_search_finds_the_edge() {
    let Goodput { goodput_rps, ratio, seeds, .. } =
        goodput(&resnet50(2.0), PolicyName::Production(Policy::Symphony), 2).unwrap();
    assert_eq!(seeds.len(), 2);
    assert!((0.86..0.94).contains(&ratio), "{ratio}");
    assert_eq!(goodput_rps, (seeds[0].goodput_rps + seeds[1].goodput_rps) / 2.0);
    for found in seeds {
        let bad_rate = |factor: f64| {
            at(&resnet50(2.0), "symphony", found.goodput_rps * factor, found.seed).bad_rate
        };
        assert!(bad_rate(1.0) <= 0.01 && bad_rate(1.03) > 0.01, "{found:?}");
    }
}

#[test]
fn delays_cost_goodput() {
    let far = "gpus = 8\nduration_s = 3\nwarmup_s = 1\nmessage_lag_us = 20\n\
               network = { ctrl_us = 2000, data_us_per_task = 50 }";
    let far = scenario(far, RESNET50);
    let (near, far_off) =
        (at(&resnet50(3.0), "symphony", 5_150.0, 1), at(&far, "symphony", 5_150.0, 1));
    assert!(near.bad_rate < 0.01 && far_off.bad_rate > 0.01, "{near:?} {far_off:?}");
}

#[test]
fn overruns_make_tasks_late_until_the_margin_is_learnt() {
    let jittery = "gpus = 8\nduration_s = 5\nwarmup_s = 2\noverrun_ms = 0.2";
    let report = at(&scenario(jittery, RESNET50), "symphony", 4_600.0, 1);
    assert!(report.models[0].late > 0 && report.bad_rate < 0.01, "{report:?}");
    let naive = at(&scenario(jittery, RESNET50), "frontrun", 4_600.0, 1);
    assert!(naive.bad_rate > 0.015, "planned with exact times, every head is late: {naive:?}");
}

/// Executions overrun by a twenty-fifth on average, and a task can wait half of one. Planned with what one execution in a
/// hundred exceeds, it could wait a third: too little at a third of the load.
#[test]
fn a_lone_task_takes_the_chance_to_be_in_time() {
    let overrunning = "gpus = 4\nduration_s = 5\nwarmup_s = 2\noverrun_ms = 0.014\n\
                       network = { ctrl_us = 57, data_us_per_task = 10 }";
    let tight = "[[model]]\nname = 'm'\nalpha_ms = 0.351\nbeta_ms = 0.01\nslo_ms = 0.608";
    for policy in ["baton", "eager"] {
        let report = at(&scenario(overrunning, tight), policy, 3_500.0, 1);
        assert!(report.bad_rate < 0.01 && report.models[0].late > 0, "{report:?}");
    }
}

/// A task that ends late takes its slot from one that would not. With whole margins one task in sixteen is late in this
/// overload, with the shares of single tasks one in seven.
#[test]
fn where_slots_are_scarce_few_take_the_chance() {
    let overrunning = "gpus = 8\nduration_s = 5\nwarmup_s = 2\noverrun_ms = 0.67";
    let forty = "[[model]]\nname = 'm'\ncopies = 40\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 5.4";
    let report = at(&scenario(overrunning, forty), "baton", 4_500.0, 1);
    let late: u64 = report.models.iter().map(|model| model.late).sum();
    let submitted: u64 = report.models.iter().map(|model| model.submitted).sum();
    assert!(
        report.satisfied > 0.6 && late * 10 < submitted,
        "{late} of {submitted}, {}",
        report.satisfied
    );
}

#[test]
fn a_rate_that_offers_nothing_is_refused() {
    for rate_rps in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let run = Run { policy: PolicyName::Production(Policy::Symphony), rate_rps, seed: 1 };
        assert!(baton_sim::run(&resnet50(1.0), run).is_err(), "{rate_rps}");
    }
}

/// The keys that scripts depend on.
#[test]
fn reports_have_the_agreed_keys() {
    let report = serde_json::to_value(at(&resnet50(0.1), "symphony", 1_000.0, 1)).unwrap();
    for key in [
        "policy",
        "offered_rps",
        "goodput_rps",
        "bad_rate",
        "worst_model_bad_rate",
        "gpu_utilization",
        "mean_batch",
        "mean_ms",
        "p50_ms",
        "p99_ms",
    ] {
        assert!(report.get(key).is_some(), "{key}");
    }
    let of_models = "name submitted completed late dropped mean_batch mean_ms p50_ms p99_ms";
    for key in of_models.split(' ') {
        assert!(report["models"][0].get(key).is_some(), "{key}");
    }
    let found = goodput(&resnet50(0.1), PolicyName::Production(Policy::Eager), 1).unwrap();
    let found = serde_json::to_value(found).unwrap();
    for key in ["policy", "goodput_rps", "analytic_bound_rps", "ratio", "mean_batch"] {
        assert!(found.get(key).is_some(), "{key}");
    }
    assert!(found["seeds"].is_array() && found.get("gpu_utilization").is_some());
}

/// From what a search tells while it lasts, a person can see where it will end.
#[test]
fn a_search_tells_of_each_rate_and_the_last_good_one_is_its_result() {
    let told = RefCell::new(Vec::new());
    let policy = PolicyName::Production(Policy::Eager);
    let scenario = resnet50(0.1);
    let found = goodput_told(&scenario, policy, 2, |tried| told.borrow_mut().push(tried)).unwrap();
    for seed in found.seeds {
        let of_seed = || told.borrow().clone().into_iter().filter(move |t| t.seed == seed.seed);
        assert!(of_seed().any(|tried| !tried.is_good));
        let last = of_seed().rfind(|tried| tried.is_good).unwrap();
        assert_eq!(last.rate_rps, seed.goodput_rps);
    }
    let first = told.borrow()[0];
    let good = TriedRate { rate_rps: 512.4, is_good: true, ..first };
    assert_eq!(good.to_string(), "seed 1: 512 tasks/s are good");
    assert_eq!(TriedRate { is_good: false, ..good }.to_string(), "seed 1: 512 tasks/s are bad");
}

#[test]
fn long_batches_leave_slots_to_objectives_shorter_than_they_are() {
    let text = include_str!("../../../scenarios/short-beside-long.toml");
    let scenario = Scenario::parse(text).unwrap();
    let worst = |policy| at(&scenario, policy, 440.0, 1).worst_model_bad_rate;
    assert!(worst("baton") <= 0.01, "{}", worst("baton"));
    assert!(worst("eager") > 0.05, "{}", worst("eager"));
}

/// The short one loses tasks at this load because the others are deferred for its sake. A trial finds that out, sooner or
/// later by what happened to come.
#[test]
fn a_trial_finds_that_early_batches_cost_the_losing_model_less() {
    let text = include_str!("../../../scenarios/short-beside-long.toml");
    let scenario = Scenario::parse(text).unwrap();
    let worst = [1, 2, 3].map(|seed| at(&scenario, "baton", 625.0, seed).worst_model_bad_rate);
    assert!(worst.iter().sum::<f64>() <= 0.03, "{worst:?}");
}

/// The window of a deferred batch is as wide as one more task takes, here 11 µs: two messages take 40.
#[test]
fn deferred_batches_are_due_before_messages_make_them_late() {
    let head = "gpus = 2\nduration_s = 5\nwarmup_s = 1\nmessage_lag_us = 20\npopularity = { kind = 'zipf', s = 1.0 }\n\
                arrival = { process = 'gamma', shape = 0.11 }";
    let models = "[[model]]\nname = 'a'\nalpha_ms = 0.0107\nbeta_ms = 0.234\nslo_ms = 0.424\n\
                  [[model]]\nname = 'b'\nalpha_ms = 0.0344\nbeta_ms = 0.0118\nslo_ms = 0.285";
    let report = at(&scenario(head, models), "baton", 2_000.0, 1);
    assert!(report.worst_model_bad_rate < 0.03, "{}", report.worst_model_bad_rate);
}

#[test]
fn the_gpus_needed_do_not_depend_on_what_idle_ones_are_for() {
    let needed = |prefer: &str, rate_rps| {
        let head = format!("gpus = 8\nduration_s = 6\nwarmup_s = 1\nprefer = '{prefer}'");
        at(&scenario(&head, RESNET50), "baton", rate_rps, 1).gpus_needed.unwrap()
    };
    for (rate_rps, expected) in [(550.0, 2), (2_750.0, 5), (5_000.0, 8)] {
        assert_eq!(needed("latency", rate_rps), expected);
        assert_eq!(needed("fewest_gpus", rate_rps), expected);
    }
}

//! Clients that send a task when their last one has ended: none comes while they wait.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use baton_sim::{Report, Run, Scenario, run};

/// The committed scenario for four seconds, its first objective replaced.
fn batch_clients(policy: &str, slo_ms: &str) -> Report {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/batch-clients.toml");
    let text = std::fs::read_to_string(path).unwrap();
    let text = text.replace("duration_s = 20", "duration_s = 4");
    let text = text.replacen("slo_ms = 25.0", &format!("slo_ms = {slo_ms}"), 1);
    let scenario = Scenario::parse(&text).unwrap();
    run(&scenario, Run { policy: policy.parse().unwrap(), rate_rps: 1_200.0, seed: 1 }).unwrap()
}

/// Tasks in time of the models whose names begin so, and all that they sent.
fn in_time(report: &Report, name: &str) -> (u64, u64) {
    let models = report.models.iter().filter(|model| model.name.starts_with(name));
    models.fold((0, 0), |(good, all), model| {
        (good + model.completed - model.late, all + model.submitted)
    })
}

#[test]
fn gpus_do_not_wait_for_tasks_that_only_their_answers_bring() {
    for slo_ms in ["10.0", "25.0"] {
        let [baton, eager] = ["baton", "eager"].map(|policy| batch_clients(policy, slo_ms));
        let (good, all) = in_time(&baton, "latency");
        assert!(good as f64 > all as f64 * 0.995, "{slo_ms} ms: {good} of {all}");
        let [served, at_once] = [&baton, &eager].map(|report| in_time(report, "batch").0);
        assert!(served > at_once, "{slo_ms} ms: {served} beside {at_once}");
    }
}

#[test]
fn a_client_alone_is_served_as_soon_as_it_asks() {
    // A task takes 0.6 ms and 0.1 on its way; λ says that 120 more would come in the time that it has.
    let text = "gpus = 6\nduration_s = 4\nwarmup_s = 6\nnetwork = { ctrl_us = 100 }\n\
        [[model]]\nname = 'alone'\nalpha_ms = 0.1\nbeta_ms = 0.5\nslo_ms = 120.0\nclosed_loop = { clients = 1 }\n\
        [[model]]\nname = 'others'\nalpha_ms = 0.1\nbeta_ms = 0.24\nslo_ms = 1.0";
    let scenario = Scenario::parse(text).unwrap();
    let run_of = Run { policy: "baton".parse().unwrap(), rate_rps: 3_900.0, seed: 1 };
    let report = run(&scenario, run_of).unwrap();
    let (good, _) = in_time(&report, "alone");
    assert!(good > 4 * 1_350, "one each 0.7 ms: {good} in four seconds");
    let (good, all) = in_time(&report, "others");
    assert!(good as f64 > all as f64 * 0.998, "{good} of {all}");
}

//! GPUs that leave and come, executions that take too long, profiles that are off, and delays.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use baton_sim::{Report, Run, Scenario, analytic_bound_rps, run, run_traced};

/// Policies that live with GPUs that leave.
const LIVES: [&str; 9] = [
    "baton",
    "symphony",
    "eager",
    "symphony-text",
    "frontrun",
    "timeout:0.2",
    "clockwork:0",
    "clockwork:5",
    "shepherd",
];

/// Those whose two halves send each other messages.
const PRODUCTION: [&str; 3] = ["baton", "symphony", "eager"];

const RESNET50: &str = "
    [[model]]
    name = 'resnet50'
    alpha_ms = 1.053
    beta_ms = 5.072
    slo_ms = 25.0";

fn scenario(head: &str) -> Scenario {
    Scenario::parse(&format!("gpus = 8\nduration_s = 4\nwarmup_s = 1\n{head}{RESNET50}")).unwrap()
}

fn at(scenario: &Scenario, policy: &str, rate_rps: f64) -> Report {
    run(scenario, Run { policy: policy.parse().unwrap(), rate_rps, seed: 1 }).unwrap()
}

fn traced(scenario: &Scenario, policy: &str, rate_rps: f64) -> (Report, String) {
    let run = Run { policy: policy.parse().unwrap(), rate_rps, seed: 1 };
    let (report, trace) = run_traced(scenario, run).unwrap();
    (report, String::from_utf8(trace).unwrap())
}

/// Slot, start and end, milliseconds, of each execution that a trace tells of: whole ones, lost
/// ones or preempted ones.
fn executions(trace: &str, what: &str) -> Vec<(u32, f64, f64)> {
    let execution = |line: &str| {
        let mut words = line.split(' ');
        let gpu = words.clone().find_map(|word| word.strip_prefix("gpu="))?.parse().unwrap();
        let mut ms = || words.next_back()?.strip_suffix("ns")?.parse::<f64>().ok();
        let (end, start) = (ms()?, ms()?);
        line.starts_with(what).then_some((gpu, start / 1e6, end / 1e6))
    };
    trace.lines().filter_map(execution).collect()
}

const LOSS: &str = "
    [[gpu_event]]
    at_s = 2.0
    gpus = [0, 1, 2, 3]
    kind = 'loss'
    [[gpu_event]]
    at_s = 3.0
    gpus = [0, 1]
    kind = 'join'";

#[test]
fn a_lost_slot_executes_nothing_and_its_tasks_wait_again() {
    for lag in
        ["", "message_lag_us = 300\n", "network = { ctrl_us = 500, data_us_per_task = 20 }\n"]
    {
        let scenario = scenario(&format!("{lag}{LOSS}"));
        for policy in LIVES {
            if policy == "shepherd" && lag.starts_with("network") {
                continue;
            }
            let (report, trace) = traced(&scenario, policy, 1_800.0);
            assert!(report.bad_rate < 0.03, "{lag}{policy}: {report:?}");
            let model = &report.models[0];
            assert_eq!(model.submitted, model.completed + model.dropped, "{lag}{policy}");
            let lost = executions(&trace, "lose");
            assert!(!lost.is_empty(), "{lag}{policy}: nothing was lost, so nothing was tested");
            assert!(lost.iter().all(|&(gpu, _, end)| gpu < 4 && end == 2_000.0), "{lag}{policy}");
            for (gpu, start, end) in executions(&trace, "batch") {
                let back = if gpu < 2 { 3_000.0 } else { f64::INFINITY };
                let there = gpu >= 4 || end <= 2_000.0 || start >= back;
                assert!(there, "{lag}{policy}: slot {gpu} executed from {start} to {end} ms");
            }
            let used_again = |(gpu, start, _): &(u32, f64, f64)| *gpu < 2 && *start >= 3_000.0;
            assert!(executions(&trace, "batch").iter().any(used_again), "{lag}{policy}");
        }
    }
}

/// Slots leave and come all the time while grants and plans are under way: no slot executes
/// what was meant for an earlier life of it.
#[test]
fn plans_for_an_earlier_life_come_back() {
    const LAG_MS: f64 = 0.2;
    // Every 7 ms another slot leaves, to come back half a message later.
    let changes: Vec<(f64, u32)> =
        (0..500).map(|i: u32| (f64::from(i) * 7.0 + 200.0, i % 8)).collect();
    let events = |&(at_ms, gpu): &(f64, u32)| {
        let event = |at_ms: f64, kind: &str| {
            format!("[[gpu_event]]\nat_s = {}\ngpus = [{gpu}]\nkind = '{kind}'\n", at_ms / 1e3)
        };
        event(at_ms, "loss") + &event(at_ms + LAG_MS / 2.0, "join")
    };
    let churn: String = changes.iter().map(events).collect();
    let churn = scenario(&format!("message_lag_us = {}\n{churn}", LAG_MS * 1e3));
    for policy in PRODUCTION {
        let (report, trace) = traced(&churn, policy, 4_000.0);
        assert_eq!(
            report.models[0].submitted,
            report.models[0].completed + report.models[0].dropped
        );
        let batches = executions(&trace, "batch");
        let lost = executions(&trace, "lose").len();
        assert!(batches.len() > 1_000 && lost > 150, "{policy}: {} and {lost}", batches.len());
        for (gpu, start, end) in batches {
            for &(lost, _) in changes.iter().filter(|&&(_, of)| of == gpu) {
                // A join is answered by a grant, and that by a plan, one message later.
                let fresh = lost + LAG_MS / 2.0 + LAG_MS;
                let apart = end <= lost || start >= fresh - 1e-6;
                assert!(apart, "{policy}: slot {gpu} lost at {lost} executed {start} to {end} ms");
            }
        }
    }
}

/// Slots that are lost before the first task might as well not exist.
#[test]
fn a_lost_slot_is_as_good_as_none() {
    // With a lag, a grant for a slot that is gone costs time.
    let gone = "message_lag_us = 300\n\
                [[gpu_event]]\nat_s = 0\ngpus = [4, 5, 6, 7]\nkind = 'loss'\n";
    let lost = scenario(gone);
    let half = Scenario { gpus: 4, gpu_events: Vec::new(), ..lost.clone() };
    for policy in LIVES {
        let (lost, half) = (traced(&lost, policy, 2_400.0).1, traced(&half, policy, 2_400.0).1);
        assert!(lost == half, "{policy}");
    }
}

#[test]
fn a_slot_that_comes_back_is_idle() {
    let blink = "[[gpu_event]]\nat_s = 2.0\ngpus = [0]\nkind = 'loss'\n\
                 [[gpu_event]]\nat_s = 2.0001\ngpus = [0]\nkind = 'join'\n";
    for policy in ["eager", "clockwork:0", "clockwork:5", "shepherd"] {
        let (_, trace) = traced(&scenario(blink), policy, 6_000.0);
        let at_once = |(gpu, start, _): &(u32, f64, f64)| *gpu == 0 && *start == 2_000.1;
        // More is offered than can be served, so tasks wait for every slot.
        let all = [executions(&trace, "batch"), executions(&trace, "preempt")].concat();
        assert!(all.iter().any(at_once), "{policy}");
    }
}

/// 25 ms is no time for a second attempt at a batch that was lost half way.
#[test]
fn tasks_that_cannot_be_tried_again_end_as_lost_with_their_backend() {
    let (_, trace) = traced(&scenario(LOSS), "symphony", 3_000.0);
    let ends = |why: &str| trace.lines().filter(|line| line.ends_with(why)).count();
    assert!(ends(" backend_lost") > 5, "{}", ends(" backend_lost"));
    let long = "[[model]]\nname = 'patient'\nalpha_ms = 1.053\nbeta_ms = 5.072\nslo_ms = 500.0";
    let text = format!("gpus = 8\nduration_s = 4\n{LOSS}\n{long}");
    let (report, trace) = traced(&Scenario::parse(&text).unwrap(), "symphony", 1_500.0);
    assert!(!executions(&trace, "lose").is_empty());
    assert_eq!(report.bad_rate, 0.0, "there is time for all: {report:?}");
}

#[test]
fn without_any_gpu_tasks_wait_until_their_deadline_and_a_join_serves_again() {
    let none = "[[gpu_event]]\nat_s = 2\ngpus = [0, 1, 2, 3, 4, 5, 6, 7]\nkind = 'loss'\n\
                [[gpu_event]]\nat_s = 3\ngpus = [5]\nkind = 'join'\n";
    for policy in LIVES {
        let report = at(&scenario(none), policy, 400.0);
        // Of four measured seconds the second one is lost.
        assert!((0.22..0.30).contains(&report.bad_rate), "{policy}: {report:?}");
    }
}

#[test]
fn a_slot_that_joins_first_is_not_there_before() {
    let late = "[[gpu_event]]\nat_s = 3\ngpus = [4, 5, 6, 7]\nkind = 'join'\n";
    for policy in LIVES {
        let (report, trace) = traced(&scenario(late), policy, 3_500.0);
        let batches = executions(&trace, "batch");
        assert!(batches.iter().all(|&(gpu, start, _)| gpu < 4 || start >= 3_000.0), "{policy}");
        assert!(batches.iter().any(|&(gpu, ..)| gpu >= 4), "{policy}");
        assert!(report.bad_rate > 0.05, "{policy}: half of the GPUs are not enough: {report:?}");
        assert!(report.gpu_utilization <= 1.0, "of the slots that were there: {report:?}");
    }
    let (report, _) = traced(&scenario(late), "eager", 3_500.0);
    assert!(report.gpu_utilization > 0.9, "{report:?}");
}

#[test]
fn a_run_with_every_fault_is_repeatable_and_depends_on_its_seed() {
    let all = format!(
        "overrun_ms = 0.1\nstragglers = {{ fraction = 0.02, factor = 3.0 }}\n\
         profile_error = {{ factor = 1.05, spread = 0.1 }}\nmessage_lag_us = 20\n{LOSS}"
    );
    let all = scenario(&all);
    for policy in LIVES {
        let with = |seed| {
            run_traced(&all, Run { policy: policy.parse().unwrap(), rate_rps: 3_000.0, seed })
        };
        let trace = with(1).unwrap().1;
        assert!(trace == with(1).unwrap().1 && trace != with(2).unwrap().1, "{policy}");
    }
}

/// How long executions took over what their profile says.
fn factors(trace: &str) -> Vec<(u32, f64)> {
    let size = |line: &str| -> f64 {
        line.split("tasks=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
    };
    let sizes = trace.lines().filter(|line| line.starts_with("batch")).map(size);
    let factor = |((gpu, start, end), size): ((u32, f64, f64), f64)| {
        (gpu, (end - start) / (1.053 * size + 5.072))
    };
    executions(trace, "batch").into_iter().zip(sizes).map(factor).collect()
}

#[test]
fn stragglers_take_their_factor_longer_and_nothing_else_does() {
    let near = |factor: f64, expected: f64| (factor - expected).abs() < 1e-4;
    for policy in ["symphony", "frontrun", "clockwork", "nexus:1", "shepherd"] {
        let some = scenario("stragglers = { fraction = 0.1, factor = 1.5 }\n");
        let factors_of_some = factors(&traced(&some, policy, 2_000.0).1);
        let straggling = factors_of_some.iter().filter(|(_, f)| near(*f, 1.5)).count();
        let part = straggling as f64 / factors_of_some.len() as f64;
        assert!((0.05..0.15).contains(&part), "{policy}: {part}");
        assert!(factors_of_some.iter().all(|&(_, f)| near(f, 1.0) || near(f, 1.5)), "{policy}");

        let slow = scenario("stragglers = { gpus = [2, 3], factor = 2.0 }\n");
        let factors_of_slow = factors(&traced(&slow, policy, 2_000.0).1);
        assert!(factors_of_slow.iter().any(|&(gpu, _)| gpu == 2), "{policy}");
        let as_named =
            |&(gpu, f): &(u32, f64)| near(f, if gpu == 2 || gpu == 3 { 2.0 } else { 1.0 });
        assert!(factors_of_slow.iter().all(as_named), "{policy}");
    }
}

#[test]
fn production_learns_that_its_profiles_are_wrong() {
    let slower = scenario("profile_error = { factor = 1.2 }\n");
    let factors = factors(&traced(&slower, "symphony", 2_000.0).1);
    assert!(factors.iter().all(|&(_, factor)| (factor - 1.2).abs() < 1e-4));
    let rate_rps = 0.8 * analytic_bound_rps(&slower);
    let (learns, naive) = (at(&slower, "symphony", rate_rps), at(&slower, "frontrun", rate_rps));
    assert!(learns.bad_rate < 0.01, "{learns:?}");
    assert!(naive.bad_rate > 0.3, "every full batch is late: {naive:?}");
    let faster = scenario("profile_error = { factor = 0.8 }\n");
    assert!(analytic_bound_rps(&faster) > 1.2 * analytic_bound_rps(&slower));
    let rate_rps = 0.85 * analytic_bound_rps(&faster);
    let (learns, naive) = (at(&faster, "symphony", rate_rps), at(&faster, "frontrun", rate_rps));
    assert!(learns.bad_rate < 0.01 && naive.bad_rate > learns.bad_rate, "{learns:?} {naive:?}");
}

#[test]
fn every_model_is_off_by_a_factor_of_its_own() {
    let text = |own: &str| {
        format!(
            "gpus = 8\nduration_s = 1\nprofile_error = {{ factor = 0.9, spread = 0.2 }}\n\
             [[model]]\nname = 'm'\nalpha_ms = 1.053\nbeta_ms = 5.072\nslo_ms = 25\ncopies = 20\n{own}"
        )
    };
    let factors_of = |own: &str, seed| {
        let scenario = Scenario::parse(&text(own)).unwrap();
        let policy = "eager".parse().unwrap();
        let (_, trace) = run_traced(&scenario, Run { policy, rate_rps: 1_000.0, seed }).unwrap();
        let trace = String::from_utf8(trace).unwrap();
        let model = |line: &str| line.split(' ').nth(1).unwrap().to_owned();
        let models = trace.lines().filter(|line| line.starts_with("batch")).map(model);
        let mut factors: Vec<(String, f64)> =
            models.zip(factors(&trace).into_iter().map(|(_, f)| (f * 1e4).round() / 1e4)).collect();
        factors.sort_by(|a, b| a.partial_cmp(b).unwrap());
        factors.dedup_by(|a, b| a.0 == b.0 && (a.1 - b.1).abs() < 3e-4);
        factors
    };
    let factors = factors_of("", 1);
    assert_eq!(factors.len(), 20, "one factor for each: {factors:?}");
    assert!(factors.iter().all(|&(_, f)| (0.719..=1.081).contains(&f)), "{factors:?}");
    let mean = factors.iter().map(|&(_, f)| f).sum::<f64>() / 20.0;
    assert!((0.85..0.95).contains(&mean), "{mean}");
    assert_ne!(factors, factors_of("", 2));
    let own = factors_of("profile_error = 2.0", 1);
    let doubled = |(a, b): (&(String, f64), &(String, f64))| (b.1 / a.1 - 2.0 / 0.9).abs() < 2e-3;
    assert!(factors.iter().zip(&own).all(doubled), "{own:?}");
}

/// Written separately, so each is the other's oracle, with plan and inputs travelling while the slot
/// executes.
#[test]
fn the_production_scheduler_and_the_baseline_of_its_rule_agree_on_delays() {
    for (delays, rate_rps) in
        [("ctrl_us = 1000", 5_000.0), ("ctrl_us = 300, data_us_per_task = 50", 4_800.0)]
    {
        let far = scenario(&format!("network = {{ {delays} }}\n"));
        let (symphony, frontrun) = (at(&far, "symphony", rate_rps), at(&far, "frontrun", rate_rps));
        assert!(symphony.bad_rate > 0.0005, "no load to tell them apart by: {symphony:?}");
        assert!((symphony.goodput_rps / frontrun.goodput_rps - 1.0).abs() < 0.002, "{frontrun:?}");
        assert!((symphony.mean_batch / frontrun.mean_batch - 1.0).abs() < 0.005, "{frontrun:?}");
    }
}

#[test]
fn baselines_plan_with_delays() {
    // The second is longer than what Clockwork keeps outstanding.
    for (delays, rate_rps) in
        [("ctrl_us = 2000, data_us_per_task = 50", 3_000.0), ("ctrl_us = 8000", 1_500.0)]
    {
        let far = scenario(&format!("network = {{ {delays} }}\n"));
        for policy in ["symphony-text", "frontrun", "timeout", "clockwork:0", "clockwork:5"] {
            let report = at(&far, policy, rate_rps);
            assert!(report.bad_rate < 0.05, "{delays} {policy}: {report:?}");
            assert_eq!(report.models[0].late, 0, "{policy} knew the delays: {report:?}");
        }
        for policy in ["symphony-text", "frontrun", "timeout", "clockwork:0"] {
            let (near, far) = (at(&scenario(""), policy, 5_100.0), at(&far, policy, 5_100.0));
            assert!(far.goodput_rps < near.goodput_rps, "{policy}: delays cost something");
        }
    }
}

/// Tasks come every 30 ms and take 40; the first is there after 20.
#[test]
fn plan_and_inputs_travel_while_the_slot_executes() {
    let text = "gpus = 1\nduration_s = 0.3\nnetwork = { ctrl_us = 20000 }\n\
                arrival = { process = 'constant' }\n[[model]]\nname = 'm'\nalpha_ms = 1\n\
                beta_ms = 39\nslo_ms = 1000";
    let slow = Scenario::parse(text).unwrap();
    for policy in ["eager", "timeout:0"] {
        let batches = executions(&traced(&slow, policy, 1.0 / 0.03).1, "batch");
        assert!(batches.len() > 5, "{policy}: {batches:?}");
        let gapless = batches.windows(2).filter(|pair| pair[1].1 - pair[0].2 < 1e-6).count();
        assert!(gapless > batches.len() / 2, "{policy}: {batches:?}");
    }
}

#[test]
fn what_a_policy_has_no_rule_for_is_refused() {
    let error = |head: &str, policy: &str| {
        let run = Run { policy: policy.parse().unwrap(), rate_rps: 100.0, seed: 1 };
        baton_sim::run(&scenario(head), run).unwrap_err().to_string()
    };
    let network = "network = { ctrl_us = 100 }\n";
    assert!(error(network, "nexus").contains("no rule for network"), "{}", error(network, "nexus"));
    assert!(error(network, "shepherd").contains("no rule for network"));
    assert!(error(LOSS, "nexus").contains("no rule for gpu_event"), "{}", error(LOSS, "nexus"));
}

#[test]
fn faults_that_cannot_be_are_refused_by_name() {
    let error = |head: &str| {
        let text = format!("gpus = 2\nduration_s = 4\n{head}{RESNET50}");
        Scenario::parse(&text).unwrap_err().to_string()
    };
    assert!(error("stragglers = { factor = 0.5 }\n").starts_with("stragglers.factor = 0.5"));
    assert!(error("stragglers = { factor = 2, gpus = [2] }\n").starts_with("stragglers.gpus = 2"));
    assert!(
        error("stragglers = { factor = 2, fraction = 2 }\n").starts_with("stragglers.fraction")
    );
    assert!(error("profile_error = { factor = 0 }\n").starts_with("profile_error.factor = 0"));
    assert!(error("profile_error = { spread = 1 }\n").starts_with("profile_error.spread = 1"));
    let event = |at_s: f64, gpu: u32, kind: &str| {
        format!("[[gpu_event]]\nat_s = {at_s}\ngpus = [{gpu}]\nkind = '{kind}'\n")
    };
    assert!(error(&event(4.5, 0, "loss")).starts_with("gpu_event.at_s = 4.5"));
    assert!(error(&event(1.0, 2, "loss")).starts_with("gpu_event.gpus = 2"));
    let twice = event(1.0, 1, "loss") + &event(2.0, 1, "loss");
    assert_eq!(error(&twice), "gpu_event at 2 s: slot 1 is in that state already");
    assert!(error(&event(1.0, 1, "drain")).contains("drain"));
}

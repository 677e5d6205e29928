//! Loads that change and files of arrivals, as scenario files say them.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use std::path::PathBuf;

use baton_sim::{Report, Run, Scenario, goodput, run, run_traced};

const POLICIES: [&str; 8] =
    ["baton", "symphony", "eager", "frontrun", "timeout", "clockwork", "nexus:2", "shepherd"];

const MODELS: &str = "
    [[model]]
    name = 'resnet50'
    alpha_ms = 1.053
    beta_ms = 5.072
    slo_ms = 25.0
    [[model]]
    name = 'bert'
    alpha_ms = 7.008
    beta_ms = 0.159
    slo_ms = 50.0";

fn at(scenario: &Scenario, policy: &str, rate_rps: f64, seed: u64) -> Report {
    run(scenario, Run { policy: policy.parse().unwrap(), rate_rps, seed }).unwrap()
}

/// A file in a folder of the test's own.
fn file(test: &str, name: &str, text: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(name), text).unwrap();
    folder.join(name)
}

/// A scenario beside its file of arrivals.
fn replaying(test: &str, csv: &str, head: &str) -> Result<Scenario, String> {
    file(test, "a.csv", csv);
    let text = format!(
        "gpus = 4\nduration_s = 2\narrival = {{ process = 'replay', file = 'a.csv' }}\n{head}{MODELS}"
    );
    Scenario::load(&file(test, "s.toml", &text)).map_err(|error| error.to_string())
}

/// A burst of `bert` and `resnet50` every 10 ms.
fn bursts() -> String {
    let burst = |i: u32| {
        let at_s = 1_600_000_000.0 + f64::from(i) * 0.01;
        format!("{at_s},resnet50\n{},bert,90\n{},resnet50,\n", at_s + 0.001, at_s + 0.001)
    };
    (0..100).map(burst).collect()
}

#[test]
fn changing_loads_are_accounted_for_and_repeatable() {
    for load in [
        "{ shape = 'steps', points = [[0, 1], [1, 4]] }",
        "{ shape = 'ramp', points = [[0, 0], [2, 3]] }",
        "{ shape = 'sine', period_s = 0.5, amplitude = 1.0 }",
    ] {
        let text = format!("gpus = 4\nduration_s = 2\nload = {load}{MODELS}");
        let scenario = Scenario::parse(&text).unwrap();
        for policy in POLICIES {
            let report = at(&scenario, policy, 600.0, 1);
            assert!((report.offered_rps / 600.0 - 1.0).abs() < 0.1, "{load} {policy}");
            assert_eq!(report, at(&scenario, policy, 600.0, 1), "{load} {policy}");
            assert_ne!(report, at(&scenario, policy, 600.0, 2), "{load} {policy}");
        }
    }
}

/// At the mean both halves are served; at its double the second is hopeless.
#[test]
fn a_step_costs_what_its_peak_costs() {
    let head = "gpus = 8\nduration_s = 8\nwarmup_s = 1\nload = ";
    let level = Scenario::parse(&format!("{head}{{ shape = 'steps', points = [[0, 1]] }}{MODELS}"));
    let steps = "{ shape = 'steps', points = [[0, 1], [5, 3]] }";
    let steps = Scenario::parse(&format!("{head}{steps}{MODELS}"));
    let (level, steps) = (level.unwrap(), steps.unwrap());
    assert!(at(&level, "symphony", 1_400.0, 1).bad_rate < 0.01);
    assert!(at(&steps, "symphony", 700.0, 1).bad_rate < 0.01, "the peak is at 1,050");
    assert!(at(&steps, "symphony", 1_400.0, 1).bad_rate > 0.05, "the peak is at 2,100");
}

#[test]
fn a_replay_offers_what_the_file_says_to_every_policy() {
    let scenario = replaying("offers", &bursts(), "").unwrap();
    for policy in POLICIES {
        // 300 tasks/s in the file: two seconds of it at its own speed, four at twice that.
        for (rate_rps, submitted) in [(300.0, [400, 200]), (600.0, [800, 400])] {
            let report = at(&scenario, policy, rate_rps, 1);
            let counts = [0, 1].map(|m: usize| report.models[m].submitted);
            // The file's 1.6e9 s leave a fraction of a microsecond of the last task's place.
            let near = counts.iter().zip(submitted).all(|(&a, b): (&u64, u64)| a.abs_diff(b) <= 3);
            assert!(near, "{policy} at {rate_rps}: {counts:?}");
            let other = at(&scenario, policy, rate_rps, 2);
            let drawn = [0, 1].map(|m: usize| other.models[m].submitted);
            assert_eq!(drawn, counts, "{policy}: nothing about the load is drawn");
        }
    }
    assert_eq!(scenario.models.iter().map(|m| m.share.round()).collect::<Vec<_>>(), [1.0, 0.0]);
    assert!((scenario.models[0].share - 2.0 / 3.0).abs() < 1e-9);
    let replay = scenario.replay.as_ref().unwrap();
    assert_eq!(replay.len(), 300);
    assert!((replay.rate_rps() / 300.0 - 1.0).abs() < 0.01, "{}", replay.rate_rps());
}

#[test]
fn a_task_has_the_objective_its_line_gives_it() {
    // Every other task has too little time to run at all.
    let lines = |i: u32| {
        format!("{},bert,{}\n", f64::from(i) * 0.05, if i.is_multiple_of(2) { 5 } else { 8 })
    };
    let csv: String = (0..40).map(lines).collect();
    let scenario = replaying("objective", &csv, "").unwrap();
    for policy in POLICIES {
        let report = at(&scenario, policy, 20.0, 1);
        let bert = &report.models[1];
        assert_eq!((bert.submitted, bert.completed, bert.late), (40, 20, 0), "{policy}");
        assert_eq!(report.models[0].submitted, 0, "{policy}");
    }
}

/// Deadlines out of the order of arrival: what is urgent overtakes.
#[test]
fn urgent_tasks_overtake_patient_ones() {
    // Four GPUs need four rounds of 25 ms for 276 tasks; the last five can wait for two.
    let patient = (0..276).map(|i| format!("{},resnet50,1000\n", f64::from(i) * 1e-5));
    let urgent = (0..5).map(|_| "0.004,resnet50,60\n".to_owned());
    let csv: String = patient.chain(urgent).chain(["1,resnet50\n".to_owned()]).collect();
    let scenario = replaying("overtake", &csv, "").unwrap();
    let rate_rps = scenario.replay.as_ref().unwrap().rate_rps();
    for policy in ["symphony", "eager", "frontrun", "timeout", "clockwork:0"] {
        let report = at(&scenario, policy, rate_rps, 1);
        assert_eq!(report.bad_rate, 0.0, "{policy}: {report:?}");
    }
}

#[test]
fn a_replay_has_an_edge_too() {
    let scenario = replaying("edge", &bursts(), "").unwrap();
    let found = goodput(&scenario, "eager".parse().unwrap(), 1).unwrap();
    let bad_rate = |rate_rps| at(&scenario, "eager", rate_rps, 1).worst_model_bad_rate;
    assert!(found.goodput_rps > 100.0, "{found:?}");
    assert!(bad_rate(found.goodput_rps) <= 0.01 && bad_rate(found.goodput_rps * 1.3) > 0.01);
}

#[test]
fn headers_comments_and_empty_fields_are_read_past() {
    let csv =
        "time,model,slo\r\n# a comment\r\n\r\n1.5, bert , 80\r\n2.5,\"resnet50\",\r\n3.5,bert";
    let scenario = replaying("reads", csv, "").unwrap();
    assert_eq!(scenario.replay.unwrap().len(), 3);
    let csv = "0\n1,\n2,,40\n";
    let zipf = "popularity = { kind = 'zipf', s = 1.0 }\n";
    let scenario = replaying("spread", csv, zipf).unwrap();
    assert!((scenario.models[0].share - 2.0 / 3.0).abs() < 1e-9, "by popularity");
}

#[test]
fn what_cannot_be_replayed_is_refused_with_file_and_line() {
    let error = |csv: &str, head: &str| replaying("refused", csv, head).unwrap_err();
    for (csv, at, why) in [
        ("t,model\n1,bert\nx,bert\n", ":3:", "\"x\" is no timestamp"),
        ("1\nnan\n", ":2:", "\"nan\" is no timestamp"),
        ("1\n1700000000000\n", ":2:", "give seconds"),
        ("1\n3\n2\n", ":3:", "2 s is before the line above (3 s)"),
        ("1,bert\n# comment\n2,vgg\n", ":3:", "no model named \"vgg\"; there are: "),
        ("1,bert\n2\n", ":2:", "every line names a model or none does"),
        ("1,bert,0\n2,bert\n", ":1:", "slo \"0\""),
        ("1,bert,fast\n2,bert\n", ":1:", "slo \"fast\""),
        ("1,bert,40,x\n2,bert\n", ":1:", "4 fields"),
        ("1\n1\n", ":", "no two tasks at different times"),
        ("", ":", "no two tasks at different times"),
    ] {
        let error = error(csv, "");
        assert!(error.contains(&format!("a.csv{at}")) && error.contains(why), "{csv:?}: {error}");
    }
    let named = "1,bert\n2,bert\n";
    let error_of = |head: &str| error(named, head);
    assert!(error_of("popularity = { kind = 'equal' }\n").contains(" popularity: has no effect"));
    let load = "load = { shape = 'sine', period_s = 1, amplitude = 1 }\n";
    assert!(error_of(load).contains(" load: has no effect"));
    let missing = "gpus = 1\nduration_s = 1\narrival = { process = 'replay', file = 'no.csv' }";
    let missing = Scenario::parse(&format!("{missing}{MODELS}")).unwrap_err().to_string();
    assert!(missing.starts_with("no.csv: "), "{missing}");
}

#[test]
fn two_models_of_one_name_cannot_be_distinguished() {
    file("twice", "a.csv", "1,bert\n2,bert\n");
    let head = "gpus = 1\nduration_s = 1\narrival = { process = 'replay', file = 'a.csv' }";
    let text = format!("{head}{MODELS}{MODELS}");
    let error = Scenario::load(&file("twice", "s.toml", &text)).unwrap_err().to_string();
    assert!(error.contains("is the name of another model too"), "{error}");
}

#[test]
fn the_trace_of_a_replay_is_the_same_every_time() {
    let scenario = replaying("trace", &bursts(), "").unwrap();
    for policy in POLICIES {
        let traced = || {
            let policy = policy.parse().unwrap();
            run_traced(&scenario, Run { policy, rate_rps: 900.0, seed: 1 }).unwrap().1
        };
        assert!(traced() == traced(), "{policy}");
    }
}

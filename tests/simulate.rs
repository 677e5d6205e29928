//! `baton sim` as scripts use it: one JSON object on stdout, the rest on stderr, and the status.

mod support;

use std::process::Output;

use serde_json::Value;
use support::{Folder, run};

const SCENARIO: &str = r#"
gpus = 8
duration_s = 0.5
warmup_s = 0.2

[[model]]
name = "resnet50"
alpha_ms = 1.053
beta_ms = 5.072
slo_ms = 25.0
"#;

fn json(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("stdout is one JSON object")
}

#[test]
fn a_run_prints_one_object_and_the_same_one_again() {
    let folder = Folder::new("sim-run");
    let file = folder.write("scenario.toml", SCENARIO);
    let trace = folder.path().join("trace").display().to_string();
    let args = ["sim", "run", "--scenario", &file, "--policy", "symphony", "--rate", "4000"];
    let output = run(&[&args[..], &["--json"]].concat());
    let report = json(&output);
    assert_eq!(report["policy"], "symphony");
    assert_eq!(report["models"][0]["name"], "resnet50");
    assert!(report["models"][0]["submitted"].as_u64() > Some(1_500), "{report}");
    assert_eq!(run(&[&args[..], &["--json"]].concat()).stdout, output.stdout);

    let traced = run(&[&args[..], &["--trace", &trace]].concat());
    assert_eq!(traced.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&traced.stdout).contains("resnet50"));
    assert!(std::fs::read_to_string(&trace).expect("the trace is there").contains("batch model=0"));
}

#[test]
fn a_scenario_of_closed_loops_needs_no_rate() {
    let folder = Folder::new("sim-closed");
    let closed = format!("{SCENARIO}closed_loop = {{ clients = 16 }}\n");
    let [closed, open] = [("closed.toml", &closed[..]), ("open.toml", SCENARIO)]
        .map(|(name, text)| folder.write(name, text));
    let run = |file: &str| run(&["sim", "run", "--scenario", file, "--policy", "baton", "--json"]);
    assert!(json(&run(&closed))["models"][0]["submitted"].as_u64() > Some(100));
    let refused = run(&open);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("give --rate"));
}

#[test]
fn a_search_prints_one_object() {
    let folder = Folder::new("sim-goodput");
    let file = folder.write("scenario.toml", SCENARIO);
    let args = ["--scenario", &file, "--policy", "clockwork:0", "--seeds", "2", "--json"];
    let found = json(&run(&[&["sim", "goodput"][..], &args].concat()));
    assert_eq!(found["policy"], "clockwork:0");
    assert_eq!(found["seeds"].as_array().map(Vec::len), Some(2));
    assert!(found["ratio"].as_f64() > Some(0.6), "{found}");
}

#[test]
fn a_drawn_scenario_can_be_measured_again_by_itself() {
    let folder = Folder::new("sim-fuzz");
    let files = folder.path().join("drawn").display().to_string();
    let small =
        ["--seconds", "1", "--tasks", "1000", "--seeds", "2", "--policies", "frontrun,clockwork:0"];
    let fuzz = |args: &[&str]| {
        run(&[&["sim", "fuzz", "--seed", "5", "--json"], &small[..], args].concat())
    };
    let two = json(&fuzz(&["--count", "2", "--from", "4", "--write", &files]));
    assert_eq!((&two["seed"], two["rows"].as_array().map(Vec::len)), (&5.into(), Some(2)));
    assert_eq!(two["policies"], serde_json::json!(["frontrun", "clockwork:0"]));
    for key in ["ratio", "worst", "latency", "low_load", "worst_low_load"] {
        assert!(!two["summary"][key].is_null(), "{key}: {two}");
    }
    let behind = two["summary"]["slowest"][0]["replay"].as_str().expect("a command");
    let words: Vec<&str> = behind.split(' ').skip(1).chain(["--json"]).collect();
    let row = &json(&run(&words))["rows"][0];
    assert!(two["rows"].as_array().is_some_and(|rows| rows.contains(row)), "{behind}: {row}");
    let file = folder.path().join("drawn/fuzz-5-4.toml").display().to_string();
    let found = json(&run(&[
        "sim",
        "goodput",
        "--scenario",
        &file,
        "--policy",
        "eager",
        "--seeds",
        "1",
        "--json",
    ]));
    assert!(found["goodput_rps"].is_number(), "{found}");
    let drawn = json(&fuzz(&["--count", "3", "--dry-run"]));
    assert_eq!(drawn["scenarios"].as_array().map(Vec::len), Some(3));
}

#[test]
fn a_scenario_with_a_rate_can_be_measured_again_by_itself() {
    let folder = Folder::new("sim-fuzz-draw");
    let files = folder.path().display().to_string();
    for (family, policies) in [("caches", "baton,clockwork:0"), ("supernets", "baton,maxacc")] {
        let fuzz = |args: &[&str]| {
            let small = ["--seconds", "1", "--tasks", "1000", "--seeds", "1", "--json"];
            let draw = ["sim", "fuzz", "--draw", family, "--seed", "5", "--policies", policies];
            json(&run(&[&draw[..], &small, args].concat()))
        };
        let two = fuzz(&["--count", "2", "--from", "4", "--write", &files]);
        assert_eq!(two["summary"]["scenarios"], 2, "{two}");
        assert_eq!(two["rows"][0], fuzz(&["--only", "4"])["rows"][0]);
        let rate = two["rows"][0]["rate_rps"].to_string();
        let file = folder.path().join(format!("fuzz-{family}-5-4.toml")).display().to_string();
        let args = ["--scenario", &file, "--policy", "baton", "--rate", &rate, "--json"];
        let found = json(&run(&[&["sim", "run"][..], &args].concat()));
        let served = &two["rows"][0]["policies"][0];
        assert_eq!(
            (&served["policy"], &served["satisfied"]),
            (&"baton".into(), &found["satisfied"])
        );
        let drawn = fuzz(&["--count", "1", "--dry-run"]);
        assert!(drawn["scenarios"][0]["rate_rps"].is_number(), "{drawn}");
    }
    let unknown = run(&["sim", "fuzz", "--draw", "models"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("give caches or supernets"));
}

#[test]
fn what_cannot_be_simulated_fails_and_says_why() {
    let folder = Folder::new("sim-refuse");
    let good = folder.write("good.toml", SCENARIO);
    let bad = folder.write("bad.toml", &SCENARIO.replace("gpus = 8", "gpus = 0"));
    let run_at = |file: &str, policy: &str, rate: &str| {
        let output =
            run(&["sim", "run", "--scenario", file, "--policy", policy, "--rate", rate, "--json"]);
        assert!(output.stdout.is_empty());
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (file, policy, rate, status, why) in [
        (
            &bad[..],
            "eager",
            "100",
            1,
            "bad.toml:2: gpus: is 0; fix: give a number from 1 to 100000",
        ),
        ("nowhere.toml", "eager", "100", 1, "nowhere.toml: cannot be read: "),
        (&good, "eager", "0", 1, "rate 0"),
        (&good, "fifo", "100", 2, "give baton, symphony"),
    ] {
        let (code, said) = run_at(file, policy, rate);
        assert_eq!(code, Some(status), "{said}");
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn a_cluster_file_is_simulated_and_a_span_belongs_to_it() {
    let folder = Folder::new("sim-cluster-file");
    let models = SCENARIO.split_once("[[model]]").expect("a model").1;
    let file =
        folder.write("cluster.toml", &format!("[[model]]{models}[[backend]]\nname = \"a\"\n"));
    let of = |args: &[&str]| run(&[&["sim"], args].concat());
    let (at, span) = (["--policy", "baton", "--rate", "100", "--json"], ["--seconds", "2"]);
    let report = json(&of(&[&["run", "--cluster", &file], &at[..], &span].concat()));
    assert!(report["models"][0]["submitted"].as_u64() > Some(100), "{report}");
    let sweep = ["sweep", "--cluster", &file, "--policy", "eager", "--rates", "50,100"];
    let points = json(&of(&[&sweep[..], &["--json"], &span].concat()));
    assert_eq!(points["points"].as_array().map(Vec::len), Some(2));
    let varied = of(&[&sweep[..], &["--vary", "gpus=1,2"]].concat());
    assert!(String::from_utf8_lossy(&varied.stderr).contains("only keys of a scenario file vary"));
    let scenario = folder.write("scenario.toml", SCENARIO);
    let both = of(&[&["run", "--scenario", &scenario], &at[..], &span].concat());
    assert_eq!(both.status.code(), Some(2), "a scenario has its own span");
}

#[test]
fn the_zoos_are_printed() {
    let text = String::from_utf8(run(&["sim", "zoo"]).stdout).expect("UTF-8");
    assert_eq!(text.lines().filter(|line| line.starts_with("zoo = ")).count(), 3);
    let row = text.lines().find(|line| line.starts_with("ResNet50 ")).expect("a row");
    assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["ResNet50", "2.050", "5.378", "27"]);
    let zoos = json(&run(&["sim", "zoo", "--json"]));
    assert_eq!(zoos["zoos"][1]["name"], "a100");
    assert_eq!(zoos["zoos"][1]["models"].as_array().map(Vec::len), Some(37));
}

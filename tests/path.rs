//! `baton bench path` as a user runs it, but for a moment: what it says must add up. How fast the path is, and how
//! dear, is for machines that have nothing else to do.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use std::collections::HashMap;

use serde_json::Value;
use support::{Folder, run};

const PROCESSES: [&str; 3] = ["client", "scheduler", "backend"];

fn bench(args: &[&str]) -> Value {
    let output = run(&[&["bench", "path", "--json"], args].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Of one pace: each task has one outcome, each process a cost, and the sums are the sums.
fn adds_up(report: &Value) {
    let count = |key: &str| report[key].as_u64().unwrap();
    assert_eq!(count("submitted"), count("completed") + count("dropped") + count("failed"));
    assert_eq!((&report["conserved"], count("wrong_answers")), (&true.into(), 0), "{report}");
    assert!(report["lost"].as_array().unwrap().is_empty(), "{report}");
    assert!(count("completed") >= count("late"), "{report}");
    let figure = |of: &Value| of.as_f64().unwrap();
    for key in ["tasks_per_s", "floor_per_s", "floor_cpu_us", "ratio", "p50_ms", "p99_ms"] {
        assert!(figure(&report[key]) > 0.0, "{key}: {report}");
    }
    let ratio = figure(&report["tasks_per_s"]) / figure(&report["floor_per_s"]);
    assert!((ratio / figure(&report["ratio"]) - 1.0).abs() < 1e-6, "{report}");
    assert!(report.get("steal_fraction").is_some(), "{report}");
    for figures in ["cpu_us_per_task", "switches_per_task"] {
        let mut sum = 0.0;
        for process in PROCESSES {
            let all = figure(&report[figures][process]);
            let of_it = |thread: &&Value| thread["process"] == process;
            let threads = report["threads"].as_array().unwrap().iter().filter(of_it);
            let parts: f64 = threads.map(|thread| figure(&thread[figures])).sum();
            assert!(all > 0.0 && (parts - all).abs() < 1e-6 * all, "{process} {figures}: {report}");
            sum += all;
        }
        assert!((figure(&report[figures]["sum"]) / sum - 1.0).abs() < 1e-6, "{report}");
    }
}

#[test]
fn a_short_closed_loop_is_conserved_and_its_costs_add_up() {
    let short = ["--seconds", "0.5", "--outstanding", "64", "--batch", "16", "--slots", "2"];
    let report = bench(&short);
    adds_up(&report);
    assert_eq!((&report["mode"], &report["rate"]), (&"closed".into(), &Value::Null));
    assert_eq!((&report["outstanding"], &report["bytes"]), (&64.into(), &64.into()));
    assert_eq!((&report["batch"], &report["slots"]), (&16.into(), &2.into()));
    assert!(report["mean_batch"].as_f64().unwrap() <= 16.0, "{report}");
    let threads: Vec<&str> = report["threads"]
        .as_array()
        .unwrap()
        .iter()
        .map(|thread| thread["thread"].as_str().unwrap())
        .collect();
    for name in ["model-rank", "control", "baton-gpu", "baton-backend"] {
        assert!(threads.contains(&name), "{name}: {threads:?}");
    }
}

#[test]
fn several_rates_make_an_array_and_a_figure() {
    let folder = Folder::new("path-plot");
    let plot = folder.path().join("path.svg").display().to_string();
    let several = ["--seconds", "0.5", "--rate", "50,200", "--bytes", "300", "--plot", &plot];
    let reports = bench(&several);
    let rates: Vec<f64> =
        reports.as_array().unwrap().iter().map(|report| report["rate"].as_f64().unwrap()).collect();
    assert_eq!(rates, [50.0, 200.0]);
    for report in reports.as_array().unwrap() {
        adds_up(report);
        assert_eq!((&report["mode"], &report["bytes"]), (&"poisson".into(), &300.into()));
    }
    assert!(std::fs::read_to_string(&plot).unwrap().starts_with("<svg"));
}

#[test]
fn threads_that_spin_use_whole_cores_and_those_that_park_do_not() {
    let sparse = ["--seconds", "2", "--rate", "10", "--slots", "1", "--idle"];
    let cpu_us = |idle: &str| {
        let report = bench(&[&sparse[..], &[idle]].concat());
        adds_up(&report);
        assert_eq!(report["idle"], idle);
        let threads = report["threads"].as_array().unwrap().clone();
        let cpu = |thread: &Value| {
            let name = |key: &str| thread[key].as_str().unwrap().to_owned();
            (
                [name("process"), name("thread")].join(" "),
                thread["cpu_us_per_task"].as_f64().unwrap(),
            )
        };
        threads.iter().map(cpu).collect::<HashMap<_, _>>()
    };
    let spinning = cpu_us("spin");
    let parked: f64 = cpu_us("park").values().sum();
    for name in [
        "client baton",
        "scheduler rank",
        "scheduler model",
        "scheduler control",
        "backend baton-backend",
        "backend baton-gpu",
    ] {
        let used = spinning[name];
        assert!(used > 3.0 * parked, "{name}: {used} µs of one, {parked} of all parked");
    }
}

#[test]
fn a_thread_that_neither_spins_nor_parks_is_refused() {
    for command in [&["bench", "path"][..], &["load", "--config", "any.toml"]] {
        let refused = run(&[command, &["--idle", "yield"]].concat());
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.contains("give spin or park"), "{said}");
        assert_eq!((refused.status.code(), refused.stdout.len()), (Some(2), 0));
    }
}

#[test]
fn a_mode_and_a_rate_that_do_not_fit_are_refused() {
    let poisson = run(&["bench", "path", "--mode", "poisson"]);
    assert_eq!(poisson.status.code(), Some(2));
    let closed = run(&["bench", "path", "--mode", "closed", "--rate", "5"]);
    let said = String::from_utf8_lossy(&closed.stderr);
    assert!(said.contains("a closed loop has no rate"), "{said}");
    assert_eq!((closed.status.code(), closed.stdout.len()), (Some(1), 0));
}

//! `baton demo` as a user runs it.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use support::{Descendant, Process, run};

/// The demo's JSON, with the sums checked that hold in every run.
fn checked(stdout: &[String]) -> Value {
    let [line] = stdout else { panic!("exactly one JSON object: {stdout:?}") };
    let report: Value = serde_json::from_str(line).unwrap();
    let number = |key: &str| report[key].as_u64().unwrap();
    assert_eq!(number("submitted"), number("completed") + number("dropped") + number("failed"));
    assert_eq!(number("wrong_answers"), 0, "{report}");
    assert_eq!(report["conserved"], true);
    report
}

#[test]
fn three_seconds_of_demo_are_conserved_and_right() {
    let output = run(&["demo", "--seconds", "3", "--json"]);
    let stdout: Vec<String> =
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    let report = checked(&stdout);
    assert!(output.status.success(), "{report}");
    // How many, and how many in time, is the machine's: `swarm/tests/whole_path.rs` serves as much in full.
    assert!(report["completed"].as_u64().unwrap() > 0, "{report}");
    // With a task or two over TCP, if they came before the memory was mapped.
    let transport = report["transport"].as_str().unwrap();
    assert!(transport.starts_with("shared memory"), "this host has no RDMA: {report}");
    assert!(report["p50_ms"].as_f64().unwrap() <= report["p99_ms"].as_f64().unwrap());
    if std::env::var_os("ORT_DYLIB_PATH").is_some() {
        assert_eq!(report["engines"], serde_json::json!(["emulated", "onnx"]));
        // Of the digits that were answered; `backend/tests/onnx.rs` reads them all.
        assert!(report["accuracy"].as_f64().is_none_or(|right| right > 0.5), "{report}");
    } else {
        assert_eq!(report["engines"], serde_json::json!(["emulated"]));
        assert_eq!(report["accuracy"], Value::Null);
    }
}

#[test]
fn a_supernet_under_a_burst_loses_accuracy_a_backend_and_no_task() {
    let output = run(&["demo", "--supernet", "--seconds", "6", "--json"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let report = checked(&text.lines().map(str::to_owned).collect::<Vec<_>>());
    assert!(output.status.success(), "{report}");
    assert_eq!(report["lost"], serde_json::json!(["backend-super-a"]));
    let model = &report["models"][0];
    let variants = model["variants"].as_array().unwrap();
    let tasks = |variant: &Value| variant["tasks"].as_u64().unwrap();
    assert_eq!(variants.iter().map(tasks).sum::<u64>(), model["completed"].as_u64().unwrap());
    let used = variants.iter().filter(|variant| tasks(variant) > 0).count();
    // How much a burst of the digits costs depends on how long their variants took when they were measured.
    let costs = report["engines"] == serde_json::json!(["emulated"]);
    assert!(used > 1 || !costs, "the burst costs accuracy: {report}");
    let mean = model["mean_accuracy"].as_f64().unwrap();
    let accuracies = variants.iter().map(|variant| variant["accuracy"].as_f64().unwrap());
    let (least, most) = accuracies.fold((100.0_f64, 0.0_f64), |(a, b), x| (a.min(x), b.max(x)));
    assert!(least < mean && (mean < most || !costs), "{report}");
    let shown = String::from_utf8(output.stderr).unwrap();
    assert!(shown.contains("killing backend-super-a") && shown.contains("accuracy "), "{shown}");
}

#[test]
fn two_hundred_models_share_the_memory_of_twenty_and_no_task_is_lost_sight_of() {
    let output = run(&["demo", "--cold", "--seconds", "5", "--json"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let report = checked(&text.lines().map(str::to_owned).collect::<Vec<_>>());
    assert!(output.status.success(), "{report}");
    assert_eq!(report["models"].as_array().unwrap().len(), 200);
    assert!(report["completed"].as_u64().unwrap() > 0, "{report}");
    let cache = |key: &str| report["cache"][key].as_u64().unwrap();
    assert_eq!((cache("models"), cache("room")), (200, 20), "{report}");
    assert!((1..=20).contains(&cache("copies")), "no more than there is room for: {report}");
    assert!(cache("loads") > 20, "models leave for others: {report}");
    assert!(cache("cold_in_time") <= cache("cold") && cache("cold") > 0, "{report}");
    let busy = report["cache"]["loader_busy"].as_f64().unwrap();
    assert!(busy > 0.0 && busy <= 1.0, "{report}");
    let shown = String::from_utf8(output.stderr).unwrap();
    assert!(shown.contains("  cold ") && shown.contains(" copies "), "{shown}");
}

#[test]
fn a_demo_told_to_stop_still_reports() {
    let demo = Process::start(&["demo", "--seconds", "600", "--json"]);
    await_load(&demo);
    demo.signal(Signal::TERM);
    let (status, stdout) = demo.finish();
    let report = checked(&stdout);
    assert!(status.success(), "{report}");
    assert!(report["seconds"].as_f64().unwrap() < 600.0);
}

#[test]
fn the_line_that_a_demo_prints_for_its_gateway_works() {
    let demo = Process::start(&["demo", "--gateway", "--json"]);
    let line = demo.behind("  curl ");
    await_load(&demo);
    let sh = Command::new("sh").args(["-c", &format!("curl {line}")]).output().unwrap();
    let answer = String::from_utf8(sh.stdout).unwrap();
    demo.signal(Signal::TERM);
    let (status, stdout) = demo.finish();
    assert!(status.success(), "{}", checked(&stdout));
    if sh.status.code() == Some(127) {
        eprintln!("SKIPPED: there is no curl to try the line with (Debian: curl)");
        return;
    }
    let answer: Value =
        serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{line}: {answer}"));
    // On a machine with too much to do the outcome may be another one, and it is said.
    let is_answered = answer["outputs"][0]["data"].is_array() || answer["error"].is_string();
    assert!(is_answered, "{answer}");
    assert!(!answer["error"].as_str().is_some_and(|error| error.contains("input")), "{answer}");
}

#[test]
fn no_process_outlives_a_killed_demo() {
    let demo = Process::start(&["demo", "--seconds", "600", "--json"]);
    await_load(&demo);
    let children = demo.children();
    assert!(children.len() >= 5, "scheduler, backends, frontends: {}", children.len());
    demo.signal(Signal::KILL);
    demo.finish();
    children.iter().for_each(Descendant::await_end);
}

/// Kills the demo's child whose command line contains `text`, in mid-run, and lets tasks flow on.
fn killed(text: &str) -> (std::process::ExitStatus, Value) {
    let demo = Process::start(&["demo", "--seconds", "600", "--json"]);
    await_load(&demo);
    let children = demo.children();
    let victim = children.iter().find(|child| child.command.contains(text)).unwrap();
    victim.kill();
    demo.await_stderr("died");
    demo.await_stderr(" answered, ");
    demo.await_stderr(" answered, ");
    demo.signal(Signal::TERM);
    let (status, stdout) = demo.finish();
    (status, checked(&stdout))
}

#[test]
fn a_demo_whose_backend_is_killed_goes_on_conserves_and_says_so() {
    let (status, report) = killed("emulated-a");
    assert_eq!(report["lost"], serde_json::json!(["backend-emulated-a"]));
    assert!(status.success(), "{report}");
}

#[test]
fn a_demo_whose_frontend_is_killed_goes_on_and_fails_because_tasks_are_unaccounted_for() {
    let (status, report) = killed("--seed 1");
    assert_eq!(report["lost"], serde_json::json!(["frontend-1"]));
    assert_eq!(report["frontends_unreported"], 1);
    assert_eq!(status.code(), Some(1), "{report}");
}

/// Waits until tasks have been completed.
fn await_load(demo: &Process) {
    demo.await_stderr("frontends offer");
    demo.await_stderr(" answered, ");
}

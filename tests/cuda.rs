//! Processes with the `cuda` engine, on the fake driver.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use support::{Folder, run};

const CLUSTER: &str = "[network]\ntransport = \"tcp\"\n[[model]]\nname = \"m\"\nengine = \"cuda\"\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 50\n\
                       [[backend]]\nname = \"b\"\ngpus = 2\n";

/// Built as a dependency of this test, and beside it.
fn fake() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().join("libbaton_cuda_fake.so")
}

fn command(args: &[&str], driver: &str, faults: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
    command.args(args).env("BATON_CUDA_DRIVER", driver).env("BATON_FAKE_CUDA", faults);
    command
}

fn baton(args: &[&str], driver: &str, faults: &str) -> Output {
    command(args, driver, faults).output().unwrap()
}

#[test]
fn a_demo_on_the_fake_gpu_is_right_and_says_that_it_is_fake() {
    let output = run(&["demo", "--engine", "cuda", "--fake-gpu", "--seconds", "3", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success(), "{report}");
    let number = |key: &str| report[key].as_u64().unwrap();
    assert_eq!(number("submitted"), number("completed") + number("dropped") + number("failed"));
    assert!(number("completed") > 0 && number("wrong_answers") == 0, "{report}");
    assert_eq!((&report["gpu"], &report["engines"][0]), (&"fake".into(), &"cuda".into()));
}

#[test]
fn the_doctor_says_what_is_wrong_with_the_driver() {
    let folder = Folder::new("doctor-cuda");
    let file = folder.write("cluster.toml", CLUSTER);
    let fake = fake().display().to_string();
    let cases = [
        (fake.as_str(), "", "FAKE: no GPU", "Baton fake GPU"),
        (&fake, "", "1980 of 1980 MHz, 40 °C", "cuda direct 7"),
        (
            &fake,
            "hot",
            "1200 of 1980 MHz, 91 °C, held down by: temperature",
            "raise its power limit",
        ),
        (&fake, "hot", "1 other process", "leave the device to one backend"),
        (&fake, "", "ok       cuda direct 7: 2 MiB of its memory", "dma-buf"),
        (
            &fake,
            "no-dma-buf",
            "n/a      cuda direct 7: the driver gives out",
            "open kernel modules",
        ),
        (
            &fake,
            "dma-buf-code=801",
            "n/a      cuda direct 0: cuMemGetHandleForAddressRange",
            "CUDA_ERROR_NOT_SUPPORTED (801)",
        ),
        (&fake, "memory=1000000", "n/a      cuda direct 0", "CUDA_ERROR_OUT_OF_MEMORY"),
        (&fake, "no-device", "CUDA_ERROR_NO_DEVICE", "nvidia-smi"),
        (&fake, "old", "for CUDA 11.8", "driver 525"),
        (&fake, "devices=1", "FAILURE  cuda devices: 1", "gpus"),
        ("/nowhere/libcuda.so.1", "", "no CUDA driver found", "install NVIDIA's driver"),
    ];
    for (driver, faults, seen, fix) in cases {
        let output = baton(&["doctor", "--config", &file], driver, faults);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(seen) && text.contains(fix), "{faults}: {text}");
    }
}

#[test]
fn a_device_that_is_lost_at_its_first_launch_is_refused() {
    let folder = Folder::new("lost-cuda");
    let file = folder.write("cluster.toml", CLUSTER);
    let fake = fake().display().to_string();
    for (code, name) in [
        (700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
        (719, "CUDA_ERROR_LAUNCH_FAILED"),
        (999, "CUDA_ERROR_UNKNOWN"),
    ] {
        let fault = format!("fault=1,fault-code={code}");
        let output = baton(&["backend", "--config", &file, "--name", "b"], &fake, &fault);
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && log.contains(name), "{log}");
    }
}

#[test]
fn a_device_that_is_lost_under_load_ends_its_backend_and_no_answer_is_wrong() {
    let args = ["demo", "--engine", "cuda", "--fake-gpu", "--seconds", "3", "--json"];
    for code in [700, 719] {
        let output = baton(&args, "", &format!("fault=20,fault-code={code}"));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report["failed"].as_u64().unwrap() > 0, "the batch that lost it: {report}");
        assert_eq!(report["lost"], serde_json::json!(["backend-gpu"]), "{report}");
        assert_eq!((&report["wrong_answers"], &report["conserved"]), (&0.into(), &true.into()));
        let log = String::from_utf8_lossy(&output.stderr);
        let said =
            ["device 0 is lost to this process", "restart this backend", &format!("({code})")];
        assert!(said.iter().all(|words| log.contains(words)), "{log}");
    }
}

/// A backend that finds no scheduler, soon.
fn alone(more: &str) -> String {
    format!("[scheduler]\nlisten = \"127.0.0.1:1\"\n[reconnect]\nstart_ms = 100\n{CLUSTER}{more}")
}

#[test]
fn clocks_are_locked_only_if_asked_for_and_given_back() {
    let folder = Folder::new("lock-cuda");
    let fake = fake().display().to_string();
    let run = |keys: &str, faults: &str, log: &str| {
        let file = folder.write("cluster.toml", &alone(keys));
        let log = folder.path().join(log);
        let mut command = command(&["backend", "--config", &file, "--name", "b"], &fake, faults);
        let output = command.env("BATON_FAKE_NVML_LOG", &log).output().unwrap();
        assert!(!output.status.success(), "there is no scheduler");
        let log = std::fs::read_to_string(log).unwrap_or_default();
        (log, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(run("", "", "none").0, "", "nothing is changed unless asked for");
    let (log, words) = run("lock_clocks = true\n", "", "locked");
    assert_eq!(log, "locked 1980 1980\nlocked 1980 1980\ngiven back\ngiven back\n", "{words}");
    assert!(words.contains("nvidia-smi -rgc"), "{words}");
    let (log, words) = run("lock_clocks = true\n", "no-root", "refused");
    assert_eq!(log, "", "{words}");
    assert!(
        words.contains("no permission") && words.contains("run as root, or remove the key"),
        "{words}"
    );
}

#[test]
fn a_backend_sees_the_devices_that_it_names() {
    let folder = Folder::new("named-cuda");
    let fake = fake().display().to_string();
    let run = |devices: &str| {
        let cluster = alone(devices).replace("gpus = 2\n", "");
        let file = folder.write("cluster.toml", &cluster);
        let output = baton(&["backend", "--config", &file, "--name", "b"], &fake, "devices=0");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let none = run("");
    assert!(none.contains("GPU slot 0 has no device"), "{none}");
    let one = run("devices = [\"MIG-12ab\"]\n");
    assert!(!one.contains("has no device") && one.contains("127.0.0.1:1"), "{one}");
}

#[test]
fn the_gpu_bench_prints_a_line_for_each_goal_and_says_where() {
    let lines = |args: &[&str]| -> Vec<Value> {
        let args: Vec<&str> = ["bench", "gpu", "--json"].iter().chain(args).copied().collect();
        let output = run(&args);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let exact = lines(&["--simulated", "--batches", "40"]);
    assert!(exact.iter().all(|line| line["figures"] == "virtual" && line["met"] == true));
    let fake = lines(&["--fake", "--batches", "16"]);
    assert!(fake.iter().all(|line| line["figures"] == "fake"), "{fake:?}");
    let names = |lines: &[Value]| -> BTreeSet<String> {
        lines.iter().map(|line| line["goal"].as_str().unwrap().to_owned()).collect()
    };
    assert!(names(&exact).is_subset(&names(&fake)));
    for goal in [
        "full_load",
        "gap_p99_us",
        "copy_rate_over_bare",
        "execution_p9999_over_p50",
        "prediction_error_p99",
        "one_row_added_us",
        "cpu_us_per_batch",
        "allocations_after_load",
    ] {
        assert!(names(&fake).contains(goal), "{goal}");
    }
    let refused = command(&["bench", "gpu"], "/nowhere/libcuda.so.1", "").output().unwrap();
    let log = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && log.contains("no CUDA driver found"), "{log}");
}

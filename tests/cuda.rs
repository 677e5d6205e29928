//! Processes with the `cuda` engine, on the fake driver.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

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

fn baton(args: &[&str], driver: &str, faults: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
    command.args(args).env("BATON_CUDA_DRIVER", driver).env("BATON_FAKE_CUDA", faults);
    command.output().unwrap()
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
    let output = baton(&["backend", "--config", &file, "--name", "b"], &fake, "fault=1");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && log.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{log}");
}

#[test]
fn a_device_that_is_lost_under_load_ends_its_backend_and_no_answer_is_wrong() {
    let args = ["demo", "--engine", "cuda", "--fake-gpu", "--seconds", "3", "--json"];
    let output = baton(&args, "", "fault=20");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["failed"].as_u64().unwrap() > 0, "the batch that lost it: {report}");
    assert_eq!(report["lost"], serde_json::json!(["backend-gpu"]), "{report}");
    assert_eq!((&report["wrong_answers"], &report["conserved"]), (&0.into(), &true.into()));
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(
        log.contains("device 0 is lost to this process") && log.contains("restart this backend"),
        "{log}"
    );
}

//! Files of models beside a cache of weights, in processes: a model that is added is loaded from memory, also once its file is
//! gone; and a file that is missing or another one is a failed LOAD that names itself.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_client::{Client, ClientConfig, Deadline, ModelHandle, Outcome};
use baton_topo::Sha256;
use serde_json::Value;
use support::application::await_model;
use support::operator::await_status;
use support::{Cluster, Folder, Process, has_onnx_runtime, run};

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/digits/digits.onnx");
const ANSWER: Duration = Duration::from_secs(10);

/// A cluster whose slot has room for one model; `first` is in the file, and the file of `second` lies beside it.
fn cluster(name: &str, host_weights_mib: u32) -> (Cluster, Process, PathBuf) {
    let folder = Folder::new(name);
    let files = ["first", "second"].map(|name| folder.path().join(format!("{name}.onnx")));
    let copied = files.iter().map(|file| fs::copy(DIGITS, file).unwrap());
    assert!(copied.sum::<u64>() > 0);
    let text = format!(
        "[[backend]]\nname = \"a\"\nweights_cache_mib = 1\npage_mib = 1\nhost_weights_mib = {host_weights_mib}\n\
         [[model]]\nname = \"first\"\nfile = \"first.onnx\"\nslo_ms = 2000\nbatch_max = 2\nalpha_ms = 1\nbeta_ms = 1"
    );
    let cluster = Cluster::of(folder, &text);
    let backend = cluster.backend("a");
    (cluster, backend, files[1].clone())
}

fn add(cluster: &Cluster, file: &Path, more: &[&str]) -> (bool, String) {
    let file = file.to_str().unwrap();
    let own = ["model", "add", file, "--name", "second", "--slo-ms", "2000"];
    let keys = ["batch_max=2", "alpha_ms=1", "beta_ms=1"].into_iter().chain(more.iter().copied());
    let keys: Vec<&str> = keys.flat_map(|key| ["--key", key]).collect();
    let output = run(&[&own[..], &keys, &["--scheduler", cluster.addr()]].concat());
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.success(), said)
}

fn client(cluster: &Cluster) -> Client {
    Client::connect(ClientConfig::new(cluster.addr().parse().unwrap())).unwrap()
}

fn ask(model: &ModelHandle, within: Duration) -> bool {
    let mut input = model.input().unwrap();
    input.fill(0);
    let outcome = input.submit(Deadline::within(within)).unwrap().wait();
    matches!(outcome, Outcome::Completed(_))
}

#[test]
fn a_model_that_is_added_is_loaded_from_memory_also_when_its_file_is_gone() {
    if !has_onnx_runtime() {
        return;
    }
    let (cluster, _backend, file) = cluster("cache-files-memory", 4);
    let (added, said) = add(&cluster, &file, &[]);
    assert!(added, "{said}");
    fs::remove_file(&file).unwrap();
    fs::remove_file(file.with_file_name("first.onnx")).unwrap();
    let client = client(&cluster);
    let [first, second] = ["first", "second"].map(|name| await_model(&client, name));
    for _ in 0..3 {
        assert!(ask(&first, ANSWER) && ask(&second, ANSWER), "one leaves for the other");
    }
    let status = await_status(&cluster, |status| status["loads"].as_array().unwrap().len() >= 6);
    let loads = status["loads"].as_array().unwrap();
    // One that is late, on a busy host, is ordered again.
    assert!(
        loads.iter().all(|load| matches!(load["outcome"].as_str(), Some("loaded" | "late"))),
        "{status}"
    );
}

/// Why the last LOAD of the model failed.
fn failure<'a>(status: &'a Value, name: &str) -> &'a Value {
    let models = status["models"].as_array().unwrap();
    &models.iter().find(|model| model["name"] == name).unwrap()["cache"]["failure"]
}

#[test]
fn a_file_that_is_another_one_or_missing_fails_its_loads_by_that_name_until_it_is_right_again() {
    if !has_onnx_runtime() {
        return;
    }
    let (cluster, backend, file) = cluster("cache-files-disk", 0);
    let right = fs::read(&file).unwrap();
    let wrong = format!("sha256=\"{}\"", Sha256::of(b"another"));
    let (added, said) = add(&cluster, &file, &[&wrong]);
    assert!(!added && said.contains("sha256") && said.contains("second.onnx"), "{said}");
    let (added, said) = add(&cluster, &file, &[]);
    assert!(added, "{said}");
    backend.await_stderr("each LOAD reads them");
    let client = client(&cluster);
    let second = await_model(&client, "second");

    // A message twice is one whose fields come twice: another file, which ONNX Runtime might well read.
    fs::write(&file, [&right[..], &right[..]].concat()).unwrap();
    assert!(!ask(&second, Duration::from_millis(300)));
    await_status(&cluster, |status| failure(status, "second") == "different");
    fs::remove_file(&file).unwrap();
    assert!(!ask(&second, Duration::from_millis(300)));
    let status = await_status(&cluster, |status| failure(status, "second") == "unreadable");
    assert!(failure(&status, "first").is_null(), "{status}");
    let told = String::from_utf8(run(&["status", "--scheduler", cluster.addr()]).stdout).unwrap();
    assert!(told.contains("unreadable"), "{told}");
    fs::write(&file, right).unwrap();
    assert!(ask(&second, ANSWER));
}

//! Model files that lie on a file server, in processes: every backend pulls them, whatever the server does, and a model once
//! pulled outlasts it.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use std::fs;
use std::time::Duration;

use baton_client::{Client, ClientConfig, Deadline, ModelHandle, Outcome};
use serde_json::Value;
use support::application::await_model;
use support::files::{Answer, FileServer};
use support::{Cluster, Folder, Process, has_onnx_runtime, run};

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/digits/digits.onnx");
const ANSWER: Duration = Duration::from_secs(20);

/// A cluster with an emulated model `m`, and two backends that have `more` keys.
fn cluster(name: &str, more: &str) -> Cluster {
    let folder = Folder::new(name);
    let backend = |name: &str| {
        format!("[[backend]]\nname = \"{name}\"\nmodel_folder = \"files-{name}\"\n{more}\n")
    };
    let text = format!(
        "[scheduler]\njournal = \"changes.toml\"\n[network]\nctrl_us = 60000\njitter_us = 40000\n{}{}\
         [[model]]\nname = \"m\"\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 2000\ninput_bytes = 64\nweights_mib = 1\n",
        backend("a"),
        backend("b")
    );
    let text = if more.is_empty() { text.replace("weights_mib = 1\n", "") } else { text };
    Cluster::of(folder, &text)
}

fn add(scheduler: &str, name: &str, url: &str, more: &[&str]) -> (bool, String) {
    let own = ["model", "add", url, "--name", name, "--slo-ms", "4000"];
    let keys = ["batch_max=2", "alpha_ms=1", "beta_ms=1"].into_iter();
    let keys: Vec<&str> = keys.flat_map(|key| ["--key", key]).collect();
    let output = run(&[&own[..], &keys, more, &["--scheduler", scheduler]].concat());
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.success(), said)
}

fn client(cluster: &Cluster) -> Client {
    Client::connect(ClientConfig::new(cluster.addr().parse().unwrap())).unwrap()
}

fn answers(model: &ModelHandle) -> bool {
    let mut input = model.input().unwrap();
    input.fill(0);
    let outcome = input.submit(Deadline::within(ANSWER)).unwrap().wait();
    matches!(outcome, Outcome::Completed(_))
}

fn pulled(folder: &Folder, backend: &str) -> Vec<u64> {
    let entries = fs::read_dir(folder.path().join(format!("files-{backend}"))).unwrap();
    let entries = entries.map(|entry| entry.unwrap().path());
    let models = entries.filter(|path| path.extension().is_some_and(|e| e == "onnx"));
    models.map(|path| fs::metadata(path).unwrap().len()).collect()
}

/// One command, and every backend has the file. It stays when the server is gone: for a scheduler and a backend that start
/// again. A backend whose folder is gone too waits for the server, and says so.
#[test]
fn a_model_is_pulled_by_every_backend_and_outlasts_the_server() {
    if !has_onnx_runtime() {
        return;
    }
    let content = fs::read(DIGITS).unwrap();
    let server = FileServer::new(content.clone());
    let mut cluster = cluster("remote-outlasts", "");
    let [mut a, mut b] = ["a", "b"].map(|name| cluster.backend(name));
    let (added, said) = add(cluster.addr(), "digits", &server.url(), &[]);
    assert!(added && said.contains("served by 2 GPU slots"), "{said}");
    assert_eq!(server.requests(&server.url()), 3, "the command's and the backends'");
    for backend in ["a", "b"] {
        assert_eq!(pulled(cluster.folder(), backend), [content.len() as u64]);
    }
    let (url, addr) = (server.url(), server.addr().to_owned());
    drop(server);
    a.terminate();
    cluster.kill_and_restart_scheduler();
    let a = cluster.backend("a");
    a.await_stderr("a model was added");
    let client = client(&cluster);
    assert!(answers(&await_model(&client, "digits")));

    b.terminate();
    fs::remove_dir_all(cluster.folder().path().join("files-b")).unwrap();
    let args =
        ["backend", "--config", cluster.file(), "--scheduler", cluster.addr(), "--name", "b"];
    let b = Process::start(&args);
    let said = b.behind("is not to be had yet");
    assert!(said.contains(&url) && said.contains("cannot be pulled"), "{said}");
    assert_eq!(of_b(&cluster), ("loading".into(), serde_json::json!(["digits"])));
    assert!(answers(&await_model(&client, "digits")), "a serves it");
    let _back = FileServer::at(&addr, content);
    b.await_stderr("a model was added");
    assert_eq!(pulled(cluster.folder(), "b").len(), 1);
    while of_b(&cluster) != ("serving".into(), Value::Null) {
        std::thread::yield_now();
    }
}

/// The state of backend `b`, and the models that it lacks.
fn of_b(cluster: &Cluster) -> (Value, Value) {
    let output = run(&["status", "--json", "--scheduler", cluster.addr()]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    let members = status["members"].as_array().unwrap();
    let b = members.iter().find(|member| member["name"] == "b").unwrap();
    (b["state"].clone(), b["missing"].clone())
}

/// With a cache of weights the file is in the host's memory: LOADs bring it, also when folder and server are gone.
#[test]
fn in_a_cache_loads_come_from_memory() {
    if !has_onnx_runtime() {
        return;
    }
    let server = FileServer::new(fs::read(DIGITS).unwrap());
    let cluster = cluster("remote-cache", "weights_cache_mib = 1\npage_mib = 1");
    let _backends = ["a", "b"].map(|name| cluster.backend(name));
    let (added, said) = add(cluster.addr(), "digits", &server.url(), &[]);
    assert!(added, "{said}");
    let client = client(&cluster);
    let [m, digits] = ["m", "digits"].map(|name| await_model(&client, name));
    hangs_until_it_is_removed(&cluster, &server, "third", || {
        assert!(answers(&digits) && answers(&m) && answers(&digits), "LOADs go on");
    });
    drop(server);
    for backend in ["a", "b"] {
        let folder = cluster.folder().path().join(format!("files-{backend}"));
        fs::remove_dir_all(folder).unwrap();
    }
    for _ in 0..3 {
        assert!(answers(&digits) && answers(&m), "one leaves for the other");
    }
}

/// The model that is served meanwhile loses nothing, and nothing of a file that is wrong is left.
#[test]
fn whatever_the_server_does_the_addition_fails_by_name_and_others_are_served() {
    if !has_onnx_runtime() {
        return;
    }
    let content = fs::read(DIGITS).unwrap();
    let server = FileServer::new(content.clone());
    let cluster = cluster("remote-faults", "");
    let backends = ["a", "b"].map(|name| cluster.backend(name));
    let other = Answer::File([&content[..], &content[..]].concat());
    let cases = [
        ("other", other, "its SHA-256 is"),
        ("cut", Answer::Cut(content.len(), content[..100].to_vec()), "100 of"),
        ("huge", Answer::Cut(3_000_000_000, vec![0]), "2 GiB at most"),
    ];
    let load = cluster.load(7);
    for (name, answer, said) in cases {
        let (added, told) =
            add(cluster.addr(), "digits", &server.url_of(name, content.clone(), answer), &[]);
        assert!(!added && told.contains(said) && told.contains("backend `"), "{said}: {told}");
    }
    let wrong = "sha256=\"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"";
    let (added, told) = add(cluster.addr(), "digits", &server.url(), &["--key", wrong]);
    assert!(!added && told.contains("the key sha256 says"), "{told}");
    hangs_until_it_is_removed(&cluster, &server, "digits", || {});
    load.await_completed(1);
    load.stop().nothing_failed();
    assert_eq!(["a", "b"].map(|name| pulled(cluster.folder(), name).len()), [0, 0]);
    let (added, said) = add(cluster.addr(), "digits", &server.url(), &[]);
    assert!(added, "once the server is sound: {said}");
    drop(backends);
}

/// A server that hangs holds up the addition of this model, and no longer than the operator wants it. `meanwhile` every backend
/// waits for it.
fn hangs_until_it_is_removed(
    cluster: &Cluster,
    server: &FileServer,
    name: &str,
    meanwhile: impl FnOnce(),
) {
    // ONNX's producer_name: another file, and the same model.
    let file = [&fs::read(DIGITS).unwrap()[..], &[0x12, 1, b'x']].concat();
    let hang = Answer::Hang(file.len(), file[..100].to_vec());
    let url = server.url_of("hang", file, hang);
    let scheduler = cluster.addr();
    std::thread::scope(|scope| {
        let adding = scope.spawn(|| add(scheduler, name, &url, &[]));
        while server.requests(&url) < 3 {
            assert!(!adding.is_finished(), "it was not added, or without the backends' asking");
            std::thread::yield_now();
        }
        meanwhile();
        let removed = run(&["model", "remove", name, "--scheduler", scheduler]);
        assert!(removed.status.success(), "{removed:?}");
        let (added, told) = adding.join().unwrap();
        assert!(!added && told.contains("was removed"), "{told}");
    });
}

/// The table that `--print` gives stands in a cluster file as well: the scheduler needs no file for it, and a backend pulls
/// before it joins.
#[test]
fn a_printed_table_stands_in_a_cluster_file() {
    if !has_onnx_runtime() {
        return;
    }
    let server = FileServer::new(fs::read(DIGITS).unwrap());
    let args = ["model", "add", &server.url(), "--name", "digits", "--slo-ms", "4000", "--print"];
    let output = run(&args);
    assert!(output.status.success(), "{output:?}");
    let table = String::from_utf8(output.stdout).unwrap();
    let text = format!("[[backend]]\nname = \"a\"\nmodel_folder = \"files\"\n{table}");
    let cluster = Cluster::of(Folder::new("remote-file"), &text);
    let _backend = cluster.backend("a");
    assert!(answers(&await_model(&client(&cluster), "digits")));
    assert_eq!(server.requests(&server.url()), 2, "the command's and the backend's");
    let listed = run(&["model", "list", "--json", "--scheduler", cluster.addr()]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["models"][0]["inputs"][0]["shape"], serde_json::json!([1, 8, 8]));
}

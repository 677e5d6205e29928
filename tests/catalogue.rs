//! `baton model` against processes: a model file is added to a running cluster, used by a client that is connected, and
//! removed while tasks come. Every task has its outcome.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

#[path = "../backend/tests/onnx_files/mod.rs"]
#[allow(dead_code, reason = "its other types are for the engine's tests")]
mod onnx_files;
mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use baton_client::{
    Client, ClientConfig, Deadline, DropReason, InputError, ModelHandle, Outcome, SubmitReason,
    TensorRef,
};
use onnx_files::{Dim, INT64, model_file};
use serde_json::Value;
use support::application::await_model;
use support::{Cluster, Folder, run};

const CLUSTER: &str = r#"
[[model]]
name = "plain"
alpha_ms = 0.1
beta_ms = 2
slo_ms = 1000
input_bytes = 64
[[backend]]
name = "a"
gpus = 2
"#;
const ANSWER: Duration = Duration::from_secs(30);

/// Negates two rows of tokens.
fn tokens_onnx() -> Vec<u8> {
    let some = [Dim::Dynamic, Dim::Named("seq")];
    let nodes = [("Neg", "a", "minus_a"), ("Neg", "b", "minus_b")];
    let inputs = [("a", INT64, &some[..]), ("b", INT64, &some[..])];
    let outputs = [("minus_a", INT64, &some[..]), ("minus_b", INT64, &some[..])];
    model_file(&nodes, &inputs, &outputs)
}

/// Runs `baton model ARGS` against the cluster; its stdout, or its stderr.
fn model(cluster: &Cluster, args: &[&str]) -> Result<String, String> {
    let all = [&["model"], args, &["--scheduler", cluster.addr()]].concat();
    let output = run(&all);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().trim().to_owned();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

fn names(cluster: &Cluster) -> Vec<String> {
    let listed: Value =
        serde_json::from_str(&model(cluster, &["list", "--json"]).unwrap()).unwrap();
    let models = listed["models"].as_array().unwrap().iter();
    models.map(|model| model["name"].as_str().unwrap().to_owned()).collect()
}

/// What became of the tasks of a thread.
#[derive(Default, Debug)]
struct Seen {
    completed: u32,
    removed: u32,
    refused: bool,
}

/// Offers tasks of a model, a few at a time, until it is removed or `stop` says so. Every outcome must be one that a removal
/// allows.
fn offer(
    model: &ModelHandle,
    fill: impl Fn(&ModelHandle) -> Result<baton_client::Input, InputError>,
    stop: &AtomicBool,
) -> Seen {
    let mut seen = Seen::default();
    let mut open = Vec::new();
    while !stop.load(Ordering::Relaxed) && !seen.refused {
        match fill(model).map(|input| input.submit(Deadline::within(ANSWER))) {
            Ok(Ok(ticket)) => open.push(ticket),
            Ok(Err(error)) => {
                assert_eq!(error.reason, SubmitReason::ModelRemoved);
                seen.refused = true;
            }
            Err(error) => {
                assert!(matches!(error, InputError::ModelRemoved { .. }), "{error}");
                seen.refused = true;
            }
        }
        if open.len() == 8 {
            settle(open.remove(0).wait(), &mut seen);
        }
    }
    open.into_iter().for_each(|ticket| settle(ticket.wait(), &mut seen));
    seen
}

fn settle(outcome: Outcome, seen: &mut Seen) {
    match outcome {
        Outcome::Completed(_) => seen.completed += 1,
        Outcome::Dropped(DropReason::ModelRemoved, _) => seen.removed += 1,
        other => panic!("{other:?}"),
    }
}

fn tokens(model: &ModelHandle) -> Result<baton_client::Input, InputError> {
    let row: Vec<u8> = (1..=5i64).flat_map(i64::to_le_bytes).collect();
    let tensor = TensorRef { shape: vec![5], bytes: &row };
    model.input_of(&[("a", tensor.clone()), ("b", tensor)])
}

#[test]
fn a_model_file_comes_and_goes_while_tasks_come() {
    if !support::has_onnx_runtime() {
        return;
    }
    let folder = Folder::new("catalogue");
    let file = folder.path().join("tokens.onnx");
    std::fs::write(&file, tokens_onnx()).unwrap();
    let cluster = Cluster::of(folder, CLUSTER);
    let _backend = cluster.backend("a");
    let client = Client::connect(ClientConfig::new(cluster.addr().parse().unwrap())).unwrap();
    let (plain, stop) = (client.model("plain").unwrap(), AtomicBool::new(false));
    let add = [
        "add",
        file.to_str().unwrap(),
        "--name",
        "tokens",
        "--slo-ms",
        "1000",
        "--key",
        "dims={seq=16}",
    ];
    thread::scope(|scope| {
        let others = scope.spawn(|| offer(&plain, |plain| plain.input_from(&[7; 64]), &stop));
        for _ in 0..3 {
            let done = model(&cluster, &add).unwrap();
            assert_eq!(done, "model `tokens` is served by 2 GPU slots");
            assert_eq!(names(&cluster), ["plain", "tokens"]);
            let handle = await_model(&client, "tokens");
            let first = tokens(&handle).unwrap().submit(Deadline::within(ANSWER)).unwrap();
            let Outcome::Completed(reply) = first.wait() else { panic!("it is served") };
            let answer = handle.tensors_of(&reply).unwrap();
            let expected: Vec<u8> = (1..=5i64).flat_map(|id| (-id).to_le_bytes()).collect();
            assert_eq!(
                answer.iter().map(|tensor| tensor.bytes).collect::<Vec<_>>(),
                [&expected[..]; 2]
            );
            let never = AtomicBool::new(false);
            let load = scope.spawn(move || offer(&handle, tokens, &never));
            assert_eq!(
                model(&cluster, &["remove", "tokens"]).unwrap(),
                "model `tokens` is removed"
            );
            let seen = load.join().unwrap();
            assert!(seen.refused, "{seen:?}");
            assert_eq!(names(&cluster), ["plain"]);
        }
        stop.store(true, Ordering::Relaxed);
        let seen = others.join().unwrap();
        assert!(seen.completed > 0 && seen.removed == 0, "{seen:?}");
    });
    client.leave().unwrap();
}

/// One row of tokens through a node.
fn node_onnx(node: &str) -> Vec<u8> {
    let some = [Dim::Dynamic, Dim::Named("seq")];
    let (inputs, outputs) = ([("a", INT64, &some[..])], [("b", INT64, &some[..])]);
    model_file(&[(node, "a", "b")], &inputs, &outputs)
}

/// What the model makes of the token 5; `None` while its successor takes its place.
fn answer_to_five(client: &Client) -> Option<i64> {
    let model = client.model("tokens").ok()?;
    let five = 5i64.to_le_bytes();
    let tensor = TensorRef { shape: vec![1], bytes: &five };
    let input = model.input_of(&[("a", tensor)]).ok()?;
    let Outcome::Completed(reply) = input.submit(Deadline::within(ANSWER)).ok()?.wait() else {
        return None;
    };
    let answer = model.tensors_of(&reply).unwrap();
    Some(i64::from_le_bytes(answer[0].bytes.try_into().unwrap()))
}

/// A file of the same name with other contents, while tasks come; and it outlasts the scheduler.
#[test]
fn a_model_file_is_exchanged_while_tasks_come() {
    if !support::has_onnx_runtime() {
        return;
    }
    let folder = Folder::new("catalogue-exchange");
    let file = folder.path().join("tokens.onnx");
    std::fs::write(&file, node_onnx("Neg")).unwrap();
    let text = format!("[scheduler]\njournal = \"changes.toml\"\n{CLUSTER}");
    let mut cluster = Cluster::of(folder, &text);
    let _backend = cluster.backend("a");
    let client = Client::connect(ClientConfig::new(cluster.addr().parse().unwrap())).unwrap();
    let path = file.to_str().unwrap();
    let dims = ["--key", "dims={seq=16}"];
    let add = ["add", path, "--name", "tokens", "--slo-ms", "1000"];
    model(&cluster, &[&add[..], &dims].concat()).unwrap();
    await_model(&client, "tokens");
    assert_eq!(answer_to_five(&client), Some(-5));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut answers = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                answers.extend(answer_to_five(&client));
            }
            answers
        });
        std::fs::write(&file, node_onnx("Abs")).unwrap();
        let keys = [&format!("file={path}"), "dims={seq=16}"];
        let done = model(&cluster, &["set", "tokens", keys[0], keys[1]]).unwrap();
        assert_eq!(done, "model `tokens` is replaced, and served by 2 GPU slots");
        let clock = baton_client::Clock::start();
        while answer_to_five(&client) != Some(5) {
            assert!(clock.now().0 < ANSWER.as_nanos() as u64, "the former file answers still");
        }
        stop.store(true, Ordering::Relaxed);
        let answers = load.join().unwrap();
        let former = answers.iter().take_while(|&&answer| answer == -5).count();
        assert!(answers[former..].iter().all(|&answer| answer == 5), "{answers:?}");
    });
    cluster.kill_and_restart_scheduler();
    await_return(&client.model("plain").unwrap());
    let clock = baton_client::Clock::start();
    while answer_to_five(&client) != Some(5) {
        assert!(clock.now().0 < ANSWER.as_nanos() as u64, "the next scheduler has another file");
    }
    client.leave().unwrap();
}

/// The next scheduler serves the model.
fn await_return(model: &ModelHandle) {
    let clock = baton_client::Clock::start();
    let serves = || {
        let input = model.input_from(&vec![1; model.input_bytes()]).unwrap();
        let submitted = input.submit(Deadline::within(ANSWER)).ok();
        submitted.is_some_and(|pending| matches!(pending.wait(), Outcome::Completed(_)))
    };
    while !serves() {
        assert!(clock.now().0 < ANSWER.as_nanos() as u64, "the model is not served again");
    }
}

#[test]
fn what_cannot_be_is_refused_with_words_and_status() {
    let cluster = Cluster::of(Folder::new("catalogue-refused"), CLUSTER);
    let _backend = cluster.backend("a");
    let refused = |args: &[&str], words: &str| {
        let error = model(&cluster, args).unwrap_err();
        assert!(error.contains(words), "{args:?}: {error}");
    };
    refused(&["add", "none.onnx", "--name", "x", "--slo-ms", "10"], "there is no file");
    refused(
        &["add", "--name", "plain", "--slo-ms", "10", "--key", "alpha_ms=1", "--key", "beta_ms=1"],
        "`plain` already",
    );
    refused(&["remove", "x"], "there is no model named `x`; there are: plain");
    refused(&["set", "plain", "colour=1"], "colour");
    assert_eq!(
        model(&cluster, &["set", "plain", "slo_ms=70", "max_rps=5"]).unwrap(),
        "model `plain` is changed"
    );
    let list = model(&cluster, &["list"]).unwrap();
    assert!(
        list.contains("plain") && list.contains("70 ms") && list.contains("64 bytes"),
        "{list}"
    );
    let unanswered = run(&["model", "list", "--scheduler", "127.0.0.1:1"]);
    assert_eq!(unanswered.status.code(), Some(1));
}

/// A load generator goes on with the model that has the name.
#[test]
fn load_goes_on_with_the_model_that_takes_the_place_of_another() {
    let text = CLUSTER.replace("\"plain\"", "\"m\"");
    let cluster = Cluster::of(Folder::new("catalogue-load"), &text);
    let _backend = cluster.backend("a");
    let load = cluster.load(1);
    for beta in 3..5 {
        load.await_completed(5);
        let keys = ["alpha_ms=0.1", &format!("beta_ms={beta}"), "input_bytes=64"];
        let done = model(&cluster, &[&["set", "m"][..], &keys].concat()).unwrap();
        assert_eq!(done, "model `m` is replaced, and served by 2 GPU slots");
    }
    load.await_completed(5);
    // At the moment of an exchange an input may have been on its way.
    load.stop().failed_only(&["model_removed"]);
}

/// The cluster file does not have it; the cluster does.
#[test]
fn load_is_offered_to_a_model_that_was_added() {
    let text = CLUSTER.replace("\"plain\"", "\"m\"");
    let cluster = Cluster::of(Folder::new("catalogue-added"), &text);
    let _backend = cluster.backend("a");
    let keys = ["alpha_ms=0.1", "beta_ms=3", "input_bytes=64"].map(|key| ["--key", key]);
    let named = ["add", "--name", "added", "--slo-ms", "40"];
    model(&cluster, &[&named[..], keys.as_flattened()].concat()).unwrap();
    let load = cluster.load_with(1, &["--rate", "added=100"]);
    load.await_completed(20);
    load.stop().nothing_failed();
    let unknown = cluster.load_with(1, &["--rate", "nothing=100"]);
    unknown.process.await_stderr("no model is called \"nothing\"; this client has: added, m");
}

/// With a journal, the next scheduler has the models of the one before, and a client's handle goes on.
#[test]
fn changes_outlast_the_scheduler_where_they_are_written_down() {
    let text = format!("[scheduler]\njournal = \"changes.toml\"\n{CLUSTER}");
    let mut cluster = Cluster::of(Folder::new("catalogue-journal"), &text);
    let _backend = cluster.backend("a");
    let client = Client::connect(ClientConfig::new(cluster.addr().parse().unwrap())).unwrap();
    let keys = ["--key", "alpha_ms=0.1", "--key", "beta_ms=2", "--key", "input_bytes=16"];
    model(&cluster, &[&["add", "--name", "more", "--slo-ms", "1000"], &keys[..]].concat()).unwrap();
    assert_eq!(model(&cluster, &["set", "more", "slo_ms=900"]).unwrap(), "model `more` is changed");
    assert_eq!(model(&cluster, &["remove", "plain"]).unwrap(), "model `plain` is removed");
    let more = await_model(&client, "more");
    let submitted = more.input_from(&[1; 16]).unwrap().submit(Deadline::within(ANSWER)).unwrap();
    cluster.kill_and_restart_scheduler();
    cluster.scheduler.await_stderr("models=\"more\"");
    assert!(matches!(submitted.wait(), Outcome::Completed(_)), "before or after, it is served");
    await_return(&more);
    assert_eq!(names(&cluster), ["more"]);
    assert_eq!(more.slo(), Duration::from_millis(900));
    assert!(client.model("plain").is_err(), "it does not come back with the file");
    client.leave().unwrap();
}

#[test]
fn an_operator_hears_that_a_change_could_not_be_written_down() {
    let text = format!("[scheduler]\njournal = \"no/such/folder/changes.toml\"\n{CLUSTER}");
    let cluster = Cluster::of(Folder::new("catalogue-unwritten"), &text);
    let done = model(&cluster, &["set", "plain", "slo_ms=90"]).unwrap();
    assert!(done.contains("is changed; the next scheduler will not know of it"), "{done}");
}

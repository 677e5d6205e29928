//! A model file with several inputs of several types and lengths, served by processes to a client that names its
//! tensors. Needs `ORT_DYLIB_PATH`; says so when it is not set.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

#[path = "../backend/tests/onnx_files/mod.rs"]
#[allow(dead_code, reason = "its other types are for the engine's tests")]
mod onnx_files;
mod support;

use std::time::Duration;

use baton_client::{
    Client, ClientConfig, Deadline, InputError, ModelHandle, Outcome, TensorRef, Ticket,
};
use onnx_files::{BOOL, Dim, INT64, model_file};
use support::{Cluster, Folder};

const CLUSTER: &str = r#"
[[model]]
name = "tokens"
file = "tokens.onnx"
slo_ms = 1000
dims = { seq = 64 }
[[backend]]
name = "a"
"#;
const LONGEST: u32 = 64;

/// Negates tokens, and their mask.
fn tokens_onnx() -> Vec<u8> {
    let some = [Dim::Dynamic, Dim::Named("seq")];
    let nodes = [("Neg", "ids", "negated"), ("Not", "mask", "hidden")];
    let inputs = [("ids", INT64, &some[..]), ("mask", BOOL, &some[..])];
    let outputs = [("negated", INT64, &some[..]), ("hidden", BOOL, &some[..])];
    model_file(&nodes, &inputs, &outputs)
}

fn ids(first: i64, count: u32) -> Vec<u8> {
    (first..first + i64::from(count)).flat_map(i64::to_le_bytes).collect()
}

fn submit(model: &ModelHandle, first: i64, count: u32) -> Ticket {
    let (ids, mask) = (ids(first, count), vec![1; count as usize]);
    let tensor = |bytes| TensorRef { shape: vec![count], bytes };
    // In another order than the file's.
    let input = model.input_of(&[("mask", tensor(&mask)), ("ids", tensor(&ids))]).unwrap();
    assert!(count == LONGEST || input.len() < model.input_bytes(), "as long as it is");
    input.submit(Deadline::Within(Duration::from_secs(60))).unwrap()
}

fn check(model: &ModelHandle, first: i64, count: u32, outcome: Outcome) {
    let Outcome::Completed(reply) = outcome else { panic!("{first}, {count}: {outcome:?}") };
    let [negated, hidden] = &model.tensors_of(&reply).unwrap()[..] else { panic!("two tensors") };
    assert_eq!((&negated.shape[..], &hidden.shape[..]), (&[count][..], &[count][..]));
    let expected: Vec<u8> =
        (first..first + i64::from(count)).flat_map(|id| (-id).to_le_bytes()).collect();
    assert_eq!(negated.bytes, expected);
    assert!(hidden.bytes.iter().all(|&byte| byte == 0), "the mask was all ones");
}

#[test]
fn config_check_executes_models_where_onnx_runtime_is() {
    let folder = Folder::new("check-models");
    let some = [Dim::Dynamic, Dim::Named("seq")];
    let io = |name| [(name, INT64, &some[..])];
    let broken = model_file(&[("NoSuchOperator", "x", "y")], &io("x"), &io("y"));
    std::fs::write(folder.path().join("tokens.onnx"), tokens_onnx()).unwrap();
    std::fs::write(folder.path().join("broken.onnx"), broken).unwrap();
    let good = folder.write("good.toml", CLUSTER);
    let bad = folder.write("bad.toml", &CLUSTER.replace("tokens.onnx", "broken.onnx"));
    let check = |file: &str, library: Option<std::ffi::OsString>| {
        let mut command = support::baton();
        command.args(["config", "check", file]).env_remove("ORT_DYLIB_PATH");
        command.envs(library.map(|path| ("ORT_DYLIB_PATH", path)));
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, text) = check(&bad, None);
    assert_eq!(code, Some(0));
    let unchecked = "not checked: whether ONNX Runtime executes the 1 model(s) from ONNX files";
    assert!(text.contains(unchecked), "{text}");
    if !support::has_onnx_runtime() {
        return;
    }
    let library = || std::env::var_os("ORT_DYLIB_PATH");
    let (code, text) = check(&good, library());
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("checked: ONNX Runtime executes the smallest and the largest"), "{text}");
    let (code, text) = check(&bad, library());
    assert_eq!(code, Some(1), "{text}");
    let line = 1 + CLUSTER.lines().position(|line| line.starts_with("file =")).unwrap();
    let place = format!("{bad}:{line}: model[0].file: ");
    assert!(text.contains(&place) && text.contains("NoSuchOperator"), "{text}");
}

#[test]
fn each_task_is_answered_in_its_own_length() {
    if !support::has_onnx_runtime() {
        return;
    }
    let folder = Folder::new("tensors");
    std::fs::write(folder.path().join("tokens.onnx"), tokens_onnx()).unwrap();
    let cluster = Cluster::of(folder, CLUSTER);
    let _backend = cluster.backend("a");
    let client = Client::connect(ClientConfig::new(cluster.addr().parse().unwrap())).unwrap();
    let model = client.model("tokens").unwrap();
    let names = |tensors: &[baton_client::TensorSpec]| {
        tensors.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(names(model.inputs()), ["ids i64[≤64]", "mask bool[≤64]"]);
    assert_eq!(names(model.outputs()), ["negated i64[≤64]", "hidden bool[≤64]"]);
    let tasks: Vec<(i64, u32)> =
        (0..80).map(|i| (i * 1_000, [1, 7, 64, 30][i as usize % 4])).collect();
    let tickets: Vec<Ticket> =
        tasks.iter().map(|&(first, count)| submit(&model, first, count)).collect();
    for (&(first, count), ticket) in tasks.iter().zip(tickets) {
        check(&model, first, count, ticket.wait());
    }
    let long = TensorRef { shape: vec![65], bytes: &[0; 65] };
    let refused = model.input_of(&[("ids", long.clone()), ("mask", long)]);
    assert!(matches!(refused, Err(InputError::Tensors { .. })), "longer than any may be");
    client.leave().unwrap();
}

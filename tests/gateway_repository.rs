//! Models that a gateway's clients load and unload, as Triton's clients do.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

#[path = "support/grpc.rs"]
mod grpc;
mod support;

use std::thread;

use grpc::Grpc;
use prost::Message;
use serde_json::{Value, json};
use support::gateway::QUICK_AND_SLOW;
use support::http::Http;
use support::{Cluster, Folder};

const QUICK: &str = "/v2/models/quick/infer";
const LOAD: &str = "/v2/repository/models/quick/load";
const UNLOAD: &str = "/v2/repository/models/quick/unload";
const TEAM: &str = "authorization: Bearer 0123456789abcdef\r\n";
const OF_SLOW: &str = "authorization: Bearer 00112233445566778899\r\n";
const OPERATOR: &str = "authorization: Bearer fedcba9876543210\r\n";

fn row() -> Vec<u8> {
    let input =
        json!({ "name": "input", "shape": [1, 8], "datatype": "UINT8", "data": vec![7; 8] });
    json!({ "inputs": [input] }).to_string().into_bytes()
}

/// Names and states of the index.
fn states(http: &mut Http, headers: &str, body: &[u8]) -> Vec<Value> {
    let index = http.post("/v2/repository/index", headers, body).json();
    let models = index.as_array().unwrap().iter();
    models.map(|model| json!([model["name"], model["state"]])).collect()
}

#[derive(Clone, PartialEq, Message)]
struct Change {
    #[prost(string, tag = "2")]
    model_name: String,
    /// Encoded entries.
    #[prost(bytes = "vec", repeated, tag = "3")]
    parameters: Vec<Vec<u8>>,
}

fn change(parameters: &[&[u8]]) -> Vec<u8> {
    let parameters = parameters.iter().map(|entry| entry.to_vec()).collect();
    Change { model_name: "quick".into(), parameters }.encode_to_vec()
}

#[test]
fn an_operators_token_loads_and_unloads_the_models_of_the_cluster_file() {
    let folder = Folder::new("repository-tokens");
    folder.write("team", "0123456789abcdef\n");
    folder.write("operator", "fedcba9876543210\n");
    folder.write("of-slow", "00112233445566778899\n");
    let tokens = "[[gateway.token]]\nname = \"team\"\nfile = \"team\"\nmodels = [\"slow\"]\n\
        [[gateway.token]]\nname = \"operator\"\nfile = \"operator\"\noperator = true\n\
        [[gateway.token]]\nname = \"of-slow\"\nfile = \"of-slow\"\noperator = true\nmodels = [\"slow\"]\n";
    let cluster = Cluster::of(folder, &format!("{QUICK_AND_SLOW}\n{tokens}"));
    let _backend = cluster.backend("a");
    let (_gateway, addr) = cluster.gateway(&["--model-control"]);
    let mut http = Http::connect(&addr);
    let [quick, slow] = ["quick", "slow"].map(|name| json!([name, "READY"]));
    assert_eq!(states(&mut http, OPERATOR, b""), [quick, slow.clone()]);
    assert_eq!(http.post(UNLOAD, "", b"{}").status, 401);
    assert_eq!(http.post(UNLOAD, TEAM, b"{}").status, 403);
    let hidden = http.post(UNLOAD, OF_SLOW, b"{}");
    assert!(hidden.status == 404 && hidden.error().ends_with("it has: slow"), "{hidden:?}");
    let dependents = br#"{"parameters":{"unload_dependents":false}}"#;
    for time in 0..2 {
        let gone = http.post(UNLOAD, OPERATOR, dependents);
        assert_eq!(gone.status, 200, "{time}: {gone:?}");
    }
    assert_eq!(http.post(QUICK, OPERATOR, &row()).status, 404);
    let unloaded = json!(["quick", "UNAVAILABLE"]);
    assert_eq!(states(&mut http, OPERATOR, b"{}"), [slow, unloaded]);
    for (token, body) in [(OPERATOR, &b"{\"ready\":true}"[..]), (TEAM, b"")] {
        // What is not the token's is not there.
        assert_eq!(states(&mut http, token, body), [json!(["slow", "READY"])], "{token}");
    }
    let files = http.post(LOAD, OPERATOR, br#"{"parameters":{"file:1/model.onnx":"AAAA"}}"#);
    assert!(files.status == 501 && files.error().contains("takes no parameter"), "{files:?}");
    assert_eq!(http.post(LOAD, OPERATOR, b"[").status, 400);
    for time in 0..2 {
        let back = http.post(LOAD, OPERATOR, b"");
        assert_eq!(back.status, 200, "{time}: {back:?}");
    }
    assert_eq!(http.post(QUICK, OPERATOR, &row()).status, 200);
    let unknown = http.post("/v2/repository/models/other/load", OPERATOR, b"{}");
    let words = "it has: quick, slow";
    assert!(unknown.status == 404 && unknown.error().contains(words), "{unknown:?}");
    let ended = Grpc::connect(&addr).call("RepositoryModelUnload", None, &change(&[]));
    assert_eq!(ended.code(), 16);
    let team = Grpc::connect(&addr).authorized("Bearer 0123456789abcdef");
    assert_eq!(team.call("RepositoryModelUnload", None, &change(&[])).code(), 7);
}

#[test]
fn several_clients_load_a_model_at_once_and_each_hears_that_it_is_there() {
    let cluster = Cluster::quick_and_slow("repository-several");
    let _backend = cluster.backend("a");
    let (_gateway, addr) = cluster.gateway(&["--model-control"]);
    for path in [UNLOAD, LOAD, UNLOAD, LOAD] {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let answer = Http::connect(&addr).post(path, "", b"{}");
                    assert_eq!(answer.status, 200, "{path}: {answer:?}");
                });
            }
        });
        let expected = if path == LOAD { 200 } else { 404 };
        assert_eq!(Http::connect(&addr).post(QUICK, "", &row()).status, expected, "{path}");
    }
}

#[test]
fn over_grpc_a_gateway_that_may_loads_for_everyone() {
    let cluster = Cluster::quick_and_slow("repository-grpc");
    let _backend = cluster.backend("a");
    let (_gateway, addr) = cluster.gateway(&["--model-control"]);
    let grpc = Grpc::connect(&addr);
    // The entry `unload_dependents: {bool_param: false}`, and one that names a configuration.
    let dependents = b"\x0a\x11unload_dependents\x12\x02\x08\x00";
    let config = b"\x0a\x06config\x12\x04\x1a\x02{}";
    assert_eq!(grpc.call("RepositoryModelUnload", None, &change(&[dependents])).code(), 0);
    let refused = grpc.call("RepositoryModelLoad", None, &change(&[config]));
    assert!(refused.code() == 12 && refused.words().contains("config"), "{refused:?}");
    for time in 0..2 {
        let ended = grpc.call("RepositoryModelLoad", None, &change(&[]));
        assert_eq!(ended.code(), 0, "{time}: {ended:?}");
    }
    assert_eq!(Http::connect(&addr).post(QUICK, "", &row()).status, 200);
}

#[test]
fn without_model_control_nothing_is_loaded_and_the_answer_says_what_to_do() {
    let cluster = Cluster::quick_and_slow("repository-none");
    let (_gateway, addr) = cluster.gateway(&[]);
    let mut http = Http::connect(&addr);
    for path in [LOAD, UNLOAD] {
        let refused = http.post(path, "", b"{}");
        assert!(
            refused.status == 501 && refused.error().contains("--model-control"),
            "{refused:?}"
        );
    }
    let ended = Grpc::connect(&addr).call("RepositoryModelUnload", None, &change(&[]));
    assert_eq!(ended.code(), 12);
}

#[test]
fn a_model_file_is_found_beside_the_cluster_file_wherever_the_gateway_runs() {
    if !support::has_onnx_runtime() {
        return;
    }
    let folder = Folder::new("repository-onnx");
    let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/digits/digits.onnx");
    std::fs::copy(digits, folder.path().join("beside.onnx")).unwrap();
    let model =
        "[[model]]\nname = \"digits\"\nfile = \"beside.onnx\"\nslo_ms = 50\nbatch_max = 2\n";
    let other =
        "[[model]]\nname = \"other\"\nalpha_ms = 1\nbeta_ms = 5\nslo_ms = 50\ninput_bytes = 8\n";
    let cluster = Cluster::of(folder, &format!("{model}{other}[[backend]]\nname = \"a\"\n"));
    let _backend = cluster.backend("a");
    let (_gateway, addr) = cluster.gateway(&["--model-control"]);
    let mut http = Http::connect(&addr);
    for change in ["unload", "load"] {
        let path = format!("/v2/repository/models/digits/{change}");
        let answer = http.post(&path, "", b"{}");
        assert_eq!(answer.status, 200, "{change}: {answer:?}");
    }
    assert_eq!(http.get("/v2/models/digits").json()["inputs"][0]["name"], "image");
}

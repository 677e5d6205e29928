//! A gateway among processes: tensors in memory that its clients share with it.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

#[path = "support/grpc.rs"]
mod grpc;
mod support;

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::PathBuf;

use baton_backend::execute::checksum;
use grpc::{Grpc, InferResponse};
use prost::{Message, Oneof};
use serde_json::{Value, json};
use support::gateway::QUICK_AND_SLOW;
use support::http::{Answer, Http};
use support::prometheus::await_metric;
use support::{Cluster, Folder, run};

const QUICK: &str = "/v2/models/quick/infer";
const SLOW: &str = "/v2/models/slow/infer";
const GATEWAY: &str = "[gateway]\nshared_memory_mib = 1\n";

fn sharing(test: &str) -> Cluster {
    Cluster::of(Folder::new(test), &format!("{QUICK_AND_SLOW}\n{GATEWAY}"))
}

/// A shared-memory object, as `shm_open` makes it; gone with the test.
struct Object {
    key: String,
    path: PathBuf,
}

impl Object {
    fn new(test: &str, bytes: &[u8]) -> Self {
        let key = format!("baton-{}-{test}", std::process::id());
        let path = PathBuf::from("/dev/shm").join(&key);
        fs::write(&path, bytes).unwrap();
        Self { key, path }
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.path).unwrap()
    }

    fn shorten(&self, bytes: u64) {
        File::options().write(true).open(&self.path).unwrap().set_len(bytes).unwrap();
    }

    fn register(&self, http: &mut Http, name: &str, offset: u64, byte_size: u64) -> Answer {
        let body = json!({ "key": self.key, "offset": offset, "byte_size": byte_size });
        post(http, &format!("region/{name}/register"), &body)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        fs::remove_file(&self.path).unwrap();
    }
}

fn post(http: &mut Http, call: &str, body: &Value) -> Answer {
    let path = format!("/v2/systemsharedmemory/{call}");
    http.post(&path, "", body.to_string().as_bytes())
}

fn place((region, offset, bytes): (&str, u64, u64)) -> Value {
    json!({ "shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": bytes })
}

/// A request whose rows lie in shared memory, and whose answer is to lie there.
fn request(rows: u64, input: (&str, u64, u64), output: (&str, u64, u64)) -> Vec<u8> {
    let (input, output) = (place(input), place(output));
    let input =
        json!({ "name": "input", "shape": [rows, 8], "datatype": "UINT8", "parameters": input });
    let output = json!({ "name": "output", "parameters": output });
    json!({ "inputs": [input], "outputs": [output] }).to_string().into_bytes()
}

fn refused(answer: &Answer, status: u16, words: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert!(answer.error().contains(words), "{answer:?}");
}

#[test]
fn rows_are_read_where_they_lie_and_answers_written_there() {
    let cluster = sharing("memory-rows");
    let (_gateway, addr) = cluster.gateway(&[]);
    let _backend = cluster.backend("a");
    let mut http = Http::connect(&addr);
    let bytes: Vec<u8> = (0..64).collect();
    let object = Object::new("rows", &bytes);
    assert_eq!(object.register(&mut http, "in", 8, 24).status, 200);
    assert_eq!(object.register(&mut http, "out", 32, 32).status, 200);
    let status = http.get("/v2/systemsharedmemory/region/in/status").json();
    let known = json!({ "name": "in", "key": object.key, "offset": 8, "byte_size": 24 });
    assert_eq!(status, json!([known]));
    let extensions = http.get("/v2").json()["extensions"].clone();
    assert!(extensions.as_array().unwrap().contains(&json!("system_shared_memory")));
    let answer = http.post(QUICK, "", &request(2, ("in", 8, 16), ("out", 4, 28)));
    let output = json!({ "name": "output", "datatype": "UINT8", "shape": [2, 8] });
    assert_eq!(answer.json()["outputs"], json!([output]), "no data and no parameters");
    let mut expected = bytes.clone();
    let answers: Vec<u8> = bytes[16..32].chunks(8).flat_map(checksum).collect();
    expected[36..52].copy_from_slice(&answers);
    assert_eq!(object.bytes(), expected);
    // The answer may lie over the input: all of it has been read by then.
    assert_eq!(http.post(QUICK, "", &request(1, ("in", 0, 8), ("in", 4, 8))).status, 200);
    expected[12..20].copy_from_slice(&checksum(&bytes[8..16]));
    assert_eq!(object.bytes(), expected);
    assert_eq!(post(&mut http, "region/in/unregister", &Value::Null).status, 200);
    let gone = http.post(QUICK, "", &request(1, ("in", 0, 8), ("out", 0, 8)));
    refused(&gone, 404, "no shared memory is registered as \"in\"");
    assert_eq!(post(&mut http, "unregister", &Value::Null).status, 200);
    assert_eq!(http.get("/v2/systemsharedmemory/status").json(), json!([]));
}

#[test]
fn regions_that_are_not_what_they_seem_are_errors_and_the_gateway_goes_on() {
    let cluster = sharing("memory-hostile");
    let (_gateway, addr) = cluster.gateway(&[]);
    let _backend = cluster.backend("a");
    let mut http = Http::connect(&addr);
    let object = Object::new("hostile", &[7; 4096]);
    refused(&object.register(&mut http, "r", 4090, 8), 400, "the object has 4096");
    refused(&object.register(&mut http, "r", u64::MAX, 8), 400, "part of no object");
    for key in ["../../etc/passwd", "a/b", "/..", "no-such-object"] {
        let answer = post(&mut http, "region/r/register", &json!({ "key": key, "byte_size": 8 }));
        assert_eq!(answer.status, 400, "{key}: {answer:?}");
    }
    refused(&object.register(&mut http, "r", 0, 2 << 20), 400, "the object has 4096");
    assert_eq!(object.register(&mut http, "r", 0, 4096).status, 200);
    refused(&object.register(&mut http, "r", 0, 8), 400, "unregister it first");
    let cases = [
        ((1, ("r", 4092, 8), ("r", 0, 8)), 400, "not within its 4096 bytes"),
        ((1, ("r", u64::MAX, 8), ("r", 0, 8)), 400, "not within its 4096 bytes"),
        ((1, ("r", 0, 16), ("r", 0, 8)), 400, "16 bytes of shared memory; its shape makes 8"),
        ((1, ("r", 0, 8), ("r", 4090, 8)), 400, "not within its 4096 bytes"),
        ((1, ("r", 0, 8), ("r", 0, 7)), 400, "8 bytes and room for 7"),
        ((1, ("r", 0, 8), ("other", 0, 8)), 404, "registered as \"other\""),
    ];
    for ((rows, input, output), status, words) in cases {
        refused(&http.post(QUICK, "", &request(rows, input, output)), status, words);
    }
    object.shorten(100);
    let cut = http.post(QUICK, "", &request(1, ("r", 96, 8), ("r", 0, 8)));
    refused(&cut, 400, "shorter than when it was registered");
    let cut = http.post(QUICK, "", &request(1, ("r", 0, 8), ("r", 96, 8)));
    refused(&cut, 400, "shorter than when it was registered");
    assert_eq!(object.bytes().len(), 100, "nothing made it longer");
    assert_eq!(http.post(QUICK, "", &request(1, ("r", 0, 8), ("r", 8, 8))).status, 200);
    assert_eq!(object.bytes()[8..16], checksum(&[7; 8]));
}

#[test]
fn a_region_stays_registered_while_a_request_may_write_there() {
    let cluster = sharing("memory-used");
    let (gateway, addr) = cluster.gateway(&["--metrics", "127.0.0.1:0"]);
    let metrics = gateway.metrics_addr();
    let _backend = cluster.backend("b");
    let object = Object::new("used", &[7; 64]);
    let (mut busy, mut http) = (Http::connect(&addr), Http::connect(&addr));
    assert_eq!(object.register(&mut http, "r", 0, 64).status, 200);
    await_metric(&metrics, "baton_gateway_shared_bytes ", 64.0);
    busy.send("POST", SLOW, "", &request(1, ("r", 0, 8), ("r", 0, 8)));
    await_metric(&metrics, "baton_client_slots_in_use ", 1.0);
    for call in ["region/r/unregister", "unregister"] {
        refused(&post(&mut http, call, &Value::Null), 429, "requests use the shared memory \"r\"");
    }
    drop(busy);
    await_metric(&metrics, "baton_gateway_requests_abandoned_total ", 1.0);
    assert_eq!(post(&mut http, "unregister", &Value::Null).status, 200);
    await_metric(&metrics, "baton_gateway_shared_regions ", 0.0);
}

#[test]
fn there_is_none_unless_the_cluster_file_says_so_and_for_other_hosts_there_is_none() {
    let cluster = Cluster::quick_and_slow("memory-off");
    let (_gateway, addr) = cluster.gateway(&[]);
    let mut http = Http::connect(&addr);
    let object = Object::new("off", &[7; 64]);
    refused(&object.register(&mut http, "r", 0, 64), 501, "shared_memory_mib");
    refused(&http.get("/v2/systemsharedmemory/status"), 501, "shared_memory_mib");
    let infer = http.post(QUICK, "", &request(1, ("r", 0, 8), ("r", 0, 8)));
    refused(&infer, 501, "shared_memory_mib");
    assert_eq!(post(&mut http, "unregister", &Value::Null).status, 200, "clients call it first");
    let cluster = sharing("memory-open");
    let output = run(&cluster.gateway_args(&["--http", "0.0.0.0:0"]));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("open to other hosts"), "{said}");
}

/// A parameter of a tensor.
#[derive(Clone, PartialEq, Message)]
struct Parameter {
    #[prost(oneof = "Choice", tags = "2, 3")]
    choice: Option<Choice>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Choice {
    #[prost(int64, tag = "2")]
    Int64(i64),
    #[prost(string, tag = "3")]
    Text(String),
}

#[derive(Clone, PartialEq, Message)]
struct Ask {
    #[prost(string, tag = "1")]
    model: String,
    #[prost(message, repeated, tag = "5")]
    inputs: Vec<Input>,
    #[prost(message, repeated, tag = "6")]
    outputs: Vec<Output>,
}

#[derive(Clone, PartialEq, Message)]
struct Input {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    datatype: String,
    #[prost(int64, repeated, tag = "3")]
    shape: Vec<i64>,
    #[prost(map = "string, message", tag = "4")]
    parameters: HashMap<String, Parameter>,
}

#[derive(Clone, PartialEq, Message)]
struct Output {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(map = "string, message", tag = "2")]
    parameters: HashMap<String, Parameter>,
}

#[derive(Clone, PartialEq, Message)]
struct Region {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    key: String,
    #[prost(uint64, tag = "3")]
    offset: u64,
    #[prost(uint64, tag = "4")]
    byte_size: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Regions {
    #[prost(map = "string, message", tag = "1")]
    regions: HashMap<String, Region>,
}

fn parameters(offset: i64) -> HashMap<String, Parameter> {
    let all = [
        ("region", Choice::Text("r".into())),
        ("offset", Choice::Int64(offset)),
        ("byte_size", Choice::Int64(8)),
    ];
    let parameter =
        |(name, choice)| (format!("shared_memory_{name}"), Parameter { choice: Some(choice) });
    all.map(parameter).into()
}

#[test]
fn grpc_has_the_same_calls_and_an_empty_entry_for_an_answer_that_lies_elsewhere() {
    let cluster = sharing("memory-grpc");
    let (_gateway, addr) = cluster.gateway(&[]);
    let _backend = cluster.backend("a");
    let grpc = Grpc::connect(&addr);
    let call = |method: &str, message: &[u8]| grpc.call(method, None, message);
    let object = Object::new("grpc", &(0..64).collect::<Vec<u8>>());
    let region =
        Region { name: "r".into(), key: format!("/{}", object.key), offset: 8, byte_size: 48 };
    assert_eq!(call("SystemSharedMemoryRegister", &region.encode_to_vec()).code(), 0);
    let status = call("SystemSharedMemoryStatus", &[]);
    let known = Regions::decode(status.message()).unwrap();
    assert_eq!(known.regions, HashMap::from([("r".to_owned(), region.clone())]));
    let input = Input {
        name: "input".into(),
        datatype: "UINT8".into(),
        shape: vec![1, 8],
        parameters: parameters(8),
    };
    let output = |offset| Output { name: "output".into(), parameters: parameters(offset) };
    let plain = Output { name: "output".into(), parameters: HashMap::new() };
    let outputs = vec![output(16), plain];
    let ask = Ask { model: "quick".into(), inputs: vec![input.clone()], outputs };
    let answer = call("ModelInfer", &ask.encode_to_vec());
    assert_eq!(answer.code(), 0, "{answer:?}");
    let answer = InferResponse::decode(answer.message()).unwrap();
    let expected = checksum(&object.bytes()[16..24]);
    assert_eq!(answer.raw, [vec![], expected.to_vec()]);
    assert_eq!(object.bytes()[24..32], expected);
    let outputs = vec![output(41)];
    let past = call("ModelInfer", &Ask { outputs, ..ask }.encode_to_vec());
    assert_eq!(past.code(), 3, "{past:?}");
    assert!(past.words().contains("not within its 48 bytes"), "{past:?}");
    let gone = Region { name: "r".into(), ..Region::default() }.encode_to_vec();
    assert_eq!(call("SystemSharedMemoryUnregister", &gone).code(), 0);
    assert_eq!(call("SystemSharedMemoryStatus", &gone).code(), 5);
}

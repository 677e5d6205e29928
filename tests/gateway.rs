//! A gateway among processes: what its clients get over HTTP for each way in which a task can end.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use std::thread;
use std::time::Duration;

use baton_backend::execute::checksum;
use rustix::process::Signal;
use serde_json::json;
use support::gateway::QUICK_AND_SLOW;
use support::http::{Answer, Http};
use support::prometheus::{self, await_metric};
use support::{Cluster, Folder};

const QUICK: &str = "/v2/models/quick/infer";
const SLOW: &str = "/v2/models/slow/infer";
const READY: &str = "/v2/health/ready";

/// Asks until the answer has this status.
fn await_status(http: &mut Http, path: &str, status: u16) {
    let is_so = |_| {
        thread::park_timeout(Duration::from_millis(100));
        http.get(path).status == status
    };
    assert!((0..600).any(is_so), "{path} is not {status}");
}

/// A request with these rows of eight bytes.
fn rows(rows: &[[u8; 8]]) -> Vec<u8> {
    let shape = [rows.len(), 8];
    let input = json!({ "name": "input", "shape": shape, "datatype": "UINT8", "data": rows });
    json!({ "id": "7", "inputs": [input] }).to_string().into_bytes()
}

fn one() -> Vec<u8> {
    rows(&[[1, 2, 3, 4, 5, 6, 7, 8]])
}

fn check_hints(answer: &Answer) {
    let number = |name: &str| -> u64 {
        let text = answer.header(name).unwrap_or_else(|| panic!("no {name}: {answer:?}"));
        text.parse().unwrap()
    };
    let (seconds, ms) = (number("retry-after"), number("retry-after-ms"));
    assert!(ms > 0 && seconds == ms.div_ceil(1_000), "{answer:?}");
    let words = format!("asked again in {ms} ms it might be accepted");
    let named = answer.error().contains(&words) || answer.status == 503;
    assert!(named, "{answer:?}");
}

#[test]
fn rows_of_a_request_are_tasks_and_their_answers_one() {
    let cluster = Cluster::quick_and_slow("gateway-rows");
    let (gateway, addr) = cluster.gateway(&[]);
    let mut http = Http::connect(&addr);
    let none = http.post(QUICK, "", &one());
    assert_eq!(none.status, 503, "{none:?}");
    assert_eq!(none.header("baton-outcome"), Some("dropped/no_backend"));
    check_hints(&none);
    let _backend = cluster.backend("a");
    let given = [[1; 8], [2; 8], [3; 8]];
    let answer = http.post(QUICK, "", &rows(&given));
    assert_eq!((answer.status, answer.header("baton-outcome")), (200, Some("completed")));
    let expected: Vec<u8> = given.iter().flat_map(|row| checksum(row)).collect();
    let output =
        json!({ "name": "output", "datatype": "UINT8", "shape": [3, 8], "data": expected });
    let said =
        json!({ "id": "7", "model_name": "quick", "model_version": "1", "outputs": [output] });
    assert_eq!(answer.json(), said);
    let answer = http.get("/v2/models/quick/versions/1/stats").json();
    let stats = &answer["model_stats"][0];
    assert_eq!((&stats["name"], &stats["inference_count"]), (&json!("quick"), &json!(3)));
    assert_eq!(stats["inference_stats"]["success"]["count"], 1);
    assert_eq!(stats["inference_stats"]["fail"]["count"], 1);
    gateway.signal(Signal::USR1);
    let counters = gateway.behind("counted so far");
    assert!(counters.contains("completed=3"), "{counters}");
}

/// As curl sends what it reads from a pipe.
#[test]
fn a_body_in_chunks_is_a_request_like_any_other() {
    let cluster = Cluster::quick_and_slow("gateway-chunked");
    let (_gateway, addr) = cluster.gateway(&["--body-mib", "1"]);
    let _backend = cluster.backend("a");
    let mut http = Http::connect(&addr);
    let body = rows(&[[1; 8], [9; 8]]);
    let whole = http.post(QUICK, "", &body);
    for length in [1, 7, body.len()] {
        let pieces: Vec<&[u8]> = body.chunks(length).collect();
        http.send_chunked(QUICK, "", &pieces);
        let answer = http.answer();
        assert_eq!((answer.status, answer.body), (200, whole.body.clone()), "pieces of {length}");
    }
    let kib = [b' '; 1 << 10];
    http.send_chunked(QUICK, "", &[&kib[..]; 1_025]);
    assert_eq!(http.answer().status, 413, "its length is known at the end only");
}

#[test]
fn the_gateway_and_its_models_are_ready_while_a_backend_is_connected() {
    let cluster = Cluster::quick_and_slow("gateway-ready");
    let (_gateway, addr) = cluster.gateway(&[]);
    let mut http = Http::connect(&addr);
    let mut become_ready = |status: u16| {
        await_status(&mut http, "/v2/models/quick/ready", status);
        await_status(&mut http, READY, status);
    };
    become_ready(503);
    let backend = cluster.backend("a");
    become_ready(200);
    let body = Http::connect(&addr).get("/v2/models/quick/ready").body;
    assert_eq!(body, br#"{"name":"quick","ready":true}"#, "KServe's client reads it");
    backend.signal(Signal::KILL);
    become_ready(503);
}

#[test]
fn tensors_travel_as_bytes_both_ways() {
    let cluster = Cluster::quick_and_slow("gateway-bytes");
    let (_gateway, addr) = cluster.gateway(&[]);
    let _backend = cluster.backend("a");
    let mut http = Http::connect(&addr);
    let input = json!({ "name": "input", "shape": [2, 8], "datatype": "UINT8", "parameters": { "binary_data_size": 16 } });
    let head =
        json!({ "inputs": [input], "parameters": { "binary_data_output": true } }).to_string();
    let bytes: Vec<u8> = (0..16).collect();
    let length = format!("inference-header-content-length: {}\r\n", head.len());
    let answer = http.post(QUICK, &length, &[head.as_bytes(), &bytes].concat());
    assert_eq!(answer.status, 200, "{answer:?}");
    let json_bytes: usize =
        answer.header("inference-header-content-length").unwrap().parse().unwrap();
    let expected: Vec<u8> = bytes.chunks(8).flat_map(checksum).collect();
    assert_eq!(answer.body[json_bytes..], expected);
    let short = http.post(QUICK, &length, &[head.as_bytes(), &bytes[1..]].concat());
    assert_eq!(short.status, 400, "{short:?}");
    let past = http.post(QUICK, "inference-header-content-length: 9999\r\n", head.as_bytes());
    assert_eq!(past.status, 400, "{past:?}");
}

#[test]
fn what_cannot_be_is_refused_with_its_status_and_the_connection_goes_on() {
    let cluster = Cluster::quick_and_slow("gateway-refused");
    let (_gateway, addr) = cluster.gateway(&["--body-mib", "1"]);
    let _backend = cluster.backend("a");
    let mut http = Http::connect(&addr);
    for how in [
        "baton-timeout-us: 1000\r\n",
        "grpc-timeout: 1m\r\n",
        "x-envoy-expected-rq-timeout-ms: 1\r\n",
    ] {
        let late = http.post(QUICK, how, &one());
        assert_eq!(
            (late.status, late.header("baton-outcome")),
            (504, Some("dropped/deadline_passed")),
            "{how}"
        );
        assert_eq!(late.header("retry-after"), None);
    }
    let mut timeout: serde_json::Value = serde_json::from_slice(&one()).unwrap();
    timeout["parameters"] = json!({ "timeout": 2_000 });
    let late = http.post(QUICK, "", timeout.to_string().as_bytes());
    assert_eq!(late.status, 504);
    assert!(late.error().starts_with("dropped: deadline_passed (its "), "{late:?}");
    let five = rows(&[[0; 8]; 5]);
    type Case<'a> = (&'a str, &'a str, &'a str, &'a [u8], u16, &'a str);
    let cases: [Case<'_>; 9] = [
        ("POST", "/v2/models/other/infer", "", &one(), 404, "this gateway has: quick, slow"),
        ("POST", "/v2/models/quick/versions/2/infer", "", &one(), 404, "version"),
        ("GET", QUICK, "", b"", 405, "takes POST"),
        ("POST", QUICK, "", b"{", 400, "no inference request"),
        ("POST", QUICK, "", &five, 400, "give 1 to 4"),
        ("POST", QUICK, "grpc-timeout: soon\r\n", &one(), 400, "no time"),
        ("POST", QUICK, "content-encoding: br\r\n", &one(), 415, "use gzip, deflate or none"),
        ("POST", QUICK, "content-encoding: gzip\r\n", &one(), 400, "cannot be inflated"),
        ("POST", "/v2/repository/models/quick/load", "", b"{}", 501, "--model-control"),
    ];
    for (method, path, headers, body, status, words) in cases {
        http.send(method, path, headers, body);
        let answer = http.answer();
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        assert!(answer.error().contains(words), "{path}: {answer:?}");
    }
    for (method, path, allow) in [("GET", QUICK, "POST"), ("POST", "/v2", "GET, HEAD")] {
        http.send(method, path, "", b"");
        assert_eq!(http.answer().header("allow"), Some(allow), "{method} {path}");
    }
    for (path, status) in [("/v2/health/live", 200), ("/v2/models/quick", 200), (QUICK, 405)] {
        http.send("HEAD", path, "", b"");
        assert_eq!(http.answer().status, status, "HEAD {path}");
    }
    assert_eq!(http.post(QUICK, "", &one()).status, 200);
    http.write(
        b"POST /v2/models/quick/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n",
    );
    assert_eq!(http.answer().status, 413);
}

#[test]
fn a_client_that_goes_away_frees_its_slots_and_one_too_many_comes_again_later() {
    let cluster = Cluster::quick_and_slow("gateway-slots");
    let (gateway, addr) = cluster.gateway(&["--metrics", "127.0.0.1:0"]);
    let metrics = gateway.metrics_addr();
    let _backend = cluster.backend("b");
    let mut clients: Vec<Http> = (0..3).map(|_| Http::connect(&addr)).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        client.send("POST", SLOW, "", &one());
        await_metric(&metrics, "baton_client_slots_in_use ", (at + 1) as f64);
    }
    await_metric(&metrics, "baton_gateway_held_bytes ", 0.0);
    let mut http = Http::connect(&addr);
    let shed = http.post(SLOW, "", &rows(&[[0; 8]; 2]));
    assert_eq!(shed.status, 429, "two rows and one slot: {shed:?}");
    check_hints(&shed);
    await_metric(&metrics, "baton_client_slots_in_use ", 3.0);
    // The first one executes; a batch is not taken back.
    clients.truncate(1);
    await_metric(&metrics, "baton_client_slots_in_use ", 1.0);
    await_metric(&metrics, "baton_gateway_requests_abandoned_total ", 2.0);
    http.send("POST", SLOW, "", &rows(&[[0; 8]; 3]));
    await_metric(&metrics, "baton_client_slots_in_use ", 4.0);
    assert_eq!(Http::connect(&addr).post(SLOW, "", &one()).status, 429);
}

#[test]
fn without_a_scheduler_the_gateway_says_so_and_serves_again_when_it_is_back() {
    let mut cluster = Cluster::quick_and_slow("gateway-scheduler");
    let (_gateway, addr) = cluster.gateway(&[]);
    let mut http = Http::connect(&addr);
    let _backend = cluster.backend("a");
    await_status(&mut http, READY, 200);
    for (path, said) in [("/v2/health/live", r#"{"live":true}"#), (READY, r#"{"ready":true}"#)] {
        let answer = http.get(path);
        let body = String::from_utf8_lossy(&answer.body);
        assert_eq!((answer.status, &*body), (200, said), "KServe's client reads it: {path}");
    }
    cluster.scheduler.signal(Signal::KILL);
    cluster.scheduler.await_end();
    await_status(&mut http, READY, 503);
    assert_eq!(http.get("/v2/health/live").status, 200);
    assert_eq!(http.get("/v2/models/quick/ready").status, 503);
    let lost = http.post(QUICK, "", &one());
    assert_eq!(lost.status, 503, "{lost:?}");
    check_hints(&lost);
    cluster.kill_and_restart_scheduler();
    await_status(&mut http, READY, 200);
    assert_eq!(http.post(QUICK, "", &one()).status, 200);
}

#[test]
fn a_gateway_that_ends_answers_what_is_under_way() {
    let text = QUICK_AND_SLOW.replace("beta_ms = 100000", "beta_ms = 1000");
    let cluster = Cluster::of(Folder::new("gateway-drain"), &text);
    let (gateway, addr) = cluster.gateway(&["--metrics", "127.0.0.1:0"]);
    let metrics = gateway.metrics_addr();
    let _backends = ["a", "b"].map(|name| cluster.backend(name));
    let (mut idle, mut busy) = (Http::connect(&addr), Http::connect(&addr));
    assert_eq!(idle.get("/v2/health/live").status, 200);
    assert_eq!(busy.post(QUICK, "", &one()).status, 200);
    let text = prometheus::get(&metrics, "/metrics").unwrap();
    let lag = text.lines().find_map(|line| line.strip_prefix("baton_gateway_lag_seconds "));
    assert!(lag.unwrap().parse::<f64>().unwrap() > 0.0, "an answer has waited for the gateway");
    busy.send("POST", SLOW, "", &one());
    await_metric(&metrics, "baton_client_slots_in_use ", 1.0);
    gateway.signal(Signal::TERM);
    assert!(idle.is_closed(), "it is not needed any more");
    assert_eq!(busy.answer().status, 200);
    gateway.line("left");
    assert!(gateway.finish().0.success());
}

#[test]
fn each_thread_serves_connections_and_all_of_them_end_in_order() {
    let cluster = Cluster::quick_and_slow("gateway-threads");
    let more = ["--threads", "3", "--grpc", "127.0.0.1:0", "--metrics", "127.0.0.1:0"];
    let (gateway, addr) = cluster.gateway(&more);
    let metrics = gateway.metrics_addr();
    let _backend = cluster.backend("a");
    assert_eq!(gateway.threads("baton-gateway-"), 3);
    let mut clients: Vec<Http> = (0..24).map(|_| Http::connect(&addr)).collect();
    for client in &mut clients {
        client.send("POST", QUICK, "", &one());
    }
    // Four slots for the tasks of all threads: who finds none hears it.
    let answers: Vec<u16> = clients.iter_mut().map(|client| client.answer().status).collect();
    assert!(answers.contains(&200), "{answers:?}");
    assert!(answers.iter().all(|status| [200, 429].contains(status)), "{answers:?}");
    await_metric(&metrics, "baton_gateway_connections ", 24.0);
    await_metric(&metrics, "baton_client_slots_in_use ", 0.0);
    gateway.signal(Signal::TERM);
    assert!(clients.iter_mut().all(Http::is_closed));
    gateway.line("left");
    assert!(gateway.finish().0.success());
}

#[test]
fn a_thread_that_serves_alone_makes_the_clients_passes() {
    let cluster = Cluster::quick_and_slow("gateway-alone");
    let (gateway, addr) = cluster.gateway(&["--threads", "1", "--metrics", "127.0.0.1:0"]);
    let metrics = gateway.metrics_addr();
    let backend = cluster.backend("a");
    assert_eq!((gateway.threads("baton-gateway-"), gateway.threads("baton-client")), (1, 0));
    let mut clients: Vec<Http> = (0..4).map(|_| Http::connect(&addr)).collect();
    for _ in 0..5 {
        clients.iter_mut().for_each(|client| client.send("POST", QUICK, "", &one()));
        assert!(clients.iter_mut().all(|client| client.answer().status == 200));
    }
    await_metric(&metrics, "baton_client_completed_total ", 20.0);
    await_metric(&metrics, "baton_client_sent_by_caller_total ", 0.0);
    drop(backend);
    gateway.signal(Signal::TERM);
    gateway.line("left");
    assert!(gateway.finish().0.success());
}

#[test]
fn connections_are_bounded_and_one_too_many_hears_why() {
    let cluster = Cluster::quick_and_slow("gateway-connections");
    let (gateway, addr) = cluster.gateway(&["--connections", "2", "--metrics", "127.0.0.1:0"]);
    let metrics = gateway.metrics_addr();
    let mut first = Http::connect(&addr);
    assert_eq!(first.get("/v2/health/live").status, 200);
    let mut second = Http::connect(&addr);
    assert_eq!(second.get("/v2/health/live").status, 200);
    let refused = Http::connect(&addr).answer();
    assert_eq!(refused.status, 503);
    assert!(refused.error().contains("as many connections as it may"));
    drop(second);
    await_metric(&metrics, "baton_gateway_connections ", 1.0);
    assert_eq!(Http::connect(&addr).get("/v2/health/live").status, 200);
    await_metric(&metrics, "baton_gateway_connections_refused_total ", 1.0);
}

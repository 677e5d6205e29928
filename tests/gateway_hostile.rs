//! What a gateway's worst clients get, over HTTP/1 and HTTP/2: they are cut off, their slots come back, and others are served
//! meanwhile.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

#[path = "../rdma/tests/common/certs.rs"]
mod certs;
#[path = "support/frames.rs"]
mod frames;
mod support;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use baton_client::{Client, ClientConfig, Clock};
use baton_gateway::{Gateway, GatewayConfig, Limits, TlsFiles};
use baton_metrics::MetricsServer;
use certs::Authority;
use flate2::Compression;
use flate2::write::GzEncoder;
use frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, Frames, HEADERS, RESET, frame, head, header,
};
use rustix::process::Signal;
use serde_json::json;
use support::Cluster;
use support::http::Http;
use support::operator::status;
use support::prometheus::await_metric;

const QUICK: &str = "/v2/models/quick/infer";
const SLOW: &str = "/v2/models/slow/infer";
const PATIENCE: Duration = Duration::from_millis(500);

fn one() -> Vec<u8> {
    let input =
        json!({ "name": "input", "shape": [1, 8], "datatype": "UINT8", "data": vec![7; 8] });
    json!({ "inputs": [input] }).to_string().into_bytes()
}

/// A gateway in the test's process, with bounds of the test's own.
struct Served {
    addr: String,
    metrics: MetricsServer,
    gateway: Option<Gateway>,
    cluster: Cluster,
}

impl Served {
    fn start(test: &str, limits: Limits) -> Self {
        Self::with_tls(test, limits, None)
    }

    fn with_tls(test: &str, limits: Limits, tls: Option<TlsFiles>) -> Self {
        let cluster = Cluster::quick_and_slow(test);
        let clock = Clock::start();
        let config = ClientConfig::new(cluster.addr().parse().unwrap()).slots_per_model(4);
        let client = Client::connect(config.clock(clock)).unwrap();
        let config = GatewayConfig {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            slots_per_model: 4,
            limits,
            threads: 2,
            tls,
            tokens: Vec::new(),
            images: Vec::new(),
            repository: None,
            shared_memory_bytes: None,
        };
        let gateway = Gateway::start(client, None, clock, &config).unwrap();
        let addr = gateway.addrs()[0].to_string();
        let metrics = MetricsServer::start("127.0.0.1:0".parse().unwrap(), gateway.metrics());
        Self { addr, metrics: metrics.unwrap(), gateway: Some(gateway), cluster }
    }

    fn await_metric(&self, name: &str, value: u64) {
        let name = format!("baton_{name} ");
        await_metric(&self.metrics.addr().to_string(), &name, value as f64);
    }

    /// Others are served, and nothing is kept of who was here before.
    fn serves_others(&self) {
        let answer = Http::connect(&self.addr).post(QUICK, "", &one());
        assert_eq!(answer.status, 200, "{answer:?}");
        self.await_metric("gateway_connections", 0);
        self.await_metric("gateway_held_bytes", 0);
        self.await_metric("client_slots_in_use", 0);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let left = self.gateway.take().map(Gateway::drain);
        if let (Some(left), false) = (left, thread::panicking()) {
            left.unwrap();
        }
    }
}

/// Sends a byte now and then until the gateway answers or closes the connection; what it said.
fn trickle(addr: &str, begin: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    stream.write_all(begin).unwrap();
    let mut said = Vec::new();
    for _ in 0..3_000 {
        let _ = stream.write_all(b"1");
        let mut bytes = [0; 4_096];
        match stream.read(&mut bytes) {
            Ok(0) => return said,
            Ok(length) => said.extend_from_slice(&bytes[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return said,
        }
    }
    panic!("it stays open");
}

#[test]
fn who_sends_little_for_long_is_cut_off() {
    let patience = Limits { first_request: PATIENCE, body: PATIENCE, ..Limits::default() };
    let served = Served::start("hostile-slow", patience);
    let _backend = served.cluster.backend("a");
    thread::scope(|scope| {
        scope.spawn(|| {
            let said = trickle(&served.addr, b"GET /v2/health/live HTTP/1.1\r\nx-header: ");
            assert_eq!(String::from_utf8_lossy(&said), "", "a head that never ends");
        });
        scope.spawn(|| assert_eq!(trickle(&served.addr, b""), b"", "a method that never ends"));
        scope.spawn(|| {
            let head = format!("POST {QUICK} HTTP/1.1\r\nhost: x\r\ncontent-length: 99999\r\n\r\n");
            let said = trickle(&served.addr, head.as_bytes());
            assert!(said.starts_with(b"HTTP/1.1 408 "), "{}", String::from_utf8_lossy(&said));
        });
        scope.spawn(|| Frames::connect(&served.addr, &[]).farewell());
        scope.spawn(|| {
            let mut frames = Frames::connect(&served.addr, &[]);
            assert!(frames.send(HEADERS, END_HEADERS, 1, &head(true, QUICK)));
            while frames.next().is_some_and(|(kind, ..)| kind != HEADERS) {}
        });
    });
    served.await_metric("gateway_connections_idle_total", 3);
    served.await_metric("gateway_requests_total{protocol=\"http\",result=\"slow\"}", 2);
    served.serves_others();
}

#[test]
fn a_handshake_that_never_ends_is_cut_off() {
    let authority = Authority::new();
    let issued = authority.issue("gateway.test");
    let tls = TlsFiles { cert: issued.cert, key: issued.key };
    let patience = Limits { first_request: PATIENCE, ..Limits::default() };
    let served = Served::with_tls("hostile-handshake", patience, Some(tls));
    // The beginning of a record with a handshake, which is said to have 512 bytes.
    for begin in [&b""[..], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"] {
        let mut stream = TcpStream::connect(&served.addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(begin).unwrap();
        let mut said = Vec::new();
        stream.read_to_end(&mut said).unwrap();
        assert_eq!(said, b"");
    }
    served.await_metric("gateway_connections_idle_total", 2);
    served.await_metric("gateway_connections", 0);
}

#[test]
fn a_body_counts_as_memory_while_it_arrives() {
    let served = Served::start("hostile-memory", Limits::default());
    let mut stream = TcpStream::connect(&served.addr).unwrap();
    let head = format!("POST {QUICK} HTTP/1.1\r\nhost: x\r\ncontent-length: 200000\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&[b' '; 100_000]).unwrap();
    served.await_metric("gateway_held_bytes", 100_000);
    drop(stream);
    served.await_metric("gateway_held_bytes", 0);
}

#[test]
fn who_takes_no_answer_is_cut_off() {
    let served = Served::start("hostile-reader", Limits { answer: PATIENCE, ..Limits::default() });
    let _backend = served.cluster.backend("a");
    let mut who_takes_it = Http::connect(&served.addr);
    assert_eq!(who_takes_it.get("/v2").status, 200);
    // No room for a byte of any answer: SETTINGS_INITIAL_WINDOW_SIZE is 0.
    let mut frames = Frames::connect(&served.addr, &[(4, 0)]);
    assert!(frames.send(HEADERS, END_HEADERS | END_STREAM, 1, &head(false, "/v2")));
    frames.farewell();
    served.await_metric("gateway_connections_stalled_total", 1);
    // Requests without end, whose answers nobody reads.
    let mut stream = TcpStream::connect(&served.addr).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    let requests = b"GET /v2/models/quick HTTP/1.1\r\nhost: x\r\n\r\n".repeat(1_000);
    let mut sent = 0;
    while stream.write_all(&requests).is_ok() {
        sent += requests.len();
        assert!(sent < 1 << 30, "it takes everything");
    }
    served.await_metric("gateway_connections_stalled_total", 2);
    assert_eq!(who_takes_it.get("/v2").status, 200, "it took its answer long ago");
    drop(who_takes_it);
    served.serves_others();
}

#[test]
fn requests_that_are_reset_at_once_leave_nothing_behind() {
    let served = Served::start("hostile-reset", Limits::default());
    let (_a, b) = (served.cluster.backend("a"), served.cluster.backend("b"));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let answer = Http::connect(&served.addr).post(QUICK, "", &one());
                assert_eq!(answer.status, 200, "{answer:?}");
            }
        });
        let body = one();
        let mut cut_off = 0;
        for _ in 0..10 {
            let mut frames = Frames::connect(&served.addr, &[]);
            let is_closed = (0..500).any(|request| {
                let stream = 2 * request + 1;
                let all = [
                    frame(HEADERS, END_HEADERS, stream, &head(true, SLOW)),
                    frame(DATA, END_STREAM, stream, &body),
                    frame(RESET, 0, stream, &8_u32.to_be_bytes()),
                ];
                !frames.send_all(&all.concat())
            });
            drop(frames);
            cut_off += usize::from(is_closed);
        }
        eprintln!("{cut_off} of 10 connections were closed before they had sent all");
        is_over.store(true, Ordering::Relaxed);
    });
    // A task that executes is not taken back; one that was cancelled before is no task any more.
    drop(b);
    served.serves_others();
}

#[test]
fn headers_without_end_are_refused() {
    let served = Served::start("hostile-headers", Limits::default());
    let _backend = served.cluster.backend("a");
    let mut http = Http::connect(&served.addr);
    http.write(b"GET /v2 HTTP/1.1\r\nhost: x\r\n");
    let header_line = format!("x-header: {}\r\n", "v".repeat(1_000));
    http.write(header_line.repeat(40).as_bytes());
    assert_eq!(http.answer().status, 431);
    assert!(http.is_closed());
    // Over HTTP/2 a request with 40 KiB of headers is refused, and the next one on the connection answered.
    let mut frames = Frames::connect(&served.addr, &[]);
    let long = [head(false, "/v2/health/live"), header("x-header", 40 << 10)].concat();
    let (first, rest) = long.split_at(16 << 10);
    let (second, third) = rest.split_at(16 << 10);
    assert!(frames.send(HEADERS, END_STREAM, 1, first));
    assert!(frames.send(CONTINUATION, 0, 1, second));
    assert!(frames.send(CONTINUATION, END_HEADERS, 1, third));
    assert!(frames.send(HEADERS, END_HEADERS | END_STREAM, 3, &head(false, "/v2/health/live")));
    let mut answered = Vec::new();
    while !answered.contains(&3) {
        let (kind, stream, _) = frames.next().expect("the connection goes on");
        answered.extend((kind == HEADERS || kind == RESET).then_some(stream));
    }
    assert!(answered.contains(&1), "{answered:?}");
    drop(frames);
    // Headers that never end are not waited for.
    let mut frames = Frames::connect(&served.addr, &[]);
    assert!(frames.send(HEADERS, END_STREAM, 1, &head(false, "/v2")));
    let more = header("x-header", 8 << 10);
    let is_closed = (0..10_000).any(|_| !frames.send(CONTINUATION, 0, 1, &more));
    assert!(is_closed, "80 MiB of headers were taken");
    served.serves_others();
}

#[test]
fn who_closes_its_sending_side_is_gone() {
    let served = Served::start("hostile-half", Limits::default());
    let (_a, b) = (served.cluster.backend("a"), served.cluster.backend("b"));
    let head =
        format!("POST {SLOW} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", one().len());
    let send = || {
        let mut stream = TcpStream::connect(&served.addr).unwrap();
        stream.write_all(&[head.as_bytes(), &one()].concat()).unwrap();
        stream
    };
    // The first one executes for longer than the test lasts; the second waits.
    let first = send();
    served.await_metric("client_slots_in_use", 1);
    let mut second = send();
    served.await_metric("client_slots_in_use", 2);
    second.shutdown(Shutdown::Write).unwrap();
    served.await_metric("client_slots_in_use", 1);
    served.await_metric("gateway_requests_abandoned_total", 1);
    let mut said = Vec::new();
    second.read_to_end(&mut said).unwrap();
    assert_eq!(said, b"");
    drop((first, b));
    served.serves_others();
}

#[test]
fn bodies_that_are_none_are_refused_and_the_connection_goes_on() {
    let limits = Limits { body_bytes: 4 << 20, ..Limits::default() };
    let served = Served::start("hostile-bodies", limits);
    let _backend = served.cluster.backend("a");
    let mut http = Http::connect(&served.addr);
    let deep = |open: &str| open.repeat((3 << 20) / open.len()).into_bytes();
    let inputs =
        |rest: &str| format!("{{\"inputs\":[{{\"name\":\"input\",{rest}}}]}}").into_bytes();
    let long = "9".repeat(1 << 20);
    let bodies = [
        deep("["),
        deep("{\"inputs\":"),
        [b"{\"unknown\":".to_vec(), deep("[")].concat(),
        inputs("\"shape\":[1,8],\"datatype\":\"UINT8\",\"data\":[1e999999999,0,0,0,0,0,0,0]"),
        inputs(&format!("\"shape\":[{long},8],\"datatype\":\"UINT8\",\"data\":[]")),
        inputs(
            "\"shape\":[18446744073709551615,18446744073709551615],\"datatype\":\"UINT8\",\"data\":[]",
        ),
        inputs("\"shape\":[1,8],\"datatype\":\"UINT8\",\"parameters\":{\"binary_data_size\":-1}"),
        [b"{\"inputs\":[{\"name\":\"".to_vec(), vec![0xff; 1_000], b"\"}]}".to_vec()].concat(),
        b"\0".repeat(1_000),
        Vec::new(),
    ];
    for (at, body) in bodies.iter().enumerate() {
        let answer = http.post(QUICK, "", body);
        assert_eq!(answer.status, 400, "{at}: {answer:?}");
        assert!(answer.body.len() < 8_000, "{at}: words of a client come back shortened");
    }
    let padded = |bytes: usize| [one(), vec![b' '; bytes - one().len()]].concat();
    assert_eq!(http.post(QUICK, "", &padded(4 << 20)).status, 200, "as long as a body may be");
    // 48 MiB of nothing in 48 KiB.
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    for _ in 0..48 {
        bomb.write_all(&[b' '; 1 << 20]).unwrap();
    }
    let bomb = bomb.finish().unwrap();
    assert!(bomb.len() < 128 << 10);
    let answer = http.post(QUICK, "content-encoding: gzip\r\n", &bomb);
    assert_eq!(answer.status, 413, "{answer:?}");
    assert_eq!(http.post(QUICK, "", &one()).status, 200, "the connection goes on");
    drop(http);
    served.serves_others();
}

/// What the scheduler says of its frontends: tasks that it has of each.
fn outstanding(cluster: &Cluster) -> Vec<u64> {
    let status = status(cluster);
    let members = status["members"].as_array().unwrap().iter();
    let frontends = members.filter(|member| member["role"] == "frontend");
    frontends.map(|member| member["outstanding"].as_u64().unwrap()).collect()
}

#[test]
fn a_gateway_that_is_killed_in_a_flood_leaves_no_task_and_no_slot_behind() {
    let cluster = Cluster::quick_and_slow("hostile-killed");
    let (_a, _b) = (cluster.backend("a"), cluster.backend("b"));
    for round in 0..4 {
        let (gateway, addr) = cluster.gateway(&[]);
        thread::scope(|scope| {
            for client in 0..8 {
                let (addr, path) = (&addr, if client < 5 { QUICK } else { SLOW });
                scope.spawn(move || flood(addr, path));
            }
            // Every slot of both models is in use, or was a moment ago.
            let is_full = (0..600).any(|_| outstanding(&cluster).iter().sum::<u64>() >= 4);
            assert!(is_full, "{round}: the flood does not arrive");
            gateway.signal(Signal::KILL);
            gateway.await_end();
        });
        let is_gone = (0..600).any(|_| outstanding(&cluster).is_empty());
        assert!(is_gone, "{round}: {:?}", outstanding(&cluster));
    }
    let (_gateway, addr) = cluster.gateway(&[]);
    let mut http = Http::connect(&addr);
    // As many tasks at a time as there are slots: none of them is taken by who is gone.
    for _ in 0..4 {
        let input =
            json!({ "name": "input", "shape": [4, 8], "datatype": "UINT8", "data": vec![7; 32] });
        let answer = http.post(QUICK, "", json!({ "inputs": [input] }).to_string().as_bytes());
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert_eq!(outstanding(&cluster), [0]);
}

/// Asks again and again until the gateway is gone.
fn flood(addr: &str, path: &str) {
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", one().len());
    let request = [head.as_bytes(), &one()].concat();
    while let Ok(mut stream) = TcpStream::connect(addr) {
        let mut bytes = [0; 1_024];
        while stream.write_all(&request).is_ok() && stream.read(&mut bytes).is_ok_and(|n| n > 0) {}
    }
}

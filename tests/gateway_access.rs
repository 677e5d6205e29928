//! Who may use a gateway: certificates, tokens and their quotas.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

#[path = "../rdma/tests/common/certs.rs"]
mod certs;
#[path = "support/grpc.rs"]
mod grpc;
mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use certs::{Authority, Valid};
use grpc::{Grpc, InferRequest, Tensor};
use prost::Message as _;
use rcgen::{CertificateParams, date_time_ymd};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::json;
use support::gateway::QUICK_AND_SLOW;
use support::http::Http;
use support::prometheus::{self, await_metric};
use support::{Cluster, Folder, run};
use tokio_rustls::TlsConnector;

const QUICK: &str = "/v2/models/quick/infer";
const TEAM: &str = "authorization: Bearer 0123456789abcdef\r\n";
const OTHER: &str = "authorization: Bearer fedcba9876543210\r\n";

fn rows(count: usize) -> Vec<u8> {
    let data = vec![7; 8 * count];
    let input = json!({ "name": "input", "shape": [count, 8], "datatype": "UINT8", "data": data });
    json!({ "inputs": [input] }).to_string().into_bytes()
}

fn raw(model: &str) -> Vec<u8> {
    let input = Tensor { name: "input".into(), datatype: "UINT8".into(), shape: vec![1, 8] };
    InferRequest {
        model_name: model.into(),
        inputs: vec![input],
        raw: vec![vec![7; 8]],
        ..Default::default()
    }
    .encode_to_vec()
}

/// A cluster with two tokens: a team's, for one model and with a small quota, and another one.
fn with_tokens(test: &str, more: &str) -> Cluster {
    let folder = Folder::new(test);
    folder.write("team", "0123456789abcdef\n");
    folder.write("other", "fedcba9876543210\n");
    let tokens = "[[gateway.token]]\nname = \"team\"\nfile = \"team\"\nmax_rps = 0.001\nmodels = [\"quick\"]\n\
        [[gateway.token]]\nname = \"other\"\nfile = \"other\"\n";
    Cluster::of(folder, &format!("{QUICK_AND_SLOW}\n{more}\n{tokens}"))
}

#[test]
fn a_token_opens_its_models_as_often_as_its_quota_says() {
    let cluster = with_tokens("access-tokens", "");
    let _backend = cluster.backend("a");
    let (gateway, addr) = cluster.gateway(&["--metrics", "127.0.0.1:0"]);
    let metrics = gateway.metrics_addr();
    let mut http = Http::connect(&addr);
    assert_eq!(http.get("/v2/health/live").status, 200, "probes have no token");
    assert_ne!(http.get("/v2/health/ready").status, 401);
    for path in ["/v2", "/v2/models/stats", "/v2/models/quick", "/v2/models/quick/ready"] {
        assert_eq!(http.get(path).status, 401, "{path}");
    }
    assert_eq!(http.post("/v2/repository/index", "", b"").status, 401);
    let none = http.post(QUICK, "", &rows(1));
    assert_eq!((none.status, none.header("www-authenticate")), (401, Some("Bearer")));
    let wrong = http.post(QUICK, "authorization: Bearer 0123456789abcdeX\r\n", &rows(1));
    assert!(wrong.status == 401 && wrong.error().contains("does not know"), "{wrong:?}");
    let hidden = http.post("/v2/models/slow/infer", TEAM, &rows(1));
    assert!(hidden.status == 404 && hidden.error().ends_with("has: quick"), "{hidden:?}");
    let index = http.post("/v2/repository/index", TEAM, b"").json();
    assert_eq!(index.as_array().map(Vec::len), Some(1), "{index}");
    // Sixteen tasks at once, whatever the rate: four requests of four rows.
    for request in 0..4 {
        let answer = http.post(QUICK, TEAM, &rows(4));
        assert_eq!(answer.status, 200, "{request}: {answer:?}");
    }
    let shed = http.post(QUICK, TEAM, &rows(1));
    assert_eq!((shed.status, shed.header("baton-outcome")), (429, Some("dropped/quota")));
    let hint = |name: &str| shed.header(name).unwrap().parse::<u64>().unwrap();
    let ms = hint("retry-after-ms");
    assert!(ms > 900_000 && hint("retry-after") == ms.div_ceil(1_000), "{shed:?}");
    assert_eq!(http.post(QUICK, OTHER, &rows(1)).status, 200, "each has a quota of its own");
    await_metric(&metrics, "baton_gateway_token_tasks_total{token=\"team\"} ", 16.0);
    await_metric(&metrics, "baton_gateway_token_refused_total{token=\"team\"} ", 1.0);
    await_metric(&metrics, "baton_gateway_token_tasks_total{token=\"other\"} ", 1.0);
}

#[test]
fn over_grpc_a_token_is_metadata_and_the_codes_say_what_is_missing() {
    let cluster = with_tokens("access-grpc", "");
    let _backend = cluster.backend("a");
    let (_gateway, addr) = cluster.gateway(&[]);
    let grpc = Grpc::connect(&addr);
    assert_eq!(grpc.call("ServerLive", None, &[]).code(), 0, "probes have no token");
    assert_eq!(grpc.call("ServerReady", None, &[]).code(), 0);
    for method in ["ServerMetadata", "ModelInfer", "ModelStreamInfer", "RepositoryIndex"] {
        let ended = grpc.call(method, None, &raw("quick"));
        assert!(ended.code() == 16 && ended.words().contains("token"), "{method}: {ended:?}");
    }
    let team = grpc.authorized("Bearer 0123456789abcdef");
    assert_eq!(team.call("ModelInfer", None, &raw("slow")).code(), 5);
    for task in 0..16 {
        let ended = team.call("ModelInfer", None, &raw("quick"));
        assert_eq!(ended.code(), 0, "{task}: {ended:?}");
    }
    let shed = team.call("ModelInfer", None, &raw("quick"));
    assert_eq!((shed.code(), shed.trailer("baton-outcome")), (8, Some("dropped/quota")));
    let ms: u64 = shed.trailer("grpc-retry-pushback-ms").unwrap().parse().unwrap();
    assert!(ms > 900_000, "{shed:?}");
    // A stream says it in its answer, field 1, and goes on.
    let stream = team.call("ModelStreamInfer", None, &raw("quick"));
    assert_eq!(stream.code(), 0);
    assert!(String::from_utf8_lossy(stream.message()).contains("quota of the token"), "{stream:?}");
}

/// A TLS client that trusts an authority.
fn tls_client(authority: &Authority, alpn: &[&[u8]]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.ca()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Arc::new(config)
}

fn name() -> ServerName<'static> {
    ServerName::try_from("gateway.test").unwrap()
}

fn get(addr: &str, authority: &Authority, path: &str) -> std::io::Result<String> {
    ask(addr, authority, path, "")
}

fn ask(addr: &str, authority: &Authority, path: &str, headers: &str) -> std::io::Result<String> {
    let client = ClientConnection::new(tls_client(authority, &[]), name()).unwrap();
    let mut stream = StreamOwned::new(client, TcpStream::connect(addr)?);
    write!(stream, "GET {path} HTTP/1.1\r\n{headers}host: x\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn clients_see_the_gateways_certificate_and_nothing_is_served_in_the_clear() {
    let (authority, other) = (Authority::new(), Authority::named("another"));
    let issued = authority.issue("gateway.test");
    let (cert, key) = (issued.cert.display(), issued.key.display());
    let more = format!("[gateway]\ncert = \"{cert}\"\nkey = \"{key}\"");
    let cluster = with_tokens("access-tls", &more);
    let _backend = cluster.backend("a");
    let (gateway, addr) = cluster.gateway(&["--metrics", "127.0.0.1:0"]);
    let metrics = gateway.metrics_addr();
    let live = get(&addr, &authority, "/v2/health/live").unwrap();
    assert!(live.starts_with("HTTP/1.1 200"), "{live}");
    let server = get(&addr, &authority, "/v2").unwrap();
    assert!(server.starts_with("HTTP/1.1 401"), "{server}");
    assert!(get(&addr, &other, "/v2").is_err(), "another authority's");
    let mut plain = TcpStream::connect(&addr).unwrap();
    plain.write_all(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
    await_metric(&metrics, "baton_gateway_tls_refused_total ", 2.0);
    let secure = Grpc::over(async {
        let stream = tokio::net::TcpStream::connect(&addr).await.unwrap();
        let connector = TlsConnector::from(tls_client(&authority, &[b"h2"]));
        let stream = connector.connect(name(), stream).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        stream
    });
    let secure = secure.authorized("Bearer fedcba9876543210");
    assert_eq!(secure.call("ModelInfer", None, &raw("quick")).code(), 0);
}

#[test]
fn baton_load_shows_a_token_over_tls_and_says_what_it_lacks() {
    let (authority, other) = (Authority::new(), Authority::named("another"));
    let issued = authority.issue("127.0.0.1");
    let (cert, key) = (issued.cert.display(), issued.key.display());
    let more = format!("[gateway]\ncert = \"{cert}\"\nkey = \"{key}\"");
    let cluster = with_tokens("access-load", &more);
    let _backend = cluster.backend("a");
    let (_gateway, addr) = cluster.gateway(&[]);
    let load = |url: &str, more: &[&str]| {
        let args = ["load", "--url", url, "--model", "quick", "--outstanding", "2", "--json"];
        run(&[&args[..], &["--seconds", "1", "--deadline-ms", "20000"], more].concat())
    };
    let (ca, wrong) = (authority.ca().display().to_string(), other.ca().display().to_string());
    let (https, grpcs) = (format!("https://{addr}"), format!("grpcs://{addr}"));
    let folder = Folder::new("access-load-token");
    let file = folder.write("token", "fedcba9876543210\n");
    for (url, token) in [(&https, "fedcba9876543210"), (&grpcs, &format!("@{file}")[..])] {
        let output = load(url, &["--ca", &ca, "--token", token]);
        let said = String::from_utf8_lossy(&output.stderr);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect(&said);
        assert!(output.status.success(), "{report}");
        assert_eq!(report["completed"], report["submitted"], "{report}");
    }
    let plain = format!("http://{addr}");
    let cases: [(&str, &[&str], &str); 7] = [
        (&https, &[], "give --ca FILE"),
        (&plain, &["--ca", &ca], "write https:// or grpcs://"),
        (&plain, &[], "write https:// or grpcs:// and give --ca FILE"),
        (&https, &["--ca", &wrong], "is --ca the authority"),
        (&https, &["--ca", &ca], "give --token @FILE"),
        (&grpcs, &["--ca", &ca, "--token", "0000000000000000"], "give --token @FILE"),
        (&https, &["--ca", &ca, "--token", "@/none"], "/none cannot be read"),
    ];
    for (url, more, words) in cases {
        let output = load(url, more);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(words), "{url} {more:?}: {said}");
    }
}

#[expect(clippy::disallowed_methods, reason = "certificates are dated by the calendar")]
fn since_1970_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// Writes a file as people should: it is there as a whole, or not yet.
fn exchange(file: &std::path::Path, text: &[u8]) {
    let other = file.with_extension("new");
    std::fs::write(&other, text).unwrap();
    std::fs::rename(other, file).unwrap();
}

#[test]
fn tokens_and_certificate_change_without_a_restart_and_a_broken_file_changes_nothing() {
    let (authority, other) = (Authority::new(), Authority::named("another"));
    let year =
        |year| move |params: &mut CertificateParams| params.not_after = date_time_ymd(year, 1, 1);
    let issued = authority.issue_with("gateway.test", Valid::Now, year(4_000));
    let renewed = other.issue_with("gateway.test", Valid::Now, year(3_000));
    let (cert, key) = (issued.cert.display(), issued.key.display());
    let folder = Folder::new("access-reload");
    let token = folder.path().join("team");
    exchange(&token, b"0123456789abcdef\n");
    let tokens = format!("[[gateway.token]]\nname = \"team\"\nfile = {token:?}\n");
    let more = format!("[gateway]\ncert = \"{cert}\"\nkey = \"{key}\"\n");
    let text = format!("{QUICK_AND_SLOW}\n{more}\n{tokens}");
    let cluster = Cluster::of(folder, &text);
    let (gateway, addr) = cluster.gateway(&["--metrics", "127.0.0.1:0"]);
    let metrics = gateway.metrics_addr();
    let await_count = |name: &str, value: f64| {
        await_metric(&metrics, &format!("baton_gateway_{name}_total "), value);
    };
    let status = |authority: &Authority, token: &str| {
        let header = format!("authorization: Bearer {token}\r\n");
        ask(&addr, authority, "/v2", &header).map(|answer| answer[9..12].to_owned())
    };
    let certificate_ends = || {
        let shown = prometheus::get(&metrics, "/metrics").unwrap();
        let name = "baton_certificate_remaining_seconds{towards=\"clients\"} ";
        let left: f64 =
            shown.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap();
        let year_s = 365.2425 * 86_400.0;
        1970.0 + (left + since_1970_s()) / year_s
    };
    let is_about = |year: f64, wanted: f64| (year - wanted).abs() < 0.1;
    assert!(is_about(certificate_ends(), 4_000.0), "{}", certificate_ends());
    assert_eq!(status(&authority, "0123456789abcdef").unwrap(), "200");
    exchange(&token, b"fedcba9876543210\n");
    await_count("reloads", 1.0);
    assert_eq!(status(&authority, "0123456789abcdef").unwrap(), "401");
    assert_eq!(status(&authority, "fedcba9876543210").unwrap(), "200");
    exchange(&token, b"short\n");
    await_count("reloads_failed", 1.0);
    await_metric(&metrics, "baton_gateway_reload_failing ", 1.0);
    gateway.await_stderr("openssl rand -hex 32");
    assert_eq!(status(&authority, "fedcba9876543210").unwrap(), "200", "as before");
    exchange(&token, b"fedcba9876543210\n");
    await_count("reloads", 2.0);
    await_metric(&metrics, "baton_gateway_reload_failing ", 0.0);
    // A cluster file that lacks a part must not open the gateway.
    let file = token.with_file_name("cluster.toml");
    for (lacks, failed) in [(&more, 2.0), (&tokens, 3.0)] {
        exchange(&file, text.replace(lacks, "").as_bytes());
        await_count("reloads_failed", failed);
        assert_eq!(status(&authority, "fedcba9876543210").unwrap(), "200");
        assert_eq!(status(&authority, "0123456789abcdef").unwrap(), "401");
    }
    exchange(&file, text.replace("[gateway]", "[gateway").as_bytes());
    await_count("reloads_failed", 4.0);
    exchange(&file, text.as_bytes());
    await_count("reloads", 3.0);
    // Two files that belong together: between them the gateway finds that they do not.
    exchange(&issued.key, &std::fs::read(&renewed.key).unwrap());
    await_count("reloads_failed", 5.0);
    exchange(&token, b"0123456789abcdef\n");
    await_count("reloads_failed", 6.0);
    assert_eq!(status(&authority, "fedcba9876543210").unwrap(), "200", "the tokens are as before");
    exchange(&token, b"fedcba9876543210\n");
    await_count("reloads_failed", 7.0);
    exchange(&issued.cert, &std::fs::read(&renewed.cert).unwrap());
    await_count("reloads", 4.0);
    assert_eq!(status(&other, "fedcba9876543210").unwrap(), "200");
    assert!(status(&authority, "fedcba9876543210").is_err(), "the former certificate is gone");
    assert!(is_about(certificate_ends(), 3_000.0), "{}", certificate_ends());
}

#[test]
fn a_gateway_without_its_files_does_not_start() {
    for (test, gateway, words) in [
        (
            "no-cert",
            "[gateway]\ncert = \"none.pem\"\nkey = \"none.key\"",
            "none.pem cannot be read",
        ),
        ("no-token", "[[gateway.token]]\nname = \"a\"\nfile = \"none\"", "none cannot be read"),
    ] {
        let text = format!("{QUICK_AND_SLOW}\n{gateway}\n");
        let cluster = Cluster::of(Folder::new(&format!("access-{test}")), &text);
        let output = run(&cluster.gateway_args(&["--http", "127.0.0.1:0"]));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(words), "{said}");
    }
}

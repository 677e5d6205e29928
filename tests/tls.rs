//! A cluster whose members show certificates: it serves. A process that has none, or the wrong one,
//! hears so at once and disturbs no member.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

#[path = "../rdma/tests/common/certs.rs"]
mod certs;
mod support;

use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use baton_topo::TlsSpec;
use certs::{Authority, Valid};
use rcgen::CertificateParams;
use rustix::process::Signal;
use support::{Folder, Process, run};

const CLUSTER: &str = r#"
[[model]]
name = "m"
alpha_ms = 1
beta_ms = 10
slo_ms = 400
input_bytes = 40000
[[backend]]
name = "a"
"#;

const LISTS: &str = r#"
schedulers = ["scheduler.test"]
backends = ["gpu.test"]
frontends = ["web.test"]
"#;

/// One folder of cluster files that differ in who they make their reader.
struct Files {
    folder: Folder,
    authority: Authority,
}

impl Files {
    fn new(test: &str) -> Self {
        Self { folder: Folder::new(test), authority: Authority::new() }
    }

    /// The cluster file for a member with a certificate of the cluster's.
    fn of(&self, name: &str) -> String {
        self.with(name, &self.authority.issue(name))
    }

    fn with(&self, name: &str, spec: &TlsSpec) -> String {
        let (ca, cert, key) = (spec.ca.display(), spec.cert.display(), spec.key.display());
        let tls = format!("[tls]\nca = \"{ca}\"\ncert = \"{cert}\"\nkey = \"{key}\"{LISTS}");
        self.folder.write(&format!("{name}.toml"), &(CLUSTER.to_owned() + &tls))
    }
}

fn scheduler(file: &str) -> (Process, String) {
    let scheduler = Process::start(&["scheduler", "--config", file, "--listen", "127.0.0.1:0"]);
    let addr = scheduler.line("listening ");
    (scheduler, addr)
}

fn backend_args<'a>(file: &'a str, addr: &'a str) -> [&'a str; 7] {
    ["backend", "--config", file, "--scheduler", addr, "--name", "a"]
}

/// A short load; what it printed and how it ended.
fn load(file: &str, addr: &str, rate: &str) -> Output {
    let args = ["load", "--config", file, "--scheduler", addr, "--seconds", "2", "--rate", rate];
    run(&args)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_cluster_with_tls_serves_and_turns_strangers_away() {
    let files = Files::new("tls-cluster");
    let (scheduler, addr) = scheduler(&files.of("scheduler.test"));
    let backend = Process::start(&backend_args(&files.of("gpu.test"), &addr));
    backend.line("ready");

    let plain = files.folder.write("plain.toml", CLUSTER);
    let refused = [
        (plain, "no secure connection to the scheduler", "this side has no [tls]"),
        (files.of("gpu.test"), "refused this client", "may not act as Frontend"),
    ];
    for (file, what, why) in refused {
        let output = load(&file, &addr, "m=50");
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(what) && text.contains(why), "{text}");
    }

    let good = load(&files.of("web.test"), &addr, "m=100");
    let (text, told) = (String::from_utf8_lossy(&good.stdout), stderr(&good));
    assert!(good.status.success(), "{text}{told}");
    for process in [backend, scheduler] {
        process.signal(Signal::TERM);
        let (status, _) = process.finish();
        assert!(status.success(), "{status}");
    }
}

/// It has the right authority and a certificate of another one.
#[test]
fn a_frontend_and_a_backend_with_a_foreign_certificate() {
    let files = Files::new("tls-foreign");
    let (scheduler, addr) = scheduler(&files.of("scheduler.test"));
    let other = Authority::named("another authority");
    let foreign = TlsSpec { ca: files.authority.ca(), ..other.issue("web.test") };
    let file = files.with("foreign", &foreign);
    let why = "of no authority in the peer's [tls] ca; have it issued by one of those";
    for args in
        [&backend_args(&file, &addr)[..], &["load", "--config", &file, "--scheduler", &addr]]
    {
        let output = run(args);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("no secure connection to the scheduler"), "{text}");
        assert!(text.contains(why), "{text}");
        scheduler.await_stderr("of no authority in this side's [tls] ca");
    }
}

#[expect(clippy::disallowed_methods, reason = "certificates are dated by the calendar")]
fn in_nearly_a_week() -> SystemTime {
    SystemTime::now() + Duration::from_secs(7 * 86_400 - 3_600)
}

#[test]
fn config_check_looks_at_the_certificate() {
    let files = Files::new("tls-check");
    let good = run(&["config", "check", &files.of("gpu.test")]);
    assert!(good.status.success());
    assert!(String::from_utf8_lossy(&good.stdout).contains("connections: TLS, as "));

    let said = String::from_utf8_lossy(&good.stdout);
    assert!(!said.contains("expire"), "{said}");

    let week = |params: &mut CertificateParams| params.not_after = in_nearly_a_week().into();
    let short = files.authority.issue_with("short.test", Valid::Now, week);
    let output = run(&["config", "check", &files.with("short", &short)]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("warning: tls.cert: ") && said.contains("expires in 7.0 days"), "{said}");

    let expired = files.authority.issue_with("old.test", Valid::Formerly, |_| {});
    let output = run(&["config", "check", &files.with("old", &expired)]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("tls.cert: ") && text.contains("old.test.pem has expired"), "{text}");

    let missing = TlsSpec { key: "nowhere.key".into(), ..expired };
    let file = files.with("missing", &missing);
    let output = run(&["config", "check", &file]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(&format!("{file}:13: tls.key: there is no file ")), "{text}");
}

#[test]
fn the_cost_is_measured_and_a_wrong_key_is_named() {
    let authority = Authority::new();
    let (mine, other) = (authority.issue("bench.test"), authority.issue("other.test"));
    let cost = |key: &TlsSpec| {
        let file = |path: &std::path::Path| path.to_str().unwrap().to_owned();
        let files = [file(&mine.ca), file(&mine.cert), file(&key.key)];
        let [ca, cert, key] = &files;
        let shape = ["--objects", "3", "--bytes", "5000", "--seconds", "0.1", "--json"];
        let args = ["bench", "tls-cost", "--ca", ca, "--cert", cert, "--key", key];
        run(&[&args[..], &shape[..]].concat())
    };
    let output = cost(&mine);
    assert!(output.status.success(), "{}", stderr(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let handshake = &report["handshake_cpu_us"];
    let [plain, tls] = ["plain", "tls"].map(|how| handshake[how].as_f64().unwrap());
    assert!(tls > plain, "it signs and verifies, twice: {report}");
    assert!(report["read_cpu_us"]["tls"].as_f64().unwrap() > 0.0, "{report}");

    let output = cost(&other);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("other.test.key"), "{}", stderr(&output));
}

/// The script in `examples/` makes what a cluster needs.
#[test]
fn certificates_by_openssl() {
    if Command::new("openssl").arg("version").output().is_err() {
        eprintln!("SKIPPED, NO OPENSSL: install it to test examples/certs.sh");
        return;
    }
    let files = Files::new("tls-openssl");
    let certs = files.folder.path().join("certs");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/certs.sh");
    let names = ["scheduler.test", "gpu.test", "web.test"];
    let made = Command::new("sh").arg(script).arg(&certs).args(names).output().unwrap();
    assert!(made.status.success(), "{}", stderr(&made));
    let file = |name: &str| {
        let spec = TlsSpec::new(
            "certs/ca.pem".into(),
            format!("certs/{name}.pem").into(),
            format!("certs/{name}.key").into(),
        );
        files.with(name, &spec)
    };
    let (_scheduler, addr) = scheduler(&file("scheduler.test"));
    let backend = Process::start(&backend_args(&file("gpu.test"), &addr)[..]);
    backend.line("ready");
    let output = load(&file("web.test"), &addr, "m=50");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(run(&["config", "check", &file("web.test")]).status.success());
}

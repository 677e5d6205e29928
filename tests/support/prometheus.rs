//! A real Prometheus of the test's own, as the distribution packages it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::etcd::free_ports;

/// Killed when it is dropped.
pub(crate) struct Prometheus {
    addr: String,
    process: Child,
}

impl Prometheus {
    /// The example's, with its alerts, that scrapes these addresses instead of its own, looks once a second and keeps its data in
    /// `folder`. `None`, and loud words past the test's capture, if it is not installed.
    pub(crate) fn start(folder: &Path, targets: &[(&str, &str)]) -> Option<Self> {
        if !is_installed("prometheus") {
            return None;
        }
        let config = fs::read_to_string(example("prometheus.yml")).unwrap();
        let config = config.replace("interval: 5s", "interval: 1s");
        let config = targets.iter().fold(config, |config, (example, addr)| {
            assert!(config.contains(example), "{example} is not in the example");
            config.replace(example, addr)
        });
        let file = folder.join("prometheus.yml");
        fs::write(&file, config).unwrap();
        fs::copy(example("baton-alerts.yml"), folder.join("baton-alerts.yml")).unwrap();
        let addr = format!("127.0.0.1:{}", free_ports(1)[0]);
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address={addr}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Some(Self { addr, process })
    }

    /// The values of a query, once there are `count`.
    pub(crate) fn await_values(&self, query: &str, count: usize) -> Vec<f64> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        for _ in 0..600 {
            let found = self.values(&encoded);
            if found.len() == count {
                return found;
            }
            // It scrapes once a second whatever is asked of it.
            thread::park_timeout(Duration::from_millis(100));
        }
        panic!("{query} has {:?}, not {count} values", self.values(&encoded));
    }

    /// Rules that it could not evaluate, and why; and how many it could.
    pub(crate) fn rules(&self) -> (Vec<String>, usize) {
        let answer = get(&self.addr, "/api/v1/rules").unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let groups = answer["data"]["groups"].as_array().unwrap();
        let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
        let (well, ill): (Vec<_>, Vec<_>) = rules.partition(|rule| rule["health"] == "ok");
        let why =
            |rule: &Value| format!("{}: {} {}", rule["name"], rule["health"], rule["lastError"]);
        (ill.into_iter().map(why).collect(), well.len())
    }

    fn values(&self, encoded: &str) -> Vec<f64> {
        let Some(body) = get(&self.addr, &format!("/api/v1/query?query={encoded}")) else {
            return Vec::new();
        };
        let Ok(answer) = serde_json::from_str::<Value>(&body) else { return Vec::new() };
        let results = answer["data"]["result"].as_array().cloned().unwrap_or_default();
        let value = |result: &Value| result["value"][1].as_str().unwrap().parse().unwrap();
        results.iter().map(value).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether a program of the package is here; loud words past the test's capture if it is not.
fn is_installed(program: &str) -> bool {
    let is_there = Command::new(program).arg("--version").output().is_ok();
    if !is_there {
        let text = format!(
            "\nSKIPPED: no {program} here; `apt-get install prometheus` and run this again\n\n"
        );
        std::io::stderr().write_all(text.as_bytes()).unwrap();
    }
    is_there
}

/// A file of the example.
fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/monitoring").join(name)
}

/// What `promtool` says of a file of the example; `None` without it.
pub(crate) fn promtool(what: &[&str], name: &str) -> Option<Output> {
    let tool = || Command::new("promtool").args(what).arg(example(name)).output().unwrap();
    is_installed("promtool").then(tool)
}

/// The body of what is at a path; `None` without an answer.
pub(crate) fn get(addr: &str, path: &str) -> Option<String> {
    let mut peer = TcpStream::connect(addr).ok()?;
    write!(peer, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    peer.read_to_string(&mut answer).ok()?;
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}

/// Waits until a metric of a process has this value.
pub(crate) fn await_metric(addr: &str, name: &str, value: f64) {
    let mut seen = None;
    for _ in 0..600 {
        let text = get(addr, "/metrics").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        seen = line.trim().parse().ok();
        if seen == Some(value) {
            return;
        }
        thread::park_timeout(Duration::from_millis(100));
    }
    panic!("{name} is {seen:?}, not {value}");
}

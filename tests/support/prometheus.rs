//! A real Prometheus of the test's own, as the distribution packages it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
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
    /// One that scrapes these addresses once a second and keeps its data in `folder`. `None`, and loud words past the test's
    /// capture, if it is not installed.
    pub(crate) fn start(folder: &Path, targets: &[&str]) -> Option<Self> {
        if Command::new("prometheus").arg("--version").stdout(Stdio::null()).status().is_err() {
            let text =
                b"\nSKIPPED: no prometheus here; `apt-get install prometheus` and run this again\n\n";
            std::io::stderr().write_all(text).unwrap();
            return None;
        }
        let config = format!(
            "global:\n  scrape_interval: 1s\nscrape_configs:\n  - job_name: baton\n    static_configs:\n      - targets: {targets:?}\n"
        );
        let file = folder.join("prometheus.yml");
        fs::write(&file, config).unwrap();
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

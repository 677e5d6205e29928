//! What gateways are tried with: a cluster of two models, and a gateway of it.

use super::{Cluster, Folder, Process};

/// `quick` answers at once; a task of `slow` keeps the GPU slot busy for longer than any test here lasts.
pub(crate) const QUICK_AND_SLOW: &str = r#"
[network]
ctrl_us = 60000
response_us = 60000
jitter_us = 40000
[frontend]
slots_per_model = 4
[[model]]
name = "quick"
alpha_ms = 1
beta_ms = 10
slo_ms = 20000
input_bytes = 8
subcluster = "quick"
[[model]]
name = "slow"
alpha_ms = 1
beta_ms = 100000
slo_ms = 600000
batch_max = 1
input_bytes = 8
subcluster = "slow"
[[backend]]
name = "a"
subcluster = "quick"
[[backend]]
name = "b"
subcluster = "slow"
"#;

impl Cluster {
    /// What gateways are tried with: see [`QUICK_AND_SLOW`].
    pub(crate) fn quick_and_slow(test: &str) -> Self {
        Self::of(Folder::new(test), QUICK_AND_SLOW)
    }

    /// A gateway, and where HTTP clients connect.
    pub(crate) fn gateway(&self, more: &[&str]) -> (Process, String) {
        let threads: &[&str] = if more.contains(&"--threads") { &[] } else { &["--threads", "1"] };
        let args = [&["--http", "127.0.0.1:0"], threads, more].concat();
        let gateway = Process::start(&self.gateway_args(&args));
        let addr = gateway.line("http ");
        (gateway, addr)
    }

    /// What starts a gateway, and more.
    pub(crate) fn gateway_args<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        [&["gateway", "--config", &self.file, "--scheduler", &self.addr], more].concat()
    }
}

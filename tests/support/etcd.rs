//! A real etcd of the test's own, as the distribution packages it.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Ports nobody listens at just now.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    let bind = |_| TcpListener::bind("127.0.0.1:0").unwrap();
    let listeners: Vec<TcpListener> = (0..count).map(bind).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

/// An etcd cluster; its processes are killed when it is dropped.
pub(crate) struct Etcd {
    members: Vec<Member>,
}

struct Member {
    arguments: Vec<String>,
    endpoint: String,
    process: Child,
}

impl Etcd {
    /// Starts `count` members that keep their data in `folder`. `None`, and loud words past the test's
    /// capture, if etcd is not installed. Does not wait until they answer: whoever needs them must be
    /// able to.
    pub(crate) fn start(count: usize, folder: &Path) -> Option<Self> {
        if Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err() {
            let text =
                b"\nSKIPPED: no etcd here; `apt-get install etcd-server` and run this again\n\n";
            std::io::stderr().write_all(text).unwrap();
            return None;
        }
        let urls: Vec<String> = free_ports(2 * count).into_iter().map(url).collect();
        let (clients, peers) = urls.split_at(count);
        let together: Vec<String> =
            peers.iter().enumerate().map(|(at, peer)| format!("e{at}={peer}")).collect();
        let members = (0..count).map(|at| {
            let data = folder.join(format!("etcd-{at}"));
            Member::start(at, &data, &clients[at], &peers[at], &together.join(","))
        });
        Some(Self { members: members.collect() })
    }

    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| member.endpoint.clone()).collect()
    }

    pub(crate) fn kill(&mut self, at: usize) {
        let process = &mut self.members[at].process;
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Again, where it was, with what it knew.
    pub(crate) fn restart(&mut self, at: usize) {
        let member = &mut self.members[at];
        member.process = spawn(&member.arguments);
    }
}

impl Member {
    fn start(at: usize, data: &Path, client: &str, peer: &str, together: &str) -> Self {
        let name = format!("e{at}");
        let data = data.display().to_string();
        let arguments = [
            ["--name", &name],
            ["--data-dir", &data],
            ["--listen-client-urls", client],
            ["--advertise-client-urls", client],
            ["--listen-peer-urls", peer],
            ["--initial-advertise-peer-urls", peer],
            ["--initial-cluster", together],
        ];
        let arguments: Vec<String> = arguments.concat().into_iter().map(str::to_owned).collect();
        Self { process: spawn(&arguments), arguments, endpoint: client.to_owned() }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

fn spawn(arguments: &[String]) -> Child {
    let mut etcd = Command::new("etcd");
    etcd.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

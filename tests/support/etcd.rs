//! A real etcd of the test's own, as the distribution packages it.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use baton_topo::TlsSpec;

/// Ports that no process listens at just now.
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
    /// capture, if etcd is not installed. Does not wait until they answer: their clients must be
    /// able to.
    pub(crate) fn start(count: usize, folder: &Path) -> Option<Self> {
        Self::start_with(count, folder, None)
    }

    /// The same with TLS towards its clients, who must show a certificate: its own is `tls`, whose
    /// authority theirs must be of.
    pub(crate) fn start_with(count: usize, folder: &Path, tls: Option<&TlsSpec>) -> Option<Self> {
        if Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err() {
            let text =
                b"\nSKIPPED: no etcd here; `apt-get install etcd-server` and run this again\n\n";
            std::io::stderr().write_all(text).unwrap();
            return None;
        }
        let ports = free_ports(2 * count);
        let (clients, peers) = ports.split_at(count);
        let scheme = if tls.is_some() { "https" } else { "http" };
        let clients: Vec<String> = clients.iter().map(|port| url(scheme, *port)).collect();
        let peers: Vec<String> = peers.iter().map(|port| url("http", *port)).collect();
        let together: Vec<String> =
            peers.iter().enumerate().map(|(at, peer)| format!("e{at}={peer}")).collect();
        let members = (0..count).map(|at| {
            let data = folder.join(format!("etcd-{at}"));
            Member::start(at, &data, &clients[at], &peers[at], &together.join(","), tls)
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
    fn start(
        at: usize,
        data: &Path,
        client: &str,
        peer: &str,
        together: &str,
        tls: Option<&TlsSpec>,
    ) -> Self {
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
        let mut arguments: Vec<String> =
            arguments.concat().into_iter().map(str::to_owned).collect();
        if let Some(tls) = tls {
            let files = [
                ("--cert-file", &tls.cert),
                ("--key-file", &tls.key),
                ("--trusted-ca-file", &tls.ca),
            ];
            let file = |(key, file): (&str, &PathBuf)| [key.to_owned(), file.display().to_string()];
            arguments.extend(files.into_iter().flat_map(file));
            arguments.push("--client-cert-auth".to_owned());
        }
        Self { process: spawn(&arguments), arguments, endpoint: client.to_owned() }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn url(scheme: &str, port: u16) -> String {
    format!("{scheme}://127.0.0.1:{port}")
}

fn spawn(arguments: &[String]) -> Child {
    let mut etcd = Command::new("etcd");
    etcd.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

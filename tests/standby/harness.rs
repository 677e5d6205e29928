//! A cluster to stand by in: an etcd, the addresses of two schedulers, and the members' cluster file.

use std::net::SocketAddr;
use std::time::Duration;

use baton_client::{ClientConfig, EtcdIdentity, EtcdSpec, EtcdTlsSpec, SchedulerLocator};
use baton_topo::TlsSpec;

use crate::PATIENCE;
use crate::certs::Authority;
use crate::support::application::Application;
use crate::support::etcd::{Etcd, free_ports};
use crate::support::{CLUSTER, Folder, Load, Process};

/// An etcd, two schedulers' addresses, and members that know nothing but the cluster file.
pub(crate) struct StandbyCluster {
    pub(crate) etcd: Etcd,
    pub(crate) spec: EtcdSpec,
    pub(crate) addrs: Vec<SocketAddr>,
    pub(crate) file: String,
    _folder: Folder,
}

impl StandbyCluster {
    /// `None` without etcd.
    pub(crate) fn start(test: &str, etcds: usize, lease_ttl_s: u32) -> Option<Self> {
        let folder = Folder::new(test);
        let etcd = Etcd::start(etcds, folder.path())?;
        Some(Self::with(test, folder, etcd, lease_ttl_s, None))
    }

    /// An etcd that wants certificates, and members that have one.
    pub(crate) fn secure(test: &str, authority: &Authority) -> Option<Self> {
        Self::secure_as(test, authority, &authority.issue("127.0.0.1"))
    }

    /// The same, with this certificate of etcd's.
    pub(crate) fn secure_as(test: &str, authority: &Authority, etcd: &TlsSpec) -> Option<Self> {
        let folder = Folder::new(test);
        let etcd = Etcd::start_with(1, folder.path(), Some(etcd))?;
        let tls = shown(authority, authority);
        Some(Self::with(test, folder, etcd, 2, Some(tls)))
    }

    fn with(
        test: &str,
        folder: Folder,
        etcd: Etcd,
        lease_ttl_s: u32,
        tls: Option<EtcdTlsSpec>,
    ) -> Self {
        let (endpoints, prefix) = (etcd.endpoints(), format!("/baton/{test}"));
        let mut scheduler = format!(
            "[scheduler]\netcd = {endpoints:?}\netcd_prefix = \"{prefix}\"\nlease_ttl_s = {lease_ttl_s}\n"
        );
        if let Some(EtcdTlsSpec { ca, identity: Some(own) }) = &tls {
            let [ca, cert, key] = [ca, &own.cert, &own.key].map(|file| file.display());
            scheduler +=
                &format!("etcd_ca = \"{ca}\"\netcd_cert = \"{cert}\"\netcd_key = \"{key}\"\n");
        }
        let file = folder.write("cluster.toml", &(scheduler + CLUSTER));
        let addr = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let addrs = free_ports(2).into_iter().map(addr).collect();
        let spec = EtcdSpec { endpoints, prefix, lease_ttl_s, tls };
        Self { etcd, spec, addrs, file, _folder: folder }
    }

    pub(crate) fn scheduler(&self, at: usize) -> Process {
        let listen = self.addrs[at].to_string();
        Process::start(&["scheduler", "--config", &self.file, "--listen", &listen])
    }

    /// The first leads, the second stands by.
    pub(crate) fn schedulers(&self) -> [Process; 2] {
        let leader = self.scheduler(0);
        leader.line("listening ");
        let standby = self.scheduler(1);
        standby.line("standby");
        [leader, standby]
    }

    pub(crate) fn endpoints_without(&self, at: usize) -> Vec<String> {
        let mut endpoints = self.spec.endpoints.clone();
        endpoints.remove(at);
        endpoints
    }

    /// Who leads, as these members of etcd know once they answer.
    pub(crate) fn leader_by(&self, endpoints: Vec<String>) -> SocketAddr {
        let spec = EtcdSpec { endpoints, ..self.spec.clone() };
        SchedulerLocator::via_etcd(&spec).unwrap().wait(Duration::from_nanos(PATIENCE.0)).unwrap()
    }

    pub(crate) fn start_backend(&self, name: &str) -> Process {
        Process::start(&["backend", "--config", &self.file, "--name", name])
    }

    pub(crate) fn backend(&self, name: &str) -> Process {
        let backend = self.start_backend(name);
        backend.line("ready");
        backend
    }

    pub(crate) fn load(&self) -> Load {
        let args = ["load", "--config", &self.file, "--seconds", "600", "--rate", "m=100"];
        Load { process: Process::start(&[&args[..], &["--progress-json"]].concat()) }
    }

    pub(crate) fn application(&self) -> Application {
        let locator = SchedulerLocator::via_etcd(&self.spec).unwrap();
        let mut application = Application::join(ClientConfig::with_locator(locator));
        application.until_answered(PATIENCE);
        application
    }
}

/// What a member knows of etcd that trusts one authority and has a certificate of another.
pub(crate) fn shown(trusted: &Authority, own: &Authority) -> EtcdTlsSpec {
    let TlsSpec { cert, key, .. } = own.issue("member.test");
    EtcdTlsSpec { ca: trusted.ca(), identity: Some(EtcdIdentity { cert, key }) }
}

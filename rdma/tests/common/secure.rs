//! A small cluster with TLS, its guests, and a peer that speaks TLS without being a transport.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;

use baton_rdma::wire::{Hello, Role};
use baton_rdma::{CloseReason, ConnId, Credentials, TcpConfig, TlsSpec, Transport};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::certs::Authority;
use super::raw::{TcpNode, frame_of};
use super::{Node, open, secured, settle};

/// A scheduler with lists, and a backend that is connected to it and must not notice anything.
pub struct World {
    pub authority: Authority,
    pub scheduler: TcpNode,
    pub friend: TcpNode,
    pub conn: ConnId,
}

impl World {
    pub fn new() -> Self {
        let authority = Authority::new();
        let mut scheduler =
            member(Role::Control, &listed(authority.issue("scheduler.cluster.test")));
        let mut friend = member(Role::Backend, &authority.issue("gpu-1.cluster.test"));
        let (conn, _) = open(&mut friend, &mut scheduler);
        Self { authority, scheduler, friend, conn }
    }

    /// Connects `guest` as `role`, and hands out how its side of that ended.
    pub fn ends_for(&mut self, guest: &mut TcpNode, role: Role) -> CloseReason {
        let addr = self.scheduler.transport.local_addr();
        guest.transport.connect(addr, Hello::new(role, 0, 4711)).unwrap();
        settle([guest, &mut self.scheduler], |[guest, _]| !guest.closed().is_empty());
        assert!(guest.opened().is_empty(), "{:?}", guest.seen);
        guest.closed()[0].1.clone()
    }

    /// As many connections were refused, none of them was ever open, and the friend is served.
    pub fn check(&mut self, tls_refused: u64) {
        let Self { scheduler, friend, conn, .. } = self;
        settle([&mut *scheduler], |[node]| node.transport.counters().tls_refused >= tls_refused);
        assert_eq!(scheduler.transport.counters().tls_refused, tls_refused);
        assert_eq!(scheduler.opened().len(), 1, "the friend and no other");
        let before = scheduler.pings().len();
        friend.ping(*conn, 7);
        settle([friend, scheduler], |[_, scheduler]| scheduler.pings().len() > before);
        assert!(friend.closed().is_empty() && scheduler.closed().is_empty());
    }
}

pub fn listed(spec: TlsSpec) -> TlsSpec {
    TlsSpec {
        schedulers: Some(vec!["scheduler.cluster.test".into()]),
        backends: Some(vec!["gpu-1.cluster.test".into(), "*.gpus.test".into()]),
        frontends: Some(vec!["web.cluster.test".into()]),
        ..spec
    }
}

pub fn member(role: Role, spec: &TlsSpec) -> TcpNode {
    let credentials = Credentials::load(spec).unwrap();
    Node::new(secured(role, 0, TcpConfig::default(), &credentials))
}

pub fn tls_text(reason: &CloseReason) -> &str {
    match reason {
        CloseReason::Tls(text) => text,
        other => panic!("{other:?}"),
    }
}

/// A TLS client that is no transport.
pub struct RawTls {
    pub stream: TcpStream,
    pub tls: ClientConnection,
    /// Why there is nothing more to expect.
    pub ended: Option<String>,
    pub got: Vec<u8>,
}

impl RawTls {
    pub fn new(world: &World, show: Option<&TlsSpec>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(world.authority.ca()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match show {
            None => config.with_no_client_auth(),
            Some(spec) => config
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_file(&spec.cert).unwrap()],
                    PrivateKeyDer::from_pem_file(&spec.key).unwrap(),
                )
                .unwrap(),
        };
        // Checked by name: the cluster's certificates are ordinary ones.
        let name = "scheduler.cluster.test".try_into().unwrap();
        let tls = ClientConnection::new(Arc::new(config), name).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        Self { stream, tls, ended: None, got: Vec::new() }
    }

    pub fn connect(world: &World, show: Option<&TlsSpec>) -> Self {
        let stream = TcpStream::connect(world.scheduler.transport.local_addr()).unwrap();
        stream.set_nonblocking(true).unwrap();
        Self { stream, ..Self::new(world, show) }
    }

    /// Shaken hands, said hello and been welcomed, as a backend.
    pub fn open(world: &mut World) -> Self {
        let spec = world.authority.issue("gpu-1.cluster.test");
        let mut raw = Self::connect(world, Some(&spec));
        let hello = frame_of(&Hello::new(Role::Backend, 0, 0), &[], &[]);
        raw.tls.writer().write_all(&hello).unwrap();
        raw.pump_until(&mut world.scheduler, |raw| !raw.got.is_empty());
        raw
    }

    /// The first bytes of a handshake.
    pub fn opening(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.tls.write_tls(&mut bytes).unwrap();
        bytes
    }

    pub fn pump(&mut self) {
        while self.tls.wants_write() && self.tls.write_tls(&mut self.stream).is_ok() {}
        match self.tls.read_tls(&mut self.stream) {
            Ok(0) => self.ended = self.ended.take().or_else(|| Some("the end".into())),
            Ok(_) => {
                if let Err(error) = self.tls.process_new_packets() {
                    self.ended = Some(error.to_string());
                }
            }
            Err(_) => {}
        }
        let _nothing_yet = self.tls.reader().read_to_end(&mut self.got);
    }

    pub fn pump_until(&mut self, node: &mut TcpNode, mut done: impl FnMut(&Self) -> bool) {
        settle([node], |_| {
            self.pump();
            done(self)
        });
    }
}

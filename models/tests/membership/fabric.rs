//! The member's transport: it notes what the member does, and nothing arrives but what the model says.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use baton_core::Nanos;
use baton_rdma::wire::{Body, Hello, Kind, RefuseCode, TaskResult};
use baton_rdma::{
    BatchBuffer, ConnId, Events, Identity, Read, SendError, SlabSet, Transport, TransportCounters,
};
use baton_topo::Waker;

/// Where the ControlThread is; the ModelThreads follow.
pub(crate) const CONTROL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7_700);

pub(crate) fn thread_addr(number: u32) -> SocketAddr {
    SocketAddr::new(CONTROL.ip(), CONTROL.port() + 1 + number as u16)
}

/// A connection that the member has begun and not closed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Conn {
    pub(crate) id: ConnId,
    pub(crate) addr: SocketAddr,
    /// Number and token of its hello.
    pub(crate) hello: (u32, u64),
    pub(crate) is_open: bool,
}

/// See the module documentation.
#[derive(Clone, Default, Debug)]
pub(crate) struct Fabric {
    pub(crate) conns: Vec<Conn>,
    connected: u64,
    /// Closed by the member, which has not heard of it yet.
    pub(crate) closed: Vec<ConnId>,
    /// What the member has said since the model looked last.
    pub(crate) sent: Vec<(ConnId, Kind)>,
}

impl Fabric {
    pub(crate) fn to(&self, addr: SocketAddr) -> Option<&Conn> {
        self.conns.iter().rev().find(|conn| conn.addr == addr)
    }

    pub(crate) fn open(&mut self, id: ConnId) {
        self.conns.iter_mut().filter(|conn| conn.id == id).for_each(|conn| conn.is_open = true);
    }

    pub(crate) fn remove(&mut self, id: ConnId) {
        self.conns.retain(|conn| conn.id != id);
    }
}

impl Transport for Fabric {
    fn local_addr(&self) -> SocketAddr {
        SocketAddr::new(CONTROL.ip(), 9_000)
    }

    fn identify(&mut self, _: Identity) {}

    fn connect(&mut self, addr: SocketAddr, hello: Hello) -> io::Result<ConnId> {
        self.connected += 1;
        let id = ConnId(self.connected);
        let hello = (hello.member.get(), hello.token.get());
        self.conns.push(Conn { id, addr, hello, is_open: false });
        Ok(id)
    }

    fn close(&mut self, conn: ConnId, _: RefuseCode, _: &str) {
        if self.conns.iter().any(|other| other.id == conn) {
            self.remove(conn);
            self.closed.push(conn);
        }
    }

    fn send<B: Body>(&mut self, conn: ConnId, _: &B, _: &[u8]) -> Result<(), SendError> {
        if !self.conns.iter().any(|other| other.id == conn) {
            return Err(SendError::Closed);
        }
        self.sent.push((conn, B::KIND));
        Ok(())
    }

    fn post_reads(&mut self, _: &mut Vec<Read>) {}

    fn abort_read(&mut self, _: ConnId, _: u64) {}

    fn reply(&mut self, _: ConnId, _: &TaskResult, _: &[u8]) -> Result<(), SendError> {
        Err(SendError::Closed)
    }

    fn expose(&mut self, _: Arc<SlabSet>) -> io::Result<()> {
        Ok(())
    }

    fn withdraw(&mut self, _: &Arc<SlabSet>) {}

    fn land_in(&mut self, _: &Arc<BatchBuffer>) -> io::Result<()> {
        Ok(())
    }

    fn release(&mut self, _: &Arc<BatchBuffer>) {}

    fn poll(&mut self, _: Nanos, _: &mut Events) -> usize {
        0
    }

    fn flush(&mut self) {}

    fn wait(&mut self, _: Option<Nanos>) {}

    fn waker(&self) -> Waker {
        Waker::new(|| {})
    }

    fn counters(&self) -> TransportCounters {
        TransportCounters::default()
    }
}

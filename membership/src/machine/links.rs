//! The connections to the ModelThreads.

use std::net::SocketAddr;

use baton_rdma::wire::Role;
use baton_rdma::{ConnId, Peer};

/// By the number of the ModelThread.
#[derive(Clone, Default, Debug)]
pub(super) struct ThreadLinks(Vec<ThreadLink>);

#[derive(Clone, Debug)]
struct ThreadLink {
    addr: SocketAddr,
    /// `None` before the member is admitted, and after the connection has closed.
    conn: Option<ConnId>,
    is_open: bool,
}

impl ThreadLinks {
    /// Nothing is connected yet.
    pub(super) fn new(addrs: Vec<SocketAddr>) -> Self {
        let link = |addr| ThreadLink { addr, conn: None, is_open: false };
        Self(addrs.into_iter().map(link).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Connects to each with `connect`, or stops at the first one that cannot be reached.
    pub(super) fn connect<E>(
        &mut self,
        mut connect: impl FnMut(u32, SocketAddr) -> Result<ConnId, E>,
    ) -> Result<(), E> {
        for (number, link) in self.0.iter_mut().enumerate() {
            link.conn = Some(connect(number as u32, link.addr)?);
        }
        Ok(())
    }

    pub(super) fn addr(&self, number: u32) -> SocketAddr {
        self.0[number as usize].addr
    }

    pub(super) fn conn(&self, number: u32) -> Option<ConnId> {
        self.0.get(number as usize)?.conn
    }

    pub(super) fn conns(&self) -> impl Iterator<Item = ConnId> + '_ {
        self.0.iter().filter_map(|link| link.conn)
    }

    pub(super) fn number_of(&self, conn: ConnId) -> Option<u32> {
        self.0.iter().position(|link| link.conn == Some(conn)).map(|number| number as u32)
    }

    /// A connection is up. Returns false if `peer` is not the ModelThread that should be there.
    pub(super) fn open(&mut self, conn: ConnId, peer: &Peer) -> bool {
        let Some(number) = self.number_of(conn) else { return false };
        let is_it = peer.role == Role::ModelThread && peer.member == number;
        self.0[number as usize].is_open = is_it;
        is_it
    }

    pub(super) fn are_open(&self) -> bool {
        self.0.iter().all(|link| link.is_open && link.conn.is_some())
    }

    pub(super) fn forget(&mut self, conn: ConnId) {
        for link in &mut self.0 {
            link.conn.take_if(|known| *known == conn);
        }
    }

    /// Takes every connection out, to be closed.
    pub(super) fn take(&mut self) -> Vec<ConnId> {
        let links = std::mem::take(&mut self.0);
        links.into_iter().filter_map(|link| link.conn).collect()
    }
}

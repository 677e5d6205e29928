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
    /// The protocol version of the connection; `None` before it is open.
    version: Option<u16>,
}

impl ThreadLinks {
    /// Nothing is connected yet.
    pub(super) fn new(addrs: Vec<SocketAddr>) -> Self {
        let link = |addr| ThreadLink { addr, conn: None, version: None };
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

    pub(super) fn version(&self, number: u32) -> u16 {
        self.0.get(number as usize).and_then(|link| link.version).unwrap_or(0)
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
        self.0[number as usize].version = is_it.then_some(peer.version);
        is_it
    }

    pub(super) fn are_open(&self) -> bool {
        self.0.iter().all(|link| link.version.is_some() && link.conn.is_some())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections 10 and 11.
    fn connected() -> ThreadLinks {
        let mut links = ThreadLinks::new(vec![([127, 0, 0, 1], 1).into(); 2]);
        let connecting = links.connect(|number, _| Ok::<_, ()>(ConnId(u64::from(number) + 10)));
        assert_eq!((connecting, links.len()), (Ok(()), 2));
        links
    }

    fn thread(member: u32) -> Peer {
        let addr = ([127, 0, 0, 1], 1).into();
        Peer { role: Role::ModelThread, member, token: 0, addr, accepted: false, version: 0 }
    }

    #[test]
    fn all_are_open_once_each_has_answered_and_none_has_closed() {
        let mut links = connected();
        let steps = [(10, 0, false), (11, 1, true)].map(|(conn, number, all)| {
            assert!(!links.are_open());
            (links.open(ConnId(conn), &thread(number)), links.are_open() == all)
        });
        assert_eq!(steps, [(true, true); 2]);
        links.forget(ConnId(12));
        assert!(links.are_open(), "another connection");
        links.forget(ConnId(10));
        assert!(!links.are_open());
        assert_eq!((links.conn(0), links.conn(1), links.conn(2)), (None, Some(ConnId(11)), None));
        assert_eq!(links.take(), [ConnId(11)]);
        assert_eq!((links.len(), links.take()), (0, Vec::new()));
    }

    #[test]
    fn the_version_is_that_of_the_open_connection() {
        let mut links = connected();
        links.open(ConnId(11), &Peer { version: 3, ..thread(1) });
        assert_eq!([0, 1, 2].map(|number| links.version(number)), [0, 3, 0]);
    }

    #[test]
    fn who_is_not_the_model_thread_of_its_place_opens_nothing() {
        let mut links = connected();
        let control = Peer { role: Role::Control, ..thread(0) };
        let strangers = [(10, thread(1)), (10, control), (12, thread(0))];
        for (conn, peer) in strangers {
            assert!(!links.open(ConnId(conn), &peer), "{conn} {peer:?}");
        }
        assert!(links.open(ConnId(11), &thread(1)) && !links.are_open());
    }
}

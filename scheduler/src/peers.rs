//! Who a ModelThread is connected to, and who may connect: pure bookkeeping.

use baton_core::{BackendId, FrontendId, Gpu, GpuId};
use baton_rdma::wire::{RefuseCode, Role};
use baton_rdma::{CloseReason, ConnId, Peer};

use crate::limits::{BACKENDS_MAX, FRONTENDS_MAX, GPUS_MAX};

/// A joined member.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Member {
    /// By its id.
    Frontend(FrontendId),
    /// By its id.
    Backend(BackendId),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    token: u64,
    conn: Option<ConnId>,
    /// The protocol version of its connection.
    version: u16,
    /// The ModelThread has told the ControlThread that it is not connected.
    missed: bool,
}

/// Members by id, their connections, and which backend has which slot.
#[derive(Debug)]
pub(crate) struct Peers {
    frontends: Vec<Option<Entry>>,
    backends: Vec<Option<Entry>>,
    owners: Vec<Option<(u32, BackendId)>>,
    /// Ordered by connection, for bisection. Messages come in runs from one connection, so the last
    /// answer is kept.
    by_conn: Vec<(ConnId, Member)>,
    last: Option<(ConnId, Member)>,
}

impl Default for Peers {
    fn default() -> Self {
        Self {
            frontends: vec![None; FRONTENDS_MAX as usize],
            backends: vec![None; BACKENDS_MAX as usize],
            owners: vec![None; GPUS_MAX as usize],
            by_conn: Vec::new(),
            last: None,
        }
    }
}

impl Peers {
    /// The member has joined and will present `token`.
    pub(crate) fn expect(&mut self, member: Member, token: u64) {
        if let Some(entry) = self.entry(member) {
            *entry = Some(Entry { token, conn: None, version: 0, missed: false });
        }
    }

    /// The backend has these slots.
    pub(crate) fn own(&mut self, backend: BackendId, gpus: &[Gpu]) {
        for gpu in gpus {
            self.owners[gpu.id.0 as usize] = Some((gpu.life, backend));
        }
    }

    /// `peer` has opened a connection and says which member it is; false if its token is wrong.
    pub(crate) fn admit(&mut self, conn: ConnId, peer: &Peer) -> bool {
        let Some(member) = member(peer.role, peer.member) else { return false };
        let Some(entry) = self.entry(member).and_then(Option::as_mut) else { return false };
        if entry.token != peer.token || entry.conn.is_some() {
            return false;
        }
        entry.conn = Some(conn);
        entry.version = peer.version;
        let at = self.by_conn.partition_point(|&(known, _)| known < conn);
        self.by_conn.insert(at, (conn, member));
        true
    }

    /// The member behind a connection.
    #[inline]
    pub(crate) fn member(&mut self, conn: ConnId) -> Option<Member> {
        if let Some((last, member)) = self.last
            && last == conn
        {
            return Some(member);
        }
        let at = self.by_conn.binary_search_by_key(&conn, |&(known, _)| known).ok();
        self.last = at.map(|at| self.by_conn[at]);
        self.last.map(|(_, member)| member)
    }

    /// The connection is gone; returns whose it was.
    pub(crate) fn disconnected(&mut self, conn: ConnId) -> Option<Member> {
        let member = self.member(conn)?;
        self.last = None;
        self.by_conn.retain(|&(known, _)| known != conn);
        if let Some(entry) = self.entry(member).and_then(Option::as_mut) {
            entry.conn = None;
        }
        Some(member)
    }

    /// The member is gone; returns its connection, if it has one.
    pub(crate) fn forget(&mut self, member: Member) -> Option<ConnId> {
        let conn = self.entry(member)?.take()?.conn?;
        self.disconnected(conn);
        Some(conn)
    }

    /// Every connection of a member.
    pub(crate) fn connections(&self) -> impl Iterator<Item = ConnId> + '_ {
        self.by_conn.iter().map(|&(conn, _)| conn)
    }

    /// The frontend's connection.
    pub(crate) fn frontend(&self, frontend: FrontendId) -> Option<ConnId> {
        self.frontends.get(usize::from(frontend.0))?.as_ref()?.conn
    }

    /// The backend that has the slot, and its connection.
    pub(crate) fn backend_of(&self, gpu: Gpu) -> Option<(BackendId, ConnId)> {
        let GpuId(id) = gpu.id;
        let &(life, backend) = self.owners.get(id as usize)?.as_ref()?;
        let conn = self.backends[backend.0 as usize].as_ref()?.conn?;
        (life == gpu.life).then_some((backend, conn))
    }

    /// Whether this backend has the slot.
    pub(crate) fn owns(&self, backend: BackendId, slot: GpuId) -> bool {
        let owner = self.owners.get(slot.0 as usize).copied().flatten();
        owner.is_some_and(|(_, owner)| owner == backend)
    }

    /// The protocol version that a connected backend speaks; 0 for others.
    pub(crate) fn version_of(&self, backend: BackendId) -> u16 {
        let entry = self.backends.get(backend.0 as usize).and_then(Option::as_ref);
        entry.filter(|entry| entry.conn.is_some()).map_or(0, |entry| entry.version)
    }

    /// The backend that has the slot, if it is not connected.
    pub(crate) fn unconnected_owner(&self, gpu: Gpu) -> Option<BackendId> {
        let &(life, backend) = self.owners.get(gpu.id.0 as usize)?.as_ref()?;
        let entry = self.backends[backend.0 as usize].as_ref()?;
        (life == gpu.life && entry.conn.is_none()).then_some(backend)
    }

    /// The member is not connected and ought to be: true if this is the first time, in all the time that it
    /// is a member.
    pub(crate) fn is_news_that_missing(&mut self, member: Member) -> bool {
        let entry = self.entry(member).and_then(Option::as_mut);
        entry.is_some_and(|entry| !std::mem::replace(&mut entry.missed, true))
    }

    fn entry(&mut self, member: Member) -> Option<&mut Option<Entry>> {
        match member {
            Member::Frontend(id) => self.frontends.get_mut(usize::from(id.0)),
            Member::Backend(id) => self.backends.get_mut(id.0 as usize),
        }
    }
}

/// The member a hello speaks of, if its role can be one.
fn member(role: Role, number: u32) -> Option<Member> {
    match role {
        Role::Frontend => u16::try_from(number).ok().map(|id| Member::Frontend(FrontendId(id))),
        Role::Backend => Some(Member::Backend(BackendId(number))),
        Role::Control | Role::ModelThread | Role::Operator => None,
    }
}

/// The peer goes in order: a ModelThread that stops has sent it away.
pub(crate) fn is_farewell(reason: &CloseReason) -> bool {
    matches!(reason, CloseReason::Refused { code: Some(RefuseCode::Shutdown), .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRONTEND: Member = Member::Frontend(FrontendId(3));

    fn peer(role: Role, member: u32, token: u64) -> Peer {
        let addr = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        Peer { role, member, token, addr, accepted: true, version: 2 }
    }

    #[test]
    fn only_the_right_token_is_admitted_and_only_once() {
        let mut peers = Peers::default();
        assert!(!peers.admit(ConnId(1), &peer(Role::Frontend, 3, 99)), "no member has joined yet");
        peers.expect(FRONTEND, 99);
        assert!(!peers.admit(ConnId(1), &peer(Role::Frontend, 3, 98)));
        assert!(!peers.admit(ConnId(1), &peer(Role::Backend, 3, 99)));
        assert!(!peers.admit(ConnId(1), &peer(Role::Frontend, 1 << 20, 99)));
        assert!(peers.admit(ConnId(1), &peer(Role::Frontend, 3, 99)));
        assert!(!peers.admit(ConnId(2), &peer(Role::Frontend, 3, 99)), "it is connected already");
        assert_eq!(peers.member(ConnId(1)), Some(FRONTEND));
        assert_eq!(peers.frontend(FrontendId(3)), Some(ConnId(1)));
    }

    #[test]
    fn a_broken_connection_may_come_back_but_a_forgotten_member_may_not() {
        let mut peers = Peers::default();
        peers.expect(FRONTEND, 99);
        assert!(peers.admit(ConnId(1), &peer(Role::Frontend, 3, 99)));
        assert_eq!(peers.disconnected(ConnId(1)), Some(FRONTEND));
        assert_eq!((peers.frontend(FrontendId(3)), peers.member(ConnId(1))), (None, None));
        assert!(peers.admit(ConnId(2), &peer(Role::Frontend, 3, 99)));
        assert_eq!(peers.forget(FRONTEND), Some(ConnId(2)));
        assert!(!peers.admit(ConnId(3), &peer(Role::Frontend, 3, 99)));
    }

    #[test]
    fn that_a_member_is_missing_is_news_once_in_its_life() {
        let mut peers = Peers::default();
        assert!(!peers.is_news_that_missing(FRONTEND), "no member has joined yet");
        peers.expect(FRONTEND, 99);
        assert!(peers.is_news_that_missing(FRONTEND));
        for conn in 1..3 {
            assert!(peers.admit(ConnId(conn), &peer(Role::Frontend, 3, 99)));
            assert_eq!(peers.disconnected(ConnId(conn)), Some(FRONTEND));
            assert!(!peers.is_news_that_missing(FRONTEND), "reported before");
        }
        peers.forget(FRONTEND);
        assert!(!peers.is_news_that_missing(FRONTEND), "it ought not to be connected");
        peers.expect(FRONTEND, 100);
        assert!(peers.is_news_that_missing(FRONTEND));
    }

    #[test]
    fn a_slot_of_an_earlier_life_has_no_backend() {
        let mut peers = Peers::default();
        let (old, new) = (Gpu { id: GpuId(5), life: 0 }, Gpu { id: GpuId(5), life: 1 });
        peers.expect(Member::Backend(BackendId(2)), 7);
        peers.own(BackendId(2), &[new]);
        assert_eq!(peers.backend_of(new), None, "not connected yet");
        assert_eq!(peers.unconnected_owner(new), Some(BackendId(2)));
        assert_eq!(peers.unconnected_owner(old), None);
        assert!(peers.admit(ConnId(4), &peer(Role::Backend, 2, 7)));
        assert_eq!(peers.backend_of(new), Some((BackendId(2), ConnId(4))));
        assert_eq!(peers.backend_of(old), None);
        assert_eq!(peers.unconnected_owner(new), None);
        peers.forget(Member::Backend(BackendId(2)));
        assert_eq!(peers.unconnected_owner(new), None, "no backend owns it");
    }
}

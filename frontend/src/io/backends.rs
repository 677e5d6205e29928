//! The backends that may pull inputs and deliver answers: those that present this client's token.
//!
//! In: accepted connections. Out: whether a connection is authorised. A backend can be quicker
//! than our own JoinAck, which brings the token; until then it waits, unauthorised. Each join brings
//! another token; a backend with the former token stays authorised until the client is open again.

use baton_rdma::wire::Role;
use baton_rdma::{ConnId, Peer};

/// Backends that may be waiting for the token.
const WAITING_MAX: usize = 1_024;

#[derive(Default, Debug)]
pub(super) struct Backends {
    token: Option<u64>,
    /// Ascending: connection numbers only grow.
    authorised: Vec<ConnId>,
    /// With the tokens they presented.
    waiting: Vec<(ConnId, u64)>,
    /// Authorised by a former token.
    former: Vec<ConnId>,
    /// Formerly authorised, now closed; messages that they sent before may still be under way.
    parted: Vec<ConnId>,
}

impl Backends {
    /// A connection was accepted. False: turn it away.
    pub(super) fn admit(&mut self, conn: ConnId, peer: &Peer) -> bool {
        match self.token {
            _ if peer.role != Role::Backend => false,
            Some(token) if token == peer.token => {
                self.authorise(conn);
                true
            }
            Some(_) => false,
            None => {
                let room = self.waiting.len() < WAITING_MAX;
                if room {
                    self.waiting.push((conn, peer.token));
                }
                room
            }
        }
    }

    /// The token is known. Returns the waiting connections that do not have it.
    pub(super) fn set_token(&mut self, token: u64) -> Vec<ConnId> {
        self.token = Some(token);
        let (friends, strangers): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|entry| entry.1 == token);
        friends.into_iter().for_each(|(conn, _)| self.authorise(conn));
        strangers.into_iter().map(|(conn, _)| conn).collect()
    }

    /// Another token is going to come.
    pub(super) fn await_token(&mut self) {
        self.token = None;
        self.former.append(&mut self.authorised);
    }

    /// The connections that have only a former token, to be closed.
    pub(super) fn part(&mut self) -> Vec<ConnId> {
        self.parted.extend_from_slice(&self.former);
        std::mem::take(&mut self.former)
    }

    pub(super) fn authorised(&self, conn: ConnId) -> bool {
        let before = || self.former.contains(&conn) || self.parted.contains(&conn);
        self.authorised.binary_search(&conn).is_ok() || before()
    }

    /// Every connection that has the present token.
    pub(super) fn all_authorised(&self) -> &[ConnId] {
        &self.authorised
    }

    /// Every connection that answers may come over.
    pub(super) fn conns(&self) -> impl Iterator<Item = ConnId> + '_ {
        self.authorised.iter().chain(&self.former).copied()
    }

    /// The connection is gone.
    pub(super) fn remove(&mut self, conn: ConnId) {
        for list in [&mut self.authorised, &mut self.former, &mut self.parted] {
            list.retain(|&other| other != conn);
        }
        self.waiting.retain(|&(other, _)| other != conn);
    }

    fn authorise(&mut self, conn: ConnId) {
        if let Err(at) = self.authorised.binary_search(&conn) {
            self.authorised.insert(at, conn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(role: Role, token: u64) -> Peer {
        let addr = "127.0.0.1:9".parse().unwrap();
        Peer { role, member: 1, token, addr, accepted: true, version: 2 }
    }

    #[test]
    fn the_token_decides_also_for_those_who_came_before_it() {
        let mut backends = Backends::default();
        assert!(backends.admit(ConnId(2), &peer(Role::Backend, 7)));
        assert!(backends.admit(ConnId(1), &peer(Role::Backend, 8)));
        assert!(!backends.authorised(ConnId(2)), "not before the token is known");
        assert_eq!(backends.set_token(7), [ConnId(1)]);
        assert!(backends.authorised(ConnId(2)));
        assert!(!backends.authorised(ConnId(1)));
    }

    #[test]
    fn another_token_is_for_others_and_the_former_ones_stay_until_parted_from() {
        let mut backends = Backends::default();
        backends.set_token(7);
        assert!(backends.admit(ConnId(1), &peer(Role::Backend, 7)));
        backends.await_token();
        assert!(backends.authorised(ConnId(1)), "it may have answers");
        assert!(backends.admit(ConnId(2), &peer(Role::Backend, 8)));
        assert!(backends.set_token(8).is_empty());
        assert!(backends.authorised(ConnId(2)));
        assert_eq!(backends.all_authorised(), [ConnId(2)]);
        assert_eq!(backends.part(), [ConnId(1)]);
        assert!(backends.part().is_empty(), "once");
        assert!(backends.authorised(ConnId(1)), "its last words are not read yet");
        backends.remove(ConnId(1));
        assert!(!backends.authorised(ConnId(1)));
    }

    /// The client may be admitted and lose that scheduler too before it is open again.
    #[test]
    fn all_of_the_lives_before_are_parted_from() {
        let mut backends = Backends::default();
        for (conn, token) in [(1, 7), (2, 8)] {
            backends.set_token(token);
            assert!(backends.admit(ConnId(conn), &peer(Role::Backend, token)));
            backends.await_token();
        }
        assert_eq!(backends.conns().collect::<Vec<_>>(), [ConnId(1), ConnId(2)]);
        assert!([1, 2].iter().all(|&conn| backends.authorised(ConnId(conn))));
        assert_eq!(backends.part(), [ConnId(1), ConnId(2)]);
    }

    #[test]
    fn strangers_are_turned_away() {
        let mut backends = Backends::default();
        backends.set_token(7);
        assert!(!backends.admit(ConnId(1), &peer(Role::Backend, 8)));
        assert!(!backends.admit(ConnId(2), &peer(Role::Frontend, 7)));
        assert!(backends.admit(ConnId(3), &peer(Role::Backend, 7)));
        backends.remove(ConnId(3));
        assert!(!backends.authorised(ConnId(3)));
    }

    #[test]
    fn all_that_have_the_token_are_authorised_however_many_they_are() {
        let mut backends = Backends::default();
        backends.set_token(7);
        let conns = [1, 2, 3, 4].map(ConnId);
        assert!(conns.iter().all(|&conn| backends.admit(conn, &peer(Role::Backend, 7))));
        assert_eq!(backends.all_authorised(), conns);
        assert!(conns.iter().all(|&conn| backends.authorised(conn)));
    }
}

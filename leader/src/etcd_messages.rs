//! What is asked of etcd, and what it answers.

use std::net::SocketAddr;

use baton_core::Nanos;

/// An etcd lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LeaseId(pub i64);

/// What stands under the leader's key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Whose lease: the key goes when it ends.
    pub lease: LeaseId,
    /// etcd's revision when the key was made: every leader's is higher than its predecessor's.
    pub epoch: u64,
    /// Where it listens; `None` if what stands there is no address.
    pub addr: Option<SocketAddr>,
}

/// One request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EtcdRequest {
    /// Who leads?
    Look,
    /// A new lease, please.
    Grant,
    /// The key, bound to this lease, if nobody has it.
    Campaign(LeaseId),
    /// This lease for its full time again.
    Renew(LeaseId),
    /// No more of this lease; what is bound to it goes with it.
    Revoke(LeaseId),
}

/// What etcd says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EtcdResponse {
    /// To a look, and to a campaign that came too late: who has the key.
    Held(Option<Holder>),
    /// To a grant.
    Granted {
        /// The lease.
        lease: LeaseId,
        /// How long it lasts, which may be longer than asked for.
        ttl: Nanos,
    },
    /// To a campaign: the key is ours.
    Won {
        /// See [`Holder::epoch`].
        epoch: u64,
    },
    /// To a renewal: so long from some moment between request and answer.
    Renewed {
        /// How long.
        ttl: Nanos,
    },
    /// There is no such lease any more.
    Gone,
    /// To a revocation.
    Revoked,
}

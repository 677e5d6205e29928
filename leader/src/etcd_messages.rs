//! The requests to etcd, and its answers.

use std::net::SocketAddr;

use baton_types::Nanos;

/// An etcd lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LeaseId(pub i64);

/// What stands under the leader's key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Holder {
    /// Whose lease: the key goes when it ends.
    pub lease: LeaseId,
    /// etcd's revision when the key was made: every leader's is higher than its predecessor's.
    pub epoch: u64,
    /// Where it listens; `None` if the value is not an address.
    pub addr: Option<SocketAddr>,
}

/// One request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EtcdRequest {
    /// Asks for the holder of the key.
    Look,
    /// A new lease, please.
    Grant,
    /// Takes the key, bound to this lease, if it is free.
    Campaign(LeaseId),
    /// This lease for its full time again.
    Renew(LeaseId),
    /// Ends this lease; the key bound to it goes with it.
    Revoke(LeaseId),
}

/// etcd's answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EtcdResponse {
    /// To a look, and to a campaign that came too late: the holder of the key.
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
    /// To a renewal: the lease's duration, from some moment between request and answer.
    Renewed {
        /// How long.
        ttl: Nanos,
    },
    /// The lease no longer exists.
    Gone,
    /// To a revocation.
    Revoked,
}

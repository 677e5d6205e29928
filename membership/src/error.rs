//! Why a member is not, or no longer, one of the scheduler's.

use std::net::SocketAddr;

use baton_leader::Unknown;
use baton_rdma::CloseReason;
use baton_rdma::wire::{RefuseCode, Role};

/// How an attempt to join failed, or how a membership ended.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MembershipError {
    /// The scheduler's address is unknown.
    #[error("there is no scheduler to join: {0}")]
    NoScheduler(Unknown),
    /// The connection could not even be started.
    #[error("cannot connect to {what} at {addr}: {problem}")]
    Unreachable {
        /// "the scheduler", or one of its ModelThreads.
        what: String,
        /// Its address.
        addr: SocketAddr,
        /// The system's answer.
        problem: String,
    },
    /// No scheduler was there, or none that stayed, until the time to join was over or nearly so.
    #[error(
        "no scheduler for {tried_ms} ms: {last}; start it, correct its address, or raise {bound}"
    )]
    TimedOut {
        /// How long this member tried, in milliseconds.
        tried_ms: u64,
        /// How the last attempt failed.
        last: Box<Self>,
        /// The setting that bounds the attempts.
        bound: &'static str,
    },
    /// No secure connection: one side does not accept the other, or only one of them has TLS.
    #[error("no secure connection to {what} at {addr}: {reason}")]
    Untrusted {
        /// "the scheduler", or one of its ModelThreads.
        what: String,
        /// Its address.
        addr: SocketAddr,
        /// What is wrong, and the fix.
        reason: String,
    },
    /// A connection broke.
    #[error("the connection to {what} at {addr} ended: {reason}")]
    Closed {
        /// "the scheduler", or one of its ModelThreads.
        what: String,
        /// Its address.
        addr: SocketAddr,
        /// What the transport saw.
        reason: String,
    },
    /// Something else answers there, or one that this build cannot talk to.
    #[error("what answers at {addr} is not {what}: {reason}")]
    Unfit {
        /// "the scheduler", or one of its ModelThreads.
        what: String,
        /// Its address.
        addr: SocketAddr,
        /// What it did.
        reason: String,
    },
    /// The scheduler refused this member.
    #[error("{what} at {addr} refused this {}: {detail}", role_name(*.role))]
    Refused {
        /// What this member is.
        role: Role,
        /// "the scheduler", or one of its ModelThreads.
        what: String,
        /// Its address.
        addr: SocketAddr,
        /// Its reason, if this build knows the code.
        code: Option<RefuseCode>,
        /// Its words.
        detail: String,
    },
    /// A stage took too long.
    #[error(
        "still waiting for {waiting_for} after {timeout_ms} ms; see the log of the scheduler at {addr}"
    )]
    Timeout {
        /// The scheduler.
        addr: SocketAddr,
        /// The bound, in milliseconds.
        timeout_ms: u64,
        /// What did not happen.
        waiting_for: &'static str,
    },
    /// The scheduler has answered no ping.
    #[error("the scheduler has been silent for {timeout_ms} ms")]
    Silent {
        /// The bound, in milliseconds.
        timeout_ms: u64,
    },
    /// The catalogue contradicts itself: the scheduler is broken, or speaks another dialect.
    #[error("the scheduler's catalogue makes no sense: {0}")]
    BadCatalogue(String),
}

impl From<Unknown> for MembershipError {
    fn from(unknown: Unknown) -> Self {
        Self::NoScheduler(unknown)
    }
}

impl MembershipError {
    /// A connection closed. While joining, that may show who is at the other end.
    pub(crate) fn closed(
        (what, addr): (String, SocketAddr),
        reason: &CloseReason,
        role: Role,
        is_joining: bool,
    ) -> Self {
        match reason {
            CloseReason::Refused { code, detail } => {
                Self::Refused { role, what, addr, code: *code, detail: detail.clone() }
            }
            CloseReason::Tls(reason) | CloseReason::NotAllowed(reason) if is_joining => {
                Self::Untrusted { what, addr, reason: reason.clone() }
            }
            CloseReason::Eof | CloseReason::Reset(_) | CloseReason::HandshakeTimeout => {
                Self::Closed { what, addr, reason: reason.to_string() }
            }
            other if is_joining => Self::Unfit { what, addr, reason: other.to_string() },
            other => Self::Closed { what, addr, reason: other.to_string() },
        }
    }

    /// The scheduler's reason, if it refused.
    pub fn code(&self) -> Option<RefuseCode> {
        if let Self::Refused { code, .. } = self { *code } else { None }
    }

    /// Whether the scheduler may be up, or another one lead, a moment later. `is_linking`: its ControlThread has
    /// admitted this member, so that a ModelThread which does not is one of another life.
    pub(crate) fn may_pass_at_start(&self, is_linking: bool) -> bool {
        match self {
            Self::NoScheduler(_) | Self::Unreachable { .. } | Self::Closed { .. } => true,
            Self::Refused { code, .. } => match code {
                Some(RefuseCode::Shutdown | RefuseCode::Silent) => true,
                Some(RefuseCode::Unauthorised) => is_linking,
                _ => false,
            },
            _ => false,
        }
    }
}

fn role_name(role: Role) -> &'static str {
    if role == Role::Backend { "backend" } else { "client" }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    /// A member that is joining learns who is there; one that was ready knows.
    #[test]
    fn what_a_closed_connection_shows_depends_on_when_it_closed() {
        let addr = ([127, 0, 0, 1], 1).into();
        let is = |reason: &CloseReason, is_joining| {
            let who = ("the scheduler".to_owned(), addr);
            match MembershipError::closed(who, reason, Role::Frontend, is_joining) {
                MembershipError::Untrusted { .. } => "untrusted",
                MembershipError::Unfit { .. } => "unfit",
                MembershipError::Closed { .. } => "closed",
                MembershipError::Refused { .. } => "refused",
                other => panic!("{other}"),
            }
        };
        let code = Some(RefuseCode::Limit);
        let cases = [
            (CloseReason::Tls(String::new()), ["untrusted", "closed"]),
            (CloseReason::NotAllowed(String::new()), ["untrusted", "closed"]),
            (CloseReason::SendQueueFull, ["unfit", "closed"]),
            (CloseReason::Eof, ["closed", "closed"]),
            (CloseReason::Reset(ErrorKind::ConnectionReset), ["closed", "closed"]),
            (CloseReason::HandshakeTimeout, ["closed", "closed"]),
            (CloseReason::Refused { code, detail: String::new() }, ["refused", "refused"]),
        ];
        for (reason, expected) in cases {
            assert_eq!([true, false].map(|is_joining| is(&reason, is_joining)), expected);
        }
    }
}

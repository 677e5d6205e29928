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

    /// Who, where, and what was wrong, or what to do.
    #[test]
    fn each_error_names_what_it_is_about() {
        let (what, addr, text) = (String::from("ModelThread 3"), ([10, 0, 0, 1], 7).into(), "odd");
        let (problem, reason) = (String::from(text), String::from(text));
        let refused = |role| MembershipError::Refused {
            role,
            what: what.clone(),
            addr,
            code: None,
            detail: reason.clone(),
        };
        let closed = MembershipError::Closed { what: what.clone(), addr, reason: reason.clone() };
        let last = Box::new(closed.clone());
        let cases = [
            (MembershipError::from(Unknown::NotYet), "no scheduler to join: etcd has not said"),
            (
                MembershipError::Unreachable { what: what.clone(), addr, problem },
                "cannot connect to ModelThread 3 at 10.0.0.1:7: odd",
            ),
            (
                MembershipError::TimedOut { tried_ms: 70, last, bound: "join_timeout_ms" },
                "for 70 ms: the connection to ModelThread 3 at 10.0.0.1:7 ended: odd; \
                 start it, correct its address, or raise join_timeout_ms",
            ),
            (
                MembershipError::Untrusted { what: what.clone(), addr, reason: reason.clone() },
                "no secure connection to ModelThread 3 at 10.0.0.1:7: odd",
            ),
            (closed, "the connection to ModelThread 3 at 10.0.0.1:7 ended: odd"),
            (
                MembershipError::Unfit { what: what.clone(), addr, reason: reason.clone() },
                "what answers at 10.0.0.1:7 is not ModelThread 3: odd",
            ),
            (refused(Role::Backend), "ModelThread 3 at 10.0.0.1:7 refused this backend: odd"),
            (refused(Role::Frontend), "ModelThread 3 at 10.0.0.1:7 refused this client: odd"),
            (
                MembershipError::Timeout { addr, timeout_ms: 70, waiting_for: "an answer" },
                "waiting for an answer after 70 ms; see the log of the scheduler at 10.0.0.1:7",
            ),
            (MembershipError::Silent { timeout_ms: 70 }, "silent for 70 ms"),
            (MembershipError::BadCatalogue(reason), "catalogue makes no sense: odd"),
        ];
        for (error, words) in cases {
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    /// What a scheduler that starts, or one that follows another, does to those who are early.
    #[test]
    fn what_may_pass_is_a_scheduler_that_is_not_there_yet() {
        let (addr, text) = (([10, 0, 0, 1], 7).into(), String::new());
        let refused = |code| MembershipError::Refused {
            role: Role::Backend,
            what: text.clone(),
            addr,
            code,
            detail: text.clone(),
        };
        let (what, reason) = (text.clone(), text.clone());
        let cases = [
            (Unknown::NotYet.into(), [true, true]),
            (
                MembershipError::Unreachable { what: what.clone(), addr, problem: text.clone() },
                [true, true],
            ),
            (
                MembershipError::Closed { what: what.clone(), addr, reason: reason.clone() },
                [true; 2],
            ),
            (refused(Some(RefuseCode::Shutdown)), [true, true]),
            (refused(Some(RefuseCode::Silent)), [true, true]),
            (refused(Some(RefuseCode::Unauthorised)), [false, true]),
            (refused(Some(RefuseCode::Version)), [false, false]),
            (refused(None), [false, false]),
            (MembershipError::Unfit { what, addr, reason }, [false, false]),
            (MembershipError::Silent { timeout_ms: 1 }, [false, false]),
        ];
        for (error, expected) in cases {
            let may_pass = [false, true].map(|is_linking| error.may_pass_at_start(is_linking));
            assert_eq!(may_pass, expected, "{error}");
        }
        assert_eq!(refused(Some(RefuseCode::Version)).code(), Some(RefuseCode::Version));
        assert_eq!(MembershipError::Silent { timeout_ms: 1 }.code(), None);
    }

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

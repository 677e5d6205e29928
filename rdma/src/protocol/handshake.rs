//! Opening a connection, and what a peer hears when it is closed. Pure; shared by the transports.
//!
//! The connecting side sends [`Hello`](crate::protocol::wire::Hello) and may send on at once; the acceptor answers [`Welcome`] with
//! the version both will speak, or [`Refuse`](crate::protocol::wire::Refuse).

use std::net::SocketAddr;

use crate::events::{CloseReason, Peer};
use crate::protocol::wire::{
    DecodeError, MAGIC, Message, RefuseCode, Role, VERSION_MAX, VERSION_MIN, Versions, Welcome,
};
use crate::transport::{Identity, TransportCounters};

/// Whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Accepted; the peer's hello comes first.
    AwaitHello,
    /// Connected; the peer's welcome comes first.
    AwaitWelcome,
    /// Both sides know each other.
    Open,
}

/// Takes in the first message of a connection: who the peer is, and what to answer.
///
/// # Errors
/// The peer refused, speaks another protocol or none of our versions.
pub(crate) fn on_first(
    stage: Stage,
    message: &Message<'_>,
    addr: SocketAddr,
    identity: Identity,
    ours: Versions,
) -> Result<(Peer, Option<Welcome>), CloseReason> {
    if stage == Stage::AwaitHello {
        let (peer, version) = check_hello(message, addr, ours)?;
        let Identity { role, member } = identity;
        let (version, member) = (version.into(), member.into());
        Ok((peer, Some(Welcome { version, role: role as u8, reserved: 0, member })))
    } else {
        Ok((check_welcome(message, addr, ours)?, None))
    }
}

/// The role a first message claims for its sender.
pub(crate) fn claimed_role(message: &Message<'_>) -> Option<Role> {
    match message {
        Message::Hello(hello) => Role::from_code(hello.role),
        Message::Welcome(welcome) => Role::from_code(welcome.role),
        _ => None,
    }
}

/// The roles that a process in this role connects to.
pub(crate) fn hosts_of(role: Role) -> &'static [Role] {
    match role {
        Role::Frontend | Role::Operator => &[Role::Control],
        Role::Backend => &[Role::Control, Role::Frontend],
        Role::Control | Role::ModelThread => &[],
    }
}

/// What a peer's refusal means to this side.
pub(crate) fn refused(code: u16, detail: &str) -> CloseReason {
    CloseReason::Refused { code: RefuseCode::from_code(code), detail: detail.to_owned() }
}

/// A message that does not belong where it stands.
pub(crate) fn unexpected(message: &Message<'_>) -> CloseReason {
    CloseReason::Unexpected(message.kind())
}

fn check_hello(
    message: &Message<'_>,
    addr: SocketAddr,
    ours: Versions,
) -> Result<(Peer, u16), CloseReason> {
    let hello = match message {
        Message::Hello(hello) => hello,
        Message::Refuse(refuse, detail) => return Err(refused(refuse.code.get(), detail)),
        _ => return Err(unexpected(message)),
    };
    if hello.magic.get() != MAGIC {
        return Err(CloseReason::Malformed(DecodeError::Hello));
    }
    let (min, max) = (hello.version_min.get(), hello.version_max.get());
    let version = hello.common_with(ours).ok_or(CloseReason::Version { min, max })?;
    let role = Role::from_code(hello.role).filter(|_| hello.reserved == [0; 3]);
    let role = role.ok_or(CloseReason::Malformed(DecodeError::Hello))?;
    let (member, token) = (hello.member.get(), hello.token.get());
    Ok((Peer { role, member, token, addr, accepted: true, version }, version))
}

fn check_welcome(
    message: &Message<'_>,
    addr: SocketAddr,
    ours: Versions,
) -> Result<Peer, CloseReason> {
    let welcome = match message {
        Message::Welcome(welcome) => welcome,
        Message::Refuse(refuse, detail) => return Err(refused(refuse.code.get(), detail)),
        _ => return Err(unexpected(message)),
    };
    let version = welcome.version.get();
    if !(ours.min..=ours.max).contains(&version) {
        return Err(CloseReason::Version { min: version, max: version });
    }
    let role = Role::from_code(welcome.role).filter(|_| welcome.reserved == 0);
    let role = role.ok_or(CloseReason::Malformed(DecodeError::Hello))?;
    Ok(Peer { role, member: welcome.member.get(), token: 0, addr, accepted: false, version })
}

/// What the peer hears before this side closes the connection for `reason`; `None` where the peer
/// would not listen or said so itself.
pub(crate) fn refusal(reason: &CloseReason) -> Option<(RefuseCode, String)> {
    let (code, text) = match reason {
        CloseReason::Eof | CloseReason::Reset(_) | CloseReason::Refused { .. } => return None,
        CloseReason::Local => return None,
        CloseReason::Tls(why) | CloseReason::NotAllowed(why) => {
            (RefuseCode::Unauthorised, why.clone())
        }
        CloseReason::Malformed(error) => {
            (RefuseCode::Malformed, format!("malformed frame: {error}"))
        }
        CloseReason::Unexpected(kind) => {
            (RefuseCode::UnexpectedMessage, format!("{kind:?} does not belong here"))
        }
        CloseReason::Version { min, max } => (
            RefuseCode::Version,
            format!(
                "this side speaks protocol versions {VERSION_MIN} to {VERSION_MAX}, you speak {min} to \
                 {max}; upgrade the older one"
            ),
        ),
        CloseReason::HandshakeTimeout => (RefuseCode::Limit, "no hello in time".to_owned()),
        CloseReason::SendQueueFull => {
            (RefuseCode::Limit, "you do not read what you ask for".to_owned())
        }
        CloseReason::Fabric(problem) => (RefuseCode::Fabric, problem.clone()),
    };
    Some((code, text))
}

/// Counts a closed connection.
pub(crate) fn count(counters: &mut TransportCounters, reason: &CloseReason) {
    counters.closed += 1;
    match reason {
        CloseReason::Malformed(_) | CloseReason::Unexpected(_) => counters.malformed += 1,
        CloseReason::Version { .. } => counters.version_refused += 1,
        CloseReason::HandshakeTimeout | CloseReason::SendQueueFull => counters.refused += 1,
        CloseReason::Tls(_) | CloseReason::NotAllowed(_) => counters.tls_refused += 1,
        CloseReason::Eof
        | CloseReason::Reset(_)
        | CloseReason::Refused { .. }
        | CloseReason::Fabric(_)
        | CloseReason::Local => {}
    }
}

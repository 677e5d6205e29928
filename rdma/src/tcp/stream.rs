//! A connection of the operating system's: TCP as it is, or TLS over it.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use mio::net::TcpStream;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg, sockopt};

use super::net::NetStream;
use crate::protocol::wire::Role;
use crate::tls::{Credentials, TlsStream};

/// A connection is void when its far end has acknowledged nothing, or answered no probe, for this
/// long. Heartbeats notice a dead scheduler or member sooner; but a frontend hears nothing of dead
/// backends, and what it had begun to send to one keeps its slot until the connection ends.
const PATIENCE: Duration = Duration::from_secs(5);
/// Silence before the first probe, and between probes.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// A connection; which kind, the transport decides once for all of them.
pub enum OsStream {
    /// Plain TCP.
    Plain(TcpStream),
    /// TLS over TCP.
    Tls(Box<TlsStream>),
}

impl OsStream {
    /// The side that connects.
    pub(super) fn connecting(
        tcp: TcpStream,
        addr: SocketAddr,
        credentials: Option<&Credentials>,
    ) -> io::Result<Self> {
        let Some(credentials) = credentials else { return Ok(Self::Plain(tcp)) };
        Ok(Self::Tls(Box::new(TlsStream::connecting(tcp, addr, credentials)?)))
    }

    /// The side that was connected to.
    pub(super) fn accepted(tcp: TcpStream, credentials: Option<&Credentials>) -> io::Result<Self> {
        let Some(credentials) = credentials else { return Ok(Self::Plain(tcp)) };
        Ok(Self::Tls(Box::new(TlsStream::accepted(tcp, credentials)?)))
    }

    /// The socket.
    pub(super) fn tcp(&mut self) -> &mut TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            Self::Tls(tls) => tls.tcp(),
        }
    }
}

impl Read for OsStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.read(buf),
            Self::Tls(tls) => tls.read(buf),
        }
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.read_vectored(bufs),
            Self::Tls(tls) => tls.read_vectored(bufs),
        }
    }
}

impl NetStream for OsStream {
    fn is_up(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    fn finish_connect(&mut self) -> io::Result<bool> {
        match self {
            Self::Plain(tcp) => connected(tcp),
            Self::Tls(tls) => tls.finish_connect(),
        }
    }

    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => send_plain(tcp, slices),
            Self::Tls(tls) => tls.send(slices),
        }
    }

    fn finish_sending(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(tcp) => tcp.shutdown(Shutdown::Write),
            Self::Tls(tls) => tls.finish_sending(),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(tls) => tls.flush(),
        }
    }

    fn has_unsent(&self) -> bool {
        matches!(self, Self::Tls(tls) if tls.has_unsent())
    }

    fn has_unread(&self) -> bool {
        matches!(self, Self::Tls(tls) if tls.has_unread())
    }

    fn may_act_as(&self, role: Role) -> Result<(), String> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(tls) => tls.may_act_as(role),
        }
    }
}

/// True once `tcp` is up; then it is ready for frames.
pub(crate) fn connected(tcp: &TcpStream) -> io::Result<bool> {
    if let Some(error) = tcp.take_error()? {
        return Err(error);
    }
    match tcp.peer_addr() {
        Ok(_) => prepare(tcp).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

/// Unlike a plain write, never raises SIGPIPE: the library may live in a foreign process.
pub(crate) fn send_plain(tcp: &TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    let sent = sendmsg(tcp, slices, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL);
    sent.map_err(io::Error::from)
}

/// Frames leave at once, and a far end that vanished is noticed.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE_EVERY)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_EVERY)?;
    // Also bounds the probes, whatever their number.
    sockopt::set_tcp_user_timeout(stream, PATIENCE.as_millis() as u32)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::tcp::{Net as _, OsNet};

    #[test]
    fn both_ends_of_a_connection_notice_a_far_end_that_vanished() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut acceptor = OsNet::bind(Some(any)).unwrap();
        let mut stream = OsNet::bind(None).unwrap().connect(acceptor.local_addr()).unwrap();
        let (mut accepted, _) =
            (0..10_000_000).find_map(|_| acceptor.accept().ok()).expect("it knocked");
        assert!((0..10_000_000).any(|_| stream.finish_connect().unwrap()), "it is up");
        for end in [stream.tcp(), accepted.tcp()] {
            assert!(sockopt::socket_keepalive(&*end).unwrap());
            assert_eq!(sockopt::tcp_keepidle(&*end).unwrap(), PROBE_EVERY);
            assert_eq!(sockopt::tcp_user_timeout(&*end).unwrap(), 5_000);
        }
    }
}

//! What the transport needs of a network: streams of bytes and word of when they are ready.
//!
//! [`OsNet`] is the operating system's. Whoever brings another one, as the cluster simulation does,
//! runs the same transport, byte for byte.

use std::io::{self, IoSlice, Read};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::time::Duration;

use baton_core::Nanos;
use baton_topo::Waker;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Token};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg, sockopt};

const LISTENER: Token = Token(usize::MAX);
const WAKER: Token = Token(usize::MAX - 1);
/// A descriptor that only ends waits.
pub(super) const WATCHED: Token = Token(usize::MAX - 2);
/// A connection is void when its far end has acknowledged nothing, or answered no probe, for this
/// long. Heartbeats notice a dead scheduler or member sooner; but a frontend hears nothing of dead
/// backends, and what it had begun to send to one keeps its slot until the connection ends.
const PATIENCE: Duration = Duration::from_secs(5);
/// Silence before the first probe, and between probes.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Kernel events taken per poll.
const KERNEL_EVENTS: usize = 256;

/// News of readiness. Edge triggered: told once, and again only after a call would have blocked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Edge {
    /// Connections may be waiting to be accepted.
    Acceptable,
    /// News of a stream.
    Stream {
        /// Where it was registered.
        place: usize,
        /// There may be something to read, an end or an error included.
        readable: bool,
        /// There may be room to write, or the connection is up.
        writable: bool,
        /// The peer sends no more, or the connection broke.
        hung_up: bool,
    },
}

/// A network as one transport sees it.
pub trait Net {
    /// One connection.
    type Stream: NetStream;

    /// Where peers connect; unspecified if nothing listens.
    fn local_addr(&self) -> SocketAddr;

    /// True if peers can connect.
    fn listens(&self) -> bool;

    /// The next connection that waits.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if none does; anything else is the operating system's.
    fn accept(&mut self) -> io::Result<(Self::Stream, SocketAddr)>;

    /// Starts to connect; that the stream is writable, or broken, tells how it went.
    ///
    /// # Errors
    /// The address cannot be reached at all.
    fn connect(&mut self, addr: SocketAddr) -> io::Result<Self::Stream>;

    /// From now on there is news of `stream`, under the name `place`.
    ///
    /// # Errors
    /// The operating system's.
    fn register(&mut self, stream: &mut Self::Stream, place: usize) -> io::Result<()>;

    /// The news since the last call. Never blocks.
    fn collect(&mut self, on_edge: impl FnMut(Edge));

    /// Blocks until there is news, the waker fires, or `timeout` has passed.
    fn wait(&mut self, timeout: Option<Nanos>);

    /// Ends [`Net::wait`].
    fn waker(&self) -> Waker;
}

/// A connection's bytes. Nothing blocks; a read shorter than asked for has taken all there is.
pub trait NetStream: Read {
    /// True once the connection is up.
    ///
    /// # Errors
    /// It could not be made.
    fn finish_connect(&self) -> io::Result<bool>;

    /// Writes as much as there is room for.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is none; otherwise the connection broke.
    fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Nothing more will be sent.
    ///
    /// # Errors
    /// The connection broke.
    fn finish_sending(&self) -> io::Result<()>;
}

/// The operating system's TCP.
pub struct OsNet {
    poll: mio::Poll,
    events: mio::Events,
    waker: Waker,
    listener: Option<TcpListener>,
    local_addr: SocketAddr,
}

impl OsNet {
    /// Listens on `listen`, if given.
    ///
    /// # Errors
    /// The address cannot be listened on, or the process is out of file descriptors.
    pub fn bind(listen: Option<SocketAddr>) -> io::Result<Self> {
        let poll = mio::Poll::new()?;
        let mut listener = listen.map(TcpListener::bind).transpose()?;
        if let Some(listener) = &mut listener {
            poll.registry().register(listener, LISTENER, Interest::READABLE)?;
        }
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let local_addr = listener.as_ref().map_or(Ok(nowhere), TcpListener::local_addr)?;
        let events = mio::Events::with_capacity(KERNEL_EVENTS);
        Ok(Self { waker: make_waker(&poll)?, poll, events, listener, local_addr })
    }

    pub(super) fn registry(&self) -> &mio::Registry {
        self.poll.registry()
    }
}

impl Net for OsNet {
    type Stream = TcpStream;

    fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    fn listens(&self) -> bool {
        self.listener.is_some()
    }

    fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        let listener = self.listener.as_ref().ok_or(io::ErrorKind::WouldBlock)?;
        let (stream, addr) = listener.accept()?;
        // It fails only on a connection that is gone already.
        prepare(&stream).map_err(|_| io::ErrorKind::ConnectionAborted)?;
        Ok((stream, addr))
    }

    fn connect(&mut self, addr: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(addr)
    }

    fn register(&mut self, stream: &mut TcpStream, place: usize) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(stream, Token(place), interest)
    }

    fn collect(&mut self, mut on_edge: impl FnMut(Edge)) {
        let polled = self.poll.poll(&mut self.events, Some(Duration::ZERO));
        if let Err(error) = polled
            && error.kind() != io::ErrorKind::Interrupted
        {
            tracing::error!(%error, "epoll failed");
        }
        for event in &self.events {
            match event.token() {
                LISTENER => on_edge(Edge::Acceptable),
                WAKER | WATCHED => {}
                Token(place) => on_edge(stream_edge(place, event)),
            }
        }
    }

    fn wait(&mut self, timeout: Option<Nanos>) {
        let timeout = timeout
            .map(|Nanos(ns)| Timespec::try_from(Duration::from_nanos(ns)).expect("584 years fit"));
        // An epoll instance is itself pollable, and ppoll, unlike epoll, waits in nanoseconds.
        let mut epoll = [PollFd::new(self.poll.registry(), PollFlags::IN)];
        match rustix::event::poll(&mut epoll, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => tracing::error!(%error, "ppoll failed"),
        }
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }
}

impl NetStream for TcpStream {
    fn finish_connect(&self) -> io::Result<bool> {
        if let Some(error) = self.take_error()? {
            return Err(error);
        }
        match self.peer_addr() {
            Ok(_) => prepare(self).map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Unlike a plain write, never raises SIGPIPE: the library may live in a foreign process.
    fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let sent = sendmsg(self, slices, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL);
        sent.map_err(io::Error::from)
    }

    fn finish_sending(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

/// Frames leave at once, and a far end that vanished is noticed.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE_EVERY)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_EVERY)?;
    // Also bounds the probes, whatever their number.
    sockopt::set_tcp_user_timeout(stream, PATIENCE.as_millis() as u32)?;
    Ok(())
}

fn stream_edge(place: usize, event: &mio::event::Event) -> Edge {
    Edge::Stream {
        place,
        readable: event.is_readable() || event.is_error() || event.is_read_closed(),
        writable: event.is_writable() || event.is_error(),
        hung_up: event.is_error() || event.is_read_closed(),
    }
}

fn make_waker(poll: &mio::Poll) -> io::Result<Waker> {
    let waker = mio::Waker::new(poll.registry(), WAKER)?;
    Ok(Waker::new(move || {
        if let Err(error) = waker.wake() {
            tracing::error!(%error, "could not wake a transport");
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_connection_notice_a_far_end_that_vanished() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut acceptor = OsNet::bind(Some(any)).unwrap();
        let stream = OsNet::bind(None).unwrap().connect(acceptor.local_addr()).unwrap();
        let (accepted, _) =
            (0..10_000_000).find_map(|_| acceptor.accept().ok()).expect("it knocked");
        assert!((0..10_000_000).any(|_| stream.finish_connect().unwrap()), "it is up");
        for end in [&stream, &accepted] {
            assert!(sockopt::socket_keepalive(end).unwrap());
            assert_eq!(sockopt::tcp_keepidle(end).unwrap(), PROBE_EVERY);
            assert_eq!(sockopt::tcp_user_timeout(end).unwrap(), 5_000);
        }
    }
}

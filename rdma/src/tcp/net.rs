//! What the transport needs of a network: streams of bytes and word of when they are ready.
//!
//! [`OsNet`] is the operating system's. The cluster simulation brings another one, and runs the
//! same transport, byte for byte.

use std::io::{self, IoSlice, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use baton_topo::{Waker, wait_readable};
use baton_types::Nanos;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Token};

use super::stream::{OsStream, prepare};
use crate::protocol::wire::Role;
use crate::tls::Credentials;

const LISTENER: Token = Token(usize::MAX);
const WAKER: Token = Token(usize::MAX - 1);
/// A descriptor of the owner's.
pub(super) const WATCHED: Token = Token(usize::MAX - 2);
/// Kernel events taken at once, and how often in one poll: enough for every connection of a scheduler
/// thread.
const KERNEL_EVENTS: usize = 256;
const COLLECTIONS: usize = 16;

/// News of readiness. Edge triggered: told once, and again only after a call would have blocked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Edge {
    /// Connections may be waiting to be accepted.
    Acceptable,
    /// The descriptor that is watched beside the streams may be readable.
    Watched,
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

    /// What [`Net::wait`] blocks on: readable once there is news. `None` where there is no such descriptor.
    fn pollable(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Ends [`Net::wait`].
    fn waker(&self) -> Waker;
}

/// A connection's bytes. Nothing blocks; a read shorter than asked for has taken all there is.
pub trait NetStream: Read {
    /// True if an accepted stream is up as it is. Otherwise there is a handshake first, and
    /// [`NetStream::finish_connect`] tells when it is done.
    fn is_up(&self) -> bool {
        true
    }

    /// True once the connection is up.
    ///
    /// # Errors
    /// It could not be made.
    fn finish_connect(&mut self) -> io::Result<bool>;

    /// Writes as much as there is room for.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is none; otherwise the connection broke.
    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Nothing more will be sent.
    ///
    /// # Errors
    /// The connection broke.
    fn finish_sending(&mut self) -> io::Result<()>;

    /// Writes what [`NetStream::send`] has taken and the network has not.
    ///
    /// # Errors
    /// As [`NetStream::send`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// True if there is something to [`NetStream::flush`].
    fn has_unsent(&self) -> bool {
        false
    }

    /// True if there is more to read although the last read was short.
    fn has_unread(&self) -> bool;

    /// Whether what the peer has proved lets it act as `role`.
    ///
    /// # Errors
    /// Why not, and what would change that.
    fn may_act_as(&self, _role: Role) -> Result<(), String> {
        Ok(())
    }
}

/// The operating system's TCP, encrypted or not.
pub struct OsNet {
    poll: mio::Poll,
    events: mio::Events,
    waker: Waker,
    listener: Option<TcpListener>,
    local_addr: SocketAddr,
    credentials: Option<Credentials>,
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
        Ok(Self {
            waker: make_waker(&poll)?,
            poll,
            events,
            listener,
            local_addr,
            credentials: None,
        })
    }

    /// Encrypts every connection from now on, and refuses peers that do not, or that show no
    /// certificate of the authority's.
    #[must_use]
    pub fn secured(self, credentials: Credentials) -> Self {
        Self { credentials: Some(credentials), ..self }
    }

    pub(super) fn registry(&self) -> &mio::Registry {
        self.poll.registry()
    }
}

impl Net for OsNet {
    type Stream = OsStream;

    fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    fn listens(&self) -> bool {
        self.listener.is_some()
    }

    fn accept(&mut self) -> io::Result<(OsStream, SocketAddr)> {
        let listener = self.listener.as_ref().ok_or(io::ErrorKind::WouldBlock)?;
        let (stream, addr) = listener.accept()?;
        // It fails only on a connection that is gone already.
        prepare(&stream).map_err(|_| io::ErrorKind::ConnectionAborted)?;
        Ok((OsStream::accepted(stream, self.credentials.as_ref())?, addr))
    }

    fn connect(&mut self, addr: SocketAddr) -> io::Result<OsStream> {
        OsStream::connecting(TcpStream::connect(addr)?, addr, self.credentials.as_ref())
    }

    fn register(&mut self, stream: &mut OsStream, place: usize) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(stream.tcp(), Token(place), interest)
    }

    fn collect(&mut self, mut on_edge: impl FnMut(Edge)) {
        // All there is, as far as it does not come faster than it is taken.
        for _ in 0..COLLECTIONS {
            let polled = self.poll.poll(&mut self.events, Some(Duration::ZERO));
            if let Err(error) = polled
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "epoll failed");
            }
            let mut taken = 0;
            for event in &self.events {
                taken += 1;
                match event.token() {
                    LISTENER => on_edge(Edge::Acceptable),
                    WATCHED => on_edge(Edge::Watched),
                    WAKER => {}
                    Token(place) => on_edge(stream_edge(place, event)),
                }
            }
            if taken < KERNEL_EVENTS {
                return;
            }
        }
    }

    fn wait(&mut self, timeout: Option<Nanos>) {
        wait_readable(self.poll.registry(), timeout);
    }

    fn pollable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.poll.registry().as_fd())
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }
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

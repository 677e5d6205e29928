//! One encrypted connection: the session of `rustls` between a socket and the transport.
//!
//! Readiness is the transport's to remember, and it goes by edges: a short read means that the socket
//! has nothing more *and* that nothing decrypted is left. Both buffers are bounded: what is read ahead
//! by [`RX_BYTES`], what is encrypted and not sent by [`TX_BYTES`].

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};

use mio::net::TcpStream;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, Error, ServerConnection};

use super::credentials::Credentials;
use super::explain::TlsProblem;
use crate::protocol::wire::Role;
use crate::tcp::{connected, send_plain};

/// Ciphertext read per system call: four records of the longest kind.
const RX_BYTES: usize = 64 * 1024;
/// Ciphertext that waits for the socket.
const TX_BYTES: usize = 256 * 1024;
/// System calls per read: what a peer that sends fast, or sends nothing in many records, may cost the
/// others.
const SOCKET_READS: usize = 8;
/// Reads before a refused connection is closed, so that the peer gets the alert: a socket closed with
/// unread bytes is reset, and a reset overtakes what was sent.
const FAREWELL_READS: usize = 16;

/// An encrypted connection.
pub struct TlsStream {
    tcp: TcpStream,
    tls: Connection,
    credentials: Credentials,
    /// The TCP connection below is up.
    reached: bool,
    rx: Box<[u8]>,
    /// What of `rx` the session has not taken yet.
    start: usize,
    end: usize,
    /// The socket had less than was asked for: it has nothing more.
    dry: bool,
    /// System calls this read may still make.
    reads_left: usize,
    /// The last read was cut short by an end that the next one has to tell.
    unread: bool,
    /// Why the session is over.
    failed: Option<String>,
}

impl TlsStream {
    /// The side that connects; `tcp` may be on its way.
    pub(crate) fn connecting(
        tcp: TcpStream,
        addr: SocketAddr,
        credentials: &Credentials,
    ) -> io::Result<Self> {
        let name = ServerName::IpAddress(IpAddr::into(addr.ip()));
        let tls = ClientConnection::new(credentials.client(), name)
            .map_err(|error| TlsProblem::new(&error).into_io())?;
        Ok(Self::new(tcp, tls.into(), false, credentials))
    }

    /// The side that was connected to.
    pub(crate) fn accepted(tcp: TcpStream, credentials: &Credentials) -> io::Result<Self> {
        let tls = ServerConnection::new(credentials.server())
            .map_err(|error| TlsProblem::new(&error).into_io())?;
        Ok(Self::new(tcp, tls.into(), true, credentials))
    }

    fn new(tcp: TcpStream, mut tls: Connection, reached: bool, credentials: &Credentials) -> Self {
        tls.set_buffer_limit(Some(TX_BYTES));
        Self {
            tcp,
            tls,
            credentials: credentials.clone(),
            reached,
            rx: vec![0; RX_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            dry: false,
            reads_left: 0,
            unread: false,
            failed: None,
        }
    }

    pub(crate) fn tcp(&mut self) -> &mut TcpStream {
        &mut self.tcp
    }

    /// Connects and shakes hands, as far as that goes without waiting. True once both have shown
    /// their certificates; a refusal of this side's may still come.
    pub(crate) fn finish_connect(&mut self) -> io::Result<bool> {
        if !self.reached && !connected(&self.tcp)? {
            return Ok(false);
        }
        self.reached = true;
        self.begin();
        while self.tls.is_handshaking() {
            // A peer that hung up may have said why: what cannot be sent shows when reading.
            let _ = self.flush();
            // An end may lie behind these bytes, and no edge will tell of it.
            self.dry = false;
            match self.take_in() {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        let _ = self.flush();
        // Behind the peer's last word there may be more, of which no edge will tell.
        self.unread = true;
        Ok(true)
    }

    /// Whether the peer's certificate lets it act as `role`.
    pub(crate) fn may_act_as(&self, role: Role) -> Result<(), String> {
        let leaf = self.tls.peer_certificates().and_then(|chain| chain.first());
        let leaf = leaf.ok_or_else(|| "the peer has shown no certificate".to_owned())?;
        self.credentials.allow(leaf, role)
    }

    /// Encrypts what there is room for, and sends what the socket takes.
    pub(crate) fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.tls.is_handshaking() || self.failed.is_some() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        self.flush()?;
        let taken = self.tls.writer().write_vectored(slices)?;
        match self.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    /// Sends what is encrypted already.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut Wire(&self.tcp))?;
        }
        Ok(())
    }

    /// True if something encrypted waits for the socket.
    pub(crate) fn has_unsent(&self) -> bool {
        self.tls.wants_write()
    }

    /// True if a read would tell more than the last one did.
    pub(crate) fn has_unread(&self) -> bool {
        self.unread
    }

    /// Tells the peer that this was all.
    pub(crate) fn finish_sending(&mut self) -> io::Result<()> {
        self.tls.send_close_notify();
        self.flush()?;
        self.tcp.shutdown(Shutdown::Write)
    }

    fn begin(&mut self) {
        (self.dry, self.unread, self.reads_left) = (false, false, SOCKET_READS);
    }

    /// Fills `buf` as far as there is anything. The next call returns an end or error behind bytes.
    fn fill(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut total = 0;
        while total < buf.len() {
            match self.step(&mut buf[total..]) {
                Ok(Some(0)) if total == 0 => return Ok(0),
                Ok(Some(0)) => return Ok(self.cut_short(total)),
                Ok(Some(n)) => total += n,
                Ok(None) => {}
                Err(error) if total == 0 => return Err(error),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Ok(self.cut_short(total)),
            }
        }
        Ok(total)
    }

    fn cut_short(&mut self, total: usize) -> usize {
        self.unread = true;
        total
    }

    /// Takes decrypted bytes, or, if there are none, decrypts some.
    fn step(&mut self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        match self.tls.reader().read(buf) {
            Ok(n) => Ok(Some(n)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.take_in().map(|()| None)
            }
            Err(error) => Err(error),
        }
    }

    /// Moves ciphertext into the session, from the socket if need be.
    fn take_in(&mut self) -> io::Result<()> {
        if let Some(why) = &self.failed {
            return Err(TlsProblem(why.clone()).into_io());
        }
        if self.start == self.end && !self.read_socket()? {
            return self.on_end();
        }
        let mut rest = &self.rx[self.start..self.end];
        let taken = self.tls.read_tls(&mut rest);
        self.start = self.end - rest.len();
        match taken {
            Ok(_) => self.process(),
            Err(error) => Err(self.fail(format!("the peer's handshake has no end ({error})"))),
        }
    }

    /// False at the end of the stream.
    fn read_socket(&mut self) -> io::Result<bool> {
        if self.dry {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // Enough for now: the reader takes this for an invitation to read again.
        self.reads_left = self.reads_left.checked_sub(1).ok_or(io::ErrorKind::Interrupted)?;
        let read = self.tcp.read(&mut self.rx)?;
        self.dry = read < self.rx.len();
        (self.start, self.end) = (0, read);
        Ok(read > 0)
    }

    /// The session knows whether the peer meant to end here, and tells its reader.
    fn on_end(&mut self) -> io::Result<()> {
        self.tls.read_tls(&mut io::empty())?;
        if self.tls.is_handshaking() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // The end is as good at the next look.
        self.dry = false;
        self.process()
    }

    fn process(&mut self) -> io::Result<()> {
        match self.tls.process_new_packets() {
            Ok(_) => {
                // Answers of the session's own. What does not leave now does with the next edge.
                let _ = self.flush();
                Ok(())
            }
            Err(error) => {
                let why = match error {
                    Error::InvalidMessage(_) if !self.tls.is_handshaking() => {
                        "what the peer sent was altered on its way".into()
                    }
                    error => TlsProblem::new(&error).0,
                };
                Err(self.fail(why))
            }
        }
    }

    /// The session is over: the peer gets the alert, this side the reason.
    fn fail(&mut self, why: String) -> io::Error {
        if self.flush().is_ok() && self.tcp.shutdown(Shutdown::Write).is_ok() {
            let mut more = || matches!(self.tcp.read(&mut self.rx), Ok(n) if n > 0);
            let _unread = (0..FAREWELL_READS).all(|_| more());
        }
        self.failed = Some(why.clone());
        TlsProblem(why).into_io()
    }
}

impl Read for TlsStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.begin();
        self.fill(buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.begin();
        let mut total = 0;
        for buf in bufs.iter_mut().filter(|buf| !buf.is_empty()) {
            match self.fill(buf) {
                Ok(n) => {
                    total += n;
                    if n < buf.len() {
                        self.unread |= n == 0 && total > 0;
                        return Ok(total);
                    }
                }
                Err(error) if total == 0 => return Err(error),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(total),
                Err(_) => return Ok(self.cut_short(total)),
            }
        }
        Ok(total)
    }
}

impl Drop for TlsStream {
    /// A connection that is let go of ends as one should; what is cut off looks otherwise.
    fn drop(&mut self) {
        if !self.tls.is_handshaking() && self.failed.is_none() {
            self.tls.send_close_notify();
            let _ = self.flush();
        }
    }
}

/// The socket as the session writes to it.
struct Wire<'a>(&'a TcpStream);

impl Write for Wire<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        send_plain(self.0, slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[path = "../../tests/common/certs.rs"]
mod certs;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use mio::net::TcpListener;
    use rustix::net::sockopt;

    use super::*;

    const PATIENCE: usize = 1_000_000;

    /// The one that sends, with little room in its socket, and the one that receives.
    fn pair() -> (TlsStream, TlsStream) {
        let authority = certs::Authority::new();
        let credentials = Credentials::load(&authority.issue("a.test")).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let addr = listener.local_addr().unwrap();
        let from = TcpStream::connect(addr).unwrap();
        let (to, _) = (0..PATIENCE).find_map(|_| listener.accept().ok()).expect("it knocked");
        sockopt::set_socket_send_buffer_size(&from, 32 * 1024).unwrap();
        sockopt::set_socket_recv_buffer_size(&to, 128 * 1024).unwrap();
        let mut from = TlsStream::connecting(from, addr, &credentials).unwrap();
        let mut to = TlsStream::accepted(to, &credentials).unwrap();
        let mut both = || from.finish_connect().unwrap() & to.finish_connect().unwrap();
        assert!((0..PATIENCE).any(|_| both()), "they shake hands");
        (from, to)
    }

    #[test]
    fn what_the_socket_does_not_take_is_kept_reported_and_bounded() {
        let (mut from, mut to) = pair();
        assert!(!from.has_unsent());
        let bytes: Vec<u8> = (0..1 << 20).map(|at: usize| (at ^ (at >> 8)) as u8).collect();
        let taken = from.send(&[IoSlice::new(&bytes)]).unwrap();
        assert!((TX_BYTES / 2..=TX_BYTES).contains(&taken), "{taken}");
        assert!(from.has_unsent());
        let full = from.send(&[IoSlice::new(&bytes)]).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);

        let (mut got, mut piece) = (Vec::new(), vec![0; 10_000]);
        for _ in 0..PATIENCE {
            // Nothing more is sent; that there is room again is enough.
            let sent = from.flush();
            assert_eq!(sent.is_err(), from.has_unsent());
            while let Ok(n) = to.read(&mut piece) {
                got.extend_from_slice(&piece[..n]);
            }
            if got.len() == taken {
                break;
            }
        }
        assert!(got == bytes[..taken] && !from.has_unsent());
    }

    /// A transport that reads again, or has bytes to send, must not find a session that works.
    #[test]
    fn what_has_failed_stays_so() {
        let (mut from, mut to) = pair();
        let no_record = [&[0x17, 3, 3, 0, 32][..], &[7; 32]].concat();
        assert_eq!(send_plain(&from.tcp, &[IoSlice::new(&no_record)]).unwrap(), no_record.len());
        let mut place = [0; 100];
        let mut look = || match to.read(&mut place) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            other => Some(other.unwrap_err().to_string()),
        };
        let why = (0..PATIENCE).find_map(|_| look()).expect("it arrives");
        assert_eq!(look(), Some(why));
        let refused = to.send(&[IoSlice::new(&[7])]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotConnected);
        from.finish_sending().unwrap();
    }

    /// No edge tells of an end that this side has taken off the socket already.
    #[test]
    fn an_end_behind_bytes_that_fill_a_place_is_told_with_the_next_read() {
        let (mut from, mut to) = pair();
        assert_eq!(from.send(&[IoSlice::new(&[7; 100])]).unwrap(), 100);
        from.finish_sending().unwrap();
        let (mut first, mut second) = ([0; 100], [0; 50]);
        let read = |to: &mut TlsStream, first: &mut [u8], second: &mut [u8]| {
            to.read_vectored(&mut [IoSliceMut::new(first), IoSliceMut::new(second)]).ok()
        };
        let got = (0..PATIENCE).find_map(|_| read(&mut to, &mut first, &mut second));
        assert_eq!((got, first), (Some(100), [7; 100]));
        assert!(to.has_unread(), "the end is still to be told");
        assert_eq!(read(&mut to, &mut first, &mut second), Some(0));
    }

    #[test]
    fn a_peer_that_hangs_up_within_the_handshake_has_ended_it() {
        let credentials = Credentials::load(&certs::Authority::new().issue("a.test")).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let from = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (to, _) = (0..PATIENCE).find_map(|_| listener.accept().ok()).expect("it knocked");
        let mut to = TlsStream::accepted(to, &credentials).unwrap();
        drop(from);
        let mut look = || to.finish_connect().map_or_else(Some, |_| None);
        let why = (0..PATIENCE).find_map(|_| look()).expect("it hangs up");
        assert_eq!(why.kind(), io::ErrorKind::UnexpectedEof);
    }

    /// What came together with the last word of the handshake is off the socket already.
    #[test]
    fn behind_the_handshake_there_may_be_something_unread() {
        let (from, to) = pair();
        assert!(from.has_unread() && to.has_unread());
    }
}

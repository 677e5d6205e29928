//! One connection's socket: bytes in, bytes out, and what the kernel said about its readiness.
//!
//! Readiness is edge triggered: it is remembered here until a call has shown that it is used up, so
//! a pass may stop early (fairness) and go on later without losing an edge.

use std::io::{self, IoSliceMut};
use std::net::IpAddr;

use baton_types::Nanos;

use super::link::Link;
use super::net::NetStream;
use super::sink::Sink;
use crate::events::{CloseReason, Events};
use crate::protocol::frame::{BUFFER_LEN, FrameBuffer};
use crate::protocol::handshake;
use crate::protocol::wire::{Refuse, RefuseCode};
use crate::shared::Shared;
use crate::tls;

/// System calls per pass: what one busy connection may cost the others.
const READS: usize = 4;
/// Stream bytes buffered ahead while long rows are on their way: enough for the next header. What
/// of the next payload comes along is copied, the rest is not.
const AHEAD: usize = 4 * 1024;
/// Longest explanation in a refusal.
const DETAIL_MAX: usize = 1024;
/// Reads before a refused connection is closed, so that the peer gets the refusal: a socket closed
/// with unread bytes is reset, and a reset overtakes what was sent.
const FAREWELL_READS: usize = 16;

/// A connection.
pub(super) struct Conn<S> {
    pub(super) stream: S,
    pub(super) link: Link,
    /// Where it was accepted from, and counts.
    pub(super) host: Option<IpAddr>,
    /// When the handshake began, in time awake; `None` until a poll has told the time.
    pub(super) opening_since: Option<Nanos>,
    /// In the transport's list of connections to look at.
    pub(super) in_ready: bool,
    /// In the transport's list of connections with something to send.
    pub(super) in_dirty: bool,
    rx: FrameBuffer,
    connected: bool,
    readable: bool,
    writable: bool,
    /// The peer will send no more: read on until the stream says so.
    hung_up: bool,
    /// Stopped behind the handshake, so that the owner sees it before anything else.
    held: bool,
    write_error: Option<io::ErrorKind>,
}

impl<S: NetStream> Conn<S> {
    /// `connected` is true for accepted sockets without TLS, whose peer has usually sent its hello
    /// already.
    pub(super) fn new(stream: S, link: Link, connected: bool) -> Self {
        Self {
            stream,
            link,
            host: None,
            opening_since: None,
            in_ready: false,
            in_dirty: false,
            rx: FrameBuffer::new(),
            connected,
            readable: connected,
            writable: connected,
            hung_up: false,
            held: false,
            write_error: None,
        }
    }

    /// Notes what the network reported.
    pub(super) fn note(&mut self, readable: bool, writable: bool, hung_up: bool) {
        self.readable |= readable;
        self.hung_up |= hung_up;
        self.writable |= writable;
    }

    /// True if the next pass goes on with a TLS handshake.
    pub(super) fn is_shaking_hands(&self) -> bool {
        !self.connected && !self.stream.is_up()
    }

    /// True if [`Conn::receive`] would get further.
    pub(super) fn wants_pass(&self) -> bool {
        self.readable || self.held || (!self.connected && self.writable)
    }

    /// True if [`Conn::send`] would get further.
    pub(super) fn wants_send(&self) -> bool {
        self.connected && self.writable && self.has_unsent()
    }

    /// True if there are bytes that the network has not taken.
    pub(super) fn has_unsent(&self) -> bool {
        !self.link.tx.is_empty() || self.stream.has_unsent()
    }

    /// One pass: takes in what has arrived, up to a bound.
    ///
    /// # Errors
    /// The connection is to be closed for this reason.
    pub(super) fn receive(
        &mut self,
        shared: &mut Shared,
        events: &mut Events,
    ) -> Result<(), CloseReason> {
        if !self.connected && !self.finish_connect(shared)? {
            return Ok(());
        }
        self.held = false;
        self.take_in(shared, events)?;
        for _ in 0..READS {
            if !self.readable || self.held {
                break;
            }
            self.read()?;
            self.take_in(shared, events)?;
        }
        Ok(())
    }

    /// Sends what is queued, as far as the peer takes it.
    pub(super) fn send(&mut self) {
        if !self.connected || !self.writable {
            return;
        }
        let Self { stream, link, .. } = self;
        match link.tx.drain(|slices| stream.send(slices)).and_then(|()| stream.flush()) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
            Err(error) => {
                // The peer may have said why before it broke the connection: read that first.
                self.write_error = Some(error.kind());
                (self.writable, self.readable) = (false, true);
            }
        }
    }

    /// Tells the peer why the connection ends, as far as it listens.
    pub(super) fn refuse(&mut self, code: RefuseCode, detail: &str) {
        let detail = &detail[..detail.floor_char_boundary(DETAIL_MAX)];
        let told = self.link.tx.push_urgent(
            &Refuse { code: (code as u16).into() },
            detail.as_bytes(),
            None,
        );
        if !told || !self.connected {
            return;
        }
        self.send();
        if self.stream.finish_sending().is_ok() {
            let mut scratch = [0; 4096];
            let mut more = || matches!(self.stream.read(&mut scratch), Ok(n) if n > 0);
            let _unread = (0..FAREWELL_READS).all(|_| more());
        }
    }

    fn finish_connect(&mut self, shared: &Shared) -> Result<bool, CloseReason> {
        let up = self.stream.finish_connect().map_err(|error| CloseReason::broken(&error))?;
        if up {
            (self.connected, self.writable) = (true, true);
            self.readable |= self.stream.has_unread();
            self.check_host(shared)?;
        } else {
            (self.readable, self.writable) = (false, false);
        }
        Ok(up)
    }

    /// Before our hello leaves: a peer that may act in none of the roles we connect to gets none.
    fn check_host(&mut self, shared: &Shared) -> Result<(), CloseReason> {
        if !self.link.is_known() {
            return Ok(());
        }
        let hosts = handshake::hosts_of(shared.identity.role).iter();
        let verdicts = hosts.map(|role| self.stream.may_act_as(*role));
        let verdict = verdicts.reduce(|first, other| other.or(first));
        verdict.unwrap_or(Ok(())).map_err(|why| {
            self.link.tx.clear();
            CloseReason::NotAllowed(why)
        })
    }

    /// Acts on everything that is complete in the buffer.
    fn take_in(&mut self, shared: &mut Shared, events: &mut Events) -> Result<(), CloseReason> {
        loop {
            if !matches!(self.link.sink, Sink::Idle) {
                self.move_buffered();
                if self.rx.payload_left() > 0 {
                    return Ok(());
                }
                self.link.finish_payload(shared, events);
            }
            if self.held {
                return Ok(());
            }
            let frame = self.rx.next_frame().map_err(CloseReason::Malformed)?;
            let Some(frame) = frame else { return Ok(()) };
            let opening = !self.link.is_open();
            if opening && let Some(role) = handshake::claimed_role(&frame.message) {
                self.stream.may_act_as(role).map_err(CloseReason::NotAllowed)?;
            }
            self.link.on_frame(&frame, shared, events)?;
            self.held = opening;
        }
    }

    fn move_buffered(&mut self) {
        if matches!(self.link.sink, Sink::Discard { .. }) {
            return self.rx.skip_payload();
        }
        // If the first place is not filled by this, the buffer is empty and the second gets nothing.
        let [first, second] = self.link.sink.vacant();
        let moved = self.rx.take_payload(first) + self.rx.take_payload(second);
        self.link.sink.advance(moved);
    }

    fn read(&mut self) -> Result<(), CloseReason> {
        let (read, asked) = self.read_stream();
        match read {
            Ok(0) => Err(self.end_of_stream()),
            Ok(n) => {
                // A short read has emptied the socket; what comes later is a new edge.
                self.readable = n == asked
                    || self.hung_up
                    || self.write_error.is_some()
                    || self.stream.has_unread();
                self.check_language()
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                self.write_error.map_or(Ok(()), |kind| Err(CloseReason::Reset(kind)))
            }
            Err(error) => Err(CloseReason::broken(&error)),
        }
    }

    /// Distinguishes a peer that insists on TLS from one that talks nonsense.
    fn check_language(&self) -> Result<(), CloseReason> {
        if self.link.is_open() || !tls::looks_like_tls(self.rx.unread()) {
            return Ok(());
        }
        let why =
            "the peer speaks TLS, and this side has no [tls]; give both the same cluster file";
        Err(CloseReason::Tls(why.to_owned()))
    }

    /// One system call: payload straight to its place, what follows it into the buffer. Returns
    /// also how much was asked for.
    fn read_stream(&mut self) -> (io::Result<usize>, usize) {
        let ahead = if self.link.pulls.has_bulk() { AHEAD } else { BUFFER_LEN };
        let [first, second] = self.link.sink.vacant();
        let place_len = first.len() + second.len();
        let ahead = if place_len == 0 && self.rx.payload_left() > 0 { BUFFER_LEN } else { ahead };
        let spare = self.rx.spare(ahead);
        let asked = place_len + spare.len();
        let read = if place_len == 0 {
            self.stream.read(spare)
        } else {
            let slices = &mut [first, second, spare].map(IoSliceMut::new);
            self.stream.read_vectored(slices)
        };
        if let Ok(n) = read {
            let direct = n.min(place_len);
            self.link.sink.advance(direct);
            self.rx.payload_read(direct);
            self.rx.filled(n - direct);
        }
        (read, asked)
    }

    fn end_of_stream(&self) -> CloseReason {
        if self.rx.mid_frame() {
            return CloseReason::Reset(io::ErrorKind::UnexpectedEof);
        }
        CloseReason::Eof
    }
}

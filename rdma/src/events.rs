//! What happened on a transport since it was last polled.
//!
//! [`Events`] is a buffer the owner keeps and lends to every poll; message bytes lie in one arena
//! inside it, so that nothing is allocated once it has grown to its working size. Every message in
//! it has passed [`decode`], which is why draining cannot fail.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use crate::protocol::wire::{DecodeError, Kind, Message, RefuseCode, Role, TaskResult, decode};
use crate::tls::TlsProblem;
use crate::transport::{ConnId, ReadDone};

/// Who is at the other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its role.
    pub role: Role,
    /// Its number in that role; 0 if it has none yet.
    pub member: u32,
    /// The token of its hello, for the owner to check. 0 if this side connected.
    pub token: u64,
    /// Where the connection comes from or goes to.
    pub addr: SocketAddr,
    /// True if the peer connected to us.
    pub accepted: bool,
    /// The protocol version both speak.
    pub version: u16,
}

/// Why a connection ended.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CloseReason {
    /// The peer closed, with nothing half sent.
    #[error("the peer closed the connection")]
    Eof,
    /// The connection broke, or could not be made.
    #[error("the connection failed ({0})")]
    Reset(io::ErrorKind),
    /// The peer sent bytes that are no frame of this protocol.
    #[error("the peer sent a malformed frame: {0}; is something else using this port?")]
    Malformed(DecodeError),
    /// The peer sent a message where it does not belong, such as an unsolicited answer.
    #[error("the peer sent {0:?} where it does not belong")]
    Unexpected(Kind),
    /// The peer refused us and said why.
    #[error("refused by the peer ({}): {detail}", RefusedAs(*.code))]
    Refused {
        /// The peer's code; `None` if this build does not know it.
        code: Option<RefuseCode>,
        /// What is wrong and what to do, in the peer's words.
        detail: String,
    },
    /// The peer speaks none of our protocol versions.
    #[error(
        "the peer speaks protocol versions {min} to {max}, this build {} to {}; upgrade the older one",
        crate::protocol::wire::VERSION_MIN,
        crate::protocol::wire::VERSION_MAX
    )]
    Version {
        /// The peer's oldest version.
        min: u16,
        /// The peer's newest version.
        max: u16,
    },
    /// The connection did not come up in time.
    #[error("no handshake in time; is the peer overloaded, or the address wrong?")]
    HandshakeTimeout,
    /// What the peer asked for could not be queued because it does not read.
    #[error("the peer does not read what it asks for; its send queue is full")]
    SendQueueFull,
    /// READs over RDMA are not possible or failed.
    #[error("the RDMA fabric: {0}")]
    Fabric(String),
    /// There is no secure connection: a certificate was refused, here or there, or one side has TLS
    /// and the other has not.
    #[error("TLS: {0}")]
    Tls(String),
    /// The peer's certificate is genuine, but not of one that may act in this role.
    #[error("not allowed: {0}")]
    NotAllowed(String),
    /// This side closed it.
    #[error("closed by this side")]
    Local,
}

impl CloseReason {
    /// What an error of a stream means.
    pub(crate) fn broken(error: &io::Error) -> Self {
        TlsProblem::of(error).map_or_else(|| Self::Reset(error.kind()), Self::Tls)
    }
}

struct RefusedAs(Option<RefuseCode>);

impl fmt::Display for RefusedAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(code) => write!(f, "{code:?}"),
            None => f.write_str("for a reason this build does not know"),
        }
    }
}

/// One thing that happened.
#[derive(Debug)]
pub enum Event<'a> {
    /// The handshake is done; the first event of every connection that comes up. What the peer sent
    /// behind its hello is delivered by a later poll, so that the owner can close the connection
    /// first if it does not like the token.
    Opened {
        /// The connection.
        conn: ConnId,
        /// Who it is.
        peer: Peer,
    },
    /// A message arrived. Never one of the kinds the transport deals with itself: hello, welcome,
    /// refuse, reads and answers.
    Message {
        /// From where.
        conn: ConnId,
        /// What.
        message: Message<'a>,
    },
    /// A posted READ is complete.
    Read(ReadDone),
    /// An answer has landed in the output slot of `result.task`.
    Result {
        /// From where.
        conn: ConnId,
        /// Which task, and how it was executed.
        result: TaskResult,
        /// Bytes of the answer.
        len: u32,
    },
    /// The connection is gone; its last event. All its READs have completed before.
    Closed {
        /// Which.
        conn: ConnId,
        /// Why.
        reason: CloseReason,
    },
}

enum Stored {
    Opened { conn: ConnId, peer: Peer },
    Message { conn: ConnId, kind: Kind, start: usize, len: usize },
    Read(ReadDone),
    Result { conn: ConnId, result: TaskResult, len: u32 },
    Closed { conn: ConnId, reason: CloseReason },
}

/// An event as [`Events::sift`] shows it.
#[derive(Clone, Copy)]
pub(crate) enum EventView<'a> {
    Opened(ConnId, &'a Peer),
    Message(ConnId, Message<'a>),
    Closed(ConnId, &'a CloseReason),
}

/// A reusable buffer of events, in order of arrival.
#[derive(Default)]
pub struct Events {
    items: Vec<Stored>,
    /// Of the messages in it.
    bytes: Vec<u8>,
    /// Of those that were taken out last.
    taken: Vec<u8>,
}

impl Events {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets everything; rows in it return to their buffers.
    pub fn clear(&mut self) {
        self.items.clear();
        self.bytes.clear();
    }

    /// True if there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// How many events are in it.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Takes the events out, oldest first. Messages borrow the buffer. Events not taken when the
    /// iterator is dropped are lost.
    pub fn drain(&mut self) -> impl Iterator<Item = Event<'_>> {
        let Self { items, bytes, taken } = self;
        std::mem::swap(bytes, taken);
        // A transport takes no more into it than some bytes: those that are gone do not count.
        bytes.clear();
        let bytes = &*taken;
        items.drain(..).map(move |stored| match stored {
            Stored::Opened { conn, peer } => Event::Opened { conn, peer },
            Stored::Message { conn, kind, start, len } => {
                let message = decode(kind, &bytes[start..start + len]);
                Event::Message { conn, message: message.expect("decoded before it was stored") }
            }
            Stored::Read(done) => Event::Read(done),
            Stored::Result { conn, result, len } => Event::Result { conn, result, len },
            Stored::Closed { conn, reason } => Event::Closed { conn, reason },
        })
    }

    /// Bytes of messages held.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// For transports: a connection came up.
    pub fn opened(&mut self, conn: ConnId, peer: Peer) {
        self.items.push(Stored::Opened { conn, peer });
    }

    /// For transports: a message arrived.
    ///
    /// # Panics
    /// Draining panics if `body` would not pass [`decode`] for `kind`.
    pub fn message(&mut self, conn: ConnId, kind: Kind, body: &[u8]) {
        debug_assert!(decode(kind, body).is_ok());
        let start = self.bytes.len();
        self.bytes.extend_from_slice(body);
        self.items.push(Stored::Message { conn, kind, start, len: body.len() });
    }

    pub(crate) fn read(&mut self, done: ReadDone) {
        self.items.push(Stored::Read(done));
    }

    pub(crate) fn result(&mut self, conn: ConnId, result: TaskResult, len: u32) {
        self.items.push(Stored::Result { conn, result, len });
    }

    pub(crate) fn closed(&mut self, conn: ConnId, reason: CloseReason) {
        self.items.push(Stored::Closed { conn, reason });
    }

    /// For a transport on top of another: shows it the events from number `from` on, and takes out
    /// those that `keep` does not want to be kept.
    pub(crate) fn sift(&mut self, from: usize, mut keep: impl FnMut(EventView<'_>) -> bool) {
        if self.items.len() == from {
            return;
        }
        let bytes = &self.bytes;
        let mut at = 0;
        self.items.retain(|stored| {
            at += 1;
            let view = match stored {
                _ if at <= from => return true,
                Stored::Opened { conn, peer } => EventView::Opened(*conn, peer),
                Stored::Message { conn, kind, start, len } => {
                    let message = decode(*kind, &bytes[*start..*start + *len]);
                    EventView::Message(*conn, message.expect("decoded before it was stored"))
                }
                Stored::Closed { conn, reason } => EventView::Closed(*conn, reason),
                Stored::Read(_) | Stored::Result { .. } => return true,
            };
            keep(view)
        });
        if self.items.is_empty() {
            self.bytes.clear();
        }
    }

    /// Moves everything out of a buffer that holds no messages.
    pub(crate) fn take_from(&mut self, backlog: &mut Self) {
        debug_assert!(backlog.bytes.is_empty());
        self.items.append(&mut backlog.items);
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Events({} events, {} bytes)", self.items.len(), self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_events_from_there_on_are_sifted() {
        let mut events = Events::new();
        (1..=3).for_each(|conn| events.closed(ConnId(conn), CloseReason::Eof));
        events.sift(3, |_| panic!("there is no fourth event"));
        let mut seen = Vec::new();
        events.sift(1, |view| {
            let EventView::Closed(conn, _) = view else { panic!("all are closed") };
            seen.push(conn.0);
            conn != ConnId(3)
        });
        assert_eq!(seen, [2, 3]);
        let left = events.drain().map(|event| match event {
            Event::Closed { conn, .. } => conn.0,
            _ => 0,
        });
        assert_eq!(left.collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn a_buffer_that_was_cleared_holds_nothing() {
        let mut events = Events::new();
        events.message(ConnId(1), Kind::Ping, &1_u64.to_le_bytes());
        events.closed(ConnId(1), CloseReason::Eof);
        events.clear();
        assert_eq!((events.len(), events.is_empty(), events.bytes()), (0, true, 0));
    }

    #[test]
    fn what_was_taken_out_or_sifted_counts_no_more() {
        let mut events = Events::new();
        for number in 0..3_u64 {
            events.message(ConnId(1), Kind::Ping, &number.to_le_bytes());
            assert_eq!(events.bytes(), 8);
            let taken = events.drain().map(|event| match event {
                Event::Message { message: Message::Ping(ping), .. } => ping.sent_ns.get(),
                other => panic!("{other:?}"),
            });
            assert_eq!(taken.collect::<Vec<_>>(), [number]);
            assert_eq!(events.bytes(), 0);
            events.message(ConnId(1), Kind::Ping, &number.to_le_bytes());
            events.sift(0, |_| false);
            assert_eq!((events.len(), events.bytes()), (0, 0));
        }
    }

    #[test]
    fn a_message_is_sifted_by_what_it_says_wherever_it_lies() {
        let mut events = Events::new();
        let body = |number: u64| number.to_le_bytes();
        (5..=7).for_each(|number| events.message(ConnId(1), Kind::Ping, &body(number)));
        assert_eq!(events.bytes(), 3 * 8);
        let mut seen = Vec::new();
        events.sift(0, |view| {
            let EventView::Message(_, Message::Ping(ping)) = view else { panic!("all are pings") };
            seen.push(ping.sent_ns.get());
            ping.sent_ns.get() != 6
        });
        assert_eq!((seen, events.len()), (vec![5, 6, 7], 2));
    }

    #[test]
    fn a_refusal_is_told_with_its_code_and_the_words_of_the_peer() {
        let told = |code| CloseReason::Refused { code, detail: "no more".into() }.to_string();
        assert_eq!(told(Some(RefuseCode::Limit)), "refused by the peer (Limit): no more");
        let unknown = "refused by the peer (for a reason this build does not know): no more";
        assert_eq!(told(None), unknown);
    }
}

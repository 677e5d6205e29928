//! Inputs that lie on this host: a backend maps its frontends' slabs and copies out of them.
//!
//! ```text
//! backend                                frontend
//!   MemoryOffer{cookie, socket}   ───▶     once its owner trusts the connection
//!   ◀───  a datagram to that socket: SharedSlab…, and their files
//!   copies                                 its CPU does nothing
//! ```
//! Everything else goes over TCP as before. So does a READ that cannot be had so, for whatever reason: the slab is not mapped,
//! or the input in it is not, or no longer, the task's. The frontend then says which.
//!
//! `reader` is the backend's side, `sharer` the frontend's, `socket` what carries the files.

mod reader;
mod sharer;
mod socket;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use baton_types::Nanos;

use crate::events::{EventView, Events};
use crate::memory::region::Region;
use crate::memory::slab::SlabSet;
use crate::protocol::wire::{Message, Role};
use crate::tcp::TcpTransport;
use crate::transport::{ConnId, Read, TransportCounters};
use reader::Reader;
use sharer::Sharer;

/// Both sides, of which a member has one.
pub(crate) enum SameHost {
    /// A backend.
    Reader(Box<Reader>),
    /// A frontend.
    Sharer(Box<Sharer>),
}

impl SameHost {
    /// The side of a member of this role.
    ///
    /// # Errors
    /// The kernel cannot share memory that no one else writes or cuts short, or the process is out of file descriptors.
    pub(crate) fn new(role: Role) -> io::Result<Self> {
        if role == Role::Backend {
            return Ok(Self::Reader(Box::new(Reader::new()?)));
        }
        Region::shared(1)?;
        Ok(Self::Sharer(Box::new(Sharer::new()?)))
    }

    /// What becomes readable when slabs come.
    pub(crate) fn watched(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Reader(reader) => Some(reader.as_fd()),
            Self::Sharer(_) => None,
        }
    }

    /// True if this side's slabs should lie in memory that can be shared.
    pub(crate) fn shares(&self) -> bool {
        matches!(self, Self::Sharer(_))
    }

    /// Looks at what TCP brought; false for what is not the owner's business, or not yet.
    pub(crate) fn on_event(&mut self, view: EventView<'_>, tcp: &mut TcpTransport) -> bool {
        match (self, view) {
            (Self::Reader(reader), EventView::Opened(conn, peer)) => {
                reader.on_opened(conn, peer, tcp);
                true
            }
            (Self::Reader(reader), EventView::Closed(conn, reason)) => {
                reader.on_closed(conn, reason)
            }
            (Self::Sharer(sharer), EventView::Message(conn, Message::MemoryOffer(offer))) => {
                sharer.on_offer(conn, offer);
                false
            }
            (Self::Sharer(sharer), EventView::Closed(conn, _)) => {
                sharer.on_closed(conn);
                true
            }
            (_, EventView::Message(_, Message::MemoryOffer(_))) => false,
            _ => true,
        }
    }

    /// Takes the READs that it can do out of `reads`.
    pub(crate) fn take_reads(&mut self, reads: &mut Vec<Read>) {
        if let Self::Reader(reader) = self {
            reader.take_reads(reads);
        }
    }

    /// Gives up a READ. False if it is not here.
    pub(crate) fn abort(&mut self, conn: ConnId, tag: u64) -> bool {
        match self {
            Self::Reader(reader) => reader.abort(conn, tag),
            Self::Sharer(_) => false,
        }
    }

    pub(crate) fn expose(&mut self, slabs: &Arc<SlabSet>) {
        if let Self::Sharer(sharer) = self {
            sharer.expose(slabs);
        }
    }

    pub(crate) fn withdraw(&mut self, slabs: &Arc<SlabSet>) {
        if let Self::Sharer(sharer) = self {
            sharer.withdraw(slabs);
        }
    }

    pub(crate) fn trust(&mut self, conn: ConnId) {
        if let Self::Sharer(sharer) = self {
            sharer.trust(conn);
        }
    }

    /// Copies what waits, before TCP is looked at.
    pub(crate) fn copy(&mut self, tcp: &mut TcpTransport, events: &mut Events) {
        if let Self::Reader(reader) = self {
            reader.copy(tcp, events);
        }
    }

    /// Takes what has come by the socket, or sends what waits for it, after TCP was looked at.
    pub(crate) fn poll(&mut self, tcp: &mut TcpTransport, events: &mut Events) {
        match self {
            Self::Reader(reader) => reader.receive(tcp, events),
            Self::Sharer(sharer) => sharer.send(),
        }
    }

    /// Sends what waits for the socket.
    pub(crate) fn flush(&mut self) {
        if let Self::Sharer(sharer) = self {
            sharer.send();
        }
    }

    /// `None` if there is something to do already; otherwise how long a wait may be.
    pub(crate) fn before_wait(&self, timeout: Option<Nanos>) -> Option<Option<Nanos>> {
        match self {
            Self::Reader(reader) => (!reader.has_news()).then_some(timeout),
            Self::Sharer(sharer) => Some(sharer.patience(timeout)),
        }
    }

    pub(crate) fn count(&self, counters: &mut TransportCounters) {
        match self {
            Self::Reader(reader) => reader.count(counters),
            Self::Sharer(sharer) => counters.links_same_host += sharer.linked(),
        }
    }
}

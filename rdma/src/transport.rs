//! What every transport offers: messages both ways, READs one way, and completion by polling.
//!
//! The shape is that of verbs, so that the verbs transport needs no other: operations are posted
//! in batches and nothing happens in the call itself, a completion is an [`Event`] of a later
//! [`Transport::poll`], and memory handed to an operation comes back with its completion and not
//! before ("completion ≠ return"). A frontend's side of a READ, and of an answer landing in its
//! output slot, is carried out by the transport, as the NIC would.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use baton_topo::Waker;
use baton_types::{Nanos, TaskId};

use crate::events::Events;
use crate::memory::landing::{BatchBuffer, RowMut};
use crate::memory::slab::{Backing, SlabSet};
use crate::protocol::wire::{Body, Hello, RefuseCode, Role, TaskResult};

/// READs a connection carries at a time, asked for and not answered. An initiator holds further
/// ones back; a target closes a connection that asks for more.
pub const READ_DEPTH: usize = 1024;

/// Names a connection of one transport. Never reused while the transport lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub u64);

/// Who this side is; stands in the answer to every accepted [`Hello`].
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// This side's role.
    pub role: Role,
    /// Its number (ModelThread, frontend); 0 when it has none yet.
    pub member: u32,
}

/// One READ: pull a task's input into a row of a batch.
#[derive(Debug)]
pub struct Read {
    /// The connection to the frontend that holds the input.
    pub conn: ConnId,
    /// Which input.
    pub task: TaskId,
    /// Where it lands; `row.len()` bytes are read. Comes back in [`ReadDone`].
    pub row: RowMut,
    /// The caller's mark, returned in [`ReadDone`].
    pub tag: u64,
}

/// How a READ ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReadStatus {
    /// The row holds the input, and the trailer behind it named the task.
    Done,
    /// The slot has been reused since; the row's content is meaningless.
    Stale,
    /// The slot's input has another size, or there is no such slot.
    Refused,
    /// The connection broke first.
    PeerLost,
    /// Given up by [`Transport::abort_read`]; the transport no longer touches the row.
    Aborted,
}

/// A completed READ; gives the row back.
#[derive(Debug)]
pub struct ReadDone {
    /// Copied from the [`Read`].
    pub task: TaskId,
    /// Copied from the [`Read`].
    pub tag: u64,
    /// The row, exclusively the caller's again.
    pub row: RowMut,
    /// How it went.
    pub status: ReadStatus,
}

/// Why a message could not be queued. The message is not sent, in whole or in part.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum SendError {
    /// The connection is closed or was never open.
    #[error("the connection is closed")]
    Closed,
    /// The peer does not read: its send queue is full. The transport counts these.
    #[error("the send queue to this peer is full")]
    Full,
    /// The message is longer than the protocol allows.
    #[error("the message is longer than the protocol allows")]
    TooLong,
}

/// Messages, READs and answers over one kind of fabric. One owner thread; not shared.
pub trait Transport {
    /// Where peers reach this transport.
    fn local_addr(&self) -> SocketAddr;

    /// Sets what this side tells accepted peers about itself. Takes effect for later connections.
    fn identify(&mut self, identity: Identity);

    /// Starts connecting; an [`crate::Event::Opened`] or [`crate::Event::Closed`] follows.
    /// Messages and READs may be posted at once; they leave when the connection is up.
    ///
    /// # Errors
    /// The address cannot be reached at all, or the bound on connections is met.
    fn connect(&mut self, addr: SocketAddr, hello: Hello) -> io::Result<ConnId>;

    /// Closes a connection after telling the peer why (a [`crate::protocol::wire::Refuse`] frame); what was
    /// queued before is still sent as far as the peer takes it without waiting. Its READs complete
    /// as [`ReadStatus::PeerLost`] and an [`crate::Event::Closed`] follows. Unknown connections are
    /// ignored.
    fn close(&mut self, conn: ConnId, code: RefuseCode, detail: &str);

    /// Queues a message: `body` and its `tail` bytes (empty for most kinds).
    ///
    /// # Errors
    /// Closed, queue full, or too long; nothing was queued.
    fn send<B: Body>(&mut self, conn: ConnId, body: &B, tail: &[u8]) -> Result<(), SendError>;

    /// Posts READs in order, taking them out of `reads`. Those beyond the credit window, or beyond
    /// [`READ_DEPTH`] on their connection, wait inside the transport, drained round-robin over the
    /// sources. There is no other bound on how many wait: each holds a row, so the caller's batch
    /// buffers are the bound. A READ on a closed connection completes with
    /// [`ReadStatus::PeerLost`]. Every posted READ completes exactly once; for a peer that is alive
    /// and does not answer, "once" is when the caller's deadline makes it abort the READ.
    fn post_reads(&mut self, reads: &mut Vec<Read>);

    /// Gives up the READ with this connection and tag, if it is outstanding. It still completes
    /// (as `Aborted` or, if that was quicker, otherwise) once its row is out of the fabric's reach.
    fn abort_read(&mut self, conn: ConnId, tag: u64);

    /// Queues an answer: `output` is copied and lands in the output slot of `result.task` at the
    /// frontend.
    ///
    /// # Errors
    /// As [`Transport::send`].
    fn reply(&mut self, conn: ConnId, result: &TaskResult, output: &[u8]) -> Result<(), SendError>;

    /// Makes slabs readable to peers, and their output slots writable: the frontend's side. May be called
    /// again, also while peers are connected, with sets whose slots are numbered apart.
    ///
    /// # Errors
    /// The fabric cannot register them, for example because the process may not pin this much memory, or one of
    /// their slots is exposed already. Nothing is exposed then.
    fn expose(&mut self, slabs: Arc<SlabSet>) -> io::Result<()>;

    /// The memory in which slabs should lie that are going to be exposed.
    fn backing(&self) -> Backing {
        Backing::Private
    }

    /// Takes exposed slabs back, once they are retired ([`SlabSet::retire`]): later READs of them are refused,
    /// and late answers stale. Their memory goes with the last reference to it; a fabric may keep it a
    /// little longer, as long as a READ of before may be under way. Slabs that are not exposed are ignored.
    fn withdraw(&mut self, slabs: &Arc<SlabSet>);

    /// Makes a batch's memory one that READs may land in: the backend's side, at any time before the first READ
    /// into it. A fabric that registers memory does so here; the others count it.
    ///
    /// # Errors
    /// As [`Transport::expose`].
    fn land_in(&mut self, buffer: &Arc<BatchBuffer>) -> io::Result<()>;

    /// Takes [`Transport::land_in`] back: no READ into this memory is under way, and none will be posted.
    fn release(&mut self, buffer: &Arc<BatchBuffer>);

    /// The owner has found the peer entitled to read the exposed slabs. A fabric whose keys are the
    /// permission hands out none before.
    fn trust(&mut self, conn: ConnId) {
        let _ = conn;
    }

    /// Moves bytes both ways without blocking and appends what happened to `events`. Returns how
    /// many events were appended. `now` bounds handshakes and stamps nothing.
    fn poll(&mut self, now: Nanos, events: &mut Events) -> usize;

    /// Hands everything queued to the fabric: one system call per connection with something to
    /// send (one doorbell, on verbs). `poll` flushes too; call this at the end of a pass.
    fn flush(&mut self);

    /// Blocks until something may have happened, a [`Waker`] fires, or `timeout` passes (`None`:
    /// no bound). Precise to tens of microseconds.
    fn wait(&mut self, timeout: Option<Nanos>);

    /// What [`Transport::wait`] blocks on, for an owner that blocks on it elsewhere, perhaps among descriptors of
    /// its own: readable once something may have happened or a [`Waker`] fires. `None` where there is no such
    /// descriptor.
    fn pollable(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// To be called before the owner blocks on [`Transport::pollable`], and not after anything else was posted:
    /// the longest it may block, which is `timeout` or less (`Some(None)`: no bound). `None` if there is something
    /// to poll for already.
    fn prepare_wait(&mut self, timeout: Option<Nanos>) -> Option<Option<Nanos>> {
        Some(timeout)
    }

    /// A handle that ends a [`Transport::wait`] from any thread.
    fn waker(&self) -> Waker;

    /// True if something queued has not left yet: it would go with its connection. Walks every
    /// connection, so not for every pass. A fabric that keeps nothing back says no.
    fn has_unsent(&self) -> bool {
        false
    }

    /// True if something of this connection has arrived, as far as is known, that polls have not taken
    /// yet: they take no more than a bound at once.
    fn has_unread(&self, conn: ConnId) -> bool {
        let _ = conn;
        false
    }

    /// True if this peer still owes the answer to a READ that was given up ([`Transport::abort_read`]): it is asked for no more
    /// until that has come.
    fn owes(&self, conn: ConnId) -> bool {
        let _ = conn;
        false
    }

    /// What this transport counted since it started. Must be cheap: threads ask in every pass.
    fn counters(&self) -> TransportCounters;
}

/// Declares the counters once: as fields, and with their names and documentation for programs that show them.
macro_rules! transport_counters {
    (counts { $($(#[doc = $help:literal])* $name:ident,)* }
     levels { $($(#[doc = $level_help:literal])* $level:ident,)* }) => {
        /// Counted since start. Every refusal and every full queue of the transport is one of these. The last ones are
        /// levels, no counts.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct TransportCounters {
            $($(#[doc = $help])* pub $name: u64,)*
            $($(#[doc = $level_help])* pub $level: u64,)*
        }

        impl TransportCounters {
            /// Name, documentation and value of what is counted.
            pub fn counts(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), concat!($($help),*), self.$name),)*]
            }

            /// The same of the levels.
            pub fn levels(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($level), concat!($($level_help),*), self.$level),)*]
            }
        }
    };
}

transport_counters! {
    counts {
        /// Connections accepted or opened.
        opened,
        /// Connections closed, for whatever reason.
        closed,
        /// Connections closed because the peer sent bytes that are no frame, or a frame where it does
        /// not belong.
        malformed,
        /// Connections refused for their version.
        version_refused,
        /// Connections that came to nothing because of TLS: a certificate refused here or by the peer, a
        /// name that is on no list, one side without TLS.
        tls_refused,
        /// Connections turned away or closed because a bound was met: too many connections, no hello in
        /// time, a peer that does not read what it asks for.
        refused,
        /// Messages refused because a send queue was full.
        send_full,
        /// Messages received.
        messages_in,
        /// Messages sent.
        messages_out,
        /// Messages sent over RDMA.
        messages_rdma,
        /// Answers that landed in an output slot and came over RDMA.
        answers_rdma,
        /// Queue pairs for messages connected with peers, on either side.
        control_links,
        /// READs completed with data, as initiator.
        reads_done,
        /// READs completed with data over RDMA, as initiator.
        reads_rdma,
        /// READs completed with data out of memory shared with a frontend of this host, as initiator.
        reads_same_host,
        /// Queue pairs connected with peers, on either side.
        links_rdma,
        /// Connections with a peer of this host with which memory is shared, on either side.
        links_same_host,
        /// READs completed without data: stale, refused, lost or aborted.
        reads_failed,
        /// READs served, as target.
        reads_served,
        /// READs refused, as target: stale generation, wrong size, unknown slot.
        reads_refused,
        /// Answers that arrived for a slot no longer waiting for them.
        results_stale,
    }
    levels {
        /// Bytes of the credit window that are taken now, as initiator.
        credit_held,
        /// Bytes of the slabs and batch rows the transport serves.
        memory_bytes,
        /// Bytes of the slabs and batch rows in huge pages, as far as the first page of each tells.
        memory_huge_bytes,
    }
}

impl TransportCounters {
    /// Counts memory in: its bytes, and of these the bytes in huge pages.
    pub(crate) fn add_memory(&mut self, (bytes, huge_bytes): (u64, u64)) {
        self.memory_bytes += bytes;
        self.memory_huge_bytes += huge_bytes;
    }

    /// Counts memory out that was counted in. It may have got huge pages since, so that the level ends at 0 at worst.
    pub(crate) fn remove_memory(&mut self, (bytes, huge_bytes): (u64, u64)) {
        self.memory_bytes = self.memory_bytes.saturating_sub(bytes);
        self.memory_huge_bytes = self.memory_huge_bytes.saturating_sub(huge_bytes);
    }
}

//! What all connections of a transport have in common.

use std::io;
use std::sync::Arc;

use crate::events::Events;
use crate::memory::slab::{Exposed, SlabSet};
use crate::protocol::credit::CreditWindow;
use crate::protocol::wire::{TRAILER_LEN, Versions};
use crate::transport::{Identity, Read, ReadDone, ReadStatus, TransportCounters};

/// State beside the connections; connections take it as an argument.
pub(crate) struct Shared {
    pub(crate) identity: Identity,
    /// What this side claims to speak.
    pub(crate) versions: Versions,
    pub(crate) slabs: Exposed,
    /// READs that arrive as messages are served; otherwise their sender is refused.
    pub(crate) serves_reads: bool,
    pub(crate) credit: CreditWindow,
    pub(crate) counters: TransportCounters,
    /// Completions and closings, delivered at the end of the poll that caused them or, if a call in
    /// between did, by the next one.
    pub(crate) backlog: Events,
}

impl Shared {
    pub(crate) fn new(identity: Identity, credit_bytes: u64) -> Self {
        Self {
            identity,
            versions: Versions::SPOKEN,
            slabs: Exposed::default(),
            serves_reads: true,
            credit: CreditWindow::new(credit_bytes),
            counters: TransportCounters::default(),
            backlog: Events::new(),
        }
    }

    /// Takes in the slabs that peers read.
    pub(crate) fn expose(&mut self, slabs: &Arc<SlabSet>) -> io::Result<()> {
        self.slabs.add(slabs)?;
        self.counters.add_memory(slabs.memory_bytes());
        Ok(())
    }

    /// Peers can read these slabs no longer.
    pub(crate) fn withdraw(&mut self, slabs: &Arc<SlabSet>) {
        if self.slabs.remove(slabs) {
            self.counters.remove_memory(slabs.memory_bytes());
        }
    }

    /// Completes a READ.
    pub(crate) fn complete(&mut self, done: ReadDone) {
        match done.status {
            ReadStatus::Done => self.counters.reads_done += 1,
            _ => self.counters.reads_failed += 1,
        }
        self.backlog.read(done);
    }

    /// Completes a READ as it was posted.
    pub(crate) fn finish(&mut self, read: Read, status: ReadStatus) {
        let Read { task, tag, row, .. } = read;
        self.complete(ReadDone { task, tag, row, status });
    }
}

/// What a row of `len` bytes takes from the window.
pub(crate) fn credit_of(len: usize) -> u64 {
    (len + TRAILER_LEN) as u64
}

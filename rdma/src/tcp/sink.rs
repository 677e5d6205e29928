//! Where the payload that is arriving on a connection goes.

use crate::memory::slab::OutputMut;
use crate::protocol::wire::{TRAILER_LEN, TaskResult};
use crate::tcp::initiator::Pull;
use crate::transport::ReadStatus;

/// The place of the payload in progress. It is exactly as long as the payload, except that a
/// discarded one has no place at all.
pub(super) enum Sink {
    /// No payload is pending.
    Idle,
    /// An input, on its way into a row.
    Row(RowSink),
    /// An answer, on its way into an output slot.
    Answer(AnswerSink),
    /// Bytes that this side drops. `overdue`: they answer a READ that was given up.
    Discard { overdue: bool },
}

/// An input on its way into a row, and its trailer.
pub(super) struct RowSink {
    pub(super) pull: Pull,
    trailer: [u8; TRAILER_LEN],
    filled: usize,
}

/// An answer on its way into an output slot.
pub(super) struct AnswerSink {
    pub(super) output: OutputMut,
    pub(super) result: TaskResult,
    pub(super) len: usize,
    filled: usize,
}

impl Sink {
    /// What of the place is still to be filled, in order.
    pub(super) fn vacant(&mut self) -> [&mut [u8]; 2] {
        match self {
            Self::Idle | Self::Discard { .. } => [&mut [], &mut []],
            Self::Row(sink) => sink.vacant(),
            Self::Answer(sink) => [&mut sink.output[sink.filled..sink.len], &mut []],
        }
    }

    /// `n` bytes of the vacant place are filled now.
    pub(super) fn advance(&mut self, n: usize) {
        match self {
            Self::Idle | Self::Discard { .. } => {}
            Self::Row(sink) => sink.filled += n,
            Self::Answer(sink) => sink.filled += n,
        }
    }
}

impl RowSink {
    pub(super) fn new(pull: Pull) -> Self {
        Self { pull, trailer: [0; TRAILER_LEN], filled: 0 }
    }

    /// What the complete payload amounts to: the trailer must name the task.
    pub(super) fn verdict(&self) -> ReadStatus {
        let named = u64::from_le_bytes(self.trailer) == self.pull.task.0;
        if named { ReadStatus::Done } else { ReadStatus::Stale }
    }

    fn vacant(&mut self) -> [&mut [u8]; 2] {
        let row = self.pull.row.as_deref_mut().unwrap_or_default();
        let in_row = self.filled.min(row.len());
        let in_trailer = self.filled - in_row;
        [&mut row[in_row..], &mut self.trailer[in_trailer..]]
    }
}

impl AnswerSink {
    /// `len` bytes at most as long as `output` are on their way.
    pub(super) fn new(output: OutputMut, result: TaskResult, len: usize) -> Self {
        Self { output, result, len, filled: 0 }
    }
}

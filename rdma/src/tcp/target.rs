//! The frontend's side, carried out by the transport as a NIC would: inputs are read out of the
//! exposed slabs, answers written into them. The owner only sees that an answer has landed.

use baton_types::TaskId;

use super::link::Link;
use super::sink::{AnswerSink, Sink};
use crate::events::CloseReason;
use crate::memory::slab::ReadRefusal;
use crate::protocol::wire::{DecodeError, Kind, Read, ReadReply, TaskResult};
use crate::shared::Shared;
use crate::transport::READ_DEPTH;

impl Link {
    /// Answers a READ: with the leased input, which leaves straight from the slab, or with why not.
    pub(super) fn on_read(&mut self, read: &Read, shared: &mut Shared) -> Result<(), CloseReason> {
        if !shared.serves_reads {
            let why = "this frontend's inputs are read over RDMA only (transport = \"rdma\")";
            return Err(CloseReason::Fabric(why.to_owned()));
        }
        if self.tx.leases() >= READ_DEPTH {
            return Err(CloseReason::Unexpected(Kind::Read));
        }
        let lease = shared.slabs.read(TaskId(read.task.get()), read.len.get());
        let status = match &lease {
            Ok(_) => 0,
            Err(ReadRefusal::Stale) => 1,
            Err(ReadRefusal::WrongSize) => 2,
            Err(ReadRefusal::NoSuchSlot) => 3,
        };
        shared.counters.reads_served += u64::from(lease.is_ok());
        shared.counters.reads_refused += u64::from(lease.is_err());
        let reply = ReadReply { task: read.task, tag: read.tag, status, reserved: [0; 3] };
        let queued = self.tx.push_urgent(&reply, &[], lease.ok());
        queued.then_some(()).ok_or(CloseReason::SendQueueFull)
    }

    /// An answer begins. One for a task that no longer waits is let pass and counted.
    pub(super) fn on_result(
        &mut self,
        result: &TaskResult,
        payload_len: usize,
        shared: &mut Shared,
    ) -> Result<(), CloseReason> {
        self.sink = answer_sink(result, payload_len, shared)?;
        Ok(())
    }
}

/// Where an answer goes.
pub(super) fn answer_sink(
    result: &TaskResult,
    payload_len: usize,
    shared: &mut Shared,
) -> Result<Sink, CloseReason> {
    if !shared.slabs.is_frontend() {
        return Err(CloseReason::Unexpected(Kind::TaskResult));
    }
    match shared.slabs.landing(TaskId(result.task.get())) {
        Some(output) if payload_len > output.len() => {
            Err(CloseReason::Malformed(DecodeError::PayloadLength))
        }
        Some(output) => Ok(Sink::Answer(AnswerSink::new(output, *result, payload_len))),
        None => {
            shared.counters.results_stale += 1;
            Ok(Sink::Discard { overdue: false })
        }
    }
}

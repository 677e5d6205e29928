//! One connection's conversation: what each frame means and what is said in reply. Knows nothing of
//! sockets; `conn` moves the bytes.

use std::net::SocketAddr;

use super::initiator::Pulls;
use super::sink::Sink;
use super::tx::TxQueue;
use crate::events::{CloseReason, Events};
use crate::protocol::frame::Frame;
use crate::protocol::handshake::{self, Stage};
use crate::protocol::wire::Message;
use crate::shared::Shared;
use crate::transport::ConnId;

/// The conversation on one connection.
pub(super) struct Link {
    pub(super) id: ConnId,
    pub(super) addr: SocketAddr,
    pub(super) tx: TxQueue,
    pub(super) pulls: Pulls,
    pub(super) sink: Sink,
    stage: Stage,
}

impl Link {
    pub(super) fn new(id: ConnId, addr: SocketAddr, stage: Stage, tx: TxQueue) -> Self {
        Self { id, addr, tx, pulls: Pulls::default(), sink: Sink::Idle, stage }
    }

    /// True once the handshake is done.
    pub(super) fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// True if the owner knows this connection: it asked for it, or has learned that it is open.
    pub(super) fn is_known(&self) -> bool {
        self.stage != Stage::AwaitHello
    }

    /// Takes in a frame; its payload, if any, goes to the sink.
    pub(super) fn on_frame(
        &mut self,
        frame: &Frame<'_>,
        shared: &mut Shared,
        events: &mut Events,
    ) -> Result<(), CloseReason> {
        if self.stage != Stage::Open {
            return self.on_first(&frame.message, shared, events);
        }
        match frame.message {
            Message::Read(read) => self.on_read(read, shared),
            Message::ReadReply(reply) => self.on_read_reply(reply, frame.payload_len, shared),
            Message::TaskResult(result) => self.on_result(result, frame.payload_len, shared),
            Message::Refuse(refuse, detail) => Err(handshake::refused(refuse.code.get(), detail)),
            Message::Hello(_) | Message::Welcome(_) => Err(handshake::unexpected(&frame.message)),
            _ => {
                shared.counters.messages_in += 1;
                events.message(self.id, frame.kind, frame.body);
                Ok(())
            }
        }
    }

    /// The payload in the sink is complete.
    pub(super) fn finish_payload(&mut self, shared: &mut Shared, events: &mut Events) {
        match std::mem::replace(&mut self.sink, Sink::Idle) {
            Sink::Idle => {}
            Sink::Discard { overdue } => self.pulls.passed(overdue),
            Sink::Answer(sink) => {
                let len = sink.len as u32;
                sink.output.commit(len);
                events.result(self.id, sink.result, len);
            }
            Sink::Row(mut sink) => {
                let status = sink.verdict();
                self.pulls.give_back(&sink.pull, shared);
                sink.pull.complete(status, shared);
            }
        }
    }

    fn on_first(
        &mut self,
        message: &Message<'_>,
        shared: &mut Shared,
        events: &mut Events,
    ) -> Result<(), CloseReason> {
        let (peer, welcome) =
            handshake::on_first(self.stage, message, self.addr, shared.identity, shared.versions)?;
        if let Some(welcome) = welcome {
            let queued = self.tx.push_urgent(&welcome, &[], None);
            debug_assert!(queued, "the queue of a fresh connection has room");
        }
        self.stage = Stage::Open;
        events.opened(self.id, peer);
        Ok(())
    }
}

//! One end of a connection: frames in, frames out, what they mean.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use baton_types::{Nanos, TaskId};

use super::{Pipe, lock};
use crate::events::{CloseReason, Events};
use crate::memory::slab::ReadRefusal;
use crate::protocol::frame::{self, Frame, HEADER_LEN};
use crate::protocol::handshake::{self, Stage};
use crate::protocol::wire::{
    Body, DecodeError, Kind, Message, Refuse, RefuseCode, TRAILER_LEN, TaskResult,
};
use crate::shared::Shared;
use crate::transport::{ConnId, Read, ReadStatus};

/// One end of a [`Pipe`].
pub(super) struct Link {
    pub(super) id: ConnId,
    /// READs asked for and not carried out.
    pub(super) asked: usize,
    /// When the handshake must be done; `None` until a poll has told the time.
    pub(super) open_by: Option<Nanos>,
    pipe: Arc<Pipe>,
    /// Which end: 0 connected, 1 accepted.
    side: usize,
    stage: Stage,
    /// Queued, not flushed.
    tx: Vec<u8>,
    /// Frames taken off the pipe, and how much of them has been acted on.
    rx: Vec<u8>,
    rx_done: usize,
}

impl Link {
    pub(super) fn new(id: ConnId, pipe: Arc<Pipe>, side: usize) -> Self {
        let stage = if side == 0 { Stage::AwaitWelcome } else { Stage::AwaitHello };
        let (tx, rx) = (Vec::new(), Vec::new());
        Self { id, asked: 0, open_by: None, pipe, side, stage, tx, rx, rx_done: 0 }
    }

    pub(super) fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// True if the owner has heard of this connection.
    pub(super) fn is_known(&self) -> bool {
        self.stage != Stage::AwaitHello
    }

    /// Frames are here already.
    pub(super) fn wants_pass(&self) -> bool {
        self.rx_done < self.rx.len()
    }

    /// Queues a frame. Bytes the peer has not taken count against `limit`; a frame longer than that
    /// passes alone.
    #[must_use]
    pub(super) fn push<B: Body>(
        &mut self,
        body: &B,
        tail: &[u8],
        payload: &[u8],
        limit: usize,
    ) -> bool {
        let len = HEADER_LEN + size_of::<B>() + tail.len() + payload.len();
        let queued = self.tx.len() + lock(&self.pipe.ways[self.side]).bytes.len();
        let fits = queued == 0 || queued.saturating_add(len) <= limit;
        if fits {
            frame::encode(&mut self.tx, body, tail, payload.len());
            self.tx.extend_from_slice(payload);
        }
        fits
    }

    /// Puts what is queued on the pipe.
    pub(super) fn flush(&mut self) {
        if self.tx.is_empty() {
            return;
        }
        lock(&self.pipe.ways[self.side]).bytes.append(&mut self.tx);
        self.pipe.ends[1 - self.side].ring();
    }

    /// Tells the peer why the connection ends.
    pub(super) fn refuse(&mut self, code: RefuseCode, detail: &str) {
        let refuse = Refuse { code: (code as u16).into() };
        let _always_fits = self.push(&refuse, detail.as_bytes(), &[], usize::MAX);
        self.flush();
    }

    /// Nothing more will be sent.
    pub(super) fn hang_up(&self) {
        self.pipe.close(self.side);
    }

    /// Acts on what has arrived. Stops behind the handshake, so that the owner sees it first.
    ///
    /// # Errors
    /// The connection is to be closed for this reason.
    pub(super) fn receive(
        &mut self,
        shared: &mut Shared,
        events: &mut Events,
    ) -> Result<(), CloseReason> {
        let closed = self.fetch();
        let rx = std::mem::take(&mut self.rx);
        let taken = self.take_in(&rx, shared, events);
        self.rx = rx;
        taken?;
        if closed && !self.wants_pass() { Err(CloseReason::Eof) } else { Ok(()) }
    }

    /// Carries a READ out, as the NIC of the target would.
    pub(super) fn carry_out(&self, read: &mut Read) -> ReadStatus {
        let target = &self.pipe.ends[1 - self.side];
        let lease = lock(&target.slabs).read(read.task, read.row.len() as u32);
        target.count_read(lease.is_ok());
        match lease {
            Err(ReadRefusal::Stale) => ReadStatus::Stale,
            Err(ReadRefusal::WrongSize | ReadRefusal::NoSuchSlot) => ReadStatus::Refused,
            Ok(lease) => {
                let (input, trailer) = lease.as_ref().split_at(read.row.len());
                read.row.copy_from_slice(input);
                debug_assert_eq!(trailer.len(), TRAILER_LEN);
                let named = trailer == read.task.0.to_le_bytes();
                if named { ReadStatus::Done } else { ReadStatus::Stale }
            }
        }
    }

    /// Takes over what lies on the pipe if everything before has been acted on. True if the peer
    /// has closed and nothing else will come.
    fn fetch(&mut self) -> bool {
        if self.wants_pass() {
            return false;
        }
        self.rx.clear();
        self.rx_done = 0;
        let mut way = lock(&self.pipe.ways[1 - self.side]);
        std::mem::swap(&mut self.rx, &mut way.bytes);
        way.closed
    }

    fn take_in(
        &mut self,
        rx: &[u8],
        shared: &mut Shared,
        events: &mut Events,
    ) -> Result<(), CloseReason> {
        while self.rx_done < rx.len() {
            let rest = &rx[self.rx_done..];
            let parsed = frame::parse(rest).map_err(CloseReason::Malformed)?;
            let cut = CloseReason::Reset(io::ErrorKind::UnexpectedEof);
            let (frame, len) = parsed.ok_or_else(|| cut.clone())?;
            let payload = rest.get(len..len + frame.payload_len).ok_or(cut)?;
            self.rx_done += len + payload.len();
            if self.stage != Stage::Open {
                return self.on_first(&frame, shared, events);
            }
            self.on_frame(&frame, payload, shared, events)?;
        }
        Ok(())
    }

    fn on_first(
        &mut self,
        frame: &Frame<'_>,
        shared: &mut Shared,
        events: &mut Events,
    ) -> Result<(), CloseReason> {
        let addr: SocketAddr = self.pipe.ends[1 - self.side].addr;
        let (peer, welcome) = handshake::on_first(
            self.stage,
            &frame.message,
            addr,
            shared.identity,
            shared.versions,
        )?;
        if let Some(welcome) = welcome {
            let _always_fits = self.push(&welcome, &[], &[], usize::MAX);
        }
        self.stage = Stage::Open;
        events.opened(self.id, peer);
        Ok(())
    }

    fn on_frame(
        &mut self,
        frame: &Frame<'_>,
        payload: &[u8],
        shared: &mut Shared,
        events: &mut Events,
    ) -> Result<(), CloseReason> {
        match frame.message {
            Message::TaskResult(result) => self.on_result(result, payload, shared, events),
            Message::Refuse(refuse, detail) => Err(handshake::refused(refuse.code.get(), detail)),
            // READs are one-sided here: none of their frames travels.
            Message::Hello(_) | Message::Welcome(_) | Message::Read(_) | Message::ReadReply(_) => {
                Err(handshake::unexpected(&frame.message))
            }
            _ => {
                shared.counters.messages_in += 1;
                events.message(self.id, frame.kind, frame.body);
                Ok(())
            }
        }
    }

    fn on_result(
        &self,
        result: &TaskResult,
        payload: &[u8],
        shared: &mut Shared,
        events: &mut Events,
    ) -> Result<(), CloseReason> {
        if !shared.slabs.is_frontend() {
            return Err(CloseReason::Unexpected(Kind::TaskResult));
        }
        let Some(mut output) = shared.slabs.landing(TaskId(result.task.get())) else {
            shared.counters.results_stale += 1;
            return Ok(());
        };
        let place = output.get_mut(..payload.len());
        let place = place.ok_or(CloseReason::Malformed(DecodeError::PayloadLength))?;
        place.copy_from_slice(payload);
        output.commit(payload.len() as u32);
        events.result(self.id, *result, payload.len() as u32);
        Ok(())
    }
}

//! The backend's side of READs on one connection: asked for, answered, given up.
//!
//! A pull is on the books from the moment its request is queued until its answer has passed
//! entirely, also when its row has been given back before (aborted). Its credit returns with its row,
//! so that a peer that answers nothing cannot keep it from the others; such a peer is asked for no more
//! until it has answered what is overdue. Answers are matched by the wire tag, which names the place in the books and a serial
//! number, so that this side recognises an unsolicited answer.

use baton_types::TaskId;

use super::PULL_REQUEST_LEN;
use super::link::Link;
use super::sink::{RowSink, Sink};
use crate::events::CloseReason;
use crate::memory::landing::RowMut;
use crate::protocol::wire::{self, DecodeError, Kind, ReadReply, TRAILER_LEN};
use crate::shared::{Shared, credit_of};
use crate::transport::{READ_DEPTH, Read, ReadDone, ReadStatus};

/// Rows longer than this are read with little of the stream buffered ahead, so that nearly all of
/// the payload goes straight to its row.
const BULK: usize = 16 * 1024;

/// A READ that has been asked for.
pub(super) struct Pull {
    pub(super) task: TaskId,
    pub(super) tag: u64,
    /// `None` once the caller has it back.
    pub(super) row: Option<RowMut>,
    len: usize,
    wire_tag: u32,
}

impl Pull {
    /// What it takes from the window.
    pub(super) fn credit(&self) -> u64 {
        credit_of(self.len)
    }

    /// Completes it, unless its row was given back before.
    pub(super) fn complete(&mut self, status: ReadStatus, shared: &mut Shared) {
        if let Some(row) = self.row.take() {
            shared.complete(ReadDone { task: self.task, tag: self.tag, row, status });
        }
    }
}

/// The pulls of one connection.
#[derive(Default)]
pub(super) struct Pulls {
    places: Vec<Option<Pull>>,
    free: Vec<u32>,
    serial: u32,
    bulk: usize,
    /// Of the window, bytes.
    held: u64,
    /// Given up, and neither answered nor lost: no more is asked for until that has passed.
    overdue: usize,
}

impl Pulls {
    /// True if no more may be asked for.
    pub(super) fn full(&self) -> bool {
        self.places.len() - self.free.len() >= READ_DEPTH
    }

    /// Bytes of the window that this peer holds.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// The credit of a pull returns.
    pub(super) fn give_back(&mut self, pull: &Pull, shared: &mut Shared) {
        self.held -= pull.credit();
        shared.credit.put_back(pull.credit());
    }

    /// A discarded answer has passed.
    pub(super) fn passed(&mut self, overdue: bool) {
        self.overdue -= usize::from(overdue);
    }

    /// True if a long row is on its way.
    pub(super) fn has_bulk(&self) -> bool {
        self.bulk > 0
    }

    fn enter(&mut self, read: Read) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() as u32 - 1
        });
        self.serial = self.serial.wrapping_add(1);
        let wire_tag = self.serial.wrapping_mul(READ_DEPTH as u32) | place;
        let Read { task, tag, row, .. } = read;
        let len = row.len();
        self.bulk += usize::from(len > BULK);
        self.held += credit_of(len);
        self.places[place as usize] = Some(Pull { task, tag, row: Some(row), len, wire_tag });
        wire_tag
    }

    fn settle(&mut self, reply: &ReadReply) -> Option<Pull> {
        let place = reply.tag.get() % READ_DEPTH as u32;
        let asked = self
            .places
            .get_mut(place as usize)?
            .take_if(|pull| pull.wire_tag == reply.tag.get() && pull.task.0 == reply.task.get())?;
        self.free.push(place);
        self.bulk -= usize::from(asked.len > BULK);
        Some(asked)
    }

    /// The pull with this tag, if its row has not been given back.
    fn armed(&mut self, tag: u64) -> Option<&mut Pull> {
        let armed = |pull: &&mut Pull| pull.tag == tag && pull.row.is_some();
        self.places.iter_mut().flatten().find(armed)
    }

    fn drain(&mut self) -> impl Iterator<Item = Pull> {
        self.places.drain(..).flatten()
    }
}

impl Link {
    /// True if the answer to a READ that was given up is still to come.
    pub(super) fn owes(&self) -> bool {
        self.pulls.overdue > 0
    }

    /// True if a READ may be asked for now.
    pub(super) fn can_pull(&self) -> bool {
        self.is_open() && !self.owes() && !self.pulls.full() && self.tx.room_for(PULL_REQUEST_LEN)
    }

    /// Asks for an input. Only after [`Link::can_pull`], and with its credit taken.
    pub(super) fn pull(&mut self, read: Read) {
        let (task, len) = (read.task.0.into(), (read.row.len() as u32).into());
        let tag = self.pulls.enter(read).into();
        let queued = self.tx.push(&wire::Read { task, tag, len }, &[], &[]);
        debug_assert!(queued, "there was room for the request");
    }

    /// Gives the row of the pull with this tag back at once: the stream's next bytes for it, if any
    /// come, find another place.
    pub(super) fn abort(&mut self, tag: u64, shared: &mut Shared) {
        if let Some(pull) = self.pulls.armed(tag) {
            let credit = pull.credit();
            pull.complete(ReadStatus::Aborted, shared);
            shared.credit.put_back(credit);
            self.pulls.held -= credit;
            self.pulls.overdue += 1;
        } else if let Sink::Row(sink) = &mut self.sink
            && sink.pull.tag == tag
        {
            sink.pull.complete(ReadStatus::Aborted, shared);
            self.pulls.give_back(&sink.pull, shared);
            self.pulls.overdue += 1;
            self.sink = Sink::Discard { overdue: true };
        }
    }

    /// An answer to a READ begins.
    pub(super) fn on_read_reply(
        &mut self,
        reply: &ReadReply,
        payload_len: usize,
        shared: &mut Shared,
    ) -> Result<(), CloseReason> {
        let pull = self.pulls.settle(reply);
        let mut pull = pull.ok_or(CloseReason::Unexpected(Kind::ReadReply))?;
        let status = match reply.status {
            0 => ReadStatus::Done,
            1 => ReadStatus::Stale,
            _ => ReadStatus::Refused,
        };
        let carries = if status == ReadStatus::Done { pull.len + TRAILER_LEN } else { 0 };
        if payload_len != carries {
            self.lose(pull, shared);
            return Err(CloseReason::Malformed(DecodeError::PayloadLength));
        }
        let wanted = pull.row.is_some();
        if wanted && status == ReadStatus::Done {
            self.sink = Sink::Row(RowSink::new(pull));
        } else if status == ReadStatus::Done {
            self.sink = Sink::Discard { overdue: true };
        } else if wanted {
            self.pulls.give_back(&pull, shared);
            pull.complete(status, shared);
        } else {
            self.pulls.passed(true);
        }
        Ok(())
    }

    /// The connection is gone: everything asked for is lost.
    pub(super) fn lose_all(&mut self, shared: &mut Shared) {
        let mut pulls = std::mem::take(&mut self.pulls);
        match std::mem::replace(&mut self.sink, Sink::Idle) {
            Sink::Row(sink) => self.lose(sink.pull, shared),
            Sink::Discard { .. } | Sink::Answer(_) | Sink::Idle => {}
        }
        for pull in pulls.drain() {
            self.lose(pull, shared);
        }
    }

    fn lose(&self, mut pull: Pull, shared: &mut Shared) {
        // What is overdue has returned its credit.
        if pull.row.is_some() {
            shared.credit.put_back(pull.credit());
        }
        pull.complete(ReadStatus::PeerLost, shared);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::memory::landing::BatchBuffer;
    use crate::protocol::handshake::Stage;
    use crate::tcp::tx::TxQueue;
    use crate::transport::ConnId;

    fn link(stage: Stage, queue_bytes: usize) -> Link {
        Link::new(ConnId(1), (Ipv4Addr::LOCALHOST, 9).into(), stage, TxQueue::new(queue_bytes))
    }

    /// Asks for as many inputs of a byte.
    fn pull(link: &mut Link, count: usize) {
        let rows = BatchBuffer::new(count).unwrap();
        for row in 0..count as u32 {
            assert!(link.can_pull(), "{row}");
            let (task, row_mut) = (TaskId(row.into()), rows.lend(row, 1).unwrap());
            link.pull(Read { conn: ConnId(1), task, row: row_mut, tag: row.into() });
        }
    }

    #[test]
    fn a_peer_is_asked_for_what_it_can_be_asked_for() {
        let many = 2 * READ_DEPTH * PULL_REQUEST_LEN;
        assert!(!link(Stage::AwaitWelcome, many).can_pull(), "nothing is known of it yet");
        let mut full = link(Stage::Open, many);
        pull(&mut full, READ_DEPTH);
        assert!(!full.can_pull(), "a target closes a connection that asks for more");
        let mut short = link(Stage::Open, 3 * PULL_REQUEST_LEN);
        pull(&mut short, 3);
        assert!(!short.can_pull(), "the next request has no room");
        let mut owing = link(Stage::Open, many);
        owing.pulls.overdue = 1;
        assert!(!owing.can_pull());
        owing.pulls.passed(true);
        assert!(owing.can_pull());
    }
}

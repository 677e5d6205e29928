//! Where frames begin and end in a stream, as an observer that only watches it go by can tell.

use std::collections::VecDeque;

use baton_core::{DropReason, TaskId};
use baton_rdma::frame::HEADER_LEN;
use baton_rdma::wire::{FrameHeader, Kind, Message, decode};
use zerocopy::FromBytes;

use super::batches::BatchWord;
use super::ears::Tidings;
use super::order::Asked;

/// Longest frame that may be repeated: they are short.
const REPEAT_MAX: usize = 4096;
const SHUTDOWN: u8 = DropReason::Shutdown.code();
const GIVEN_UP: [u8; 2] = [DropReason::Deadline.code(), DropReason::Window.code()];

/// What a frame says, which counts once it is read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Word {
    /// The outcome of a task.
    End(TaskId),
    /// A task is submitted.
    Asked(Asked),
    /// Who has gone, and what is given back.
    Tidings(Tidings),
}

/// What a client wants of a scheduler.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wish {
    /// The task is to be served.
    Submit(TaskId),
    /// It is to be served no more.
    Cancel(TaskId),
}

impl Wish {
    fn of(message: &Message<'_>) -> Option<Self> {
        match message {
            Message::Submit(submit) => Some(Self::Submit(TaskId(submit.task.get()))),
            Message::Cancel(cancel) => Some(Self::Cancel(TaskId(cancel.task.get()))),
            _ => None,
        }
    }
}

/// A frame that has passed.
#[derive(Debug)]
pub(super) struct Passed {
    pub(super) kind: Kind,
    pub(super) len: usize,
    /// The task whose outcome it is.
    pub(super) word: Option<TaskId>,
    /// A scheduler that stops gives this task back.
    pub(super) given_back: Option<TaskId>,
    /// This task is dropped because it cannot be in time any more, or others would not.
    pub(super) given_up: Option<TaskId>,
    /// What it says of who is there and who has what.
    pub(super) tidings: Option<Tidings>,
    /// What a client asks for.
    pub(super) wish: Option<Wish>,
    /// What it says about a batch.
    pub(super) batch: Option<BatchWord>,
    /// The whole of it, unless it is long.
    pub(super) bytes: Option<Vec<u8>>,
}

/// Follows one way of a connection.
#[derive(Default)]
pub(super) struct FrameTracker {
    /// Of the frame in progress: header, body and some payload.
    head: Vec<u8>,
    /// Bytes of it still to come; 0 while its header is incomplete.
    left: usize,
    len: usize,
    /// Bytes that have passed.
    written: u64,
    /// Bytes the reader has taken.
    read: u64,
    /// Words under way: where their frames end.
    pub(super) words: VecDeque<(u64, Word)>,
}

impl FrameTracker {
    /// True between two frames.
    pub(super) fn at_boundary(&self) -> bool {
        self.head.is_empty() && self.left == 0
    }

    /// Bytes pass; `passed` hears of each frame that they complete.
    pub(super) fn write(&mut self, mut bytes: &[u8], mut passed: impl FnMut(Passed)) {
        while !bytes.is_empty() {
            if self.left == 0 {
                let missing = HEADER_LEN - self.head.len();
                let (header, rest) = bytes.split_at(missing.min(bytes.len()));
                self.keep(header);
                bytes = rest;
                if self.head.len() < HEADER_LEN {
                    return;
                }
                let header = FrameHeader::ref_from_bytes(&self.head).expect("eight bytes");
                let body = usize::from(header.body_len.get());
                self.left = body + header.payload_len.get() as usize;
                self.len = HEADER_LEN + self.left;
            }
            let (piece, rest) = bytes.split_at(self.left.min(bytes.len()));
            self.keep(piece);
            self.left -= piece.len();
            bytes = rest;
            if self.left == 0 {
                passed(self.finish());
            }
        }
    }

    /// The reader has taken `n` bytes; `heard` receives each word that is now with it.
    pub(super) fn read(&mut self, n: usize, mut heard: impl FnMut(Word)) {
        self.read += n as u64;
        while let Some(&(end, word)) = self.words.front() {
            if end > self.read {
                return;
            }
            self.words.pop_front();
            heard(word);
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.written += bytes.len() as u64;
        let room = REPEAT_MAX.saturating_sub(self.head.len());
        self.head.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn finish(&mut self) -> Passed {
        let head = std::mem::take(&mut self.head);
        let header = FrameHeader::ref_from_prefix(&head).expect("a frame has a header").0;
        let kind = header.check().expect("our transports write frames");
        let body =
            &head[HEADER_LEN..(HEADER_LEN + usize::from(header.body_len.get())).min(head.len())];
        // A long body is not kept whole and says nothing.
        let message = decode(kind, body).ok();
        let word = match &message {
            Some(Message::TaskEnd(end)) => Some(TaskId(end.task.get())),
            Some(Message::TaskResult(result)) => Some(TaskId(result.task.get())),
            _ => None,
        };
        // 1: dropped.
        let given_back = match &message {
            Some(Message::TaskEnd(end)) if (end.kind, end.reason) == (1, SHUTDOWN) => word,
            _ => None,
        };
        let given_up = match &message {
            Some(Message::TaskEnd(end)) if end.kind == 1 && GIVEN_UP.contains(&end.reason) => word,
            _ => None,
        };
        let batch = message.as_ref().and_then(BatchWord::of);
        let tidings = message.as_ref().and_then(Tidings::of);
        let wish = message.as_ref().and_then(Wish::of);
        let asked = message.as_ref().and_then(Asked::of).map(Word::Asked);
        let said = word.map(Word::End).or(asked);
        self.words.extend(tidings.map(|tidings| (self.written, Word::Tidings(tidings))));
        self.words.extend(said.map(|said| (self.written, said)));
        let len = self.len;
        let whole = head.len() == len;
        Passed {
            kind,
            len,
            word,
            given_back,
            given_up,
            tidings,
            wish,
            batch,
            bytes: whole.then_some(head),
        }
    }
}

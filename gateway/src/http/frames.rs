//! Bytes in the pieces in which they came.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};

/// Shorter frames are put together: each would keep a buffer of its own alive.
const WHOLE_MIN: usize = 4_096;

/// A body's bytes, in the pieces in which they came.
#[derive(Default, Debug)]
pub(crate) struct Frames {
    /// Before those of `whole`; empty only if those are none.
    front: Bytes,
    whole: VecDeque<Bytes>,
    /// Of short frames.
    tail: Vec<u8>,
    len: usize,
}

impl Frames {
    pub(crate) fn push(&mut self, frame: Bytes) {
        self.len += frame.len();
        if frame.len() < WHOLE_MIN {
            self.tail.extend_from_slice(&frame);
        } else {
            self.flush();
            self.push_back(frame);
        }
    }

    fn flush(&mut self) {
        if !self.tail.is_empty() {
            let tail = std::mem::take(&mut self.tail);
            self.push_back(tail.into());
        }
    }

    fn push_back(&mut self, frame: Bytes) {
        if self.front.is_empty() {
            self.front = frame;
        } else if !frame.is_empty() {
            self.whole.push_back(frame);
        }
    }

    /// No more comes. Only now can it be read.
    pub(crate) fn finish(&mut self) {
        self.flush();
    }

    /// The first bytes, out of their frames without a copy.
    pub(crate) fn split_to(&mut self, mut count: usize) -> Self {
        let mut first = Self::default();
        while count > 0 {
            let part = self.chunk().len().min(count);
            first.len += part;
            first.push_back(self.copy_to_bytes(part));
            count -= part;
        }
        first
    }

    /// Puts others behind these. Both are finished.
    pub(crate) fn append(&mut self, other: Self) {
        self.len += other.len;
        self.push_back(other.front);
        self.whole.extend(other.whole);
    }
}

impl From<Vec<u8>> for Frames {
    fn from(bytes: Vec<u8>) -> Self {
        let mut frames = Self::default();
        frames.push(bytes.into());
        frames.finish();
        frames
    }
}

impl Buf for Frames {
    fn remaining(&self) -> usize {
        self.len
    }

    fn chunk(&self) -> &[u8] {
        &self.front
    }

    fn advance(&mut self, mut count: usize) {
        self.len -= count;
        while count >= self.front.len() {
            count -= self.front.len();
            let Some(next) = self.whole.pop_front() else {
                self.front = Bytes::new();
                return;
            };
            self.front = next;
        }
        self.front.advance(count);
    }

    /// Without a copy where they came in one piece.
    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        if count <= self.front.len() {
            let bytes = self.front.slice(..count);
            self.advance(count);
            return bytes;
        }
        let mut bytes = vec![0; count];
        self.copy_to_slice(&mut bytes);
        bytes.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_length_are_one_body() {
        let all: Vec<u8> = (0..40_000u32).map(|i| i as u8).collect();
        let mut frames = Frames::default();
        let mut rest = &all[..];
        for len in [1, 2, 5_000, 3, 4_096, 0, 4_095, 20_000, 7].into_iter().cycle() {
            let (frame, after) = rest.split_at(rest.len().min(len));
            frames.push(Bytes::copy_from_slice(frame));
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        frames.finish();
        assert_eq!(frames.remaining(), all.len());
        let head = frames.copy_to_bytes(2);
        let across = frames.copy_to_bytes(12_000);
        let mut end = vec![0; frames.remaining()];
        frames.copy_to_slice(&mut end);
        assert_eq!([&head[..], &across, &end].concat(), all);
        assert!(!frames.has_remaining() && frames.chunk().is_empty());
    }

    #[test]
    fn a_body_is_taken_apart_and_put_together_in_place() {
        let mut frames = Frames::default();
        [[1; 5_000], [2; 5_000], [3; 5_000]]
            .iter()
            .for_each(|part| frames.push(part.to_vec().into()));
        frames.finish();
        let place = frames.chunk().as_ptr();
        let mut first = frames.split_to(7_000);
        assert_eq!(
            (first.remaining(), frames.remaining(), first.chunk().as_ptr()),
            (7_000, 8_000, place)
        );
        let last = frames.split_to(8_000);
        first.append(last);
        let all = first.copy_to_bytes(15_000);
        assert!(
            [(4_999, 1), (5_000, 2), (9_999, 2), (10_000, 3)]
                .iter()
                .all(|&(at, byte)| all[at] == byte)
        );
        assert_eq!((first.remaining(), frames.remaining()), (0, 0));
    }

    #[test]
    fn many_short_pieces_take_one_buffer() {
        let mut frames = Frames::default();
        (0..4_000).for_each(|_| frames.push(Bytes::from_static(b"x")));
        frames.finish();
        assert_eq!((frames.whole.len(), frames.chunk().len()), (0, 4_000));
    }
}

//! Frames in a byte stream: cutting them out on the way in, appending them on the way out.
//!
//! [`FrameBuffer`] takes bytes in whatever pieces they arrive and yields decoded frames. Payloads do
//! not pass through it: it knows how much of one is still to come, gives up what of it was read by
//! accident, and lets the rest be read straight to its place. The invariant: at most one payload is
//! pending, and while it is, no frame is yielded.

use zerocopy::{FromBytes, IntoBytes};

use crate::protocol::wire::{Body, DecodeError, FrameHeader, Kind, Message, decode};

/// Bytes of a frame header.
pub const HEADER_LEN: usize = size_of::<FrameHeader>();
/// Capacity of a [`FrameBuffer`]: the longest header and body, and as much again so that a long
/// frame does not force a read per frame.
pub const BUFFER_LEN: usize = 64 * 1024;

/// Appends a frame without its payload. The caller keeps within
/// [`BODY_MAX`](crate::protocol::wire::BODY_MAX) and [`PAYLOAD_MAX`](crate::protocol::wire::PAYLOAD_MAX).
pub fn encode<B: Body>(out: &mut Vec<u8>, body: &B, tail: &[u8], payload_len: usize) {
    let header = FrameHeader::new(B::KIND, size_of::<B>() + tail.len(), payload_len);
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(body.as_bytes());
    out.extend_from_slice(tail);
}

/// A frame without its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// What it is.
    pub kind: Kind,
    /// The undecoded body: fixed part and tail.
    pub body: &'a [u8],
    /// The decoded body.
    pub message: Message<'a>,
    /// Bytes of payload that follow.
    pub payload_len: usize,
}

/// The receive side of one byte stream.
pub struct FrameBuffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    payload_left: usize,
}

impl Default for FrameBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl FrameBuffer {
    /// An empty buffer of [`BUFFER_LEN`] bytes.
    pub fn new() -> Self {
        let bytes = vec![0; BUFFER_LEN].into_boxed_slice();
        Self { bytes, start: 0, end: 0, payload_left: 0 }
    }

    /// Room for at most `limit` bytes of the stream; never empty once
    /// [`FrameBuffer::next_frame`] has said there is no complete frame.
    pub fn spare(&mut self, limit: usize) -> &mut [u8] {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let limit = limit.min(self.bytes.len() - self.end);
        &mut self.bytes[self.end..self.end + limit]
    }

    /// The first `n` bytes of [`FrameBuffer::spare`] hold stream bytes now.
    pub fn filled(&mut self, n: usize) {
        self.end += n;
        assert!(self.end <= self.bytes.len(), "more bytes announced than there was room for");
    }

    /// The next frame, if its header and body are here. While a payload is pending there is none.
    ///
    /// # Errors
    /// The stream is no stream of frames; it cannot be resumed.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, DecodeError> {
        if self.payload_left > 0 {
            return Ok(None);
        }
        let Some((frame, len)) = parse(&self.bytes[self.start..self.end])? else {
            return Ok(None);
        };
        self.start += len;
        self.payload_left = frame.payload_len;
        Ok(Some(frame))
    }

    /// Payload bytes of the last frame that have not been taken yet.
    pub fn payload_left(&self) -> usize {
        self.payload_left
    }

    /// Moves payload bytes that are in the buffer to their place. Returns how many.
    pub fn take_payload(&mut self, place: &mut [u8]) -> usize {
        let n = self.payload_here().min(place.len());
        place[..n].copy_from_slice(&self.bytes[self.start..self.start + n]);
        self.consume(n);
        n
    }

    /// Drops payload bytes that are in the buffer.
    pub fn skip_payload(&mut self) {
        self.consume(self.payload_here());
    }

    /// `n` payload bytes were read from the stream directly to their place. The buffer is empty.
    pub fn payload_read(&mut self, n: usize) {
        debug_assert!(n == 0 || (self.start == self.end && n <= self.payload_left));
        self.payload_left -= n;
    }

    /// Bytes read that no frame or payload has taken yet.
    pub(crate) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// True if the stream ends inside a frame when it ends here.
    pub fn mid_frame(&self) -> bool {
        self.start < self.end || self.payload_left > 0
    }

    fn payload_here(&self) -> usize {
        self.payload_left.min(self.end - self.start)
    }

    fn consume(&mut self, payload: usize) {
        self.start += payload;
        self.payload_left -= payload;
    }
}

/// The frame `bytes` begins with, and the length of its header and body; `None` if more is needed.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, DecodeError> {
    let Ok((header, rest)) = FrameHeader::ref_from_prefix(bytes) else { return Ok(None) };
    let kind = header.check()?;
    let Some(body) = rest.get(..header.body_len.get().into()) else { return Ok(None) };
    let message = decode(kind, body)?;
    let payload_len = header.payload_len.get() as usize;
    Ok(Some((Frame { kind, body, message, payload_len }, HEADER_LEN + body.len())))
}

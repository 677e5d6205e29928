//! Messages out of a call's body: each behind five bytes, which say whether it is compressed and how long it is.

use std::sync::Arc;

use bytes::Buf as _;
use http_body_util::BodyExt as _;
use hyper::HeaderMap;
use hyper::body::Incoming;

use crate::gateway::App;
use crate::http::body::{Body, Encoding, inflate, too_large};
use crate::http::frames::Frames;
use crate::http::held::Held;
use crate::protocol::problem::Problem;

/// Bytes before a message.
pub(super) const PREFIX: usize = 5;

/// Reads the messages of one call. What has arrived of a message stays here if a call of [`Reader::next`] is given up.
pub(super) struct Reader {
    app: Arc<App>,
    body: Incoming,
    arrived: Arrived,
    held: Held,
}

/// What has arrived of a call and is not read yet.
struct Arrived {
    encoding: Encoding,
    /// Bytes of a message.
    most: u64,
    frames: Frames,
    /// Of the message that comes: whether it is compressed, and its length.
    prefix: Option<(bool, usize)>,
}

impl Reader {
    /// # Errors
    /// The call has an encoding that this gateway does not read.
    pub(super) fn new(
        app: &Arc<App>,
        headers: &HeaderMap,
        body: Incoming,
    ) -> Result<Self, Problem> {
        let encoding = Encoding::of(headers, "grpc-encoding")?;
        let (app, held) = (Arc::clone(app), Held::new(app));
        let arrived = Arrived::new(encoding, app.limits.body_bytes);
        Ok(Self { app, body, arrived, held })
    }

    /// The next message; `None` behind the last.
    pub(super) async fn next(&mut self) -> Result<Option<Body>, Problem> {
        loop {
            if let Some((is_compressed, message)) = self.arrived.whole()? {
                let held = std::mem::replace(&mut self.held, Held::new(&self.app));
                let body = Body { frames: message, held };
                return match is_compressed {
                    true => {
                        Box::pin(inflate(&self.app, body, self.arrived.encoding)).await.map(Some)
                    }
                    false => Ok(Some(body)),
                };
            }
            let Some(frame) = self.body.frame().await else {
                return self.arrived.end().map(|()| None);
            };
            let broken = |error| Problem::invalid(format!("the body is broken: {error}"));
            if let Ok(data) = frame.map_err(broken)?.into_data() {
                self.held.grow(data.len())?;
                self.arrived.frames.push(data);
            }
        }
    }
}

impl Arrived {
    fn new(encoding: Encoding, most: u64) -> Self {
        Self { encoding, most, frames: Frames::default(), prefix: None }
    }

    /// No more comes.
    fn end(&self) -> Result<(), Problem> {
        match self.prefix.is_none() && !self.frames.has_remaining() {
            true => Ok(()),
            false => Err(Problem::invalid("the call ends within a message")),
        }
    }

    /// A message that is all there, and whether it is compressed.
    fn whole(&mut self) -> Result<Option<(bool, Frames)>, Problem> {
        if self.prefix.is_none() && self.frames.remaining() >= PREFIX {
            self.frames.finish();
            let is_compressed = self.frames.get_u8() != 0;
            let length = self.frames.get_u32();
            if u64::from(length) > self.most {
                return Err(too_large(self.most));
            }
            if is_compressed && self.encoding == Encoding::Identity {
                return Err(Problem::invalid(
                    "a message is compressed and grpc-encoding says not how",
                ));
            }
            self.prefix = Some((is_compressed, length as usize));
        }
        let is_there = |prefix: &mut (bool, usize)| self.frames.remaining() >= prefix.1;
        let Some((is_compressed, length)) = self.prefix.take_if(is_there) else { return Ok(None) };
        self.frames.finish();
        Ok(Some((is_compressed, self.frames.split_to(length))))
    }
}

/// A message behind its five bytes.
pub(super) fn framed(message: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(PREFIX + message.len());
    frame.resize(PREFIX, 0);
    frame.extend_from_slice(message);
    seal(&mut frame);
    frame
}

/// Says in the first five bytes, which are zero, how long the message behind them is.
pub(super) fn seal(frame: &mut [u8]) {
    let length = (frame.len() - PREFIX) as u32;
    frame[1..PREFIX].copy_from_slice(&length.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// The messages of a call that comes in pieces of `piece` bytes, and how it ends.
    fn read(call: &[u8], piece: usize) -> (Vec<Vec<u8>>, Result<(), Problem>) {
        let mut arrived = Arrived::new(Encoding::Identity, 5_000);
        let mut messages = Vec::new();
        for piece in call.chunks(piece) {
            arrived.frames.push(Bytes::copy_from_slice(piece));
            while let Some((is_compressed, mut message)) = arrived.whole().unwrap() {
                assert!(!is_compressed);
                messages.push(message.copy_to_bytes(message.remaining()).to_vec());
            }
        }
        (messages, arrived.end())
    }

    #[test]
    fn messages_are_read_whole_however_they_come() {
        let messages = vec![vec![1, 2, 3], vec![], vec![4; 5_000], vec![5]];
        let call: Vec<u8> = messages.iter().flat_map(|message| framed(message)).collect();
        for piece in [1, 3, 5, 8, 9, 4_096, 4_999, call.len()] {
            let (found, end) = read(&call, piece);
            assert!(found == messages && end.is_ok(), "{piece}: {} {end:?}", found.len());
        }
    }

    #[test]
    fn a_call_ends_between_messages_only() {
        let call = framed(&[1, 2]);
        for most in 1..call.len() {
            let (found, end) = read(&call[..most], 1);
            assert_eq!(found.len(), 0);
            assert!(end.unwrap_err().text.contains("within a message"), "{most} bytes");
        }
        assert_eq!(read(&[], 1), (vec![], Ok(())));
    }

    #[test]
    fn what_cannot_be_read_is_refused_by_its_first_bytes() {
        let refused = |prefix: [u8; PREFIX], encoding| {
            let mut arrived = Arrived::new(encoding, 5_000);
            arrived.frames.push(Bytes::copy_from_slice(&prefix));
            arrived.whole().map(|_| ()).map_err(|problem| problem.text)
        };
        assert_eq!(refused([0, 0, 0, 0x13, 0x88], Encoding::Identity), Ok(()), "5,000 bytes");
        let large = refused([0, 0, 0, 0x13, 0x89], Encoding::Identity).unwrap_err();
        assert!(large.contains("more than 5000 bytes"), "{large}");
        assert_eq!(refused([1, 0, 0, 0, 9], Encoding::Gzip), Ok(()));
        let how = refused([1, 0, 0, 0, 9], Encoding::Identity).unwrap_err();
        assert!(how.contains("says not how"), "{how}");
    }
}

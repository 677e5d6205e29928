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
    encoding: Encoding,
    arrived: Frames,
    held: Held,
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
        Ok(Self { app, body, encoding, arrived: Frames::default(), held, prefix: None })
    }

    /// The next message; `None` behind the last.
    pub(super) async fn next(&mut self) -> Result<Option<Body>, Problem> {
        loop {
            if let Some((is_compressed, message)) = self.whole()? {
                let held = std::mem::replace(&mut self.held, Held::new(&self.app));
                let body = Body { frames: message, held };
                return match is_compressed {
                    true => Box::pin(inflate(&self.app, body, self.encoding)).await.map(Some),
                    false => Ok(Some(body)),
                };
            }
            let Some(frame) = self.body.frame().await else {
                let is_between = self.prefix.is_none() && !self.arrived.has_remaining();
                let cut = || Problem::invalid("the call ends within a message");
                return if is_between { Ok(None) } else { Err(cut()) };
            };
            let broken = |error| Problem::invalid(format!("the body is broken: {error}"));
            if let Ok(data) = frame.map_err(broken)?.into_data() {
                self.held.grow(data.len())?;
                self.arrived.push(data);
            }
        }
    }

    /// A message that is all there.
    fn whole(&mut self) -> Result<Option<(bool, Frames)>, Problem> {
        if self.prefix.is_none() && self.arrived.remaining() >= PREFIX {
            self.arrived.finish();
            let is_compressed = self.arrived.get_u8() != 0;
            let length = self.arrived.get_u32();
            let most = self.app.limits.body_bytes;
            if u64::from(length) > most {
                return Err(too_large(most));
            }
            if is_compressed && self.encoding == Encoding::Identity {
                return Err(Problem::invalid(
                    "a message is compressed and grpc-encoding says not how",
                ));
            }
            self.prefix = Some((is_compressed, length as usize));
        }
        let is_there = |prefix: &mut (bool, usize)| self.arrived.remaining() >= prefix.1;
        let Some((is_compressed, length)) = self.prefix.take_if(is_there) else { return Ok(None) };
        self.arrived.finish();
        Ok(Some((is_compressed, self.arrived.split_to(length))))
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

//! The body of an answer: all of it at once, or messages as they come; and trailers where the protocol has them.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Outbound {
    whole: Option<Bytes>,
    messages: Option<mpsc::Receiver<Bytes>>,
    trailers: Option<HeaderMap>,
}

impl Outbound {
    pub(crate) fn whole(bytes: Bytes) -> Self {
        let whole = Some(bytes).filter(|bytes| !bytes.is_empty());
        Self { whole, messages: None, trailers: None }
    }

    pub(crate) fn messages(messages: mpsc::Receiver<Bytes>) -> Self {
        Self { whole: None, messages: Some(messages), trailers: None }
    }

    pub(crate) fn with_trailers(self, trailers: HeaderMap) -> Self {
        Self { trailers: Some(trailers), ..self }
    }
}

impl Body for Outbound {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(bytes) = self.whole.take() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        if let Some(messages) = &mut self.messages {
            match messages.poll_recv(context) {
                Poll::Ready(Some(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Poll::Ready(None) => self.messages = None,
                Poll::Pending => return Poll::Pending,
            }
        }
        let trailers = self.trailers.take();
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.whole.is_none() && self.messages.is_none() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        if self.messages.is_some() || self.trailers.is_some() {
            return SizeHint::default();
        }
        SizeHint::with_exact(self.whole.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

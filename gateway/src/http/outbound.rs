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

#[cfg(test)]
mod tests {
    use super::*;

    /// The frames as the connection gets them: bytes, or `None` for trailers. Whether the end is known before each is asked for.
    fn frames(mut body: Outbound) -> (Vec<Option<Bytes>>, Vec<bool>) {
        let mut context = Context::from_waker(std::task::Waker::noop());
        let (mut frames, mut ends) = (Vec::new(), vec![body.is_end_stream()]);
        while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut context) {
            frames.push(frame.into_data().ok());
            ends.push(body.is_end_stream());
        }
        (frames, ends)
    }

    #[test]
    fn a_body_ends_behind_its_last_part() {
        let bytes = Bytes::from_static;
        let trailers = HeaderMap::new;
        assert_eq!(frames(Outbound::whole(bytes(b""))), (vec![], vec![true]));
        assert_eq!(
            frames(Outbound::whole(bytes(b"ab"))),
            (vec![Some(bytes(b"ab"))], vec![false, true])
        );
        let both = Outbound::whole(bytes(b"ab")).with_trailers(trailers());
        assert_eq!(frames(both), (vec![Some(bytes(b"ab")), None], vec![false, false, true]));
        let (sender, receiver) = mpsc::channel(2);
        ["a", "b"].iter().for_each(|part| sender.try_send(bytes(part.as_bytes())).unwrap());
        drop(sender);
        let (said, ends) = frames(Outbound::messages(receiver).with_trailers(trailers()));
        assert_eq!(said, [Some(bytes(b"a")), Some(bytes(b"b")), None]);
        assert_eq!(ends, [false, false, false, true]);
    }

    #[test]
    fn its_length_is_said_where_nothing_else_follows() {
        let whole = || Outbound::whole(Bytes::from_static(b"abc"));
        assert_eq!(whole().size_hint().exact(), Some(3));
        assert_eq!(whole().with_trailers(HeaderMap::new()).size_hint().exact(), None);
        let messages = Outbound::messages(mpsc::channel(1).1);
        assert_eq!((messages.size_hint().exact(), messages.is_end_stream()), (None, false));
    }
}

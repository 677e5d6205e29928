//! Which version of HTTP a connection speaks: that of HTTP/2 begins with words that are no request of HTTP/1.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What a client of HTTP/2 sends first.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection of which the first bytes have been read, and are read again.
pub(super) struct Begun<S> {
    first: Bytes,
    stream: S,
}

/// Reads until it is certain whether the connection is one of HTTP/2.
pub(super) async fn begin<S: AsyncRead + Unpin>(mut stream: S) -> io::Result<(bool, Begun<S>)> {
    let mut bytes = [0; PREFACE.len()];
    let mut first = ReadBuf::new(&mut bytes);
    let more = |context: &mut Context<'_>| {
        let mut known = None;
        while first.remaining() > 0
            && PREFACE.starts_with(first.filled())
            && known.replace(first.filled().len()) != Some(first.filled().len())
        {
            ready!(Pin::new(&mut stream).poll_read(context, &mut first))?;
        }
        Poll::Ready(io::Result::Ok(()))
    };
    poll_fn(more).await?;
    let is_http2 = first.filled() == PREFACE;
    let first = Bytes::copy_from_slice(first.filled());
    Ok((is_http2, Begun { first, stream }))
}

impl<S: AsyncRead + Unpin> AsyncRead for Begun<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, into);
        }
        let count = self.first.len().min(into.remaining());
        into.put_slice(&self.first[..count]);
        self.first.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Begun<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufWriter, duplex};
    use tokio::runtime::Builder;

    use super::*;

    /// Gives its bytes, at most this number at a time, and then ends.
    struct Pieces(&'static [u8], usize);

    impl AsyncRead for Pieces {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            into: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            assert!(into.remaining() > 0, "a read that takes nothing may wait for ever");
            let count = self.1.min(self.0.len()).min(into.remaining());
            into.put_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Poll::Ready(Ok(()))
        }
    }

    /// Whether it is HTTP/2, and all that is read of it afterwards.
    fn begun(bytes: &'static [u8], at_a_time: usize) -> (bool, Vec<u8>) {
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (is_http2, mut begun) = begin(Pieces(bytes, at_a_time)).await.unwrap();
            let mut all = Vec::new();
            loop {
                let mut some = [0; 5];
                let mut into = ReadBuf::new(&mut some);
                poll_fn(|context| Pin::new(&mut begun).poll_read(context, &mut into))
                    .await
                    .unwrap();
                if into.filled().is_empty() {
                    return (is_http2, all);
                }
                all.extend_from_slice(into.filled());
            }
        })
    }

    #[test]
    fn what_was_read_to_tell_the_versions_apart_is_read_again() {
        let cases: [(&[u8], bool); 6] = [
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04", true),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", true),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r", false),
            (b"POST /v2/models/m/infer HTTP/1.1\r\n\r\n", false),
            (b"PRI", false),
            (b"", false),
        ];
        for (bytes, is_http2) in cases {
            for at_a_time in [1, 7, 100] {
                assert_eq!(begun(bytes, at_a_time), (is_http2, bytes.to_vec()), "{at_a_time}");
            }
        }
    }

    /// What is behind may never come.
    #[test]
    fn no_more_is_read_than_tells_the_versions_apart() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let (is_http2, begun) = runtime.block_on(begin(Pieces(b"PRINT", 1))).unwrap();
        assert_eq!((is_http2, &begun.first[..]), (false, &b"PRIN"[..]));
    }

    /// Whichever way a server writes.
    #[test]
    fn what_is_written_goes_to_the_connection() {
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (stream, mut client) = duplex(64);
            let first = Bytes::from_static(b"read first");
            let mut begun = BufWriter::new(Begun { first, stream });
            begun.write_all(b"one, ").await.unwrap();
            begun.flush().await.unwrap();
            let parts = [IoSlice::new(b"two, "), IoSlice::new(b"three")];
            assert!(begun.get_ref().is_write_vectored());
            let written = begun.get_mut().write_vectored(&parts).await.unwrap();
            assert_eq!(written, 10);
            begun.shutdown().await.unwrap();
            let mut all = String::new();
            client.read_to_string(&mut all).await.unwrap();
            assert_eq!(all, "one, two, three");
        });
    }
}

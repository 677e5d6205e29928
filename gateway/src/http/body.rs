//! A request's body as it arrives: bounded in length, in memory and in time, and inflated if it is compressed.

use std::future::{Future, poll_fn};
use std::io::{self, Read};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use bytes::Buf;
use flate2::bufread::{GzDecoder, ZlibDecoder};
use http_body_util::BodyExt as _;
use hyper::HeaderMap;
use hyper::body::{Body as _, Incoming};
use hyper::header::{AsHeaderName, CONTENT_ENCODING};
use tokio::{task, time};

use super::frames::Frames;
use super::held::Held;
use crate::gateway::App;
use crate::protocol::problem::{Kind, Problem};

/// Bytes inflated in one step.
const STEP: usize = 64 << 10;
/// Steps after which other connections have their turn.
const STEPS: usize = 16;

/// A body that has arrived.
pub(crate) struct Body {
    pub(crate) frames: Frames,
    /// Given back with the body.
    pub(crate) held: Held,
}

/// Reads a body.
pub(crate) async fn read(
    app: &Arc<App>,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<Body, Problem> {
    read_as(app, Encoding::of(headers, CONTENT_ENCODING)?, body).await
}

/// Reads a body of this encoding.
pub(crate) async fn read_as(
    app: &Arc<App>,
    encoding: Encoding,
    body: Incoming,
) -> Result<Body, Problem> {
    let body = in_time(app, pin!(collect(app, body))).await??;
    match encoding {
        Encoding::Identity => Ok(body),
        encoding => Box::pin(inflate(app, body, encoding)).await,
    }
}

/// What arrives, within the time that a body has. What is there already needs no timer.
pub(crate) async fn in_time<T>(
    app: &App,
    mut arrives: Pin<&mut impl Future<Output = T>>,
) -> Result<T, Problem> {
    let first = poll_fn(|context| Poll::Ready(arrives.as_mut().poll(context))).await;
    if let Poll::Ready(there) = first {
        return Ok(there);
    }
    time::timeout(app.limits.body, arrives).await.map_err(|_| {
        let seconds = app.limits.body.as_secs();
        Problem::new(Kind::Slow, format!("the body did not arrive within {seconds} s"))
    })
}

async fn collect(app: &Arc<App>, mut body: Incoming) -> Result<Body, Problem> {
    let most = app.limits.body_bytes;
    if body.size_hint().lower() > most {
        return Err(too_large(most));
    }
    let mut held = Held::new(app);
    let mut frames = Frames::default();
    while let Some(frame) = body.frame().await {
        let broken = |error| Problem::invalid(format!("the body is broken: {error}"));
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        has_room(&frames, data.len(), most)?;
        held.grow(data.len())?;
        frames.push(data);
    }
    frames.finish();
    Ok(Body { frames, held })
}

/// A body of at most `most` bytes may have this number more behind these.
fn has_room(frames: &Frames, more: usize, most: u64) -> Result<(), Problem> {
    let bytes = (frames.remaining() + more) as u64;
    if bytes > most { Err(too_large(most)) } else { Ok(()) }
}

pub(crate) fn too_large(most: u64) -> Problem {
    let fix = "send fewer rows in one request, or start the gateway with a larger --body-mib";
    Problem::new(Kind::TooLarge, format!("the body has more than {most} bytes: {fix}"))
}

pub(crate) async fn inflate(
    app: &Arc<App>,
    body: Body,
    encoding: Encoding,
) -> Result<Body, Problem> {
    let mut inflater = Inflater::new(encoding, body.frames);
    let most = app.limits.body_bytes;
    let mut held = Held::new(app);
    let mut whole = Vec::new();
    for step in 1.. {
        held.grow(STEP)?;
        if inflater.step(&mut whole, most)? {
            break;
        }
        if step % STEPS == 0 {
            task::yield_now().await;
        }
    }
    let mut frames = Frames::default();
    frames.push(whole.into());
    frames.finish();
    Ok(Body { frames, held })
}

/// How a body is compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Encoding {
    Identity,
    Gzip,
    /// As the word means in HTTP: with zlib's header.
    Deflate,
}

impl Encoding {
    /// Of the header of this name.
    pub(crate) fn of(headers: &HeaderMap, name: impl AsHeaderName) -> Result<Self, Problem> {
        let Some(value) = headers.get(name) else { return Ok(Self::Identity) };
        match value.to_str().unwrap_or_default() {
            "" | "identity" => Ok(Self::Identity),
            "gzip" | "x-gzip" => Ok(Self::Gzip),
            "deflate" => Ok(Self::Deflate),
            other => {
                let text = format!("the body's encoding is {other:?}: use gzip, deflate or none");
                Err(Problem::new(Kind::Encoding, text))
            }
        }
    }
}

/// Inflates step by step, so that a little that becomes a lot is noticed when it does.
enum Inflater<B: Buf> {
    Gzip(GzDecoder<bytes::buf::Reader<B>>),
    Zlib(ZlibDecoder<bytes::buf::Reader<B>>),
}

impl<B: Buf> Inflater<B> {
    fn new(encoding: Encoding, compressed: B) -> Self {
        match encoding {
            Encoding::Gzip => Self::Gzip(GzDecoder::new(compressed.reader())),
            Encoding::Deflate | Encoding::Identity => {
                Self::Zlib(ZlibDecoder::new(compressed.reader()))
            }
        }
    }

    /// Inflates some more; true when that was all.
    fn step(&mut self, whole: &mut Vec<u8>, most: u64) -> Result<bool, Problem> {
        let before = whole.len();
        let step = STEP as u64;
        let read: io::Result<usize> = match self {
            Self::Gzip(decoder) => decoder.take(step).read_to_end(whole),
            Self::Zlib(decoder) => decoder.take(step).read_to_end(whole),
        };
        read.map_err(|error| Problem::invalid(format!("the body cannot be inflated: {error}")))?;
        if whole.len() as u64 > most {
            return Err(too_large(most));
        }
        Ok(whole.len() - before < STEP)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};

    use super::*;

    fn inflated(encoding: Encoding, compressed: &[u8], most: u64) -> Result<Vec<u8>, Problem> {
        let mut inflater = Inflater::new(encoding, compressed);
        let mut whole = Vec::new();
        while !inflater.step(&mut whole, most)? {}
        Ok(whole)
    }

    /// One that comes in chunks says nowhere how long it is.
    #[test]
    fn the_limit_is_that_of_the_whole_body() {
        let mut frames = Frames::default();
        for (more, fits) in [(600, true), (400, true), (0, true), (1, false)] {
            assert_eq!(has_room(&frames, more, 1_000).is_ok(), fits, "{more}");
            frames.push(vec![0; more].into());
        }
    }

    #[test]
    fn both_compressions_are_read() {
        let text: Vec<u8> = (0..200_000u32).flat_map(u32::to_le_bytes).collect();
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&text).unwrap();
        let gzip = gzip.finish().unwrap();
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
        zlib.write_all(&text).unwrap();
        let zlib = zlib.finish().unwrap();
        assert_eq!(inflated(Encoding::Gzip, &gzip, 1 << 20).unwrap(), text);
        assert_eq!(inflated(Encoding::Deflate, &zlib, 1 << 20).unwrap(), text);
        for cut in [0, 5, 20, gzip.len() / 2, gzip.len() - 1] {
            let refused = inflated(Encoding::Gzip, &gzip[..cut], 1 << 20).unwrap_err();
            assert!(refused.text.contains("cannot be inflated"), "{cut}: {refused:?}");
        }
        assert!(inflated(Encoding::Deflate, b"no such thing", 1 << 20).is_err());
    }

    #[test]
    fn a_little_that_becomes_a_lot_is_refused_before_it_does() {
        let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
        (0..1_024).for_each(|_| bomb.write_all(&[0; 64 << 10]).unwrap());
        let bomb = bomb.finish().unwrap();
        assert!(bomb.len() < 100_000);
        let mut inflater = Inflater::new(Encoding::Gzip, &bomb[..]);
        let mut whole = Vec::new();
        let refused = loop {
            match inflater.step(&mut whole, 1 << 20) {
                Ok(all) => assert!(!all),
                Err(problem) => break problem,
            }
        };
        assert_eq!(refused.kind, Kind::TooLarge);
        assert!(whole.len() <= (1 << 20) + STEP, "{} bytes", whole.len());
    }
}

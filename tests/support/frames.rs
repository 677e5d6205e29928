//! HTTP/2 by hand, frame by frame: for what no client library would send.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// Kinds of frames.
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RESET: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const CONTINUATION: u8 = 9;
/// Flags.
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Longer than any patience of a gateway.
const BOUND: Duration = Duration::from_secs(60);

/// A connection.
pub(crate) struct Frames(TcpStream);

impl Frames {
    /// Connects, with these settings: pairs of a number and a value.
    pub(crate) fn connect(addr: &str, settings: &[(u16, u32)]) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(BOUND)).unwrap();
        stream.set_write_timeout(Some(BOUND)).unwrap();
        let setting = |&(number, value): &(u16, u32)| {
            [&number.to_be_bytes()[..], &value.to_be_bytes()].concat()
        };
        let settings: Vec<u8> = settings.iter().flat_map(setting).collect();
        let mut frames = Self(stream);
        frames.0.write_all(PREFACE).unwrap();
        assert!(frames.send(SETTINGS, 0, 0, &settings));
        frames
    }

    /// Whether it could be sent: the gateway may have closed the connection.
    pub(crate) fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        self.0.write_all(&frame(kind, flags, stream, payload)).is_ok()
    }

    /// Bytes of several frames.
    pub(crate) fn send_all(&mut self, frames: &[u8]) -> bool {
        self.0.write_all(frames).is_ok()
    }

    /// The next frame: kind, stream and payload; `None` once the gateway has closed the connection.
    pub(crate) fn next(&mut self) -> Option<(u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.read(&mut head)?;
        let [a, b, c, kind, _, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.read(&mut payload)?;
        Some((kind, u32::from_be_bytes(stream), payload))
    }

    fn read(&mut self, bytes: &mut [u8]) -> Option<()> {
        match self.0.read_exact(bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("it stays open"),
            read => read.ok(),
        }
    }

    /// Reads until the gateway has closed the connection; the code of its farewell, if it sends one.
    pub(crate) fn farewell(mut self) -> Option<u32> {
        let mut code = None;
        while let Some((kind, _, payload)) = self.next() {
            if kind == GOAWAY {
                code = payload.get(4..8).map(|code| u32::from_be_bytes(code.try_into().unwrap()));
            }
        }
        code
    }
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    [&[a, b, c, kind, flags][..], &stream.to_be_bytes(), payload].concat()
}

/// The headers of a request, without compression. `is_post`: else a GET.
pub(crate) fn head(is_post: bool, path: &str) -> Vec<u8> {
    let method = if is_post { 0x83 } else { 0x82 };
    let length = u8::try_from(path.len()).unwrap();
    assert!(length < 127, "a longer length has another form");
    [&[method, 0x86, 0x01, 1, b'x', 0x04, length], path.as_bytes()].concat()
}

/// A header of one's own with this value, without compression.
pub(crate) fn header(name: &str, value_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0, u8::try_from(name.len()).unwrap()];
    bytes.extend_from_slice(name.as_bytes());
    // The length: all ones in seven bits, and the rest seven bits at a time.
    bytes.push(0x7f);
    let mut rest = value_bytes - 127;
    while rest >= 128 {
        bytes.push((rest % 128) as u8 | 0x80);
        rest /= 128;
    }
    bytes.push(rest as u8);
    bytes.resize(bytes.len() + value_bytes, b'v');
    bytes
}

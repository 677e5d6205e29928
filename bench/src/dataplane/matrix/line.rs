//! What the driver and its responders say to each other: one JSON object a line, of bounded length.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::report::Measured;

/// Longest line, bytes.
const LINE_MAX: u64 = 64 * 1024;

/// From a responder.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Said {
    /// It has come. The first line.
    Hello {
        /// What to call it.
        name: String,
    },
    /// Its objects can be pulled here.
    Serving {
        /// With an unspecified IP: the one this connection comes from.
        addr: SocketAddr,
    },
    /// What an order came to, or why to nothing.
    Done(Result<Measured, String>),
}

/// From the driver.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Order {
    /// Offer objects. The first order.
    Serve {
        /// Number of this responder.
        number: u16,
        /// How many.
        objects: u32,
        /// Bytes of each.
        bytes: u32,
    },
    /// Pull another responder's objects.
    Pull {
        /// Where it serves them.
        addr: SocketAddr,
        /// Its number.
        number: u16,
        /// Length of each of the two measurements.
        seconds: f64,
    },
    /// It is over.
    End,
}

/// One end.
pub(super) struct Line {
    reader: BufReader<TcpStream>,
}

impl Line {
    /// Waits for no line longer than `patience`.
    pub(super) fn new(stream: TcpStream, patience: Duration) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self { reader: BufReader::new(stream) })
    }

    pub(super) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.reader.get_ref().peer_addr()
    }

    pub(super) fn say(&mut self, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.reader.get_mut().write_all(&line)
    }

    pub(super) fn hear<M: DeserializeOwned>(&mut self) -> io::Result<M> {
        let mut line = Vec::new();
        self.reader.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)?;
        match line.last() {
            Some(b'\n') => Ok(serde_json::from_slice(&line)?),
            Some(_) if line.len() as u64 == LINE_MAX => Err(io::ErrorKind::InvalidData.into()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    /// A line's end, and the raw socket it hears.
    fn pair() -> (Line, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let raw = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Line::new(listener.accept().unwrap().0, Duration::from_secs(10)).unwrap(), raw)
    }

    #[test]
    fn what_is_said_is_heard() {
        let (mut line, raw) = pair();
        let mut far = Line::new(raw, Duration::from_secs(10)).unwrap();
        let order = Order::Pull { addr: "10.0.0.1:7".parse().unwrap(), number: 3, seconds: 0.5 };
        far.say(&order).unwrap();
        far.say(&Order::End).unwrap();
        assert_eq!(line.hear::<Order>().unwrap(), order);
        assert_eq!(line.hear::<Order>().unwrap(), Order::End);
    }

    #[test]
    fn other_bytes_half_a_line_and_an_endless_one_are_errors() {
        let endless = vec![b' '; LINE_MAX as usize + 1];
        let cases: [(&[u8], io::ErrorKind); 4] = [
            (b"GET / HTTP/1.1\r\n", io::ErrorKind::InvalidData),
            (b"{\"hello\":{\"name\":1}}\n", io::ErrorKind::InvalidData),
            (b"{\"hello\":", io::ErrorKind::UnexpectedEof),
            (&endless, io::ErrorKind::InvalidData),
        ];
        for (bytes, kind) in cases {
            let (mut line, mut raw) = pair();
            raw.write_all(bytes).unwrap();
            drop(raw);
            assert_eq!(line.hear::<Said>().unwrap_err().kind(), kind);
        }
    }
}

//! An HTTP/1.1 client that does as little as possible for the test, which sees what the gateway does.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// Longer than any gateway's patience.
const BOUND: Duration = Duration::from_secs(60);

/// A connection.
pub(crate) struct Http(BufReader<TcpStream>);

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.0 == name).map(|header| &header.1[..])
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The words of a problem.
    pub(crate) fn error(&self) -> String {
        self.json()["error"].as_str().unwrap_or_else(|| panic!("{self:?}")).to_owned()
    }
}

impl Http {
    pub(crate) fn connect(addr: &str) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(BOUND)).unwrap();
        Self(BufReader::new(stream))
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    /// Sends a request and does not wait for its answer.
    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) {
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\n{headers}content-length: {length}\r\n\r\n"
        );
        self.write(&[head.as_bytes(), body].concat());
    }

    /// Sends a request whose body comes in these pieces, each in a packet of its own as far as this side can say.
    pub(crate) fn send_chunked(&mut self, path: &str, headers: &str, pieces: &[&[u8]]) {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\n{headers}transfer-encoding: chunked\r\n\r\n"
        );
        self.write(head.as_bytes());
        for piece in pieces {
            let length = format!("{:x}\r\n", piece.len());
            self.write(&[length.as_bytes(), piece, b"\r\n"].concat());
        }
        self.write(b"0\r\n\r\n");
    }

    pub(crate) fn get(&mut self, path: &str) -> Answer {
        self.send("GET", path, "", b"");
        self.answer()
    }

    pub(crate) fn post(&mut self, path: &str, headers: &str, body: &[u8]) -> Answer {
        self.send("POST", path, headers, body);
        self.answer()
    }

    /// The next answer.
    pub(crate) fn answer(&mut self) -> Answer {
        let status = self.line();
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.expect("a status line");
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut answer = Answer { status, headers, body: Vec::new() };
        let length = answer.header("content-length").map_or(0, |text| text.parse().unwrap());
        answer.body.resize(length, 0);
        self.0.read_exact(&mut answer.body).unwrap();
        answer
    }

    /// Whether the gateway has closed the connection, once it has.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).is_ok() || rest.is_empty()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

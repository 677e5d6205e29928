//! A responder to `GET /metrics`: one thread, one connection at a time, each with bounds on its length and its time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::{Metric, text};

/// Bytes of a request that are read; more is refused.
const REQUEST_MAX: usize = 4096;
/// Pieces in which it may come: together with [`STEP`], how long one connection can hold up the next.
const PIECES_MAX: usize = 8;
/// How long a peer may take for a piece, or to take the answer in.
const STEP: Duration = Duration::from_millis(500);
/// The format that the answer names.
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Why metrics cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The address is not free.
    #[error(
        "cannot listen on {addr} for metrics ({source}); is another process there, or the address not this host's? \
         Change the key `metrics`, or the argument --metrics"
    )]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// There is no thread for it.
    #[error("cannot start a thread for metrics: {0}")]
    Spawn(io::Error),
}

/// Answers scrapes until it is dropped.
#[derive(Debug)]
pub struct MetricsServer {
    addr: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    /// Answers on `addr` with what `read` returns at each scrape. Port 0 takes a free one.
    ///
    /// # Errors
    /// See [`MetricsError`].
    pub fn start(
        addr: SocketAddr,
        read: impl Fn() -> Vec<Metric> + Send + 'static,
    ) -> Result<Self, MetricsError> {
        let taken = |source| MetricsError::Listen { addr, source };
        let listener = TcpListener::bind(addr).map_err(taken)?;
        let addr = listener.local_addr().map_err(taken)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("baton-metrics".into())
            .spawn(move || serve(&listener, &stopped, &read))
            .map_err(MetricsError::Spawn)?;
        tracing::info!("metrics at http://{addr}/metrics");
        Ok(Self { addr, stop, thread: Some(thread) })
    }

    /// Where it answers.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Wakes the thread, which waits for a connection.
        let awake = TcpStream::connect_timeout(&reachable(self.addr), STEP);
        if let (Some(thread), Ok(_)) = (self.thread.take(), awake)
            && thread.join().is_err()
        {
            tracing::error!("the metrics thread panicked; please report this");
        }
    }
}

/// Where a program of this host reaches a listener that listens everywhere.
fn reachable(mut addr: SocketAddr) -> SocketAddr {
    if addr.ip().is_unspecified() {
        let v4 = addr.is_ipv4();
        addr.set_ip(if v4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
    }
    addr
}

fn serve(listener: &TcpListener, stop: &AtomicBool, read: &impl Fn() -> Vec<Metric>) {
    for connection in listener.incoming() {
        if stop.load(Ordering::Acquire) {
            return;
        }
        // A peer that goes away, or a connection that could not be accepted, concerns no other scrape.
        if let Err(error) = connection.and_then(|peer| answer(peer, read)) {
            tracing::debug!(%error, "a scrape came to nothing");
        }
    }
}

fn answer(mut peer: TcpStream, read: &impl Fn() -> Vec<Metric>) -> io::Result<()> {
    peer.set_read_timeout(Some(STEP))?;
    peer.set_write_timeout(Some(STEP))?;
    let (status, format, body) = match path(&head(&mut peer)?) {
        Ok("/metrics") => ("200 OK", FORMAT, text(read())),
        Ok(_) => ("404 Not Found", "text/plain", "metrics are at /metrics\n".to_owned()),
        Err(status) => (status, "text/plain", "ask with GET /metrics\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {format}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    peer.write_all(head.as_bytes())?;
    peer.write_all(body.as_bytes())
}

/// The request up to the empty line, as far as it is allowed to go.
fn head(peer: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    for _ in 0..PIECES_MAX {
        let read = peer.read(&mut piece)?;
        head.extend_from_slice(&piece[..read]);
        let is_complete = head.windows(4).any(|end| end == b"\r\n\r\n");
        if is_complete || read == 0 || head.len() > REQUEST_MAX {
            return Ok(head);
        }
    }
    Err(ErrorKind::TimedOut.into())
}

/// What is asked for, without what follows a question mark.
///
/// # Errors
/// The status for a request that cannot be answered.
fn path(head: &[u8]) -> Result<&str, &'static str> {
    if head.len() > REQUEST_MAX {
        return Err("431 Request Header Fields Too Large");
    }
    let line = head.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let line = str::from_utf8(line).map_err(|_| "400 Bad Request")?;
    match line.split(' ').collect::<Vec<_>>()[..] {
        ["GET", target, version] if version.starts_with("HTTP/1.") => {
            Ok(target.split('?').next().unwrap_or_default())
        }
        [_, _, version] if version.starts_with("HTTP/1.") => Err("405 Method Not Allowed"),
        _ => Err("400 Bad Request"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> MetricsServer {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        MetricsServer::start(any, || vec![Metric::counter("x", "asked", "Asked", 5)])
            .expect("a free port")
    }

    fn ask(server: &MetricsServer, request: &[u8]) -> String {
        let mut peer = TcpStream::connect(server.addr()).expect("it listens");
        peer.write_all(request).expect("it reads");
        let mut answer = String::new();
        // A request that is too long is answered before it is read: the rest of it resets the connection.
        let _ = peer.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn a_scrape_is_answered_and_nothing_else() {
        let server = server();
        let answer = ask(&server, b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(
            answer.contains(FORMAT) && answer.contains("\nbaton_x_asked_total 5\n"),
            "{answer}"
        );
        let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.0\r\n\r\n", "405"),
            (b"BATN\x01\r\n\r\n", "400"),
            (b"GET /metrics\xff HTTP/1.1\r\n\r\n", "400"),
        ] {
            let answer = ask(&server, request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        }
    }

    #[test]
    fn a_request_has_bounds_and_the_next_one_is_answered() {
        let server = server();
        let long = [&b"GET /metrics HTTP/1.1\r\nX: "[..], &[b'x'; 2 * REQUEST_MAX]].concat();
        ask(&server, &long);
        // This one says nothing, and is given up.
        let silent = TcpStream::connect(server.addr()).expect("it listens");
        let answer = ask(&server, b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        drop(silent);
        assert_eq!(path(&[b'x'; REQUEST_MAX + 1]), Err("431 Request Header Fields Too Large"));
    }

    #[test]
    fn a_head_may_come_in_two_pieces() {
        const HEAD: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
        for cut in 1..HEAD.len() {
            // More would be waited for: the peer keeps the connection.
            let more = &b"one piece too many"[..];
            let mut peer = HEAD[..cut].chain(&HEAD[cut..]).chain(more);
            assert_eq!(head(&mut peer).unwrap(), HEAD, "cut at {cut}");
        }
    }

    #[test]
    fn an_address_in_use_is_an_error_and_free_again_afterwards() {
        let first = server();
        let addr = first.addr();
        let error = MetricsServer::start(addr, Vec::new).expect_err("it is in use");
        assert!(error.to_string().contains(&addr.to_string()), "{error}");
        drop(first);
        MetricsServer::start(addr, Vec::new).expect("free again");
    }
}

//! Connections: as many as there may be, each served by a task of the thread that had the fewest when it came.

use std::io::Write as _;
use std::net;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time;

use crate::counters::Count;
use crate::gateway::App;
use crate::http;

/// How long to wait before another try when the system accepts no connection.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// What a connection hears that is one too many.
const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: 58\r\n\
    retry-after: 1\r\nretry-after-ms: 500\r\nconnection: close\r\n\r\n\
    {\"error\":\"this gateway has as many connections as it may\"}";

/// A connection for another thread than that which accepted it.
pub(crate) type Handed = (Open, net::TcpStream);

/// How many connections each thread has, and the way to it. No more are on their way than there may be.
#[derive(Debug)]
pub(crate) struct Seats(Vec<(Arc<Count>, UnboundedSender<Handed>)>);

impl Seats {
    /// For this number of threads, and what others accept for each of them.
    pub(crate) fn new(threads: usize) -> (Self, Vec<UnboundedReceiver<Handed>>) {
        let (seats, handed) = (0..threads).map(|_| unbounded_channel()).unzip::<_, _, Vec<_>, _>();
        (Self(seats.into_iter().map(|way| (Arc::default(), way)).collect()), handed)
    }

    /// The thread that has the fewest gets one more: `own`, if it is one of these.
    fn take(&self, own: usize) -> Place {
        let fewest = |&thread: &usize| (self.0[thread].0.get(), thread != own);
        let thread = (0..self.0.len()).min_by_key(fewest).unwrap_or(own);
        let taken = Arc::clone(&self.0[thread].0);
        taken.add(1);
        Place { thread, taken }
    }
}

/// A connection's place on a thread, until it is dropped.
#[derive(Debug)]
struct Place {
    thread: usize,
    /// How many connections the thread has.
    taken: Arc<Count>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.taken.sub(1);
    }
}

/// Serves who connects, on thread `own` or another, until the gateway is asked to end and its connections have ended.
pub(crate) async fn serve(app: Arc<App>, own: usize, listener: TcpListener) {
    let mut connections = JoinSet::new();
    let mut drains = app.drains.clone();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => match Open::new(&app, own) {
                    Some(open) if open.place.thread == own => drop(connections.spawn(greet(open, stream))),
                    Some(open) => hand_over(open, stream),
                    None => refuse(&app, stream),
                },
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    app.counters.accepts_failed.add(1);
                    time::sleep(ACCEPT_AGAIN).await;
                }
            },
            Some(_) = connections.join_next() => {}
            _ = drains.changed() => break,
        }
    }
    drop(listener);
    finish(&app, connections).await;
}

/// Serves what other threads have accepted for this one, as long.
pub(crate) async fn serve_handed(app: Arc<App>, mut handed: UnboundedReceiver<Handed>) {
    let mut connections = JoinSet::new();
    let mut drains = app.drains.clone();
    loop {
        tokio::select! {
            Some((open, stream)) = handed.recv() => match TcpStream::from_std(stream) {
                Ok(stream) => drop(connections.spawn(greet(open, stream))),
                Err(error) => tracing::warn!(%error, "a connection cannot be waited for"),
            },
            Some(_) = connections.join_next() => {}
            _ = drains.changed() => break,
        }
    }
    drop(handed);
    finish(&app, connections).await;
}

/// To its thread, which closes it if it ends.
fn hand_over(open: Open, stream: TcpStream) {
    match stream.into_std() {
        Ok(stream) => {
            let app = Arc::clone(&open.app);
            let _ = app.seats.0[open.place.thread].1.send((open, stream));
        }
        Err(error) => tracing::warn!(%error, "a connection cannot be handed over"),
    }
}

/// Waits for the ends of connections, as long as it may.
async fn finish(app: &App, mut connections: JoinSet<()>) {
    let ended = async { while connections.join_next().await.is_some() {} };
    if time::timeout(app.limits.drain, ended).await.is_err() {
        tracing::warn!(
            connections = connections.len(),
            "closed before their requests were answered"
        );
    }
}

/// Serves a connection, over TLS if there is a certificate.
async fn greet(open: Open, stream: TcpStream) {
    // Answers are written at once, in one piece.
    let _ = stream.set_nodelay(true);
    let app = Arc::clone(&open.app);
    let Some(tls) = app.tls() else { return http::serve(open, stream).await };
    match time::timeout(app.limits.first_request, tls.accept(stream)).await {
        Ok(Ok(stream)) => http::serve(open, stream).await,
        Ok(Err(error)) => {
            tracing::debug!(%error, "a connection without TLS");
            app.counters.tls_refused.add(1);
        }
        Err(_) => app.counters.connections_idle.add(1),
    }
}

/// One of the connections that there may be; counted while it is open.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) app: Arc<App>,
    place: Place,
}

impl Open {
    fn new(app: &Arc<App>, accepting: usize) -> Option<Self> {
        let most = app.limits.connections as u64;
        let is_one = app.counters.connections.try_add(1, most);
        is_one.then(|| Self { app: Arc::clone(app), place: app.seats.take(accepting) })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.app.counters.connections.sub(1);
    }
}

/// Says so, if the client listens: it may be one that floods.
fn refuse(app: &App, stream: TcpStream) {
    app.counters.connections_refused.add(1);
    // Without a handshake there are no words for a client that expects TLS.
    if app.tls().is_none()
        && let Ok(mut stream) = stream.into_std()
    {
        let _ = stream.write(FULL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_as_many_connections_whoever_accepts_them() {
        let (seats, _handed) = Seats::new(3);
        let taken = [0, 0, 0, 2, 2, 2].map(|own| seats.take(own));
        let threads = |taken: &[Place]| taken.iter().map(|place| place.thread).collect::<Vec<_>>();
        let own = "the own thread first, if it has no more than others";
        assert_eq!(threads(&taken), [0, 1, 2, 2, 0, 1], "{own}");
        let [.., last] = taken;
        drop(last);
        assert_eq!([0, 0, 1].map(|own| seats.take(own).thread), [1; 3], "it has one less");
    }

    #[test]
    fn the_words_for_one_too_many_are_as_long_as_they_say() {
        let text = std::str::from_utf8(FULL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{}", body.len());
        assert!(head.lines().all(|line| !line.starts_with(' ')), "{head}");
    }
}

//! Connections: as many as there may be, each served by a task of the thread that accepted it.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time;

use crate::gateway::App;
use crate::http;

/// How long to wait before another try when the system accepts no connection.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// What a connection hears that is one too many.
const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: 58\r\n\
    retry-after: 1\r\nretry-after-ms: 500\r\nconnection: close\r\n\r\n\
    {\"error\":\"this gateway has as many connections as it may\"}";

/// Serves who connects, until the gateway is asked to end and its connections have ended.
pub(crate) async fn serve(app: Arc<App>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    let mut drains = app.drains.clone();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => match Open::new(&app) {
                    Some(open) => drop(connections.spawn(greet(open, stream))),
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
    let app = Arc::clone(&open.0);
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
pub(crate) struct Open(pub(crate) Arc<App>);

impl Open {
    fn new(app: &Arc<App>) -> Option<Self> {
        let most = app.limits.connections as u64;
        app.counters.connections.try_add(1, most).then(|| Self(Arc::clone(app)))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.counters.connections.sub(1);
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
    fn the_words_for_one_too_many_are_as_long_as_they_say() {
        let text = std::str::from_utf8(FULL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{}", body.len());
        assert!(head.lines().all(|line| !line.starts_with(' ')), "{head}");
    }
}

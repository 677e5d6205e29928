//! What a gateway's clients may take of it.

use std::time::Duration;

/// Bounds of one gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of a request's body, also after it was inflated.
    pub body_bytes: u64,
    /// Bytes of all requests and answers that are held at a time.
    pub held_bytes: u64,
    /// Bytes of a request's headers.
    pub head_bytes: u32,
    /// Open connections.
    pub connections: usize,
    /// Requests under way on one HTTP/2 connection.
    pub streams: u32,
    /// From a connection's beginning to its first request.
    pub first_request: Duration,
    /// From one request of a connection to the next, the headers of the next included.
    pub idle: Duration,
    /// For a body to arrive.
    pub body: Duration,
    /// For a client to take an answer.
    pub answer: Duration,
    /// For the requests that are under way when the gateway is asked to end.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 64 << 20,
            held_bytes: 512 << 20,
            head_bytes: 32 << 10,
            connections: 1_024,
            streams: 128,
            first_request: Duration::from_secs(10),
            idle: Duration::from_secs(60),
            body: Duration::from_secs(30),
            answer: Duration::from_secs(30),
            drain: Duration::from_secs(10),
        }
    }
}

//! HTTP/1.1 and HTTP/2 without TLS, on one port.

pub(crate) mod answer;
pub(crate) mod body;
pub(crate) mod calls;
pub(crate) mod connection;
pub(crate) mod frames;
pub(crate) mod held;
pub(crate) mod outbound;

pub(crate) use connection::serve;

//! HTTP/1.1 and HTTP/2 without TLS, on one port.

mod answer;
mod body;
mod calls;
mod connection;
mod held;

pub(crate) use connection::serve;

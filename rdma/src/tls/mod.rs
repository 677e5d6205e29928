//! Mutual TLS under the TCP transport.
//!
//! `credentials` (what this process shows, and whom it accepts), `stream` (one connection), `explain`
//! (what went wrong, in words that name the fix). Either all connections of a transport are encrypted
//! or none is; there is nothing in between and no falling back.

mod credentials;
mod explain;
mod stream;

pub use credentials::{Credentials, CredentialsError};
pub(crate) use explain::{TlsProblem, looks_like_tls};
pub(crate) use stream::TlsStream;

//! Mutual TLS under the TCP transport.
//!
//! `credentials` (what this process shows, and whom it accepts), `stream` (one connection), `explain`
//! (what went wrong, in words that name the fix). Either all connections of a transport are encrypted
//! or none is; there is nothing in between and no falling back. `absent` stands for all of it in a build without the feature `tls`.

#[cfg(not(feature = "tls"))]
mod absent;
#[cfg(feature = "tls")]
mod credentials;
#[cfg(feature = "tls")]
mod explain;
#[cfg(feature = "tls")]
mod stream;

#[cfg(not(feature = "tls"))]
pub use absent::{Credentials, CredentialsError};
#[cfg(not(feature = "tls"))]
pub(crate) use absent::{TlsProblem, TlsStream};
#[cfg(feature = "tls")]
pub use credentials::{Credentials, CredentialsError};
#[cfg(feature = "tls")]
pub(crate) use explain::TlsProblem;
#[cfg(feature = "tls")]
pub(crate) use stream::TlsStream;

/// True for the first bytes of a TLS record, which no frame begins with: its second byte is 0.
pub(crate) fn looks_like_tls(bytes: &[u8]) -> bool {
    matches!(bytes, [0x14..=0x17, 3, ..])
}

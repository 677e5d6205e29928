//! HTTP/1.1 and HTTP/2 without TLS, on one port.

pub(crate) mod answer;
pub(crate) mod body;
pub(crate) mod calls;
pub(crate) mod connection;
pub(crate) mod frames;
pub(crate) mod held;
pub(crate) mod outbound;
mod preface;

use hyper::HeaderMap;
use hyper::header::HeaderName;

use crate::protocol::deadline::{Stated, TIMEOUTS};
use crate::protocol::problem::Problem;

pub(crate) use connection::serve;

/// What a request's headers say of its time.
pub(crate) fn stated(headers: &HeaderMap) -> Result<Stated, Problem> {
    const NAMES: [HeaderName; 3] = [
        HeaderName::from_static(TIMEOUTS[0]),
        HeaderName::from_static(TIMEOUTS[1]),
        HeaderName::from_static(TIMEOUTS[2]),
    ];
    let value = |name| headers.get(name).map(|value| value.to_str().unwrap_or("no text"));
    Stated::of(NAMES.map(value))
}

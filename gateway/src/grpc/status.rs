//! How a call ended, as gRPC says it.

use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Response};

use bytes::Bytes;

use crate::http::answer::{Answer, OUTCOME};
use crate::http::outbound::Outbound;
use crate::protocol::problem::{Problem, millis};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// When gRPC's own retries may ask again.
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
const ACCEPTED: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// Trailers of a call that has its answer.
pub(super) fn ok(has_outcome: bool) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert(STATUS, HeaderValue::from_static("0"));
    if has_outcome {
        trailers.insert(OUTCOME, HeaderValue::from_static("completed"));
    }
    trailers
}

/// A call's headers and body.
pub(super) fn answer(body: Outbound) -> Answer {
    let mut answer = Response::new(body);
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(ACCEPTED, HeaderValue::from_static("identity,deflate,gzip"));
    answer
}

/// A call without an answer: headers that are its trailers.
pub(super) fn refused(problem: &Problem) -> Answer {
    let mut answer = answer(Outbound::whole(Bytes::new()));
    answer.headers_mut().extend(of(problem));
    answer
}

/// Trailers of a call that has none.
pub(super) fn of(problem: &Problem) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert(STATUS, u16::from(problem.kind.grpc_code()).into());
    if let Ok(text) = HeaderValue::from_str(&percent_encoded(&problem.text)) {
        trailers.insert(MESSAGE, text);
    }
    if let Some(after) = problem.retry_after {
        trailers.insert(PUSHBACK, millis(after).into());
    }
    let outcome = problem.outcome.as_deref().and_then(|name| HeaderValue::from_str(name).ok());
    if let Some(outcome) = outcome {
        trailers.insert(OUTCOME, outcome);
    }
    trailers
}

/// As `grpc-message` has text: what is not printable ASCII, and the percent sign, as bytes in hexadecimal.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'%' | ..b' ' | 0x7f.. => encoded.push_str(&format!("%{byte:02X}")),
            byte => encoded.push(char::from(byte)),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_problem_travels_whole_in_the_trailers() {
        let problem = Problem {
            outcome: Some("dropped/quota".into()),
            ..Problem::shed("100 % – full\n", Duration::from_micros(1_500))
        };
        let trailers = of(&problem);
        let text = |name: &HeaderName| trailers[name].to_str().unwrap().to_owned();
        let words = "100 %25 %E2%80%93 full%0A; asked again in 2 ms it might be accepted";
        assert_eq!((text(&STATUS), text(&MESSAGE)), ("8".to_owned(), words.to_owned()));
        assert_eq!((text(&PUSHBACK), text(&OUTCOME)), ("2".to_owned(), "dropped/quota".to_owned()));
        let invalid = of(&Problem::invalid("no"));
        assert!(invalid.get(&PUSHBACK).is_none() && invalid[&STATUS] == "3");
    }

    /// Clients take what has no type, or another one, for the answer of a proxy.
    #[test]
    fn a_call_that_is_refused_has_all_in_its_headers() {
        let refused = refused(&Problem::invalid("no"));
        let headers = refused.headers();
        let texts =
            [CONTENT_TYPE, ACCEPTED, STATUS, MESSAGE].map(|name| headers[name].to_str().unwrap());
        assert_eq!(texts, ["application/grpc", "identity,deflate,gzip", "3", "no"]);
    }
}

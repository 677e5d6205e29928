//! Answers as HTTP has them.

use std::io::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use hyper::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER,
    WWW_AUTHENTICATE,
};
use hyper::{HeaderMap, Response, StatusCode};
use serde_json::{Value, json};

use super::connection::Activity;
use super::held::Held;
use super::outbound::Outbound;
use crate::gateway::App;
use crate::protocol::problem::{Kind, Problem, millis, seconds};
use crate::protocol::render::Rendered;

/// Bytes of the JSON before binary data.
pub(crate) const JSON_LENGTH: HeaderName =
    HeaderName::from_static("inference-header-content-length");
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
pub(crate) const OUTCOME: HeaderName = HeaderName::from_static("baton-outcome");
/// Shorter answers are not compressed.
const COMPRESSED_MIN: usize = 1_024;

/// A response of the gateway.
pub(crate) type Answer = Response<Outbound>;

/// A body until the system has it.
struct Outgoing {
    body: Vec<u8>,
    number: u64,
    app: Arc<App>,
    activity: Arc<Activity>,
    _held: Held,
}

impl AsRef<[u8]> for Outgoing {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.activity.delivered(self.number, self.app.clock.now());
    }
}

/// Bytes whose way to the system is watched and bounded.
pub(crate) fn outgoing(
    app: &Arc<App>,
    activity: &Arc<Activity>,
    body: Vec<u8>,
    held: Held,
) -> Bytes {
    let number = activity.begins(app.clock.now());
    let (app, activity) = (Arc::clone(app), Arc::clone(activity));
    Bytes::from_owner(Outgoing { body, number, app, activity, _held: held })
}

fn full(app: &Arc<App>, activity: &Arc<Activity>, body: Vec<u8>, held: Held) -> Answer {
    Response::new(Outbound::whole(outgoing(app, activity, body, held)))
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const BINARY: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// What the gateway says of itself; nothing is an empty body.
pub(crate) fn words(app: &Arc<App>, activity: &Arc<Activity>, value: &Value) -> Answer {
    let body = if value.is_null() { Vec::new() } else { value.to_string().into_bytes() };
    let held = Held::words(app, body.len());
    let mut answer = full(app, activity, body, held);
    answer.headers_mut().insert(CONTENT_TYPE, JSON);
    answer
}

/// Why there is no other answer.
pub(crate) fn problem(app: &Arc<App>, activity: &Arc<Activity>, problem: &Problem) -> Answer {
    let mut answer = words(app, activity, &json!({ "error": problem.text }));
    let status = StatusCode::from_u16(problem.kind.status());
    *answer.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    say_in_headers(problem, answer.headers_mut());
    answer
}

fn say_in_headers(problem: &Problem, headers: &mut HeaderMap) {
    if let Some(after) = problem.retry_after {
        headers.insert(RETRY_AFTER, seconds(after).into());
        headers.insert(RETRY_AFTER_MS, millis(after).into());
    }
    let outcome = problem.outcome.as_deref().and_then(|name| HeaderValue::from_str(name).ok());
    if let Some(outcome) = outcome {
        headers.insert(OUTCOME, outcome);
    }
    if problem.kind == Kind::Unauthenticated {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
}

/// The answer to an inference, compressed if its client accepts that.
pub(crate) fn tensors(
    app: &Arc<App>,
    activity: &Arc<Activity>,
    accepted: Option<Coding>,
    rendered: Rendered,
) -> Result<Answer, Problem> {
    let Rendered { mut body, json_bytes } = rendered;
    let coding = accepted.filter(|_| body.len() >= COMPRESSED_MIN);
    if let Some(coding) = coding {
        let compressed = coding.compress(&body);
        body = compressed.map_err(|error| Problem::new(Kind::Internal, error.to_string()))?;
    }
    let mut held = Held::new(app);
    held.grow(body.len())?;
    let mut answer = full(app, activity, body, held);
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, if json_bytes.is_some() { BINARY } else { JSON });
    headers.insert(OUTCOME, HeaderValue::from_static("completed"));
    if let Some(json_bytes) = json_bytes {
        headers.insert(JSON_LENGTH, json_bytes.into());
    }
    if let Some(coding) = coding {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
    }
    Ok(answer)
}

/// How an answer is compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Coding {
    Gzip,
    Deflate,
}

impl Coding {
    /// What the client accepts.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let accepted = headers.get(ACCEPT_ENCODING)?.to_str().ok()?;
        let accepts = |coding: Self| {
            accepted.split(',').any(|one| {
                let (name, weight) = one.split_once(';').unwrap_or((one, ""));
                let weight = weight.trim().strip_prefix("q=").map_or(Ok(1.0), str::parse::<f32>);
                name.trim() == coding.name() && weight.is_ok_and(|weight| weight > 0.0)
            })
        };
        [Self::Gzip, Self::Deflate].into_iter().find(|&coding| accepts(coding))
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        }
    }

    fn compress(self, body: &[u8]) -> std::io::Result<Vec<u8>> {
        let to = Vec::with_capacity(body.len() / 2);
        match self {
            Self::Gzip => {
                let mut encoder = GzEncoder::new(to, Compression::fast());
                encoder.write_all(body)?;
                encoder.finish()
            }
            Self::Deflate => {
                let mut encoder = ZlibEncoder::new(to, Compression::fast());
                encoder.write_all(body)?;
                encoder.finish()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn headers_say_what_a_client_can_do_about_a_problem() {
        let said = |problem: Problem| {
            let mut headers = HeaderMap::new();
            say_in_headers(&problem, &mut headers);
            let mut all: Vec<String> = headers
                .iter()
                .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
                .collect();
            all.sort_unstable();
            all
        };
        for &kind in Kind::ALL {
            let expected: &[&str] = match kind {
                Kind::Unauthenticated => &["www-authenticate: Bearer"],
                _ => &[],
            };
            assert_eq!(said(Problem::new(kind, "x")), expected, "{kind:?}");
        }
        let shed = Problem::shed("x", Duration::from_millis(1_500));
        assert_eq!(said(shed), ["retry-after-ms: 1500", "retry-after: 2"]);
        let outcome = Some("dropped/no_backend".into());
        let dropped = Problem { outcome, ..Problem::new(Kind::Unavailable, "x") };
        assert_eq!(said(dropped), ["baton-outcome: dropped/no_backend"]);
    }

    #[test]
    fn an_answer_is_compressed_as_its_client_accepts() {
        let of = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(text));
            Coding::of(&headers)
        };
        assert_eq!(Coding::of(&HeaderMap::new()), None);
        assert_eq!(of("identity"), None);
        assert_eq!(of("deflate, gzip;q=0.5"), Some(Coding::Gzip));
        assert_eq!(of("gzip;q=0, deflate"), Some(Coding::Deflate));
        assert_eq!(of("gzip;q=x"), None);
    }
}

//! What a request says of its deadline.

use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use super::link::digits;
use super::url::Protocol;

/// How a request says by when it must be answered.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum SendDeadline {
    /// Not at all: the generator alone judges.
    #[default]
    No,
    /// By header: `baton-timeout-us` over HTTP, `grpc-timeout` over gRPC.
    Header,
    /// By the protocol's parameter `timeout`.
    Parameter,
}

impl SendDeadline {
    /// The headers of a request that has this much time left.
    pub(super) fn headers(self, protocol: Protocol, left_us: u64) -> HeaderMap {
        let mut headers = HeaderMap::new();
        match (self, protocol) {
            (Self::Header, Protocol::Http) => {
                let name = HeaderName::from_static("baton-timeout-us");
                headers.insert(name, digits(left_us));
            }
            (Self::Header, Protocol::Grpc) => {
                let value = HeaderValue::from_str(&grpc_timeout(left_us));
                let value = value.expect("digits and a letter are a value");
                headers.insert(HeaderName::from_static("grpc-timeout"), value);
            }
            (Self::No | Self::Parameter, _) => {}
        }
        headers
    }

    /// The parameter of a request that has this much time left.
    pub(super) fn parameter(self, left_us: u64) -> Option<u64> {
        (self == Self::Parameter).then_some(left_us)
    }
}

/// gRPC has eight digits for it.
fn grpc_timeout(left_us: u64) -> String {
    match left_us {
        ..100_000_000 => format!("{left_us}u"),
        _ => format!("{}m", (left_us / 1_000).min(99_999_999)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_said_only_where_it_is_asked_for() {
        let of = |how: SendDeadline, protocol| {
            let headers = how.headers(protocol, 50_000);
            headers
                .iter()
                .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
                .collect::<Vec<_>>()
        };
        assert!(of(SendDeadline::No, Protocol::Http).is_empty());
        assert!(of(SendDeadline::Parameter, Protocol::Grpc).is_empty());
        assert_eq!(of(SendDeadline::Header, Protocol::Http), ["baton-timeout-us: 50000"]);
        assert_eq!(of(SendDeadline::Header, Protocol::Grpc), ["grpc-timeout: 50000u"]);
        assert_eq!(SendDeadline::Parameter.parameter(7), Some(7));
        assert_eq!(SendDeadline::Header.parameter(7), None);
        assert_eq!(grpc_timeout(99_999_999), "99999999u");
        assert_eq!(grpc_timeout(100_000_000), "100000m");
        assert_eq!(grpc_timeout(u64::MAX), "99999999m");
    }
}

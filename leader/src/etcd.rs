//! Questions to etcd over its JSON gateway: HTTP, one at a time, each answered within a bound or not at all.
//!
//! In: an [`EtcdRequest`]. Out: an [`EtcdResponse`], or an error that names the endpoint; the next request then goes
//! to the next endpoint. Blocks: only for threads that do nothing else.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use baton_topo::EtcdSpec;
use baton_types::Nanos;
use serde_json::{Value, json};
use ureq::Agent;

use crate::etcd_messages::{EtcdRequest, EtcdResponse, Holder, LeaseId};
use crate::tls::{self, EtcdFilesError};

/// Answers to our requests are never longer.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// gRPC's code in an error's body: the lease does not exist.
const NOT_FOUND: i64 = 5;

/// Why there is no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EtcdError {
    /// The endpoint does not answer, or not in time.
    #[error("etcd at {endpoint}: {problem}; start it, or correct `etcd` in [scheduler]")]
    Unreachable {
        /// The endpoint.
        endpoint: String,
        /// What went wrong.
        problem: String,
    },
    /// No secure connection.
    #[error("no secure connection to etcd at {endpoint}: {problem}")]
    Untrusted {
        /// The endpoint.
        endpoint: String,
        /// What is wrong, and the fix.
        problem: String,
    },
    /// etcd refused the request.
    #[error(
        "etcd at {endpoint} refuses {path} ({status}): {problem}; \
         it must be etcd 3.4 or later, without authentication"
    )]
    Refused {
        /// The endpoint.
        endpoint: String,
        /// What it was asked.
        path: &'static str,
        /// HTTP's status.
        status: u16,
        /// Its words.
        problem: String,
    },
    /// The answer is not one that etcd gives.
    #[error("{endpoint}{path} answers as no etcd does: {problem}; is it one?")]
    Nonsense {
        /// The endpoint.
        endpoint: String,
        /// What it was asked.
        path: &'static str,
        /// What is missing.
        problem: String,
    },
}

/// A line to etcd.
#[derive(Debug)]
pub(crate) struct Etcd {
    agent: Agent,
    endpoints: Vec<String>,
    /// The endpoint that gets the next request.
    at: usize,
    lease_ttl_s: u32,
    /// The leader's key, as the gateway wants it.
    key: String,
    /// What a campaign writes there.
    value: String,
}

impl Etcd {
    /// Asks the endpoints of `spec`, each request for `patience` at most. `addr` is what a campaign
    /// proclaims.
    ///
    /// # Errors
    /// The files for TLS cannot be used.
    pub(crate) fn new(
        spec: &EtcdSpec,
        addr: Option<SocketAddr>,
        patience: Duration,
    ) -> Result<Self, EtcdFilesError> {
        let mut config = Agent::config_builder()
            .timeout_global(Some(patience))
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0);
        if let Some(spec) = &spec.tls {
            config = config.tls_config(tls::load(spec)?);
        }
        let value = addr.map(|addr| addr.to_string()).unwrap_or_default();
        Ok(Self {
            agent: config.build().into(),
            endpoints: spec.endpoints.clone(),
            at: 0,
            lease_ttl_s: spec.lease_ttl_s,
            key: BASE64.encode(leader_key(spec)),
            value: BASE64.encode(value),
        })
    }

    /// Asks one endpoint, and with the next request another if it did not answer.
    pub(crate) fn ask(&mut self, request: EtcdRequest) -> Result<EtcdResponse, EtcdError> {
        let (path, body) = self.request(request);
        let answer = self.post(path, &body).and_then(|(status, reply)| {
            self.read(request, path, status, &reply).map_err(|problem| {
                let endpoint = self.endpoints[self.at].clone();
                match status {
                    200 => EtcdError::Nonsense { endpoint, path, problem },
                    _ => EtcdError::Refused { endpoint, path, status, problem },
                }
            })
        });
        if answer.is_err() {
            self.at = (self.at + 1) % self.endpoints.len();
        }
        answer
    }

    fn request(&self, request: EtcdRequest) -> (&'static str, Value) {
        let key = &self.key;
        match request {
            EtcdRequest::Look => ("/v3/kv/range", json!({ "key": key })),
            EtcdRequest::Grant => ("/v3/lease/grant", json!({ "TTL": self.lease_ttl_s })),
            EtcdRequest::Campaign(LeaseId(lease)) => (
                "/v3/kv/txn",
                json!({
                    "compare": [{ "key": key, "target": "CREATE", "create_revision": "0" }],
                    "success": [{ "request_put": {
                        "key": key, "value": self.value, "lease": lease.to_string(),
                    } }],
                    "failure": [{ "request_range": { "key": key } }],
                }),
            ),
            EtcdRequest::Renew(LeaseId(lease)) => {
                ("/v3/lease/keepalive", json!({ "ID": lease.to_string() }))
            }
            EtcdRequest::Revoke(LeaseId(lease)) => {
                ("/v3/lease/revoke", json!({ "ID": lease.to_string() }))
            }
        }
    }

    /// etcd's reason. Its gateway is a client of its own, which shows the server's certificate and says no
    /// more than that it failed.
    fn refusal(&self, status: u16, reason: Option<&str>) -> String {
        let reason = reason.unwrap_or("no reason given");
        let is_gateways = status == 503 && !reason.starts_with("etcdserver");
        match is_gateways && self.endpoints[self.at].starts_with("https://") {
            true => format!(
                "{reason}; with --client-cert-auth its own certificate must be good for clientAuth too"
            ),
            false => reason.to_owned(),
        }
    }

    fn post(&self, path: &str, body: &Value) -> Result<(u16, String), EtcdError> {
        let endpoint = &self.endpoints[self.at];
        let post = || {
            let request = self.agent.post(format!("{endpoint}{path}"));
            let mut response = request.content_type("application/json").send(body.to_string())?;
            let status = response.status().as_u16();
            let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX);
            Ok((status, body.read_to_string()?))
        };
        post().map_err(|error: ureq::Error| {
            let endpoint = endpoint.clone();
            match tls::explain(&error) {
                Some(problem) => EtcdError::Untrusted { endpoint, problem },
                None => EtcdError::Unreachable { problem: problem(&error, &endpoint), endpoint },
            }
        })
    }

    /// What a reply says; else what is wrong with it.
    fn read(
        &self,
        request: EtcdRequest,
        path: &str,
        status: u16,
        reply: &str,
    ) -> Result<EtcdResponse, String> {
        let reply: Value = serde_json::from_str(reply).map_err(|error| match status {
            200 => error.to_string(),
            _ => format!("it does not know {path}"),
        })?;
        if status != 200 {
            return match &reply["code"] {
                code if code.as_i64() == Some(NOT_FOUND) && request != EtcdRequest::Look => {
                    Ok(EtcdResponse::Gone)
                }
                _ => Err(self.refusal(status, reply["message"].as_str())),
            };
        }
        match request {
            EtcdRequest::Look => holder(&reply).map(EtcdResponse::Held),
            EtcdRequest::Grant => {
                let lease = LeaseId(number(&reply, "ID")?);
                Ok(EtcdResponse::Granted { lease, ttl: seconds(number(&reply, "TTL")?) })
            }
            EtcdRequest::Campaign(_) if reply["succeeded"] == Value::Bool(true) => {
                Ok(EtcdResponse::Won {
                    epoch: number(&reply["header"], "revision")?.unsigned_abs(),
                })
            }
            EtcdRequest::Campaign(_) => {
                holder(&reply["responses"][0]["response_range"]).map(EtcdResponse::Held)
            }
            // A lease that has ended has no time left, and the gateway leaves zeros out.
            EtcdRequest::Renew(_) => match number(&reply["result"], "TTL") {
                Ok(ttl_s) if ttl_s > 0 => Ok(EtcdResponse::Renewed { ttl: seconds(ttl_s) }),
                _ => number(&reply["result"], "ID").map(|_| EtcdResponse::Gone),
            },
            EtcdRequest::Revoke(_) => Ok(EtcdResponse::Revoked),
        }
    }
}

/// etcd closes the connection without a reason if the peer speaks TLS and etcd does not, or the reverse.
fn problem(error: &ureq::Error, endpoint: &str) -> String {
    let hangs_up =
        matches!(error, ureq::Error::Io(error) if error.kind() == ErrorKind::UnexpectedEof);
    match (hangs_up, endpoint.starts_with("http://")) {
        (true, true) => "it closed the connection (if it has TLS, write https://)".to_owned(),
        (true, false) => "it closed the connection (if it has no TLS, write http://)".to_owned(),
        (false, _) => error.to_string(),
    }
}

/// The key whose holder leads.
pub(crate) fn leader_key(spec: &EtcdSpec) -> String {
    format!("{}/scheduler", spec.prefix)
}

fn holder(range: &Value) -> Result<Option<Holder>, String> {
    let Some(entry) = range["kvs"].get(0) else {
        // An etcd that has nothing under a key says at least who it is.
        return range["header"].is_object().then_some(None).ok_or_else(|| "no header".to_owned());
    };
    Ok(Some(Holder {
        // A key that a person has put there by hand has no lease.
        lease: LeaseId(number(entry, "lease").unwrap_or(0)),
        epoch: number(entry, "create_revision")?.unsigned_abs(),
        addr: address(&entry["value"]),
    }))
}

fn address(value: &Value) -> Option<SocketAddr> {
    let bytes = BASE64.decode(value.as_str()?).ok()?;
    String::from_utf8(bytes).ok()?.parse().ok()
}

/// The gateway writes 64-bit numbers as strings.
fn number(object: &Value, key: &str) -> Result<i64, String> {
    let value = &object[key];
    let number = value.as_i64().or_else(|| value.as_str()?.parse().ok());
    number.ok_or_else(|| format!("no number `{key}`"))
}

fn seconds(s: i64) -> Nanos {
    Nanos::from_millis(u64::try_from(s).unwrap_or(0).saturating_mul(1_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::played_etcd::{LONG, PlayedEtcd};

    const LEASE: LeaseId = LeaseId(2_324_035_524_877_570_055);

    fn etcd(endpoints: &[&str]) -> Etcd {
        let spec = EtcdSpec {
            endpoints: endpoints.iter().map(ToString::to_string).collect(),
            prefix: "/baton/x".into(),
            lease_ttl_s: 2,
            tls: None,
        };
        Etcd::new(&spec, "127.0.0.1:7700".parse().ok(), LONG).unwrap()
    }

    fn read(request: EtcdRequest, status: u16, reply: &str) -> Result<EtcdResponse, String> {
        etcd(&["http://127.0.0.1:1"]).read(request, "/v3/x", status, reply)
    }

    /// All schedulers of a cluster ask for one key, and each puts its own address there.
    #[test]
    fn requests_name_the_clusters_key_and_the_candidates_address() {
        let body = |request| etcd(&["http://127.0.0.1:1"]).request(request).1;
        let (key, address) = ("L2JhdG9uL3gvc2NoZWR1bGVy", "MTI3LjAuMC4xOjc3MDA=");
        assert_eq!(body(EtcdRequest::Look)["key"], key);
        let campaign = body(EtcdRequest::Campaign(LEASE));
        let put = &campaign["success"][0]["request_put"];
        let keys = [
            &campaign["compare"][0]["key"],
            &put["key"],
            &campaign["failure"][0]["request_range"]["key"],
        ];
        assert_eq!(keys, [key; 3]);
        assert_eq!([&put["value"], &put["lease"]], [address, "2324035524877570055"]);
    }

    /// As recorded from etcd 3.4.23.
    #[test]
    fn what_etcd_writes_is_understood() {
        let entry = r#"{"key":"L2JhdG9uL3gvc2NoZWR1bGVy","create_revision":"2","mod_revision":"2",
            "version":"1","value":"MTI3LjAuMC4xOjc3MDA=","lease":"2324035524877570055"}"#;
        let holder = Holder { lease: LEASE, epoch: 2, addr: "127.0.0.1:7700".parse().ok() };
        let header =
            r#""header":{"cluster_id":"1","member_id":"2","revision":"2","raft_term":"2"}"#;
        let held = format!(r#"{{{header},"kvs":[{entry}],"count":"1"}}"#);
        let won = format!(r#"{{{header},"succeeded":true,"responses":[]}}"#);
        let lost = format!(
            r#"{{{header},"responses":[{{"response_range":{{"header":{{}},"kvs":[{entry}]}}}}]}}"#
        );
        let gone = r#"{"error":"x","message":"etcdserver: requested lease not found","code":5}"#;
        let kept = format!(r#"{{"result":{{{header},"ID":"1","TTL":"2"}}}}"#);
        let ended = format!(r#"{{"result":{{{header},"ID":"1"}}}}"#);
        let without = |ttl: &str| format!(r#"{{"result":{{{header},"ID":"1","TTL":{ttl}}}}}"#);
        let (second, two_seconds) = (Nanos::from_millis(1_000), Nanos::from_millis(2_000));
        let granted = EtcdResponse::Granted { lease: LEASE, ttl: two_seconds };
        let cases = [
            (EtcdRequest::Look, 200, format!("{{{header}}}"), EtcdResponse::Held(None)),
            (EtcdRequest::Look, 200, held, EtcdResponse::Held(Some(holder))),
            (EtcdRequest::Grant, 200, r#"{"ID":"2324035524877570055","TTL":"2"}"#.into(), granted),
            (EtcdRequest::Campaign(LEASE), 200, won, EtcdResponse::Won { epoch: 2 }),
            (EtcdRequest::Campaign(LEASE), 200, lost, EtcdResponse::Held(Some(holder))),
            (EtcdRequest::Campaign(LEASE), 404, gone.into(), EtcdResponse::Gone),
            (EtcdRequest::Renew(LEASE), 200, kept, EtcdResponse::Renewed { ttl: two_seconds }),
            (EtcdRequest::Renew(LEASE), 200, ended, EtcdResponse::Gone),
            (
                EtcdRequest::Renew(LEASE),
                200,
                without("\"1\""),
                EtcdResponse::Renewed { ttl: second },
            ),
            (EtcdRequest::Renew(LEASE), 200, without("\"0\""), EtcdResponse::Gone),
            (EtcdRequest::Renew(LEASE), 200, without("-1"), EtcdResponse::Gone),
            (EtcdRequest::Revoke(LEASE), 200, format!("{{{header}}}"), EtcdResponse::Revoked),
            (EtcdRequest::Revoke(LEASE), 404, gone.into(), EtcdResponse::Gone),
        ];
        for (request, status, reply, answer) in cases {
            assert_eq!(read(request, status, &reply), Ok(answer), "{request:?}: {reply}");
        }
    }

    #[test]
    fn what_no_etcd_writes_is_no_answer() {
        let cases = [
            (EtcdRequest::Look, 200, "{}"),
            (EtcdRequest::Look, 200, "hello"),
            (EtcdRequest::Look, 404, r#"{"code":5}"#),
            (EtcdRequest::Grant, 200, r#"{"ID":"x","TTL":"2"}"#),
            (EtcdRequest::Campaign(LEASE), 200, "{}"),
            (EtcdRequest::Campaign(LEASE), 200, r#"{"succeeded":true}"#),
            (EtcdRequest::Renew(LEASE), 200, r#"{"error":{"message":"no leader"}}"#),
            (EtcdRequest::Renew(LEASE), 503, r#"{"message":"no leader","code":14}"#),
            (EtcdRequest::Revoke(LEASE), 404, "Not Found"),
        ];
        for (request, status, reply) in cases {
            assert!(read(request, status, reply).is_err(), "{request:?}: {reply}");
        }
    }

    /// By endpoint, question and etcd's own words.
    #[test]
    fn what_is_no_answer_is_told_with_what_was_asked_and_what_came() {
        let cases = [
            ("200 OK", "{}", "/v3/kv/range answers as no etcd does: no header; is it one?"),
            ("200 OK", "hello", "/v3/kv/range answers as no etcd does: expected value"),
            ("404 Not Found", "hello", "/v3/kv/range (404): it does not know /v3/kv/range; it"),
            ("503 Busy", r#"{"message":"no leader"}"#, "/v3/kv/range (503): no leader; it must"),
            ("503 Busy", "{}", "/v3/kv/range (503): no reason given; it must"),
        ];
        for (status, reply, words) in cases {
            let played = PlayedEtcd::start();
            let mut etcd = Etcd::new(&played.spec(2), None, LONG).unwrap();
            let asking = std::thread::spawn(move || etcd.ask(EtcdRequest::Look));
            played.next().answer(status, reply);
            let error = asking.join().unwrap().unwrap_err().to_string();
            assert!(error.contains(&played.endpoint) && error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_gateway_that_does_not_reach_its_etcd_over_tls_is_explained() {
        let reply = |reason: &str| format!(r#"{{"message":"{reason}","code":14}}"#);
        let (closed, leaderless) = (reply("connection closed"), reply("etcdserver: no leader"));
        for (endpoint, reply, explained) in [
            ("https://127.0.0.1:1", &closed, true),
            ("https://127.0.0.1:1", &leaderless, false),
            ("http://127.0.0.1:1", &closed, false),
        ] {
            let problem =
                etcd(&[endpoint]).read(EtcdRequest::Look, "/v3/x", 503, reply).unwrap_err();
            assert_eq!(problem.contains("clientAuth"), explained, "{endpoint}: {problem}");
        }
    }

    #[test]
    fn who_hangs_up_may_speak_tls_or_not() {
        let said = |kind: ErrorKind, endpoint| problem(&ureq::Error::Io(kind.into()), endpoint);
        let (hangs_up, refuses) = (ErrorKind::UnexpectedEof, ErrorKind::ConnectionRefused);
        assert!(said(hangs_up, "http://127.0.0.1:1").contains("if it has TLS, write https://"));
        assert!(said(hangs_up, "https://127.0.0.1:1").contains("if it has no TLS, write http://"));
        for endpoint in ["http://127.0.0.1:1", "https://127.0.0.1:1"] {
            let words = said(refuses, endpoint);
            assert!(words.contains("refused") && !words.contains("TLS"), "{words}");
        }
    }

    /// It may be a member of a cluster without a leader, or another program.
    #[test]
    fn after_an_endpoint_that_refuses_the_next_one_is_asked() {
        for status in ["503 Service Unavailable", "200 OK"] {
            let refusing = PlayedEtcd::start();
            let mut etcd = etcd(&[&refusing.endpoint, "http://127.0.0.1:1"]);
            let asking = std::thread::spawn(move || (etcd.ask(EtcdRequest::Look), etcd.at));
            refusing.next().answer(status, "{}");
            let (answer, next) = asking.join().unwrap();
            let error = answer.unwrap_err().to_string();
            assert!(error.contains(&refusing.endpoint), "{error}");
            assert_eq!(next, 1, "{error}");
        }
    }

    #[test]
    fn an_endpoint_that_does_not_answer_is_named_and_the_next_one_asked() {
        let mut etcd = etcd(&["http://127.0.0.1:1", "http://localhost:1"]);
        let first = etcd.ask(EtcdRequest::Look).unwrap_err().to_string();
        assert!(first.starts_with("etcd at http://127.0.0.1:1: "), "{first}");
        let second = etcd.ask(EtcdRequest::Look).unwrap_err().to_string();
        assert!(second.starts_with("etcd at http://localhost:1: "), "{second}");
        assert_eq!(etcd.at, 0);
    }
}

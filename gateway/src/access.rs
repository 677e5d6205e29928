//! Who may do what: bearer tokens, and how many tasks each may ask for.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_client::Nanos;
use baton_metrics::{Metric, Value};
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};

use crate::counters::Count;
use crate::protocol::problem::{Kind, Problem};
use crate::quota::Bucket;

/// Bytes of a token.
const TOKEN_BYTES: RangeInclusive<usize> = 16..=4_096;

/// A bearer token, as the cluster file names it.
#[derive(Clone, PartialEq, Debug)]
pub struct Token {
    /// Its owner.
    pub name: String,
    /// The token is the only line of this file.
    pub file: PathBuf,
    /// Tasks per second, of all models together, above 0.
    pub max_rps: Option<f64>,
    /// Models that it may use; `None`: all.
    pub models: Option<Vec<String>>,
    /// It may load and unload models.
    pub operator: bool,
}

/// Why a token cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// Its file cannot be read.
    #[error("gateway.token {name}: {} cannot be read: {source}", file.display())]
    Unreadable {
        /// Its owner.
        name: String,
        /// The file.
        file: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It is none.
    #[error(
        "gateway.token {name}: {} has no line of {} to {} printable characters without spaces; write one: openssl rand -hex 32",
        file.display(), TOKEN_BYTES.start(), TOKEN_BYTES.end()
    )]
    Content {
        /// Its owner.
        name: String,
        /// The file.
        file: PathBuf,
    },
    /// Two owners have the same one.
    #[error("gateway.token {name} and {other} are the same token; give each one of its own")]
    Twice {
        /// An owner.
        name: String,
        /// Another.
        other: String,
    },
}

/// The owner of a token.
#[derive(Debug)]
pub(crate) struct Owner {
    token: Token,
    quota: Option<Mutex<Bucket>>,
    tasks: Count,
    refused: Count,
}

/// Who asks; `None`: anyone, where there are no tokens.
pub(crate) type Asker = Option<Arc<Owner>>;

/// Those who may use the gateway.
#[derive(Debug, Default)]
pub(crate) struct Access {
    /// By the hash of the token. How long a look takes says nothing of a token: a client that guesses cannot choose hashes.
    owners: HashMap<[u8; SHA256_OUTPUT_LEN], Arc<Owner>>,
}

impl Access {
    /// Reads the tokens' files.
    pub(crate) fn load(tokens: &[Token]) -> Result<Self, TokenError> {
        let mut owners = HashMap::with_capacity(tokens.len());
        for token in tokens {
            let name = || token.name.clone();
            let hash = hash(&secret(token)?);
            if let Some(other) = owners.insert(hash, Arc::new(Owner::new(token.clone()))) {
                return Err(TokenError::Twice { name: name(), other: other.token.name.clone() });
            }
        }
        Ok(Self { owners })
    }

    /// The owner of a request's token, by its header `authorization`.
    ///
    /// # Errors
    /// There are tokens, and it has none of them.
    pub(crate) fn asker(&self, authorization: Option<&str>) -> Result<Asker, Problem> {
        if self.owners.is_empty() {
            return Ok(None);
        }
        let unknown = |text: &str| Problem::new(Kind::Unauthenticated, text);
        let given = authorization.and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        let given = given.ok_or_else(|| {
            unknown("this gateway wants a token: send the header `authorization: Bearer TOKEN`")
        })?;
        let owner = self.owners.get(&hash(given.as_bytes())).map(Arc::clone);
        owner.map(Some).ok_or_else(|| unknown("this gateway does not know the token"))
    }

    /// As Prometheus scrapes them.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let mut owners: Vec<&Owner> = self.owners.values().map(Arc::as_ref).collect();
        owners.sort_by_key(|owner| &owner.token.name);
        let series = |of: fn(&Owner) -> &Count| {
            let one =
                |owner: &&Owner| (vec![owner.token.name.clone()], Value::Count(of(owner).get()));
            owners.iter().map(one).collect()
        };
        let tasks = "Tasks that the quota of a token admitted, by its owner";
        let refused = "Tasks that the quota of a token refused, by its owner";
        vec![
            Metric {
                series: series(|owner| &owner.tasks),
                ..Metric::counters("baton_gateway_token_tasks", tasks, &["token"])
            },
            Metric {
                series: series(|owner| &owner.refused),
                ..Metric::counters("baton_gateway_token_refused", refused, &["token"])
            },
        ]
    }
}

fn secret(token: &Token) -> Result<Vec<u8>, TokenError> {
    let (name, file) = (|| token.name.clone(), || token.file.clone());
    let text = fs::read_to_string(&token.file).map_err(|source| TokenError::Unreadable {
        name: name(),
        file: file(),
        source,
    })?;
    let secret = text.trim_end_matches(['\r', '\n']).as_bytes();
    if !TOKEN_BYTES.contains(&secret.len()) || !secret.iter().all(u8::is_ascii_graphic) {
        return Err(TokenError::Content { name: name(), file: file() });
    }
    Ok(secret.to_vec())
}

fn hash(secret: &[u8]) -> [u8; SHA256_OUTPUT_LEN] {
    let mut hash = [0; SHA256_OUTPUT_LEN];
    hash.copy_from_slice(digest(&SHA256, secret).as_ref());
    hash
}

impl Owner {
    fn new(token: Token) -> Self {
        let quota = token.max_rps.map(|rps| Mutex::new(Bucket::new(rps)));
        Self { token, quota, tasks: Count::default(), refused: Count::default() }
    }

    fn admit(&self, now: Nanos, tasks: usize) -> Result<(), Problem> {
        let admitted = self.quota.as_ref().map_or(Ok(()), |quota| {
            quota.lock().unwrap_or_else(PoisonError::into_inner).take(now, tasks)
        });
        let count = if admitted.is_ok() { &self.tasks } else { &self.refused };
        count.add(tasks as u64);
        admitted.map_err(|wait| {
            let text = "dropped: quota of the token";
            let problem = Problem::shed(text, Duration::from_nanos(wait.0));
            Problem { outcome: Some("dropped/quota".to_owned()), ..problem }
        })
    }
}

/// A model that is not the asker's is for it as one that is not there.
pub(crate) fn may_use(asker: &Asker, model: &str) -> bool {
    let models = asker.as_ref().and_then(|owner| owner.token.models.as_ref());
    models.is_none_or(|models| models.iter().any(|name| name == model))
}

/// Takes all of these tasks of the asker's quota, or none.
///
/// # Errors
/// There are not as many: how long to wait.
pub(crate) fn admit(asker: &Asker, now: Nanos, tasks: usize) -> Result<(), Problem> {
    asker.as_ref().map_or(Ok(()), |owner| owner.admit(now, tasks))
}

/// # Errors
/// The asker's token is not an operator's.
pub(crate) fn operate(asker: &Asker) -> Result<(), Problem> {
    if asker.as_ref().is_none_or(|owner| owner.token.operator) {
        return Ok(());
    }
    let words =
        "this token may not load or unload models: `operator = true` in the cluster file allows it";
    Err(Problem::new(Kind::Forbidden, words))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(test: &str, tokens: &[(&str, &str, Option<f64>)]) -> Result<Access, TokenError> {
        let dir = std::env::temp_dir();
        let token = |&(name, secret, max_rps): &(&str, &str, Option<f64>)| {
            let file = dir.join(format!("baton-token-{}-{test}-{name}", std::process::id()));
            fs::write(&file, secret).unwrap();
            let models = (name == "one").then(|| vec!["m".to_owned()]);
            Token { name: name.into(), file, max_rps, models, operator: name == "all" }
        };
        let tokens: Vec<Token> = tokens.iter().map(token).collect();
        let access = Access::load(&tokens);
        tokens.iter().for_each(|token| fs::remove_file(&token.file).unwrap());
        access
    }

    const ONE: &str = "0123456789abcdef";
    const ALL: &str = "fedcba9876543210";

    #[test]
    fn only_a_token_that_is_known_has_an_owner_with_its_models() {
        let tokens = [("one", ONE, None), ("all", &format!("{ALL}\n"), None)];
        let access = access("rights", &tokens).unwrap();
        for (header, words) in [
            (None, "wants a token"),
            (Some(ONE), "wants a token"),
            (Some("Basic 0123456789abcdef"), "wants a token"),
            (Some("Bearer "), "does not know"),
            (Some("Bearer 0123456789abcde"), "does not know"),
            (Some("Bearer 0123456789abcdefg"), "does not know"),
            (Some("Bearer 0123456789abcdef fedcba9876543210"), "does not know"),
        ] {
            let problem = access.asker(header).unwrap_err();
            assert_eq!(problem.kind, Kind::Unauthenticated);
            assert!(problem.text.contains(words), "{header:?}: {problem:?}");
        }
        let one = access.asker(Some("bearer  0123456789abcdef")).unwrap();
        assert!(may_use(&one, "m") && !may_use(&one, "n"));
        assert_eq!(operate(&one).unwrap_err().kind, Kind::Forbidden);
        let all = access.asker(Some(&format!("Bearer {ALL}"))).unwrap();
        assert!(may_use(&all, "m") && may_use(&all, "n"));
        assert!(operate(&all).is_ok() && operate(&None).is_ok());
        let open = Access::default();
        assert!(open.asker(None).unwrap().is_none() && may_use(&None, "n"));
    }

    #[test]
    fn a_request_takes_all_its_tasks_of_the_quota_or_none_and_both_are_counted() {
        let access = access("quota", &[("one", ONE, Some(10.0))]).unwrap();
        let one = access.asker(Some(&format!("Bearer {ONE}"))).unwrap();
        let now = Nanos::from_millis(1_000);
        assert!(admit(&one, now, 15).is_ok());
        let refused = admit(&one, now, 3).unwrap_err();
        assert_eq!((refused.kind, refused.outcome.as_deref()), (Kind::Shed, Some("dropped/quota")));
        assert_eq!(refused.retry_after, Some(Duration::from_millis(200)));
        assert!(admit(&one, now, 1).is_ok(), "nothing was taken for the three");
        let counts = access.metrics().into_iter().map(|metric| metric.series[0].clone());
        let series = |count| (vec!["one".to_owned()], Value::Count(count));
        assert_eq!(counts.collect::<Vec<_>>(), [series(16), series(3)]);
        assert!(admit(&None, now, 1_000_000).is_ok());
    }

    #[test]
    fn what_is_no_token_is_refused_at_the_start() {
        let error = |test, tokens: &[(&str, &str, Option<f64>)]| {
            access(test, tokens).unwrap_err().to_string()
        };
        let lines = format!("{ONE}\n{ONE}");
        for (test, secret) in [("short", "abc"), ("space", "0123456789 abcdef"), ("lines", &lines)]
        {
            let said = error(test, &[("one", secret, None)]);
            assert!(said.contains("openssl rand -hex 32"), "{secret}: {said}");
        }
        let twice = error("twice", &[("one", ONE, None), ("all", ONE, None)]);
        assert!(twice.contains("all and one are the same token"), "{twice}");
        let token = Token {
            name: "x".into(),
            file: "/none".into(),
            max_rps: None,
            models: None,
            operator: false,
        };
        let said = Access::load(&[token]).unwrap_err().to_string();
        assert!(said.contains("/none cannot be read"), "{said}");
    }
}

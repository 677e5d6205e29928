//! Who may do what: bearer tokens, and how many tasks each may ask for.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
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
    /// There were some before.
    #[error(
        "gateway.token: the cluster file names none any more; restart the gateway to let everyone use it"
    )]
    AllGone,
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
    spent: Arc<Spent>,
    /// Its files say so no longer. Streams that began before go on asking under it.
    is_revoked: AtomicBool,
}

/// What an owner has had of its quota: it outlives a token that is exchanged.
#[derive(Debug)]
struct Spent {
    quota: Option<Mutex<Bucket>>,
    tasks: Count,
    refused: Count,
}

/// Who asks; `None`: anyone, where there are no tokens.
pub(crate) type Asker = Option<Arc<Owner>>;

/// Owners by the hashes of their tokens. How long a look takes says nothing of a token: a client that guesses cannot choose hashes.
pub(crate) type Owners = HashMap<[u8; SHA256_OUTPUT_LEN], Arc<Owner>>;

/// Those who may use the gateway.
#[derive(Debug, Default)]
pub(crate) struct Access {
    owners: RwLock<Owners>,
}

impl Access {
    /// Reads the tokens' files.
    pub(crate) fn load(tokens: &[Token]) -> Result<Self, TokenError> {
        let owners = Self::default().read(tokens)?;
        Ok(Self { owners: RwLock::new(owners) })
    }

    fn known(&self) -> RwLockReadGuard<'_, Owners> {
        self.owners.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the tokens' files again, for [`replace`](Self::replace). Who stays keeps what is left of its quota.
    ///
    /// # Errors
    /// A token cannot be used, or there are none any more: a file that lacks its end must not open the gateway.
    pub(crate) fn read(&self, tokens: &[Token]) -> Result<Owners, TokenError> {
        let known = self.known();
        if tokens.is_empty() && !known.is_empty() {
            return Err(TokenError::AllGone);
        }
        let mut owners = Owners::with_capacity(tokens.len());
        for token in tokens {
            let hash = hash(&secret(token)?);
            let same = known.get(&hash).filter(|owner| owner.token == *token);
            let owner = same.map_or_else(|| Arc::new(Owner::after(token, &known)), Arc::clone);
            if let Some(other) = owners.insert(hash, owner) {
                let (name, other) = (token.name.clone(), other.token.name.clone());
                return Err(TokenError::Twice { name, other });
            }
        }
        Ok(owners)
    }

    /// From now on these may use the gateway, and no others.
    pub(crate) fn replace(&self, owners: Owners) {
        let mut known = self.owners.write().unwrap_or_else(PoisonError::into_inner);
        let former = std::mem::replace(&mut *known, owners);
        let is_known = |owner: &Arc<Owner>| known.values().any(|other| Arc::ptr_eq(owner, other));
        for owner in former.values().filter(|owner| !is_known(owner)) {
            owner.is_revoked.store(true, Ordering::Relaxed);
        }
    }

    /// The owner of a request's token, by its header `authorization`.
    ///
    /// # Errors
    /// There are tokens, and it has none of them.
    pub(crate) fn asker(&self, authorization: Option<&str>) -> Result<Asker, Problem> {
        let owners = self.known();
        if owners.is_empty() {
            return Ok(None);
        }
        let given = authorization.and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        let given = given.ok_or_else(|| {
            unknown("this gateway wants a token: send the header `authorization: Bearer TOKEN`")
        })?;
        let owner = owners.get(&hash(given.as_bytes())).map(Arc::clone);
        owner.map(Some).ok_or_else(|| unknown(UNKNOWN))
    }

    /// As Prometheus scrapes them.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let known = self.known();
        let mut owners: Vec<&Owner> = known.values().map(Arc::as_ref).collect();
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
                series: series(|owner| &owner.spent.tasks),
                ..Metric::counters("baton_gateway_token_tasks", tasks, &["token"])
            },
            Metric {
                series: series(|owner| &owner.spent.refused),
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

/// What a client hears whose token is no longer, or never was, one of the gateway's.
const UNKNOWN: &str = "this gateway does not know the token";

fn unknown(text: &str) -> Problem {
    Problem::new(Kind::Unauthenticated, text)
}

fn hash(secret: &[u8]) -> [u8; SHA256_OUTPUT_LEN] {
    let mut hash = [0; SHA256_OUTPUT_LEN];
    hash.copy_from_slice(digest(&SHA256, secret).as_ref());
    hash
}

impl Owner {
    /// What the owner of this name has had of the same quota goes on counting.
    fn after(token: &Token, known: &Owners) -> Self {
        let is_it = |other: &&Arc<Self>| {
            (&other.token.name, other.token.max_rps) == (&token.name, token.max_rps)
        };
        let spent = known.values().find(is_it).map(|owner| Arc::clone(&owner.spent));
        let spent = spent.unwrap_or_else(|| Arc::new(Spent::new(token.max_rps)));
        Self { token: token.clone(), spent, is_revoked: AtomicBool::new(false) }
    }

    fn admit(&self, now: Nanos, tasks: usize) -> Result<(), Problem> {
        if self.is_revoked.load(Ordering::Relaxed) {
            return Err(unknown(UNKNOWN));
        }
        self.spent.admit(now, tasks)
    }
}

impl Spent {
    fn new(max_rps: Option<f64>) -> Self {
        let quota = max_rps.map(|rps| Mutex::new(Bucket::new(rps)));
        Self { quota, tasks: Count::default(), refused: Count::default() }
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

/// One that may use these models alone.
#[cfg(test)]
pub(crate) fn asker_of(models: &[&str]) -> Asker {
    let models = Some(models.iter().map(|&name| name.to_owned()).collect());
    let (name, file) = (String::from("some"), PathBuf::new());
    let token = Token { name, file, max_rps: None, models, operator: true };
    Some(Arc::new(Owner::after(&token, &Owners::new())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does something with tokens whose files are there meanwhile.
    fn with_tokens<T>(
        test: &str,
        tokens: &[(&str, &str, Option<f64>)],
        then: impl FnOnce(&[Token]) -> T,
    ) -> T {
        let dir = std::env::temp_dir();
        let token = |&(name, secret, max_rps): &(&str, &str, Option<f64>)| {
            let file = dir.join(format!("baton-token-{}-{test}-{name}", std::process::id()));
            fs::write(&file, secret).unwrap();
            let models = (name == "one").then(|| vec!["m".to_owned()]);
            Token { name: name.into(), file, max_rps, models, operator: name == "all" }
        };
        let tokens: Vec<Token> = tokens.iter().map(token).collect();
        let access = then(&tokens);
        tokens.iter().for_each(|token| fs::remove_file(&token.file).unwrap());
        access
    }

    fn access(test: &str, tokens: &[(&str, &str, Option<f64>)]) -> Result<Access, TokenError> {
        with_tokens(test, tokens, Access::load)
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
    fn tokens_are_exchanged_while_quotas_go_on_and_who_is_gone_is_refused() {
        let access = access("again", &[("one", ONE, Some(10.0)), ("all", ALL, None)]).unwrap();
        let bearer = |secret: &str| access.asker(Some(&format!("Bearer {secret}")));
        let (one, all) = (bearer(ONE).unwrap(), bearer(ALL).unwrap());
        let now = Nanos::from_millis(1_000);
        admit(&one, now, 16).unwrap();
        let read = |tokens: &[_]| with_tokens("again", tokens, |tokens| access.read(tokens));
        const NEW: &str = "another-token-of-the-first";
        access.replace(read(&[("one", NEW, Some(10.0)), ("all", ALL, None)]).unwrap());
        assert_eq!(admit(&one, now, 1).unwrap_err().kind, Kind::Unauthenticated, "a stream's");
        assert_eq!(bearer(ONE).unwrap_err().kind, Kind::Unauthenticated);
        assert!(admit(&all, now, 1).is_ok(), "it has stayed");
        let new = bearer(NEW).unwrap();
        assert_eq!(admit(&new, now, 1).unwrap_err().kind, Kind::Shed, "its quota is used up");
        access.replace(read(&[("one", NEW, Some(20.0)), ("all", ALL, None)]).unwrap());
        assert!(admit(&bearer(NEW).unwrap(), now, 16).is_ok(), "another rate is another quota");
        for (tokens, words) in [
            (&[][..], "names none any more"),
            (&[("one", "short", None)], "openssl rand"),
            (&[("one", ONE, None), ("all", ONE, None)], "are the same token"),
        ] {
            let said = read(tokens).unwrap_err().to_string();
            assert!(said.contains(words), "{said}");
        }
        assert!(admit(&bearer(NEW).unwrap(), now, 0).is_ok(), "nothing was exchanged");
        let open = self::access("open", &[]).unwrap();
        assert!(with_tokens("open", &[], |none| open.read(none)).is_ok(), "it had none before");
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

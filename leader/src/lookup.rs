//! The leader's address in etcd, asked for by a separate thread that keeps the last answer. So reading it never
//! waits, and a member that has a scheduler causes no request.

use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_topo::{EtcdSpec, park_thread};
use baton_types::Nanos;
use crossbeam_channel::{Receiver, Sender, bounded};

use crate::etcd::{Etcd, leader_key};
use crate::etcd_messages::{EtcdRequest, EtcdResponse};
use crate::{StartError, Unknown};

/// How long one answer may take.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long before the answer is needed the thread asks etcd: many times the duration of a request, and
/// little time for the leader to change in.
const AHEAD: Nanos = Nanos::from_millis(30);
/// How often the thread asks etcd while a caller waits.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Ends its thread when it is dropped.
#[derive(Debug)]
pub(crate) struct Lookup {
    lease_ttl: Nanos,
    /// Wishes to know, and how long that has time. Holds one: a second before the answer is the same wish.
    asked: Sender<Nanos>,
    found: Arc<Found>,
}

#[derive(Debug)]
struct Found {
    /// Locked to copy it, never during a request to etcd.
    addr: Mutex<Result<SocketAddr, Unknown>>,
    changed: Condvar,
}

impl Lookup {
    /// Starts the thread, and sends the first request.
    pub(crate) fn start(spec: &EtcdSpec) -> Result<Self, StartError> {
        let (asked, wishes) = bounded(1);
        let found =
            Arc::new(Found { addr: Mutex::new(Err(Unknown::NotYet)), changed: Condvar::new() });
        let (etcd, key) = (Etcd::new(spec, None, PATIENCE)?, leader_key(spec));
        let answers = Arc::clone(&found);
        std::thread::Builder::new()
            .name("baton-lookup".into())
            .spawn(move || answer(&wishes, etcd, &key, &answers))?;
        let lease_ttl = Nanos::from_millis(u64::from(spec.lease_ttl_s) * 1_000);
        let lookup = Self { lease_ttl, asked, found };
        lookup.ask(Nanos::ZERO);
        Ok(lookup)
    }

    pub(crate) fn ask(&self, pause: Nanos) {
        // Full: the wish is there already.
        let _ = self.asked.try_send(pause);
    }

    pub(crate) fn addr(&self) -> Result<SocketAddr, Unknown> {
        self.found.lock().clone()
    }

    /// How long a leader that has just died may keep others from leading.
    pub(crate) fn succession(&self) -> Nanos {
        self.lease_ttl
    }

    /// Blocks until the address is known, for `timeout` at most.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<SocketAddr, Unknown> {
        let rounds = timeout.as_nanos().div_ceil(ASK_EVERY.as_nanos()).max(1);
        for _ in 0..rounds {
            self.ask(Nanos::ZERO);
            let found = self.found.lock();
            let unknown = |found: &mut Result<SocketAddr, Unknown>| found.is_err();
            let waited = self.found.changed.wait_timeout_while(found, ASK_EVERY, unknown);
            if let Ok(addr) = *waited.unwrap_or_else(PoisonError::into_inner).0 {
                return Ok(addr);
            }
        }
        self.addr()
    }
}

impl Found {
    fn lock(&self) -> MutexGuard<'_, Result<SocketAddr, Unknown>> {
        self.addr.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread: one answer per request of a member, until the last locator is dropped.
fn answer(wishes: &Receiver<Nanos>, mut etcd: Etcd, key: &str, found: &Found) {
    while let Ok(pause) = wishes.recv() {
        if pause > AHEAD {
            // Woken too early, it asks too early.
            park_thread(Some(pause - AHEAD));
        }
        let key = || key.to_owned();
        let answer = match etcd.ask(EtcdRequest::Look) {
            Ok(EtcdResponse::Held(Some(holder))) => {
                holder.addr.ok_or_else(|| Unknown::NoAddress { key: key() })
            }
            Ok(_) => Err(Unknown::NoLeader { key: key() }),
            Err(error) => Err(error.into()),
        };
        let mut known = found.lock();
        if !(known.is_ok() && matches!(answer, Err(Unknown::Etcd(_)))) {
            *known = answer;
        }
        found.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD as BASE64;

    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    fn spec(endpoint: String) -> EtcdSpec {
        EtcdSpec { endpoints: vec![endpoint], prefix: "/baton/x".into(), lease_ttl_s: 2, tls: None }
    }

    /// Whose etcd is the test: it takes one request at a time from the listener.
    fn asking() -> (Lookup, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        (Lookup::start(&spec(endpoint)).unwrap(), listener)
    }

    /// The next request. Its body is JSON, so it ends with a brace.
    fn request(etcd: &TcpListener) -> TcpStream {
        let (mut stream, _) = etcd.accept().unwrap();
        let mut text = Vec::new();
        while text.last() != Some(&b'}') {
            let mut piece = [0; 4096];
            let read = stream.read(&mut piece).unwrap();
            assert!(read > 0, "half a request");
            text.extend_from_slice(&piece[..read]);
        }
        stream
    }

    fn answer(mut stream: TcpStream, value: Option<&str>) {
        let entry = value.map(|value| {
            let value = BASE64.encode(value);
            format!(r#","kvs":[{{"create_revision":"2","value":"{value}","lease":"7"}}]"#)
        });
        let body = format!(r#"{{"header":{{}}{}}}"#, entry.unwrap_or_default());
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close", body.len());
        write!(stream, "{head}\r\n\r\n{body}").unwrap();
    }

    /// Blocks until an answer has arrived that is not `before`.
    fn changed(lookup: &Lookup, before: &Result<SocketAddr, Unknown>) {
        let same = |found: &mut Result<SocketAddr, Unknown>| found == before;
        let waited = lookup.found.changed.wait_timeout_while(lookup.found.lock(), LONG, same);
        assert!(!waited.unwrap().1.timed_out(), "still {before:?}");
    }

    #[test]
    fn each_wish_is_one_question_and_the_last_answer_counts() {
        let (via_etcd, etcd) = asking();
        assert_eq!(via_etcd.addr(), Err(Unknown::NotYet));
        answer(request(&etcd), Some("127.0.0.1:7700"));
        changed(&via_etcd, &Err(Unknown::NotYet));
        let first = via_etcd.addr();
        assert_eq!(first, Ok("127.0.0.1:7700".parse().unwrap()));
        via_etcd.ask(Nanos::from_millis(35));
        answer(request(&etcd), Some("127.0.0.1:7701"));
        changed(&via_etcd, &first);
        let second = via_etcd.addr();
        assert_eq!(second, Ok("127.0.0.1:7701".parse().unwrap()));
        via_etcd.ask(Nanos::ZERO);
        answer(request(&etcd), None);
        changed(&via_etcd, &second);
        let leaderless = via_etcd.addr();
        assert_eq!(leaderless, Err(Unknown::NoLeader { key: "/baton/x/scheduler".into() }));
        via_etcd.ask(Nanos::ZERO);
        answer(request(&etcd), Some("somewhere"));
        changed(&via_etcd, &leaderless);
        assert!(matches!(via_etcd.addr(), Err(Unknown::NoAddress { .. })));
    }

    #[test]
    fn an_etcd_that_falls_silent_leaves_the_leader_that_was_known() {
        let (via_etcd, etcd) = asking();
        answer(request(&etcd), Some("127.0.0.1:7700"));
        changed(&via_etcd, &Err(Unknown::NotYet));
        via_etcd.ask(Nanos::ZERO);
        let silent = request(&etcd);
        via_etcd.ask(Nanos::ZERO);
        // The next request comes although this one was never answered.
        let next = request(&etcd);
        assert!(via_etcd.addr().is_ok());
        drop((silent, next));
    }

    /// What etcd is asked and says nothing to (it closes the connection) is a question that failed.
    #[test]
    fn only_an_address_outlasts_a_question_that_fails_and_nothing_an_answer() {
        let (via_etcd, etcd) = asking();
        let before = |question: fn(TcpStream), before: &Result<SocketAddr, Unknown>| {
            via_etcd.ask(Nanos::ZERO);
            question(request(&etcd));
            changed(&via_etcd, before);
            via_etcd.addr()
        };
        let leaderless = before(|stream| answer(stream, None), &Err(Unknown::NotYet));
        let failed = before(drop, &leaderless);
        assert!(matches!(failed, Err(Unknown::Etcd(_))), "{failed:?}");
        let known = before(|stream| answer(stream, Some("127.0.0.1:7700")), &failed);
        assert!(known.is_ok(), "{known:?}");
        let unreadable = before(|stream| answer(stream, Some("somewhere")), &known);
        assert!(matches!(unreadable, Err(Unknown::NoAddress { .. })), "{unreadable:?}");
    }

    #[test]
    fn who_waits_asks_until_there_is_a_leader() {
        let (via_etcd, etcd) = asking();
        std::thread::spawn(move || {
            let answers = [None, None, None, Some("127.0.0.1:7700")];
            answers.into_iter().for_each(|value| answer(request(&etcd), value));
        });
        assert_eq!(via_etcd.wait(LONG), Ok("127.0.0.1:7700".parse().unwrap()));
    }

    #[test]
    fn an_etcd_that_does_not_answer_is_named_within_the_time_given() {
        let via_etcd = Lookup::start(&spec("http://127.0.0.1:1".into())).unwrap();
        let unknown = via_etcd.wait(Duration::from_secs(2)).unwrap_err();
        assert!(unknown.to_string().contains("http://127.0.0.1:1"), "{unknown}");
    }
}

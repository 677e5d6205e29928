//! Where members find the scheduler: at a fixed address, or at the leader's address in etcd.
//!
//! A separate thread asks etcd when a member wants to know, and keeps the last answer. So reading it never
//! waits, and a member that has a scheduler causes no request.

use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_core::Nanos;
use baton_topo::{EtcdSpec, park_thread};
use crossbeam_channel::{Receiver, Sender, bounded};

use crate::StartError;
use crate::etcd::{Etcd, leader_key};
use crate::etcd_messages::{EtcdRequest, EtcdResponse};

/// How long one answer may take.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long before the answer is needed the thread asks etcd: many times the duration of a request, and
/// little time for the leader to change in.
const AHEAD: Nanos = Nanos::from_millis(30);
/// How often the thread asks etcd while a caller waits.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Why the locator has no address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unknown {
    /// etcd has not answered yet.
    #[error("etcd has not said yet which scheduler leads")]
    NotYet,
    /// No scheduler leads.
    #[error("no scheduler leads: etcd has no key {key}; start one with this cluster file")]
    NoLeader {
        /// The key of the leader.
        key: String,
    },
    /// What leads has no address.
    #[error("etcd's key {key} holds no address; delete it, unless it is another program's")]
    NoAddress {
        /// The key.
        key: String,
    },
    /// etcd does not answer, and never has.
    #[error(transparent)]
    Etcd(#[from] crate::EtcdError),
}

/// Where the scheduler is. Clones share the thread, which ends with the last of them.
#[derive(Clone, Debug)]
pub struct SchedulerLocator(Kind);

#[derive(Clone, Debug)]
enum Kind {
    At(SocketAddr),
    Led(Arc<Lookup>),
}

#[derive(Debug)]
struct Lookup {
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

impl From<SocketAddr> for SchedulerLocator {
    fn from(addr: SocketAddr) -> Self {
        Self(Kind::At(addr))
    }
}

impl SchedulerLocator {
    /// The leader's address in `spec`'s etcd. The first request is sent at once.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn via_etcd(spec: &EtcdSpec) -> Result<Self, StartError> {
        let (asked, wishes) = bounded(1);
        let found =
            Arc::new(Found { addr: Mutex::new(Err(Unknown::NotYet)), changed: Condvar::new() });
        let (etcd, key) = (Etcd::new(spec, None, PATIENCE)?, leader_key(spec));
        let answers = Arc::clone(&found);
        std::thread::Builder::new()
            .name("baton-lookup".into())
            .spawn(move || answer(&wishes, etcd, &key, &answers))?;
        let locator = Self(Kind::Led(Arc::new(Lookup {
            lease_ttl: Nanos::from_millis(u64::from(spec.lease_ttl_s) * 1_000),
            asked,
            found,
        })));
        locator.ask(Nanos::ZERO);
        Ok(locator)
    }

    /// Makes the thread ask etcd. Call when the scheduler is lost and a `pause` begins: the address that
    /// [`SchedulerLocator::addr`] returns at its end is fresh.
    pub fn ask(&self, pause: Nanos) {
        if let Kind::Led(lookup) = &self.0 {
            // Full: the wish is there already.
            let _ = lookup.asked.try_send(pause);
        }
    }

    /// Where the scheduler is, by the last answer. An etcd that does not answer leaves the answer before.
    ///
    /// # Errors
    /// It is not known.
    pub fn addr(&self) -> Result<SocketAddr, Unknown> {
        match &self.0 {
            Kind::At(addr) => Ok(*addr),
            Kind::Led(lookup) => lookup.found.lock().clone(),
        }
    }

    /// How long a leader that has just died may keep others from leading; zero at a fixed address.
    pub fn succession(&self) -> Nanos {
        match &self.0 {
            Kind::At(_) => Nanos::ZERO,
            Kind::Led(lookup) => lookup.lease_ttl,
        }
    }

    /// Blocks until the scheduler's address is known, for `timeout` at most.
    ///
    /// # Errors
    /// It is not known by then.
    pub fn wait(&self, timeout: Duration) -> Result<SocketAddr, Unknown> {
        let Kind::Led(lookup) = &self.0 else { return self.addr() };
        let rounds = timeout.as_nanos().div_ceil(ASK_EVERY.as_nanos()).max(1);
        for _ in 0..rounds {
            self.ask(Nanos::ZERO);
            let found = lookup.found.lock();
            let unknown = |found: &mut Result<SocketAddr, Unknown>| found.is_err();
            let waited = lookup.found.changed.wait_timeout_while(found, ASK_EVERY, unknown);
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
    fn asking() -> (SchedulerLocator, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        (SchedulerLocator::via_etcd(&spec(endpoint)).unwrap(), listener)
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
    fn changed(via_etcd: &SchedulerLocator, before: &Result<SocketAddr, Unknown>) {
        let Kind::Led(lookup) = &via_etcd.0 else { panic!("it is via_etcd") };
        let same = |found: &mut Result<SocketAddr, Unknown>| found == before;
        let waited = lookup.found.changed.wait_timeout_while(lookup.found.lock(), LONG, same);
        assert!(!waited.unwrap().1.timed_out(), "still {before:?}");
    }

    #[test]
    fn an_address_is_known_without_asking() {
        let addr: SocketAddr = "127.0.0.1:7700".parse().unwrap();
        let fixed = SchedulerLocator::from(addr);
        fixed.ask(Nanos::ZERO);
        assert_eq!(fixed.addr(), Ok(addr));
        assert_eq!(fixed.wait(Duration::ZERO), Ok(addr));
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
        let nobody = via_etcd.addr();
        assert_eq!(nobody, Err(Unknown::NoLeader { key: "/baton/x/scheduler".into() }));
        via_etcd.ask(Nanos::ZERO);
        answer(request(&etcd), Some("somewhere"));
        changed(&via_etcd, &nobody);
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

    #[test]
    fn an_etcd_that_does_not_answer_is_named_within_the_time_given() {
        let via_etcd = SchedulerLocator::via_etcd(&spec("http://127.0.0.1:1".into())).unwrap();
        let unknown = via_etcd.wait(Duration::from_secs(2)).unwrap_err();
        assert!(unknown.to_string().contains("http://127.0.0.1:1"), "{unknown}");
    }
}

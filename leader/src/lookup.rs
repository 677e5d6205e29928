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

/// For how long the thread does nothing, if its answer is needed at the end of `pause`.
fn idle(pause: Nanos) -> Nanos {
    pause - AHEAD
}

/// The thread: one answer per request of a member, until the last locator is dropped.
fn answer(wishes: &Receiver<Nanos>, mut etcd: Etcd, key: &str, found: &Found) {
    while let Ok(pause) = wishes.recv() {
        // Woken too early, it asks too early.
        park_thread(Some(idle(pause)));
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
    use super::*;
    use crate::played_etcd::{LONG, PlayedEtcd, Question};

    fn asking() -> (Lookup, PlayedEtcd) {
        let etcd = PlayedEtcd::start();
        (Lookup::start(&etcd.spec(2)).unwrap(), etcd)
    }

    /// Blocks until an answer has arrived that is not `before`.
    fn changed(lookup: &Lookup, before: &Result<SocketAddr, Unknown>) {
        let same = |found: &mut Result<SocketAddr, Unknown>| found == before;
        let waited = lookup.found.changed.wait_timeout_while(lookup.found.lock(), LONG, same);
        assert!(!waited.unwrap().1.timed_out(), "still {before:?}");
    }

    #[test]
    fn a_question_is_asked_a_little_before_its_answer_is_needed() {
        let idle_ms = [0, 29, 30, 31, 500].map(|ms| idle(Nanos::from_millis(ms)));
        assert_eq!(idle_ms, [0, 0, 0, 1, 470].map(Nanos::from_millis));
    }

    #[test]
    fn each_wish_is_one_question_and_the_last_answer_counts() {
        let (via_etcd, etcd) = asking();
        assert_eq!(via_etcd.addr(), Err(Unknown::NotYet));
        etcd.next().held_by(Some("127.0.0.1:7700"));
        changed(&via_etcd, &Err(Unknown::NotYet));
        let first = via_etcd.addr();
        assert_eq!(first, Ok("127.0.0.1:7700".parse().unwrap()));
        via_etcd.ask(Nanos::from_millis(35));
        etcd.next().held_by(Some("127.0.0.1:7701"));
        changed(&via_etcd, &first);
        let second = via_etcd.addr();
        assert_eq!(second, Ok("127.0.0.1:7701".parse().unwrap()));
        via_etcd.ask(Nanos::ZERO);
        etcd.next().held_by(None);
        changed(&via_etcd, &second);
        let leaderless = via_etcd.addr();
        assert_eq!(leaderless, Err(Unknown::NoLeader { key: "/baton/x/scheduler".into() }));
        via_etcd.ask(Nanos::ZERO);
        etcd.next().held_by(Some("somewhere"));
        changed(&via_etcd, &leaderless);
        assert!(matches!(via_etcd.addr(), Err(Unknown::NoAddress { .. })));
    }

    #[test]
    fn an_etcd_that_falls_silent_leaves_the_leader_that_was_known() {
        let (via_etcd, etcd) = asking();
        etcd.next().held_by(Some("127.0.0.1:7700"));
        changed(&via_etcd, &Err(Unknown::NotYet));
        via_etcd.ask(Nanos::ZERO);
        let silent = etcd.next();
        via_etcd.ask(Nanos::ZERO);
        // The next request comes although this one was never answered.
        let next = etcd.next();
        assert!(via_etcd.addr().is_ok());
        drop((silent, next));
    }

    /// What etcd is asked and says nothing to (it closes the connection) is a question that failed.
    #[test]
    fn only_an_address_outlasts_a_question_that_fails_and_nothing_an_answer() {
        let (via_etcd, etcd) = asking();
        let before = |question: fn(Question), before: &Result<SocketAddr, Unknown>| {
            via_etcd.ask(Nanos::ZERO);
            question(etcd.next());
            changed(&via_etcd, before);
            via_etcd.addr()
        };
        let leaderless = before(|question| question.held_by(None), &Err(Unknown::NotYet));
        let failed = before(drop, &leaderless);
        assert!(matches!(failed, Err(Unknown::Etcd(_))), "{failed:?}");
        let known = before(|question| question.held_by(Some("127.0.0.1:7700")), &failed);
        assert!(known.is_ok(), "{known:?}");
        let unreadable = before(|question| question.held_by(Some("somewhere")), &known);
        assert!(matches!(unreadable, Err(Unknown::NoAddress { .. })), "{unreadable:?}");
    }

    #[test]
    fn who_waits_asks_until_there_is_a_leader() {
        let (via_etcd, etcd) = asking();
        std::thread::spawn(move || {
            let answers = [None, None, None, Some("127.0.0.1:7700")];
            answers.into_iter().for_each(|value| etcd.next().held_by(value));
        });
        assert_eq!(via_etcd.wait(LONG), Ok("127.0.0.1:7700".parse().unwrap()));
    }

    #[test]
    fn an_etcd_that_does_not_answer_is_named_within_the_time_given() {
        let via_etcd = Lookup::start(&EtcdSpec {
            endpoints: vec!["http://127.0.0.1:1".into()],
            ..PlayedEtcd::start().spec(2)
        })
        .unwrap();
        let unknown = via_etcd.wait(Duration::from_secs(2)).unwrap_err();
        assert!(unknown.to_string().contains("http://127.0.0.1:1"), "{unknown}");
    }
}

//! The thread of an election: it sends etcd the requests of [`Election`] and extends the lease deadline.
//!
//! The scheduler gets [`LeaderEvent`]s and the [`LeaseDeadline`], which its agents check themselves. Stopping in time does
//! not need the thread: if it hangs, nothing extends the deadline any more.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;

use baton_topo::{Clock, EtcdSpec, LeaseDeadline};
use baton_types::Nanos;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::StartError;
use crate::election::{Election, End, Step};
use crate::etcd::{Etcd, EtcdError};
use crate::etcd_messages::EtcdRequest;

/// An election has at most three events.
const EVENTS_MAX: usize = 3;

/// What an election leads to.
#[derive(Clone, Debug)]
pub enum LeaderEvent {
    /// Another scheduler leads; sent once.
    Standby {
        /// Its address, if etcd holds one.
        leader: Option<SocketAddr>,
    },
    /// This scheduler leads, until the lease deadline passes.
    Leads {
        /// etcd's revision: every leader's is higher than its predecessor's.
        epoch: u64,
        /// Until when its scheduler may act.
        lease_deadline: LeaseDeadline,
    },
    /// This scheduler no longer leads. The lease deadline has passed.
    Lost {
        /// Why.
        problem: String,
    },
}

/// A running election. Dropping it resigns: a scheduler that leads must have stopped serving before.
#[derive(Debug)]
pub struct ElectionThread {
    events: Receiver<LeaderEvent>,
    /// Disconnecting it is the order to resign.
    resign: Option<Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

impl ElectionThread {
    /// Starts the election. Members will reach this scheduler at `addr`.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(spec: &EtcdSpec, addr: SocketAddr, clock: Clock) -> Result<Self, StartError> {
        let ttl = Nanos::from_millis(u64::from(spec.lease_ttl_s) * 1_000);
        let patience = Duration::from_nanos(Election::patience(ttl).0);
        let etcd = Etcd::new(spec, Some(addr), patience)?;
        let (events_out, events) = bounded(EVENTS_MAX);
        let (resign, orders) = bounded(0);
        let campaign = Campaign {
            election: Election::new(ttl),
            etcd,
            clock,
            events: events_out,
            lease_deadline: None,
            is_standby: false,
            problem: None,
        };
        let thread = std::thread::Builder::new()
            .name("baton-candidate".into())
            .spawn(move || campaign.run(&orders))?;
        Ok(Self { events, resign: Some(resign), thread: Some(thread) })
    }

    /// The next event, if there is one within `timeout`.
    pub fn next_event(&self, timeout: Duration) -> Option<LeaderEvent> {
        match self.events.recv_timeout(timeout) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                Some(LeaderEvent::Lost { problem: "its thread has died; see the log above".into() })
            }
        }
    }
}

impl Drop for ElectionThread {
    /// Takes a few attempts to reach etcd at most.
    fn drop(&mut self) {
        drop(self.resign.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the candidate's thread panicked; please report this");
        }
    }
}

/// What the thread owns.
struct Campaign {
    election: Election,
    etcd: Etcd,
    clock: Clock,
    events: Sender<LeaderEvent>,
    /// Once it leads.
    lease_deadline: Option<LeaseDeadline>,
    is_standby: bool,
    /// The last request's, if it had no answer.
    problem: Option<EtcdError>,
}

impl Campaign {
    fn run(mut self, orders: &Receiver<Infallible>) {
        loop {
            match self.election.step(self.clock.now()) {
                Step::Ask(request) => self.ask(request),
                Step::Wait(until) => self.wait(until, orders),
                Step::Ended(end) => return self.end(end, orders),
            }
            self.proclaim();
        }
    }

    fn ask(&mut self, request: EtcdRequest) {
        let sent = self.clock.now();
        let answer = self.etcd.ask(request);
        self.election.answered(sent, self.clock.now(), answer.as_ref().ok().copied());
        match (answer, self.problem.take()) {
            (Err(error), None) => {
                tracing::warn!(%error, "etcd does not answer");
                self.problem = Some(error);
            }
            (Err(error), Some(_)) => self.problem = Some(error),
            (Ok(_), Some(_)) => tracing::info!("etcd answers again"),
            (Ok(_), None) => {}
        }
    }

    fn wait(&mut self, until: Nanos, orders: &Receiver<Infallible>) {
        let span = Duration::from_nanos((until - self.clock.now()).0);
        if let Err(RecvTimeoutError::Disconnected) = orders.recv_timeout(span) {
            self.election.resign(self.clock.now());
        }
    }

    /// Extends the lease deadline, or reports a change of leadership to the scheduler.
    fn proclaim(&mut self) {
        match (self.election.lease_deadline(self.clock.now()), &self.lease_deadline) {
            // If the agents have stopped meanwhile, the scheduler must end; it sees so itself.
            (Some((_, ends)), Some(lease_deadline)) => {
                lease_deadline.extend(ends);
            }
            (Some((epoch, ends)), None) => {
                let lease_deadline = self.lease_deadline.insert(LeaseDeadline::until(ends)).clone();
                self.tell(LeaderEvent::Leads { epoch, lease_deadline });
            }
            (None, _) => {
                if let Some(holder) = self.election.leader()
                    && !std::mem::replace(&mut self.is_standby, true)
                {
                    self.tell(LeaderEvent::Standby { leader: holder.addr });
                }
            }
        }
    }

    fn end(self, end: End, orders: &Receiver<Infallible>) {
        if let Some(lease_deadline) = &self.lease_deadline {
            lease_deadline.end();
        }
        if end == End::Resigned {
            return;
        }
        let gone = "etcd has ended the lease, or this process stood still".to_owned();
        let problem = self.problem.as_ref().map_or(gone, ToString::to_string);
        self.tell(LeaderEvent::Lost { problem });
        // The event would be "died" if the channel closed now.
        let _ = orders.recv();
    }

    fn tell(&self, event: LeaderEvent) {
        // There is room for all there can be. Without a listener the event has no reader.
        let _ = self.events.try_send(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd_messages::{EtcdResponse, Holder, LeaseId};
    use crate::played_etcd::{LONG, PlayedEtcd, held};

    const GRANTED: &str = r#"{"ID":"7","TTL":"2"}"#;
    const WON: &str = r#"{"header":{"revision":"5"},"succeeded":true}"#;
    const KEPT: &str = r#"{"result":{"ID":"7","TTL":"2"}}"#;
    const ENDED: &str = r#"{"result":{"ID":"7"}}"#;

    /// A candidate at 127.0.0.1:7700, and its etcd.
    fn candidate(ttl_s: u32, clock: Clock) -> (ElectionThread, PlayedEtcd) {
        let etcd = PlayedEtcd::start();
        let addr = "127.0.0.1:7700".parse().unwrap();
        (ElectionThread::start(&etcd.spec(ttl_s), addr, clock).unwrap(), etcd)
    }

    /// The key is free: it leads.
    fn elected(thread: &ElectionThread, etcd: &PlayedEtcd, granted: &str) -> LeaseDeadline {
        etcd.answer("/v3/kv/range", &held(None));
        etcd.answer("/v3/lease/grant", granted);
        etcd.answer("/v3/kv/txn", WON);
        match thread.next_event(LONG) {
            Some(LeaderEvent::Leads { epoch: 5, lease_deadline }) => lease_deadline,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_candidate_takes_the_key_once_it_is_free_and_keeps_it() {
        let clock = Clock::start();
        let (thread, etcd) = candidate(2, clock);
        etcd.answer("/v3/kv/range", &held(Some("127.0.0.1:7701")));
        let Some(LeaderEvent::Standby { leader }) = thread.next_event(LONG) else { panic!() };
        assert_eq!(leader, "127.0.0.1:7701".parse().ok());
        etcd.answer("/v3/kv/range", &held(None));
        let granted = clock.now();
        assert_eq!(etcd.answer("/v3/lease/grant", GRANTED), serde_json::json!({ "TTL": 2 }));
        let campaign = etcd.answer("/v3/kv/txn", WON).to_string();
        // 127.0.0.1:7700
        assert!(campaign.contains("MTI3LjAuMC4xOjc3MDA="), "{campaign}");
        let Some(LeaderEvent::Leads { .. }) = thread.next_event(LONG) else { panic!() };
        for _ in 0..3 {
            assert_eq!(etcd.answer("/v3/lease/keepalive", KEPT)["ID"], "7");
        }
        let pauses = Election::patience(Nanos::from_millis(2_000)).times(2);
        let is_patient = clock.now() >= granted + pauses;
        assert!(is_patient, "renewed more often than each fifth of the lease");
        assert!(thread.next_event(Duration::ZERO).is_none(), "no change, no word");
    }

    /// Its next renewal is due in two minutes. Who waits for the key has not so long.
    #[test]
    fn who_is_told_to_resign_gives_the_lease_back_at_once() {
        let (thread, etcd) = candidate(600, Clock::start());
        let lease_deadline = elected(&thread, &etcd, r#"{"ID":"7","TTL":"600"}"#);
        etcd.answer("/v3/lease/keepalive", r#"{"result":{"ID":"7","TTL":"600"}}"#);
        let resigning = std::thread::spawn(move || drop(thread));
        let question = etcd.next();
        assert_eq!((&question.path[..], &question.body["ID"]), ("/v3/lease/revoke", &"7".into()));
        assert!(
            !resigning.is_finished(),
            "who drops it may end the process: not before the answer"
        );
        question.answer("200 OK", "{}");
        resigning.join().unwrap();
        assert_eq!(lease_deadline.ends(), None);
    }

    #[test]
    fn whose_lease_etcd_has_ended_says_so_once_and_acts_no_more() {
        let clock = Clock::start();
        let (thread, etcd) = candidate(600, clock);
        let lease_deadline = elected(&thread, &etcd, r#"{"ID":"7","TTL":"600"}"#);
        assert!(lease_deadline.is_valid(clock.now()));
        etcd.next().answer("503 Service Unavailable", "{}");
        etcd.answer("/v3/lease/keepalive", ENDED);
        let Some(LeaderEvent::Lost { problem }) = thread.next_event(LONG) else { panic!() };
        assert!(problem.contains("etcd has ended the lease"), "{problem}");
        assert_eq!(lease_deadline.ends(), None);
        assert!(thread.next_event(Duration::from_millis(1)).is_none(), "it has not died");
    }

    #[test]
    fn a_thread_that_died_leads_no_more() {
        let thread = ElectionThread { events: bounded(0).1, resign: None, thread: None };
        let Some(LeaderEvent::Lost { problem }) = thread.next_event(LONG) else { panic!() };
        assert!(problem.contains("died"), "{problem}");
    }

    /// One that leads until `lease_deadline`, with an etcd that does not answer.
    fn leading(lease_deadline: &LeaseDeadline) -> (Campaign, Receiver<LeaderEvent>) {
        let (campaign, heard) = beginning();
        (Campaign { lease_deadline: Some(lease_deadline.clone()), ..campaign }, heard)
    }

    fn beginning() -> (Campaign, Receiver<LeaderEvent>) {
        let spec = EtcdSpec {
            endpoints: vec!["http://127.0.0.1:1".into()],
            prefix: "/x".into(),
            lease_ttl_s: 1,
            tls: None,
        };
        let (events, heard) = bounded(EVENTS_MAX);
        let campaign = Campaign {
            election: Election::new(Nanos::from_millis(1_000)),
            etcd: Etcd::new(&spec, None, Duration::ZERO).unwrap(),
            clock: Clock::start(),
            events,
            lease_deadline: None,
            is_standby: false,
            problem: None,
        };
        (campaign, heard)
    }

    fn resigned() -> Receiver<Infallible> {
        bounded(0).1
    }

    /// The election gets this answer to its next request.
    fn answer(campaign: &mut Campaign, answer: EtcdResponse) {
        let now = campaign.clock.now();
        assert!(matches!(campaign.election.step(now), Step::Ask(_)), "{answer:?}");
        campaign.election.answered(now, now, Some(answer));
        campaign.proclaim();
    }

    #[test]
    fn the_scheduler_hears_once_that_it_leads_and_then_keeps_its_lease() {
        let (mut campaign, heard) = beginning();
        let (lease, ttl) = (LeaseId(7), Nanos::from_millis(60_000));
        answer(&mut campaign, EtcdResponse::Held(None));
        answer(&mut campaign, EtcdResponse::Granted { lease, ttl });
        assert!(heard.is_empty(), "it does not lead yet");
        answer(&mut campaign, EtcdResponse::Won { epoch: 5 });
        let Ok(LeaderEvent::Leads { epoch: 5, lease_deadline }) = heard.try_recv() else {
            panic!()
        };
        assert!(lease_deadline.is_valid(campaign.clock.now()));
        answer(&mut campaign, EtcdResponse::Renewed { ttl: ttl.times(9) });
        let now = campaign.clock.now();
        assert!(lease_deadline.is_valid(now + ttl.times(3)) && heard.is_empty(), "without a word");
        assert!(!lease_deadline.is_valid(now + ttl.times(9)), "stopped before it ends");
    }

    #[test]
    fn a_standby_says_once_who_leads_and_resigns_while_it_waits() {
        let (mut campaign, heard) = beginning();
        let addr = "127.0.0.1:7700".parse().ok();
        let holder = Holder { lease: LeaseId(7), epoch: 5, addr };
        answer(&mut campaign, EtcdResponse::Held(Some(holder)));
        let Ok(LeaderEvent::Standby { leader }) = heard.try_recv() else { panic!() };
        assert_eq!(leader, addr);
        campaign.proclaim();
        assert!(heard.is_empty());
        let (_resign, orders) = bounded(0);
        campaign.wait(Nanos::ZERO, &orders);
        assert!(matches!(campaign.election.step(Nanos::ZERO), Step::Wait(_)), "no order has come");
        campaign.wait(Nanos::MAX, &resigned());
        assert_eq!(campaign.election.step(Nanos::ZERO), Step::Ended(End::Resigned));
    }

    /// Another may lead as soon as the lease is given back.
    #[test]
    fn whoever_no_longer_leads_has_no_time_left() {
        for end in [End::Resigned, End::Lost] {
            let lease_deadline = LeaseDeadline::until(Nanos::MAX);
            let (campaign, _heard) = leading(&lease_deadline);
            campaign.end(end, &resigned());
            assert!(!lease_deadline.is_valid(Nanos::ZERO), "{end:?}");
        }
    }

    #[test]
    fn who_has_resigned_has_lost_nothing() {
        let (campaign, heard) = leading(&LeaseDeadline::until(Nanos::MAX));
        campaign.end(End::Resigned, &resigned());
        assert!(heard.try_recv().is_err());
    }

    /// However often etcd did not answer, the end has its reason.
    #[test]
    fn who_loses_the_lease_says_what_was_wrong_with_etcd() {
        for (questions, words) in [(0, "stood still"), (1, "127.0.0.1:1"), (2, "127.0.0.1:1")] {
            let (mut campaign, heard) = leading(&LeaseDeadline::until(Nanos::MAX));
            (0..questions).for_each(|_| campaign.ask(EtcdRequest::Look));
            campaign.end(End::Lost, &resigned());
            let LeaderEvent::Lost { problem } = heard.recv().unwrap() else { panic!() };
            assert!(problem.contains(words), "{questions}: {problem}");
        }
    }
}

//! A candidacy's thread: it asks etcd what [`Candidacy`] wants to know, and puts the tenure off.
//!
//! Towards the scheduler: [`News`], and the [`Tenure`] its agents look at themselves. The thread is not needed
//! for stopping in time: if it hangs, the tenure is not put off any more.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;

use baton_core::Nanos;
use baton_topo::{Clock, EtcdSpec, Tenure};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::StartError;
use crate::candidacy::{Candidacy, End, Step};
use crate::etcd::{Etcd, EtcdError};
use crate::question::Question;

/// There are three at most in a candidacy.
const NEWS_MAX: usize = 3;

/// What becomes of a candidacy.
#[derive(Clone, Debug)]
pub enum News {
    /// Somebody else leads; told once.
    Standby {
        /// Where, as far as it can be told.
        leader: Option<SocketAddr>,
    },
    /// It leads, until the tenure ends.
    Leads {
        /// etcd's revision: every leader's is higher than its predecessor's.
        epoch: u64,
        /// Until when its scheduler may act.
        tenure: Tenure,
    },
    /// It led, and does not any more. The tenure is over.
    Lost {
        /// Why.
        problem: String,
    },
}

/// A running candidacy. Dropping it resigns: who leads must have stopped serving before.
#[derive(Debug)]
pub struct Candidate {
    news: Receiver<News>,
    /// Disconnecting it is the order to resign.
    resign: Option<Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

impl Candidate {
    /// Begins to look whether somebody leads. `addr` is where members will reach this scheduler.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(spec: &EtcdSpec, addr: SocketAddr, clock: Clock) -> Result<Self, StartError> {
        let ttl = Nanos::from_millis(u64::from(spec.lease_ttl_s) * 1_000);
        let patience = Duration::from_nanos(Candidacy::patience(ttl).0);
        let etcd = Etcd::new(spec, Some(addr), patience)?;
        let (news_out, news) = bounded(NEWS_MAX);
        let (resign, orders) = bounded(0);
        let campaign = Campaign {
            candidacy: Candidacy::new(ttl),
            etcd,
            clock,
            news: news_out,
            tenure: None,
            is_standby: false,
            problem: None,
        };
        let thread = std::thread::Builder::new()
            .name("baton-candidate".into())
            .spawn(move || campaign.run(&orders))?;
        Ok(Self { news, resign: Some(resign), thread: Some(thread) })
    }

    /// The next news, if there are any within `timeout`.
    pub fn news(&self, timeout: Duration) -> Option<News> {
        match self.news.recv_timeout(timeout) {
            Ok(news) => Some(news),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                Some(News::Lost { problem: "its thread has died; see the log above".into() })
            }
        }
    }
}

impl Drop for Candidate {
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
    candidacy: Candidacy,
    etcd: Etcd,
    clock: Clock,
    news: Sender<News>,
    /// Once it leads.
    tenure: Option<Tenure>,
    is_standby: bool,
    /// The last question's, if it had no answer.
    problem: Option<EtcdError>,
}

impl Campaign {
    fn run(mut self, orders: &Receiver<Infallible>) {
        loop {
            match self.candidacy.step(self.clock.now()) {
                Step::Ask(question) => self.ask(question),
                Step::Wait(until) => self.wait(until, orders),
                Step::Ended(end) => return self.end(end, orders),
            }
            self.proclaim();
        }
    }

    fn ask(&mut self, question: Question) {
        let sent = self.clock.now();
        let answer = self.etcd.ask(question);
        self.candidacy.answered(sent, self.clock.now(), answer.as_ref().ok().copied());
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
            self.candidacy.resign(self.clock.now());
        }
    }

    /// Tells what has changed.
    fn proclaim(&mut self) {
        match (self.candidacy.tenure(self.clock.now()), &self.tenure) {
            // If the agents have stopped meanwhile, the scheduler must end; it sees so itself.
            (Some((_, ends)), Some(tenure)) => {
                tenure.extend(ends);
            }
            (Some((epoch, ends)), None) => {
                let tenure = self.tenure.insert(Tenure::until(ends)).clone();
                self.tell(News::Leads { epoch, tenure });
            }
            (None, _) => {
                if let Some(holder) = self.candidacy.leader()
                    && !std::mem::replace(&mut self.is_standby, true)
                {
                    self.tell(News::Standby { leader: holder.addr });
                }
            }
        }
    }

    fn end(self, end: End, orders: &Receiver<Infallible>) {
        if let Some(tenure) = &self.tenure {
            tenure.end();
        }
        if end == End::Resigned {
            return;
        }
        let gone = "etcd has ended the lease, or this process stood still".to_owned();
        let problem = self.problem.as_ref().map_or(gone, ToString::to_string);
        self.tell(News::Lost { problem });
        // The news would be "died" if the channel closed now.
        let _ = orders.recv();
    }

    fn tell(&self, news: News) {
        // There is room for all there can be; and if nobody listens, nobody is to be told.
        let _ = self.news.try_send(news);
    }
}

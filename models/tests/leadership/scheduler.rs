//! A scheduler as far as its leadership goes: the real election, what it has asked etcd, and the real lease deadline.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use baton_core::Nanos;
use baton_leader::{Election, EtcdResponse, Step};
use baton_topo::LeaseDeadline;

use crate::etcd::{Asked, Etcd};
use crate::{TICK, TTL_TICKS};

/// A request without an answer yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Pending {
    asked: Asked,
    /// On the scheduler's clock.
    sent: Nanos,
    is_carried_out: bool,
    answer: Option<EtcdResponse>,
}

/// See the module documentation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Scheduler {
    election: Election,
    pub(crate) pending: Option<Pending>,
    /// Epoch and end of its lease deadline; an end of zero is over for good.
    deadline: Option<(u64, Nanos)>,
    /// The thread of its election stands still. Its agents go on: that is the worse case.
    pub(crate) hangs: bool,
    /// How fast its clock runs, in eighths of etcd's.
    pub(crate) eighths: u8,
}

pub(crate) fn addr(number: usize) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7_700 + number as u16)
}

impl Scheduler {
    pub(crate) fn new(eighths: u8) -> Self {
        let election = Election::new(TICK.times(u64::from(TTL_TICKS)));
        Self { election, pending: None, deadline: None, hangs: false, eighths }
    }

    fn clock(&self, tick: u8) -> Nanos {
        Nanos(TICK.0 / 8 * u64::from(self.eighths) * u64::from(tick))
    }

    /// The epoch in which its agents act at this tick, if they do.
    pub(crate) fn acts(&self, tick: u8) -> Option<u64> {
        let (epoch, ends) = self.deadline?;
        LeaseDeadline::until(ends).is_valid(self.clock(tick)).then_some(epoch)
    }

    /// Its agents make a pass: what is over for one is over for all.
    pub(crate) fn look(&mut self, tick: u8) {
        let now = self.clock(tick);
        if let Some((_, ends)) = &mut self.deadline {
            let deadline = LeaseDeadline::until(*ends);
            deadline.is_valid(now);
            *ends = deadline.ends().unwrap_or(Nanos::ZERO);
        }
    }

    /// Whether its thread has something to do at this tick.
    pub(crate) fn is_due(&self, tick: u8) -> bool {
        let now = self.clock(tick);
        let is_waiting = match self.pending {
            Some(pending) => now < pending.sent + self.patience(),
            None => matches!(self.election.clone().step(now), Step::Wait(_)),
        };
        !self.hangs && !is_waiting
    }

    fn patience(&self) -> Nanos {
        Election::patience(TICK.times(u64::from(TTL_TICKS)))
    }

    /// What its thread does next. Returns what it asks; with `is_slow` the request is under way then. A request that it
    /// gives up may still be carried out: it is added to `strays`.
    pub(crate) fn run(
        &mut self,
        tick: u8,
        number: usize,
        is_slow: bool,
        etcd: &mut Etcd,
        strays: &mut Vec<Asked>,
    ) {
        let now = self.clock(tick);
        if let Some(pending) = self.pending.take() {
            strays.extend((!pending.is_carried_out).then_some(pending.asked));
            self.election.answered(pending.sent, now, None);
            return self.proclaim(now);
        }
        match self.election.step(now) {
            Step::Ask(request) => {
                let asked = Asked { request, addr: addr(number) };
                let (is_carried_out, answer) = match is_slow {
                    true => (false, None),
                    false => (true, etcd.carry_out(tick, asked)),
                };
                self.pending = Some(Pending { asked, sent: now, is_carried_out, answer });
                if answer.is_some() {
                    self.answered(tick);
                }
            }
            Step::Wait(_) => {}
            Step::Ended(_) => *self = Self::new(self.eighths),
        }
        self.proclaim(now);
    }

    /// etcd gets to the request that is under way.
    pub(crate) fn carry_out(&mut self, tick: u8, etcd: &mut Etcd) {
        if let Some(pending) = &mut self.pending {
            pending.is_carried_out = true;
            pending.answer = etcd.carry_out(tick, pending.asked);
        }
    }

    pub(crate) fn is_with_etcd(&self) -> bool {
        self.pending.is_some_and(|pending| !pending.is_carried_out)
    }

    /// The answer is under way, and the thread would take it.
    pub(crate) fn has_answer(&self) -> bool {
        !self.hangs && self.pending.is_some_and(|pending| pending.answer.is_some())
    }

    pub(crate) fn answered(&mut self, tick: u8) {
        let now = self.clock(tick);
        if let Some(pending) = self.pending.take() {
            self.election.answered(pending.sent, now, pending.answer);
            self.proclaim(now);
        }
    }

    /// As `ElectionThread` does it.
    fn proclaim(&mut self, now: Nanos) {
        match (self.election.lease_deadline(now), &mut self.deadline) {
            (Some((_, ends)), Some((_, extended))) => {
                let deadline = LeaseDeadline::until(*extended);
                deadline.extend(ends);
                *extended = deadline.ends().unwrap_or(Nanos::ZERO);
            }
            (Some(led), deadline @ None) => *deadline = Some(led),
            (None, _) => {}
        }
    }

    /// Its agents stop, and it gives its lease back.
    pub(crate) fn resign(&mut self, tick: u8) {
        self.deadline = self.deadline.map(|(epoch, _)| (epoch, Nanos::ZERO));
        self.election.resign(self.clock(tick));
    }
}

//! One scheduler's way to lead and to stop in time, as a pure state machine.
//!
//! In: `now`, and etcd's answers with the moment their request was sent. Out: the next request, or until
//! when to wait. One request is under way at a time. etcd may have carried out a request without an answer,
//! or may do so later; the states below are safe either way.
//!
//! ```text
//! standby ── no leader ─────▶ granting ──▶ campaigning ── won ──▶ leading ── not renewed in time ──▶ lost
//!    ▲  ▲──────────────────── another leads ───┘ │ ▲ no answer
//!    └──────────────────────── another leads ── unsure
//! ```

use baton_types::Nanos;

use crate::etcd_messages::{EtcdRequest, EtcdResponse, Holder, LeaseId};

/// How often a standby checks whether another scheduler leads.
const LOOK_EVERY: Nanos = Nanos::from_millis(200);
/// The pause after a request that etcd did not answer.
const RETRY: Nanos = Nanos::from_millis(50);
/// How often it is tried to give a lease back. Without, it ends by itself.
const REVOCATIONS: u32 = 3;

/// The parts of a lease's time. With 2 s: renewed every 400 ms, answers awaited for 400 ms, so four attempts
/// fit; over 250 ms early.
const RENEW_PART: u64 = 5;
const MARGIN_PART: u64 = 8;

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Ask etcd, then call [`Election::answered`].
    Ask(EtcdRequest),
    /// Nothing before this moment.
    Wait(Nanos),
    /// It is over.
    Ended(End),
}

/// How an election ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum End {
    /// It resigned.
    Resigned,
    /// It led, and its lease ended or was about to.
    Lost,
}

/// A lease, on the candidate's own clock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Lease {
    id: LeaseId,
    /// By then we must have stopped: a margin before it can end in etcd, counted from before the request.
    ends: Nanos,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum State {
    Standby {
        at: Nanos,
    },
    Granting,
    Campaigning {
        lease: Lease,
    },
    /// A campaign was not answered: it may have been won.
    Unsure {
        lease: Lease,
        at: Nanos,
    },
    Leading {
        lease: Lease,
        epoch: u64,
        renew_at: Nanos,
    },
    Resigning {
        lease: Lease,
        at: Nanos,
        left: u32,
    },
    Ended(End),
}

/// The state machine. It reads no clock and sends no request itself.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Election {
    renew_every: Nanos,
    state: State,
    leader: Option<Holder>,
}

impl Election {
    /// A standby that checks the key at its first step. `ttl` is the duration of the leases it requests.
    pub fn new(ttl: Nanos) -> Self {
        let state = State::Standby { at: Nanos::ZERO };
        Self { renew_every: Self::patience(ttl), state, leader: None }
    }

    /// How long an answer may take with leases of `ttl`: several attempts fit into one.
    pub fn patience(ttl: Nanos) -> Nanos {
        Nanos(ttl.0 / RENEW_PART)
    }

    /// What to do at `now`.
    pub fn step(&mut self, now: Nanos) -> Step {
        self.expire(now);
        match self.state {
            State::Standby { at } if now >= at => Step::Ask(EtcdRequest::Look),
            State::Standby { at } => Step::Wait(at),
            State::Granting => Step::Ask(EtcdRequest::Grant),
            State::Campaigning { lease } => Step::Ask(EtcdRequest::Campaign(lease.id)),
            State::Unsure { at, .. } if now >= at => Step::Ask(EtcdRequest::Look),
            State::Unsure { at, .. } => Step::Wait(at),
            State::Leading { lease, renew_at, .. } if now >= renew_at => {
                Step::Ask(EtcdRequest::Renew(lease.id))
            }
            State::Leading { lease, renew_at, .. } => Step::Wait(renew_at.min(lease.ends)),
            State::Resigning { lease, at, .. } if now >= at => {
                Step::Ask(EtcdRequest::Revoke(lease.id))
            }
            State::Resigning { at, .. } => Step::Wait(at),
            State::Ended(end) => Step::Ended(end),
        }
    }

    /// The answer to the last request, sent at `sent` (read before sending) and received at `now`. `None`:
    /// no answer came, or not in time.
    pub fn answered(&mut self, sent: Nanos, now: Nanos, answer: Option<EtcdResponse>) {
        self.expire(now);
        let again = now + RETRY;
        self.state = match (self.state, answer) {
            (State::Standby { .. }, Some(EtcdResponse::Held(None))) => {
                self.leader = None;
                State::Granting
            }
            (State::Granting, Some(EtcdResponse::Granted { lease, ttl })) => {
                State::Campaigning { lease: leased(lease, sent, ttl) }
            }
            (State::Campaigning { lease }, Some(EtcdResponse::Won { epoch })) => {
                State::Leading { lease, epoch, renew_at: now }
            }
            (State::Campaigning { lease }, None) => State::Unsure { lease, at: again },
            (
                State::Campaigning { lease } | State::Unsure { lease, .. },
                Some(EtcdResponse::Held(by)),
            ) => self.held_by(by, lease, now),
            (State::Unsure { lease, .. }, None) => State::Unsure { lease, at: again },
            (State::Leading { lease, epoch, .. }, Some(EtcdResponse::Renewed { ttl })) => {
                let ends = leased(lease.id, sent, ttl).ends.max(lease.ends);
                let lease = Lease { ends, ..lease };
                State::Leading { lease, epoch, renew_at: sent + self.renew_every }
            }
            (State::Leading { .. }, Some(EtcdResponse::Gone)) => State::Ended(End::Lost),
            (State::Leading { lease, epoch, .. }, _) => {
                State::Leading { lease, epoch, renew_at: again }
            }
            (State::Resigning { lease, left, .. }, None) if left > 0 => {
                State::Resigning { lease, at: again, left: left - 1 }
            }
            (State::Resigning { .. }, _) => State::Ended(End::Resigned),
            (State::Ended(end), _) => State::Ended(end),
            (_, answer) => {
                if let Some(EtcdResponse::Held(by)) = answer {
                    self.leader = by;
                }
                State::Standby { at: now + LOOK_EVERY }
            }
        };
    }

    /// Gives back its lease, and ends. A leader must have stopped serving before.
    pub fn resign(&mut self, now: Nanos) {
        self.state = match self.state {
            State::Campaigning { lease }
            | State::Unsure { lease, .. }
            | State::Leading { lease, .. } => {
                State::Resigning { lease, at: now, left: REVOCATIONS - 1 }
            }
            State::Standby { .. } | State::Granting => State::Ended(End::Resigned),
            State::Resigning { .. } | State::Ended(_) => self.state,
        };
    }

    /// If it leads at `now`: its epoch, and until when it may act unless that is put off.
    pub fn lease_deadline(&self, now: Nanos) -> Option<(u64, Nanos)> {
        match self.state {
            State::Leading { lease, epoch, .. } if now < lease.ends => Some((epoch, lease.ends)),
            _ => None,
        }
    }

    /// The leader at the last check, unless this scheduler leads itself.
    pub fn leader(&self) -> Option<Holder> {
        self.leader
    }

    /// A lease that may have ended is worth nothing.
    fn expire(&mut self, now: Nanos) {
        self.state = match self.state {
            State::Leading { lease, .. } if now >= lease.ends => State::Ended(End::Lost),
            State::Resigning { lease, .. } if now >= lease.ends => State::Ended(End::Resigned),
            State::Campaigning { lease } | State::Unsure { lease, .. } if now >= lease.ends => {
                State::Standby { at: now }
            }
            state => state,
        };
    }

    /// The next state, given the key's holder, while we hold `lease` and may have campaigned with it.
    fn held_by(&mut self, holder: Option<Holder>, lease: Lease, now: Nanos) -> State {
        match holder {
            None => State::Campaigning { lease },
            Some(Holder { lease: id, epoch, .. }) if id == lease.id => {
                State::Leading { lease, epoch, renew_at: now }
            }
            other => {
                self.leader = other;
                State::Standby { at: now + LOOK_EVERY }
            }
        }
    }
}

/// A lease whose time began at `sent` at the earliest.
fn leased(id: LeaseId, sent: Nanos, ttl: Nanos) -> Lease {
    Lease { id, ends: sent + (ttl - Nanos(ttl.0 / MARGIN_PART)) }
}

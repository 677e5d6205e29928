//! The real membership, the member around it, and the scheduler's side of the conversation.

use std::hash::{Hash, Hasher};

use baton_core::Nanos;
use baton_membership::{Member, Membership, MembershipError, Received, Stage, Step};
use baton_rdma::wire::{
    CatalogEnd, JoinAck, JoinFrontend, Kind, LeaveAck, Message, Pong, RefuseCode, Role, ThreadDesc,
    WireAddr,
};
use baton_rdma::{CloseReason, ConnId, Peer, Transport as _};
use baton_topo::ReconnectSpec;

use crate::fabric::{CONTROL, Fabric, thread_addr};

const MEMBER_TIMEOUT: Nanos = Nanos::from_millis(1_000);
/// An agent looks up so often.
const PASS_MAX: Nanos = Nanos::from_millis(100);
/// More passes without anything new are a hang.
const PASSES_MAX: usize = 100;

/// What the scheduler has done in the present attempt to join.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Attempt {
    /// Which one; the scheduler names the member by it.
    pub(crate) number: u32,
    pub(crate) control: Option<ConnId>,
    /// How many ModelThreads it has named.
    pub(crate) named: u32,
    pub(crate) has_catalogue: bool,
    pub(crate) is_admitted: bool,
}

/// How the member's conversation went on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// It has not ended.
    Open,
    /// The scheduler has confirmed the leave.
    Left,
    /// The member left, and nothing confirmed it.
    Unconfirmed,
    /// No other attempt could succeed. True if that may be.
    GaveUp(bool),
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct World {
    role: Role,
    pub(crate) now: Nanos,
    pub(crate) membership: Membership,
    pub(crate) fabric: Fabric,
    pub(crate) attempt: Attempt,
    pub(crate) is_mute: bool,
    pub(crate) end: End,
    /// Passes of a member that is Ready, with nothing new.
    pub(crate) idles: u8,
    pub(crate) faults: u8,
    /// What must never happen, and did.
    pub(crate) broken: Option<&'static str>,
    pub(crate) was_silent: bool,
    key: u64,
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

fn peer(role: Role, member: u32) -> Peer {
    Peer { role, member, token: 0, addr: CONTROL, accepted: false, version: 1 }
}

impl World {
    pub(crate) fn new(role: Role) -> Self {
        let membership = Membership::new(Member {
            role,
            scheduler: CONTROL.into(),
            reconnect: ReconnectSpec::default(),
            seed: 7,
            join_timeout: Nanos::from_millis(3_000),
            join_timeout_setting: "join_timeout",
            member_timeout: MEMBER_TIMEOUT,
        });
        Self {
            role,
            now: Nanos::from_millis(1_000),
            membership,
            fabric: Fabric::default(),
            attempt: Attempt::default(),
            is_mute: false,
            end: End::Open,
            idles: 0,
            faults: 0,
            broken: None,
            was_silent: false,
            key: 0,
        }
    }

    /// States that look the same are the same.
    pub(crate) fn seal(mut self) -> Self {
        self.key = 0;
        let mut hasher = std::hash::DefaultHasher::new();
        format!("{self:?}").hash(&mut hasher);
        self.key = hasher.finish();
        self
    }

    pub(crate) fn stage(&self) -> Stage {
        self.membership.stage()
    }

    /// What the member's agent does with what its membership returned.
    fn met(&mut self, result: Result<(), MembershipError>) {
        let Err(error) = result else { return };
        self.was_silent |= matches!(error, MembershipError::Silent { .. });
        if self.stage() == Stage::Leaving {
            self.membership.end();
            self.end = End::Unconfirmed;
            return;
        }
        let is_final = self.stage() != Stage::Ready && self.is_final(&error);
        if let Err(error) = self.membership.fail(self.now, error) {
            self.end = End::GaveUp(self.may_give_up(&error));
            self.membership.let_go("no other attempt can succeed", &mut self.fabric);
            self.membership.end();
        } else if is_final {
            self.broken = Some("it tries again although nothing can mend that");
        }
    }

    /// A member that has been Ready gives up because of what no successor of this scheduler can mend.
    fn may_give_up(&self, error: &MembershipError) -> bool {
        let is_broken = matches!(error, MembershipError::BadCatalogue(_));
        self.membership.life() == 0 || is_broken || self.is_final(error)
    }

    fn is_final(&self, error: &MembershipError) -> bool {
        match error.code() {
            Some(RefuseCode::Version) => true,
            Some(RefuseCode::BadRequest) => self.role == Role::Backend,
            _ => false,
        }
    }

    /// One pass of the member.
    fn pass(&mut self) -> Step {
        match self.membership.poll(self.now, false, &mut self.fabric) {
            Ok(step) => {
                self.look_at(step);
                step
            }
            Err(error) => {
                self.met(Err(error));
                Step::Idle
            }
        }
    }

    fn look_at(&mut self, step: Step) {
        if step == Step::Connecting {
            let number = self.attempt.number + 1;
            let control = self.fabric.to(CONTROL).map(|conn| conn.id);
            self.attempt = Attempt { number, control, ..Attempt::default() };
        }
        if step == Step::Ready {
            self.idles = 0;
            self.check_ready();
        }
    }

    /// Ready needs everything of this attempt.
    fn check_ready(&mut self) {
        let Attempt { control, named, has_catalogue, is_admitted, .. } = self.attempt;
        let threads_open = (0..named)
            .all(|number| self.fabric.to(thread_addr(number)).is_some_and(|conn| conn.is_open));
        let is_told = control.is_some_and(|it| self.fabric.sent.contains(&(it, Kind::Ready)));
        if !(has_catalogue && is_admitted && named > 0 && threads_open && is_told) {
            self.broken = Some("it is Ready and has not all of this attempt");
        }
    }

    /// The scheduler answers pings, if it hears them and does not keep silent.
    fn answer_pings(&mut self) -> bool {
        let control = self.attempt.control;
        let hears = |id: ConnId| self.fabric.conns.iter().any(|it| it.id == id && it.is_open);
        let pinged = self.fabric.sent.drain(..).filter(|(_, kind)| *kind == Kind::Ping).count();
        let answers = pinged > 0 && !self.is_mute && control.is_some_and(hears);
        if answers {
            let pong = Pong { sent_ns: self.now.0.into(), scheduler_ns: self.now.0.into() };
            self.control(Message::Pong(&pong));
        }
        answers
    }

    /// Time passes until the member does something else than ping, or nothing is left to wait for.
    pub(crate) fn wait(&mut self) {
        let before = self.stage();
        for _ in 0..PASSES_MAX {
            let Some(due) = self.membership.next_timer() else { return };
            self.now = self.now.max(due.min(self.now + PASS_MAX));
            let step = self.pass();
            let is_answered = self.answer_pings();
            let is_steady = before == Stage::Ready && is_answered;
            self.idles += u8::from(is_steady && self.stage() == before);
            if is_steady || self.stage() != before || step == Step::Connecting {
                return;
            }
        }
        self.broken = Some("it is awake and has nothing to do");
    }

    /// A connection is up; with another ModelThread there than should be if not `is_right`.
    pub(crate) fn open(&mut self, conn: ConnId, thread: Option<u32>, is_right: bool) {
        if is_right {
            self.fabric.open(conn);
        }
        let peer = match thread {
            None => peer(Role::Control, 0),
            Some(number) => peer(Role::ModelThread, number + u32::from(!is_right)),
        };
        let opened = self.membership.on_opened(self.now, conn, &peer).map(drop);
        self.met(opened);
    }

    /// A connection breaks, or the scheduler closes it and says why.
    pub(crate) fn close(&mut self, conn: ConnId, reason: &CloseReason) {
        self.fabric.remove(conn);
        let is_confirmed_there =
            self.stage() == Stage::Leaving && !self.membership.is_control(conn);
        let closed = self.membership.on_closed(conn, reason).map(drop);
        if is_confirmed_there && closed.is_err() {
            self.broken = Some("a ModelThread ends a leave that the ControlThread would confirm");
        }
        self.met(closed);
    }

    /// The member hears of a connection that it has closed itself.
    pub(crate) fn hear_closed(&mut self) {
        let conn = self.fabric.closed.remove(0);
        let (stage, end) = (self.stage(), self.end);
        let closed = self.membership.on_closed(conn, &CloseReason::Local);
        if closed != Ok(false) || (stage, end) != (self.stage(), self.end) {
            self.broken = Some("a connection of before concerns the present attempt");
        }
    }

    /// A message of the ControlThread's, as a member takes it.
    fn control(&mut self, message: Message<'_>) {
        let received = self.membership.on_control(message, &mut self.fabric);
        let met = match received {
            Ok(Received::Complete) => {
                let addr = WireAddr::new(self.fabric.local_addr());
                let join = JoinFrontend { addr, slabs: 0.into() };
                self.membership.ask_to_join(self.now, &join, &[], &mut self.fabric)
            }
            Ok(Received::Left) => {
                self.end = End::Left;
                Ok(())
            }
            Ok(Received::Other(_)) => Err(self.membership.unfit("it says what does not fit")),
            Ok(Received::Handled | Received::Admitted(_)) => Ok(()),
            Err(error) => Err(error),
        };
        self.met(met);
    }

    /// The scheduler names its ModelThreads up to this number, and with `is_all` that these are all.
    pub(crate) fn announce(&mut self, threads: u32, is_all: bool) {
        for number in self.attempt.named..threads {
            let addr = WireAddr::new(thread_addr(number));
            self.control(Message::ThreadDesc(&ThreadDesc { thread: number.into(), addr }));
        }
        self.attempt.named = threads;
        if is_all {
            self.attempt.has_catalogue = true;
            self.control(Message::CatalogEnd(&CatalogEnd { scheduler_epoch: 1.into() }));
        }
    }

    pub(crate) fn admit(&mut self) {
        self.attempt.is_admitted = true;
        let number = self.attempt.number;
        let (token, first_gpu) = (u64::from(number) + 100, 0);
        let ack =
            JoinAck { member: number.into(), first_gpu: first_gpu.into(), token: token.into() };
        self.control(Message::JoinAck(&ack));
    }

    pub(crate) fn leave(&mut self) {
        let bound = self.now + MEMBER_TIMEOUT;
        let left = self.membership.leave(bound, &mut self.fabric).map(drop);
        self.met(left);
    }

    pub(crate) fn confirm_leave(&mut self) {
        self.control(Message::LeaveAck(&LeaveAck { reserved: 0.into() }));
    }
}

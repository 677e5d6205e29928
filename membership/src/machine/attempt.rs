//! Attempts to join: one after the other, until one succeeds, none can, or the time is over.

use baton_rdma::Transport;
use baton_rdma::wire::{Hello, JoinAck, RefuseCode, Role};
use baton_types::Nanos;

use super::{Membership, in_ms};
use crate::catalogue::Catalogue;
use crate::error::MembershipError;
use crate::heartbeat::Heartbeat;
use crate::stage::Stage;

/// How long connecting to the scheduler may take: a host that has lost power answers nothing.
const CONNECT_MAX: Nanos = Nanos::from_millis(1_000);

impl Membership {
    /// The present stage has lasted as long as it may.
    pub(super) fn on_stage_end<T: Transport>(
        &mut self,
        now: Nanos,
        transport: &mut T,
    ) -> Result<(), MembershipError> {
        match self.stage {
            Stage::Away => self.connect(now, transport),
            Stage::Connecting => Err(MembershipError::Closed {
                what: String::from("the scheduler"),
                addr: self.scheduler,
                reason: String::from("nothing answers"),
            }),
            stage => {
                let bound = if stage == Stage::Leaving {
                    self.member.member_timeout
                } else {
                    self.member.join_timeout
                };
                let (addr, timeout_ms, waiting_for) =
                    (self.scheduler, in_ms(bound), stage.waits_for());
                Err(MembershipError::Timeout { addr, timeout_ms, waiting_for })
            }
        }
    }

    fn connect<T: Transport>(
        &mut self,
        now: Nanos,
        transport: &mut T,
    ) -> Result<(), MembershipError> {
        self.let_go("this member joins anew", transport);
        self.began.get_or_insert(now);
        self.stage = Stage::Connecting;
        self.stage_ends = self.join_ends(now).min(now + CONNECT_MAX);
        let addr = self.member.scheduler.addr()?;
        self.scheduler = addr;
        let conn = transport.connect(addr, Hello::new(self.member.role, 0, 0));
        self.control = Some(conn.map_err(|error| MembershipError::Unreachable {
            what: String::from("the scheduler"),
            addr,
            problem: error.to_string(),
        })?);
        Ok(())
    }

    /// When an attempt that has got so far now times out. The first join has one bound for all its attempts.
    pub(super) fn join_ends(&self, now: Nanos) -> Nanos {
        let began = if self.life > 0 { None } else { self.began };
        began.unwrap_or(now) + self.member.join_timeout
    }

    /// The scheduler has admitted this member, which now connects to the ModelThreads.
    pub(super) fn admit<T: Transport>(
        &mut self,
        ack: &JoinAck,
        transport: &mut T,
    ) -> Result<(), MembershipError> {
        (self.number, self.token) = (ack.member.get(), ack.token.get());
        let hello = Hello::new(self.member.role, self.number, self.token);
        self.threads.connect(|number, addr| {
            transport.connect(addr, hello).map_err(|error| MembershipError::Unreachable {
                what: format!("ModelThread {number}"),
                addr,
                problem: error.to_string(),
            })
        })?;
        self.stage = Stage::Linking;
        Ok(())
    }

    /// Whether another attempt may succeed after `error`.
    ///
    /// A member that has been Ready is worth waiting for: whatever a scheduler lacks, its successor may have. Only one
    /// that does not understand this member never will. A client's slabs may be out of date, and its next catalogue
    /// mends that; what a backend brings stays as it is.
    pub fn may_pass(&self, error: &MembershipError) -> bool {
        match self.stage {
            // A scheduler that contradicts itself to a member it has admitted is broken.
            Stage::Ready => !matches!(error, MembershipError::BadCatalogue(_)),
            Stage::Leaving | Stage::Left => false,
            stage if self.life == 0 => error.may_pass_at_start(stage == Stage::Linking),
            _ => match error.code() {
                Some(RefuseCode::Version) => false,
                Some(RefuseCode::BadRequest) => self.member.role == Role::Frontend,
                _ => true,
            },
        }
    }

    /// This attempt has failed, or the scheduler is lost: pauses before the next attempt. The connections stay until
    /// that begins, because they may still have something to say, or until [`Membership::let_go`].
    ///
    /// # Errors
    /// No other attempt can succeed: the reason to report.
    pub fn fail(&mut self, now: Nanos, error: MembershipError) -> Result<(), MembershipError> {
        if !self.may_pass(&error) {
            return Err(error);
        }
        let pause = self.backoff.pause();
        if self.life == 0 && now + pause >= self.join_ends(now) {
            let tried_ms = in_ms(now - self.began.unwrap_or(now));
            let (last, bound) = (Box::new(error), self.member.join_timeout_setting);
            return Err(MembershipError::TimedOut { tried_ms, last, bound });
        }
        self.log(&error);
        self.heartbeat.stop();
        self.stage = Stage::Away;
        self.stage_ends = now + pause;
        // By then the locator knows who leads.
        self.member.scheduler.ask(pause);
        Ok(())
    }

    #[cold]
    fn log(&mut self, error: &MembershipError) {
        if self.life == 0 {
            if !std::mem::replace(&mut self.has_logged, true) {
                tracing::info!(%error, "no scheduler yet; retrying");
            }
        } else if error.code() == Some(RefuseCode::BadRequest) {
            tracing::warn!(%error, "the scheduler refuses what this member announces; retrying");
        } else {
            tracing::debug!(%error, "no scheduler; retrying");
        }
    }

    /// Forgets the scheduler, and closes what leads there.
    pub fn let_go<T: Transport>(&mut self, why: &str, transport: &mut T) {
        self.close_all(why, transport);
        self.catalogue = Catalogue::default();
        self.heartbeat = Heartbeat::new(self.member.member_timeout);
        (self.number, self.token) = (0, 0);
    }

    /// Closes every connection to the scheduler. Returns how many.
    pub fn close_all<T: Transport>(&mut self, why: &str, transport: &mut T) -> usize {
        let conns = self.threads.take().into_iter().chain(self.control.take());
        conns.map(|conn| transport.close(conn, RefuseCode::Shutdown, why)).count()
    }

    /// No scheduler will do any more: this member makes no other attempt.
    pub fn stay_away<T: Transport>(&mut self, why: &str, transport: &mut T) {
        self.let_go(why, transport);
        self.stage = Stage::Away;
        self.stage_ends = Nanos::MAX;
    }
}

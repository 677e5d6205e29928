//! Signs of life: who has fallen silent, and how often that has to be looked at.
//!
//! A member that has work pings every [`PING_EVERY`]; one that has none for a while says by [`Pace`] how often it pings
//! then. While no member has work, the ControlThread wakes once in [`IDLE_STEP`].

use baton_core::Nanos;
use baton_rdma::wire::{PING_EVERY, PING_EVERY_MAX, Pace, Ping, Pong, RefuseCode};
use baton_rdma::{ConnId, Transport};
use baton_topo::{AwakeTime, PARK_MAX, is_gone};

use super::{ControlThread, Conversation, Handled};

/// How often the ControlThread looks for silent members within a member timeout.
const CHECKS_PER_TIMEOUT: u64 = 8;
/// Between two looks while no member has work.
const IDLE_STEP: Nanos = Nanos::from_millis(1_000);

/// How the ControlThread listens to its members.
#[derive(Debug)]
pub(super) struct Hearing {
    /// Silence after which a member counts as dead.
    timeout: Nanos,
    next_check: Nanos,
    /// What the silence of members is measured in: this thread may have stood still with them.
    awake: AwakeTime,
    /// As of the last check, every member pings less often.
    is_idle: bool,
}

impl Hearing {
    pub(super) fn new(timeout: Nanos) -> Self {
        let awake = AwakeTime::default();
        let mut hearing = Self { timeout, next_check: Nanos::ZERO, awake, is_idle: true };
        hearing.be_alert();
        hearing
    }

    /// A pass begins.
    pub(super) fn pass(&mut self, now: Nanos) {
        self.awake.pass(now);
    }

    /// This moment, in the time that silence is measured in.
    pub(super) fn moment(&self) -> Nanos {
        self.awake.total()
    }

    pub(super) fn next_check(&self) -> Nanos {
        self.next_check
    }

    /// No member had work at the last check, nor has one said since that it has.
    pub(super) fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// The longest that the ControlThread may sleep in one piece.
    pub(super) fn step(&self) -> Nanos {
        if self.is_idle { IDLE_STEP } else { self.check_every().min(PARK_MAX) }
    }

    fn check_every(&self) -> Nanos {
        if self.is_idle { IDLE_STEP } else { Nanos(self.timeout.0 / CHECKS_PER_TIMEOUT) }
    }

    /// A member has work, or joins.
    pub(super) fn be_alert(&mut self) {
        if std::mem::replace(&mut self.is_idle, false) {
            self.awake.step_by(self.step());
            self.next_check = Nanos::ZERO;
        }
    }

    /// `wakes_at`: this thread wakes then anyway.
    fn plan_check(&mut self, now: Nanos, is_idle: bool, wakes_at: Nanos) {
        self.is_idle = is_idle;
        self.awake.step_by(self.step());
        let due = now + self.check_every();
        self.next_check = if is_idle && wakes_at > now { due.min(wakes_at) } else { due };
    }

    /// A member that pings less often is waited for longer. Twice, because of a pause of our own a whole step counts.
    fn patience(&self, member: &Conversation) -> Nanos {
        let is_slow = member.ping_every > PING_EVERY;
        self.timeout + if is_slow { member.ping_every + IDLE_STEP } else { Nanos::ZERO }
    }

    /// An operator waits for its answer, and has nothing to say meanwhile.
    fn is_silent(&self, member: &Conversation, has_unread: bool) -> bool {
        let silence = self.awake.total() - member.last_heard;
        !member.is_changing && is_gone(silence, self.patience(member), has_unread)
    }
}

impl<T: Transport> ControlThread<T> {
    pub(super) fn on_ping(&mut self, now: Nanos, conn: ConnId, ping: &Ping) -> Handled {
        let pong = Pong { sent_ns: ping.sent_ns, scheduler_ns: now.0.into() };
        if self.transport.send(conn, &pong, &[]).is_err() {
            self.undeliverable(conn);
        }
        Ok(())
    }

    pub(super) fn on_pace(&mut self, conn: ConnId, pace: &Pace) -> Handled {
        let every = Nanos(pace.every_ns.get()).clamp(PING_EVERY, PING_EVERY_MAX);
        if let Some(conversation) = self.conversations.get_mut(&conn) {
            conversation.ping_every = every;
        }
        if every == PING_EVERY {
            self.hearing.be_alert();
        }
        Ok(())
    }

    /// Runs after the events are taken in: what members had sent by then has been heard.
    pub(super) fn check_silence(&mut self, now: Nanos) -> usize {
        if now < self.hearing.next_check {
            return 0;
        }
        self.parts.counters.publish(&self.transport.counters());
        let silent = self.conversations.iter().filter(|(conn, member)| {
            self.hearing.is_silent(member, self.transport.has_unread(**conn))
        });
        let dead: Vec<ConnId> = silent.map(|(&conn, _)| conn).collect();
        for &conn in &dead {
            let patience = self.hearing.patience(&self.conversations[&conn]);
            let detail = format!("nothing heard for {} ms", patience.as_millis_f64());
            self.end(conn, RefuseCode::Silent, &detail);
        }
        let is_idle = self.conversations.values().all(|member| member.ping_every > PING_EVERY);
        self.hearing.plan_check(now, is_idle, self.balance.next_look());
        dead.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_with_work_are_looked_at_often_and_those_without_once_a_second() {
        let (now, ms) = (Nanos::from_millis(5_000), Nanos::from_millis);
        let mut hearing = Hearing::new(ms(400));
        assert_eq!(hearing.next_check(), Nanos::ZERO, "at once");
        hearing.plan_check(now, false, now + ms(7));
        assert_eq!((hearing.next_check(), hearing.step()), (now + ms(50), ms(50).min(PARK_MAX)));
        for (wakes_at, due) in [(300, 300), (0, 1_000), (2_000, 1_000)] {
            hearing.plan_check(now, true, now + ms(wakes_at));
            assert_eq!((hearing.next_check(), hearing.step()), (now + ms(due), IDLE_STEP));
        }
        hearing.be_alert();
        assert_eq!((hearing.next_check(), hearing.is_idle()), (Nanos::ZERO, false));
    }
}

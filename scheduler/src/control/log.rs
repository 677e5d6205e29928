//! What the ControlThread writes about whom; anybody can cause that.

use baton_core::Nanos;
use baton_rdma::LogLimit;

/// Bounds on the lines of a second.
pub(super) struct Log {
    /// Of this pass.
    pub(super) now: Nanos,
    pub(super) refused: LogLimit,
    members: LogLimit,
}

impl Default for Log {
    fn default() -> Self {
        let (refused, members) = (LogLimit::default(), LogLimit::MEMBERS);
        Self { now: Nanos::ZERO, refused, members }
    }
}

impl Log {
    /// Whether one more line may tell of a member that came or went.
    pub(super) fn of_member(&mut self) -> bool {
        self.members.allows(self.now)
    }

    pub(super) fn tell_left_out(&mut self) {
        if let Some(count) = self.refused.left_out(self.now) {
            tracing::warn!("... and {count} more refused in the last second");
        }
        if let Some(count) = self.members.left_out(self.now) {
            tracing::warn!("... and {count} more joined, left or were lost in the last second");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_of_members_fills_the_log_for_a_second_only() {
        let mut log = Log::default();
        let mut told = |now: Nanos| {
            log.now = now;
            log.tell_left_out();
            (0..1_000).filter(|_| log.of_member()).count()
        };
        let first = told(Nanos::from_millis(1_000));
        assert!((1..1_000).contains(&first), "{first}");
        assert_eq!(told(Nanos::from_millis(1_500)), 0);
        assert_eq!(told(Nanos::from_millis(2_000)), first);
    }
}

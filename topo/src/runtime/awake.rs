//! How long an agent has been awake: the time in which it measures the silence of its peers.
//!
//! In: the moment of each pass. Out: a time that stops while the agent does. A waiting thread wakes at
//! least every [`PARK_MAX`], or as often as it says. If more than that lies between two passes, the thread did not run: it was
//! stopped, or wanted a core and got none. Other processes on its host may have been stopped just as long,
//! and their messages may be unread. So time beyond the bound does not count as silence.

use baton_types::Nanos;

/// Threads of agents that measure their time awake wake at least this often. At most this much time between two passes
/// counts as time awake.
pub const PARK_MAX: Nanos = Nanos::from_millis(100);

/// The time during which its owner was awake. Its zero is arbitrary.
#[derive(Clone, Debug)]
pub struct AwakeTime {
    /// The longest that counts of the time between the last pass and the next.
    step: Nanos,
    /// The moment of the last pass.
    seen: Option<Nanos>,
    awake: Nanos,
}

impl Default for AwakeTime {
    fn default() -> Self {
        Self::in_steps_of(PARK_MAX)
    }
}

impl AwakeTime {
    /// For an owner that runs a pass every `step` at least.
    pub fn in_steps_of(step: Nanos) -> Self {
        Self { step, seen: None, awake: Nanos::ZERO }
    }

    /// From the last pass on, the owner runs a pass every `step` at least.
    pub fn step_by(&mut self, step: Nanos) {
        self.step = step;
    }

    /// A pass begins at `now`. Returns for how long its owner was stopped before it.
    pub fn pass(&mut self, now: Nanos) -> Nanos {
        let gap = now - self.seen.replace(now).unwrap_or(now);
        self.awake = self.awake + gap.min(self.step);
        gap - gap.min(self.step)
    }

    /// Time awake up to the last pass.
    pub fn total(&self) -> Nanos {
        self.awake
    }

    /// The moment at which the total is `total` if its owner stays awake; the last pass if it is already.
    pub fn when(&self, total: Nanos) -> Nanos {
        self.seen.unwrap_or(Nanos::ZERO) + (total - self.awake)
    }
}

/// Whether `silence`, of time awake, is enough to declare a peer lost. Unread messages from the peer
/// double the patience.
pub fn is_gone(silence: Nanos, patience: Nanos, has_unread: bool) -> bool {
    let patience = if has_unread { patience.times(2) } else { patience };
    silence >= patience
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Nanos {
        Nanos::from_millis(n)
    }

    #[test]
    fn an_owner_that_looks_in_time_is_awake_all_the_time() {
        let mut time = AwakeTime::default();
        for at in 50..=150 {
            assert_eq!(time.pass(ms(100 * at)), Nanos::ZERO);
        }
        assert_eq!(time.total(), ms(10_000));
        assert_eq!(time.when(ms(10_300)), ms(15_300));
        assert_eq!(time.when(ms(300)), ms(15_000), "that has been");
    }

    #[test]
    fn of_a_pause_one_step_counts_however_long_it_was() {
        let mut time = AwakeTime::default();
        time.pass(ms(7));
        assert_eq!(time.pass(ms(3_007)), ms(2_900));
        assert_eq!(time.total(), ms(100));
        assert_eq!(time.pass(ms(3_007)), Nanos::ZERO, "looking again takes no time");
        assert_eq!(time.pass(ms(3_020)), Nanos::ZERO);
        assert_eq!(time.total(), ms(113));
    }

    #[test]
    fn who_sleeps_longer_from_now_on_says_so() {
        let mut time = AwakeTime::default();
        time.pass(ms(10));
        time.step_by(ms(1_000));
        assert_eq!((time.pass(ms(910)), time.total()), (Nanos::ZERO, ms(900)));
        time.step_by(PARK_MAX);
        assert_eq!((time.pass(ms(1_810)), time.total()), (ms(800), ms(1_000)));
    }

    #[test]
    fn a_clock_that_goes_back_takes_nothing_back() {
        let mut time = AwakeTime::default();
        time.pass(ms(50));
        assert_eq!((time.pass(ms(20)), time.total()), (Nanos::ZERO, Nanos::ZERO));
    }

    #[test]
    fn what_is_unread_speaks_for_its_sender_for_as_long_again() {
        assert!(!is_gone(ms(999), ms(1_000), false) && is_gone(ms(1_000), ms(1_000), false));
        assert!(!is_gone(ms(1_999), ms(1_000), true) && is_gone(ms(2_000), ms(1_000), true));
    }
}

//! How long an agent has been awake, which is what the silence of others is measured in.
//!
//! In: the moment of each pass. Out: a time that stands still while the agent does. A thread that waits
//! looks up at least every [`PARK_MAX`]; if more than that lies between two passes, it did not run: it was
//! stopped, or wanted a core and got none. Others on its host may have stood still just as long, and what
//! they have sent may not have been read. So nobody is blamed for what lies beyond the bound.

use baton_core::Nanos;

/// Parked threads look up at least this often, so that `stop` is seen without a wake-up. No longer time
/// between two passes counts as time awake.
pub const PARK_MAX: Nanos = Nanos::from_millis(100);

/// The time during which its owner was awake. Its zero is no particular moment.
#[derive(Clone, Debug)]
pub struct AwakeTime {
    /// The longest that counts of the time between two passes.
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
    /// For an owner that looks up every `step` at least.
    pub fn in_steps_of(step: Nanos) -> Self {
        Self { step, seen: None, awake: Nanos::ZERO }
    }

    /// A pass begins at `now`. Returns for how long its owner has stood still before it.
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

/// Whether nothing heard for `silence`, of time awake, is enough to take somebody for gone. What has
/// arrived from it and is not read speaks for it, but not for ever.
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

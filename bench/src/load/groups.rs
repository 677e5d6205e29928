//! Which arrivals leave together: a message for each costs more than half of a client's CPU time where they are close.

use baton_core::Nanos;

/// Arrivals that are due sooner after others wait until then.
const GATHER: Nanos = Nanos::from_micros(50);

/// When the next arrivals may leave.
#[derive(Debug, Default)]
pub(super) struct Groups {
    until: Nanos,
}

impl Groups {
    /// Whether what is due at `now` waits for more. Behind `end` nothing does.
    pub(super) fn gathers(&self, now: Nanos, end: Nanos) -> bool {
        now < self.until.min(end)
    }

    /// When an arrival that is due at `due` may leave.
    pub(super) fn leaves_at(&self, due: Nanos) -> Nanos {
        due.max(self.until)
    }

    /// All that was due at `now` has left.
    pub(super) fn have_left(&mut self, now: Nanos) {
        self.until = now + GATHER;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(n: u64) -> Nanos {
        Nanos::from_micros(n)
    }

    #[test]
    fn what_is_due_soon_after_others_leaves_with_what_follows() {
        let mut groups = Groups::default();
        assert!(!groups.gathers(us(7), us(1_000)), "the first leaves at once");
        groups.have_left(us(7));
        assert!(groups.gathers(us(56), us(1_000)) && !groups.gathers(us(57), us(1_000)));
        assert_eq!([groups.leaves_at(us(20)), groups.leaves_at(us(90))], [us(57), us(90)]);
    }

    #[test]
    fn at_the_end_nothing_waits() {
        let mut groups = Groups::default();
        groups.have_left(us(980));
        assert!(groups.gathers(us(999), us(1_000)) && !groups.gathers(us(1_000), us(1_000)));
    }
}

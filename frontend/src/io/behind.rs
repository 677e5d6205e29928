//! How long leases wait for what has arrived.

use baton_types::Nanos;

/// For how long, awake, what has arrived is read before leases end.
const BEHIND_MAX: Nanos = Nanos::from_millis(100);

/// Whether answers may be here that polls have not taken yet, as they may after this side stood still; but not for long: the
/// outcome is due.
#[derive(Default, Debug)]
pub(super) struct Behind {
    /// Since when leases are over and not ended because something is not read yet, in time awake.
    since: Option<Nanos>,
}

impl Behind {
    /// True if leases that are over wait. `awake` is for how long this side has been awake.
    pub(super) fn holds_leases(&mut self, has_unread: bool, awake: Nanos) -> bool {
        if !has_unread {
            self.since = None;
            return false;
        }
        awake - *self.since.get_or_insert(awake) < BEHIND_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_arrived_is_read_first_but_for_no_longer_than_a_bound() {
        let mut behind = Behind::default();
        let start = Nanos::from_millis(5_000);
        assert!(!behind.holds_leases(false, start));
        for ms in (0..100).step_by(9) {
            assert!(behind.holds_leases(true, start + Nanos::from_millis(ms)), "{ms} ms");
        }
        let end = start + BEHIND_MAX;
        assert!(!behind.holds_leases(true, end));
        assert!(!behind.holds_leases(true, end + BEHIND_MAX), "as long as there is more");
        assert!(!behind.holds_leases(false, end + BEHIND_MAX), "all has been read");
        assert!(behind.holds_leases(true, end + BEHIND_MAX), "the next time counts anew");
    }
}

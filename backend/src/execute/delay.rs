//! Waiting until a moment, exact to a few microseconds.

use baton_topo::{Clock, park_thread};
use baton_types::Nanos;

/// Parked threads wake late by up to this much on a virtual machine; the rest is spun.
const SPIN: Nanos = Nanos::from_micros(150);

/// Returns at `due`. Gives the core away until [`SPIN`] before, then burns it: yielding there would
/// cost a whole time slice whenever another thread wants the core.
pub(super) fn wait_until(clock: Clock, due: Nanos) {
    loop {
        match due - clock.now() {
            Nanos::ZERO => return,
            left => match to_park(left) {
                Some(span) => park_thread(Some(span)),
                None => std::hint::spin_loop(),
            },
        }
    }
}

/// How much of the time that is left the thread may be parked.
fn to_park(left: Nanos) -> Option<Nanos> {
    (left > SPIN).then(|| left - SPIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_microseconds_are_spun() {
        assert_eq!(to_park(Nanos::from_millis(2)), Some(Nanos::from_micros(1_850)));
        assert_eq!(to_park(Nanos::from_micros(151)), Some(Nanos::from_micros(1)));
        assert_eq!(to_park(Nanos::from_micros(150)), None);
    }
}

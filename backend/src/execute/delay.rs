//! Waiting until a moment, exact to a few microseconds.

use baton_topo::{Clock, park_thread};
use baton_types::Nanos;

/// Parked threads wake late by up to this much on a virtual machine; the rest is spun.
const SPIN: Nanos = Nanos::from_micros(150);

/// Returns at `due`. Gives the core away until [`SPIN`] before, then burns it: yielding there would
/// cost a whole time slice whenever another thread wants the core.
pub(super) fn wait_until(clock: Clock, due: Nanos) {
    loop {
        let left = due - clock.now();
        if left == Nanos::ZERO {
            return;
        }
        match left > SPIN {
            true => park_thread(Some(left - SPIN)),
            false => std::hint::spin_loop(),
        }
    }
}

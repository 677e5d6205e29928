//! Waiting until a moment, exact to a few microseconds.

use baton_topo::{Clock, park_thread};
use baton_types::Nanos;

/// What a thread burns at most before a moment. A core that runs other programs may return it later than that.
const SPIN_MAX: Nanos = Nanos::from_micros(150);
/// What it burns at least: reading the clock and calling the kernel take about as long.
const SPIN_MIN: Nanos = Nanos::from_micros(5);

/// Waits until moments.
#[derive(Debug)]
pub(super) struct Delay {
    pub clock: Clock,
    lateness: Lateness,
}

/// How late this machine wakes parked threads: at once what was seen last if that is more, otherwise nearer to it by an eighth.
#[derive(Debug)]
struct Lateness(Nanos);

impl Delay {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, lateness: Lateness(SPIN_MAX) }
    }

    /// Returns at `due`. Gives the core away until shortly before, then burns it: yielding there would
    /// cost a whole time slice whenever another thread wants the core.
    pub(super) fn wait_until(&mut self, due: Nanos) {
        loop {
            let now = self.clock.now();
            match due - now {
                Nanos::ZERO => return,
                left => match self.lateness.to_park(left) {
                    Some(span) => self.park(now, span),
                    None => std::hint::spin_loop(),
                },
            }
        }
    }

    fn park(&mut self, now: Nanos, span: Nanos) {
        park_thread(Some(span));
        // Orders wake the thread before its time.
        if let Some(late) = self.clock.now().0.checked_sub((now + span).0) {
            self.lateness.observe(Nanos(late));
        }
    }
}

impl Lateness {
    fn observe(&mut self, late: Nanos) {
        let late = late.clamp(SPIN_MIN, SPIN_MAX);
        self.0 = late.max(self.0 - Nanos((self.0 - late).0 / 8));
    }

    /// How much of the time that is left the thread may be parked. What is burnt is half as long again as threads are late.
    fn to_park(&self, left: Nanos) -> Option<Nanos> {
        let spin = Nanos(self.0.0 * 3 / 2).min(SPIN_MAX);
        (left > spin).then(|| left - spin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_microseconds_are_burnt() {
        let lateness = Lateness(SPIN_MAX);
        assert_eq!(lateness.to_park(Nanos::from_millis(2)), Some(Nanos::from_micros(1_850)));
        assert_eq!(lateness.to_park(Nanos::from_micros(151)), Some(Nanos::from_micros(1)));
        assert_eq!(lateness.to_park(Nanos::from_micros(150)), None);
    }

    #[test]
    fn where_threads_wake_in_time_little_is_burnt() {
        let mut lateness = Lateness(SPIN_MAX);
        lateness.observe(Nanos::from_micros(70));
        assert_eq!(lateness.0, Nanos::from_micros(140), "an eighth of the way");
        for _ in 0..60 {
            lateness.observe(Nanos::from_micros(20));
        }
        let burnt = Nanos::from_millis(2) - lateness.to_park(Nanos::from_millis(2)).unwrap();
        assert!(burnt >= Nanos::from_micros(30) && burnt < Nanos::from_micros(31), "{burnt:?}");
    }

    #[test]
    fn a_late_wake_up_counts_at_once_and_as_much_as_is_ever_burnt() {
        let mut lateness = Lateness(SPIN_MIN);
        lateness.observe(Nanos::from_micros(60));
        assert_eq!(lateness.0, Nanos::from_micros(60));
        lateness.observe(Nanos::from_millis(4));
        assert_eq!(lateness.0, SPIN_MAX);
        assert_eq!(lateness.to_park(SPIN_MAX), None);
        assert_eq!(lateness.to_park(SPIN_MAX + Nanos(1)), Some(Nanos(1)));
        for _ in 0..200 {
            lateness.observe(Nanos::ZERO);
        }
        assert!(lateness.0 < SPIN_MIN + Nanos(8), "{:?}", lateness.0);
    }
}

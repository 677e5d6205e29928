//! The one clock of a process. Nothing else in the workspace reads time.

use std::time::Instant;

use baton_types::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// Monotonic nanoseconds since the clock was made. Copies share the origin, so every thread of a
/// process that got its copy from the same start-up speaks the same time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// What the system's clock showed when this one would have shown nothing.
    origin: Nanos,
}

impl Clock {
    /// A clock that starts at one second, so that "a while ago" is representable at start-up.
    pub fn start() -> Self {
        Self { origin: system_now() - START }
    }

    /// Now. Agents read it once per pass and hand the value on.
    pub fn now(&self) -> Nanos {
        system_now() - self.origin
    }

    /// How long it is until a moment of the standard library's clock; zero if it has passed.
    #[expect(clippy::disallowed_methods, reason = "this is where the workspace reads clocks")]
    pub fn until(moment: Instant) -> Nanos {
        let span = moment.saturating_duration_since(Instant::now());
        Nanos(span.as_nanos().try_into().unwrap_or(u64::MAX))
    }
}

/// The system's monotonic clock. Not `Instant`, whose differences cost three times as many instructions.
fn system_now() -> Nanos {
    let now = clock_gettime(ClockId::Monotonic);
    Nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// The reading of a fresh clock.
const START: Nanos = Nanos::from_millis(1_000);

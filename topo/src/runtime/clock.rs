//! The one clock of a process. Nothing else in the workspace reads time.

use baton_core::Nanos;
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
}

/// The system's monotonic clock. Not `Instant`, whose differences cost three times as many instructions.
fn system_now() -> Nanos {
    let now = clock_gettime(ClockId::Monotonic);
    Nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// The reading of a fresh clock.
const START: Nanos = Nanos::from_millis(1_000);

//! The one clock of a process. Nothing else in the workspace reads time.

use std::time::Instant;

use baton_core::Nanos;

/// Monotonic nanoseconds since the clock was made. Copies share the origin, so every thread of a
/// process that got its copy from the same start-up speaks the same time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that starts at one second, so that "a while ago" is representable at start-up.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the clock")]
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// Now. Agents read it once per pass and hand the value on.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the clock")]
    pub fn now(&self) -> Nanos {
        Nanos(Instant::now().duration_since(self.origin).as_nanos() as u64 + START.0)
    }
}

/// The reading of a fresh clock.
const START: Nanos = Nanos::from_millis(1_000);

//! What must hold after each pass. Assertions ask.

use baton_core::Nanos;

use super::ModelThread;

/// Models that are looked at. With thousands of them a pass would take too long.
const TIMED_MAX: usize = 64;

impl<T> ModelThread<T> {
    /// Whether each of the first models is looked at when it wants to be. One that wants to be looked at since a batch was
    /// measured may wait for its next task: what it plans with has hardly changed.
    pub(super) fn is_timed(&self) -> bool {
        let first = self.models.iter().take(TIMED_MAX).enumerate();
        let mut due = first.filter_map(|(at, model)| Some((at, model.state.next_timer()?)));
        let in_time = |set: Nanos, due| set <= due || due == Nanos::ZERO;
        due.all(|(at, due)| self.timers.key(at as u32).is_some_and(|set| in_time(set, due)))
    }
}

//! Weights that are not there yet: batches wait for them, and tasks that cannot are given up.

use super::ModelState;
use crate::loads::Readiness;
use crate::model::quiet_period::QuietPeriod;
use crate::model::sink::ModelSink;
use baton_types::Nanos;

impl ModelState {
    /// Where the weights are has changed: batches start when they are there, and tasks whose deadlines are earlier are given
    /// up.
    pub fn on_readiness(&mut self, now: Nanos, readiness: Readiness, out: &mut impl ModelSink) {
        (self.ready_at, self.load) = match readiness {
            Readiness::Resident => (Nanos::ZERO, Nanos::ZERO),
            Readiness::Loading { until } => (until, Nanos::ZERO),
            Readiness::Cold { load } => (Nanos::ZERO, load),
        };
        self.quiet_period = QuietPeriod::OVER;
        self.reform(now, out);
    }

    /// Whether some slot holds the weights.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready_at == Nanos::ZERO && self.load == Nanos::ZERO
    }

    /// When the weights can be there at the earliest.
    #[inline]
    pub(super) fn ready(&self, now: Nanos) -> Nanos {
        self.ready_at.max(now + self.load)
    }
}

//! Weights that are not there yet: batches wait for them, and tasks that cannot are given up.

use super::ModelState;
use crate::loads::Readiness;
use crate::model::quiet_period::QuietPeriod;
use crate::model::sink::ModelSink;
use baton_types::Nanos;

impl ModelState {
    /// Where the weights are has changed: batches start when they are there, and tasks whose deadlines are earlier are given
    /// up. What a model loses follows from where its weights are, so what it lost longer ago says nothing any more.
    pub fn on_readiness(&mut self, now: Nanos, readiness: Readiness, out: &mut impl ModelSink) {
        (self.ready_at, self.load) = match readiness {
            Readiness::Resident => (Nanos::ZERO, Nanos::ZERO),
            Readiness::Loading { until } => (until, Nanos::ZERO),
            Readiness::Cold { load } => (Nanos::ZERO, load),
        };
        self.sizing.rate.forget_older();
        self.quiet_period = QuietPeriod::OVER;
        self.reform(now, out);
    }

    /// Whether some slot holds the weights.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready_at == Nanos::ZERO && self.load == Nanos::ZERO
    }

    /// What a candidate says of the tasks lost lately. While a slot has the weights, those lost for want of them do not count:
    /// coming before others for a slot would have saved none. Else all count: they say what a LOAD would save.
    #[inline]
    pub(super) fn bad_rate(&self) -> u32 {
        let rate = &self.sizing.rate;
        if self.is_ready() { rate.bad_rate_where_ready() } else { rate.bad_rate() }
    }

    /// When the weights can be there at the earliest.
    #[inline]
    pub(super) fn ready(&self, now: Nanos) -> Nanos {
        self.ready_at.max(now + self.load)
    }
}

//! Whether a model with variants spends slots on accuracy. A task that is lost costs more than any variant gains, so a model
//! that loses tasks is one without variants: its batches wait for more tasks and get the cheapest, and other rules may be
//! tried for it.

use crate::candidate::Grant;
use crate::execution::latency::Latency;
use crate::model::rate::RateMeter;
use crate::model::sizing::LOSING;
use crate::policy::Rules;
use crate::rank::PARTS_OF_SLOT;
use baton_types::Nanos;

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Spending {
    /// The policy's own.
    rules: Rules,
    /// The model has variants, and no tasks are lost, nor would be under its policy's own rules.
    may: bool,
    /// As of the last grant.
    is_short_of_slots: bool,
    /// Slots as of the last grant with which the model had any to spare, in 1/32.
    parts: u32,
}

impl Spending {
    /// Of a model that follows its policy's rules; none before [`Spending::resize`].
    pub(crate) fn new(rules: Rules) -> Self {
        Self { rules, may: false, is_short_of_slots: false, parts: 0 }
    }

    /// Where the model has its turn on a slot that others need, and even a single task with the variant after the cheapest,
    /// which takes `dearer`, would make them late, it has no use for that.
    pub(crate) fn note_grant(&mut self, grant: &Grant, dearer: Nanos) {
        let part = grant.part;
        self.is_short_of_slots = grant.is_short_of_slots
            || grant.spare == 0 && part.in_32nds() > 0 && part.longest() < dearer;
        let parts = grant.spare_parts();
        self.parts = if parts > 0 { parts } else { self.parts };
    }

    /// The traffic is estimated anew. Rules that are not the policy's own are followed because tasks were lost under those.
    pub(crate) fn resize(&mut self, variants: u16, rules: Rules, rate: &RateMeter) {
        let loses = rate.bad_rate_where_ready() > LOSING;
        self.may = variants > 1 && rules == self.rules && !loses;
    }

    /// The batch size that heads are given up for, which is `floor` without variants. Dear batches let heads wait, and a smaller
    /// one serves these too: while there are slots to spare, it need not be larger than they need to keep up with the traffic.
    pub(crate) fn floor(&self, floor: u32, rate: &RateMeter, latency: &Latency) -> u32 {
        let Some(rate) = rate.rate().filter(|_| self.has_spare()) else { return floor };
        let on_all = |b: u32| rate.time_for(b.into()).times(self.parts.into());
        let taken = |b: u32| latency.of(b).times(PARTS_OF_SLOT.into());
        (1..floor).find(|&b| taken(b) <= on_all(b)).unwrap_or(floor)
    }

    /// Slots for accuracy, as far as the model knows.
    #[inline]
    pub(crate) fn has_spare(&self) -> bool {
        self.may && !self.is_short_of_slots
    }
}

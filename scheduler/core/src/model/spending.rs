//! Whether a model with variants spends slots on accuracy. A task that is lost costs more than any variant gains, so a model
//! that loses tasks is one without variants: its batches wait for more tasks and get the cheapest, and other rules may be
//! tried for it.

use crate::candidate::Grant;
use crate::model::rate::RateMeter;
use crate::model::sizing::LOSING;
use crate::policy::Rules;

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Spending {
    /// The policy's own.
    rules: Rules,
    /// The model has variants, and no tasks are lost, nor would be under its policy's own rules.
    may: bool,
    /// As of the last grant.
    is_short_of_slots: bool,
}

impl Spending {
    /// Of a model that follows its policy's rules; none before [`Spending::resize`].
    pub(crate) fn new(rules: Rules) -> Self {
        Self { rules, may: false, is_short_of_slots: false }
    }

    pub(crate) fn note_grant(&mut self, grant: &Grant) {
        self.is_short_of_slots = grant.is_short_of_slots;
    }

    /// The traffic is estimated anew. Rules that are not the policy's own are followed because tasks were lost under those.
    pub(crate) fn resize(&mut self, variants: u16, rules: Rules, rate: &RateMeter) {
        let loses = rate.bad_rate_where_ready() > LOSING;
        self.may = variants > 1 && rules == self.rules && !loses;
    }

    /// Slots for accuracy, as far as the model knows.
    #[inline]
    pub(crate) fn has_spare(&self) -> bool {
        self.may && !self.is_short_of_slots
    }
}

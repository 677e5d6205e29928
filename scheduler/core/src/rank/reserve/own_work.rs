//! One model's part of a sub-cluster's load.

use super::{
    DISPERSION_ONE, Demand, LOSING, PARTS, Reserve, SLOT, TICK, above, deviation_above, faded,
};
use crate::rank::part::PARTS_OF_SLOT;
use baton_types::Nanos;

/// Standard deviations above the mean up to which the slots that the other models keep busy are left to them.
const DEVIATIONS: u64 = 2;

/// GPU time of one model's batches, faded like the reserve's.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct OwnWork {
    /// As if in efficient batches.
    work: u64,
    /// See [`Demand::varying`].
    varying: u64,
    /// As planned.
    busy: u64,
    /// As planned, over the square of each batch's size b. The number of its batches that execute at a time counts as
    /// if its variance were o/b² for a model that keeps o slots busy: Poisson's without batches, and less with them,
    /// since a model spaces its batches. The square was chosen by trial: o/b has models compete that need not.
    spread: u64,
    /// Tasks, and these times the model's bad rate, as in [`super::Work`].
    tasks: u64,
    lost: u64,
    /// In ticks.
    faded_at: u64,
    /// How many batches it has at a time at most, as counted in [`Reserve::peaks`]. A model that batches spaces its batches, so it
    /// has hardly more than as many as it keeps slots busy on average, rounded up; one that does not has a standard
    /// deviation more. As of its last plan.
    peak: u64,
}

impl OwnWork {
    /// A batch of `batch` tasks was planned, as of the last [`Reserve::refresh`].
    pub(crate) fn planned(
        &mut self,
        reserve: &mut Reserve,
        demand: &Demand,
        batch: u32,
        (work, latency): (Nanos, Nanos),
    ) {
        self.fade(reserve);
        self.work += work.0;
        let varying = demand.varying(work, latency);
        self.varying += varying;
        reserve.varying += varying;
        self.busy += latency.0;
        self.spread += latency.0 / u64::from(batch).pow(2);
        let (tasks, lost) = demand.lost_of(batch);
        (self.tasks, self.lost) = (self.tasks + tasks, self.lost + lost);
        self.set_peak(reserve, deviation_above(self.busy / 5 * 4, self.spread));
    }

    /// The model is gone.
    pub(crate) fn leave(&mut self, reserve: &mut Reserve) {
        self.set_peak(reserve, 0);
        *self = Self::default();
    }

    fn set_peak(&mut self, reserve: &mut Reserve, peak: u64) {
        debug_assert!(reserve.peaks >= self.peak, "it was counted");
        reserve.peaks = reserve.peaks - self.peak + peak;
        self.peak = peak;
    }

    /// The others' load as a number of models of this one's size, in [`PARTS`]. On a single slot
    /// the model's own load counts too.
    pub(crate) fn others(&mut self, reserve: &Reserve) -> u64 {
        self.fade(reserve);
        let others =
            if reserve.slots == 1 { reserve.load } else { reserve.load.saturating_sub(self.work) };
        others.saturating_mul(PARTS) / self.work.max(1)
    }

    /// As of the last look at it.
    pub(super) fn work(&self) -> u64 {
        self.work
    }

    /// In 1/32, slots that the other models need: those that they keep busy on average, and some deviations more.
    pub(crate) fn needed_by_others(&mut self, reserve: &Reserve) -> u64 {
        self.fade(reserve);
        let work = reserve.total.saturating_sub(self.work);
        let varying = reserve.varying.saturating_sub(self.varying);
        let variance = varying / u64::from(DISPERSION_ONE) * DEVIATIONS * DEVIATIONS;
        above(work, variance).div_ceil(SLOT / u64::from(PARTS_OF_SLOT))
    }

    /// More than [`LOSING`] of the other models' tasks are being lost. As of the last look at its work.
    pub(crate) fn others_lose(&self, reserve: &Reserve) -> bool {
        let tasks = reserve.tasks.saturating_sub(self.tasks);
        let lost = reserve.lost.saturating_sub(self.lost);
        lost > tasks.saturating_mul(LOSING.into())
    }

    /// The model keeps more slots busy on average than these, in 1/32, even in efficient batches. As of the last look at its
    /// work.
    pub(crate) fn needs_more_than(&self, parts: u64) -> bool {
        self.work > parts * (SLOT / u64::from(PARTS_OF_SLOT))
    }

    fn fade(&mut self, reserve: &Reserve) {
        let ticks = reserve.faded_at.0 / TICK.0;
        let passed = ticks.saturating_sub(self.faded_at);
        self.work = faded(self.work, passed);
        self.varying = faded(self.varying, passed);
        self.busy = faded(self.busy, passed);
        self.spread = faded(self.spread, passed);
        self.tasks = faded(self.tasks, passed);
        self.lost = faded(self.lost, passed);
        self.faded_at = ticks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_needs_another_slot_if_it_keeps_more_than_these_busy() {
        let own = |work| OwnWork { work, ..OwnWork::default() };
        assert!(!own(2 * SLOT).needs_more_than(64) && own(2 * SLOT + 1).needs_more_than(64));
    }
}
